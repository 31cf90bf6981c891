"""What may have happened to a camera, as questions, and how one is answered of a take.

Those about whole pictures come first (`put_right`): whether they had been turned, mirrored, frozen,
or lost their colours. The others are `camera_check`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.cameras.known_camera import (
    ALIKE,
    BLACK,
    LEAST,
    KnownCamera,
    alike,
    red_to_blue,
)
from gaploop.failure_analysis.views.camera_samples import (
    HEIGHT,
    WIDTH,
    CameraSamples,
    TakeLook,
)


class YesNo(StrEnum):
    """To one question about one camera."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "can't tell"


@dataclass(frozen=True)
class CameraQuestion:
    """One thing that may have happened to a camera.

    Attributes:
        words: as a sentence goes on after the camera's name.
        numbers: what tells it.
        unit: of the first of them.
        worth: change from which on it matters, in each number's unit: where chance alone reaches
            that far, the answer is not "no".
    """

    words: str
    numbers: tuple[str, ...]
    unit: str
    worth: float
    dimension: GapDimension = GapDimension.VISUAL_DOMAIN


_SPACE: Final = GapDimension.SPATIAL_GEOMETRY
QUESTIONS: Final[Mapping[str, CameraQuestion]] = {
    "exposure": CameraQuestion("is {more} exposed", ("light",), "stops", 0.5),
    "white_balance": CameraQuestion("has another white balance", ("red", "blue"), "stops", 0.3),
    "haze": CameraQuestion("has {less} contrast in the shadows", ("haze",), "stops", 0.5),
    "vignette": CameraQuestion("is {more} dark in its corners", ("vignette",), "stops", 0.4),
    "local_light": CameraQuestion("is lit from another side", ("slope_x", "slope_y"), "stops", 0.5),
    "flicker": CameraQuestion("flickers {more}", ("flicker", "bands"), "log", 1.0),
    "sharpness": CameraQuestion("is {more} sharp", ("sharpness",), "log", 0.1),
    "noise": CameraQuestion(
        "is {more} noisy", ("noise",), "log", 0.7, GapDimension.SENSOR_NOISE
    ),
    "moved": CameraQuestion(
        "has moved", ("right", "down", "turn"), "% of its width or degrees", 3.0, _SPACE
    ),
    "crop": CameraQuestion(
        "shows a larger or smaller cut, or through another lens", ("scale", "bend"), "%", 5.0,
        _SPACE,
    ),
    "cover": CameraQuestion(
        "is covered in part, or something new stands before it", ("cover",), "", 3.0
    ),
}  # fmt: skip
SPOILT_BY: Final[Mapping[str, str]] = {
    "size": "", "turned": "flicker", "colour_order": "", "colourless": "white_balance",
    "frozen": " ".join(QUESTIONS), "black": " ".join(QUESTIONS),
}  # fmt: skip
"""Questions about whole pictures, and what a yes to them leaves no evidence of. Light or a push
does none of it: a single take that shows it is told."""


@dataclass(frozen=True)
class CameraAnswer:
    """One question about one camera in one take.

    Attributes:
        number: what told it, or what could not.
        value: its change from usual; `reach` is what chance alone reaches, in the same unit.
        where: cells that show it, shape (rows, columns); empty where it is of the whole picture.
        why: why it can't be told; of a yes, what it leaves open.
    """

    camera: str
    question: str
    answer: YesNo
    number: str
    value: float
    reach: float
    where: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    why: str = ""

    @property
    def line(self) -> str:
        """The answer in one line."""
        asked = QUESTIONS.get(self.question)
        if self.question == "swapped" and self.answer is YesNo.UNKNOWN:
            return f"camera {self.camera}: can't tell whether it is swapped: {self.why}"
        if self.question == "swapped":
            return f"camera {self.camera} has changed places with {self.number}"
        if asked is None:
            return f"camera {self.camera}: {self.why}"
        more, less = ("more", "less") if self.value > 0 else ("less", "more")
        words = asked.words.format(more=more, less=less)
        if self.question == "exposure":
            words = f"is {'brighter' if self.value > 0 else 'darker'}"
        unit = {"turn": "°", "right": " % of its width", "down": " % of its height"}.get(
            self.number, f" {asked.unit}".rstrip()
        )
        size = f"{self.value:+.2g}{unit} ({self.number}; chance reaches {self.reach:.2g})"
        if self.answer is YesNo.UNKNOWN:
            return f"camera {self.camera}: can't tell whether it {words}: {self.why}"
        if self.where.size:
            rows, columns = np.nonzero(self.where)
            row, column = rows.mean() / len(self.where), columns.mean() / self.where.shape[1]
            down = "upper" if row < 1 / 3 else "lower" if row > 2 / 3 else "middle"
            across = "left" if column < 1 / 3 else "right" if column > 2 / 3 else "middle"
            size = f"{self.where.mean():.0%} of the picture, {down} {across}"
        return f"camera {self.camera} {words}: {size}{f', {self.why}' if self.why else ''}"


def dimension_of(question: str) -> GapDimension:
    """Return the gap dimension that a yes to a question speaks for."""
    asked = QUESTIONS.get(question)
    turned = GapDimension.SPATIAL_GEOMETRY if question == "turned" else GapDimension.VISUAL_DOMAIN
    return asked.dimension if asked else turned


UPRIGHT: Final[Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "mirrored left to right": lambda p: p[:, ::-1],
    "mirrored top to bottom": lambda p: p[::-1],
    "turned by 180°": lambda p: p[::-1, ::-1],
    "turned by 90° to the right": lambda p: _quarter(p, 1),
    "turned by 90° to the left": lambda p: _quarter(p, -1),
}
"""What may have been done to whole pictures, and what undoes it."""
FITS: Final = 0.75
"""Share of how well reference takes fit each other from which on turned pictures fit; as they are
they must fit by less than half of that, as those of no scene that looks alike turned do."""
COLOUR_FITS: Final = 0.5
"""The same of how red places are to how blue they are."""
GREY: Final = (4, 20)
"""Spread of the channels, of the most colourful hundredth of a take's pixels, up to which it shows
no colour, and from which on a reference take does [levels]."""
FROZEN: Final = (0.5, 2.0)
"""How much pixels typically change over a take that shows one picture, and over a reference take,
as long as the arm moves [levels]."""


def put_right(
    camera: KnownCamera, samples: CameraSamples
) -> tuple[CameraSamples, list[CameraAnswer]]:
    """Return a take's pictures as this camera's usually lie, and what had been done to them."""
    said = dict.fromkeys(list(SPOILT_BY)[1:], "")
    if len(camera.takes) >= LEAST and samples.pictures.mean() <= BLACK:
        said["black"] = "its pictures are black"
    elif len(camera.takes) >= LEAST:
        fits, coloured = camera.fits
        edges = TakeLook.of(samples).edges
        now = {how: alike(undo(edges), camera.edges) for how, undo in UPRIGHT.items()}
        how, lies = max(now, key=lambda name: now[name]), alike(edges, camera.edges)
        if fits > ALIKE and now[how] > FITS * fits and lies < 0.5 * now[how]:
            said["turned"], lies = f"its pictures are {how}", now[how]
            height, width = samples.size_px
            back = "90" in how and (width, height) == camera.takes[0].size_px
            samples = replace(
                samples, pictures=np.stack([UPRIGHT[how](p) for p in samples.pictures]),
                size_px=(width, height) if back else (height, width),
            )  # fmt: skip
        colour = alike(red_to_blue(samples), camera.colour)
        if lies > FITS * fits and coloured > ALIKE and colour < -COLOUR_FITS * coloured:
            said["colour_order"] = "red and blue are swapped in its pictures"
            of = samples.measures
            samples = replace(
                samples, pictures=samples.pictures[..., ::-1],
                measures=of | {"red": of["blue"], "blue": of["red"]},
            )  # fmt: skip
        if _colours(samples) <= GREY[0] and min(map(_colours, camera.takes)) >= GREY[1]:
            said["colourless"] = "its pictures are grey, without colour"
        moves = samples.has_joints and camera.moves(samples) > 0.5 * camera.least_moving
        if moves and _changes(samples) < FROZEN[0] and min(map(_changes, camera.takes)) > FROZEN[1]:
            said["frozen"] = "it shows one picture while the arm moves"
    return samples, [
        CameraAnswer(camera.name, q, YesNo.YES if why else YesNo.NO, q, 0.0, 1.0, why=why)
        for q, why in said.items()
    ]


def _quarter(picture: NDArray[Any], times: int) -> NDArray[Any]:
    """Turn a kept picture by 90° to the left, so many times; its sides are swapped back."""
    turned = np.ascontiguousarray(np.rot90(picture, times))
    return np.asarray(cv2.resize(turned, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA))


def _colours(samples: CameraSamples) -> float:
    """Return how far apart channels are in the most colourful hundredth of a take [levels]."""
    return float(np.percentile(np.ptp(samples.pictures, axis=-1), 99))


def _changes(samples: CameraSamples) -> float:
    """Return how much the tenth of pixels that change most do over a take [levels]."""
    grey = samples.pictures.astype(np.float32).mean(axis=-1)
    return float(np.percentile(np.abs(grey - np.median(grey, axis=0)).mean(axis=0), 90))

"""What may have happened to a camera, as questions, and how one is answered of a take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension


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

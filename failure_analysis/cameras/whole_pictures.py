"""What had been done to whole pictures of a camera: turned, mirrored, colours swapped, frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.failure_analysis.cameras.camera_questions import (
    SPOILT_BY,
    CameraAnswer,
    YesNo,
)
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

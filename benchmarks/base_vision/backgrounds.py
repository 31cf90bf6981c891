"""What training pictures are put before: photos of a folder, drawn surfaces, or smooth colours.

A base that has only ever seen one table takes the table for a part of the task. So most episodes of
a batch get another background, drawn anew each time: a piece of a photo, in other colours, or a
made-up one of many kinds, often with things lying about (the idea of Tobin et al. 2017,
arXiv:1703.06907). None of it is meant to look real; it is meant to differ.

Photos of the rooms that a base is judged in are never trained on, whatever folder they are in:
`SET_ASIDE`, written down before anything was trained. Variants of a room (another light, other
things on the same table) have names that begin alike, so a room is set aside as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.sim.camera import BRIGHT_PERCENTILE, LIGHT
from gaploop.sim.conditions import PHOTOS

type Rgb = NDArray[np.float32]
"""A picture, shape (size, size, 3), 0..255; or a colour, shape (3,)."""

SET_ASIDE: Final = (
    *("room_", "bridge_", "google_", "move_near_", "open_drawer_", "73_table"),
    *("805_", "1257_", "1495_", "1539_", "1991_", "2398_", "3289_"),
)
"""How file names of photos begin that a base is judged by: nine rooms of jetson-inference
(`room_*`), and the empty scenes of two robots' rooms that SIMPLER is judged in."""
SHARES: Final = (0.35, 0.35)
"""Of the takes in a batch: those as they were recorded, and of the others those before a photo."""
BANK: Final = 1500
"""Backgrounds that are made before training; each draw is one of them turned and in other colours,
as making one costs as much as ten pictures' way through the network."""
KEPT_PX: Final = 288
"""Shorter side that photos are kept with [px]."""


class Backgrounds:
    """A source of backgrounds.

    Args:
        photos: a folder of photos, searched with its sub-folders; drawn ones alone if None.
        size_px: width and height of what is drawn [px].
        seed: of the bank that draws come from.
        smooth: smooth colours alone, as the control that says what the rest is worth.

    Raises:
        UnusableInputError: there is no photo to train on in the folder.
    """

    def __init__(
        self, photos: Path | None, size_px: int, *, seed: int = 0, smooth: bool = False
    ) -> None:
        found = sorted(photos.rglob("*")) if photos else []
        paths = [p for p in found if p.suffix.lower() in PHOTOS]
        paths = [p for p in paths if not p.name.startswith(SET_ASIDE)]
        if photos and not paths:
            raise UnusableInputError(f"--data={photos}: there is no photo to train on.")
        kept, rng = [_small(path) for path in paths], np.random.default_rng([seed, 79])
        made = (_made(rng, size_px, kept, smooth) for _ in range(BANK))
        self._bank = np.array([np.clip(picture, 0, 255) for picture in made], dtype=np.uint8)

    def draw(self, rng: np.random.Generator) -> Rgb | None:
        """Return a background, or None where the picture is to stay as it was recorded."""
        if rng.random() < SHARES[0]:
            return None
        picture = self._bank[int(rng.integers(len(self._bank)))].astype(np.float32)
        picture = np.rot90(picture, int(rng.integers(4)) if rng.random() < 0.5 else 0)
        return _recoloured(rng, picture[:, ::-1] if rng.random() < 0.5 else picture)


def _made(
    rng: np.random.Generator, size: int, photos: Sequence[NDArray[np.uint8]], smooth: bool
) -> Rgb:
    if smooth:
        return _clouds(rng, size, (2, 3, 4))
    if photos and rng.random() < SHARES[1]:
        photo = photos[int(rng.integers(len(photos)))]
        tall, wide = photo.shape[:2]
        side = int(min(tall, wide) * rng.uniform(0.5, 1.0))
        y, x = int(rng.integers(tall - side + 1)), int(rng.integers(wide - side + 1))
        piece = photo[y : y + side, x : x + side]
        cut = cv2.resize(piece, (size, size), interpolation=cv2.INTER_AREA)
        return np.asarray(cut, dtype=np.float32)
    ground = _surface(rng, size)
    if rng.random() < 0.5:  # a table before a wall or a floor
        ground = _table(rng, ground, _surface(rng, size))
    if rng.random() < 0.6:
        _things(rng, ground)
    return ground


def light_of(background: Rgb, bench: Rgb) -> Rgb:
    """Return the factors on the colours of what stands before a background, shape (3,).

    As `sim.camera.Backdrop` has them, which a policy is judged with.
    """
    wanted, light = (
        np.percentile(p.reshape(-1, 3), BRIGHT_PERCENTILE, axis=0) for p in (background, bench)
    )
    return np.asarray(np.clip(wanted / np.maximum(light, 1.0), *LIGHT), dtype=np.float32)


def _small(path: Path) -> NDArray[np.uint8]:
    photo = cv2.imread(str(path))
    if photo is None:
        raise UnusableInputError(f"{path}: it can't be read as a picture. Remove it.")
    scale = min(1.0, KEPT_PX / min(photo.shape[:2]))
    small = cv2.resize(photo, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return np.asarray(small[..., ::-1], dtype=np.uint8)


def _colour(rng: np.random.Generator) -> Rgb:
    """Return a colour; most things in a room are hardly coloured."""
    grey = rng.uniform(15, 245)
    return np.asarray(np.clip(grey + rng.normal(0, 8 + 60 * rng.random() ** 3, 3), 0, 255), "f4")


def _recoloured(rng: np.random.Generator, picture: Rgb) -> Rgb:
    """Return it in another light: exposure, colour cast, saturation, contrast."""
    grey = picture.mean(2, keepdims=True)
    picture = grey + (picture - grey) * np.float32(rng.uniform(0.5, 1.3))
    gain = np.exp(rng.normal(0, 0.35)) * np.exp(rng.normal(0, 0.1, 3))
    middle = picture.mean()
    picture = middle + (picture - middle) * np.float32(rng.uniform(0.6, 1.2))
    return np.asarray(np.clip(picture * gain.astype(np.float32), 0, 255), dtype=np.float32)


def _noise(rng: np.random.Generator, size: int, cells: tuple[int, int]) -> NDArray[np.float32]:
    """Return smooth noise in [0, 1] of so many cells down and across, shape (size, size)."""
    coarse = rng.random((cells[0] + 1, cells[1] + 1), dtype=np.float32)
    return np.asarray(cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC), "f4")


def _clouds(rng: np.random.Generator, size: int, octaves: Sequence[int]) -> Rgb:
    """Return clouds of colour between a few colours, of the given sizes."""
    picture = np.zeros((size, size, 3), dtype=np.float32) + _colour(rng)
    for cells in octaves:
        weight = np.clip(_noise(rng, size, (cells, cells)), 0, 1)[..., None]
        picture += (_colour(rng) - picture) * weight
    return picture


def _grid(rng: np.random.Generator, size: int) -> tuple[Any, Any]:
    """Return coordinates of pixels, turned by a random angle [px], each (size, size)."""
    y, x = np.mgrid[:size, :size].astype(np.float32)
    angle = rng.uniform(0, np.pi)
    return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)


def _surface(rng: np.random.Generator, size: int) -> Rgb:
    """Return a surface of a random kind: a pattern that mixes two colours, and some noise."""
    along, across = _grid(rng, size)
    kind, period = int(rng.integers(10)), float(rng.uniform(4, 40))
    mix: Any
    if kind == 0:
        mix = np.full((size, size), 0.0)
    elif kind == 1:  # grain of wood
        mix = 0.5 + 0.5 * np.sin(_noise(rng, size, (2, 12)) * rng.uniform(8, 40) + across / period)
    elif kind == 2:  # boards
        board = np.floor(across / period).astype(int)
        mix = rng.random(4 * size)[board % (4 * size)] + (across % period < 1.0)
    elif kind == 3:  # stripes
        mix = (across % period < period / 2).astype(float)
    elif kind == 4:  # checks
        mix = ((along // period + across // period) % 2).astype(float)
    elif kind == 5:  # tiles or bricks with joints
        shifted = along + period * (across // period % 2) * rng.integers(2)
        joint = rng.uniform(0.5, 2.0)
        mix = ((across % period < joint) | (shifted % (2 * period) < joint)).astype(float)
    elif kind == 6:  # speckles, as of stone or carpet
        cells = int(rng.integers(size // 4, size))
        mix = _noise(rng, size, (cells, cells))
    elif kind == 7:  # marble
        mix = np.abs(np.sin(_noise(rng, size, (5, 5)) * 6 + along / period)) ** 0.5
    elif kind == 8:  # patches with straight edges
        points = rng.uniform(0, size, (int(rng.integers(4, 20)), 2))
        place = np.stack([along, across], -1)[:, :, None] - points
        mix = rng.random(len(points))[np.square(place).sum(-1).argmin(-1)]
    else:
        return _clouds(rng, size, (2, 5, 11, 24))
    one, other = _colour(rng), _colour(rng)
    other = one + (other - one) * rng.uniform(0.1, 1.0)
    picture = one + (other - one) * np.clip(mix, 0, 1)[..., None]
    shade = 1.0 + rng.uniform(0, 0.4) * (_noise(rng, size, (2, 2)) - 0.5)
    picture = picture * shade[..., None] + rng.normal(0, rng.uniform(0, 8), (size, size, 1))
    return np.asarray(picture, dtype=np.float32)


def _table(rng: np.random.Generator, table: Rgb, behind: Rgb) -> Rgb:
    """Return a table top before something else, as a camera sees it at a slant."""
    size = len(table)
    top, bottom = rng.uniform(0, 0.4), rng.uniform(0.7, 1.2)
    left, right = rng.uniform(-0.1, 0.25), rng.uniform(0.75, 1.1)
    slant = rng.uniform(0, 0.25)
    corners = [(left + slant, top), (right - slant, top), (right, bottom), (left, bottom)]
    shape = np.zeros((size, size), dtype=np.uint8)
    cv2.fillConvexPoly(shape, (np.array(corners) * size).astype(np.int32), 255, cv2.LINE_AA)
    weight = shape[..., None] / np.float32(255)
    return np.asarray(behind + (table - behind) * weight, dtype=np.float32)


def _things(rng: np.random.Generator, picture: Rgb) -> None:
    """Put things into a picture: boxes, balls, sticks, of any colour, lit from one side."""
    size = len(picture)
    for _ in range(int(rng.integers(1, 8))):
        middle, half = rng.uniform(0, size, 2), rng.uniform(1.5, 14) * rng.uniform(0.3, 1.0, 2)
        shape = np.zeros((size, size), dtype=np.uint8)
        if rng.random() < 0.4:
            axes = np.maximum(half, 1).astype(int)
            angle = rng.uniform(0, 180)
            at = middle.astype(int)
            cv2.ellipse(shape, at, axes, angle, 0, 360, 255, -1, cv2.LINE_AA)
        else:
            box = cv2.boxPoints((middle.tolist(), (2 * half).tolist(), rng.uniform(0, 90)))
            cv2.fillConvexPoly(shape, box.astype(np.int32), 255, cv2.LINE_AA)
        bright, is_vivid = rng.uniform(44, 550), rng.random() < 0.5
        colour: Any = bright * rng.dirichlet([0.7] * 3) if is_vivid else _colour(rng)
        lit: Any = np.clip(colour, 0, 255) * (0.7 + 0.6 * _noise(rng, size, (1, 1))[..., None])
        weight = shape[..., None] / np.float32(255)
        picture += ((lit - picture) * weight).astype(np.float32)

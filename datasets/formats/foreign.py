"""Small steps that the readers of foreign layouts share."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.types import Image

LARGEST_PICTURE: Final = 1 << 28
"""89 megapixels in RGB; more is no camera's, and a few bytes can ask for it [bytes]."""


def unpacked(content: bytes) -> Image | None:
    """Return a JPEG or PNG as OpenCV decodes it, BGR, uint8; None where it isn't one."""
    from PIL import Image as Pillow

    try:
        with Pillow.open(io.BytesIO(content)) as shown:
            if 3 * shown.width * shown.height > LARGEST_PICTURE:
                return None
        picture: Any = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    except (cv2.error, Pillow.DecompressionBombError, SyntaxError, *DAMAGE):
        return None
    return None if picture is None else np.asarray(picture, dtype=np.uint8)


def not_finite_row(values: NDArray[Any]) -> int | None:
    """Return the first row with NaN or infinity, None where there is none; shape (n, …)."""
    if not np.issubdtype(values.dtype, np.floating) or np.isfinite(values).all():
        return None
    return int((~np.isfinite(values.reshape(len(values), -1)).all(axis=1)).argmax())


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as LeRobot keeps them."""
    return np.ascontiguousarray(values, dtype=np.float32)


def taken(
    keys: Mapping[str, tuple[str, ...]], feature: str, found: Iterable[str], where: Path
) -> tuple[str, ...]:
    """Return the keys that `--keys` gives for a feature, () where it gives none.

    Raises:
        UnusableInputError: one of them isn't there.
    """
    there = list(found)
    for key in keys.get(feature, ()):
        if key not in there:
            raise UnusableInputError(
                f"{where} has no {key} for {feature}. --keys may name: {', '.join(there)}."
            )
    return tuple(keys.get(feature, ()))


def chosen_key(
    feature: str, usual: Iterable[str], found: Iterable[str], where: Path, *, only: bool = True
) -> tuple[str, ...]:
    """Return the key that holds a feature: the one with a usual name, or the only one there is.

    Args:
        usual: names that it has in this layout.
        found: names that there are.
        only: take the only one there is, whatever it is called.

    Raises:
        UnusableInputError: there are several or none.
    """
    there = list(found)
    known = [name for name in usual if name in there]
    if len(known) == 1:
        return (known[0],)
    if only and len(there) == 1:
        return (there[0],)
    raise UnusableInputError(
        f"{where}: which of {', '.join(there) or 'no arrays'} is {feature}? Say it with "
        f'--keys=\'{{"{feature}": "KEY"}}\'; several keys in brackets are joined end to end.'
    )


def named(widths: Mapping[str, int]) -> list[str]:
    """Return names of a vector's entries: the key, numbered where it is wider than 1."""
    return [
        key if width == 1 else f"{key}_{i}" for key, width in widths.items() for i in range(width)
    ]


def natural(path: Path) -> list[Any]:
    """Return a sort key that puts episode_2 before episode_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]

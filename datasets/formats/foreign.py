"""What ALOHA's and Diffusion Policy's layouts share on their way into a LeRobot dataset.

One description for all episodes, then episodes one at a time, pictures decoded one by one. What a
layout doesn't say about itself is asked for, never guessed.
"""

from __future__ import annotations

import hashlib
import io
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.messages import Image
from gaploop.core.take import Images, TakeInfo
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets import columns, layout
from gaploop.datasets.columns import IMAGES, PICTURES

LARGEST_PICTURE: Final = 1 << 28
"""89 megapixels in RGB; more is no camera's, and a few bytes can ask for it [bytes]."""


@dataclass(frozen=True)
class About:
    """What is the same for all episodes of a recording.

    Attributes:
        features: LeRobot's feature table, without the columns that LeRobot makes itself; numbers
            are vectors, pictures have shape (height, width, 3).
        keys: feature of pictures to what it is called in the foreign layout.
    """

    fps: float
    robot_type: str
    features: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Features that hold numbers, in order."""
        return tuple(n for n, f in self.features.items() if f["dtype"] not in PICTURES)

    @property
    def pictures(self) -> dict[str, str]:
        """Features that hold pictures, in order, each with the camera's short name."""
        found = (n for n, f in self.features.items() if f["dtype"] in PICTURES)
        return {n: n.removeprefix(IMAGES) for n in found}

    def size(self, feature: str) -> tuple[int, int]:
        """Return height and width of a camera's pictures [pixels]."""
        height, width, _ = self.features[feature]["shape"]
        return int(height), int(width)


@dataclass(frozen=True)
class Recording:
    """One episode on its way from one layout to another.

    Attributes:
        columns: feature to values, one row per frame, shape (n,) or (n, width).
        pictures: feature to its pictures, decoded one at a time.
        row: the gap columns of `meta/episodes`; empty without any.
        telemetry: the file of its control-rate record.
    """

    task: str
    length: int
    columns: Mapping[str, NDArray[Any]]
    pictures: Mapping[str, Images]
    row: Mapping[str, Any]
    telemetry: bytes | None = None

    @property
    def uid(self) -> str:
        """The take's uid; "" without gap columns."""
        return str(self.row.get("gap_uid", ""))


@dataclass(frozen=True)
class ForeignRecording:
    """A foreign recording of `count` episodes; `notes` say what was left out or decided."""

    about: About
    count: int
    episodes: Callable[[], Iterator[Recording]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportSettings:
    """What a foreign layout doesn't say about itself.

    Attributes:
        units: of action and state, such as `rad`; "" where nobody said.
        keys: feature to the key, or keys joined end to end, that it is read from.
        swap_red_blue: the source's pictures are BGR.
    """

    fps: float | None = None
    units: str = ""
    task: str = ""
    robot_type: str = ""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kind: TakeKind | None = None
    domain: Domain | None = None
    outcome: Outcome | None = None
    swap_red_blue: bool = False

    def required_fps(self, where: Path, hint: str = "") -> float:
        """Return the rate; UnusableInputError: nobody said it, or it isn't whole and above 0."""
        if self.fps is None:
            raise UnusableInputError(
                f"{where} doesn't state its frames per second. Give them with --fps=…{hint}."
            )
        if self.fps <= 0 or self.fps != int(self.fps):
            raise UnusableInputError(
                f"--fps={self.fps:g}: LeRobot needs a whole number above 0. Resample first."
            )
        return float(self.fps)

    def require_units(self, where: Path, hint: str = "") -> None:
        """Refuse to go on where nobody said the units of action and state."""
        if not self.units:
            raise UnusableInputError(
                f"{where} doesn't state the units of action and state, and gaploop doesn't guess. "
                "Give them: --units=degrees, radians, normalized, m or another word; "
                f"--units=unknown goes on without{hint}."
            )


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
    keys: Mapping[str, tuple[str, ...]], feature: str, found: Collection[str], where: Path
) -> tuple[str, ...]:
    """Return the keys that `--rename_map` gives a feature, or (); UnusableInputError: not there."""
    for key in keys.get(feature, ()):
        if key not in found:
            raise UnusableInputError(
                f"{where} has no {key} for {feature}. --rename_map may name: {', '.join(found)}."
            )
    return tuple(keys.get(feature, ()))


def chosen_key(
    feature: str, usual: Iterable[str], found: Collection[str], where: Path, *, only: bool = True
) -> tuple[str, ...]:
    """Return the key that holds a feature: the one with a usual name, or the only one there is.

    UnusableInputError: there are several or none.
    """
    known = [name for name in usual if name in found]
    if len(known) == 1:
        return (known[0],)
    if only and len(found) == 1:
        return tuple(found)
    raise UnusableInputError(
        f"{where}: which of {', '.join(found) or 'no arrays'} is {feature}? Name it with "
        f"--rename_map='{{KEY: {feature}}}'; several keys are joined end to end."
    )


def named(widths: Mapping[str, int]) -> list[str]:
    """Return names of a vector's entries: the key, numbered where it is wider than 1."""
    return [
        key if width == 1 else f"{key}_{i}" for key, width in widths.items() for i in range(width)
    ]


def natural(path: Path) -> list[Any]:
    """Return a sort key that puts episode_2 before episode_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def described(
    fps: float,
    robot_type: str,
    vectors: Mapping[str, list[str]],
    cameras: Mapping[str, tuple[str, Sequence[int]]],
) -> About:
    """Return what a foreign recording holds.

    Args:
        vectors: feature to the names of its entries, `action` among them.
        cameras: camera to its key, and height and width of its pictures [pixels].
    """
    sizes = {c: {"height": size[0], "width": size[1]} for c, (_, size) in cameras.items()}
    keys = {f"{columns.IMAGES}{camera}": key for camera, (key, _) in cameras.items()}
    return About(fps, robot_type, columns.frame_features(vectors, sizes), keys)


def foreign_recording(
    about: About,
    settings: ImportSettings,
    parts: Mapping[str, tuple[str, ...]],
    rows: Callable[[str], NDArray[Any]],
    pictures: Callable[[str, bool], Iterator[Image]],
    origin: str,
    domain: Domain = Domain.REAL,
) -> Recording:
    """Return an episode of a layout, with the gap columns that nobody gave it yet.

    Args:
        parts: feature to the keys that hold it, joined end to end.
        rows: from a key to its values, shape (n, …).
        pictures: from a key, and whether red and blue change places, to pictures.
        origin: what tells it from other episodes of its source; its uid is made from that and
            from its actions.
    """
    values: dict[str, NDArray[Any]] = {}
    for name, keys in parts.items():
        found = [as_float32(rows(key)) for key in keys]
        values[name] = np.concatenate([f.reshape(len(f), -1) for f in found], axis=1)
        if (bad := not_finite_row(values[name])) is not None:
            raise UnusableInputError(
                f"Episode {origin}: {name} holds NaN or infinite values, first in row {bad}. "
                "LeRobot can't train on it; leave that episode out or fix the source."
            )
    swap = settings.swap_red_blue
    shown = {name: partial(pictures, about.keys[name], swap) for name in about.pictures}
    action = np.ascontiguousarray(values[columns.ACTION])
    digest = hashlib.sha256(action.tobytes()).hexdigest()
    uid = str(uuid.uuid5(layout.FOREIGN, f"{origin}|{len(action)}|{digest}"))
    filled = columns.filled_columns(uid, action, about.fps, about.pictures.values())
    units = "" if settings.units == "unknown" else settings.units
    kind = settings.kind or TakeKind.IMPORT
    info = TakeInfo(uid=uid, kind=kind, domain=settings.domain or domain, units=units)
    row = columns.default_row(info, settings.outcome or Outcome.UNLABELLED)
    ordered = {name: {**filled, **values}[name] for name in about.numbers}
    return Recording(settings.task, len(action), ordered, shown, row)

"""Steps that the readers of foreign layouts share: keys, pictures, features, episodes."""

from __future__ import annotations

import hashlib
import io
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.messages import Image
from gaploop.core.take import Images, TakeInfo
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns, layout
from gaploop.datasets.formats.model import (
    About,
    Carried,
    ForeignRecording,
    ImportSettings,
    Recording,
)

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


def require_finite(values: Mapping[str, NDArray[Any]], episode: str) -> None:
    """Refuse an episode's values, by feature, with NaN or infinity: LeRobot can't train on them."""
    for name, column in values.items():
        bad = not_finite_row(column)
        if bad is not None:
            raise UnusableInputError(
                f"Episode {episode}: {name} holds NaN or infinite values, first in row {bad}. "
                "LeRobot can't train on it; leave that episode out or fix the source."
            )


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
    values: Mapping[str, NDArray[Any]],
    pictures: Mapping[str, Images],
    origin: str,
    **known: Any,
) -> Recording:
    """Return an episode that nobody gave gap columns yet.

    Args:
        values: feature to values; `gap.*` are filled in where they are missing.
        origin: what tells it from other episodes of its source; its uid is made from that and
            from its actions.
        known: fields of `TakeInfo` that the source says, task and telemetry.
    """
    require_finite(values, origin)
    action = np.ascontiguousarray(values[columns.ACTION])
    digest = hashlib.sha256(action.tobytes()).hexdigest()
    uid = str(uuid.uuid5(layout.FOREIGN, f"{origin}|{len(action)}|{digest}"))
    filled = columns.filled_columns(uid, action, about.fps, about.pictures.values())
    task = str(known.pop("task", "") or settings.task)
    telemetry = known.pop("telemetry", None)
    units = "" if settings.units == "unknown" else settings.units
    info = TakeInfo(uid=uid, **{"kind": TakeKind.IMPORT, "units": units, **known})
    info = replace(info, kind=settings.kind or info.kind, domain=settings.domain or info.domain)
    row = columns.default_row(info, settings.outcome or Outcome.UNLABELLED)
    ordered = {name: {**filled, **values}[name] for name in about.numbers}
    return Recording(task, len(action), ordered, dict(pictures), row, telemetry)


@dataclass(frozen=True)
class Maker:
    """Makes recordings of what a layout holds under its own keys.

    Attributes:
        parts: of a recording that nobody gave gap columns, feature to the keys that hold it.
        carried: what gaploop noted in it; None where it didn't write it.
    """

    about: About
    settings: ImportSettings
    parts: Mapping[str, tuple[str, ...]]
    carried: Carried | None

    def source(
        self, count: int, episodes: Callable[[], Iterator[Recording]], notes: Iterable[str] = ()
    ) -> ForeignRecording:
        """Return the recording of `count` episodes."""
        if self.carried is None:
            return ForeignRecording(self.about, count, episodes, notes=tuple(notes))
        return ForeignRecording(self.about, count, episodes, self.carried.labels, exact=True)

    def __call__(
        self,
        index: int,
        origin: str,
        rows: Callable[[str], NDArray[Any]],
        pictures: Callable[[str, bool], Iterator[Image]],
        record: Callable[[str], bytes | None],
        **known: Any,
    ) -> Recording:
        """Return an episode.

        Args:
            origin: as in `foreign_recording`, and so is `known`.
            rows: from a key to its values, shape (n, …).
            pictures: from a key, and whether red and blue change places, to pictures.
            record: from a uid to the take's control-rate record, if there is one.
        """
        about, carried = self.about, self.carried
        swap = self.settings.swap_red_blue and carried is None
        shown = {name: partial(pictures, about.keys[name], swap) for name in about.pictures}
        values: dict[str, NDArray[Any]] = {}
        if carried is None:
            for name, keys in self.parts.items():
                found = [as_float32(rows(key)) for key in keys]
                values[name] = np.concatenate([f.reshape(len(f), -1) for f in found], axis=1)
            return foreign_recording(about, self.settings, values, shown, origin, **known)
        for name in about.numbers:
            stored = rows(about.keys[name])
            narrow = tuple(about.features[name]["shape"]) == (1,)
            values[name] = stored.reshape(len(stored)) if narrow else stored
        row, n = carried.rows[index], len(values[columns.ACTION])
        require_finite(values, str(row["gap_uid"]))
        return Recording(carried.tasks[index], n, values, shown, row, record(str(row["gap_uid"])))

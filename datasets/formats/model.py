"""What every layout is written from and read into: one description, episodes one at a time.

Uids, labels, units, tasks, names and types of columns are carried along as JSON, so that importing
gives them back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.labels import LabelEvent
from gaploop.core.paths import plain_name
from gaploop.core.take import Images, frames_per_second
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets import layout
from gaploop.datasets.columns import EPISODE_COLUMNS, IMAGES, NUMERIC, PICTURES, info_fields

type Advance = Callable[[], None]
"""Called after every episode."""


@dataclass(frozen=True)
class About:
    """What is the same for all episodes of a recording.

    Attributes:
        features: LeRobot's feature table, without the columns that LeRobot makes itself; numbers
            are vectors, pictures have shape (height, width, 3).
        keys: feature to what it is called in the foreign layout.
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
class Outgoing:
    """A dataset that is being exported.

    Attributes:
        lengths: frames of each episode, in order, as `rows` and `tasks` are.
        rows: gap columns.
        labels: label events, one line of JSON each, oldest first.
        episodes: opens the episodes anew; at most one is in memory at a time. With `whole=False`
            without telemetry and pictures.
        notes: what can't be exported, in words.
        left_out: episodes that aren't whole, and why, where they may be left out.
        check: called right before the copy appears; raises what forbids it since it was opened.
    """

    root: Path
    about: About
    lengths: tuple[int, ...]
    rows: tuple[Mapping[str, Any], ...]
    tasks: tuple[str, ...]
    labels: tuple[str, ...]
    episodes: Callable[..., Iterator[Recording]]
    notes: tuple[str, ...]
    left_out: Mapping[int, str]
    check: Callable[[], None]

    @property
    def total_frames(self) -> int:
        """Frames of all episodes."""
        return sum(self.lengths)


@dataclass(frozen=True)
class ForeignRecording:
    """A foreign recording of `count` episodes that is being imported.

    Attributes:
        exact: it was exported by gaploop: uids, labels, units and names are the ones it had.
        notes: what was left out or decided, in words.
    """

    about: About
    count: int
    episodes: Callable[[], Iterator[Recording]]
    labels: tuple[str, ...] = ()
    exact: bool = False
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

    def required_units(self, where: Path, hint: str = "") -> str:
        """Return the units of action and state, "" if unknown; UnusableInputError: nobody said."""
        if not self.units:
            raise UnusableInputError(
                f"{where} doesn't state the units of action and state, and gaploop doesn't guess. "
                "Give them: --units=degrees, radians, normalized, m or another word; "
                f"--units=unknown goes on without{hint}."
            )
        return "" if self.units == "unknown" else self.units


# -- What a foreign layout has no place for, carried along as JSON: the readers that a layout is
# made for never look at it.

SCHEMA: Final = "gaploop.exchange.v1"
NAME: Final = "gaploop"
"""Attribute, or data set at the top of an HDF5 file, that holds it."""


@dataclass(frozen=True)
class Carried:
    """What came along, as it stood in `Outgoing`."""

    about: About
    rows: tuple[Mapping[str, Any], ...]
    tasks: tuple[str, ...]
    labels: tuple[str, ...]


def carry(
    out: Outgoing, keys: Mapping[str, str], only: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return what has to come along, as JSON types, of all episodes or those at `only`."""
    chosen = range(len(out.rows)) if only is None else only
    uids = {out.rows[i]["gap_uid"] for i in chosen}
    features = {}
    for name, spec in out.about.features.items():
        # How videos were encoded is found out anew by whoever encodes them again.
        kept = {k: v for k, v in spec.items() if k not in ("info", "video_info")}
        features[name] = {**kept, "shape": list(spec["shape"])}
    return {
        "schema": SCHEMA,
        "fps": out.about.fps,
        "robot_type": out.about.robot_type,
        "features": features,
        "keys": dict(keys),
        "tasks": [out.tasks[i] for i in chosen],
        "rows": [dict(out.rows[i]) for i in chosen],
        "labels": [event for event in map(json.loads, out.labels) if event["uid"] in uids],
    }


def read_carried(value: Any, where: Path) -> Carried:
    """Return what `carry` wrote.

    Raises:
        UnusableInputError: it isn't that, or names takes or features as no file can be named.
    """
    try:
        if value["schema"] != SCHEMA:
            raise UnusableInputError(
                f"{where}: exported as {value['schema']}, not {SCHEMA}. Update gaploop."
            )
        features = {n: {**f, "shape": tuple(f["shape"])} for n, f in value["features"].items()}
        for name, spec in features.items():
            plain_name(name, "feature", where)
            pictures = spec["dtype"] in PICTURES
            known = pictures or str(spec["dtype"]).startswith(NUMERIC)
            if not known or len(spec["shape"]) != (3 if pictures else 1):
                raise ValueError(f"feature {name} is {spec['dtype']} of shape {spec['shape']}")
        keys = {str(name): str(key) for name, key in value["keys"].items()}
        robot = str(value["robot_type"])
        about = About(frames_per_second(value["fps"], layout.MOST_FPS), robot, features, keys)
        layout.DatasetInfo(where, about.fps, features, robot, 0, 0)  # looks at shapes
        rows = tuple({n: row[n] for n in EPISODE_COLUMNS} for row in value["rows"])
        for row in rows:
            plain_name(row["gap_uid"], "gap_uid", where)
            info_fields(row)
            pa.array([row], pa.struct(list(EPISODE_COLUMNS.items())))
        lines = tuple(LabelEvent(**event).to_line() for event in value["labels"])
        return Carried(about, rows, tuple(map(str, value["tasks"])), lines)
    except DAMAGE as error:
        raise UnusableInputError(
            f"{where}: what gaploop noted in it is damaged ({error!r}). Export it again."
        ) from None

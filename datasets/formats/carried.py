"""What a foreign layout has no place for, carried along as JSON so that importing gives it back.

Uids, labels, units, tasks, names and types of columns: the readers that a layout is made for
never look at it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.labels import LabelEvent
from gaploop.core.paths import plain_name
from gaploop.core.take import frames_per_second
from gaploop.datasets import layout
from gaploop.datasets.columns import EPISODE_COLUMNS, info_fields
from gaploop.datasets.formats.model import PICTURES, About, Outgoing

SCHEMA: Final = "gaploop.exchange.v1"
NAME: Final = "gaploop"
"""Attribute, or data set at the top of an HDF5 file, that holds it."""


@dataclass(frozen=True)
class Carried:
    """What came along.

    Attributes:
        rows: gap columns of each episode, in order.
        tasks: instruction of each episode, in order.
        labels: label events, one line of JSON each.
    """

    about: About
    rows: tuple[Mapping[str, Any], ...]
    tasks: tuple[str, ...]
    labels: tuple[str, ...]


def carry(
    out: Outgoing, keys: Mapping[str, str], only: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return what has to come along, as JSON types.

    Args:
        keys: feature to what it is called in the layout.
        only: positions of the episodes that a file holds; all if None.
    """
    chosen = range(len(out.rows)) if only is None else only
    uids = {out.rows[i]["gap_uid"] for i in chosen}
    return {
        "schema": SCHEMA,
        "fps": out.about.fps,
        "robot_type": out.about.robot_type,
        "features": {n: _plain(f) for n, f in out.about.features.items()},
        "keys": dict(keys),
        "tasks": [out.tasks[i] for i in chosen],
        "rows": [dict(out.rows[i]) for i in chosen],
        "labels": [event for event in map(json.loads, out.labels) if event["uid"] in uids],
    }


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    # How videos were encoded is found out anew by whoever encodes them again.
    kept = {k: v for k, v in spec.items() if k not in ("info", "video_info")}
    return {**kept, "shape": list(spec["shape"])}


def read_carried(value: Any, where: Path) -> Carried:
    """Return what `carry` wrote.

    Raises:
        UnusableInputError: it isn't that, or names takes or features as no file can be named.
    """
    try:
        if value["schema"] != SCHEMA:
            raise UnusableInputError(
                f"{where}: exported as {value['schema']}, this reads {SCHEMA}. Update gaploop."
            )
        features = {n: {**f, "shape": tuple(f["shape"])} for n, f in value["features"].items()}
        for name, spec in features.items():
            plain_name(name, "feature", where)
            _check_feature(name, spec)
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


def _check_feature(name: str, spec: Mapping[str, Any]) -> None:
    pictures = spec["dtype"] in PICTURES
    known = pictures or str(spec["dtype"]).startswith(("float", "int", "uint", "bool"))
    if not known or len(spec["shape"]) != (3 if pictures else 1):
        raise ValueError(f"feature {name} is {spec['dtype']} of shape {spec['shape']}")


def as_video(about: About) -> About:
    """Return the description with every picture feature stored as video."""
    features = {
        n: {**f, "dtype": "video"} if f["dtype"] in PICTURES else f
        for n, f in about.features.items()
    }
    return About(about.fps, about.robot_type, features, about.keys)

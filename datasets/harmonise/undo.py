"""What was done to a dataset, and how it is undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.datasets.harmonise.dataset import Conversion
from gaploop.datasets.harmonise.pose import ToJoints, ToTool
from gaploop.datasets.harmonise.spec import CameraSpec
from gaploop.datasets.harmonise.steps import JointChange, JointMapping, Order, Step, Suffix, Units
from gaploop.datasets.layout import DatasetInfo

RECORD: Final = "meta/gap/harmonise.json"
"""What was done to a dataset, with which numbers."""
SCHEMA: Final = "gaploop.harmonise.v1"


def history_of(root: Path) -> list[Mapping[str, Any]]:
    """Return what was done to a dataset, oldest first; empty where nothing was.

    Raises:
        UnusableInputError: its record can't be read.
    """
    path = root / RECORD
    if not path.exists():
        return []
    value = read_json(path)
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        raise UnusableInputError(f"{path} is not a record of gaploop harmonise. Restore it.")
    return list(value["history"])


def undone(info: DatasetInfo, entry: Mapping[str, Any]) -> Conversion:
    """Return the conversion that undoes what a record says was done.

    Raises:
        UnusableInputError: something was lost.
    """
    if entry["lost"]:
        raise UnusableInputError(
            f"{info.root}: this can't be undone, because these are gone: "
            f"{', '.join(entry['lost'])}. Go back to the dataset '{entry['source']['name']}'."
        )
    steps = [back for s in reversed(entry["steps"]) if (back := _step_of(s).inverse()) is not None]
    cameras = {
        change["name"]: CameraSpec(old)
        for old, change in entry["cameras"].items()
        if change["name"]
    }
    units, robot = entry["units"]["from"], entry["robot_type"]["from"]
    added = tuple(entry.get("filled", ()))
    return Conversion(info, tuple(steps), info.fps, "hold", cameras, added, robot, units)


def _step_of(value: Mapping[str, Any]) -> Step:
    """Return the step that `record` wrote."""
    given = {k: v for k, v in value.items() if k != "kind"}
    kind = value["kind"]
    if kind == "joints":
        return JointMapping({k: JointChange(**v) for k, v in given["changes"].items()})
    if kind == "units":
        ranges = {k: (v[0], v[1]) for k, v in given["ranges_deg"].items()}
        angles = given["gripper_rad"] and (given["gripper_rad"][0], given["gripper_rad"][1])
        return Units(given["source"], given["target"], ranges, angles)
    if kind == "order":
        return Order(_tuples(given["after"]), _tuples(given["before"]))
    if kind == "suffix":
        return Suffix(given["present"])
    if kind in ("to_tool", "to_joints"):
        made: Any = ToTool if kind == "to_tool" else ToJoints
        return made(given["arm"], given["units"], given["starts"], _tuples(given["names"]))  # type: ignore[no-any-return]
    raise UnusableInputError(
        f"{RECORD}: unknown step '{kind}'. Undo it with the gaploop that wrote it."
    )


def _tuples(value: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {k: tuple(v) for k, v in value.items()}

"""A conversion worked out against one dataset, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.datasets import columns
from gaploop.datasets.check.description import checked_rename
from gaploop.datasets.columns import PICTURES
from gaploop.datasets.differences import known_units
from gaploop.datasets.harmonise.spec import (
    UNITS,
    VECTORS,
    CameraSpec,
    HarmoniseSpec,
    Units,
    Vector,
    Vectors,
    is_gripper,
    joint,
    mapped,
)
from gaploop.datasets.layout import DatasetInfo, EpisodeRow

FILLED: Final = (
    columns.TIME, columns.TAKE, columns.SENT, columns.INTERVENTION, columns.SAFETY,
)  # fmt: skip
"""Gap columns of frames that can be added: see `Conversion.fill`."""
RECORD: Final = "meta/gap/harmonise.json"
"""What was done to a dataset, with which numbers."""
SCHEMA: Final = "gaploop.harmonise.v1"


@dataclass(frozen=True)
class Conversion:
    """What will be done to one dataset.

    Attributes:
        info: the dataset, with the names that its features are given first.
        spec: with the units that its takes are in.
        fps: rate afterwards [Hz].
        units: of the joint vectors afterwards; "" where nobody knows.
        fill: gap columns to add: time from the frame's number, the take's hash, the requested
            action as what was sent, no intervention, no safety event, ages unknown.
        rename: feature to the name that it is given first.
    """

    info: DatasetInfo
    spec: HarmoniseSpec
    fps: float
    robot_type: str
    units: str
    fill: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def lost(self) -> tuple[str, ...]:
        """What the result no longer holds, in words."""
        lost = [f"joint {old}" for old, change in self.spec.joints.items() if not change.name]
        if self.fps != self.info.fps:
            lost.append(f"frames at {self.info.fps:g} fps")
        for name, change in self.spec.cameras.items():
            if change is None:
                lost.append(f"camera {name}")
            elif change.touches_pictures:
                lost.append(f"the pictures of camera {name} as they were")
        return (*lost, *(f"feature {name}" for name in self.spec.drop))

    def camera(self, feature: str) -> tuple[str, CameraSpec] | None:
        """Return the new feature of a camera and its change; None where it is left out."""
        change = self.spec.cameras.get(feature.removeprefix(columns.IMAGES), CameraSpec())
        if change is None:
            return None
        new = f"{columns.IMAGES}{change.name}" if change.name else feature
        return new, change

    def name_of(self, feature: str) -> str | None:
        """Return a feature's name afterwards; None where it is left out."""
        if feature in self.spec.drop:
            return None
        if feature.startswith(columns.CAMERA_AGE):
            change = self.spec.cameras.get(columns.camera_of_age(feature), CameraSpec())
            if change is None:
                return None
            feature = columns.age_column(change.name) if change.name else feature
        elif self.info.features[feature].get("dtype") in PICTURES:
            found = self.camera(feature)
            return None if found is None else found[0]
        return feature

    def features(self) -> dict[str, dict[str, Any]]:
        """Return LeRobot's feature table afterwards, without those that LeRobot adds."""
        joints = self.spec.vectors(empty_vectors(self.info))
        table: dict[str, dict[str, Any]] = {}
        for name, spec in self.info.features.items():
            new = self.name_of(name)
            if name in columns.AUTOMATIC or new is None:
                continue
            if new in table:
                raise UnusableInputError(f"cameras: two of them get the name {new}.")
            shape = tuple(int(n) for n in spec.get("shape") or (1,))
            table[new] = {"dtype": spec["dtype"], "shape": shape, "names": spec.get("names")}
            if name in joints:
                names = list(joints[name].names)
                table[new] = {"dtype": "float32", "shape": (len(names),), "names": names}
            elif spec["dtype"] in PICTURES:
                change = self.spec.cameras.get(name.removeprefix(columns.IMAGES)) or CameraSpec()
                height, width, *rest = shape
                if change.crop is not None:
                    x, y, w, h = change.crop
                    if x + w > width or y + h > height:
                        raise UnusableInputError(
                            f"cameras: crop [{x}, {y}, {w}, {h}] reaches out of a picture of "
                            f"{width}x{height}."
                        )
                    width, height = w, h
                if change.resize is not None:
                    width, height = change.resize
                table[new]["shape"] = (height, width, *rest)
        if self.fill:
            ages = (columns.camera_of_age(name) for name in self.fill)
            ours = columns.gap_features(table[columns.ACTION], ages)
            table |= {name: ours[name] for name in self.fill}
        return table

    def record(self) -> dict[str, Any]:
        """Return what `harmonise.json` says of it."""
        spec = self.spec
        return {
            "fps": {"from": self.info.fps, "to": self.fps, "rule": spec.rule},
            "renamed": dict(self.rename),
            "joints": {name: vars(change) for name, change in spec.joints.items()},
            "scale": asdict(spec.units) if spec.units is not None else {},
            "order": dict(spec.order),
            "cameras": {n: None if c is None else vars(c) for n, c in spec.cameras.items()},
            "dropped": list(spec.drop),
            "filled": list(self.fill),
            "robot_type": {"from": self.info.robot_type, "to": self.robot_type},
            "lost": list(self.lost),
        }


def empty_vectors(info: DatasetInfo) -> dict[str, Vector]:
    """Return the names of a dataset's joint vectors, without values."""
    return {
        name: Vector(info.names(name), np.empty((0, info.width(name))))
        for name in VECTORS
        if name in info.features
    }


def renamed(info: DatasetInfo, rename: Mapping[str, str]) -> DatasetInfo:
    """Return a dataset's description with other names of features."""
    return replace(info, features={rename.get(n, n): f for n, f in info.features.items()})


def resolve(
    spec: HarmoniseSpec,
    info: DatasetInfo,
    episodes: Sequence[EpisodeRow],
    rename: Mapping[str, str] | None = None,
) -> Conversion:
    """Work a conversion out for one dataset, some of whose features get other names first.

    Raises:
        UnusableInputError: it names what isn't there, or leaves something to guess.
    """
    rename = checked_rename(info.features, rename or {})
    info = renamed(info, rename)
    # A camera that is called `image`, without the prefix, gets that with its new name.
    bare = {n: c for n, c in spec.cameras.items() if n in info.features and c and c.name}
    names = {n: f"{columns.IMAGES}{c.name}" for n, c in bare.items()}
    rename |= checked_rename(info.features, names)
    kept = {n: c for n, c in spec.cameras.items() if n not in bare}
    kept |= {c.name: replace(c, name="") for c in bare.values()}
    spec, info = replace(spec, cameras=kept), renamed(info, rename)
    vectors = empty_vectors(info)
    for what, asked, known in (
        ("joint", spec.joints, {joint(n) for v in vectors.values() for n in v.names}),
        ("camera", spec.cameras, {n.removeprefix(columns.IMAGES) for n in info.picture_keys}),
        ("feature", spec.drop, set(info.features) - set(columns.AUTOMATIC)),
    ):
        for name in asked:
            if name not in known:
                raise unknown_choice(what, name, known, str(info.root))
    units = known_units(episodes, info)
    if spec.units is not None:
        step = _units_step(spec.units, units, mapped(vectors, spec.joints))
        spec, units = replace(spec, units=step), step.target
    fps = info.fps if spec.fps is None else spec.fps
    robot = info.robot_type if spec.robot_type is None else spec.robot_type
    done = Conversion(info, spec, fps, robot, units, (), rename)
    if spec.fill:
        have = done.features()
        if columns.ACTION not in have:
            raise UnusableInputError(f"fill: {info.root} has no {columns.ACTION}.")
        cameras = [n.removeprefix(columns.IMAGES) for n in have if n.startswith(columns.IMAGES)]
        wanted = (*FILLED, *(columns.age_column(camera) for camera in cameras))
        done = replace(done, fill=tuple(name for name in wanted if name not in have))
    done.features()
    return done


def _units_step(spec: Units, known: str, vectors: Vectors) -> Units:
    source = spec.source or known
    if source not in UNITS:
        said = f"'{known}'" if known else "not stated"
        raise UnusableInputError(
            f"units: those of the dataset are {said}. Give them: units: {{from: deg, to: "
            f"{spec.target}}}; one of {', '.join(UNITS)}."
        )
    if known in UNITS and source != known:
        raise UnusableInputError(
            f"units: from {source}, but the takes are in {known}. Leave from out, or fix the "
            "takes with gaploop edit retag."
        )
    grippers = sorted({joint(n) for v in vectors.values() for n in v.names if is_gripper(n)})
    to_or_from_rad = (source == "rad") != (spec.target == "rad")
    if grippers and to_or_from_rad and not spec.gripper_said:
        raise UnusableInputError(
            f"units: {', '.join(grippers)} goes from 0 to 100 outside rad. What is that in rad? "
            "Give gripper: keep (leave its values), gripper: model with arm: NAME, "
            "or gripper: [rad at 0, rad at 100]."
        )
    return replace(spec, source=source)


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
        raise UnusableInputError(f"{path} is not a record of gaploop edit harmonise. Restore it.")
    return list(value["history"])

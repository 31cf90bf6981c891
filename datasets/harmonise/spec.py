"""What a conversion is asked to do: the file that `gaploop edit harmonise --spec` reads.

Its parts that are about numbers change the joint vectors of a take (`observation.state`, `action`,
`gap.sent`), each exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.core.paths import plain_name
from gaploop.core.schema import check_keys, load_yaml, mapping, number
from gaploop.core.units import noted
from gaploop.datasets import columns

KEYS: Final = (
    "robot_type", "fps", "joints", "order", "units", "cameras", "drop", "fill",
)  # fmt: skip
RULES: Final = {
    "hold": "the newest frame that there was at that moment",
    "linear": "joint values in between, pictures and the rest as with hold",
}
"""How frames of another rate are made."""
UNITS: Final = {
    "deg": "degrees, grippers 0 to 100, as LeRobot's SO arms",
    "m100_100": "-100 to 100 over the calibrated range, grippers 0 to 100",
    "rad": "radians, grippers too",
}
UNDECIDED: Final = "?"
"""Stands in a printed spec where only its user can decide."""
VECTORS: Final = (columns.STATE, columns.ACTION, columns.SENT)
"""Features that hold joint values."""
SUFFIX: Final = ".pos"
_MAX_PIXELS: Final = 8192
_TICKS: Final = 4096.0
"""Encoder ticks to a turn; LeRobot's degrees divide by one less."""

type Numbers = NDArray[np.float64]
type Vectors = Mapping[str, Vector]
"""Feature to its vector."""


@dataclass(frozen=True)
class Vector:
    """One feature of one take: names of its entries, and values, shape (n_frames, n_entries)."""

    names: tuple[str, ...]
    values: Numbers


def joint(name: str) -> str:
    """Return an entry's name without LeRobot's `.pos`."""
    return name.removesuffix(SUFFIX)


def is_gripper(name: str) -> bool:
    """Say whether an entry is a gripper's, as LeRobot names them."""
    return joint(name).endswith("gripper")


@dataclass(frozen=True)
class JointChange:
    """What becomes of one joint: new value = sign · old value + offset, in the old units.

    Its new name is "" to leave it out.
    """

    name: str
    sign: float = 1.0
    offset: float = 0.0


def mapped(vectors: Vectors, changes: Mapping[str, JointChange]) -> dict[str, Vector]:
    """Return vectors with joints renamed, turned round, shifted or left out.

    `changes` goes by their old names without `.pos`.
    """
    result = {}
    for feature, vector in vectors.items():
        names, parts = [], []
        for k, old in enumerate(vector.names):
            change = changes.get(joint(old), JointChange(joint(old)))
            if change.name:
                names.append(joint(change.name) + (SUFFIX if old.endswith(SUFFIX) else ""))
                parts.append(change.sign * vector.values[:, k] + change.offset)
        if len(set(names)) < len(names):
            raise UnusableInputError(f"joints: two entries of {feature} get one name: {names}.")
        values = np.stack(parts, axis=1) if parts else np.empty((len(vector.values), 0))
        result[feature] = Vector(tuple(names), values)
    return result


def ordered(vectors: Vectors, order: Mapping[str, tuple[str, ...]]) -> dict[str, Vector]:
    """Return vectors with entries in another order, named so, with `.pos` or without."""
    result = dict(vectors)
    for name, wanted in order.items():
        if name not in vectors:
            continue
        have = [joint(n) for n in vectors[name].names]
        if sorted(have) != sorted(map(joint, wanted)):
            raise UnusableInputError(
                f"order: {name} has the entries {', '.join(vectors[name].names)}; name each of "
                f"them once, got {', '.join(wanted)}."
            )
        place = [have.index(joint(n)) for n in wanted]
        result[name] = Vector(tuple(wanted), vectors[name].values[:, place])
    return result


@dataclass(frozen=True)
class Units:
    """Joint values in other units, each one of `UNITS`.

    Attributes:
        source: "" to take what the takes say.
        ranges_deg: joint to its angle [deg] at -100 and at 100, where one side is m100_100.
        gripper_rad: angle [rad] of a gripper at 0 and at 100, where one side is rad; None to
            keep its values.
        gripper_said: the spec says what becomes of the gripper.
    """

    source: str
    target: str
    ranges_deg: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gripper_rad: tuple[float, float] | None = None
    gripper_said: bool = False

    def apply(self, vectors: Vectors) -> dict[str, Vector]:
        """Return the vectors in the target's units."""
        result = {}
        needs_ranges = (self.source == "m100_100") != (self.target == "m100_100")
        for feature, vector in vectors.items():
            bodies = [joint(n) for n in vector.names if not is_gripper(n)]
            bare = [n for n in bodies if n not in self.ranges_deg]
            if needs_ranges and bare:
                raise UnusableInputError(
                    f"units: {feature} needs the angles [deg] of {', '.join(bare)} at -100 and "
                    "100. Give ranges: {joint: [low, high]}, a LeRobot calibration file, or "
                    "model."
                )
            values = vector.values.copy()
            for k, name in enumerate(vector.names):
                values[:, k] = self._entry(name, vector.values[:, k])
            result[feature] = Vector(vector.names, values)
        return result

    def _entry(self, name: str, values: Numbers) -> Numbers:
        if is_gripper(name):
            if self.gripper_rad is None or (self.source == "rad") == (self.target == "rad"):
                return values
            closed, opened = self.gripper_rad
            if self.target == "rad":
                return np.asarray(closed + values / 100.0 * (opened - closed))
            return np.asarray((values - closed) / (opened - closed) * 100.0)
        low, high = self.ranges_deg.get(joint(name), (-100.0, 100.0))
        degrees = values
        if self.source == "rad":
            degrees = np.degrees(values)
        elif self.source == "m100_100":
            degrees = low + (values + 100.0) / 200.0 * (high - low)
        if self.target == "rad":
            return np.asarray(np.radians(degrees))
        if self.target == "m100_100":
            return np.asarray((degrees - low) / (high - low) * 200.0 - 100.0)
        return degrees


@dataclass(frozen=True)
class CameraSpec:
    """What becomes of one camera: another name, x, y, width, height of a crop, a new size [px]."""

    name: str = ""
    crop: tuple[int, int, int, int] | None = None
    resize: tuple[int, int] | None = None

    @property
    def touches_pictures(self) -> bool:
        """Say whether pictures change, so that they must be encoded again."""
        return self.crop is not None or self.resize is not None


@dataclass(frozen=True)
class HarmoniseSpec:
    """A conversion, in the order in which it is carried out.

    Attributes:
        order: feature to the names of its entries.
        fps: new rate [Hz]; None to leave it.
        rule: how frames of another rate are made, see `RULES`.
        cameras: camera to what becomes of it; None to leave it out.
        fill: add the gap columns of frames that are missing, saying no more than is known.
    """

    joints: Mapping[str, JointChange] = field(default_factory=dict)
    units: Units | None = None
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fps: float | None = None
    rule: str = "hold"
    cameras: Mapping[str, CameraSpec | None] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    robot_type: str | None = None
    fill: bool = False

    def vectors(self, values: Vectors) -> dict[str, Vector]:
        """Return a take's joint vectors, converted."""
        done = mapped(values, self.joints)
        if self.units is not None:
            done = self.units.apply(done)
        return ordered(done, self.order)


def load_spec(path: Path) -> HarmoniseSpec:
    """Read a conversion from YAML.

    Raises:
        UnusableInputError: missing, not YAML, undecided, or something in it makes no sense.
    """
    return parse_spec(load_yaml(path, "Spec"), str(path), path.parent)


def parse_spec(value: Mapping[str, Any], where: str, folder: Path) -> HarmoniseSpec:
    """Return the conversion that a mapping describes; paths in it are relative to `folder`.

    Raises:
        UnusableInputError: undecided, or something in it makes no sense.
    """
    check_keys(value, KEYS, where)
    for key, entry in _leaves(value):
        if entry == UNDECIDED:
            raise UnusableInputError(f"{where}: {key} is still '?'. Decide it.")
    fps, rule, rate = None, "hold", value.get("fps")
    if rate is not None:
        rate = rate if isinstance(rate, Mapping) else {"to": rate}
        rule = str(rate.get("rule", "hold"))
        check_keys(rate, ("to", "rule"), f"{where}, fps", ("to",))
        if rule not in RULES:
            raise unknown_choice("rule", rule, RULES, f"{where}, fps")
        fps = number(rate["to"], f"{where}, fps", 1, 1000)
        if fps != int(fps):
            raise UnusableInputError(
                f"{where}, fps: {fps:g} must be a whole number, as in LeRobot."
            )
    order = mapping(value.get("order"), f"{where}, order", "feature: [names]")
    for feature, names in order.items():
        if not isinstance(names, list):
            raise UnusableInputError(f"{where}, order, {feature}: must be a list of names.")
    drop = value.get("drop") or []
    if not isinstance(drop, list):
        raise UnusableInputError(f"{where}: drop must be a list of features, got {drop!r}.")
    joints: dict[str, JointChange] = {}
    for old, new in mapping(value.get("joints"), f"{where}, joints", "old: new").items():
        here = f"{where}, joints, {old}"
        if new is None or isinstance(new, str):
            joints[joint(str(old))] = JointChange(joint(new or ""))
            continue
        entry = mapping(new, here, "key: value")
        check_keys(entry, ("name", "sign", "offset"), here)
        sign = entry.get("sign", 1)
        if sign not in (1, -1):
            raise UnusableInputError(f"{here}: sign {sign!r} must be 1 or -1.")
        offset = number(entry.get("offset", 0.0), f"{here}, offset", -1e6, 1e6)
        name = joint(str(entry.get("name", old)))
        joints[joint(str(old))] = JointChange(name, float(sign), offset)
    units = _units(value.get("units"), f"{where}, units", folder)
    cameras: dict[str, CameraSpec | None] = {}
    given = mapping(value.get("cameras"), f"{where}, cameras", "camera: change")
    for camera, change in given.items():
        here = f"{where}, cameras, {camera}"
        if change is None:
            cameras[str(camera)] = None
            continue
        entry = mapping({"name": change} if isinstance(change, str) else change, here, "key: value")
        check_keys(entry, ("name", "crop", "resize"), here)
        crop = _sizes(entry.get("crop"), 4, f"{here}, crop")
        resize = _sizes(entry.get("resize"), 2, f"{here}, resize")
        called = plain_name(entry["name"], "name", here) if entry.get("name") else ""
        cameras[str(camera)] = CameraSpec(called, crop, resize)  # type: ignore[arg-type]
    robot = value.get("robot_type")
    return HarmoniseSpec(
        joints,
        units,
        {str(feature): tuple(map(str, names)) for feature, names in order.items()},
        fps,
        rule,
        cameras,
        tuple(map(str, drop)),
        None if robot is None else str(robot),
        bool(value.get("fill", False)),
    )


def _leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in _leaves(v, f"{prefix}{k}.")]
    if isinstance(value, list):
        return [leaf for v in value for leaf in _leaves(v, prefix)]
    return [(prefix.rstrip("."), value)]


def _sizes(value: Any, count: int, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count:
        form = "[x, y, width, height]" if count == 4 else "[width, height]"
        raise UnusableInputError(f"{where}: {value!r} must be {form} [px].")
    sizes = tuple(int(number(v, where, 0, _MAX_PIXELS)) for v in value)
    if any(n < 2 or n % 2 for n in sizes[-2:]):
        raise UnusableInputError(f"{where}: width and height must be even, at least 2, for video.")
    return sizes


def _units(value: Any, where: str, folder: Path) -> Units | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = {"to": value}
    value = mapping(value, where, "key: value")
    check_keys(value, ("from", "to", "ranges", "arm", "gripper"), where, ("to",))
    value = {k: noted(v) if k in ("from", "to") and isinstance(v, str) else v
             for k, v in value.items()}  # fmt: skip
    for key in ("from", "to"):
        if key in value and value[key] not in list(UNITS):
            raise unknown_choice("units", value[key], UNITS, where)
    gripper, arm, angles_rad = value.get("gripper", ""), value.get("arm"), None
    if gripper == "model":
        angles_rad = ARM_MODELS[_known_arm(arm, f"{where}, gripper")].gripper_percent_rad
    elif gripper not in ("", "keep"):
        form = "keep, model, or [rad at 0, rad at 100]"
        angles_rad = _pair(gripper, f"{where}, gripper", form)
    ranges, here = value.get("ranges"), f"{where}, ranges"
    ranges_deg: dict[str, tuple[float, float]] = {}
    if ranges == "model":
        model = ArmModel.load(_known_arm(arm, here))
        limits_deg = np.degrees(model.joint_limits_rad)
        for name, (low, high) in zip(model.joint_names, limits_deg.tolist(), strict=True):
            if not is_gripper(name):
                ranges_deg[name] = (float(low), float(high))
    elif isinstance(ranges, str):
        # A LeRobot calibration file: degrees about the middle, as LeRobot's.
        path = folder / ranges
        for name, motor in mapping(read_json(path), str(path), "motor: calibration").items():
            try:
                half = (float(motor["range_max"]) - float(motor["range_min"])) / 2.0
            except DAMAGE:
                raise UnusableInputError(
                    f"{path}: motor {name} has no range_min and range_max. Name a calibration file "
                    "that lerobot-calibrate wrote."
                ) from None
            angle = half * 360.0 / (_TICKS - 1.0)
            ranges_deg[str(name)] = (-angle, angle)
    else:
        form = "joint: [deg at -100, deg at 100]"
        for name, ends in mapping(ranges, here, form).items():
            ranges_deg[joint(str(name))] = _pair(ends, f"{here}, {name}", form)
    source = str(value.get("from", ""))
    return Units(source, value["to"], ranges_deg, angles_rad, gripper != "")


def _known_arm(arm: Any, where: str) -> str:
    if arm not in list(ARM_MODELS):
        raise unknown_choice("arm", arm, ARM_MODELS, f"{where}: model needs arm")
    return str(arm)


def _pair(value: Any, where: str, form: str) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UnusableInputError(f"{where}: {value!r} must be {form}.")
    low, high = (number(v, where, -1e6, 1e6) for v in value)
    if low == high:
        raise UnusableInputError(f"{where}: both ends are {low:g}. They must differ.")
    return low, high

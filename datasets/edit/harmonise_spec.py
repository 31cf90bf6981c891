"""What a conversion is asked to do: the file that `gaploop edit harmonise --spec` reads.

Its parts that are about numbers change the joint vectors of a take (`observation.state`, `action`,
`gap.sent`), each exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core import schema
from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.core.paths import plain_name
from gaploop.core.vocabulary import noted
from gaploop.datasets import columns

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
_FARTHEST: Final = 1e6
_TICKS: Final = 4096.0
"""Encoder ticks to a turn; LeRobot's degrees divide by one less."""

type Numbers = NDArray[np.float64]


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
    sign: float = schema.read_with(schema.one_of((1.0, -1.0), "sign"), 1.0)
    offset: float = schema.ranged(0.0, -_FARTHEST, _FARTHEST)


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

    def affine(self, name: str) -> tuple[float, float]:
        """Return a and b of an entry: its new value is a times the old one plus b."""
        if is_gripper(name):
            if self.gripper_rad is None or (self.source == "rad") == (self.target == "rad"):
                return 1.0, 0.0
            closed, opened = self.gripper_rad
            if self.target == "rad":
                return (opened - closed) / 100.0, closed
            return 100.0 / (opened - closed), -100.0 * closed / (opened - closed)
        normalised = (self.source == "m100_100") != (self.target == "m100_100")
        if normalised and joint(name) not in self.ranges_deg:
            raise UnusableInputError(
                f"units: the angles [deg] of {joint(name)} at -100 and 100 are needed. Give "
                "ranges: {joint: [low, high]}, or a LeRobot calibration file."
            )
        low, high = self.ranges_deg.get(joint(name), (-100.0, 100.0))
        in_degrees = {
            "deg": (1.0, 0.0),
            "rad": (float(np.degrees(1.0)), 0.0),
            "m100_100": ((high - low) / 200.0, (high + low) / 2.0),
        }
        (a, b), (c, d) = in_degrees[self.source], in_degrees[self.target]
        inverse = 1.0 / c
        return inverse * a, inverse * (b - d)


@dataclass(frozen=True)
class JointMap:
    """What becomes of a vector of joints: each new entry is scale · an old one + offset.

    Attributes:
        entries: which old one, shape (n,), as of `scale` and `offset`.
    """

    names: tuple[str, ...]
    entries: NDArray[np.int64]
    scale: Numbers
    offset: Numbers

    def of(self, values: Numbers) -> Numbers:
        """Return a take's values, shape (n_frames, n_entries), converted."""
        return np.asarray(values[:, self.entries] * self.scale + self.offset)


def _sizes(form: str) -> Callable[[Any, str], tuple[int, ...] | None]:
    """Return a function that reads lengths [px], the last two those of a picture."""

    def read(value: Any, where: str) -> tuple[int, ...] | None:
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != form.count(",") + 1:
            raise UnusableInputError(f"{where}: {value!r} must be {form} [px].")
        sizes = tuple(int(schema.number(v, where, 0, _MAX_PIXELS)) for v in value)
        if any(n < 2 or n % 2 for n in sizes[-2:]):
            raise UnusableInputError(
                f"{where}: width and height must be even, at least 2, for video."
            )
        return sizes

    return read


@dataclass(frozen=True)
class CameraSpec:
    """What becomes of one camera: another name, x, y, width, height of a crop, a new size [px]."""

    name: str = schema.read_with(lambda v, where: plain_name(v, "name", where) if v else "", "")
    crop: tuple[int, int, int, int] | None = schema.read_with(_sizes("[x, y, width, height]"), None)
    resize: tuple[int, int] | None = schema.read_with(_sizes("[width, height]"), None)

    @property
    def touches_pictures(self) -> bool:
        """Say whether pictures change, so that they must be encoded again."""
        return self.crop is not None or self.resize is not None


def _joints(value: Any, where: str) -> dict[str, JointChange]:
    joints = dict[str, JointChange]()
    for old, new in schema.mapping(value, where, "old: new").items():
        entry = new if isinstance(new, dict) else {"name": new or ""}
        change = schema.read_as(JointChange, {"name": str(old)} | entry, f"{where}, {old}")
        joints[joint(str(old))] = replace(change, name=joint(change.name))
    return joints


def _order(value: Any, where: str) -> dict[str, tuple[str, ...]]:
    order = schema.mapping(value, where, "feature: [names]")
    return {str(k): schema.texts(names, f"{where}, {k}", "names") for k, names in order.items()}


def _fps(value: Any, where: str) -> float | None:
    fps = None if value is None else schema.number(value, where, 1, 1000)
    if fps is not None and fps != int(fps):
        raise UnusableInputError(f"{where}: {fps:g} must be a whole number, as in LeRobot.")
    return fps


def _cameras(value: Any, where: str) -> dict[str, CameraSpec | None]:
    cameras = dict[str, CameraSpec | None]()
    for camera, change in schema.mapping(value, where, "camera: change").items():
        entry = {"name": change} if isinstance(change, str) else change
        made = None if entry is None else schema.read_as(CameraSpec, entry, f"{where}, {camera}")
        cameras[str(camera)] = made
    return cameras


def _units(value: Any, where: str) -> Units | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = {"to": value}
    value = schema.mapping(value, where, "key: value")
    schema.check_keys(value, ("from", "to", "ranges", "gripper"), where, ("to",))
    value = {k: noted(v) if k in ("from", "to") and isinstance(v, str) else v
             for k, v in value.items()}  # fmt: skip
    for key in ("from", "to"):
        if key in value and value[key] not in list(UNITS):
            raise unknown_choice("units", value[key], UNITS, where)
    gripper, angles_rad = value.get("gripper", ""), None
    if gripper not in ("", "keep"):
        angles_rad = _pair(gripper, f"{where}, gripper", "keep, or [rad at 0, rad at 100]")
    ranges, here = value.get("ranges"), f"{where}, ranges"
    ranges_deg: dict[str, tuple[float, float]] = {}
    if isinstance(ranges, str):
        # A LeRobot calibration file: degrees about the middle, as LeRobot's.
        path = Path(ranges)
        for name, motor in schema.mapping(read_json(path), str(path), "motor: calibration").items():
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
        for name, ends in schema.mapping(ranges, here, form).items():
            ranges_deg[joint(str(name))] = _pair(ends, f"{here}, {name}", form)
    source = str(value.get("from", ""))
    return Units(source, value["to"], ranges_deg, angles_rad, gripper != "")


def _pair(value: Any, where: str, form: str) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UnusableInputError(f"{where}: {value!r} must be {form}.")
    low, high = (schema.number(v, where, -_FARTHEST, _FARTHEST) for v in value)
    if low == high:
        raise UnusableInputError(f"{where}: both ends are {low:g}. They must differ.")
    return low, high


@dataclass(frozen=True)
class HarmoniseSpec:
    """A conversion, in the order in which it is carried out.

    Attributes:
        order: feature to the names of its entries.
        fps: new rate [Hz]; None to leave it.
        cameras: camera to what becomes of it; None to leave it out.
        fill: add the gap columns of frames that are missing, saying no more than is known.
    """

    joints: Mapping[str, JointChange] = schema.read_with(_joints, default_factory=dict)
    units: Units | None = schema.read_with(_units, None)
    order: Mapping[str, tuple[str, ...]] = schema.read_with(_order, default_factory=dict)
    fps: float | None = schema.read_with(_fps, None)
    cameras: Mapping[str, CameraSpec | None] = schema.read_with(_cameras, default_factory=dict)
    drop: tuple[str, ...] = ()
    robot_type: str | None = None
    fill: bool = False

    def joint_map(self, feature: str, old: Sequence[str]) -> JointMap:
        """Return what becomes of a feature with these entries: joints, then units, then order.

        Raises:
            UnusableInputError: two entries get one name, or the order names others.
        """
        found: dict[str, tuple[str, int, float, float]] = {}
        for k, entry in enumerate(old):
            change = self.joints.get(joint(entry), JointChange(joint(entry)))
            name = joint(change.name)
            if not name:
                continue
            if name in found:
                raise UnusableInputError(f"joints: two entries of {feature} get one name, {name}.")
            a, b = self.units.affine(name) if self.units is not None else (1.0, 0.0)
            whole = name + (SUFFIX if entry.endswith(SUFFIX) else "")
            found[name] = whole, k, a * change.sign, a * change.offset + b
        wanted = self.order.get(feature)
        if wanted is not None:
            if sorted(found) != sorted(map(joint, wanted)):
                raise UnusableInputError(
                    f"order: {feature} has the entries {', '.join(found)}; name each of them once, "
                    f"got {', '.join(wanted)}."
                )
            found = {joint(n): (n, *found[joint(n)][1:]) for n in wanted}
        names, entries, scale, offset = zip(*found.values(), strict=True) if found else ((),) * 4
        return JointMap(
            tuple(names), np.array(entries, np.int64), np.array(scale), np.array(offset)
        )


def load_spec(path: Path) -> HarmoniseSpec:
    """Read a conversion from YAML.

    Raises:
        UnusableInputError: missing, not YAML, undecided, or something in it makes no sense.
    """
    return parse_spec(schema.load_yaml(path, "Spec"), str(path), path.parent)


def parse_spec(value: Mapping[str, Any], where: str, folder: Path) -> HarmoniseSpec:
    """Return the conversion that a mapping describes; paths in it are relative to `folder`.

    Raises:
        UnusableInputError: undecided, or something in it makes no sense.
    """
    for key, entry in _leaves(value):
        if entry == UNDECIDED:
            raise UnusableInputError(f"{where}: {key} is still '?'. Decide it.")
    units = value.get("units")
    if isinstance(units, dict) and isinstance(units.get("ranges"), str):
        value = {**value, "units": {**units, "ranges": str(folder / units["ranges"])}}
    return schema.read_as(HarmoniseSpec, value, where)


def _leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in _leaves(v, f"{prefix}{k}.")]
    if isinstance(value, list):
        return [leaf for v in value for leaf in _leaves(v, prefix)]
    return [(prefix.rstrip("."), value)]

"""What is done to a dataset's numbers to make them like another's: steps, each exact and recorded.

A step changes the joint vectors of a take (`observation.state`, `action`, `gap.sent`), says in
words and numbers what it did, and knows its inverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets import columns

VECTORS: Final = (columns.STATE, columns.ACTION, columns.SENT)
"""Features that hold joint values."""
UNITS: Final = {
    "deg": "degrees, grippers 0 to 100, as LeRobot's SO arms",
    "m100_100": "-100 to 100 over the calibrated range, grippers 0 to 100",
    "rad": "radians, grippers too",
}
SUFFIX: Final = ".pos"
TOOL_GRIPPER: Final = "ee.gripper_pos"
"""LeRobot's name of the gripper's entry beside a pose."""

type Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Vector:
    """One feature of one take.

    Attributes:
        names: of its entries.
        values: shape (n_frames, n_entries).
    """

    names: tuple[str, ...]
    values: Numbers


type Vectors = Mapping[str, Vector]
"""Feature to its vector."""


class Step(Protocol):
    """One conversion of a take's vectors."""

    @property
    def kind(self) -> str:
        """What the step is called in records."""
        ...

    def apply(self, vectors: Vectors, uid: str) -> dict[str, Vector]:
        """Return the vectors of a take, converted."""
        ...

    def inverse(self) -> Step | None:
        """Return the step that undoes this one, or None where something is lost."""
        ...


def joint(name: str) -> str:
    """Return an entry's name without LeRobot's `.pos`."""
    return name.removesuffix(SUFFIX)


def is_gripper(name: str) -> bool:
    """Say whether an entry is a gripper's, as LeRobot names them."""
    return joint(name).endswith("gripper") or name == TOOL_GRIPPER


@dataclass(frozen=True)
class JointChange:
    """What becomes of one joint: new value = sign · old value + offset.

    Attributes:
        name: its new name; "" to leave it out.
        sign: 1 or -1.
        offset: in the units before the conversion of units.
    """

    name: str
    sign: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True)
class JointMapping:
    """Joints renamed, turned round, shifted or left out.

    Attributes:
        changes: old name without `.pos` to what becomes of it.
    """

    changes: Mapping[str, JointChange]
    kind: str = "joints"

    def apply(self, vectors: Vectors, uid: str) -> dict[str, Vector]:
        """Return the vectors with every joint that is named changed."""
        del uid
        return {name: self._changed(name, vector) for name, vector in vectors.items()}

    def _changed(self, feature: str, vector: Vector) -> Vector:
        names, parts = [], []
        for k, old in enumerate(vector.names):
            change = self.changes.get(joint(old), JointChange(joint(old)))
            if change.name:
                suffix = SUFFIX if old.endswith(SUFFIX) else ""
                names.append(joint(change.name) + suffix)
                parts.append(change.sign * vector.values[:, k] + change.offset)
        if len(set(names)) < len(names):
            raise UnusableInputError(f"joints: two entries of {feature} get one name: {names}.")
        return Vector(tuple(names), _columns(parts, len(vector.values)))

    def inverse(self) -> JointMapping | None:
        """Return the change back; None where a joint was left out."""
        if any(not c.name for c in self.changes.values()):
            return None
        back = {
            joint(c.name): JointChange(old, c.sign, -c.sign * c.offset)
            for old, c in self.changes.items()
        }
        return JointMapping(back)


@dataclass(frozen=True)
class Suffix:
    """LeRobot's `.pos` put behind the names of joints, or taken away."""

    present: bool
    kind: str = "suffix"

    def apply(self, vectors: Vectors, uid: str) -> dict[str, Vector]:
        """Return the vectors with other names."""
        del uid
        end = SUFFIX if self.present else ""
        return {
            name: Vector(tuple(joint(n) + end for n in v.names), v.values)
            for name, v in vectors.items()
        }

    def inverse(self) -> Suffix:
        """Return the change back."""
        return Suffix(not self.present)


@dataclass(frozen=True)
class Order:
    """Entries put in another order.

    Attributes:
        after: feature to its names in the new order.
        before: feature to its names in the old order.
    """

    after: Mapping[str, tuple[str, ...]]
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kind: str = "order"

    def apply(self, vectors: Vectors, uid: str) -> dict[str, Vector]:
        """Return the vectors in the new order."""
        del uid
        result = dict(vectors)
        for name, wanted in self.after.items():
            if name not in vectors:
                continue
            have = vectors[name].names
            if sorted(have) != sorted(wanted):
                raise UnusableInputError(
                    f"order: {name} has the entries {', '.join(have)}; name each of them once, "
                    f"got {', '.join(wanted)}."
                )
            place = [have.index(n) for n in wanted]
            result[name] = Vector(tuple(wanted), vectors[name].values[:, place])
        return result

    def inverse(self) -> Order | None:
        """Return the change back."""
        return Order(self.before, self.after) if self.before else None


@dataclass(frozen=True)
class Units:
    """Joint values in other units.

    Attributes:
        source: one of `UNITS`.
        target: one of `UNITS`.
        ranges_deg: joint to its angle [deg] at -100 and at 100, where one side is m100_100.
        gripper_rad: angle [rad] of a gripper at 0 and at 100, where one side is rad; None to
            keep its values.
    """

    source: str
    target: str
    ranges_deg: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gripper_rad: tuple[float, float] | None = None
    kind: str = "units"

    def __post_init__(self) -> None:
        for name in (self.source, self.target):
            if name not in UNITS:
                raise unknown_choice("units", name, UNITS, "units")

    def apply(self, vectors: Vectors, uid: str) -> dict[str, Vector]:
        """Return the vectors in the target's units."""
        del uid
        return {n: Vector(v.names, self._converted(n, v)) for n, v in vectors.items()}

    def _converted(self, feature: str, vector: Vector) -> Numbers:
        if "m100_100" in (self.source, self.target) and self.source != self.target:
            bodies = [joint(n) for n in vector.names if not is_gripper(n)]
            bare = [n for n in bodies if n not in self.ranges_deg]
            if bare:
                raise UnusableInputError(
                    f"units: {feature} needs the angles [deg] of {', '.join(bare)} at -100 and "
                    "100. Give ranges: {joint: [low, high]}, a LeRobot calibration file, or model."
                )
        parts = [self._entry(n, vector.values[:, k]) for k, n in enumerate(vector.names)]
        return _columns(parts, len(vector.values))

    def _entry(self, name: str, values: Numbers) -> Numbers:
        if is_gripper(name):
            return self._gripper(values)
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

    def _gripper(self, values: Numbers) -> Numbers:
        if self.gripper_rad is None or (self.source == "rad") == (self.target == "rad"):
            return values
        closed, opened = self.gripper_rad
        if self.target == "rad":
            return np.asarray(closed + values / 100.0 * (opened - closed))
        return np.asarray((values - closed) / (opened - closed) * 100.0)

    def inverse(self) -> Units:
        """Return the conversion back."""
        return Units(self.target, self.source, self.ranges_deg, self.gripper_rad)


def _columns(parts: Sequence[Numbers], rows: int) -> Numbers:
    return np.stack(parts, axis=1) if parts else np.empty((rows, 0))


def record(step: Step) -> dict[str, Any]:
    """Return a step as JSON."""
    return asdict(step)  # type: ignore[call-overload, no-any-return]

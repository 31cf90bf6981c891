"""What of an arm's drives may differ from nominal, and in what it is fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gaploop.core.messages import FloatArray
from gaploop.sim.gaps import Parameter, all_mechanisms
from gaploop.sim.identification.open_loop import DrivenArm, Setting
from gaploop.sim.identification.servo_arm import ServoArm

_A: Final = "actuator_response"
DRIVES: Final = f"{_A}.drives"
ZERO: Final = "spatial_geometry.zero_offset"


@dataclass(frozen=True)
class Quantity:
    """Something of a drive that may differ.

    Attributes:
        name: parameter of one joint in `actuator_response.drives`.
        shared: mechanism and parameter that change it in all joints alike.
        scale: in what it is fitted: itself, its logarithm or its inverse.
        starts: values to begin from.
        useful: change that would matter, as `scale` has it; intervals wider than this say nothing.
        step: for derivatives, as `scale` has it.
    """

    name: str
    shared: tuple[str, str]
    scale: Literal["linear", "log", "inverse"]
    starts: tuple[float, ...]
    useful: float
    step: float


LATENCY: Final = Quantity(
    "", (f"{_A}.latency", "latency_s"), "linear",
    (0.01, 0.02, 0.04, 0.07, 0.10, 0.14, 0.19, 0.25, 0.32, 0.40), 0.02, 0.001,
)  # fmt: skip
QUANTITIES: Final = (
    Quantity(
        "backlash_rad", (f"{_A}.backlash", "backlash_rad"), "linear",
        (0.005, 0.015, 0.03, 0.06, 0.10), 0.01, 0.0005,
    ),
    Quantity(
        "gain_factor", (f"{_A}.weak", "gain_factor"), "log",
        (0.4, 0.15, 0.06, 0.025, 0.01), math.log(3.0), 0.02,
    ),
    Quantity(
        "friction_nm", (f"{_A}.weak", "friction_nm"), "linear", (0.1, 0.2, 0.35, 0.6), 0.1, 0.005
    ),
    Quantity(
        "speed_limit_rad_s", (f"{_A}.slow", "speed_limit_rad_s"), "inverse",
        (3.0, 1.8, 1.1, 0.7, 0.45), 0.5, 0.01,
    ),
    Quantity(
        "acceleration_limit_rad_s2", (DRIVES, "acceleration_limit_rad_s2"), "inverse",
        (12.0, 6.0, 3.0, 1.5), 0.15, 0.003,
    ),
    Quantity(
        "torque_factor", (DRIVES, "torque_factor"), "log", (0.6, 0.35, 0.2, 0.12),
        math.log(2.0), 0.02,
    ),
    Quantity(
        "damping_factor", (DRIVES, "damping_factor"), "log", (3.0, 10.0, 30.0, 0.3),
        math.log(3.0), 0.02,
    ),
    Quantity(
        "armature_factor", (DRIVES, "armature_factor"), "log", (3.0, 10.0, 0.3),
        math.log(3.0), 0.02,
    ),
)  # fmt: skip
ZERO_OFFSET: Final = Quantity("", (ZERO, ""), "linear", (-0.03, 0.03), 0.01, 0.002)


@dataclass(frozen=True)
class Candidate:
    """A parameter that may be fitted: a quantity of all joints, or of one.

    Attributes:
        joint: whose; "" for all.
        column: of the joint among the arm's, or None.
    """

    mechanism: str
    parameter: str
    joint: str
    column: int | None
    quantity: Quantity

    @property
    def key(self) -> str:
        """Its name among the mechanism's values."""
        return f"{self.joint}.{self.parameter}" if self.joint else self.parameter

    @property
    def spec(self) -> Parameter:
        """Unit, limits and nominal value, as the mechanism has them."""
        return all_mechanisms()[self.mechanism].parameter(self.key)

    def scaled(self, value: float) -> float:
        """Return a value as it is fitted."""
        scale = self.quantity.scale
        return math.log(value) if scale == "log" else 1 / value if scale == "inverse" else value

    def span(self, low: float, high: float) -> tuple[float, float]:
        """Return an interval of what was fitted as one of values."""
        one, other = self.value(low), self.value(high)
        return min(one, other), max(one, other)

    @property
    def nominal(self) -> float:
        """Its nominal value, as fitted."""
        return self.scaled(self.spec.nominal)

    def value(self, scaled: float) -> float:
        """Return the value of what was fitted, within its limits."""
        scale, spec = self.quantity.scale, self.spec
        if scale == "inverse":
            value = 1 / scaled if scaled > 1e-9 else math.inf
        else:
            value = math.exp(scaled) if scale == "log" else scaled
        return min(max(value, spec.low), spec.high)

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of what is fitted."""
        one, other = self.scaled(self.spec.low), self.scaled(self.spec.high)
        return min(one, other), max(one, other)


def candidates(arm: DrivenArm) -> list[Candidate]:
    """Return everything of an arm's drives that can be fitted; those of all joints first."""
    joints = [(n, arm.joint_names[k]) for n, k in enumerate(arm.arm_columns)]
    shared = [Candidate(*q.shared, "", None, q) for q in (LATENCY, *QUANTITIES)]
    if isinstance(arm, ServoArm):  # there friction of all joints grows with their servos' torque
        shared = [c for c in shared if c.parameter != "friction_nm"]
    own = [Candidate(DRIVES, q.name, joint, k, q) for q in QUANTITIES for k, joint in joints]
    return [*shared, *own]


def merged(
    base: Setting, chosen: Sequence[Candidate], x: Sequence[float] | FloatArray
) -> dict[str, dict[str, float]]:
    """Return a setting with candidates' values, as fitted, put into it."""
    setting = {mechanism: dict(values) for mechanism, values in base.items()}
    for candidate, value in zip(chosen, x, strict=True):
        setting.setdefault(candidate.mechanism, {})[candidate.key] = candidate.value(float(value))
    return setting

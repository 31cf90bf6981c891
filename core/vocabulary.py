"""The words that takes, labels, plans and reports share, and the units of joints.

Every member carries its definition; gap dimensions also carry the evidence by which one
recognises them and the remedy, which reports print. The first six dimensions follow the
collection dimensions in the sim-to-real literature; the last three are those a team should
rule out before it pays for demonstrations.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import unknown_choice


class FailureMode(StrEnum):
    """What was seen when a take failed."""

    FROZEN = "frozen"
    """The arm stopped moving before the task was done."""
    OSCILLATION = "oscillation"
    """The arm shook or hunted around a pose."""
    DRIFT = "drift"
    """The arm moved away from where it was commanded, steadily."""
    COLLISION = "collision"
    """A sudden contact where none was wanted."""
    OBSTRUCTION = "obstruction"
    """Something in the way stopped the motion and kept pressing."""
    MISSED_GRASP = "missed_grasp"
    """The gripper closed and the object wasn't in it."""
    SLIP = "slip"
    """The object was held and got lost en route."""
    MISPLACEMENT = "misplacement"
    """The object was released in the wrong place."""
    TIMEOUT = "timeout"
    """Time ran out while the arm still tried."""
    OPERATOR_STOP = "operator_stop"
    """A person or the safety filter ended the episode."""


class Phase(StrEnum):
    """When in an attempt something happened."""

    APPROACH = "approach"
    """From the start until the gripper begins to close on the object."""
    GRASP = "grasp"
    """While the gripper closes and takes the weight."""
    TRANSPORT = "transport"
    """While the object is carried."""
    PLACE = "place"
    """While the object is lowered and released."""
    RETREAT = "retreat"
    """After the release."""


class GapDimension(StrEnum):
    """Why a policy that works in simulation fails on the robot: the tag datasets carry."""

    CONTACT_DYNAMICS = "contact_dynamics"
    VISUAL_DOMAIN = "visual_domain"
    SENSOR_NOISE = "sensor_noise"
    OBJECT_PROPERTY = "object_property"
    ENVIRONMENTAL_COMPLEXITY = "environmental_complexity"
    HUMAN_BEHAVIOR = "human_behavior"
    ACTUATOR_RESPONSE = "actuator_response"
    SPATIAL_GEOMETRY = "spatial_geometry"
    TASK_SPECIFICATION = "task_specification"


@dataclass(frozen=True)
class DimensionDoc:
    """What a report prints about one gap dimension."""

    definition: str
    evidence: str
    remedy: str
    collect: str
    """What to collect against it; empty where demonstrations are not the remedy."""


DIMENSIONS: Final[dict[GapDimension, DimensionDoc]] = {
    GapDimension.CONTACT_DYNAMICS: DimensionDoc(
        "Friction, stiction or compliance at contact differ from simulation.",
        "The gripper closes where it should and the object slides, sticks or slips out of it.",
        "Measure friction of the real surfaces, clean or change the finger pads, grip harder; "
        "demonstrate only after that.",
        "grasps with force or current telemetry on the real surfaces",
    ),
    GapDimension.VISUAL_DOMAIN: DimensionDoc(
        "Light, texture, exposure, lens or blur differ from what perception was made for.",
        "Image brightness, colour or sharpness lie outside the reference; detections shrink or go.",
        "Fix exposure and white balance, add light, recalibrate the segmentation; for an image "
        "policy, record under the site's light across the day.",
        "episodes from the deployment cameras under the site's light, across the day",
    ),
    GapDimension.SENSOR_NOISE: DimensionDoc(
        "Sensors are biased, drift, are coarse, or drop readings.",
        "Joint readings jitter or are off the command at rest, repeat, or go missing.",
        "Recalibrate or replace the sensor, filter it, log scripted motions to characterise it.",
        "scripted motion logs with the real sensors",
    ),
    GapDimension.OBJECT_PROPERTY: DimensionDoc(
        "Mass, centre of mass, size or stiffness of the object differ.",
        "The object looks larger or smaller, the gripper stops at another width, currents rise.",
        "Demonstrate over the real range of objects.",
        "the real object range",
    ),
    GapDimension.ENVIRONMENTAL_COMPLEXITY: DimensionDoc(
        "Clutter, distractors or occlusion that simulation doesn't have.",
        "More object-like blobs than objects, detections that jump between them, or hide.",
        "Make perception tell the object from clutter, or clear the cell; then record with "
        "systematic clutter.",
        "episodes with systematic clutter levels (2, 4, 8 objects)",
    ),
    GapDimension.HUMAN_BEHAVIOR: DimensionDoc(
        "People reach in, hand over, hesitate or move things.",
        "Something large moves through the view, or the object moves while no gripper is near it.",
        "Agree on how people share the cell, detect them and wait; record with consenting people.",
        "episodes with consenting participants",
    ),
    GapDimension.ACTUATOR_RESPONSE: DimensionDoc(
        "Latency, backlash, friction or saturation of the drives.",
        "Motion lags the command, falls short of it, or reverses late.",
        "Identify delay and backlash and compensate them, slow the motion down, service the drive.",
        "fast and reversing motions for system identification",
    ),
    GapDimension.SPATIAL_GEOMETRY: DimensionDoc(
        "Camera pose, table height or joint zero differ from the calibration.",
        "Landmarks are elsewhere in the image, or contact happens at another height.",
        "Recalibrate camera and zero offsets first; otherwise demonstrate over a pose grid.",
        "a pose and height grid",
    ),
    GapDimension.TASK_SPECIFICATION: DimensionDoc(
        "The success criterion or its tolerance differs.",
        "The attempt looks like successful ones in every signal and is judged a failure.",
        "Restate the task: agree on criterion and tolerance, then evaluate again.",
        "",
    ),
}


class Outcome(StrEnum):
    """How a take ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    DISCARDED = "discarded"
    """Thrown away by the operator, with a reason; kept in the journal until purged."""
    INTERRUPTED = "interrupted"
    """Not sealed: a crash, a kill or a device fault ended it."""
    UNLABELLED = "unlabelled"
    """Complete, and nobody has said how it went."""


class TakeKind(StrEnum):
    """What a take is for."""

    DEMONSTRATION = "demonstration"
    ROLLOUT = "rollout"
    IMPORT = "import"
    PROBE = "probe"
    """A station check: stays in its journal, and nothing learns from it."""


class Domain(StrEnum):
    """Where a take was recorded."""

    REAL = "real"
    SIM = "sim"
    SIM_TARGET = "sim_target"
    """The embedded 'real' cell: simulation with injected gaps. Always reported as sim-to-sim."""


SELECTIONS: Final = {
    "demonstrations": "successful demonstrations whole, rollouts where a person had taken over",
    "successful": "every successful episode whole, whoever drove",
    "all": "every episode that isn't discarded or interrupted, whatever its outcome",
}
"""Which episodes are learned from."""
CONDITIONS: Final[dict[str, str]] = {
    "background": "a background named in the station file",
    "lighting": "a lighting named in the station file",
    "distractors": "how many distracting objects, a whole number",
    "object": "an object named in the station file",
    "camera_pose": "offset [dx, dy, dz, droll, dpitch, dyaw] in m and rad",
    "table_height": "offset in m",
    "grid_cell": "[row, column] of the spawn grid",
    "human": "a human behaviour named in the station file",
}
RANDOMISED: Final = "randomised"
"""Key of a take's conditions that says what its cell was drawn as: mechanism to values."""


INSTRUCTION: Final = "instruction"
"""How the task is worded: what an evaluation varies, and what a scene file draws for a take."""
SEEN: Final = "seen"
OTHER_WORDS: Final = ("paraphrased", "unseen")
"""As it was recorded, and levels of other words."""


def set_up(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what somebody set up, without what was drawn for the take alone."""
    return {name: value for name, value in conditions.items() if name != RANDOMISED}


def dimension(name: str, where: str = "") -> GapDimension:
    """Return the gap dimension called `name`, or raise UnknownChoiceError."""
    return _member(GapDimension, "dimension", name, where)


def outcome(name: str, where: str = "") -> Outcome:
    """Return the outcome called `name`, or raise UnknownChoiceError."""
    return _member(Outcome, "outcome", name, where)


def _member[E: StrEnum](enum: type[E], kind: str, name: str, where: str) -> E:
    try:
        return enum(name)
    except ValueError:
        raise unknown_choice(kind, name, [m.value for m in enum], where) from None


def check_selection(select: str, option: str = "--select") -> None:
    """Check that `select` is one of `SELECTIONS`; UnknownChoiceError: it isn't."""
    if select not in SELECTIONS:
        raise unknown_choice("selection", select, SELECTIONS, option)


# -- units of joints, as options call them and as episodes note them ---------------------------

UNITS: Final[Mapping[str, str]] = {
    "degrees": "deg", "radians": "rad", "normalized": "m100_100", "unknown": "unknown",
}  # fmt: skip
"""What `--units` takes, and how `gap_units` notes it."""
HALF_TURN: Final = math.pi + 0.2
"""No joint of an arm is much further from its middle [rad]."""
MOVES_RAD: Final = 0.35
"""A joint that is used moves at least so far: 20 degrees."""
ALIKE: Final = 3.0
"""Times that one episode's joint moves further than another's, in equal units."""
_ALSO: Final[Mapping[str, str]] = {"normalised": "m100_100", **{v: v for v in UNITS.values()}}


def noted(name: str) -> str:
    """Return how takes note the units of a name; what is none of `UNITS`, such as `m`, as it is."""
    return UNITS.get(name, _ALSO.get(name, name))


def joint_units(name: str, option: str = "--units") -> str:
    """Return how takes note an arm's units; "" of ""; UnusableInputError: none of `UNITS`."""
    if name and noted(name) not in UNITS.values():
        raise unknown_choice("units", name, UNITS, option)
    return noted(name)


def named(units: str) -> str:
    """Return what noted units are called."""
    return next((name for name, known in UNITS.items() if known == units), units)


def plainly_radians(low: NDArray[np.float64], high: NDArray[np.float64]) -> list[int]:
    """Return which episodes are in radians among others in degrees; none where that isn't certain.

    Certain is where the joints that move do so by an arm's angles in both, 57 times as far in some.

    Args:
        low: smallest reading of each joint in each episode, shape (episodes, joints).
        high: the largest one.
    """
    if len(low) < 2 or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return []
    far, moved = np.maximum(-low, high), high - low
    small = (far.max(axis=1) <= HALF_TURN) & (moved.max(axis=1) >= MOVES_RAD)
    large = moved.max(axis=1) >= math.degrees(MOVES_RAD)
    still = moved.max(axis=1) < MOVES_RAD  # in either unit: it tells neither
    if not small.any() or not (small | large | still).all() or not large.any():
        return []
    usual = np.median(moved[large], axis=0)
    used = usual >= math.degrees(MOVES_RAD)
    ratio = usual[used] / np.maximum(moved[small][:, used], 1e-9)
    fits = (ratio > math.degrees(1.0) / ALIKE) & (ratio < math.degrees(1.0) * ALIKE)
    # An arm that stands still may flicker by a third of a degree; most of its joints don't.
    fits &= moved[small][:, used] >= MOVES_RAD
    return np.flatnonzero(small).tolist() if (fits.mean(axis=1) > 0.5).all() else []

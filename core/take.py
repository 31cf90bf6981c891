"""A take in memory: the same view, whether it came from a journal, a dataset or an import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.grippers import Gripper
from gaploop.core.messages import FloatArray, Image
from gaploop.core.vocabulary import RANDOMISED, Domain, Outcome, TakeKind

if TYPE_CHECKING:
    from gaploop.core.telemetry import Telemetry

SUCCESS_HELD_S: Final = 0.3
"""An attempt ends once success has held this long [s]: long enough for a thing to fall over."""

type Images = Callable[[], Iterator[Image]]
"""Opens a camera's pictures anew and yields them in frame order, decoded one at a time."""


def frames_per_second(value: Any, most: float = 1e9) -> float:
    """Return a rate that a file gives [Hz]; ValueError unless a number above 0, up to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ValueError(f"fps is {value!r}, not a number above 0, up to {most:g}")
    return float(value)


@dataclass(frozen=True)
class TakeInfo:
    """What is known about a take besides its signals; the same fields as the episode columns.

    Attributes:
        uid: UUIDv7, the key of every label and of lineage.
        task: the instruction, in words.
        fps: policy rate [Hz] of the frames.
        joint_names: order of `action` and `observation.state`.
        robot_type: LeRobot's name of the follower.
        units: LeRobot units of `action` and `observation.state`, such as `deg`.
        dimensions: on a failure the cause, on a demonstration the purpose: dimension to weight.
        conditions: what was set, by the names of `vocabulary.CONDITIONS` or free keys.
        policy: id of the policy that drove, or "" for a person or script.
        plan: id of the plan item it was collected for, or "".
        t0_ns: wall-clock start [ns since 1970, UTC].
    """

    uid: str
    task: str = ""
    fps: float = 50.0
    kind: TakeKind = TakeKind.DEMONSTRATION
    domain: Domain = Domain.REAL
    joint_names: tuple[str, ...] = ()
    robot_type: str = ""
    units: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    session: str = ""
    operator: str = ""
    station: str = ""
    calibration: str = ""
    policy: str = ""
    plan: str = ""
    consent: str = ""
    t0_ns: int = 0

    @property
    def is_nominal(self) -> bool:
        """Whether it shows the nominal cell: simulated, with no twin, gap or randomisation."""
        return self.domain is Domain.SIM and RANDOMISED not in self.conditions


TRACKED_SCENE: Final = (
    "object_azimuth_rad",
    "object_radius_m",
    "object_yaw_rad",
    "target_azimuth_rad",
    "target_radius_m",
    "visible",
    "domain",
)
"""Entries of `observation.environment_state` where it is a tracked scene; others are as wide."""


@dataclass(frozen=True)
class Frames:
    """The policy-rate record; every array has one row per frame.

    Attributes:
        t_s: measured time since the take began [s], shape (n,).
        state: `observation.state`, shape (n, n_joints), LeRobot units.
        action: requested action, shape (n, n_joints), LeRobot units.
        sent: joint command after the safety filter, shape (n, n_joints), LeRobot units.
        environment_state: tracked scene, shape (n, m); m is 0 where nothing tracks.
        intervention: a person had taken over, bool, shape (n,).
        safety: `SafetyReason` bits, shape (n,).
        camera_age_s: camera to age of its picture [s], shape (n,).
        environment_names: of the entries of `environment_state`; () where nobody names them.
    """

    t_s: FloatArray
    state: FloatArray
    action: FloatArray
    sent: FloatArray
    environment_state: FloatArray
    intervention: NDArray[np.bool_]
    safety: NDArray[np.int64]
    camera_age_s: Mapping[str, FloatArray] = field(default_factory=dict)
    environment_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.t_s)

    @classmethod
    def empty(cls, n_joints: int = 0) -> Frames:
        """Return a record of no frames, for takes that have telemetry only."""
        none = np.empty((0, n_joints))
        flags = np.empty(0, dtype=np.int64)
        return cls(np.empty(0), none, none, none, np.empty((0, 0)), flags.astype(bool), flags)


@dataclass(frozen=True)
class Take:
    """One attempt: what is known about it, how it ended, and its signals.

    Attributes:
        outcome: how it ended, as labelled so far.
        failure_mode: labelled mode, or "".
        phase: labelled phase, or "".
        episode: index in the dataset it was read from, or None.
        cameras: camera name to its pictures.
        depth: depth stream to its pictures [mm], uint16, shape (height, width).
        grippers: as the episodes of its dataset together tell; None: joints called "gripper", whose
            angles the arm's model knows.
    """

    info: TakeInfo
    outcome: Outcome
    frames: Frames
    telemetry: Telemetry
    failure_mode: str = ""
    phase: str = ""
    episode: int | None = None
    cameras: Mapping[str, Images] = field(default_factory=dict)
    depth: Mapping[str, Images] = field(default_factory=dict)
    grippers: tuple[Gripper, ...] | None = None

    @property
    def duration_s(self) -> float:
        """Length [s], from whichever record is longer."""
        ends = [float(t[-1]) for t in (self.frames.t_s, self.telemetry.t_s) if len(t)]
        return max(ends, default=0.0)

"""A station check without a policy: its parts, who drives them, and how it went.

Each part is a take of kind `probe`, which nothing learns from, with its name as the condition
`probe`. In the embedded cell a scripted person stands the object between the jaws.
"""

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.collect import lerobot_factory, lerobot_types
from gaploop.collect.campaign import Quota, held, words
from gaploop.collect.devices import ArmDevices
from gaploop.collect.lerobot_factory import make_motion_leader, within_limits
from gaploop.collect.operator.keys import LOOK_S, keys
from gaploop.collect.rig import EmbeddedRig, Rig
from gaploop.collect.session import FPS, drive_on
from gaploop.collect.session_options import DriveOptions
from gaploop.collect.take import (
    MakeLeader,
    MakeRig,
    Operator,
    SessionEnd,
    TakeResult,
    record_takes,
    run_take,
)
from gaploop.core.arm import CellArm
from gaploop.core.arms import ARMS
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import LeaderSample
from gaploop.core.protocols import Follower, Leader
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.sim.catalogue import arm_named
from gaploop.sim.cell import SimCell
from gaploop.sim.identification import contact
from gaploop.sim.identification.contact import PROBE
from gaploop.teleop.leaders.controls import MotionOptions
from gaploop.teleop.leaders.motion import MotionLeader, build_script
from gaploop.teleop.loop import Rates
from gaploop.teleop.stopping import Stopped

GRASP: Final = "grip object"
CLEAR_M: Final = 0.03
"""The arm stays this far above the table, out of the way of what lies there [m]."""
LONGEST_S: Final = 30.0
"""No part is longer [s]."""
NO_CONTACT: Final = (
    "friction, mass, compliance and stickiness of the object: how hard a gripper presses for what "
    "it reports is known in the embedded cell only"
)


@dataclass(frozen=True)
class ProbePart:
    """One part of a probe: a take whose condition `probe` is its name; `tells` is what it's for."""

    name: str
    motion: MotionOptions
    tells: str
    conditions: Mapping[str, Any] = field(default_factory=dict)
    needs_object: bool = False

    @property
    def quota(self) -> Quota:
        """One take, under the part's conditions and its name."""
        return Quota(1, conditions={**self.conditions, PROBE: self.name})


def parts_of(
    joints: Sequence[str], grid: tuple[int, int], cell: CellArm | None = None
) -> tuple[ProbePart, ...]:
    """Return the parts of a probe, in their order.

    Args:
        grid: of so many rows and columns.
        cell: the arm, where it is the embedded cell's.
    """
    still = MotionOptions("rest", seconds=2.0)
    poses = MotionOptions("poses", amplitude_rad=0.5, size_m=0.10, dwell_s=0.8)
    parts = [
        ProbePart("still", still, "exposure, colour and sharpness of the pictures"),
        ProbePart("poses", poses, "the cameras' poses"),
    ]
    for joint in joints:
        # Small: what lies on the table isn't to be touched, and every arm has that much room.
        to_and_fro = MotionOptions("reverse", [joint], 0.2, speeds_rad_s=[0.15, 0.5], cycles=1)
        ever_faster = MotionOptions("chirp", [joint], 0.2, seconds=6.0, low_hz=0.3, high_hz=2.5)
        # As fast as the station allows.
        jump = MotionOptions(
            "step", [joint], 0.2, dwell_s=0.8, velocity_rad_s=6.0, acceleration_rad_s2=60.0
        )
        parts += [
            ProbePart(f"reverse {joint}", to_and_fro, f"backlash and friction of {joint}"),
            ProbePart(f"chirp {joint}", ever_faster, f"delay, gain and damping of {joint}"),
            ProbePart(f"step {joint}", jump, f"torque of {joint}, and its gain from payload"),
        ]
    grip = MotionOptions("grip", dwell_s=0.6)
    around = MotionOptions("grip", dwell_s=2.0, velocity_rad_s=0.8)
    parts.append(ProbePart("grip nothing", grip, "the gripper's travel"))
    if cell is None:
        parts.append(ProbePart(GRASP, around, "the object's width", needs_object=True))
    elif contact.is_known(cell):
        tells = "the object's friction, mass, compliance and stickiness"
        for name, is_empty in ((contact.FULL, False), (contact.EMPTY, True)):
            seconds = contact.contact_script(cell, is_empty).duration_s
            parts.append(ProbePart(name, MotionOptions("rest", seconds=seconds), tells))
    tells = "the object's size"
    for row, column in ((0, grid[1] - 1), (grid[0] - 1, 0)):
        where = {"grid_cell": [row, column]}
        parts.append(ProbePart(f"cell {row} {column}", still, tells, where, needs_object=True))
    return tuple(parts)


def planned_s(parts: Sequence[ProbePart], arm: ArmModel) -> dict[str, float]:
    """Return about how long each part takes [s], from a usual pose and with room on all sides."""
    known = ARMS[arm.name].cell if arm.name in ARMS else None
    start = np.zeros(len(arm.joint_names)) if known is None else np.array(known.home_q_rad)
    room = np.array([[-10.0, 10.0]] * len(start))
    room[-1] = arm.joint_limits_rad[-1]
    start = np.clip(start, *room.T)
    return {
        part.name: build_script(arm, room, None, start, part.motion).trajectory.duration_s
        for part in parts
    }


def arm_leader(
    follower: Follower, station: Station, motion: MotionOptions | None = None
) -> MotionLeader:
    """Return who drives an arm from part to part; it rests until the first one.

    Raises UnusableInputError where no model of this arm is known, or it doesn't fit.
    """
    rest = MotionOptions("rest", seconds=2.0)
    return make_motion_leader(
        follower, station, motion or rest, clear_m=CLEAR_M, whose="gaploop identify --measure"
    )


class ContactLeader:
    """Goes through the contact script in the embedded cell, and stands for the person beside it."""

    def __init__(self, cell: SimCell, is_empty: bool, seed: int) -> None:
        self._cell, self._is_empty, self._seed = cell, is_empty, seed
        self._script = contact.contact_script(cell.arm, is_empty)

    def reset(self) -> None:
        """Stand the object in its place, or take it away."""
        self._began_s = self._last_s = math.nan
        if self._is_empty:
            contact.take_object_away(self._cell)
        else:
            contact.stand_object(self._cell, np.random.default_rng([self._seed, 42]))

    def read(self, t_s: float) -> LeaderSample:
        """Return what is asked for at loop time `t_s` [s]."""
        self._began_s = t_s if math.isnan(self._began_s) else self._began_s
        self._last_s = t_s
        goal_rad, torque_pct = self._script.at(t_s - self._began_s)
        self._cell.limit_gripper(torque_pct)
        return LeaderSample(t_s, goal_rad)

    def done(self) -> bool:
        """Say whether the script has ended."""
        return self._last_s - self._began_s >= self._script.duration_s


@dataclass(frozen=True)
class PartEnd:
    """How a part went: recorded to its end, now or before, or why not.

    Nothing went wrong where that is `by_choice`: the object wasn't put in place, or it was stopped.
    """

    part: ProbePart
    done: bool
    why: str = ""
    uid: str = ""
    duration_s: float = 0.0
    by_choice: bool = False


@dataclass(frozen=True)
class ProbeEnd:
    """How a probe went: every part that was asked for, in order; the rest as in `SessionEnd`."""

    parts: tuple[PartEnd, ...]
    interrupted: bool = False
    reconnected: int = 0
    trip: str = ""

    @property
    def untold(self) -> tuple[str, ...]:
        """What the parts that weren't done leave untold, each once."""
        return tuple(dict.fromkeys(end.part.tells for end in self.parts if not end.done))


class _Prober(Operator):
    """Runs each part once: a trip or a motion that doesn't fit ends the part, not the probe."""

    attempts_per_take = 1

    def __init__(
        self,
        parts: Sequence[ProbePart],
        journal: Path,
        on_part: Callable[[PartEnd], object],
        ask: Callable[[ProbePart], str] = lambda _part: "",
        seed: int = 0,
        resume: bool = False,
    ) -> None:
        super().__init__()
        self.ended: dict[str, PartEnd] = {}
        self._parts = {part.name: part for part in parts}
        self._journal, self._seed, self._resume = journal, seed, resume
        self._on_part, self._ask = on_part, ask
        self._now = parts[0]
        self._before = Counter[str]()
        """Keys of the parts' quotas that an earlier probe recorded, where they count."""
        if resume:
            self._before = held(journal, TakeKind.PROBE, [part.quota for part in parts])

    def record(
        self, make_rig: MakeRig, make_leader: MakeLeader, stop: Callable[[], bool]
    ) -> SessionEnd:
        quotas = [part.quota for part in self._parts.values() if part.name not in self.ended]

        def set_up(quota: Quota, _before: Quota | None) -> bool:
            self._now = self._parts[str(quota.conditions[PROBE])]
            return True

        return record_takes(
            self._journal,
            TakeInfo("", "probe", kind=TakeKind.PROBE),
            quotas,
            make_rig,
            make_leader,
            max_s=LONGEST_S,
            seed=self._seed,
            resume=self._resume,
            set_up=set_up,
            stop=stop,
            operator=self,
        )

    def summary(self) -> tuple[PartEnd, ...]:
        return tuple(
            PartEnd(part, True, "recorded before")
            if self._before[part.quota.key]
            else self.ended.get(part.name, PartEnd(part, False, "not reached"))
            for part in self._parts.values()
        )

    def begin(self, blocker: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Have the object put where the part needs it; False leaves the part out."""
        blocker()  # nobody puts anything in place for an arm that is gone
        if self._now.needs_object and (why := self._ask(self._now)):
            self.ended[self._now.name] = PartEnd(self._now, False, why, by_choice=True)
            return False
        return super().begin(blocker, stop)

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        part, writer = self._now, given["writer"]
        try:
            if isinstance(leader, MotionLeader):
                leader.follow(within_limits(part.motion, rig.station))
                given["sinks"] = (leader,)
            result = run_take(rig, leader, judged=False, **given)
        except UnusableInputError as error:  # nothing of the motion fits from here
            writer.seal(Outcome.DISCARDED, str(error))
            result = TakeResult(writer.header.info.uid, Outcome.DISCARDED, str(error), 0.0, 0)
        done, cut = result.outcome is Outcome.UNLABELLED, result.outcome is Outcome.INTERRUPTED
        if not cut or given["stop"]():
            why, uid = "" if done else result.reason, "" if cut else result.uid
            end = PartEnd(part, done, why, uid, result.duration_s, by_choice=cut)
            self.ended[part.name] = end
            self._on_part(end)
        return result


def probe_cell(
    parts: Sequence[ProbePart],
    journal: Path,
    build: Callable[[Mapping[str, object]], EmbeddedRig],
    *,
    seed: int = 0,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    on_part: Callable[[PartEnd], object] = lambda _end: None,
) -> ProbeEnd:
    """Probe the embedded cell, as fast as it goes; as `probe_robot`, in cells `build` makes."""
    named = {part.name: part for part in parts}
    rigs: dict[str, EmbeddedRig] = {}

    def make_rig(conditions: Mapping[str, object]) -> Rig:
        set_up = {name: value for name, value in conditions.items() if name != PROBE}
        if (key := str(set_up)) not in rigs:  # most parts share one
            rigs[key] = build(set_up)
        rig = rigs[key]
        return replace(
            rig, conditions={**rig.conditions, PROBE: conditions[PROBE]}, close=lambda: None
        )

    def make_leader(rig: Rig, seed: int) -> Leader:
        part = named[rig.conditions[PROBE]]
        if part.name in (contact.FULL, contact.EMPTY) and isinstance(rig, EmbeddedRig):
            return ContactLeader(rig.cell, part.name == contact.EMPTY, seed)
        return arm_leader(rig.follower, rig.station, part.motion)

    prober = _Prober(parts, journal, on_part, seed=seed, resume=resume)
    try:
        end = prober.record(make_rig, make_leader, stop)
    finally:
        for rig in rigs.values():
            rig.close()
    return ProbeEnd(prober.summary(), end.interrupted)


def probe_robot(
    robot: Any,
    station: Station,
    station_file: Path | None,
    journal: Path,
    *,
    resume: bool,
    say: Callable[[str], object],
    on_part: Callable[[PartEnd], object],
    stopped: Stopped,
) -> ProbeEnd:
    """Probe what `--robot.*` describes: the embedded cell by itself, or an arm with its operator.

    Args:
        resume: parts that the journal holds already aren't done again.
        say: tells the operator a line.
        stopped: as `stoppable` yields it; it interrupts the part and ends the probe.

    Raises:
        DeviceError: a device doesn't answer in time, or parts can't be recorded.
    """

    def is_stopped() -> bool:
        return bool(stopped)

    if robot.type == lerobot_types.EMBEDDED:
        arm = arm_named(robot.model)
        parts = parts_of(arm.joint_names, station.grid, arm)
        build = functools.partial(lerobot_factory.cell_rig, robot, None)
        return probe_cell(parts, journal, build, resume=resume, stop=is_stopped, on_part=on_part)

    def ask(part: ProbePart) -> str:
        """Have the operator put the object in place; say why that can't be, or ""."""
        if not pressed.works:
            return "nobody is at a terminal to put the object in place"
        if part.conditions:
            say(f"Put the {words(part.conditions, station.grid)}.")
        else:
            say(
                "Be ready to hold the object between the jaws: they open, wait two seconds, "
                "close on it and open again. Hold it by its end, and catch it."
            )
        say("Enter continues, s skips it.")
        while not stopped:
            heard = pressed.presses(LOOK_S)
            if "return" in heard:
                return ""
            if "s" in heard or not pressed.works:
                return "the operator left it out"
        return "stopped"

    with contextlib.ExitStack() as stack:
        connection = lerobot_factory.ArmConnection(
            DriveOptions(robot=robot, station=station_file),
            station,
            Rates.near(FPS),
            leads=False,
        )
        devices = ArmDevices(
            stack.enter_context(connection).connect,
            shared=lambda follower, *_: arm_leader(follower, station),
            is_watched=False,
        )
        stack.callback(devices.close)
        stopped.again = devices.leave
        pressed = stack.enter_context(keys())
        pressed.listen(devices.estop)
        parts = parts_of(devices.arm.follower.joint_names, station.grid)
        prober = _Prober(parts, journal, on_part, ask, resume=resume)

        def drive() -> bool:
            prober.record(devices.rig, devices.leader, is_stopped)
            return False

        devices.start()
        reconnected, trip = drive_on(devices, drive, is_stopped, finished=lambda: len(prober.ended))
        end = ProbeEnd(prober.summary(), is_stopped(), reconnected, trip)
        pressed.deaf()
        try:
            devices.finish()
        except DeviceError:
            if not trip:
                raise
    return end

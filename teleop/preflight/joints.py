"""The test motion: one joint at a time, a few degrees, slowly, through the safety filter.

What the encoders can tell: the joint that was asked for moves, that way and that far, and no other
does. What they can't: two servos whose ids are swapped answer for each other, command and encoder
alike. So somebody who watches the arm says which joint moved, without being told which one it
should have been, in an order that is drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.errors import DeviceError
from gaploop.core.types import FloatArray, LeaderSample, SafetyReason, Tick
from gaploop.teleop.advice import say_reasons, say_to_do
from gaploop.teleop.control import ControlThread
from gaploop.teleop.leaders.motion import Dwell, Smooth, Trajectory
from gaploop.teleop.preflight.item import By, Item, Person, Result

NAME: Final = "joint_order"
SWING_RAD: Final = 0.1
"""How far a joint moves [rad]: 6°, several times a hobby servo's play and dead zone."""
VELOCITY_RAD_S: Final = 0.25
ACCELERATION_RAD_S2: Final = 2.0
HELD_S: Final = 0.4
"""It stays there this long, to settle and to be seen [s]."""
MOVED: Final = 0.6
"""A joint that came this share of the way has moved."""
STILL: Final = 0.3
"""A joint that came less than this share of the way has not."""
MARGIN_RAD: Final = 0.03
"""Kept off the joint limits [rad]."""
LATE_S: Final = 60.0
"""The motion may take this much longer than it should [s]: a busy machine is told of elsewhere."""
POLL_S: Final = 0.01
MEND: Final = "Look for what holds it, and for a cable or an id that is wrong: gaploop doctor."
MEND_IDS: Final = (
    "Set the ids, one motor at a time: lerobot-setup-motors; then lerobot-calibrate. Takes that "
    "were recorded with swapped ids have swapped joints, too."
)


@dataclass(frozen=True)
class Moved:
    """What one joint's motion did.

    Attributes:
        joint: index of the joint that was asked to move.
        asked_rad: how far [rad], with its sign; 0 where it had no room.
        came_rad: how far every joint came [rad], shape (n_joints,).
        tripped: why the safety filter ended it, or "".
        boxed: the workspace box was in the way.
    """

    joint: int
    asked_rad: float
    came_rad: FloatArray
    tripped: str = ""
    boxed: bool = False

    def fault(self, names: Sequence[str]) -> str:
        """Return what the encoders show to be wrong, or ""."""
        name = names[self.joint]
        if self.tripped:
            return f"{name}: {self.tripped}"
        if self.asked_rad == 0.0:
            return f"{name} has no room to move in its limits"
        share = self.came_rad / self.asked_rad
        others = [j for j in range(len(names)) if j != self.joint and abs(share[j]) > STILL]
        if others:
            moved = ", ".join(names[j] for j in others)
            stood = abs(share[self.joint]) < STILL
            return (
                f"{name} was asked to move and {moved} moved{' in its place' if stood else ' too'}"
            )
        if self.boxed:
            return f"{name} would leave the workspace box: put the arm into the middle of it"
        if share[self.joint] < -STILL:
            return f"{name} moves the wrong way"
        if share[self.joint] < STILL:
            return f"{name} doesn't move: it is stuck, or its servo is"
        if share[self.joint] < MOVED:
            return f"{name} came only {share[self.joint]:.0%} of the way"
        return ""


class OneJoint:
    """A `Leader` that holds the arm and moves one joint when told to. A `TakeSink` of the loop.

    Args:
        start_rad: where the arm stands [rad], shape (n_joints,).
        limits_rad: joint limits [rad], shape (n_joints, 2).
    """

    def __init__(self, start_rad: FloatArray, limits_rad: FloatArray) -> None:
        low, high = limits_rad.T
        self._home = np.clip(start_rad, low, high)
        self._room = (low + MARGIN_RAD, high - MARGIN_RAD)
        self._motion: Trajectory | None = None
        self._began_s = math.nan
        self._held: list[FloatArray] = []
        self._before: FloatArray = start_rad
        self._newest: FloatArray = start_rad
        self._told_s = math.nan
        self.finished = True
        self.boxed = False

    def reset(self) -> None:
        """Get ready; there is nothing to do."""

    def begin(self, joint: int) -> float:
        """Move `joint` out and back from now on; return how far [rad], 0 where it has no room."""
        way_rad = self._way(joint)
        if way_rad:
            out = self._home.copy()
            out[joint] += way_rad
            there = Smooth.within(self._home, out, VELOCITY_RAD_S, ACCELERATION_RAD_S2)
            back = Smooth(out, self._home, there.duration_s)
            self._held_from_s = there.duration_s + 0.5 * HELD_S
            self._held_to_s = there.duration_s + HELD_S
            self._before, self._held, self._began_s = self._newest, [], math.nan
            self.finished = self.boxed = False
            self._motion = Trajectory([there, Dwell(out, HELD_S), back])
        return way_rad

    @property
    def is_told(self) -> bool:
        """Whether it has heard of all turns in which the joint was held."""
        return self._told_s - self._began_s > self._held_to_s

    @property
    def duration_s(self) -> float:
        """How long the motion takes that is on [s]."""
        motion = self._motion
        return 0.0 if motion is None else motion.duration_s + 0.5 * HELD_S

    @property
    def came_rad(self) -> FloatArray:
        """How far every joint had come while it was held [rad], shape (n_joints,)."""
        held = np.median(self._held, axis=0) if self._held else self._before
        return np.asarray(held - self._before)

    def _way(self, joint: int) -> float:
        low, high = (bound[joint] for bound in self._room)
        at = self._home[joint]
        way_rad = SWING_RAD if high - at >= at - low else -SWING_RAD
        return way_rad if low <= at + way_rad <= high else 0.0

    def read(self, t_s: float) -> LeaderSample:
        """Return the goal at loop time `t_s` [s]."""
        motion = self._motion
        if motion is None:
            return LeaderSample(t_s, self._home)
        if math.isnan(self._began_s):
            self._began_s = t_s
        since_s = t_s - self._began_s
        if since_s > self.duration_s:
            self._motion, self.finished = None, True
        return LeaderSample(t_s, motion.at(since_s))

    def tick(self, tick: Tick) -> None:
        """Take note of where the arm is."""
        self._newest, self._told_s = tick.state.position_rad, tick.leader.t_s
        self.boxed |= not self.finished and bool(tick.command.reasons & SafetyReason.WORKSPACE)
        if not math.isnan(self._began_s):
            since_s = tick.leader.t_s - self._began_s
            if self._held_from_s <= since_s <= self._held_to_s:
                self._held.append(self._newest)

    def done(self) -> bool:
        """Return False: the arm is held between motions."""
        return False


def check_joints(
    control: ControlThread,
    leader: OneJoint,
    names: Sequence[str],
    person: Person | None,
    seed: int,
) -> Iterator[Item]:
    """Move every joint a few degrees and back, and say what is wrong with it.

    Args:
        control: running, led by `leader`, which it also tells its turns.
        leader: moves the joints.
        names: of the joints.
        person: watches the arm and says what moved; None where there is nothing to watch.
        seed: draws the order.

    Raises:
        DeviceError: the control loop has ended, or stands still.
    """
    for joint in np.random.default_rng(seed).permutation(len(names)).tolist():
        moved = _move(control, leader, joint)
        fault = moved.fault(names)
        data = {
            "joint": names[joint],
            "asked_rad": moved.asked_rad,
            "came_rad": moved.came_rad.tolist(),
        }
        if fault:
            yield Item(NAME, Result.FAIL, By.MACHINE, fault, MEND, data)
            if moved.tripped:
                return
            continue
        found = f"{names[joint]} came {moved.came_rad[joint] / moved.asked_rad:.0%} of the way"
        item = Item(NAME, Result.OK, By.MACHINE, f"{found}, nothing else moved", data=data)
        if person is not None:
            item = _watched(control, leader, joint, names, person, item)
        yield item


def _move(control: ControlThread, leader: OneJoint, joint: int) -> Moved:
    asked_rad = leader.begin(joint)
    if asked_rad == 0.0:
        return Moved(joint, 0.0, np.zeros_like(leader.came_rad))
    give_up_s = time.monotonic() + leader.duration_s + LATE_S
    while not (leader.finished and leader.is_told):
        tripped = control.snapshot().tripped
        if tripped:
            said = f"{say_reasons(tripped)} ({say_to_do(tripped)})"
            return Moved(joint, asked_rad, leader.came_rad, said)
        if not control.alive or time.monotonic() > give_up_s:
            raise DeviceError("The control loop stood still in the test motion. Try again.")
        time.sleep(POLL_S)
    return Moved(joint, asked_rad, leader.came_rad, boxed=leader.boxed)


def _watched(
    control: ControlThread,
    leader: OneJoint,
    joint: int,
    names: Sequence[str],
    person: Person,
    item: Item,
) -> Item:
    """Let somebody say which joint moved; the motion is repeated as often as asked for."""
    choices = {str(n + 1): name for n, name in enumerate(names)}
    choices |= {"r": "again", "0": "none or several of them"}
    while (answer := person.asked("Which joint has just moved?", choices, safety=True)) == "r":
        if _move(control, leader, joint).tripped:  # it won't move any more
            answer = None
            break
    data = {**item.data, "answer": answer}
    if answer is None:
        found = f"{item.found}; nobody said which joint that was"
        mend = "Run it in a terminal, with somebody who sees the arm."
        return Item(NAME, Result.UNANSWERED, By.PERSON, found, mend, data)
    if answer == str(joint + 1):
        return Item(NAME, Result.OK, By.PERSON, f"{item.found}; seen to move", data=data)
    found = f"{names[joint]} was asked to move, and somebody saw: {choices.get(answer, answer)}"
    return Item(NAME, Result.FAIL, By.PERSON, found, MEND_IDS, data)

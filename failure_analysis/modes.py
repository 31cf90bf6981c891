"""Which failure was seen, and when, by rules on whatever channels a take has.

The mode is the first event, in time, that the attempt didn't recover from: of the arm in commands,
readings and loads (pressing, shaking, drift, rest), or of the object in jaws and tracker (closings
on nothing, grips that were lost, things put down). Definitions are in docs/diagnose/modes.md.
Thresholds are angles and times of a tabletop arm, or multiples of the take's own noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.grippers import sides_of
from gaploop.core.messages import FloatArray, SafetyReason
from gaploop.core.vocabulary import FailureMode, Outcome, Phase
from gaploop.failure_analysis.signals.motion import step_of
from gaploop.failure_analysis.signals.registry import Evidence, TakeSignals
from gaploop.failure_analysis.views.phases import (
    GRASP_S,
    HELD_RAD,
    SETTLE_S,
    Grasp,
    grasps,
    lift,
    phase_at,
    tool_and_object,
)
from gaploop.failure_analysis.views.view import ArmMotion, TakeView, runs

M = FailureMode
PRESSING_SHARE: Final = 0.88
"""Of the stall load, meant over `LOAD_S`. Free motion of the SO-101 cell, whose servos are stiff
and saturate while they speed up, stays below 0.80."""
LOAD_S: Final = 0.20
PUSHED_RAD: Final = math.radians(1.5)
"""A joint that is pushed stands further off its command than usual in the episode by this much."""
USUAL_PERCENTILE: Final = 20
"""Low, because an arm that is blocked early stands off its command for most of the episode."""
DISPLACED_RAD: Final = math.radians(2.0)
TOUCH_S: Final = 0.30
"""Contacts that are this near in time are one."""
CONTACT_S: Final = 0.08
PRESSED_S: Final = 0.7
SHAKE_RAD: Final = math.radians(1.5)
TURNS: Final = 6
TURN_S: Final = 0.38
DRIFT_RAD: Final = math.radians(6.0)
DRIFT_S: Final = 0.7
CLOSING_RAD_S: Final = 0.25
"""A joint that comes nearer to its command as fast as this is slow, not adrift."""
REPEATING_SHARE: Final = 0.5
"""Readings that repeat to the bit under a moving command come from a bus that is down."""
STILL_RAD_S: Final = 0.05
FROZEN_S: Final = 2.0
MOVED_RAD: Final = 0.02


def arms(view: TakeView) -> tuple[ArmMotion, ...]:
    """Return the commands and readings of each arm, the one that other signals look at first.

    Two arms are told apart by what their joints' names begin with (`left_elbow_flex`).
    """
    main = view.motion
    if main is None:
        return ()
    sides = [name.split("_")[0] for name in main.joints]
    if not set(sides) <= {"left", "right"}:
        return (main,)
    parts = ([i for i, s in enumerate(sides) if s == side] for side in sorted(set(sides)))
    return tuple(
        replace(
            main,
            sent_rad=main.sent_rad[:, own],
            position_rad=main.position_rad[:, own],
            current_a=main.current_a[:, own],
            joints=tuple(main.joints[i] for i in own),
            grippers=tuple(own.index(k) for k in main.grippers if k in own),
        )
        for own in parts
    )


def load_share(view: TakeView, motion: ArmMotion) -> FloatArray | None:
    """Return the signed loads of an arm's motors, 1 at stall, or None where they aren't known.

    Shape (n, n_joints), in the order of `motion.joints`.
    """
    record = view.take.telemetry
    if len(record) != len(motion.t_s):
        return None
    for arm in record.arms():
        names, loads = record.joints(arm), record.stack(arm, "load_pct")
        if set(motion.joints) <= set(names) and np.isfinite(loads).any():
            own = [names.index(name) for name in motion.joints]
            return np.nan_to_num(loads[:, own]) / 100.0
    return None


@dataclass(frozen=True)
class Event:
    """Something that began at `at_s` and may have ended an attempt."""

    mode: FailureMode
    at_s: float
    end_s: float
    evidence: Evidence


def spans(
    t_s: FloatArray, flags: NDArray[np.bool_], *, least_s: float = 0.0, bridge_s: float = 0.0
) -> list[tuple[float, float]]:
    """Return when `flags`, shape (n,), hold: start and end [s], breaks up to `bridge_s` bridged."""
    found: list[tuple[float, float]] = []
    for start, stop in zip(*runs(flags), strict=True):
        start_s, end_s = float(t_s[start]), float(t_s[stop - 1])
        if found and start_s - found[-1][1] <= bridge_s:
            found[-1] = (found[-1][0], end_s)
        else:
            found.append((start_s, end_s))
    return [s for s in found if s[1] - s[0] >= least_s - 1e-9]


def _smooth(values: FloatArray, width: int) -> FloatArray:
    from scipy.ndimage import uniform_filter1d  # here: importing the types needs no scipy

    return np.asarray(uniform_filter1d(values, max(width, 1), axis=0, mode="nearest"))


def _off(motion: ArmMotion) -> tuple[FloatArray, FloatArray]:
    """Return readings less the command that they answer, and less the one sent by then."""
    return motion.residual_rad, motion.position_rad - motion.sent_rad


def pushed_rad(motion: ArmMotion) -> FloatArray:
    """Return how far each arm joint stands off its command, (n, n_arm_joints), over 50 ms.

    That is the command as it is, or as it was when it is answered, whichever is nearer.

    Beyond what is usual, a low percentile of the take: play and weak drives are there all the time.
    Beyond what one row of time is worth while a joint follows, too: a row's command and reading
    aren't of one instant, and at 30 rows a second 3° of a fast joint lie between two.
    """
    width = round(0.05 * motion.rate_hz)
    off = np.minimum(*(np.abs(_smooth(o[:, motion.arm_joints], width)) for o in _off(motion)))
    speeds = np.minimum(np.abs(motion.velocity_rad_s), np.abs(motion.sent_velocity_rad_s))
    off = np.maximum(off - speeds[:, motion.arm_joints] / motion.rate_hz, 0.0)
    return np.asarray(np.maximum(off - np.percentile(off, USUAL_PERCENTILE, axis=0), 0.0))


def contacts(motion: ArmMotion, load_share: FloatArray | None) -> list[Event]:
    """Return where something pressed on the arm: collisions and obstructions, oldest first.

    `load_share` is as of the function; without it standing off the command has to tell.
    """
    pushed = pushed_rad(motion)
    if load_share is None:
        pressing = np.any((pushed > DISPLACED_RAD) & ~nearing(motion), axis=1)
    else:
        load = np.abs(_smooth(load_share[:, motion.arm_joints], round(LOAD_S * motion.rate_hz)))
        pressing = np.any(load > PRESSING_SHARE, axis=1)
    found = []
    for start_s, end_s in spans(motion.t_s, pressing, least_s=CONTACT_S, bridge_s=TOUCH_S):
        inside = (motion.t_s >= start_s) & (motion.t_s <= end_s)
        most = float(pushed[inside].max())
        lasted_s = end_s - start_s + (0.5 * LOAD_S if load_share is not None else 0.0)
        is_pressed = lasted_s >= PRESSED_S and most >= PUSHED_RAD
        mode = M.OBSTRUCTION if is_pressed else M.COLLISION
        how = "at stall" if load_share is not None else "off their command"
        message = (
            f"motors press {how} for {lasted_s:.1f} s, and a joint is pushed "
            f"{math.degrees(most):.1f}° off its command"
        )
        begin_s = start_s - (0.5 * LOAD_S if load_share is not None else 0.0)
        found.append(Event(mode, begin_s, end_s, Evidence("pressed_s", lasted_s, "s", message)))
    return found


def shaking(motion: ArmMotion) -> Event | None:
    """Return the first stretch in which a joint turned round and round, commanded or not."""
    from scipy.signal import find_peaks

    width = round(0.05 * motion.rate_hz)
    read = _smooth(motion.position_rad[:, motion.arm_joints], width)
    bends = np.diff(read, 2, axis=0)
    noise = np.median(np.abs(bends), axis=0) if len(bends) else np.zeros(read.shape[1])
    if len(bends) > 2:
        # A swing that lasts bends readings, too, but each as the two before it foretell.
        now, beside = bends[1:-1], bends[2:] + bends[:-2]
        follows = (now * beside).sum(axis=0) / np.maximum((now * now).sum(axis=0), 1e-12)
        noise = np.minimum(noise, 1.5 * np.median(np.abs(beside - follows * now), axis=0))
    found = list[tuple[float, float, float, float]]()
    for column, q in enumerate(read.T):
        # That readings go from one step of an encoder to the next and back is no swing.
        step = step_of(motion.position_rad[:, motion.arm_joints[column]])
        least = max(SHAKE_RAD, 12.0 * float(noise[column]), 1.5 * step)
        turns = np.sort(np.concatenate([find_peaks(s, prominence=least)[0] for s in (q, -q)]))
        t_s = motion.t_s[turns]
        for k in range(len(turns) - TURNS + 1):
            if np.diff(t_s[k : k + TURNS]).max() <= TURN_S:
                swing = float(np.median(np.abs(np.diff(q[turns[k : k + TURNS]]))))
                if swing >= least:
                    part = q[turns[k] : turns[k + TURNS - 1] + 1]  # its smaller turns count, too
                    inner = sum(
                        len(find_peaks(s, prominence=0.3 * swing)[0]) for s in (part, -part)
                    )
                    rate_hz = 0.5 * (inner + 1) / max(float(t_s[k + TURNS - 1] - t_s[k]), 1e-3)
                    found.append((float(t_s[k + 1]), float(t_s[k + TURNS - 1]), swing, rate_hz))
    if not found:
        return None
    start_s, end_s, swing, rate_hz = min(found)
    for other in sorted(found):
        end_s = max(end_s, other[1]) if other[0] <= end_s else end_s
    message = (
        f"a joint swings back and forth by {math.degrees(swing):.1f}°, {rate_hz:.1f} times a second"
    )
    return Event(M.OSCILLATION, start_s, end_s, Evidence("swing_rad", swing, "rad", message))


def nearing(motion: ArmMotion) -> NDArray[np.bool_]:
    """Say where joints come nearer to their commands: slow ones do, and nothing holds them.

    Nearer to the command as it is, or as it was when it is answered; shape (n, n_arm_joints).
    """
    towards = np.maximum(*(-np.sign(o) * motion.velocity_rad_s for o in _off(motion)))
    return np.asarray(towards[:, motion.arm_joints] >= CLOSING_RAD_S)


def drifting(motion: ArmMotion, touched: list[Event]) -> Event | None:
    """Return when a joint that nothing touches first stood far off its command, or None."""
    off = motion.residual_rad[:, motion.arm_joints]
    same = (np.diff(motion.position_rad, axis=0) == 0).all(axis=1)
    repeats = np.r_[False, same & (np.diff(motion.sent_rad, axis=0) != 0).any(axis=1)]
    far = np.any((np.abs(off) > DRIFT_RAD) & ~nearing(motion), axis=1)
    for start_s, end_s in spans(motion.t_s, far, least_s=DRIFT_S, bridge_s=0.15):
        if any(c.at_s - TOUCH_S <= start_s <= c.end_s + TOUCH_S for c in touched):
            continue
        inside = (motion.t_s >= start_s) & (motion.t_s <= end_s)
        if repeats[inside].mean() > REPEATING_SHARE:
            continue  # the readings stand still, not the arm
        most = float(np.abs(off[inside]).max())
        message = (
            f"a joint stands up to {math.degrees(most):.0f}° off its command for "
            f"{end_s - start_s:.1f} s, and nothing presses on it"
        )
        return Event(M.DRIFT, start_s, end_s, Evidence("adrift_rad", most, "rad", message))
    return None


def standing(motions: tuple[ArmMotion, ...]) -> Event | None:
    """Return since when every arm has stood still until the end, or None."""
    since_s, end_s = 0.0, 0.0
    for motion in motions:
        every = max(1, round(0.2 * motion.rate_hz))
        q = _smooth(motion.position_rad, every)[::every]
        t_s = motion.t_s[::every]
        moved = np.flatnonzero(
            np.abs(np.diff(q, axis=0)).max(axis=1, initial=0.0) > STILL_RAD_S * np.diff(t_s)
        )
        since_s = max(since_s, float(t_s[moved[-1] + 1]) if len(moved) else float(t_s[0]))
        end_s = max(end_s, float(motion.t_s[-1]))
    if end_s - since_s < FROZEN_S:
        return None
    message = f"the arm stands still for the last {end_s - since_s:.1f} s"
    return Event(M.FROZEN, since_s, end_s, Evidence("standstill_s", end_s - since_s, "s", message))


def moves(motion: ArmMotion) -> bool:
    """Say whether the arm was told to move at all."""
    return bool(len(motion.t_s) > 1 and np.ptp(motion.sent_rad, axis=0).max() > MOVED_RAD)


HELD_S: Final = 0.7
"""Where the jaws aren't read, what is carried has left its place so long after the closing."""
WORKING_SHARE: Final = 0.25
IDLE_SHARE: Final = 0.12
"""Of the stall load. The SO-101's gripper is limited to half of it, and shows all of that while it
holds; jaws that have met show friction only."""
RESTING_RAD: Final = 0.02
MET_S: Final = 0.3
"""Jaws that lost what they held have met so long afterwards."""
CLOSED_S: Final = 0.3
"""Jaws have met so long after they were told to close."""
CARRIED_M: Final = 0.025
"""An object seen this far from where it was, after a closing, was carried."""
NEAR_RELEASE_M: Final = 0.050
"""An object that lies this near to where the gripper opened was put down there."""


@dataclass(frozen=True)
class GraspEvents:
    """What a take shows of how the object was handled.

    Attributes:
        events: closings on nothing, losses, releases, oldest first.
        gripped_s: when the jaws closed that last held something [s], or None.
        lifted_s: when it was lifted then, else `gripped_s` [s], or None.
        closings: of the gripper, as jaws and effort tell them.
        unseen: why whether something was held couldn't be told, or "".
    """

    events: tuple[Event, ...] = ()
    gripped_s: float | None = None
    lifted_s: float | None = None
    closings: tuple[Grasp, ...] = ()
    unseen: str = ""


def grasp_events(
    view: TakeView, motion: ArmMotion, measured: TakeSignals, load_share: FloatArray | None
) -> GraspEvents:
    """Say what the jaws, and motor loads as of `load_share`, or else the tracked object tell."""
    closings = grasps(motion)
    if not closings:
        return GraspEvents()
    jaws = [(motion.position_rad[:, k], motion.sent_rad[:, k]) for k in motion.grippers]
    if not any(
        np.ptp(read) > 0.05 * np.ptp(sent) and not np.array_equal(read, sent) for read, sent in jaws
    ):  # no opening was read at all, apart from its command
        return _by_tracker(view, closings, measured)
    if load_share is not None:
        effort = np.abs(load_share)
        closings = tuple(_by_effort(g, motion, effort[:, g.gripper]) for g in closings)
    events = list[Event]()
    for number, grasp in enumerate(closings):
        side = sides_of(motion.joints)[grasp.gripper]
        whose = f"{side} " if side else ""
        handed_over = any(later.gripper != grasp.gripper for later in closings[number + 1 :])
        if not grasp.held:
            times = "once" if len(closings) == 1 else f"{len(closings)} times"
            travel_rad = float(np.ptp(motion.sent_rad[:, grasp.gripper]))
            off = abs(grasp.short_rad) / max(travel_rad, abs(grasp.short_rad))
            short = f"they stop {100.0 * off:.0f} % of their travel from the command"
            message = f"the {whose}gripper closed {times} and its jaws met ({short})"
            met_s = min(grasp.close_s + CLOSED_S, grasp.open_s)
            missed = Evidence("grip_short_rad", grasp.short_rad, "rad", message)
            events.append(Event(M.MISSED_GRASP, met_s, grasp.open_s, missed))
        elif not math.isnan(grasp.lost_s):
            held_s = grasp.lost_s - grasp.close_s
            message = f"the {whose}jaws closed on nothing {held_s:.1f} s after the grasp"
            lost = Evidence("held_s", held_s, "s", message)
            events.append(Event(M.SLIP, grasp.lost_s, grasp.lost_s, lost))
        elif grasp.released and not handed_over:
            events.append(_released(grasp, measured))
    held = [grasp for grasp in closings if grasp.held]
    if not held:
        return GraspEvents(tuple(events), closings=closings)
    lifted_s = lift(held[-1], view.tool if motion is view.motion else None)[0]
    gripped_s = held[-1].close_s
    lifted_s = lifted_s if lifted_s < held[-1].open_s else gripped_s
    return GraspEvents(tuple(events), gripped_s, lifted_s, closings)


def _by_effort(grasp: Grasp, motion: ArmMotion, effort: FloatArray) -> Grasp:
    """Return the grasp as the gripper's motor tells it: soft and small things hardly stop jaws.

    A motor that holds something works; one whose jaws have met, or stand where they were told to,
    doesn't, whatever a reading message that repeats because the bus is down. `effort` is a share of
    the stall load, shape (n,).
    """
    lag_s = 0.0 if math.isnan(motion.lag_samples) else motion.lag_samples / motion.rate_hz
    settled_s = grasp.close_s + SETTLE_S + lag_s
    inside = (motion.t_s >= settled_s) & (motion.t_s < grasp.open_s)
    if inside.sum() < 3:
        return grasp
    first = inside & (motion.t_s < settled_s + 0.15)
    at_rest = np.ptp(motion.position_rad[first, grasp.gripper]) < RESTING_RAD
    works = float(np.median(effort[first])) > WORKING_SHARE
    if not works and not (effort[inside] > WORKING_SHARE).any():
        return replace(grasp, short_rad=min(grasp.short_rad, 0.0), lost_s=math.nan)
    if grasp.held and math.isnan(grasp.lost_s):
        return grasp  # jaws that stay apart hold something, however little they press
    if grasp.held:
        later = (motion.t_s > grasp.lost_s + MET_S) & (motion.t_s < grasp.lost_s + 2 * MET_S)
        still = later.any() and float(np.median(effort[later])) > WORKING_SHARE
        return replace(grasp, lost_s=math.nan) if still else grasp
    if not works or not at_rest:
        return grasp
    idle = spans(motion.t_s, inside & (effort < IDLE_SHARE), least_s=0.05)
    lost_s = idle[0][0] if idle else math.nan
    return replace(grasp, short_rad=1.01 * HELD_RAD, lost_s=lost_s)


def _released(grasp: Grasp, measured: TakeSignals) -> Event:
    away = measured["end_distance_m"]
    away = measured["release_target_m"] if math.isnan(away) else away
    if math.isnan(away):
        message = "the object was carried and released; where it lies can't be seen"
    else:
        message = f"the object was released and lies {away * 1000:.0f} mm from the target"
    lies = Evidence("end_distance_m", away, "m", message)
    return Event(M.MISPLACEMENT, grasp.open_s, grasp.open_s, lies)


def _by_tracker(view: TakeView, closings: tuple[Grasp, ...], measured: TakeSignals) -> GraspEvents:
    """Tell by where the tracked object was before the first closing and is at the end."""
    seen, last = tool_and_object(view), closings[-1]
    if seen is None or not seen.visible.any():
        return GraspEvents(
            unseen="whether the jaws held anything: no jaw readings, no tracked scene"
        )
    before = seen.visible & (seen.t_s < closings[0].close_s)
    after = seen.visible & (seen.t_s > last.close_s + HELD_S)
    if not before.any() or not after.any():
        return GraspEvents(unseen="whether the jaws held anything: the object is hidden")
    start_m, end_m = seen.object_m[before][0], seen.object_m[after][-1]
    moved_m = float(np.linalg.norm(end_m - start_m))
    if moved_m < CARRIED_M:
        message = (
            f"the gripper closed, and the object is where it was ({moved_m * 1000:.0f} mm off)"
        )
        seen_here = Evidence("transported_m", moved_m, "m", message)
        missed = Event(M.MISSED_GRASP, last.close_s, last.open_s, seen_here)
        return GraspEvents((missed,))
    if not last.released:
        return GraspEvents((), last.close_s, last.close_s + GRASP_S)
    opened_m = seen.tool_m[int(np.searchsorted(seen.t_s, last.open_s).clip(0, len(seen.t_s) - 1))]
    offset_m = float(np.linalg.norm(end_m - opened_m[:2]))
    if offset_m < NEAR_RELEASE_M:
        return GraspEvents((_released(last, measured),), last.close_s, last.close_s + GRASP_S)
    message = f"the object lies {offset_m * 1000:.0f} mm from where the gripper opened"
    lost_s = 0.5 * (last.close_s + last.open_s)
    lost = Event(M.SLIP, lost_s, lost_s, Evidence("release_offset_m", offset_m, "m", message))
    return GraspEvents((lost,), last.close_s, last.close_s + GRASP_S)


PRECEDENCE: Final = (
    M.OPERATOR_STOP, M.OBSTRUCTION, M.COLLISION, M.MISSED_GRASP, M.SLIP, M.MISPLACEMENT,
    M.OSCILLATION, M.DRIFT, M.FROZEN, M.TIMEOUT,
)  # fmt: skip
"""Which counts where two begin together."""
TOGETHER_S: Final = 0.10
STALLED_S: Final = 0.6
"""A trip for stall comes this long after the motors began to press."""
SWINGING_S: Final = 0.5
"""A joint swings for so long before it has turned round often enough to be noticed."""
THROUGH_S: Final = 0.3
"""A hold that went on for so long after a contact went through it."""


@dataclass(frozen=True)
class ModeCall:
    """A failure mode and why, None where nothing went wrong, and its phase, None where unknown.

    `seen` are all modes that the take shows at any time, recovered from or not, with what first
    shows each.
    """

    mode: FailureMode | None
    phase: Phase | None
    evidence: tuple[Evidence, ...] = ()
    seen: Mapping[FailureMode, Evidence] = field(default_factory=dict)


def failure_mode(view: TakeView, measured: TakeSignals) -> ModeCall:
    """Return the failure mode of a take that failed, or may have."""
    motions = tuple(m for m in arms(view) if moves(m))
    if not motions:
        return ModeCall(None, None)
    # The first event of any arm that the attempt didn't recover from.
    every = [_Arm(m, load_share(view, m), view, measured) for m in motions]
    candidates = [(event, arm) for arm in every for event in arm.events()]
    ever = sorted((e for arm in every for e in arm.ever()), key=lambda e: e.at_s, reverse=True)
    seen = {event.mode: event.evidence for event in ever}
    # How the take ended, too: out of time, at a standstill, or stopped from outside.
    end_s = max(float(arm.motion.t_s[-1]) for arm in every)
    message = f"after {view.take.duration_s:.1f} s the attempt was still running"
    late = Evidence("duration_s", view.take.duration_s, "s", message)
    ends = [Event(M.TIMEOUT, end_s, end_s, late), *_stops(view, every)]
    stood = standing(motions)
    ends += [stood] if stood is not None else []
    candidates += [(event, every[0]) for event in ends]
    stalled = np.any(view.take.frames.safety & int(SafetyReason.STALL))
    if stalled or any(event.mode is M.OBSTRUCTION for event, _ in candidates):
        candidates = [c for c in candidates if c[0].mode is not M.COLLISION]
    earliest = min(event.at_s for event, _ in candidates)
    together = [c for c in candidates if c[0].at_s <= earliest + TOGETHER_S]
    event, arm = min(together, key=lambda c: PRECEDENCE.index(c[0].mode))
    unseen = [arm.held.unseen for arm in every if arm.held.unseen]
    evidence = (
        event.evidence,
        *(Evidence("grip", math.nan, "", f"can't be seen: {why}") for why in unseen),
    )
    if event.mode is M.TIMEOUT and unseen:
        return ModeCall(None, None, evidence, seen)
    return ModeCall(event.mode, arm.phase(event), evidence, seen | {event.mode: event.evidence})


class _Arm:
    """One arm of a take: what happened to it, and to what it handled."""

    def __init__(
        self,
        motion: ArmMotion,
        load_share: FloatArray | None,
        view: TakeView,
        measured: TakeSignals,
    ) -> None:
        self.motion = motion
        self.held = grasp_events(view, motion, measured, load_share)
        self.shook, self.touched = shaking(motion), contacts(motion, load_share)
        if self.shook is not None and load_share is None:  # swinging is off the command, too
            from_s, to_s = self.shook.at_s - SWINGING_S, self.shook.end_s + SWINGING_S
            self.touched = [c for c in self.touched if c.end_s < from_s or c.at_s > to_s]
        self.drifted = drifting(motion, self.touched)
        self._tool = view.tool if motion is view.motion else None

    def ever(self) -> list[Event]:
        """Return whatever happened, before the last hold, too."""
        once = [event for event in (self.shook, self.drifted) if event is not None]
        return [*self.held.events, *self.touched, *once]

    def events(self) -> list[Event]:
        held = self.held
        since_s = -math.inf if held.gripped_s is None else held.gripped_s
        drifted, shook = self.drifted, self.shook
        lasting = [shook] if shook is not None and shook.end_s > since_s else []
        if held.lifted_s is not None:
            late_s = held.lifted_s + THROUGH_S
            lasting += [c for c in self.touched if c.at_s < since_s and c.end_s > late_s]
        # A contact that a hold went through, to an end of its own, ended nothing.
        ends_s = [e.at_s for e in held.events
                  if e.mode in (M.SLIP, M.MISPLACEMENT) and e.at_s >= since_s]  # fmt: skip
        found = [*held.events, *([drifted] if drifted is not None else [])]
        found += [c for c in self.touched if not any(c.end_s + THROUGH_S < end for end in ends_s)]
        return [*(event for event in found if event.at_s >= since_s), *lasting]

    def phase(self, event: Event) -> Phase:
        fixed = {M.MISSED_GRASP: Phase.GRASP, M.MISPLACEMENT: Phase.PLACE}
        closings = self.held.closings or None
        return fixed.get(event.mode) or phase_at(self.motion, event.at_s, self._tool, closings)


def _stops(view: TakeView, every: list[_Arm]) -> list[Event]:
    """Return who or what stopped the take from outside: the operator, or the safety filter."""
    stops = SafetyReason.ESTOP | SafetyReason.TRIPPED
    flags = view.take.frames.safety
    hit = np.flatnonzero(flags & int(stops)) if len(flags) else np.empty(0, dtype=np.int64)
    if not len(hit) and view.take.outcome != Outcome.INTERRUPTED:
        return []
    when = float(view.take.frames.t_s[hit[0]]) if len(hit) else view.take.duration_s
    cause = SafetyReason(int(flags[hit[0]])) if len(hit) else SafetyReason.NONE
    names = (cause & ~SafetyReason.TRIPPED).name or cause.name or ""
    tripped = f"the safety filter tripped ({names.lower().replace('|', ', ')})"
    why = f"{tripped} at {when:.1f} s" if len(hit) else "the episode was cut off"
    evidence = Evidence("stopped_at_s", when, "s", why)
    pressed = [c.at_s for arm in every for c in arm.touched
               if c.at_s <= when <= c.end_s + STALLED_S]  # fmt: skip
    # The filter takes a late or weak arm for a stalled one, too: its word alone is no obstruction.
    if cause & SafetyReason.STALL and pressed:
        return [Event(M.OBSTRUCTION, min(pressed), when, evidence)]
    return [Event(M.OPERATOR_STOP, when, when, evidence)]

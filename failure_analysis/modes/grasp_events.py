"""What happened to the object: closings on nothing, grips that were lost, things put down."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import FailureMode
from gaploop.failure_analysis.modes.arm_events import Event, spans
from gaploop.failure_analysis.signals.registry import Evidence, TakeSignals
from gaploop.failure_analysis.views.phases import (
    GRASP_S,
    HELD_RAD,
    SETTLE_S,
    Grasp,
    grasps,
    lift,
    tool_and_object,
)
from gaploop.failure_analysis.views.view import ArmMotion, TakeView

M = FailureMode
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
MOVED_M: Final = 0.025
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
        whose = motion.joints[grasp.gripper].partition("gripper")[0].replace("_", " ")  # of a pair
        handed_over = any(later.gripper != grasp.gripper for later in closings[number + 1 :])
        if not grasp.held:
            times = "once" if len(closings) == 1 else f"{len(closings)} times"
            short = f"they stop {abs(math.degrees(grasp.short_rad)):.1f}° from the command"
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
    if moved_m < MOVED_M:
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

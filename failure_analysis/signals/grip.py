"""Signals of grasping: how far the jaws closed, what they lost, what carrying cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.signals.registry import known, signal
from gaploop.failure_analysis.views.phases import Grasp, grasps, main_grasp, scene_xy_m
from gaploop.failure_analysis.views.view import SLOW_RAD_S, TakeView


def _main(view: TakeView) -> Grasp:
    return known(main_grasp(known(view.motion)))


@signal("rad", "motion", 0.02, "the jaws stop {value} short of their command")
def grip_short_rad(view: TakeView) -> float:
    """How far the closed jaws stay open against their command: the size of what they hold."""
    grasp = _main(view)
    return grasp.short_rad if grasp.held else np.nan


@signal("share", "motion", 0.1, "the jaws held something for {value} of the closure")
def held_share(view: TakeView) -> float:
    """Share of the closed time for which something stayed between the jaws."""
    grasp = _main(view)
    if not grasp.held:
        return 0.0
    end = grasp.open_s if np.isnan(grasp.lost_s) else grasp.lost_s
    return float((end - grasp.close_s) / max(grasp.open_s - grasp.close_s, 1e-3))


@signal("rad", "motion", 0.005, "the jaws close by {value} while they hold")
def grip_creep_rad(view: TakeView) -> float:
    """How far the jaws close on between settling on an object and opening again."""
    grasp, motion = _main(view), known(view.motion)
    if not grasp.held:
        return np.nan
    until = grasp.open_s if np.isnan(grasp.lost_s) else grasp.lost_s
    inside = (motion.t_s > grasp.close_s + 0.4) & (motion.t_s < until - 0.05)
    read = motion.position_rad[inside, grasp.gripper]
    return float(np.median(read[:5]) - np.median(read[-5:])) if len(read) >= 20 else np.nan


@signal("rad/s", "motion", 0.02, "the jaws close at {value} while they hold")
def slip_rad_s(view: TakeView) -> float:
    """Fastest closing of jaws that hold and are told to stay: something gives way between them."""
    grasp, motion = _main(view), known(view.motion)
    if not grasp.held:
        return np.nan
    inside = (motion.t_s > grasp.close_s + 0.5) & (motion.t_s < grasp.open_s - 0.05)
    steady = np.abs(motion.sent_velocity_rad_s[:, grasp.gripper]) < SLOW_RAD_S
    speed = -motion.velocity_rad_s[inside & steady, grasp.gripper]
    return float(max(0.0, speed.max())) if len(speed) >= 5 else np.nan


@signal("", "motion", 0.3, "what was held went {value} times")
def lost_count(view: TakeView) -> float:
    """How often something held went before the gripper was told to open."""
    return float(sum(not np.isnan(g.lost_s) for g in grasps(known(view.motion))))


def lifting(view: TakeView, of: Callable[[NDArray[np.int64]], FloatArray]) -> float:
    """Change of a value from just before the gripper closes to just after lifting.

    Both are at nearly the same pose, so that gravity on the arm itself drops out. `of` gives the
    values, shape (n,), of the columns of lift, elbow and wrist.
    """
    motion = known(view.motion)
    # The first one: later ones come from anywhere.
    grasp = known(next((g for g in grasps(motion) if g.held), None))
    before = (motion.t_s > grasp.close_s - 0.10) & (motion.t_s <= grasp.close_s)
    carried = (motion.t_s > grasp.close_s + 0.45) & (motion.t_s < grasp.close_s + 0.75)
    if before.sum() < 3 or carried.sum() < 5:
        return np.nan
    values = of(motion.arm_of(grasp.gripper)[1:4])
    return float(np.median(values[carried]) - np.median(values[before]))


@signal("m", "scene", 0.003, "the object moves {value} after the gripper let go")
def stuck_m(view: TakeView) -> float:
    """How far the tracked object moves after its release, over frames that show it."""
    grasp = _main(view)
    item, _, visible = scene_xy_m(known(view.scene))
    after = visible & (view.take.frames.t_s > grasp.open_s + 0.3)
    if after.sum() < 5 or not grasp.released or not grasp.held:
        return np.nan
    places = item[after]
    return float(np.percentile(np.linalg.norm(places - np.median(places, axis=0), axis=1), 90))


@signal("A", "currents", 0.03, "lifting takes {value} more than approaching")
def carry_current_a(view: TakeView) -> float:
    """Summed current of lift, elbow and wrist after lifting less that before the grasp."""
    current_a = known(view.motion).current_a
    if not np.isfinite(current_a).any():
        return np.nan
    return lifting(view, lambda arm: np.nansum(np.abs(current_a[:, arm]), axis=1))


@signal("rad", "motion", 0.0008, "the arm sags {value} further while it carries")
def carry_sag_rad(view: TakeView) -> float:
    """Mean error of lift, elbow and wrist after lifting less that before the grasp."""
    motion = known(view.motion)
    return lifting(view, lambda arm: np.abs(motion.residual_rad[:, arm]).mean(axis=1))


@signal("m", "motion", 0.0008, "the descent stops {value} above the command")
def contact_height_m(view: TakeView) -> float:
    """Lowest tool height read less the lowest commanded one: something was in the way below."""
    tool = known(view.tool)
    return float(np.percentile(tool.read_m[:, 2], 2) - np.percentile(tool.sent_m[:, 2], 2))


@signal("m", "scene", 0.003, "the gripper opens {value} from the target seen")
def release_target_m(view: TakeView) -> float:
    """Horizontal distance of the tool and the tracked target when the gripper opens."""
    grasp, tool, scene = _main(view), known(view.tool), known(view.scene)
    target = np.median(scene_xy_m(scene)[1], axis=0)
    away = np.linalg.norm(tool.at(grasp.open_s)[:2] - target)
    return float(away) if grasp.released else np.nan


@signal("rad", "motion", 0.004, "the arm starts {value} from its usual pose")
def start_pose_rad(view: TakeView) -> float:
    """Rms joint difference between the start readings and the reference's start pose."""
    motion, usual = known(view.motion), known(view.start_pose_rad)
    if len(usual) != len(motion.joints):
        return np.nan
    start = np.median(motion.position_rad[:3], axis=0)
    return float(np.sqrt(np.mean((start - usual)[motion.arm_joints] ** 2)))

"""Signals of grasping: how far the jaws closed, what they lost, what carrying cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.signals.motion import quiet_stretch
from gaploop.failure_analysis.signals.registry import known, signal, signals_read
from gaploop.failure_analysis.views.phases import (
    RELEASE_S,
    Grasp,
    grasps,
    lift,
    main_grasp,
    scene_xy_m,
)
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
    return float((grasp.gone_s - grasp.close_s) / max(grasp.open_s - grasp.close_s, 1e-3))


@signal("rad", "motion", 0.005, "the jaws close by {value} while they hold")
def grip_creep_rad(view: TakeView) -> float:
    """How far the jaws close on between settling on an object and opening again."""
    grasp, motion = _main(view), known(view.motion)
    if not grasp.held:
        return np.nan
    inside = (motion.t_s > grasp.close_s + 0.4) & (motion.t_s < grasp.gone_s - 0.05)
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
    columns = motion.arm_of(grasp.gripper)[1:4]
    if not len(columns):
        return np.nan
    values = of(columns)
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


# -- what is felt as an attempt approaches, grasps, holds and places -----------------------------


BEFORE_S: Final = 1.0
"""In the quieter half of so long before the gripper closes nothing is pressed."""
FELT: Final = 6.0
"""Spreads of a reading's noise by which it must rise to be a contact."""
BEGUN: Final = 0.1
"""Share of the most at which a contact begins and ends,"""
WHOLE: Final = 0.9
"""at which it is all there,"""
LESS: Final = 0.3
"""and under which it is lost meanwhile."""


@dataclass(frozen=True)
class Contact:
    """One grasp as it is felt.

    Attributes:
        onset_s: from the command to close to the first touch [s].
        peak: the most above what is read before, in the sensor's unit.
        slope: of that share a second between a tenth and nine tenths of it [1/s].
        share: of the time closed in which it is pressed.
        release_s: from the command to open to the last touch [s]; NaN where it wasn't given.
    """

    onset_s: float = np.nan
    peak: float = np.nan
    slope: float = np.nan
    share: float = np.nan
    release_s: float = np.nan


def contact(t_s: FloatArray, felt: FloatArray, grasp: Grasp) -> Contact:
    """Return what is felt of a grasp: readings at times [s], each shape (n,), 0 or more."""
    known_ = np.isfinite(felt)
    t_s, felt = t_s[known_], felt[known_]
    free = felt[(t_s > grasp.close_s - BEFORE_S) & (t_s <= grasp.close_s)]
    closed = (t_s > grasp.close_s) & (t_s <= grasp.open_s)
    if len(free) < 3 or closed.sum() < 5:
        return Contact()
    quiet = np.sort(free)[: len(free) // 2 + 1]  # the other half: it begins to close
    usual = float(np.median(quiet))
    noise = 1.4826 * float(np.median(np.abs(np.diff(felt)))) / math.sqrt(2.0)
    above, at_s = felt - usual, t_s - grasp.close_s
    peak = float(np.percentile(above[closed], 95))
    if peak <= max(FELT * noise, 0.02 * float(np.max(felt))) or peak <= 0.0:
        return Contact(peak=max(peak, 0.0), share=0.0)
    onset_s, whole_s = (
        float(at_s[closed][np.argmax(above[closed] >= part * peak)]) for part in (BEGUN, WHOLE)
    )
    step_s = float(np.median(np.diff(t_s)))
    after = (t_s > grasp.open_s) & (above < BEGUN * peak)
    release_s = float(t_s[after][0] - grasp.open_s) if grasp.released and after.any() else np.nan
    return Contact(
        onset_s,
        peak,
        (WHOLE - BEGUN) / max(whole_s - onset_s, step_s),
        float((above[closed & (at_s >= onset_s)] > LESS * peak).mean()),
        release_s,
    )


def _touched(view: TakeView, key: str) -> float:
    """Return an attribute of the main grasp as a touch sensor feels it."""
    felt = contact(view.take.telemetry.t_s, known(view.touch), _main(view))
    return float(getattr(felt, key))


signals_read("touch", _touched, (
    ("touch_onset_s", "s", 0.02, "the jaws touch something {value} after they begin to close",
     "onset_s", "From the command to close to the first touch: a tenth of the most."),
    ("touch_peak", "", 0.2, "the jaws press with at most {value}, as the sensor counts",
     "peak", "Most that is felt in the main grasp above what is read before it."),
    ("touch_slope", "1/s", 0.5, "the pressing rises by {value} of its most",
     "slope", "How fast pressing rises from a tenth to nine tenths of its most."),
    ("touch_share", "share", 0.1, "the jaws press for {value} of the closure",
     "share", "Share of the closed time, from the first touch on, with over 30 % of the most."),
    ("touch_release_s", "s", 0.02, "the jaws let go {value} after they begin to open",
     "release_s", "From the command to open until under a tenth of the most is felt."),
))  # fmt: skip


def pressing(view: TakeView) -> dict[str, float]:
    """Return the main grasp as the gripper's own current feels it, or its load; {} without.

    By names of signals, with what they are by: `touch_share:gripper_current`. When it let go isn't
    told: to open takes current, too.
    """
    grasp, record = _main(view), view.take.telemetry
    joint = known(view.motion).joints[grasp.gripper]
    for quantity in ("current_a", "load_pct"):
        for arm in sorted(record.arms(), key=lambda name: name != "follower"):
            felt = np.abs(record.columns.get(f"{arm}.{joint}.{quantity}", np.empty(0)))
            if np.isfinite(felt).any():
                found, by = contact(record.t_s, felt, grasp), quantity.partition("_")[0]
                own = {"onset_s": found.onset_s, "slope": found.slope, "share": found.share}
                return {f"touch_{name}:gripper_{by}": value for name, value in own.items()}
    return {}


def _most(view: TakeView, start_s: float, end_s: float) -> float:
    wrench = known(view.wrench)
    force_n = np.linalg.norm((wrench - quiet_stretch(wrench)[0])[:, :3], axis=1)
    t_s = view.take.telemetry.t_s
    inside = force_n[(t_s >= start_s) & (t_s <= end_s)]
    return float(np.nanmax(inside)) if np.isfinite(inside).any() else np.nan


@signal("N", "force", 1.0, "on the way to the grasp the force reaches {value} from rest")
def approach_force_n(view: TakeView) -> float:
    """Largest distance of the force from its rest reading before the main grasp."""
    return _most(view, 0.0, _main(view).close_s)


@signal("N", "force", 1.0, "as it is put down the force reaches {value} from rest")
def place_force_n(view: TakeView) -> float:
    """Largest distance of the force from its rest reading, from lowering to letting go."""
    grasp = _main(view)
    if not grasp.held or not grasp.released:
        return np.nan
    return _most(view, lift(grasp, view.tool)[1], grasp.open_s + RELEASE_S)


@signal("N", "force", 0.05, "lifting takes {value} more force than approaching")
def carry_force_n(view: TakeView) -> float:
    """Size of the force after lifting less that before the grasp: the weight of what is held."""
    record, wrench = view.take.telemetry, known(view.wrench)
    size = np.interp(known(view.motion).t_s, record.t_s, np.linalg.norm(wrench[:, :3], axis=1))
    return lifting(view, lambda _arm: size)

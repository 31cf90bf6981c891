"""Signals of contact: what is felt as an attempt approaches, grasps, holds and places.

A touch sensor's readings are summed. They are taken relative to their most in the grasp, so that a
gripper's own current, where there is no sensor, can stand for them; see `pressing`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.signals.grip import lifting
from gaploop.failure_analysis.signals.motion import quiet_stretch
from gaploop.failure_analysis.signals.registry import known, signal
from gaploop.failure_analysis.views.phases import RELEASE_S, Grasp, lift, main_grasp
from gaploop.failure_analysis.views.view import TakeView

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


def touched(view: TakeView) -> Contact:
    """Return the main grasp as a touch sensor feels it."""
    grasp = known(main_grasp(known(view.motion)))
    return contact(view.take.telemetry.t_s, known(view.touch), grasp)


def pressing(view: TakeView) -> dict[str, float]:
    """Return the main grasp as the gripper's own current feels it, or its load; {} without.

    By names of signals, with what they are by: `touch_share:gripper_current`. When it let go isn't
    told: to open takes current, too.
    """
    motion = known(view.motion)
    grasp, record = known(main_grasp(motion)), view.take.telemetry
    joint = motion.joints[grasp.gripper]
    for quantity in ("current_a", "load_pct"):
        for arm in sorted(record.arms(), key=lambda name: name != "follower"):
            felt = np.abs(record.columns.get(f"{arm}.{joint}.{quantity}", np.empty(0)))
            if np.isfinite(felt).any():
                found = contact(record.t_s, felt, grasp)
                own = {"onset_s": found.onset_s, "slope": found.slope, "share": found.share}
                by = f"gripper_{quantity.partition('_')[0]}"
                return {f"touch_{name}:{by}": value for name, value in own.items()}
    return {}


@signal("s", "touch", 0.02, "the jaws touch something {value} after they begin to close")
def touch_onset_s(view: TakeView) -> float:
    """From the command to close to the first touch: a tenth of the most."""
    return touched(view).onset_s


@signal("", "touch", 0.2, "the jaws press with at most {value}, as the sensor counts")
def touch_peak(view: TakeView) -> float:
    """Most that is felt in the main grasp above what is read before it."""
    return touched(view).peak


@signal("1/s", "touch", 0.5, "the pressing rises by {value} of its most")
def touch_slope(view: TakeView) -> float:
    """How fast pressing rises from a tenth to nine tenths of its most."""
    return touched(view).slope


@signal("share", "touch", 0.1, "the jaws press for {value} of the closure")
def touch_share(view: TakeView) -> float:
    """Share of the closed time, from the first touch on, with over 30 % of the most."""
    return touched(view).share


@signal("s", "touch", 0.02, "the jaws let go {value} after they begin to open")
def touch_release_s(view: TakeView) -> float:
    """From the command to open until under a tenth of the most is felt."""
    return touched(view).release_s


def _force_n(view: TakeView) -> FloatArray:
    wrench = known(view.wrench)
    return np.asarray(np.linalg.norm((wrench - quiet_stretch(wrench)[0])[:, :3], axis=1))


def _most(view: TakeView, start_s: float, end_s: float) -> float:
    t_s, force_n = view.take.telemetry.t_s, _force_n(view)
    inside = force_n[(t_s >= start_s) & (t_s <= end_s)]
    return float(np.nanmax(inside)) if np.isfinite(inside).any() else np.nan


@signal("N", "force", 1.0, "on the way to the grasp the force reaches {value} from rest")
def approach_force_n(view: TakeView) -> float:
    """Largest distance of the force from its rest reading before the main grasp."""
    return _most(view, 0.0, known(main_grasp(known(view.motion))).close_s)


@signal("N", "force", 1.0, "as it is put down the force reaches {value} from rest")
def place_force_n(view: TakeView) -> float:
    """Largest distance of the force from its rest reading, from lowering to letting go."""
    grasp = known(main_grasp(known(view.motion)))
    if not grasp.held or not grasp.released:
        return np.nan
    return _most(view, lift(grasp, view.tool)[1], grasp.open_s + RELEASE_S)


@signal("N", "force", 0.05, "lifting takes {value} more force than approaching")
def carry_force_n(view: TakeView) -> float:
    """Size of the force after lifting less that before the grasp: the weight of what is held."""
    record, wrench = view.take.telemetry, known(view.wrench)
    size = np.interp(known(view.motion).t_s, record.t_s, np.linalg.norm(wrench[:, :3], axis=1))
    return lifting(view, lambda _arm: size)

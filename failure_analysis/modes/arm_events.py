"""What happened to an arm, from commands, readings and motor loads: pressing, shaking, drift, rest.

The definitions are those of docs/diagnose/diagnosis.md, as far as a real robot shows them.
Thresholds are angles and times of a tabletop arm, or multiples of the take's own noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import FailureMode
from gaploop.failure_analysis.signals.registry import Evidence
from gaploop.failure_analysis.views.view import ArmMotion, TakeView, runs

M = FailureMode
PRESSING_SHARE: Final = 0.88
"""Of the stall load, meant over `LOAD_S`. Free motion of the SO-101 cell, whose servos are stiff
and saturate while they speed up, stays below 0.80."""
LOAD_S: Final = 0.20
PUSHED_RAD: Final = math.radians(1.5)
"""A joint that is pushed stands further off its command than usual in the take by this much."""
USUAL_PERCENTILE: Final = 20
"""Low, because an arm that is blocked early stands off its command for most of the take."""
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


def pushed_rad(motion: ArmMotion) -> FloatArray:
    """Return how far each arm joint stands off its delayed command, (n, n_arm_joints), over 50 ms.

    Beyond what is usual, a low percentile of the take: play and weak drives are there all the time.
    """
    off = np.abs(_smooth(motion.residual_rad[:, motion.arm_joints], round(0.05 * motion.rate_hz)))
    return np.asarray(np.maximum(off - np.percentile(off, USUAL_PERCENTILE, axis=0), 0.0))


def contacts(motion: ArmMotion, load_share: FloatArray | None) -> list[Event]:
    """Return where something pressed on the arm: collisions and obstructions, oldest first.

    `load_share` is as of the function; without it standing off the command has to tell.
    """
    pushed = pushed_rad(motion)
    if load_share is None:
        pressing = np.any(pushed > DISPLACED_RAD, axis=1)
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
    bends = np.abs(np.diff(read, 2, axis=0))
    noise = np.median(bends, axis=0) if len(bends) else np.zeros(read.shape[1])
    found = list[tuple[float, float, float]]()
    for column, q in enumerate(read.T):
        least = max(SHAKE_RAD, 12.0 * float(noise[column]))
        turns = np.sort(np.concatenate([find_peaks(s, prominence=least)[0] for s in (q, -q)]))
        t_s = motion.t_s[turns]
        for k in range(len(turns) - TURNS + 1):
            if np.diff(t_s[k : k + TURNS]).max() <= TURN_S:
                swing = float(np.median(np.abs(np.diff(q[turns[k : k + TURNS]]))))
                found.append((float(t_s[k + 1]), float(t_s[k + TURNS - 1]), swing))
    if not found:
        return None
    start_s, end_s, swing = min(found)
    rate_hz = 0.5 * (TURNS - 2) / max(end_s - start_s, 1e-3)
    for other in sorted(found):
        end_s = max(end_s, other[1]) if other[0] <= end_s else end_s
    message = (
        f"a joint swings back and forth by {math.degrees(swing):.1f}°, {rate_hz:.1f} times a second"
    )
    return Event(M.OSCILLATION, start_s, end_s, Evidence("swing_rad", swing, "rad", message))


def drifting(motion: ArmMotion, touched: list[Event]) -> Event | None:
    """Return when a joint that nothing touches first stood far off its command, or None."""
    off = motion.residual_rad[:, motion.arm_joints]
    nearing = -np.sign(off) * motion.velocity_rad_s[:, motion.arm_joints]
    same = (np.diff(motion.position_rad, axis=0) == 0).all(axis=1)
    repeats = np.r_[False, same & (np.diff(motion.sent_rad, axis=0) != 0).any(axis=1)]
    far = np.any((np.abs(off) > DRIFT_RAD) & (nearing < CLOSING_RAD_S), axis=1)
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

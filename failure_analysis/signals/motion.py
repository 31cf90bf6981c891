"""Signals of the arm: what was commanded against what was read, how it moved, what drives drew."""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.signals.registry import known, signal
from gaploop.failure_analysis.views.view import MOVING_RAD_S, SLOW_RAD_S, ArmMotion, TakeView, runs

SHAKE_HZ: Final = 2.5
"""An arm that is told to move smoothly has little motion above this [Hz]."""
STILL_RAD_S: Final = 0.05
"""Slower than this a joint stands."""
TURNING_RAD_S: Final = 0.1
"""A direction change counts between motions faster than this, so that noise doesn't."""
TRANSIENT_S: Final = 0.04
"""Time over which a change counts as sudden: two policy frames at 50 Hz."""
STEP_S: Final = 0.04
"""Path lengths are taken over steps this long, so that noise adds little to them."""


def _joint_median(values: FloatArray, mask: NDArray[np.bool_]) -> FloatArray:
    """Median of each joint's masked values, shape (n_joints,), NaN where there are too few."""
    columns = zip(values.T, mask.T, strict=True)
    return np.array([np.median(v[m]) if m.sum() >= 10 else np.nan for v, m in columns])


def _largest(values: FloatArray) -> float:
    return float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else np.nan


@lru_cache(maxsize=8)
def high_pass_filter(rate_hz: float) -> tuple[FloatArray, FloatArray]:
    """Return numerator and denominator of a second-order Butterworth high pass."""
    from scipy.signal import butter

    b, a = butter(2, min(SHAKE_HZ, 0.4 * rate_hz), "high", fs=rate_hz)
    return np.asarray(b, dtype=np.float64), np.asarray(a, dtype=np.float64)


def shaking_rad_s(values_rad: FloatArray, rate_hz: float) -> FloatArray:
    """Return the part of the speed of `values_rad`, shape (n, k), above `SHAKE_HZ` [rad/s].

    Backward differences, then a causal filter: a running rollout has the same numbers.
    """
    from scipy.signal import lfilter

    speed = np.diff(values_rad, axis=0, prepend=values_rad[:1]) * rate_hz
    return np.asarray(lfilter(*high_pass_filter(round(rate_hz, 6)), speed, axis=0))


def longest_run(flags: NDArray[np.bool_]) -> int:
    """Return the length of the longest stretch in which `flags`, shape (n,), hold."""
    starts, stops = runs(flags)
    return int((stops - starts).max(initial=0))


@signal("s", "motion", 0.003, "motion follows the command {value} late")
def lag_s(view: TakeView) -> float:
    """Delay from command to reading: peak of the cross-correlation of their speeds."""
    motion = known(view.motion)
    return motion.lag_samples / motion.rate_hz


@signal("rad", "motion", 0.003, "joints miss their command by {value} rms")
def tracking_rms_rad(view: TakeView) -> float:
    """Root mean square of reading minus command over the arm's joints, lag included."""
    motion = known(view.motion)
    error = (motion.position_rad - motion.sent_rad)[:, motion.arm_joints]
    return float(np.sqrt(np.mean(error**2)))


@signal("rad", "motion", 0.002, "joint readings stand {value} off the command at rest")
def rest_offset_rad(view: TakeView) -> float:
    """Largest median difference between reading and command of a joint that stands still."""
    motion = known(view.motion)
    medians = _joint_median(motion.residual_rad, motion.slow)
    return _largest(medians[motion.arm_joints])


@signal("rad", "motion", 0.004, "readings drift by {value} over the episode")
def drift_rad(view: TakeView) -> float:
    """Largest change of a joint's rest offset between the first and last third of the take."""
    motion = known(view.motion)
    n = len(motion.t_s)
    first, last = motion.slow.copy(), motion.slow.copy()
    first[n // 3 :], last[: -n // 3] = False, False
    change = _joint_median(motion.residual_rad, last) - _joint_median(motion.residual_rad, first)
    return _largest(change[motion.arm_joints])


@signal("rad", "motion", 0.0006, "readings of a resting joint jitter by {value}")
def jitter_rad(view: TakeView) -> float:
    """Spread of the readings' second difference, scaled to one reading, while the command rests.

    By the 75th percentile, so that bumps and settling don't count as noise. A late arm still moves
    when its command has come to rest.
    """
    motion = known(view.motion)
    bend = np.diff(motion.position_rad, 2, axis=0) / np.sqrt(6.0)
    late = 0 if np.isnan(motion.lag_samples) else round(motion.lag_samples)
    moved = np.cumsum(np.abs(motion.sent_velocity_rad_s) >= SLOW_RAD_S, axis=0)
    before = np.concatenate([np.zeros((late + 1, moved.shape[1])), moved])[: len(moved)]
    quiet = (moved == before)[1:-1]  # now, and as long before as the arm is late
    spreads = [
        np.percentile(np.abs(bend[quiet[:, j], j]), 75) / 1.15
        for j in motion.arm_joints
        if quiet[:, j].sum() >= 10
    ]
    return float(np.median(spreads)) if spreads else np.nan


@signal("rad", "motion", 0.0004, "readings come in steps of {value}")
def quantum_rad(view: TakeView) -> float:
    """Step of the readings: median gap between the distinct values that a moving joint shows."""
    motion = known(view.motion)
    columns = motion.position_rad[:, motion.arm_joints].T
    steps = [step_of(column) for column in columns if np.ptp(column) > 0.1]
    return float(np.median(steps)) if steps else np.nan


def step_of(readings: FloatArray) -> float:
    """Return by what readings differ at least, mostly; 0 where they are all the same."""
    values = np.unique(np.round(readings, 7))
    return float(np.percentile(np.diff(values), 20)) if len(values) > 1 else 0.0


@signal("share", "motion", 0.01, "{value} of the readings repeat while moving")
def repeat_share(view: TakeView) -> float:
    """Share of samples equal in every joint to the one before, while the arm moves."""
    motion = known(view.motion)
    moving = np.abs(motion.velocity_rad_s[1:]).max(axis=1) > MOVING_RAD_S
    same = (np.diff(motion.position_rad, axis=0) == 0).all(axis=1)
    return float(same[moving].mean()) if moving.sum() >= 20 else np.nan


@signal("share", "motion", 0.005, "{value} of the readings are missing")
def dropout_share(view: TakeView) -> float:
    """Share of samples in which some joint's reading is missing."""
    record = view.take.telemetry
    stacks = [record.stack(arm, "position_rad") for arm in record.arms()]
    seen = [s for s in stacks or [view.take.frames.state] if s.size and np.isfinite(s).any()]
    return float(np.mean([(~np.isfinite(s)).any(axis=1).mean() for s in seen])) if seen else np.nan


@signal("rad", "motion", 0.003, "after reversing, joints stop {value} apart")
def backlash_rad(view: TakeView) -> float:
    """Difference of the rest offset by the direction a joint came from, second largest joint."""
    motion = known(view.motion)
    direction = np.where(
        np.abs(motion.sent_velocity_rad_s) > 0.1, np.sign(motion.sent_velocity_rad_s), np.nan
    )
    rows = np.where(np.isnan(direction), 0, np.arange(len(direction))[:, None])
    came = np.take_along_axis(direction, np.maximum.accumulate(rows, axis=0), axis=0)
    up = _joint_median(motion.residual_rad, motion.slow & (came > 0))
    down = _joint_median(motion.residual_rad, motion.slow & (came < 0))
    gaps = np.sort(np.abs((down - up)[motion.arm_joints]))
    gaps = gaps[np.isfinite(gaps)]
    return float(gaps[-2:].min()) if len(gaps) else np.nan


@signal("", "motion", 0.02, "joints reach {value} of the commanded speed")
def speed_gain(view: TakeView) -> float:
    """Fastest reading over fastest command (99th percentiles), of the fastest-driven joints."""
    motion = known(view.motion)
    asked = np.percentile(np.abs(motion.sent_velocity_rad_s), 99, axis=0)[motion.arm_joints]
    done = np.percentile(np.abs(motion.velocity_rad_s), 99, axis=0)[motion.arm_joints]
    fast = asked > max(MOVING_RAD_S, 0.5 * float(asked.max()))
    return float(np.median(done[fast] / asked[fast])) if fast.any() else np.nan


@signal("rad", "motion", 0.001, "the arm shakes by {value} rms")
def oscillation_rad(view: TakeView) -> float:
    """Rms of the readings above about 2.5 Hz beyond what the command asked for."""
    from scipy.ndimage import uniform_filter1d

    motion = known(view.motion)
    width, shake = max(3, round(0.4 * motion.rate_hz)), list[float]()
    for values in (motion.position_rad, motion.sent_rad):
        arm = values[:, motion.arm_joints]
        rest = arm - uniform_filter1d(arm, width, axis=0)
        shake.append(float(np.sqrt(np.mean(rest**2))))
    return float(np.sqrt(max(0.0, shake[0] ** 2 - shake[1] ** 2)))


def _turns_hz(motion: ArmMotion, velocity_rad_s: FloatArray) -> float:
    """Direction changes per second of the arm joint that has most of them."""
    arm = velocity_rad_s[:, motion.arm_joints].T
    counts = [np.count_nonzero(np.diff(np.sign(v[np.abs(v) > TURNING_RAD_S]))) for v in arm]
    return float(max(counts) / max(motion.t_s[-1] - motion.t_s[0], 1e-3))


@signal("Hz", "motion", 0.2, "joints turn round at {value}")
def reversals_hz(view: TakeView) -> float:
    """Direction changes of the readings per second, of the joint that has most of them."""
    motion = known(view.motion)
    return _turns_hz(motion, motion.velocity_rad_s)


@signal("s", "motion", 0.05, "a joint stands short of its command for {value}")
def stall_s(view: TakeView) -> float:
    """Longest time a joint stands still over 4 degrees short of a resting command."""
    motion = known(view.motion)
    short = motion.slow & (np.abs(motion.residual_rad) > np.deg2rad(4.0))
    return longest_run(short[:, motion.arm_joints].any(axis=1)) / motion.rate_hz


@signal("s", "motion", 0.3, "the arm stands still for the last {value}")
def idle_end_s(view: TakeView) -> float:
    """Time from the last motion of any joint to the end of the take."""
    motion = known(view.motion)
    moving = np.flatnonzero((np.abs(motion.velocity_rad_s) > 0.05).any(axis=1))
    last = motion.t_s[moving[-1]] if len(moving) else motion.t_s[0]
    return float(motion.t_s[-1] - last)


@signal("", "motion", 0.05, "joints travel {value} times the commanded path")
def path_ratio(view: TakeView) -> float:
    """Length of the joint path read over the length of the path commanded."""
    motion = known(view.motion)
    lengths = [
        np.abs(np.diff(values[::5, motion.arm_joints], axis=0)).sum()
        for values in (motion.position_rad, motion.sent_rad)
    ]
    return float(lengths[0] / lengths[1]) if lengths[1] > 0.2 else np.nan


def _peak(values: FloatArray, percentile: float) -> float:
    """Percentile over time of the largest absolute column; NaN where nothing is known."""
    seen = values[np.isfinite(values).any(axis=1)]
    return (
        float(np.percentile(np.nanmax(np.abs(seen), axis=1), percentile)) if len(seen) else np.nan
    )


@signal("A", "currents", 0.02, "a motor draws up to {value}")
def peak_current_a(view: TakeView) -> float:
    """99.5th percentile of the largest absolute motor current."""
    return _peak(known(view.currents_a), 99.5)


@signal("rad²/s²", "motion", 0.002, "the arm shakes with {value} of squared speed")
def oscillation_energy_rad2_s2(view: TakeView) -> float:
    """Mean squared speed above 2.5 Hz, summed over arm joints, beyond what the command has.

    Twice the kinetic energy per unit of inertia; second-order Butterworth high pass.
    """
    motion = known(view.motion)
    sent = shaking_rad_s(motion.sent_rad[:, motion.arm_joints], motion.rate_hz)
    read = shaking_rad_s(motion.position_rad[:, motion.arm_joints], motion.rate_hz)
    return max(0.0, float((read**2).sum(axis=1).mean() - (sent**2).sum(axis=1).mean()))


@signal("Hz", "motion", 0.2, "the command turns round at {value}")
def command_reversals_hz(view: TakeView) -> float:
    """Direction changes of the command per second, of the joint that has most: dithering."""
    motion = known(view.motion)
    return _turns_hz(motion, motion.sent_velocity_rad_s)


@signal("s", "motion", 0.1, "nothing moves for {value}")
def standstill_s(view: TakeView) -> float:
    """Longest time for which neither the arm nor the gripper moves."""
    motion = known(view.motion)
    still = np.asarray((np.abs(motion.velocity_rad_s) <= STILL_RAD_S).all(axis=1))
    return longest_run(still) / motion.rate_hz


@signal("rad", "motion", 0.2, "the joints travel {value}")
def joint_path_rad(view: TakeView) -> float:
    """Way of the readings, summed over the arm's joints, in steps of 40 ms."""
    motion = known(view.motion)
    every = max(1, round(STEP_S * motion.rate_hz))
    return float(np.abs(np.diff(motion.position_rad[::every, motion.arm_joints], axis=0)).sum())


def _sudden(values: FloatArray, rate_hz: float) -> float:
    """Return the rms over time of the largest column's change within `TRANSIENT_S`."""
    steps = max(1, round(TRANSIENT_S * rate_hz))
    change = np.abs(values[steps:] - values[:-steps])
    change = change[np.isfinite(change).any(axis=1)]
    return float(np.sqrt(np.mean(np.nanmax(change, axis=1) ** 2))) if len(change) else np.nan


@signal("A", "currents", 0.03, "motor currents change by {value} within 40 ms")
def current_jump_a(view: TakeView) -> float:
    """Rms over time of the largest change of an arm motor's current within 40 ms: transients.

    Impacts, jams that let go, a controller that hunts; the gripper, which stalls to hold, aside.
    """
    motion = known(view.motion)
    return _sudden(motion.current_a[:, motion.arm_joints], motion.rate_hz)


@signal("A", "currents", 0.03, "the motors draw {value} together")
def effort_a(view: TakeView) -> float:
    """Mean over the take of the summed absolute motor currents."""
    current_a = known(view.motion).current_a
    seen = np.isfinite(current_a).any()
    return float(np.nansum(np.abs(current_a), axis=1).mean()) if seen else np.nan


@signal("%", "loads", 2.0, "an arm drive is loaded by {value} of its stall")
def load_peak_pct(view: TakeView) -> float:
    """95th percentile of the largest absolute load of an arm drive, in per cent of stall."""
    return _peak(known(view.loads_pct), 95)


@signal("%", "loads", 2.0, "drive loads change by {value} within 40 ms")
def load_jump_pct(view: TakeView) -> float:
    """Rms over time of the largest change of an arm drive's load within 40 ms, sign included.

    A torque transient, where drives report torque and not current.
    """
    return _sudden(known(view.loads_pct), known(view.motion).rate_hz)


QUIET_SAMPLES: Final = 5
"""As many samples in a row, the quietest of the episode, say what a force sensor reads at rest."""


def quiet_stretch(wrench: FloatArray) -> tuple[FloatArray, float]:
    """Return mean [N, N m], shape (6,), and force spread [N] of the quietest few samples."""
    wrench = wrench[np.isfinite(wrench).all(axis=1)]
    n = min(QUIET_SAMPLES, len(wrench))
    starts = range(len(wrench) - n + 1)
    spreads = [float(np.linalg.norm(wrench[s : s + n, :3].std(axis=0))) for s in starts]
    best = int(np.argmin(spreads))
    return wrench[best : best + n].mean(axis=0), spreads[best]


@signal("N", "force", 1.0, "force reaches {value} from rest")
def force_peak_n(view: TakeView) -> float:
    """Largest distance of the force from its rest reading."""
    wrench = known(view.wrench)
    away = np.linalg.norm((wrench - quiet_stretch(wrench)[0])[:, :3], axis=1)
    return float(np.nanmax(away))

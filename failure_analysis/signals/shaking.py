"""Signals of how the arm moves: shaking, transients, standing about, detours."""

from __future__ import annotations

from typing import Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.signals.filters import SHAKE_HZ, high_pass, speed
from gaploop.failure_analysis.signals.registry import signal
from gaploop.failure_analysis.views.phases import grasps
from gaploop.failure_analysis.views.view import ArmMotion, TakeView

NAN = float("nan")
STILL_RAD_S: Final = 0.05
"""Slower than this a joint stands."""
TURNING_RAD_S: Final = 0.1
"""A direction change counts between motions faster than this, so that noise doesn't."""
SHAKING_RAD_S: Final = 0.05
"""Rms speed above 2.5 Hz below which there is no oscillation whose frequency could be told."""
TRANSIENT_S: Final = 0.04
"""Time over which a change counts as sudden: two policy frames at 50 Hz."""
STEP_S: Final = 0.04
"""Path lengths are taken over steps this long, so that noise adds little to them."""


def shaking_rad_s(motion: ArmMotion) -> FloatArray:
    """Return the speed of the arm's joints above 2.5 Hz [rad/s], shape (n, n_arm_joints)."""
    read = motion.position_rad[:, motion.arm_joints]
    return high_pass(speed(read, motion.rate_hz), motion.rate_hz)


@signal(
    "tracking_peak_rad", "rad", "motion", 0.004,
    "a joint stands up to {value} from where its command is, lag taken out",
)  # fmt: skip
def tracking_peak_rad(view: TakeView) -> float:
    """99th percentile over time of the largest arm joint's reading minus delayed command."""
    motion = view.motion
    if motion is None:
        return NAN
    return float(np.percentile(np.abs(motion.residual_rad[:, motion.arm_joints]).max(axis=1), 99))


@signal(
    "oscillation_energy_rad2_s2", "rad²/s²", "motion", 0.002,
    "the arm shakes with {value} of squared speed",
)  # fmt: skip
def oscillation_energy_rad2_s2(view: TakeView) -> float:
    """Mean squared speed above 2.5 Hz, summed over arm joints, beyond what the command has.

    Twice the kinetic energy per unit of inertia; second-order Butterworth high pass.
    """
    motion = view.motion
    if motion is None:
        return NAN
    sent = high_pass(speed(motion.sent_rad[:, motion.arm_joints], motion.rate_hz), motion.rate_hz)
    read = shaking_rad_s(motion)
    return max(0.0, float((read**2).sum(axis=1).mean() - (sent**2).sum(axis=1).mean()))


@signal("oscillation_hz", "Hz", "motion", 0.3, "the arm shakes at {value}")
def oscillation_hz(view: TakeView) -> float:
    """Frequency of most power of the readings' error above 2.5 Hz; NaN where nothing shakes.

    Periodogram with a Hann window over the take, summed over arm joints.
    """
    motion = view.motion
    if motion is None:
        return NAN
    error = motion.residual_rad[:, motion.arm_joints]
    shake = high_pass(speed(error, motion.rate_hz), motion.rate_hz)
    if float(np.sqrt((shake**2).sum(axis=1).mean())) < SHAKING_RAD_S:
        return NAN
    power = np.abs(np.fft.rfft(shake * np.hanning(len(shake))[:, None], axis=0)) ** 2
    hz = np.fft.rfftfreq(len(shake), 1.0 / motion.rate_hz)
    inside = (hz >= SHAKE_HZ) & (hz <= 0.3 * motion.rate_hz)  # above is quantisation, not motion
    total = np.where(inside, power.sum(axis=1), 0.0)
    return float(hz[int(np.argmax(total))])


@signal(
    "command_reversals_hz", "Hz", "motion", 0.2, "the command turns round {value} times a second"
)
def command_reversals_hz(view: TakeView) -> float:
    """Direction changes of the command per second, of the joint that has most: dithering."""
    motion = view.motion
    if motion is None:
        return NAN
    velocity = motion.sent_velocity_rad_s[:, motion.arm_joints]
    counts = [np.count_nonzero(np.diff(np.sign(v[np.abs(v) > TURNING_RAD_S]))) for v in velocity.T]
    return float(max(counts) / max(motion.t_s[-1] - motion.t_s[0], 1e-3))


@signal("standstill_s", "s", "motion", 0.1, "nothing moves for {value}")
def standstill_s(view: TakeView) -> float:
    """Longest time for which neither the arm nor the gripper moves."""
    motion = view.motion
    if motion is None:
        return NAN
    still = (np.abs(motion.velocity_rad_s) <= STILL_RAD_S).all(axis=1)
    edges = np.flatnonzero(np.diff(np.r_[0, still.astype(np.int8), 0]))
    return float((edges[1::2] - edges[::2]).max(initial=0)) / motion.rate_hz


@signal("joint_path_rad", "rad", "motion", 0.2, "the joints travel {value}")
def joint_path_rad(view: TakeView) -> float:
    """Way of the readings, summed over the arm's joints, in steps of 40 ms."""
    motion = view.motion
    if motion is None:
        return NAN
    every = max(1, round(STEP_S * motion.rate_hz))
    return float(np.abs(np.diff(motion.position_rad[::every, motion.arm_joints], axis=0)).sum())


@signal("path_efficiency", "share", "motion", 0.03, "the direct way is {value} of the tool's")
def path_efficiency(view: TakeView) -> float:
    """Straight way of the tool between start, closings and openings over the way it took.

    The last leg ends where the take does.
    """
    motion, tool = view.motion, view.tool
    if motion is None or tool is None:
        return NAN
    times = sorted({0.0, *(t for g in grasps(motion) for t in (g.close_s, g.open_s))})
    places = np.stack([*(tool.at(t) for t in times), tool.read_m[-1]])
    direct = float(np.linalg.norm(np.diff(places, axis=0), axis=1).sum())
    taken = float(np.linalg.norm(np.diff(tool.read_m, axis=0), axis=1).sum())
    return direct / taken if taken > 0.02 else NAN


def _sudden(values: FloatArray, rate_hz: float) -> float:
    """Return the rms over time of the largest column's change within `TRANSIENT_S`."""
    steps = max(1, round(TRANSIENT_S * rate_hz))
    change = np.abs(values[steps:] - values[:-steps])
    change = change[np.isfinite(change).any(axis=1)]
    return float(np.sqrt(np.mean(np.nanmax(change, axis=1) ** 2))) if len(change) else NAN


@signal("current_jump_a", "A", "currents", 0.03, "motor currents change by {value} within 40 ms")
def current_jump_a(view: TakeView) -> float:
    """Rms over time of the largest change of an arm motor's current within 40 ms: transients.

    Impacts, jams that let go, a controller that hunts; the gripper, which stalls to hold, aside.
    """
    motion = view.motion
    if motion is None or not np.isfinite(motion.current_a).any():
        return NAN
    return _sudden(motion.current_a[:, motion.arm_joints], motion.rate_hz)


@signal("effort_a", "A", "currents", 0.03, "the motors draw {value} together")
def effort_a(view: TakeView) -> float:
    """Mean over the take of the summed absolute motor currents."""
    motion = view.motion
    if motion is None or not np.isfinite(motion.current_a).any():
        return NAN
    return float(np.nansum(np.abs(motion.current_a), axis=1).mean())


@signal("load_peak_pct", "%", "loads", 2.0, "an arm drive is loaded by {value} of its stall")
def load_peak_pct(view: TakeView) -> float:
    """95th percentile of the largest absolute load of an arm drive, in per cent of stall."""
    loads = view.loads_pct
    if loads is None:
        return NAN
    known = np.abs(loads[np.isfinite(loads).any(axis=1)])
    return float(np.percentile(np.nanmax(known, axis=1), 95))


@signal("load_jump_pct", "%", "loads", 2.0, "drive loads change by {value} within 40 ms")
def load_jump_pct(view: TakeView) -> float:
    """Rms over time of the largest change of an arm drive's load within 40 ms, sign included.

    A torque transient, where drives report torque and not current.
    """
    loads, motion = view.loads_pct, view.motion
    return NAN if loads is None or motion is None else _sudden(loads, motion.rate_hz)

"""How late things are, by cross-correlation, with an interval: an arm, and a camera's pictures.

From command to motion: the velocities of what was sent and of what the servos report are shifted
against each other until they agree best. The peak is found between samples. What is measured is
dead time plus the servo's own lag, as one shift. Two things that are the loop's and not the arm's
are taken off: a goal is held until the next one, half a period on average; and it leaves
`loop.latency_s` after its turn's positions were read.

A camera's pictures change as fast as the arm in them moves. The mean change between two pictures,
placed midway between them, is correlated with the speed of the joints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.ndimage import gaussian_filter1d

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Image
from gaploop.core.telemetry import Telemetry

SEGMENT_S: Final = 1.0
"""Length of the pieces that are correlated, and resampled for the interval [s]."""
EARLIEST_S: Final = -0.1
LATEST_S: Final = 0.5
"""Where the shift is looked for [s]."""
BOOTSTRAPS: Final = 400
INTERVAL: Final = (2.5, 97.5)
"""Percentiles of the 95 % interval."""
MIN_MOTION_RAD: Final = 0.03
"""A piece in which a joint was sent through less than this says nothing (20 ticks of 4096)."""
MIN_CORRELATION: Final = 0.8
MIN_SEGMENTS: Final = 6
SMOOTH_S: Final = 0.012
"""Both signals are smoothed alike: it moves no peak, and encoder steps make no velocity."""
MIN_PICTURE_CORRELATION: Final = 0.5
"""Pictures show other motion too, and some joints more than others."""
MIN_SPEED_RAD_S: Final = 0.1
STEPS: Final = 6
"""Grid points per picture: the peak lies between pictures."""


@dataclass(frozen=True)
class Lag:
    """One shift between two signals, with its 95 % interval by bootstrap over `segments` pieces."""

    latency_s: float
    interval_s: tuple[float, float]
    correlation: float
    segments: int


@dataclass(frozen=True)
class JointMotion:
    """What was sent to joints and where they were [rad], (n, n_joints), at rising times, (n,).

    `position_rad` is NaN where none came; `send_delay_s` is from reading them to sending goals.
    """

    t_s: FloatArray
    sent_rad: FloatArray
    position_rad: FloatArray
    joint_names: tuple[str, ...]
    send_delay_s: float = 0.0

    @classmethod
    def of(cls, telemetry: Telemetry, arm: str = "") -> JointMotion:
        """Return the motion of `arm`, or of the only one; UnusableInputError without such a one."""
        arms = [a for a in telemetry.arms() if np.isfinite(telemetry.stack(a, "sent_rad")).any()]
        if not arm and len(arms) == 1:
            arm = arms[0]
        if arm not in arms:
            known = ", ".join(arms) or "none"
            raise UnusableInputError(
                f"The telemetry has no commands to an arm {arm!r} (arms: {known}). Name one with "
                "--arm_name."
            )
        delay = telemetry.columns.get("loop.latency_s", np.empty(0))
        known_delay = delay[np.isfinite(delay)]
        return cls(
            telemetry.t_s,
            telemetry.stack(arm, "sent_rad"),
            telemetry.stack(arm, "position_rad"),
            telemetry.joints(arm),
            float(np.median(known_delay)) if len(known_delay) else 0.0,
        )


@dataclass(frozen=True)
class LatencyResult:
    """How late an arm follows: the median joint, every joint, and why those `skipped` don't say."""

    overall: Lag
    joints: dict[str, Lag]
    skipped: dict[str, str]
    rate_hz: float

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            **asdict(self.overall),
            "rate_hz": self.rate_hz,
            "joints": {name: asdict(lag) for name, lag in self.joints.items()},
        }


def measure_latency(motions: Sequence[JointMotion]) -> LatencyResult:
    """Measure how late an arm follows what it is sent, by one record or more; 20 s of chirp do.

    Raises:
        UnusableInputError: too little motion, or no joint follows what it is sent.
    """
    names = motions[0].joint_names
    period_s = float(np.median(np.concatenate([np.diff(m.t_s) for m in motions])))
    if not period_s > 0:
        raise UnusableInputError("The record has no two turns at different times. Record again.")
    # A held goal acts like one that is sent half a period later.
    held_s = period_s / 2 + float(np.median([m.send_delay_s for m in motions]))
    pieces: dict[str, Pieces] = {}
    skipped: dict[str, str] = {}
    for j, name in enumerate(names):
        found = []
        for m in motions:
            grid_s = np.arange(m.t_s[0], m.t_s[-1], period_s)
            goal = resampled(m.t_s, m.sent_rad[:, j], grid_s)
            response = resampled(m.t_s, m.position_rad[:, j], grid_s)
            speeds = _velocity(goal, period_s), _velocity(response, period_s)
            found.append(correlate(*speeds, goal, MIN_MOTION_RAD, period_s))
        joined = Pieces.join(found)
        best_s, correlation = joined.peak()
        if len(joined.driver) < MIN_SEGMENTS:
            skipped[name] = (
                f"moved in {len(joined.driver) * SEGMENT_S:.0f} s, "
                f"{MIN_SEGMENTS * SEGMENT_S:.0f} s are needed"
            )
        elif not correlation >= MIN_CORRELATION:
            skipped[name] = (
                f"doesn't follow (correlation {np.nan_to_num(correlation):.2f}): blocked or limp?"
            )
        elif not EARLIEST_S + 2 * period_s < best_s < LATEST_S - 2 * period_s:
            skipped[name] = f"no peak between {EARLIEST_S:g} and {LATEST_S:g} s"
        else:
            pieces[name] = joined
    if not pieces:
        words = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise UnusableInputError(
            f"No joint shows the latency ({words}). Move every joint by 5° or more for 10 s: "
            "gaploop calibrate latency --robot.type=… does it."
        )
    joints = {name: lag_of(part, n, held_s) for n, (name, part) in enumerate(pieces.items())}
    drawn = [part.peaks(draws(len(part.driver), n))[0] for n, part in enumerate(pieces.values())]
    low, high = np.percentile(np.median(drawn, axis=0) - held_s, INTERVAL)
    overall = Lag(
        float(np.median([lag.latency_s for lag in joints.values()])),
        (float(low), float(high)),
        float(np.median([lag.correlation for lag in joints.values()])),
        sum(lag.segments for lag in joints.values()),
    )
    return LatencyResult(overall, joints, skipped, 1.0 / period_s)


def _velocity(values: FloatArray, period_s: float) -> FloatArray:
    sigma = max(SMOOTH_S / period_s, 1.0)
    smooth = gaussian_filter1d(values, sigma, mode="nearest")
    return np.asarray(np.gradient(smooth, period_s), dtype=np.float64)


def picture_motion(images: Iterable[Image]) -> FloatArray:
    """Return the mean change from each picture to the next [grey levels], shape (n - 1,)."""
    before: Image | None = None
    changes = []
    for image in images:
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        small = cv2.resize(grey, (160, 120), interpolation=cv2.INTER_AREA)
        if before is not None:
            changes.append(float(np.abs(small.astype(np.int16) - before).mean()))
        before = small
    return np.array(changes)


def camera_latency(t_capture_s: FloatArray, change: FloatArray, motion: JointMotion) -> Lag:
    """Measure how late pictures are against the positions that the servos report.

    They were taken at `t_capture_s` [s], shape (n,), on the motion's clock; `change`, (n - 1,), is
    of `picture_motion`.

    Raises:
        UnusableInputError: too few pictures, too little motion, or no agreement.
    """
    # A picture that was recorded twice changes by nothing: its change is that of the next one.
    new = np.flatnonzero(np.concatenate([[True], np.diff(t_capture_s) > 1e-6]))
    if len(new) < 11:
        raise UnusableInputError(
            f"{len(new) - 1} different pictures are too few for a camera's latency. Record "
            f"{MIN_SEGMENTS * SEGMENT_S:g} s or more."
        )
    taken_s = t_capture_s[new]
    change = np.add.reduceat(np.append(0.0, change), new)[1:] / np.diff(taken_s)
    times = (taken_s[1:] + taken_s[:-1]) / 2
    step_s = float(np.median(np.diff(times))) / STEPS
    grid_s = np.arange(max(times[0], motion.t_s[0]), min(times[-1], motion.t_s[-1]), step_s)
    speed = np.zeros(len(grid_s))
    for j in range(motion.position_rad.shape[1]):
        q = resampled(motion.t_s, motion.position_rad[:, j], grid_s)
        # A change between two pictures is a mean over the time between them: so is the speed.
        speed += np.abs(np.gradient(gaussian_filter1d(q, STEPS / 2, mode="nearest"), step_s))

    shown = resampled(times, change, grid_s)
    pieces = correlate(speed, shown, speed, MIN_SPEED_RAD_S, step_s)
    if len(pieces.driver) < MIN_SEGMENTS:
        raise UnusableInputError(
            f"The arm moved in {len(pieces.driver) * SEGMENT_S:.0f} s of the pictures, "
            f"{MIN_SEGMENTS * SEGMENT_S:g} s are needed. Move it back and forth, with pauses."
        )
    lag = lag_of(pieces)
    if not lag.correlation >= MIN_PICTURE_CORRELATION:
        raise UnusableInputError(
            f"The pictures don't change as the arm moves (correlation "
            f"{np.nan_to_num(lag.correlation):.2f}). Is the arm in the picture, alone?"
        )
    return lag


@dataclass(frozen=True)
class Pieces:
    """Cross-correlations of pieces of two signals, the columns' shifts from `first` periods on.

    Attributes:
        products: sum of products at each shift, shape (pieces, shifts).
        driver: energy of the first signal, shape (pieces,).
        response: energy of the second at each shift, shape (pieces, shifts).
    """

    products: FloatArray
    driver: FloatArray
    response: FloatArray
    first: int
    period_s: float

    @classmethod
    def join(cls, parts: Sequence[Pieces]) -> Pieces:
        """Return the pieces of several records of one rate."""
        return cls(
            np.concatenate([p.products for p in parts]),
            np.concatenate([p.driver for p in parts]),
            np.concatenate([p.response for p in parts]),
            parts[0].first,
            parts[0].period_s,
        )

    def peak(self) -> tuple[float, float]:
        """Return the best shift over all pieces [s] and its correlation."""
        shifts_s, correlations = self.peaks(np.ones((1, len(self.driver))))
        return float(shifts_s[0]), float(correlations[0])

    def peaks(self, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the best shift [s] and correlation of each draw of `counts`, (draws, pieces)."""
        energy = (counts @ self.driver)[:, None] * (counts @ self.response)
        r = counts @ self.products / np.sqrt(np.maximum(energy, 1e-300))
        inner = r[:, 1:-1]
        top = (inner >= r[:, :-2]) & (inner >= r[:, 2:])
        best = np.where(top, inner, -np.inf).max(axis=1, keepdims=True)
        # Periodic motion agrees at several shifts: the nearest that is as good is the one.
        good = top & (inner >= 0.98 * best)
        shift = np.arange(1, r.shape[1] - 1) + self.first
        at = np.where(good, np.abs(shift), np.inf).argmin(axis=1)
        row = np.arange(len(r))
        before, here, after = r[row, at], r[row, at + 1], r[row, at + 2]
        bend = before - 2 * here + after
        # A parabola through the three: what is correlated is smooth over many periods.
        between = np.where(bend < 0, 0.5 * (before - after) / np.where(bend < 0, bend, 1.0), 0.0)
        found = here - 0.25 * (before - after) * between
        found = np.where(np.isfinite(best[:, 0]), found, np.nan)
        return (shift[at] + between) * self.period_s, found


def correlate(
    driver: FloatArray, response: FloatArray, mover: FloatArray, least: float, period_s: float
) -> Pieces:
    """Correlate pieces of two evenly sampled signals, shape (n,), where something moves.

    A piece counts where all of it is known and it spans `least` of `mover`, shape (n,).
    """
    n, length = len(driver), round(SEGMENT_S / period_s)
    first, last = round(EARLIEST_S / period_s), round(LATEST_S / period_s)
    products, energies, responses = [], [], []
    for start in range(-first, n - length - last, length):
        piece = slice(start, start + length)
        window = response[start + first : start + last + length]
        if not np.isfinite(window).all() or not np.ptp(mover[piece]) >= least:
            continue
        x = driver[piece] - driver[piece].mean()
        shifted = sliding_window_view(window, length)
        shifted = shifted - shifted.mean(axis=1, keepdims=True)
        products.append(shifted @ x)
        energies.append(float(x @ x))
        responses.append((shifted**2).sum(axis=1))
    width = last - first + 1
    return Pieces(
        np.array(products).reshape(-1, width),
        np.array(energies),
        np.array(responses).reshape(-1, width),
        first,
        period_s,
    )


def lag_of(pieces: Pieces, seed: int = 0, off_s: float = 0.0) -> Lag:
    """Return the shift between two signals with its interval; `off_s` [s] is taken off."""
    best_s, correlation = pieces.peak()
    low, high = np.percentile(pieces.peaks(draws(len(pieces.driver), seed))[0], INTERVAL)
    interval_s = float(low) - off_s, float(high) - off_s
    return Lag(best_s - off_s, interval_s, correlation, len(pieces.driver))


def draws(pieces: int, seed: int) -> FloatArray:
    """Return how often each piece counts in each bootstrap draw, shape (BOOTSTRAPS, pieces)."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(pieces, np.full(pieces, 1 / pieces), BOOTSTRAPS).astype(np.float64)


def resampled(t_s: FloatArray, values: FloatArray, grid_s: FloatArray) -> FloatArray:
    """Return values, shape (n,), at rising `t_s` [s] on an even grid [s]; NaN where a hole is."""
    good = np.isfinite(values)
    if good.sum() < 2:
        return np.full(len(grid_s), np.nan)
    times = t_s[good]
    even = np.interp(grid_s, times, values[good], left=np.nan, right=np.nan)
    after = np.clip(np.searchsorted(times, grid_s), 1, len(times) - 1)
    hole = times[after] - times[after - 1] > 5 * float(np.median(np.diff(times)))
    return np.asarray(np.where(hole, np.nan, even))

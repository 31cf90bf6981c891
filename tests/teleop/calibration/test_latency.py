"""Latency: shifts that are known, in synthetic records and in the embedded cell."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Image, LeaderSample, Tick
from gaploop.core.telemetry import Telemetry
from gaploop.sim.cell import CellClock, CellFollower, SimCell
from gaploop.sim.gaps import draw_gaps
from gaploop.sim.scene import TIMESTEP_S
from gaploop.teleop.calibration.latency import (
    JointMotion,
    LatencyResult,
    camera_latency,
    measure_latency,
    picture_motion,
)
from gaploop.teleop.loop import Rates, run_turns
from gaploop.teleop.safety import make_safety

NAMES = ("pan", "lift", "roll")
ENCODER_RAD = 2 * math.pi / 4096


def followed(
    delay_s: float,
    *,
    rate_hz: float = 200.0,
    lag_s: float = 0.008,
    duration_s: float = 14.0,
    jitter_s: float = 0.0,
    seed: int = 0,
) -> JointMotion:
    """Return an arm that follows held goals after a dead time and a first-order lag.

    Simulated in steps of 0.1 ms, read through an encoder of 4096 steps a turn.
    """
    rng = np.random.default_rng(seed)
    t_s = np.arange(0, duration_s, 1 / rate_hz)
    t_s = t_s + rng.uniform(0, jitter_s, len(t_s))
    phase = 2 * np.pi * (0.3 * t_s + 2.0 / (2 * duration_s) * t_s**2)
    sent = np.stack([0.3 * np.sin(phase + k) for k in range(3)], axis=1)
    step_s = 1e-4
    fine_s = np.arange(0, duration_s + 0.01, step_s)
    held = np.maximum(np.searchsorted(t_s, fine_s - delay_s, side="right") - 1, 0)
    keep = math.exp(-step_s / lag_s)
    goal = sent[held]
    moved = lfilter([1 - keep], [1, -keep], goal - goal[0], axis=0) + goal[0]
    at = np.stack([np.interp(t_s, fine_s, moved[:, k]) for k in range(3)], axis=1)
    at = np.round((at + 0.3) / ENCODER_RAD) * ENCODER_RAD
    return JointMotion(t_s, sent, at, NAMES)


@pytest.mark.parametrize("delay_s", [0.0, 0.0123, 0.0375, 0.1101])
@pytest.mark.parametrize("jitter_s", [0.0, 0.002])
def test_a_known_latency_within_a_millisecond_at_200_hz(delay_s: float, jitter_s: float) -> None:
    """Between samples, too; a held goal's half period (2.5 ms here) isn't the arm's."""
    lag_s = 0.008
    result = measure_latency([followed(delay_s, lag_s=lag_s, jitter_s=jitter_s)])
    for lag in (result.overall, *result.joints.values()):
        # For motion much slower than the lag, the lag is a delay of the same length.
        assert lag.latency_s == pytest.approx(delay_s + lag_s, abs=0.001)
        low, high = lag.interval_s
        assert low <= lag.latency_s <= high
        assert high - low < 0.002
    assert set(result.joints) == set(NAMES)
    assert result.rate_hz == pytest.approx(200, rel=0.01)


def test_the_loop_s_own_delay_is_taken_off() -> None:
    motion = followed(0.03)
    late = replace(motion, send_delay_s=0.004)
    apart = measure_latency([motion]).overall.latency_s - measure_latency([late]).overall.latency_s
    assert apart == pytest.approx(0.004, abs=1e-6)


def test_holes_in_a_record_change_nothing() -> None:
    """A servo that didn't answer for a while, and turns that were skipped."""
    motion = followed(0.03, duration_s=24.0)
    keep = np.ones(len(motion.t_s), dtype=bool)
    keep[1000:1080] = False
    position = motion.position_rad.copy()
    position[2600:2700] = np.nan
    torn = JointMotion(motion.t_s[keep], motion.sent_rad[keep], position[keep], NAMES)
    found = measure_latency([torn]).overall.latency_s
    assert found == pytest.approx(measure_latency([motion]).overall.latency_s, abs=0.0005)


def test_a_joint_that_does_not_follow_or_move_is_left_out_and_named() -> None:
    motion = followed(0.03)
    rng = np.random.default_rng(0)
    position, sent = motion.position_rad.copy(), motion.sent_rad.copy()
    position[:, 1] = 0.4 + rng.normal(0, 1e-3, len(position))
    sent[:, 2] = 0.1
    result = measure_latency([JointMotion(motion.t_s, sent, position, NAMES)])
    assert list(result.joints) == ["pan"]
    assert "doesn't follow" in result.skipped["lift"]
    assert "are needed" in result.skipped["roll"]


def test_an_arm_that_was_not_moved_is_refused() -> None:
    motion = followed(0.03)
    still = JointMotion(motion.t_s, np.zeros_like(motion.sent_rad), motion.position_rad, NAMES)
    with pytest.raises(UnusableInputError, match="Move every joint by 5°"):
        measure_latency([still])


def test_telemetry_names_its_arm() -> None:
    motion = followed(0.02, duration_s=4.0)
    columns = {}
    for k, name in enumerate(NAMES):
        columns[f"follower.{name}.sent_rad"] = motion.sent_rad[:, k]
        columns[f"follower.{name}.position_rad"] = motion.position_rad[:, k]
        columns[f"leader.{name}.position_rad"] = motion.position_rad[:, k]
    columns["loop.latency_s"] = np.full(len(motion.t_s), 0.0007)
    found = JointMotion.of(Telemetry(motion.t_s, columns))
    assert found.joint_names == NAMES
    assert np.array_equal(found.sent_rad, motion.sent_rad)
    assert found.send_delay_s == pytest.approx(0.0007)
    with pytest.raises(UnusableInputError, match="follower"):
        JointMotion.of(Telemetry(motion.t_s, columns), "left")


class Swing:
    """A leader that swings every joint but the gripper, ever faster."""

    def __init__(self, home_rad: FloatArray) -> None:
        self._home = home_rad

    def reset(self) -> None:
        """Nothing to get ready."""

    def read(self, t_s: float) -> LeaderSample:
        """Return the pose at `t_s` [s]."""
        phase = 2 * np.pi * (0.3 * t_s + 0.05 * t_s**2)
        swing = 0.15 * np.sin(phase + np.arange(6)) * (1 - np.exp(-3 * t_s))
        swing[5] = 0.0
        return LeaderSample(t_s, self._home + swing)

    def done(self) -> bool:
        """It never ends by itself."""
        return False


@functools.lru_cache(maxsize=4)
def in_the_cell(severity: float) -> LatencyResult:
    """Measure the embedded cell's arm, with a latency gap of that severity."""
    cell = SimCell(gaps={"actuator_response.latency": severity}, image_size=64)
    follower, ticks = CellFollower(cell), list[Tick]()

    from gaploop.core.station import SIM_STATION

    rates = Rates(200.0, 200.0)
    try:
        home = cell.read().position_rad
        home[1:4] += (-0.3, -0.2, 0.2)  # off the table
        safety = make_safety(SIM_STATION, follower, rates.period_s)
        turns = run_turns(follower, Swing(home), safety, CellClock(cell), rates, max_s=11.0)
        ticks = [tick for tick in turns if tick is not None]
    finally:
        cell.close()
    t_s = np.array([t.t_s for t in ticks])
    sent = np.array([t.command.sent_rad for t in ticks])
    position = np.array([t.state.position_rad for t in ticks])
    return measure_latency([JointMotion(t_s, sent, position, follower.joint_names)])


@pytest.mark.parametrize("severity", [0.3, pytest.param(0.6, marks=pytest.mark.slow)])
def test_an_injected_latency_of_the_embedded_cell_is_recovered(severity: float) -> None:
    """The servo's own lag is in the nominal cell as well: what is injected is the difference."""
    (gap,) = draw_gaps({"actuator_response.latency": severity}, 0)
    # The cell applies goals at its next physics step.
    injected_s = math.ceil(gap.parameters["latency_s"] / TIMESTEP_S) * TIMESTEP_S
    found_s = in_the_cell(severity).overall.latency_s - in_the_cell(0.0).overall.latency_s
    assert found_s == pytest.approx(injected_s, abs=0.001)


def moving_bar(q_rad: FloatArray) -> list[Image]:
    """Return pictures of a bar that stands where a joint is."""
    x = np.arange(160)
    pictures = []
    for q in q_rad:
        bar = 255 / (1 + np.exp(-(x - 80 - 120 * q) / 3))
        pictures.append(np.repeat(np.tile(bar, (120, 1))[..., None], 3, axis=2).astype(np.uint8))
    return pictures


@pytest.mark.parametrize("late_s", [0.0, 0.045])
def test_a_camera_s_latency(late_s: float) -> None:
    motion = followed(0.03, duration_s=20.0)
    taken_s = np.arange(0.2, 19.5, 1 / 30)
    q = np.interp(taken_s - late_s, motion.t_s, motion.position_rad[:, 0])
    pan = JointMotion(motion.t_s, motion.sent_rad[:, :1], motion.position_rad[:, :1], NAMES[:1])
    lag = camera_latency(taken_s, picture_motion(moving_bar(q)), pan)
    assert lag.latency_s == pytest.approx(late_s, abs=0.005)


def test_a_camera_that_sees_no_arm_is_refused() -> None:
    motion = followed(0.03, duration_s=20.0)
    taken_s = np.arange(0.2, 19.5, 1 / 30)
    rng = np.random.default_rng(0)
    noise = np.abs(rng.normal(0, 1, len(taken_s) - 1))
    with pytest.raises(UnusableInputError, match="don't change as the arm moves"):
        camera_latency(taken_s, noise, motion)
    with pytest.raises(UnusableInputError, match="different pictures"):
        camera_latency(np.zeros(5), np.zeros(4), motion)

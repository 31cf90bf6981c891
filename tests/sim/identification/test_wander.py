"""Readings that wander are told from pictures of one pose, as large as they are, and from nothing
else that readings and pictures do."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from gaploop.core.messages import FloatArray, Image
from gaploop.sim.identification.scene import _silhouette
from gaploop.sim.identification.stills import Still
from gaploop.sim.identification.wander import Wander, wander_of

LINKS_PX, BASE_PX, SIZE_PX = (60.0, 45.0, 30.0), (64.0, 120.0), 128
POSE = np.array([-1.9, 0.7, 0.8])
FINEST = np.full(3, 0.01)
JITTER_RAD = 0.001

type Off = Callable[[int, float], FloatArray]
"""How far readings are off [rad], shape (3,), by a take's number and time [s]."""


def bench(q_rad: FloatArray, rng: np.random.Generator | None = None, from_px: float = 0.0) -> Image:
    """Draw a dark arm of three links upon a bench, as a noisy camera sees it."""
    picture = np.full((SIZE_PX, SIZE_PX, 3), 200, dtype=np.uint8)
    at, angle = np.array(BASE_PX) - from_px, 0.0
    for length_px, turn in zip(LINKS_PX, q_rad, strict=True):
        angle += turn
        end = at + length_px * np.array([np.cos(angle), np.sin(angle)])
        ends = [tuple(np.round(16.0 * p).astype(int).tolist()) for p in (at, end)]
        cv2.line(picture, *ends, (30, 30, 30), 9, cv2.LINE_AA, 4)
        at = end
    if rng is None:
        return picture
    return np.clip(picture + rng.normal(0.0, 4.0, picture.shape), 0, 255).astype(np.uint8)


def told(
    off: Off, seed: int, takes: int = 12, jitter_rad: float = JITTER_RAD, from_px: float = 0.0
) -> Wander | None:
    """Measure a station whose servos hold readings that are off, so that the arm is astray."""
    rng = np.random.default_rng(seed)
    stills = []
    for take in range(takes):
        times_s = np.arange(5) * 0.25
        read = POSE + 0.02 * rng.normal(size=3)
        seen = [bench(read - off(take, t), rng) for t in times_s]
        q_rad = np.append(read + jitter_rad * rng.normal(size=3), 0.0)
        stills.append(Still(f"u{take}", "", q_rad, np.stack(seen), times_s))

    def draw(still: Still, zeros_rad: FloatArray) -> Image:
        return bench(still.q_rad[:-1] - zeros_rad, from_px=from_px)

    return wander_of(stills, draw, _silhouette, FINEST, jitter_rad)


def swinging(size_rad: float, on: FloatArray, hz: float, seed: int) -> Off:
    phase = np.random.default_rng(seed).uniform(0.0, 2.0 * np.pi, (99, 3))
    return lambda take, t_s: size_rad * on * np.sin(2.0 * np.pi * hz * t_s + phase[take])


def creeping(size_rad: float, on: FloatArray, seed: int) -> Off:
    """Zeros that are elsewhere in each take and stay there; scattered as a swing of that size."""
    place = np.random.default_rng(seed).normal(0.0, size_rad / np.sqrt(2.0), (99, 3))
    return lambda take, _t_s: on * place[take]


def test_intervals_cover_how_far_readings_wander() -> None:
    """Of all joints or of one; within a take, slow or fast, or from take to take."""
    covered, whose = 0, list[bool]()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        size_rad, joint = rng.uniform(0.025, 0.09), (None, 0, 1, None)[seed % 4]
        on = np.ones(3) if joint is None else np.eye(3)[joint]
        off = swinging(size_rad, on, rng.uniform(0.05, 1.0), seed)
        off = creeping(size_rad, on, seed) if seed % 3 == 0 else off
        found = told(off, seed)
        assert found is not None
        covered += found.interval[0] <= size_rad <= found.interval[1]
        whose.append(found.joint == joint)
    assert covered >= 10
    assert sum(whose) >= 10


def still_zero(_take: int, _t_s: float) -> FloatArray:
    return np.array([0.06, -0.03, 0.05])


@pytest.mark.members(1)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_off_alike_in_all_takes_does_not_wander(seed: int) -> None:
    """A zero that is off, a bent hand, a camera: whatever one pose always shows."""
    for off in (lambda *_: np.zeros(3), still_zero):
        found = told(off, seed)
        assert found is not None
        assert found.drift_rad == 0.0
        assert found.interval[1] < 0.025


@pytest.mark.parametrize("from_px", [2.0, 8.0])
def test_an_arm_that_is_drawn_elsewhere_does_not_wander(from_px: float) -> None:
    """A camera that was moved was told as wandering: fits that got lost scattered."""
    found = told(lambda *_: np.zeros(3), 0, from_px=from_px)
    assert found is None or found.drift_rad == 0.0


@pytest.mark.members(1)
@pytest.mark.parametrize("seed", range(3))
def test_coarse_or_noisy_readings_do_not_wander(seed: int) -> None:
    found = told(lambda *_: np.zeros(3), seed, jitter_rad=0.015)
    assert found is not None
    assert found.drift_rad == 0.0


def test_a_pose_of_few_takes_tells_nothing() -> None:
    assert told(swinging(0.05, np.ones(3), 0.3, 0), 0, takes=4) is None
    assert wander_of([], lambda *_: bench(POSE), _silhouette, FINEST, 0.0) is None

"""What is felt of a grasp, by a sensor or by the gripper's own current, and what it sets apart."""

from __future__ import annotations

import numpy as np
import pytest
from failure_analysis_makers import RATE_HZ, take

from gaploop.core.messages import FloatArray
from gaploop.core.take import Take
from gaploop.failure_analysis.comparison import compare
from gaploop.failure_analysis.episode_figures import figures_of, words_of
from gaploop.failure_analysis.signals.grip import pressing
from gaploop.failure_analysis.signals.registry import TakeSignals, measure
from gaploop.failure_analysis.views.view import TakeView

TOUCHED_S, OPENED_S = 1.8, 4.1
PAD, CURRENT = "pad.p_kpa", "follower.gripper.current_a"


def felt(
    seed: int, rise_s: float = 0.1, lost_s: float = OPENED_S, least: float = 0.0
) -> FloatArray:
    """Return what is read of a grasp: it rises to 12 and is gone at `lost_s`."""
    t_s = np.arange(600) / RATE_HZ
    noise = np.random.default_rng(seed).normal(0.0, 0.05, len(t_s))
    press = 12.0 * np.clip((t_s - TOUCHED_S) / rise_s, 0.0, 1.0) * (t_s < lost_s)
    return np.maximum(press, least) + noise


def one(column: str, seed: int = 0, **how: float) -> Take:
    return take(seed=seed, extra={column: felt(seed, **how)}, uid=f"{column}{seed}{how}")


def signals(of: Take) -> TakeSignals:
    return measure(TakeView(of, images=False))


def test_onset_slope_share_and_release_are_those_of_the_grasp() -> None:
    soon, slow = signals(one(PAD)), signals(one(PAD, rise_s=0.4))
    lost = signals(one(PAD, lost_s=3.0))
    assert soon["touch_peak"] == pytest.approx(12.0, abs=0.3)
    assert soon["touch_slope"] == pytest.approx(0.8 / 0.08, rel=0.3)
    assert slow["touch_slope"] == pytest.approx(0.8 / 0.32, rel=0.2)
    assert soon["touch_onset_s"] == pytest.approx(slow["touch_onset_s"] - 0.03, abs=0.02)
    assert soon["touch_share"] > 0.95
    assert lost["touch_share"] == pytest.approx(
        (3.0 - TOUCHED_S) / (OPENED_S - TOUCHED_S), abs=0.05
    )
    assert abs(soon["touch_release_s"]) < 0.15


def test_a_sensor_that_feels_nothing_says_so_and_not_noise() -> None:
    """A peak of noise would have an onset and a slope, too."""
    empty = signals(one(PAD, lost_s=0.0))
    assert empty["touch_share"] == 0.0
    assert np.isnan([empty["touch_onset_s"], empty["touch_slope"]]).all()
    assert "touch" in signals(take()).unseen


def test_without_a_sensor_the_grippers_current_stands_for_it() -> None:
    own = pressing(TakeView(one(CURRENT, least=1.0), images=False))
    assert set(own) == {f"touch_{n}:gripper_current" for n in ("onset_s", "slope", "share")}
    assert own["touch_share:gripper_current"] > 0.95
    assert pressing(TakeView(take(), images=False)) == {}
    said, _ = words_of("touch_share:gripper_current", 0.4)
    assert said.endswith("(by the gripper current)")


@pytest.mark.members(1)
@pytest.mark.parametrize("column", [PAD, CURRENT])
def test_what_is_lost_in_the_failures_is_named_and_never_by_chance(column: str) -> None:
    good = [one(column, seed=k) for k in range(8)]
    bad = [one(column, seed=20 + k, lost_s=2.5) for k in range(6)]
    rows = [figures_of(t, images=False) for t in (*good, *bad)]
    failed = [False] * 8 + [True] * 6
    found = compare(rows, failed, in_order=False)
    assert any(s.name.startswith("touch_share") for s in found.separations)
    rng, named = np.random.default_rng(1), 0
    alike = rows[:8] + [figures_of(one(column, seed=40 + k), images=False) for k in range(6)]
    for _ in range(20):
        dealt = rng.permutation(failed).tolist()
        named += bool(compare(alike, dealt, in_order=False).separations)
    assert named <= 4  # 5 % of 20 is 1; more than 4 is seen once in 400 such runs

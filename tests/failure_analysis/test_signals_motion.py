"""Planted shaking, transients, slips, detours and dropouts are found, in the right unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from failure_analysis_makers import JOINTS, RATE_HZ, commands, repeated, scene_picture, take
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.signals_page import page
from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.signals.registry import TakeSignals, measure, registry
from gaploop.failure_analysis.views.phases import TaskProgress
from gaploop.failure_analysis.views.view import TakeView

ROOT = Path(__file__).parents[2]


def moved(sent: FloatArray, position: FloatArray, **given: FloatArray) -> TakeSignals:
    """Measure a take with these commands and readings [rad], shape (n, 6)."""
    extra = {f"follower.{name}.position_rad": position[:, j] for j, name in enumerate(JOINTS)}
    for quantity, values in given.items():
        extra |= {f"follower.{name}.{quantity}": values[:, j] for j, name in enumerate(JOINTS)}
    return measure(TakeView(take(sent=sent, extra=extra)))


@pytest.mark.parametrize("hz", [4.0, 7.0])
def test_a_planted_oscillation_is_found_with_its_energy(hz: float) -> None:
    sent = commands(6.0)
    t = np.arange(len(sent)) / RATE_HZ
    position = sent.copy()
    position[:, 2] += 0.02 * np.sin(2 * np.pi * hz * t)
    measured = moved(sent, position)
    energy = 0.5 * (0.02 * 2 * np.pi * hz) ** 2  # mean squared speed of a sine
    assert measured["oscillation_energy_rad2_s2"] == pytest.approx(energy, rel=0.25)


def test_an_arm_that_does_as_told_does_not_oscillate() -> None:
    measured = moved(commands(), commands())
    assert measured["oscillation_energy_rad2_s2"] == pytest.approx(0.0, abs=1e-9)


def test_a_command_that_dithers_is_told_from_an_arm_that_shakes() -> None:
    sent = commands()
    dithered = sent.copy()
    dithered[:, 1] += 0.02 * np.sign(np.sin(2 * np.pi * 5.0 * np.arange(len(sent)) / RATE_HZ))
    assert moved(dithered, sent)["command_reversals_hz"] > 5.0
    assert moved(sent, dithered)["command_reversals_hz"] < 3.0


def test_a_late_arm_does_not_jitter_while_its_command_pauses() -> None:
    """Five of ten episodes with late commands were laid to sensor noise: 0.3° "at rest"."""
    t_s = np.arange(0.0, 8.0, 1.0 / RATE_HZ)
    swings = np.where(t_s % 1.0 < 0.5, 0.15 * np.sin(2 * np.pi * 2.0 * t_s), 0.0)
    late = np.concatenate([np.zeros(round(0.2 * RATE_HZ)), swings])[: len(swings)]
    sent, read = (np.outer(x, np.ones(6)) for x in (swings, late))
    assert moved(sent, read)["jitter_rad"] < 1e-6
    noise = np.random.default_rng(0).normal(0.0, 0.01, read.shape)
    assert moved(sent, read + noise)["jitter_rad"] == pytest.approx(0.01, rel=0.2)


def test_a_pause_is_found_in_seconds() -> None:
    rows = commands()
    paused = np.concatenate((rows[:150], np.repeat(rows[150:151], 180, axis=0), rows[150:]))
    usual, found = moved(rows, rows)["standstill_s"], moved(paused, paused)["standstill_s"]
    assert found >= 1.75
    assert found > usual + 0.5


def test_a_detour_shows_in_the_path() -> None:
    sent = commands()
    away = sent.copy()
    away[:, 0] += 0.6 * np.sin(2 * np.pi * np.arange(len(sent)) / 300.0)
    direct, round_about = moved(sent, sent), moved(sent, away)
    assert round_about["joint_path_rad"] > direct["joint_path_rad"] + 1.0


def test_knocks_show_in_current_and_load() -> None:
    sent = commands()
    calm = np.full_like(sent, 0.3)
    knocked = calm.copy()
    knocked[200::100] += 1.5
    smooth = moved(sent, sent, current_a=calm, load_pct=10 * calm)
    rough = moved(sent, sent, current_a=knocked, load_pct=10 * knocked)
    assert smooth["current_jump_a"] == pytest.approx(0.0)
    assert rough["current_jump_a"] > 0.1
    assert rough["load_jump_pct"] == pytest.approx(10 * rough["current_jump_a"])
    assert smooth["effort_a"] == pytest.approx(0.3 * len(JOINTS))


def test_a_gripper_that_stalls_on_its_object_is_no_transient() -> None:
    """Every grasp was a transient: the gripper's current jumps to its limit as the jaws meet."""
    sent = commands()
    current = np.full_like(sent, 0.3)
    current[200:400, JOINTS.index("gripper")] = 1.3
    assert moved(sent, sent, current_a=current)["current_jump_a"] == pytest.approx(0.0)


def test_a_slip_is_found_and_counted() -> None:
    made = take(hold_rad=0.25)
    held = measure(TakeView(made))
    position = made.telemetry.stack("follower", "position_rad").copy()
    sent = made.telemetry.stack("follower", "sent_rad")
    gripper = JOINTS.index("gripper")
    gone = slice(280, 395)
    position[gone, gripper] = np.maximum(sent[gone, gripper], position[gone, gripper] - 0.25)
    slipped = moved(sent, position)
    assert held["lost_count"] == 0
    assert slipped["lost_count"] == 1
    assert slipped["slip_rad_s"] > held["slip_rad_s"] + 0.5
    assert held["held_s"] > slipped["held_s"] > 0


def test_dropouts_of_the_tracker_are_counted() -> None:
    scene = np.tile([0.2, 0.18, 0.1, -0.4, 0.22, 1.0, 0.0], (300, 1))
    scene[100:110, 5] = scene[150:200, 5] = 0.0
    measured = measure(TakeView(take(scene=scene)))
    assert measured["hidden_longest_s"] == pytest.approx(1.0)
    assert measured["hidden_hz"] == pytest.approx(2 / 6.0)


def test_changing_light_is_seen() -> None:
    dim = [scene_picture(gain=0.5 + 0.5 * k / 299) for k in range(300)]  # one per frame
    steady = measure(TakeView(take(pictures=repeated(scene_picture()))))
    changing = measure(TakeView(take(pictures=dim)))
    assert steady["light_swing_stops"] == pytest.approx(0.0, abs=0.01)
    assert changing["light_swing_stops"] == pytest.approx(0.85, abs=0.15)


point = st.tuples(*[st.floats(-0.3, 0.3)] * 2).map(np.array)


@settings(max_examples=60, deadline=None)
@given(
    places=st.lists(
        st.tuples(point, point, st.booleans(), st.floats(0, 0.4)), min_size=1, max_size=60
    )
)
def test_headway_only_falls_by_moving_nearer(
    places: list[tuple[FloatArray, FloatArray, bool, float]],
) -> None:
    """Whatever happens: least <= left, what is lost is their largest gap, stalls are in time."""
    state, target = TaskProgress(), np.zeros(2)
    for k, (tool_m, object_m, visible, short_rad) in enumerate(places):
        state.update(0.1 * k, tool_m, object_m, target, visible, short_rad)
        assert (
            state.remaining_path_m >= float(np.linalg.norm(tool_m)) - 1e-9
        )  # no way is shorter than direct
        assert state.least_m <= state.remaining_path_m + 0.005 + 1e-9
        assert 0.0 <= state.stalled_s <= 0.1 * k + 1e-9
    assert state.lost_m >= state.remaining_path_m - state.least_m - 1e-12


def test_what_the_jaws_hold_is_where_the_tool_is() -> None:
    """A carried object looked left behind: the tracker holds its last place under the gripper."""
    state, target, spot = TaskProgress(), np.array([0.3, 0.0]), np.array([0.0, 0.0])
    for k in range(20):
        state.update(0.1 * k, spot, spot, target, False, 0.2)
    carried = np.array([0.25, 0.0])
    state.update(2.0, carried, spot, target, False, 0.2)
    assert state.remaining_path_m == pytest.approx(0.05)
    state.update(2.1, carried, spot, target, False, 0.0)  # let go, not seen yet
    assert state.remaining_path_m == pytest.approx(0.05)
    state.update(2.2, carried, spot, target, True, 0.0)  # seen where it was: it never came along
    assert state.remaining_path_m == pytest.approx(0.55)


def test_the_page_lists_every_signal() -> None:
    """docs/diagnose/signals.md is written by `python -m benchmarks signals`."""
    text = page()
    assert all(f"`{name}`" in text for name in registry())
    assert (ROOT / "docs" / "diagnose" / "signals.md").read_text() == text

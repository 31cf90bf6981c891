"""Planted shaking, transients, slips, detours and dropouts are found, in the right unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from failure_analysis_makers import JOINTS, commands, repeated, scene_picture, take

from benchmarks.signals_page import page
from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.signals.registry import TakeSignals, measure, registry
from gaploop.failure_analysis.views.view import TakeView

ROOT = Path(__file__).parents[2]


def moved(sent: FloatArray, position: FloatArray, **given: FloatArray) -> TakeSignals:
    """Measure a take with these commands and readings [rad], shape (n, 6)."""
    extra = {f"follower.{name}.position_rad": position[:, j] for j, name in enumerate(JOINTS)}
    for quantity, values in given.items():
        extra |= {f"follower.{name}.{quantity}": values[:, j] for j, name in enumerate(JOINTS)}
    return measure(TakeView(take(sent=sent, extra=extra)))


def test_a_pause_is_found_in_seconds() -> None:
    rows = commands()
    paused = np.concatenate((rows[:150], np.repeat(rows[150:151], 180, axis=0), rows[150:]))
    usual, found = moved(rows, rows)["standstill_s"], moved(paused, paused)["standstill_s"]
    assert found >= 1.75
    assert found > usual + 0.5


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


def test_changing_light_is_seen() -> None:
    dim = [scene_picture(gain=0.5 + 0.5 * k / 299) for k in range(300)]  # one per frame
    steady = measure(TakeView(take(pictures=repeated(scene_picture()))))
    changing = measure(TakeView(take(pictures=dim)))
    assert steady["light_swing_stops"] == pytest.approx(0.0, abs=0.01)
    assert changing["light_swing_stops"] == pytest.approx(0.85, abs=0.15)


def test_the_page_lists_every_signal() -> None:
    """docs/diagnose/signals.md is printed by `python -m benchmarks.signals_page`."""
    text = page()
    assert all(f"`{name}`" in text for name in registry())
    assert (ROOT / "docs" / "diagnose" / "signals.md").read_text() == text

"""The cell's force sensors: what they read is there, and to read it changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gaploop.collect.rig import EmbeddedRig, embedded_rig, scripted_leader
from gaploop.core.errors import UnusableInputError
from gaploop.sim.cell import CellSensor, SimCell
from gaploop.sim.gaps import draw_gaps

BOTH = {"wrist": {}, "fingertips": {}}


def attempt(rig: EmbeddedRig, reads: bool = True) -> dict[str, Any]:
    """Let the expert do one take; return what was read and where the joints were."""
    rig.reset(1)
    read, held, q_rad = [], [], []
    for tick in rig.turns(scripted_leader(rig, 1), 10.0):
        assert tick is not None
        q_rad.append(tick.state.position_rad)
        if reads:
            read.append([v for sensor in rig.sensors for v in sensor.read().values()])
            held.append(bool(rig.cell.truth()["held"]))
    return {"read": np.array(read), "held": np.array(held), "q_rad": np.array(q_rad)}


def test_jaws_press_while_they_hold_and_reading_that_moves_nothing() -> None:
    one, other = (attempt(embedded_rig(sensors=BOTH), reads) for reads in (True, False))
    assert np.array_equal(one["q_rad"], other["q_rad"])
    jaws, held = one["read"][:, 6:], one["held"]
    assert held.any()
    assert jaws[held].min() > 1.0
    assert jaws[:20].max() == 0.0  # nothing is touched yet
    weight_n = np.linalg.norm(one["read"][:20, :3].mean(axis=0))
    assert 0.3 < weight_n < 3.0  # the hand's own


def test_drift_and_noise_are_in_the_readings_and_nowhere_else() -> None:
    gap = {"sensor_noise.force_drift": {"drift_n": 2.0, "noise_n": 0.1}}
    true, faulty = (attempt(embedded_rig(sensors=BOTH, parameters=p)) for p in ({}, gap))
    assert np.array_equal(true["q_rad"], faulty["q_rad"])
    off = faulty["read"] - true["read"]
    assert 0.5 < np.abs(off[:, :3]).max() < 3.0
    assert np.abs(off[:, 3:6]).max() < 0.2
    assert np.std(np.diff(off[:, 0])) == pytest.approx(0.1 * np.sqrt(2), rel=0.2)


def test_force_drift_is_never_drawn_for_its_dimension() -> None:
    """Without --sensors a station with it would have no gap at all."""
    for seed in range(60):
        (gap,) = draw_gaps({"sensor_noise": 1.0}, seed)
        assert gap.mechanism != "force_drift"
    (gap,) = draw_gaps({"sensor_noise.force_drift": 1.0}, 0)
    assert gap.parameters["drift_n"] > 1.0


def test_each_arm_of_a_pair_has_its_own_and_others_are_named() -> None:
    with SimCell(robot="bi_so101") as pair:
        assert set(CellSensor("left_fingertips", pair).read()) == {
            "left_fingertips.jaw1_n",
            "left_fingertips.jaw2_n",
        }
        with pytest.raises(UnusableInputError, match="left_wrist"):
            CellSensor("wrist", pair)

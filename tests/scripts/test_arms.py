"""What is said of a station's calibration before anything is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.lerobot_factory import calibration_of
from gaploop.sim.cell import CellFollower, SimCell
from gaploop.teleop.calibration.drift import CalibrationSighting
from gaploop.teleop.calibration.store import calibration_path, save_part


@pytest.fixture
def follower() -> Iterator[CellFollower]:
    cell = SimCell("pick_place")
    cell.reset(0)
    yield CellFollower(cell)
    cell.close()


def test_an_arm_that_rests_elsewhere_than_it_was_calibrated_is_told_before_recording(
    follower: CellFollower, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A joint's zero that had moved by 17° was baked into a dataset (lerobot #3758)."""
    station = tmp_path / "lab.yaml"
    assert calibration_of(station, follower) == ""
    q_rad = follower.read().position_rad
    place, path = ("references", "rest"), calibration_path(station)
    kept = save_part(path, place, CalibrationSighting(q_rad, follower.joint_names).to_json())
    assert calibration_of(station, follower) == kept.id
    assert not caplog.records
    q_rad = q_rad + np.radians([0, 17, 0, 0, 0, 0])
    moved = save_part(path, place, CalibrationSighting(q_rad, follower.joint_names).to_json())
    assert calibration_of(station, follower) == moved.id != kept.id
    (record,) = caplog.records
    assert "shoulder_lift by -17.0°" in record.getMessage()

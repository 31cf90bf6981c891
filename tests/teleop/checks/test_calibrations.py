"""Calibrations by age and state, and whether the station's own is good enough."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_system import one

from gaploop.collect.preflight import Terminal
from gaploop.sim.cell import CellFollower, SimCell
from gaploop.teleop.calibration.store import save_part
from gaploop.teleop.checks import By, Level, all_usable
from gaploop.teleop.checks.calibrations import (
    check_arm_files,
    check_station,
    check_station_ages,
)
from gaploop.teleop.servos.calibration import arm_folder


def calibration(root: Path, name: str, text: str, age_days: float) -> Path:
    file = root / "robots" / "so_follower" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (1e9 - age_days * 86400, 1e9 - age_days * 86400))
    return file


def test_calibrations_by_age_and_state(tmp_path: Path) -> None:
    assert one(check_arm_files(tmp_path)).level is Level.WARN
    pan = {"id": 1, "drive_mode": 0, "homing_offset": 5, "range_min": 100, "range_max": 3000}
    good, flat = json.dumps({"pan": pan}), json.dumps({"pan": pan | {"range_max": 100}})
    calibration(tmp_path, "a_new", good, 2)
    calibration(tmp_path, "b_old", good, 200)
    calibration(tmp_path, "c_flat", flat, 2)
    calibration(tmp_path, "d_broken", "{", 2)
    new, old, empty, broken = check_arm_files(tmp_path, now_s=1e9)
    assert [f.level for f in (new, old, empty, broken)] == [
        Level.OK, Level.WARN, Level.FAIL, Level.FAIL,
    ]  # fmt: skip
    assert "2 days" in new.found
    again = "lerobot-calibrate --robot.type=so101_follower --robot.port=PORT --robot.id=b_old"
    assert again in old.fix
    assert "pan" in empty.found


def test_the_folder_follows_lerobots_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = find_spec("lerobot.utils.constants")  # run anew: it reads them as it is imported
    assert constants is not None
    for name, value in (("HF_LEROBOT_CALIBRATION", "/x/c"), ("HF_LEROBOT_HOME", "/x/h")):
        monkeypatch.setenv(name, value)
        assert arm_folder() == runpy.run_path(str(constants.origin))["HF_LEROBOT_CALIBRATION"]
        monkeypatch.delenv(name)


def test_the_stations_own_calibration(tmp_path: Path) -> None:
    path = tmp_path / "lab.calibration.json"
    assert one(check_station_ages(path)).level is Level.OK
    save_part(path, ("arms", "follower", "latency"), {"latency_s": 0.03})
    assert one(check_station_ages(path)).level is Level.OK
    path.write_text("{")
    assert one(check_station_ages(path)).level is Level.FAIL


def test_cameras_that_are_calibrated_poorly_fail_and_unknown_ones_are_asked_about(
    tmp_path: Path,
) -> None:
    file = tmp_path / "station.calibration.json"
    save_part(file, ("cameras", "good", "intrinsics"), {"rms_px": 0.2})
    save_part(file, ("cameras", "good", "hand_eye"), {"held_out_mm": 1.5})
    save_part(file, ("cameras", "poor", "intrinsics"), {"rms_px": 0.2})
    save_part(file, ("cameras", "poor", "hand_eye"), {"held_out_mm": 7.0})
    save_part(file, ("cameras", "half", "intrinsics"), {"rms_px": 0.2})  # not where it stands
    cameras = ["good", "poor", "half", "new"]
    with SimCell() as cell:
        found = list(check_station(file, CellFollower(cell), cameras, Terminal()))
    results = {item.data["camera"]: item.level for item in found if item.data}
    assert results == {"good": Level.OK, "poor": Level.FAIL,
                       "half": Level.UNANSWERED, "new": Level.UNANSWERED}  # fmt: skip
    assert "hand_eye 7 of at most 5 mm" in next(i for i in found if i.level is Level.FAIL).found


@pytest.mark.parametrize("answer", [None, "y", "n"])
def test_a_question_is_settled_by_a_yes_only(answer: str | None, tmp_path: Path) -> None:
    class Says(Terminal):
        def ask(self, question: str, choices: Mapping[str, str]) -> str | None:
            assert "Camera new isn't calibrated." in question
            assert set(choices) == {"y", "n"}
            return answer

    with SimCell() as cell:
        (found,) = check_station(tmp_path / "none.json", CellFollower(cell), ["new"], Says())
    assert all_usable([found]) == (answer == "y")
    assert found.by is By.PERSON

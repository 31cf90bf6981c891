"""Drift: what moved is found and named, what did not is left in peace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calibration_makers import SMALL_CHARUCO, Scene, arm, arm_poses, camera, look_at, scene

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.teleop.calibration.board import BoardView
from gaploop.teleop.calibration.drift import CalibrationSighting, before_recording, check_drift
from gaploop.teleop.calibration.intrinsics import inverse, pose
from gaploop.teleop.calibration.store import CellCalibration, load_calibration, save_part

REST = np.array([0.02, -1.7, 1.6, 0.7, 0.0, 0.1])
LENS = camera()
T_WORLD_BOARD = np.eye(4)
EYE = np.array([0.25, -0.15, 0.45])


def seen_by_fixed(T_world_camera: FloatArray, noise_px: float = 0.05) -> BoardView:
    """Return the board as a camera beside the arm sees it."""
    board = SMALL_CHARUCO
    pixels = LENS.project(inverse(T_world_camera) @ T_WORLD_BOARD, board.corners_m)
    pixels = pixels + np.random.default_rng(0).normal(0, noise_px, pixels.shape)
    return BoardView(np.arange(len(pixels)), pixels, LENS.width, LENS.height)


def stored(tmp_path: Path, seen: CalibrationSighting) -> CellCalibration:
    path = tmp_path / "lab.calibration.json"
    save_part(path, ("references", "rest"), seen.to_json())
    return load_calibration(path)


def at(q_rad: FloatArray) -> CalibrationSighting:
    return CalibrationSighting(q_rad, arm().joint_names)


def test_an_arm_back_in_its_place_is_fine(tmp_path: Path) -> None:
    calibration = stored(tmp_path, at(REST))
    back = REST + np.radians([0.4, -0.5, 0.3, 0.2, -0.6, 1.0])
    found = check_drift(calibration, at(back), arm=arm())
    assert found.verdict == "ok"
    assert found.deg == pytest.approx(1.0)
    assert found.mm < 5
    assert not found.message


def test_a_joint_that_slipped_is_named_in_degrees_and_at_the_tool(tmp_path: Path) -> None:
    """huggingface/lerobot#3758: 17° at a joint, 6 cm at the tool, found after the recording."""
    calibration = stored(tmp_path, at(REST))
    slipped = REST + np.array([0, 0, np.radians(17), 0, 0, 0])
    found = check_drift(calibration, at(slipped), arm=arm())
    assert found.verdict == "drifted"
    assert found.deg == pytest.approx(17.0)
    assert found.mm > 40
    (line,) = found.message
    assert "elbow_flex by +17.0°" in line
    assert "lerobot-calibrate" in line


def test_an_arm_elsewhere_is_not_called_drifted(tmp_path: Path) -> None:
    calibration = stored(tmp_path, at(REST))
    with pytest.raises(UnusableInputError, match="not at 'rest'"):
        check_drift(calibration, at(REST + 1.0), arm=arm())


def test_a_camera_that_was_knocked_is_told_from_one_that_was_not(tmp_path: Path) -> None:
    place = look_at(EYE, SMALL_CHARUCO.centre_m)
    reference = CalibrationSighting(views={"side": seen_by_fixed(place)}, board=SMALL_CHARUCO)
    calibration = stored(tmp_path, reference)
    same = CalibrationSighting(views={"side": seen_by_fixed(place, 0.2)}, board=SMALL_CHARUCO)
    assert check_drift(calibration, same).verdict == "ok"
    knocked = place @ pose(np.radians([0.0, 1.5, 0.0]), np.zeros(3))
    moved = CalibrationSighting(views={"side": seen_by_fixed(knocked)}, board=SMALL_CHARUCO)
    found = check_drift(calibration, moved)
    assert found.verdict == "drifted"
    assert found.px > 8
    assert "Camera side" in found.message[0]


def wrist_calibration(tmp_path: Path, where: Scene) -> CellCalibration:
    path = tmp_path / "lab.calibration.json"
    save_part(path, ("cameras", "wrist", "intrinsics"), where.lens.to_json())
    hand_eye = {
        "setup": where.setup,
        "T_mount_camera": where.T_mount_camera.tolist(),
        "T_far_board": where.T_far_board.tolist(),
    }
    save_part(path, ("cameras", "wrist", "hand_eye"), hand_eye)
    return load_calibration(path)


def from_the_wrist(where: Scene, q: FloatArray, said: FloatArray) -> CalibrationSighting:
    pixels = where.lens.project(where.T_camera_board(q), where.board.corners_m)
    view = BoardView(np.arange(len(pixels)), pixels, where.lens.width, where.lens.height)
    return CalibrationSighting(said, arm().joint_names, {"wrist": view}, where.board)


def test_a_camera_on_the_gripper_may_look_from_anywhere(tmp_path: Path) -> None:
    where = scene("eye_in_hand", SMALL_CHARUCO)
    (first,) = arm_poses(where, 1)
    second = first + np.radians([3.0, -8.0, 6.0, 9.0, 12.0, 0.0])
    wrist_calibration(tmp_path, where)
    path = tmp_path / "lab.calibration.json"
    save_part(path, ("references", "rest"), from_the_wrist(where, first, first).to_json())
    calibration = load_calibration(path)
    # Joints are elsewhere, which is said; the camera's mount is as it was, which is not.
    found = check_drift(calibration, from_the_wrist(where, second, second), arm=arm())
    assert len(found.message) == 1
    assert found.message[0].startswith("Joints are off")
    # The mount was bent: the same pose, another picture.
    bent = replace(where, T_mount_camera=where.T_mount_camera @ pose(
        np.radians([3.0, 0, 0]), np.zeros(3)))  # fmt: skip
    moved = from_the_wrist(bent, first, first)
    found = check_drift(calibration, moved, arm=arm())
    assert found.verdict == "drifted"
    assert found.deg == pytest.approx(3.0, abs=0.2)
    assert "mount" in found.message[0]


def test_nothing_in_common_is_unknown_not_ok(tmp_path: Path) -> None:
    calibration = stored(tmp_path, at(REST))
    place = look_at(EYE, SMALL_CHARUCO.centre_m)
    only_board = CalibrationSighting(views={"side": seen_by_fixed(place)}, board=SMALL_CHARUCO)
    assert check_drift(calibration, only_board).verdict == "unknown"


def test_wrong_references_are_refused(tmp_path: Path) -> None:
    calibration = stored(tmp_path, at(REST))
    with pytest.raises(UnusableInputError, match="drift --store"):
        check_drift(CellCalibration(Path("none.json")), at(REST))
    with pytest.raises(UnusableInputError, match="joints"):
        check_drift(calibration, CalibrationSighting(REST[:3], ("a", "b", "c")))
    other = replace(SMALL_CHARUCO, square_m=0.02, marker_m=0.015)
    place = look_at(EYE, SMALL_CHARUCO.centre_m)
    reference = CalibrationSighting(views={"side": seen_by_fixed(place)}, board=SMALL_CHARUCO)
    with_board = stored(tmp_path, reference)
    wrong = CalibrationSighting(views={"side": seen_by_fixed(place)}, board=other)
    with pytest.raises(UnusableInputError, match="another board"):
        check_drift(with_board, wrong)


def test_before_recording_warns_and_never_stops(tmp_path: Path) -> None:
    arm_file = tmp_path / "white.json"
    arm_file.write_text(json.dumps({"shoulder_pan": {"homing_offset": 12}}))
    from gaploop.core.files import sha256

    calibration = stored(tmp_path, at(REST))
    save_part(calibration.path, ("arms", "follower", "calibration"), {"sha256": sha256(arm_file)})
    calibration = load_calibration(calibration.path)
    assert before_recording(calibration, at(REST), arm=arm(), arm_file=arm_file) == ()
    arm_file.write_text(json.dumps({"shoulder_pan": {"homing_offset": 13}}))
    slipped = at(REST + np.radians([0, 5, 0, 0, 0, 0]))
    said = before_recording(calibration, slipped, arm=arm(), arm_file=arm_file)
    assert any("calibrated again" in line for line in said)
    assert any("shoulder_lift by +5.0°" in line for line in said)
    assert "not at 'rest'" in before_recording(calibration, at(REST + 1.5), arm=arm())[0]
    assert before_recording(CellCalibration(tmp_path / "none.json"), at(REST)) == ()

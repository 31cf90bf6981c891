"""The robot puts the scene back: where it was drawn, seen in a picture, or a person is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import mujoco
import numpy as np
import pytest

from gaploop.collect import resetting, take
from gaploop.collect.campaign import Quota
from gaploop.collect.intervention import SharedLeader
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.resetting import (
    Eye,
    Resetter,
    cell_arm_of,
    drawn_start,
    tracker_for,
)
from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.collect.rollout import Attempts, SpeedRamp
from gaploop.collect.take import Operator, record_takes
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.journal_format import EVENTS, after_path, take_folders
from gaploop.core.messages import CameraFrame, FloatArray, Observation
from gaploop.core.station import SIM_STATION, Station, StationScene
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import TakeKind
from gaploop.sim import scene
from gaploop.sim.catalogue import SO101
from gaploop.sim.scene import CAMERA_NAME, OBJECT_TARGET_GAP_M, set_free_body
from gaploop.sim.tracker import Tracker
from gaploop.teleop.calibration.store import SCHEMA, calibration_id

AT = "2026-11-27T00:00:00+00:00"
NOMINAL = tracker_for(SIM_STATION, None)


class Still:
    """A policy that leaves the arm where it is."""

    fps = 50.0

    def reset(self) -> None: ...

    def act(self, observation: Observation) -> FloatArray:
        return observation.state


def rolled(
    journal: Path, takes: int, resetter: Resetter, before: Callable[[EmbeddedRig, int], None]
) -> list[FloatArray]:
    """Roll out a policy that stands still; return where the object began each attempt [m]."""
    began: list[FloatArray] = []
    rigs: list[EmbeddedRig] = []

    class Looking(Operator):
        def begin(self, blocker: Callable[[], str], stop: Callable[[], bool]) -> bool:
            before(rigs[0], len(began))
            return super().begin(blocker, stop)

        def choose(self) -> str:
            began.append(np.array(rigs[0].cell.truth()["object_pos_m"])[:2])
            return ""

    def rig(_conditions: object) -> EmbeddedRig:
        rigs.append(embedded_rig())
        return rigs[0]

    def leader(rig: EmbeddedRig, _seed: int) -> SharedLeader:
        drives = PolicyLeader(Still(), rig.follower, rig.fps, rig.control_hz)
        return SharedLeader(drives, None, lambda: rig.safety.sent_rad)

    attempts = Attempts(SpeedRamp(journal, "p", 1.0))
    attempts.resetter = resetter
    about = TakeInfo("", "t", kind=TakeKind.ROLLOUT, policy="p")
    record_takes(
        journal, about, [Quota(takes)], rig, leader, operator=Looking(attempts=attempts), max_s=0.2
    )
    return began


def test_the_script_puts_the_object_at_the_drawn_starts(tmp_path: Path) -> None:
    def lose(rig: EmbeddedRig, take: int) -> None:
        if take == 1:  # it has fallen off the table
            set_free_body(rig.cell.model, rig.cell.data, "object", np.array([0.9, 0.9, 0.02]), 0.0)

    resetter = Resetter(NOMINAL)
    began = rolled(tmp_path, 3, resetter, lose)
    assert [reset.by for reset in resetter.resets] == ["script", "person", "script"]
    target_m = np.array(embedded_rig().cell.truth()["target_pos_m"])[:2]
    for seed in (0, 2):
        planned_m, _ = drawn_start(seed, {}, SO101, target_m)
        assert np.linalg.norm(began[seed] - planned_m) < 0.015
    assert all(after_path(folder, CAMERA_NAME).exists() for folder in take_folders(tmp_path))
    events = [(folder / EVENTS).read_text() for folder in take_folders(tmp_path)]
    assert ["person" in text for text in events] == [False, True, False]


def test_a_policy_that_resets_is_checked_and_a_person_called(tmp_path: Path) -> None:
    def on_the_disc(rig: EmbeddedRig, take: int) -> None:
        if take == 1:
            target_m = np.array(rig.cell.truth()["target_pos_m"])
            place_m = np.array([*target_m[:2], 0.03])
            set_free_body(rig.cell.model, rig.cell.data, "object", place_m, 0.0)

    def lead(*arm: object) -> PolicyLeader:
        return PolicyLeader(Still(), *arm)  # type: ignore[arg-type]

    resetter = Resetter(NOMINAL, lead, longest_s=2.0)
    rolled(tmp_path, 2, resetter, on_the_disc)
    assert [reset.by for reset in resetter.resets] == ["policy", "person"]


def test_nobody_who_comes_ends_an_arms_session_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Operator().call_person("Put it there.", lambda: True, lambda: False)
    assert not Operator().call_person("Put it there.", lambda: False, lambda: True)
    monkeypatch.setattr(take, "PERSON_S", 0.0)
    with pytest.raises(DeviceError, match=r"Put it there\. Nobody came"):
        Operator().call_person("Put it there.", lambda: False, lambda: False)
    with pytest.raises(UnusableInputError, match=r"doesn't know the reach of panda"):
        cell_arm_of("panda")
    assert cell_arm_of("so101_follower") is SO101


@dataclass
class Showing:
    """A camera that shows one picture."""

    picture: CameraFrame
    name: str = CAMERA_NAME

    def frame(self) -> CameraFrame:
        return self.picture


def painted(column: int, turn_deg: float = 0.0) -> CameraFrame:
    """A table, a blue disc and a red square, which is out of sight left of column 0."""
    image = np.full((192, 192, 3), (205, 175, 140), np.uint8)
    cv2.circle(image, (80, 70), 17, (20, 80, 230), cv2.FILLED)
    corners = cv2.boxPoints(((column, 70), (12, 12), turn_deg))
    cv2.fillPoly(image, [corners.round().astype(np.int32)], (230, 30, 20))
    return CameraFrame(image, 0.0)


def test_a_person_has_done_it_once_the_picture_is_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Incident: a gate that nobody watched ended where somebody could have helped it on."""
    camera, now_s = Showing(painted(20)), [0.0]
    rig = replace(embedded_rig(), cameras=(camera,))  # type: ignore[arg-type]
    monkeypatch.setattr(resetting.time, "monotonic", lambda: now_s[0])
    is_done = Resetter(NOMINAL)._is_done(rig, lambda: True)

    def waited(seconds: int) -> bool:
        done = False
        for _ in range(seconds):
            now_s[0] += 1.0
            done = is_done()
        return done

    assert not waited(30)  # it lies where the robot had given up
    camera.picture = painted(-20)
    assert not waited(30)
    camera.picture = painted(60)
    assert not waited(8)
    camera.picture = painted(66)  # a hand is at it
    assert not waited(10)
    assert waited(1)
    rig.close()


def test_an_object_on_the_target_is_seen_in_a_compressed_picture() -> None:
    """Incident: three of 65 objects in plain view were "not shown", and a person was called."""
    _, jpeg = cv2.imencode(".jpg", painted(80, 45.0).image, [cv2.IMWRITE_JPEG_QUALITY, 60])
    camera = Showing(CameraFrame(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), 0.0))
    seen = Eye(replace(embedded_rig(), cameras=(camera,)), SO101, NOMINAL).look()  # type: ignore[arg-type]
    tracker = Tracker.nominal(192)
    assert 0.5 < tracker.detect(camera.picture.image).object_area_ratio < 0.8
    assert seen.is_seen
    assert np.linalg.norm(seen.object_m - seen.target_m) < 0.005


def test_starts_lie_beside_the_target_and_are_the_cells_own_where_they_can_be() -> None:
    rig = embedded_rig()
    for seed in range(60):
        rig.reset(seed)
        truth = rig.cell.truth()
        own_m, target_m = (np.array(truth[k])[:2] for k in ("object_pos_m", "target_pos_m"))
        assert np.allclose(drawn_start(seed, {}, SO101, target_m)[0], own_m, atol=1e-9)
        fixed_m = np.add(SO101.spawn_centre_m, (0.08, 0.0))
        place_m, _ = drawn_start(seed, {}, SO101, fixed_m)
        assert np.linalg.norm(place_m - fixed_m) >= OBJECT_TARGET_GAP_M
        apart = np.linalg.norm(own_m - fixed_m) >= OBJECT_TARGET_GAP_M
        assert bool(np.allclose(place_m, own_m)) is bool(apart)
    rig.close()


@pytest.mark.parametrize("quarters", [0, 1])
def test_a_calibrated_camera_sees_what_the_cells_own_tracker_sees(
    tmp_path: Path, quarters: int
) -> None:
    """A real station's camera may stand any way round; its calibration says how."""
    rig = embedded_rig()
    rig.reset(5)
    size = rig.cell.image_size
    focal_px = 0.5 * size / np.tan(np.radians(SO101.camera_fovy_deg) / 2.0)
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, np.array(scene.CAMERA_QUAT))
    T_base_camera = np.eye(4)
    # MuJoCo looks along -z with y up, OpenCV along z with y down; then a turn about that axis.
    angle = quarters * np.pi / 2
    about = [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    T_base_camera[:3, :3] = turn.reshape(3, 3) @ np.diag([1.0, -1.0, -1.0]) @ about
    T_base_camera[:3, 3] = SO101.camera_pos_m
    centre = 0.5 * size - 0.5
    content = {
        "cameras": {
            CAMERA_NAME: {
                "intrinsics": {
                    "width": size, "height": size, "lens": "standard", "distortion": [0.0] * 5,
                    "at": AT,
                    "camera_matrix": [[focal_px, 0, centre], [0, focal_px, centre], [0, 0, 1]],
                },
                "hand_eye": {
                    "at": AT, "setup": "eye_to_hand", "T_mount_camera": T_base_camera.tolist(),
                    "T_far_board": np.eye(4).tolist(),
                },
            }
        }
    }  # fmt: skip
    written = {"schema": SCHEMA, "id": calibration_id(content), "content": content, "history": []}
    (tmp_path / "lab.calibration.json").write_text(json.dumps(written))
    station = Station("lab", scene=StationScene(CAMERA_NAME))
    real = tracker_for(station, tmp_path / "lab.yaml")
    picture = rig.cameras[0].frame()
    turned = Showing(replace(picture, image=np.rot90(picture.image, quarters).copy()))
    cell = Eye(rig, SO101, NOMINAL).look()
    seen = Eye(replace(rig, cameras=(turned,)), SO101, real).look()  # type: ignore[arg-type]
    assert seen.is_seen
    assert np.allclose(seen.object_m, cell.object_m, atol=0.002)
    assert np.allclose(seen.target_m, cell.target_m, atol=0.002)
    quarter = np.pi / 2
    off_rad = (seen.yaw_rad - cell.yaw_rad + quarter / 2) % quarter - quarter / 2
    assert abs(off_rad) < 0.05
    rig.close()

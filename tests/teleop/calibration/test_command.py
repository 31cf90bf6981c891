"""`gaploop calibrate` as its user meets it: folders of pictures, one line for what is wrong."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import zmq
from calibration_makers import (
    CHARUCO,
    SMALL_CHARUCO,
    Picture,
    arm,
    arm_poses,
    camera,
    render,
    scene,
    spread_poses,
)

from gaploop.collect.calibration import PICTURES, take_poses
from gaploop.core.messages import CameraFrame, FloatArray, FollowerState, Image, SafeCommand
from gaploop.scripts.cli import main
from gaploop.teleop.calibration.store import joints_row, load_calibration, read_image, write_image

SMALL = ["--board=7x5:16"]
WHERE = scene("eye_in_hand", SMALL_CHARUCO)


@functools.lru_cache(maxsize=1)
def pictures() -> tuple[Image, ...]:
    lens = WHERE.lens
    poses = spread_poses(CHARUCO, lens, 9)
    return tuple(render(CHARUCO, lens, T, Picture(seed=i)) for i, T in enumerate(poses))


@pytest.fixture
def lens_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lens"
    folder.mkdir()
    for i, image in enumerate(pictures()):
        write_image(folder / f"img{i}.png", image)
    return folder


@functools.lru_cache(maxsize=1)
def poses() -> tuple[tuple[FloatArray, Image], ...]:
    found = arm_poses(WHERE, 8)
    return tuple((q, WHERE.picture(q, Picture(seed=i))) for i, q in enumerate(found))


def pose_folder(tmp_path: Path, *, joints: bool = True) -> Path:
    folder = tmp_path / "poses"
    folder.mkdir()
    lines = []
    for i, (q, image) in enumerate(poses()):
        write_image(folder / f"{i}.png", image)
        if joints:
            lines.append(joints_row(f"{i}.png", arm().joint_names, q))
        else:
            T = arm().T_base_tcp(q).tolist()
            lines.append(json.dumps({"image": f"{i}.png", "T_base_tcp": T}))
    (folder / "poses.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def calibrate(*arguments: object) -> int:
    return main(["calibrate", *(str(a) for a in arguments)])


def error_line(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run what can't work and return the one line that says why."""
    assert calibrate(*arguments) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(said)
    assert said[-1].startswith("gaploop calibrate: ")
    return said[-1]


def test_from_pictures_to_the_file_that_takes_name(
    lens_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lab.calibration.json"
    station = tmp_path / "lab.yaml"
    station.write_text("name: lab\n")
    at = f"--station={station}"
    assert calibrate("intrinsics", lens_folder, "--camera_name=wrist", at, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert answer["camera_matrix"][0][0] == pytest.approx(480, rel=0.005)
    picture = read_image(Path(answer["picture"]))
    assert picture.shape[0] > 300
    assert picture.std() > 10  # something is drawn
    folder = pose_folder(tmp_path)
    options = ("--camera_name=wrist", "--arm_model=so101", at, *SMALL)
    assert calibrate("hand_eye", folder, *options, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    off_m = np.array(answer["T_mount_camera"])[:3, 3] - WHERE.T_mount_camera[:3, 3]
    assert np.linalg.norm(off_m) < 0.001
    calibration = load_calibration(file)
    assert answer["calibration"] == calibration.id
    assert set(calibration.content["cameras"]["wrist"]) == {"intrinsics", "hand_eye"}
    assert calibrate("show", at) == 0
    shown = capsys.readouterr().out
    assert calibration.id in shown
    assert "cameras.wrist.hand_eye" in shown
    # The camera's name is not needed once there is only one, nor is the report in the way.
    assert calibrate("intrinsics", lens_folder, at) == 0
    shutil.rmtree(folder)
    folder = pose_folder(tmp_path, joints=False)
    assert calibrate("hand_eye", folder, *options) == 0
    assert "T_tcp_camera" in capsys.readouterr().out


def test_what_is_wrong_with_pictures_is_one_line(
    lens_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, file = "--camera_name=front", f"--station={tmp_path / 'x.yaml'}"
    run = functools.partial(error_line, capsys)
    assert "--camera_name=wrist" in run("intrinsics", lens_folder, file)
    assert "Which folder" in run("intrinsics", name, file)
    assert "not found" in run("intrinsics", tmp_path / "none", name, file)
    (tmp_path / "empty").mkdir()
    assert "holds no pictures" in run("intrinsics", tmp_path / "empty", name, file)
    assert "squares" in run("intrinsics", lens_folder, name, file, "--board=7x6:28")
    assert "Did you mean" in run("intrinsics", lens_folder, name, file, "--board=8x6:28:21:4X4_51")
    assert "can't be read" in run("intrinsics", lens_folder, name, file, "--board=circles")
    assert "calibrate intrinsics" in run("hand_eye", lens_folder, name, file)
    assert "No calibration" in run("show", file)
    (lens_folder / "broken.png").write_bytes(b"not a picture")
    assert "broken.png" in run("intrinsics", lens_folder, name, file)
    (lens_folder / "broken.png").unlink()
    small = cv2.resize(pictures()[0], (320, 240))
    write_image(lens_folder / "small.png", np.asarray(small))
    assert "small.png (320x240)" in run("intrinsics", lens_folder, name, file)
    for path in sorted(lens_folder.glob("*.png"))[5:]:
        path.unlink()
    assert "8 are needed" in run("intrinsics", lens_folder, name, file)
    assert not (tmp_path / "x.json").exists()


def test_what_is_wrong_with_poses_is_one_line(
    lens_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"--station={tmp_path / 'x.yaml'}"
    assert calibrate("intrinsics", lens_folder, "--camera_name=wrist", file) == 0
    capsys.readouterr()
    run = functools.partial(error_line, capsys, "hand_eye")
    assert "no poses.jsonl" in run(lens_folder, file)
    folder = pose_folder(tmp_path)
    assert "--arm_model=so101" in run(folder, file, *SMALL)
    assert "so101" in run(folder, file, *SMALL, "--arm_model=so102")
    wrong = run(folder, file, *SMALL, "--arm_model=so101", "--setup=eye_to_hand")
    assert "Refused" in wrong
    assert "--setup=eye_in_hand" in wrong
    assert (
        "hand_eye"
        not in load_calibration(tmp_path / "x.calibration.json").content["cameras"]["wrist"]
    )
    rows = (folder / "poses.jsonl").read_text().splitlines()
    degrees = json.loads(rows[0])
    degrees["q_rad"]["elbow_flex"] = 57.3
    spoiled = {
        "radians": json.dumps(degrees),
        "isn't JSON": "{",
        "'image' is missing": "{}",
        "no such picture": rows[0].replace("0.png", "9.png"),
        "elbow_flex is missing": rows[0].replace("elbow_flex", "elbow"),
        "4x4": json.dumps({"image": "0.png", "T_base_tcp": [1, 2]}),
    }
    for says, row in spoiled.items():
        (folder / "poses.jsonl").write_text("\n".join([row, *rows[1:]]))
        assert says in run(folder, file, *SMALL, "--arm_model=so101")


def test_a_board_to_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "board.pdf"
    assert calibrate("board", sheet, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["page"] == "A4"
    assert sheet.read_bytes().startswith(b"%PDF")
    assert "doesn't fit" in error_line(capsys, "board", sheet, "--board=8x6:90")


class Stand:
    """An arm and a camera on it that stand at one pose after the other, on a clock of their own.

    A look takes a tenth of a second.
    """

    name = "wrist"
    joint_names = arm().joint_names

    def __init__(self, looks: int) -> None:
        self._shown = list(itertools.chain.from_iterable([pose] * looks for pose in poses()))
        self._n = -1

    def frame(self) -> CameraFrame:
        self._n = min(self._n + 1, len(self._shown) - 1)
        return CameraFrame(self._shown[self._n][1], self._n * 0.1)

    def read(self) -> FollowerState:
        nothing = np.full(6, np.nan)
        q = self._shown[self._n][0]
        return FollowerState(0.0, q, *[nothing] * 5, np.zeros(6, dtype=np.int64))

    def send(self, _command: SafeCommand) -> None:
        raise AssertionError("an arm that is held by hand must not be moved")


def test_poses_taken_by_hand_make_a_calibration(
    lens_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "taken"
    folder.mkdir()
    stand = Stand(7)
    take_poses(stand, stand, arm(), SMALL_CHARUCO, folder, 8)  # type: ignore[arg-type]
    assert len(list(folder.glob("*.png"))) == 8
    # Begun again, it goes on rather than over what is there.
    again = Stand(7)
    take_poses(again, again, arm(), SMALL_CHARUCO, folder, 8)  # type: ignore[arg-type]
    assert len(list(folder.glob("*.png"))) == 8
    file = f"--station={tmp_path / 'x.yaml'}"
    assert calibrate("intrinsics", lens_folder, "--camera_name=wrist", file) == 0
    assert calibrate("hand_eye", folder, "--arm_model=so101", file, *SMALL) == 0
    off_m = load_calibration(tmp_path / "x.calibration.json").hand_eye("wrist").T_mount_camera
    assert np.linalg.norm(off_m[:3, 3] - WHERE.T_mount_camera[:3, 3]) < 0.001
    capsys.readouterr()


@pytest.fixture
def served() -> Iterator[int]:
    """Serve the pictures as LeRobot's image server does, each for a while; yields the port."""
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.setsockopt(zmq.LINGER, 0)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    stop = threading.Event()
    shown = [
        render(CHARUCO, WHERE.lens, T, Picture(seed=i))
        for i, T in enumerate(spread_poses(CHARUCO, WHERE.lens, 32))  # more than are taken
    ]
    encoded = [cv2.imencode(".jpg", p, [cv2.IMWRITE_JPEG_QUALITY, 95])[1] for p in shown]

    def publish() -> None:
        for n in itertools.count():
            image = base64.b64encode(encoded[n // 18 % len(encoded)]).decode()
            stamps = {"images": {"front": image}, "timestamps": {"front": time.time()}}
            socket.send_string(json.dumps(stamps))
            if stop.wait(0.05):
                return

    thread = threading.Thread(target=publish)
    thread.start()
    yield port
    stop.set()
    thread.join()
    socket.close()
    context.term()


@pytest.mark.slow
def test_pictures_are_taken_from_a_lerobot_camera_and_kept_after_ctrl_c(
    served: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "taken", f"--station={tmp_path / 'x.yaml'}"
    camera_options = ("--camera.type=zmq", "--camera.server_address=127.0.0.1",
                      f"--camera.port={served}", "--camera.camera_name=front")  # fmt: skip

    def interrupt() -> None:
        while len(list(folder.glob("*.png"))) < 3 and not over.wait(0.1):
            pass
        if not over.is_set():
            signal.raise_signal(signal.SIGINT)

    over = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        said = error_line(
            capsys, "intrinsics", folder, "--camera_name=front", file, *camera_options
        )
    finally:
        over.set()
        thread.join()
    assert "8 are needed" in said
    kept = len(list(folder.glob("*.png")))
    assert 3 <= kept < 8
    options = ("--camera_name=front", file, *camera_options)
    assert calibrate("intrinsics", folder, *options) == 0
    assert len(list(folder.glob("*.png"))) >= PICTURES
    found = load_calibration(tmp_path / "x.calibration.json").intrinsics("front")
    assert found.focal_px == pytest.approx(WHERE.lens.focal_px, rel=0.01)
    assert camera(focal_px=480).focal_px == WHERE.lens.focal_px

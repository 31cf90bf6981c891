"""`gaploop emulate`: what it prints, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import serial

from gaploop.core import platform_calls
from gaploop.scripts import emulate
from gaploop.scripts.cli import main
from gaploop.teleop.servos import feetech


@contextmanager
def running(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gaploop.scripts.cli", "emulate", *options],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def event(process: subprocess.Popen[str], wanted: str) -> dict[str, object]:
    assert process.stdout is not None
    for line in process.stdout:
        found = json.loads(line)
        if found["event"] == wanted:
            return dict(found)
    raise AssertionError(f"ended without {wanted}")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_ends_it_and_removes_its_link(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with running(tmp_path, "--link=./arm", "--json") as process:
        assert event(process, "ready")["port"] == "arm"
        with serial.Serial(str(tmp_path / "arm"), 1_000_000, timeout=120) as port:
            port.write(feetech.ping(1))
            assert port.read(6) == feetech.status(1, 0)
        process.send_signal(number)
        assert process.wait(timeout=120) == code
        assert not os.path.lexists(tmp_path / "arm")


def test_commands_and_faults_are_told_as_events(tmp_path: Path) -> None:
    with running(tmp_path, "--json", "--faults=[{fault: overheat, id: 2, for_s: 600}]") as process:
        event(process, "ready")
        assert event(process, "faults")["active"] == ["overheat 2"]
        assert process.stdin is not None
        process.stdin.write("dance\nfault clear\nstatus\nquit\n")
        process.stdin.flush()
        assert "Unknown command 'dance'" in str(event(process, "refused")["why"])
        servos = event(process, "status")["servos"]
        assert isinstance(servos, list)
        assert servos[0]["name"] == "shoulder_pan"
        event(process, "end")
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model=so102"], "Did you mean 'so101'"),
        (["--role=boss"], "One of: follower, leader"),
        (["--hand=dance"], "Unknown hand"),
        (["--plant=gazebo"], "Unknown plant"),
        (["--cameras=top"], "Add --plant=mujoco"),
        (["--plant=mujoco", "--cameras=back"], "One of: side, top"),
        (["--plant=mujoco", "--cameras=top:99999"], "99999"),
        (["--faults=nowhere.yaml"], "nowhere.yaml"),
        (["--faults=[{fault: melt}]"], "Unknown fault 'melt'"),
        (["--faults=[{fault: vanish, id: 44}]"], "No servo has id 44"),
        (["--servos={elbow: null}"], "Unknown servo 'elbow'"),
        (["--servos={gripper: 5}"], "must map fields to values"),
        (["--servos={gripper: {model: ax12}}"], "Unknown servo model 'ax12'"),
        (["--servos={gripper: {Goal: 1}}"], "Unknown register 'Goal'"),
        (["--link=/nowhere/at/all"], "can't be made"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_servos_can_be_changed_and_taken_away(tmp_path: Path) -> None:
    changes = "--servos={gripper: {id: 5}, elbow_flex: null, wrist_flex: {Max_Torque_Limit: 300}}"
    with running(tmp_path, "--json", changes) as process:
        assert event(process, "ready")["ids"] == [1, 2, 4, 5, 5]


def test_a_calibration_is_written_for_lerobot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lerobot.motors import MotorCalibration

    file = tmp_path / "robots" / "so_follower" / "x.json"
    before = platform_calls.HAS_REALTIME and os.sched_getscheduler(0)
    monkeypatch.setattr(emulate._Lines, "wait", lambda *_: ["quit"])
    assert main(["emulate", f"--calibration={file}", "--json"]) == 0
    assert (platform_calls.HAS_REALTIME and os.sched_getscheduler(0)) == before
    read = {
        name: MotorCalibration(**fields) for name, fields in json.loads(file.read_text()).items()
    }
    assert read["gripper"].id == 6

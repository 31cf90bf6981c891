"""`gaploop serve` as its user has it: a leader and a policy lent to a robot elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patient_wire import LoopTime

from gaploop.collect.lerobot_types import registries
from gaploop.scripts import _serve as serve
from gaploop.scripts.cli import main
from gaploop.scripts.options import PolicyOptions
from gaploop.scripts.serve import ServeConfig
from gaploop.teleop import lerobot_leaders, link
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.leaders import remote


def said_at_the_robot(line: str, name: str) -> list[str]:
    """Return the options that the line tells to use."""
    found = re.findall(rf"--{name}\.\w+=\S+", line)
    assert found, line
    return found


def leader_of(folder: Path) -> list[str]:
    return [
        "--teleop.type=so101_leader", f"--teleop.port={folder / 'leader'}",
        "--teleop.id=leader", f"--teleop.calibration_dir={folder}",
    ]  # fmt: skip


@contextlib.contextmanager
def arm(folder: Path, role: str) -> Iterator[None]:
    plan = arm_plan("so101", role).calibrated()
    (folder / f"{role}.json").write_text(json.dumps(plan.calibration()))
    with EmulatedBus(plan=plan, hand="still", link=folder / role):
        yield


def test_a_leader_arm_is_lent_until_a_signal_comes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    loop_time: LoopTime,
) -> None:
    def look(_wait_s: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.delenv("GAPLOOP_LINK_TOKEN", raising=False)
    monkeypatch.setattr(serve, "MonotonicClock", lambda: loop_time)
    monkeypatch.setattr(serve, "time", SimpleNamespace(sleep=look))
    with arm(tmp_path, "leader"):
        words = ["serve", "leader", *leader_of(tmp_path), "--port=0", "--host=127.0.0.1"]
        assert main(words) == 128 + signal.SIGTERM
    said = capsys.readouterr()
    assert "so101_leader leads whoever connects" in said.out
    assert said_at_the_robot(said.out, "teleop")
    assert "Traceback" not in said.err


def test_a_leader_arm_leads_an_arm_elsewhere(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    loop_time: LoopTime,
) -> None:
    """All on one clock: neither link nor leader is slow because the machine is busy."""
    links = list[remote.LeaderLink]()

    class Noted(remote.LeaderLink):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            links.append(self)

    def be_answered() -> None:
        for one in links:
            while loop_time.now_s() - one.newest()[0] > 0.1:
                time.sleep(0.001)

    monkeypatch.setattr(lerobot_leaders, "LeaderLink", Noted)
    monkeypatch.setattr(serve, "MonotonicClock", lambda: loop_time)
    for module in (remote, lerobot_leaders):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop_time.now_s))
    loop_time.on_turn = be_answered
    token = link.new_token()
    monkeypatch.setenv("GAPLOOP_LINK_TOKEN", token)
    leader = registries()[1].get_choice_class("so101_leader")(
        port=str(tmp_path / "leader"), id="leader", calibration_dir=tmp_path
    )
    with arm(tmp_path, "follower"), arm(tmp_path, "leader"), contextlib.ExitStack() as stack:
        kind, max_bytes, talk, words = serve._leader(SimpleNamespace(teleop=leader), stack)
        port = stack.enter_context(
            link.listening(kind, token, talk, host="127.0.0.1", port=0, max_bytes=max_bytes)
        )
        told = said_at_the_robot(words(f"127.0.0.1:{port}", ""), "teleop")
        robot = ["--robot.type=so101_follower", f"--robot.port={tmp_path / 'follower'}"]
        options = [*robot, "--robot.id=follower", f"--robot.calibration_dir={tmp_path}"]
        assert main(["teleoperate", *options, *told, "--teleop_time_s=0.5", "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
    assert summary["teleop"] == "remote"
    assert summary["ended"] == "time"
    # The leader's own thread makes time go on, too: a period is a turn, or told as missed.
    assert summary["turns"] + summary["missed"] in (99, 100)


def test_a_policy_drives_the_embedded_cell_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = link.new_token()
    monkeypatch.setenv("GAPLOOP_LINK_TOKEN", token)
    config = ServeConfig(policy=PolicyOptions("base"))
    with contextlib.ExitStack() as stack:
        kind, max_bytes, talk, words = serve._policy(config, stack)
        port = stack.enter_context(
            link.listening(kind, token, talk, host="127.0.0.1", port=0, max_bytes=max_bytes)
        )
        told = said_at_the_robot(words(f"127.0.0.1:{port}", ""), "policy")
        cell = ["--robot.type=so101_sim", "--take_over=never", f"--dataset.root={tmp_path / 'r'}"]
        few = ["--dataset.num_episodes=1", "--dataset.episode_time_s=0.4", "--json"]
        assert main(["rollout", *told, *cell, *few]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["takes"] == 1
    assert not summary["faults"]
    assert summary["policy"]["link_p50_ms"] > 0


def test_a_policy_elsewhere_is_timed_over_the_link_before_it_drives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doctor knew local policies only, so that the one that needs a GPU was never checked."""
    token = link.new_token()
    monkeypatch.setenv("GAPLOOP_LINK_TOKEN", token)
    config = ServeConfig(policy=PolicyOptions("base", device="cpu", format="bf16"))
    with contextlib.ExitStack() as stack:
        kind, max_bytes, talk, _ = serve._policy(config, stack)
        port = stack.enter_context(
            link.listening(kind, token, talk, host="127.0.0.1", port=0, max_bytes=max_bytes)
        )
        path, cell = f"--policy.path=remote://127.0.0.1:{port}", "--robot.type=so101_sim"
        command = ["doctor", path, cell, "--move=false", f"--journal={tmp_path}", "--json"]
        assert main(command) == 1  # nothing was moved
        answer = json.loads(capsys.readouterr().out)
    found = {item["area"]: item for item in answer["findings"]}
    assert answer["runs"] == f"127.0.0.1:{port} (cpu, bf16, 1 thread)"
    assert found["latency"]["found"].startswith(answer["runs"])
    assert "on another machine" in found["features"]["found"]
    assert main(["doctor", path]) == 2
    assert "--robot.type" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Unknown thing to serve"),
        (["arm"], "One of: leader, policy"),
        (["leader"], "scripted needs the robot beside it"),
        (["leader", "--teleop.type=keyboard"], "keyboard needs the robot beside it"),
        (["policy"], "--policy.path"),
        (["policy", "--policy.path=nowhere"], "nowhere not found"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["serve", "policy", "--policy.path=base", f"--port={port}", "--host=127.0.0.1"]
        assert main(words) == 2
    assert "Name another with --port" in capsys.readouterr().err

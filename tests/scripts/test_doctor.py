"""gaploop doctor of a policy on an arm: the exit code, the JSON, and a record for rollout."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gaploop.collect.preflight import Checked, Terminal, missing
from gaploop.finetune.lerobot_policy import policy_id
from gaploop.scripts import cli

SIM = "--robot.type=so101_sim"
LOOKED_AT = {
    "this machine", "speed", "arm", "cameras", "features", "statistics", "latency", "limits",
}  # fmt: skip


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["doctor", "--policy.path=base", "--json", *arguments])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


def test_what_only_looks_passes_in_the_cell_and_what_wasnt_tried_stays_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = doctor(capsys, SIM, f"--journal={tmp_path / 'j'}", "--move=false")
    results = {item["area"]: item["level"] for item in answer["findings"]}
    assert set(results) == {*LOOKED_AT, "joint_order", "estop"}
    timed = {"latency", "cameras"}  # how they come out says how busy the machine is
    assert {results[name] for name in LOOKED_AT - timed} <= {"ok", "warn"}
    assert (results["joint_order"], results["estop"]) == ("unanswered", "unanswered")
    assert (code, answer["ok"]) == (1, False)
    checked = Checked(policy_id("base"), "so101_sim", "cpu, fp32, 1 thread")
    assert "has to be fixed" in missing(tmp_path / "j", checked)


@pytest.mark.slow
def test_the_embedded_cell_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = doctor(capsys, SIM, f"--journal={tmp_path / 'j'}")
    assert (code, answer["ok"]) == (0, True), answer
    joints = [i for i in answer["findings"] if i["area"] == "joint_order"]
    assert [item["by"] for item in joints] == ["machine"] * 6
    assert (
        missing(tmp_path / "j", Checked(policy_id("base"), "so101_sim", "cpu, fp32, 1 thread"))
        == ""
    )


def test_an_arm_that_doesnt_answer_is_an_item_and_not_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = doctor(
        capsys, "--robot.type=so101_follower", f"--robot.port={tmp_path / 'none'}", "--robot.id=f",
        f"--journal={tmp_path / 'j'}",
    )  # fmt: skip
    failed = {item["area"] for item in answer["findings"] if item["level"] == "fail"}
    assert code == 1
    assert failed == {"arm"}


def in_a_terminal(monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> int:
    """Make standard input a terminal; return its other end."""
    host, device = pty.openpty()
    stack.callback(os.close, host)
    typed = stack.enter_context(os.fdopen(device, "r"))
    monkeypatch.setattr(sys, "stdin", typed)
    return host


def test_a_terminal_is_asked_until_it_gives_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        host, person = in_a_terminal(monkeypatch, stack), Terminal()
        stack.enter_context(person.listening(lambda: None, lambda: False))
        os.write(host, b"perhaps\r1\x7fY\r")
        assert person.ask("Is it so?", {"y": "yes", "n": "no"}) == "y"
        other = Terminal()
        with other.listening(lambda: None, gone=lambda: True):
            assert other.ask("Still?", {"y": "yes"}) is None
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # a pipe is nobody
    assert Terminal().ask("Is it so?", {"y": "yes"}) is None
    assert not Terminal().instruct("Pull the plug.")


def test_a_space_stops_the_arm_while_a_question_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arm held, and moved, while lines were read: a space did nothing until Enter, and then
    was a wrong answer.
    """
    stops: list[str] = []
    with ExitStack() as stack:
        host, person = in_a_terminal(monkeypatch, stack), Terminal()
        stack.enter_context(person.listening(lambda: stops.append("stop"), lambda: False))
        os.write(host, b"y ")
        assert person.ask("Which joint has moved?", {"y": "yes"}) is None
    assert stops == ["stop"]
    assert person.stopped


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--policy.path=base", "--policy.format=fp7"], "fp7"),
        (["--measure=arm.json"], "--robot.type"),
    ],
)
def test_what_cant_be_done_is_said_at_once(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", *options]) == 2
    assert says in capsys.readouterr().err

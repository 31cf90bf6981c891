"""Attempts on a station that go wrong: hung commands, Ctrl-C, checks that make no sense."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest

from gaploop.collect.take import CALLS, HELP
from gaploop.core.errors import UnusableInputError
from gaploop.core.suite import Suite, SuiteTask
from gaploop.core.vocabulary import Domain
from gaploop.finetune.gate import attempts as station_attempts
from gaploop.finetune.gate.attempts import (
    CheckError,
    StageEvidence,
    StationAttempts,
    check_of,
)
from gaploop.finetune.gate.folder import SIDES, attempts, outcomes
from gaploop.finetune.gate.run import Gate

LIMIT_S = 1.0
TASK = SuiteTask("reach", timeout_s=0.25)
FIRST = next(attempts(1, "hardware", 1))


def made(
    path: Path, task: SuiteTask, command: str, answer: str, start_s: float
) -> tuple[StationAttempts, list[str], Path]:
    """Return attempts whose operator always says the same, what was asked, and the log."""
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return answer

    for name in ("gate", *SIDES):
        (path / name).mkdir()
    policies = {side: path / side for side in SIDES}
    station = StationAttempts(path / "gate", policies, [task], command, ask, start_s)
    return station, asked, path / "gate" / "attempts" / "hardware_00000" / "log.txt"


class Begun(subprocess.Popen[bytes]):
    """A program whose time is over as soon as it has begun, however busy the machine is."""

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None or timeout > LIMIT_S:
            return super().wait(timeout)
        assert isinstance(self.args, list)
        while not Path(self.args[-1]).exists():
            assert self.poll() is None
            time.sleep(0.01)
        return super().wait(timeout)


def test_a_command_that_never_ends_is_stopped_gently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung rollout held the gate, and the robot, for ever. It is asked to stop, not killed."""
    monkeypatch.setattr(station_attempts.subprocess, "Popen", Begun)
    program = "trap 'echo torque off; exit 0' INT; touch $0; while :; do sleep 0.05; done"
    command = f'bash -c "{program}" {tmp_path / "up"}'
    station, asked, log = made(tmp_path, TASK, command, "n", LIMIT_S - TASK.timeout_s)
    assert not station("hardware", FIRST).success
    assert "didn't end within 1 s and was stopped" in asked[-1]
    assert "torque off" in log.read_text()


def in_a_terminal_of_its_own(folder: Path) -> None:
    os.setsid()
    program = "trap 'sleep 0.6; echo torque off; exit 0' INT; touch {out}/up; sleep 20 & wait"
    station, *_ = made(folder, TASK, f'bash -c "{program}"', "y", 30.0)
    station("hardware", FIRST)


def test_ctrl_c_lets_the_command_let_go_of_the_robot(tmp_path: Path) -> None:
    """subprocess.run kills its program a quarter of a second after Ctrl-C, torque on or not."""
    # A program begun anew takes ten seconds to import what this one has.
    gate = get_context("fork").Process(target=in_a_terminal_of_its_own, args=(tmp_path,))
    gate.start()
    out = tmp_path / "gate" / "attempts" / "hardware_00000"
    while not (out / "up").exists() and gate.is_alive():
        time.sleep(0.05)
    assert gate.pid is not None
    os.killpg(gate.pid, signal.SIGINT)  # as a terminal does: to everybody
    gate.join()
    assert "torque off" in (out / "log.txt").read_text()


def test_a_try_that_did_not_count_leaves_nothing_to_judge(tmp_path: Path) -> None:
    """What a check found in the folder could be of the try before; how many there were is kept."""
    for name in ("gate", *SIDES):
        (tmp_path / name).mkdir()
    answers = iter(["", "again", "", "again", "", "y"])
    station = StationAttempts(
        tmp_path / "gate", {side: tmp_path / side for side in SIDES}, [TASK],
        "cp -n /dev/null {out}/take", lambda _question: next(answers),
    )  # fmt: skip
    assert station("hardware", FIRST).repeats == 2
    held = sorted(path.name for path in (tmp_path / "gate" / "attempts").iterdir())
    assert held == ["hardware_00000", "hardware_00000_2", "hardware_00000_3"]


def test_an_answer_can_be_taken_back_at_the_next_question(tmp_path: Path) -> None:
    """Three hundred answers by hand: a slip of the finger stood for ever, and counted."""
    for name in ("gate", *SIDES):
        (tmp_path / name).mkdir()
    answers = iter(["undo", "", "y", "undo", "again", "n", "", "undo", "safety", "y"])
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return next(answers)

    policies = {side: tmp_path / side for side in SIDES}
    station = StationAttempts(tmp_path / "gate", policies, [TASK], "", ask)
    turns = [turn for turn, _ in zip(attempts(1, "hardware", 1), range(2), strict=False)]
    done = [(turn, station("hardware", turn)) for turn in turns]
    assert "no attempt before" in asked[1]
    assert asked[4] == "Attempt 1, did it succeed? y, n, safety:"
    assert asked[6].startswith("Attempt 1: it failed. Attempt 2, reach.")
    assert [tried.before for _, tried in done] == ["", "safety"]
    found, sides = outcomes(done, 1), [SIDES.index(turn.side) for turn in turns]
    assert [bool(found.success[0, 0, side]) for side in sides] == [False, True]
    assert [bool(found.safety[0, 0, side]) for side in sides] == [True, False]


def test_the_operator_says_in_which_phase_it_failed(tmp_path: Path) -> None:
    """Asked only where a phase was declared, and of failures only."""
    for name in ("gate", *SIDES):
        (tmp_path / name).mkdir()
    answers = iter(["", "y", "", "n", "grab", "grasp", "", "safety", "?"])
    station = StationAttempts(
        tmp_path / "gate", {side: tmp_path / side for side in SIDES}, [TASK], "",
        lambda _question: next(answers), asks_phase=True,
    )  # fmt: skip
    turns = [turn for turn, _ in zip(attempts(1, "hardware", 1), range(3), strict=False)]
    assert [station("hardware", turn).phase for turn in turns] == ["", "grasp", ""]


def test_gaps_are_not_silently_left_out_on_a_station(tmp_path: Path) -> None:
    """A suite of the embedded cell with an operator: the gaps that it named were not there."""
    with pytest.raises(UnusableInputError, match="which only the embedded cell can inject"):
        made(tmp_path, replace(TASK, gaps={"contact_dynamics": 0.5}), "true", "y", 1.0)


def crashes(_shown: object) -> bool:
    """Fail as a check does whose camera is gone."""
    raise RuntimeError("no camera")


def chatty(_shown: object) -> bool:
    """Print as people's checks do."""
    print("distance 3 cm")
    return True


def checked(monkeypatch: pytest.MonkeyPatch, kind: str, function: object) -> SuiteTask:
    """Return a task whose check is that function."""
    monkeypatch.setitem(sys.modules, "cell_checks", SimpleNamespace(check=function))  # type: ignore[arg-type]
    return SuiteTask("reach", success_check=kind, check="cell_checks:check", timeout_s=0.2)


@pytest.mark.parametrize(
    ("kind", "function", "says"),
    [
        ("script", crashes, r"failed \(RuntimeError: no camera\)"),
        ("script", lambda _: "no", "returned 'no', not True or False"),
        ("script", lambda _: None, "returned None"),
        ("reward_model", lambda _: float("nan"), "returned nan, not a number"),
        ("reward_model", lambda _: "high", "returned 'high'"),
    ],
)
def test_a_check_that_makes_no_sense_is_no_outcome(
    monkeypatch: pytest.MonkeyPatch, kind: str, function: Callable[[object], object], says: str
) -> None:
    """The word "no" counted as a success, NaN as a failure, and a crash as the verdict reject."""
    check = check_of(checked(monkeypatch, kind, function))
    assert check is not None
    with pytest.raises(CheckError, match=says) as raised:
        check(StageEvidence("x"))
    assert raised.value.exit_code == 2


def test_a_check_may_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stdout is the verdict, one object of JSON and nothing else."""
    check = check_of(checked(monkeypatch, "script", chatty))
    assert check is not None
    assert check(StageEvidence("x"))
    assert capsys.readouterr().out == ""


def test_a_check_that_fails_on_a_station_is_put_to_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The robot has driven: the attempt is worth a question."""
    task = checked(monkeypatch, "script", crashes)
    station, asked, _log = made(tmp_path, task, "true", "y", 10.0)
    assert station("hardware", FIRST).success
    assert "no camera" in asked[-1]


def test_a_robot_that_resets_is_told_the_scene_and_nobody_is_asked(tmp_path: Path) -> None:
    for name in ("gate", *SIDES):
        (tmp_path / name).mkdir()
    asked: list[str] = []
    policies = {side: tmp_path / side for side in SIDES}
    task = replace(
        TASK, success_check="script", check="tests.finetune.gate.test_station_attempts:done"
    )
    station = StationAttempts(
        tmp_path / "gate", policies, [task], "echo rollout", lambda q: asked.append(q) or "n",
        reset="script",
    )  # fmt: skip
    assert station("hardware", FIRST).success
    assert not asked
    log = tmp_path / "gate" / "attempts" / "hardware_00000" / "log.txt"
    assert log.read_text().split() == ["rollout", "--reset=script", f"--reset_seed={FIRST.scene}"]


def by_robot(path: Path, script: str) -> tuple[StationAttempts, list[str]]:
    """Return attempts by a shell's script where a robot puts the scene back; and what is asked."""
    asked: list[str] = []
    for name in ("gate", *SIDES):
        (path / name).mkdir()
    policies = {side: path / side for side in SIDES}
    command = f"sh -c {shlex.quote(script)}"
    return StationAttempts(
        path / "gate", policies, [TASK], command, lambda q: asked.append(q) or "n", LIMIT_S,
        reset="script",
    ), asked  # fmt: skip


def test_what_failed_before_the_policy_drove_is_tried_again_unasked(tmp_path: Path) -> None:
    station, asked = by_robot(tmp_path, "exit 2")
    assert station("hardware", FIRST).repeats == station_attempts.MORE
    assert len(asked) == 1


def test_what_failed_once_the_policy_drove_is_never_tried_again(tmp_path: Path) -> None:
    """Else attempts that end badly would be left out."""
    station, asked = by_robot(tmp_path, "mkdir -p {out}/t/u; touch {out}/t/u/take.json; exit 2")
    assert station("hardware", FIRST).repeats == 0
    assert len(asked) == 1


def test_a_robot_that_calls_a_person_has_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(station_attempts, "LOOK_S", 0.05)
    monkeypatch.setattr(station_attempts, "RESET_S", 0.0)
    station, asked = by_robot(tmp_path, f"echo {CALLS}; sleep 1.5")
    assert not station("hardware", FIRST).success
    assert "stopped" not in asked[0]
    assert HELP in caplog.text


def done(_shown: StageEvidence) -> bool:
    return True


def test_what_an_emulated_station_shows_is_called_sim_to_sim() -> None:
    """Incident: a gate on an emulated arm ended in "Evidence: real robot"."""
    suite = Suite("s", (SuiteTask("t"),))
    for simulated, domain in ((True, Domain.SIM_TARGET), (False, Domain.REAL)):
        gate = Gate(suite, {}, station=lambda *_: None, simulated=simulated)  # type: ignore[arg-type,return-value]
        assert gate.domain is domain
        assert gate.sim_tasks == ()

"""A fleet of two: robots drive as the canary says, report, and lose a candidate that fails."""

from __future__ import annotations

import functools
import json
import threading
from contextlib import ExitStack, closing
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.test_rollout_arms import Bench

from gaploop.collect.campaign import Quota
from gaploop.collect.operator.console import ConsoleOperator, OperatorConsole, SessionLabels
from gaploop.collect.operator.keys import ROLLOUT, KeyMap
from gaploop.collect.operator.machine import StageTiming
from gaploop.collect.rollout import Attempts, RolloutNote, SpeedRamp
from gaploop.collect.take import record_takes
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import read_header, read_journal
from gaploop.core.labels import LabelEvent
from gaploop.core.messages import FloatArray, Observation
from gaploop.core.suite import CanaryRules, Suite, SuiteTask
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.finetune.gate.canary import ASSIGNMENT, REPORTS, AssignedPolicy, CanaryPhase, reported
from gaploop.finetune.gate.folder import Contest, GateFolder
from gaploop.scripts.cli import main

FLEET = ("arm_1", "arm_2")
RULES = CanaryRules(robots=1.0, share=0.5, episodes=20, fleet=FLEET, lease_s=600.0, alpha=0.5)
SUITE = Suite("t", (SuiteTask("t"),), canary=RULES)


class Driver:
    """A policy that only has a name."""

    fps, execute, robot_type, needs_scene, delay_s, camera_delay_s = 30.0, 1, "", False, 0.0, 0.0
    runs = "cpu"

    def __init__(self, id_: str) -> None:
        self.id = id_

    def reset(self) -> None: ...

    def act(self, observation: Observation) -> FloatArray:
        return observation.state

    def plan(self, observation: Observation) -> FloatArray:
        return observation.state[None]


def driver(id_: str) -> Any:
    return Driver(id_), id_


@pytest.fixture
def gate(tmp_path: Path) -> GateFolder:
    (tmp_path / "gate" / REPORTS).mkdir(parents=True)
    return GateFolder(tmp_path / "gate", Contest("base", "new", "suite"), seed=3)


def robot(gate: GateFolder, name: str, load: Any = driver) -> AssignedPolicy:
    source = str(gate.path / ASSIGNMENT)
    return AssignedPolicy(source, name, driver("base"), lambda _path: load("new"), gate.path)


def judged(folder: Path) -> LabelEvent:
    """Say of an episode, as a success detector does, that whoever isn't the baseline fails."""
    info = read_header(folder).info
    word = "success" if info.policy == "base" else "failure"
    return LabelEvent(info.uid, "outcome", word, "success_detector", "auto")


class Robot:
    """An emulated arm that drives episodes, of which those of the candidate fail."""

    def __init__(self, gate: GateFolder, name: str, folder: Path, stack: ExitStack) -> None:
        folder.mkdir()
        self._bench = Bench(folder, stack)
        self._driver, self._attempts = self._bench.driver, self._bench.attempts
        self._assigned = self._driver.policy = robot(gate, name)  # type: ignore[assignment]
        self._gate, self._attempts.detector = gate, judged

    def drive(self, episodes: int) -> list[str]:
        """Return who drove each, while the fleet's controller looks on."""
        drove = list[str]()

        def choose() -> str:
            reported(SUITE, self._gate.path / REPORTS, self._gate, "new")
            drove.append(self._assigned.choose(self._attempts))
            return drove[-1]

        self._attempts.choose = choose
        with closing(SessionLabels(self._bench.journal)) as book:
            console = OperatorConsole(
                StageTiming(9.0, 0.0, True), KeyMap(ROLLOUT), book, task="t", attended=False
            )

            def told() -> None:
                self._attempts.judged({uid: book.outcome(uid) for uid in self._attempts.notes})

            with self._bench.devices(is_watched=False) as devices:
                console.safety, console.driver = devices.safety, self._driver
                devices.start()
                record_takes(
                    self._bench.journal,
                    TakeInfo("", "t", kind=TakeKind.ROLLOUT, policy="base"),
                    [Quota(episodes)],
                    devices.rig,
                    devices.leader,
                    max_s=0.1,
                    operator=ConsoleOperator(console, devices, told, attempts=self._attempts),
                )
        self._assigned.report(self._attempts)
        return drove


@pytest.mark.usefixtures("loop_time")
def test_a_candidate_that_fails_is_taken_off_two_emulated_robots(
    gate: GateFolder, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        one, other = (Robot(gate, name, tmp_path / name, stack) for name in FLEET)
        assert sorted(other.drive(2)) == ["base", "new"]
        drove = one.drive(10)
        last = max(k for k, id_ in enumerate(drove) if id_ == "new")
        assert 2 <= drove.count("new") <= 4, "of every two episodes one, until it failed too often"
        assert set(drove[last + 1 :]) == {"base"}
        assert set(other.drive(2)) == {"base"}, "it is taken off the fleet, and nobody did that"
    canary = reported(SUITE, gate.path / REPORTS, gate, "new")
    assert canary.phase is CanaryPhase.ROLLED_BACK
    lines = [json.loads(line) for line in (gate.path / REPORTS / "arm_1.jsonl").open()]
    assert [(line["robot"], line["episode"]) for line in lines] == [("arm_1", k) for k in range(10)]
    assert all(line["success"] != line["candidate"] for line in lines)
    assert robot(gate, "arm_1").episode == 9, "a robot that starts anew goes on counting"


def test_whatever_is_wrong_the_baseline_drives(
    gate: GateFolder, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = Attempts(SpeedRamp(gate.path, "base", 1.0))
    file = gate.path / ASSIGNMENT

    def drove(one: AssignedPolicy, after_s: float = 0.0) -> set[str]:
        import time

        return {one.choose(attempts, lambda: time.time() + after_s) for _ in range(6)}

    assert drove(robot(gate, "arm_1")) == {"base"}, "there is no assignment yet"
    reported(SUITE, gate.path / REPORTS, gate, "new")
    assert drove(robot(gate, "arm_1")) == {"base", "new"}
    one = robot(gate, "arm_1")
    caplog.clear()
    assert drove(one) == {"base", "new"}
    assert drove(one, after_s=601.0) == {"base"}, "nobody watches any more"
    assert [r.getMessage() for r in caplog.records] == [
        "Episode 0: the candidate drives 50% of episodes.",
        "Episode 6: the candidate drives no more: the baseline drives.",
    ]
    assert drove(robot(gate, "stranger")) == {"base"}

    def gone(_name: str) -> Any:
        raise UnusableInputError("Policy new not found")

    assert drove(robot(gate, "arm_1", gone)) == {"base"}
    assert drove(robot(gate, "arm_1", lambda _name: driver("other"))) == {"base"}
    said = json.loads(file.read_text())
    for broken in ("{", "[]", json.dumps({**said, "baseline": "another"}), "{}"):
        file.write_text(broken)
        assert drove(robot(gate, "arm_1")) == {"base"}
    assert "The baseline drives" in caplog.text


def test_an_assignment_is_read_over_http_and_the_journal_keeps_the_reports(
    gate: GateFolder, tmp_path: Path
) -> None:
    reported(SUITE, gate.path / REPORTS, gate, "new")
    serve = functools.partial(SimpleHTTPRequestHandler, directory=str(gate.path))
    attempts = Attempts(SpeedRamp(gate.path, "base", 1.0))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/{ASSIGNMENT}"
        journal = tmp_path / "journal"
        one = AssignedPolicy(url, "arm_1", driver("base"), lambda _path: driver("new"), journal)
        assert {one.choose(attempts) for _ in range(6)} == {"base", "new"}
        server.shutdown()
    assert {one.choose(attempts) for _ in range(6)} == {"base"}, "it doesn't answer any more"
    attempts.notes["take"] = RolloutNote("take", 1.0, 0, 0.0)
    attempts.outcomes["take"] = Outcome.SUCCESS
    one.choose(attempts)
    assert json.loads((journal / "arm_1.jsonl").read_text())["success"]


def test_two_cells_roll_out_as_they_are_assigned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gaploop.finetune.lerobot_policy import policy_id

    ids = policy_id("base"), policy_id("base_vision")
    (tmp_path / "gate" / REPORTS).mkdir(parents=True)
    folder = GateFolder(tmp_path / "gate", Contest(*ids, "suite"), seed=1)
    reported(SUITE, folder.path / REPORTS, folder, "base_vision")
    command = ["rollout", "--policy.path=base", "--take_over=never", "--dataset.num_episodes=2"]
    command += ["--dataset.episode_time_s=0.2", f"--assignment={folder.path / ASSIGNMENT}"]
    assert main([*command, f"--dataset.root={tmp_path / 'none'}"]) == 2
    assert "--robot.id" in capsys.readouterr().err
    for name in FLEET:
        assert main([*command, f"--robot.id={name}", f"--dataset.root={tmp_path / name}"]) == 0
        lines = (folder.path / REPORTS / f"{name}.jsonl").read_text().splitlines()
        said = [json.loads(line) for line in lines]
        assert sorted(s["candidate"] for s in said) == [False, True]
        takes = read_journal(tmp_path / f"{name}_journal")
        assert {take.info.policy for take in takes} == set(ids)

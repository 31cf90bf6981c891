"""The demo types commands: which, each once, and what it says of what came of them.

What the commands do is the matter of their own tests, and of `test_find_out_why.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.core.plan import Plan, PlanItem, save_plan
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.core.vocabulary import Domain, GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis, save_diagnosis
from gaploop.failure_analysis.planning.remedies import PlanContext, commands
from gaploop.finetune.evaluation import NOMINAL, Rollout, summarise
from gaploop.scripts import _demo as demo
from gaploop.scripts import cli
from gaploop.scripts._arguments import parse
from gaploop.scripts.demo import DemoConfig


class Commands:
    """Stands for gaploop's commands: takes what is typed, and leaves what the demo reads."""

    def __init__(self) -> None:
        self.typed, self.code = list[list[str]](), dict[str, int]()

    def main(self, line: list[str]) -> int:
        module = __import__(f"gaploop.scripts.{line[0]}", fromlist=["run"])
        config = cli.config_class_of(module, line[0], line[1:])
        parse(config, line[1:], cli.positional(module), line[0])  # each option exists
        self.typed.append(line)
        if line[0] in self.code:
            return self.code[line[0]]
        said = dict(word.partition("=")[::2] for word in line)
        out, dimension = (
            Path(said.get("--output_dir", said.get("--dataset.root", ""))),
            GapDimension.SPATIAL_GEOMETRY,
        )
        is_a = "cell_a" in str(out)
        out.mkdir(parents=True, exist_ok=True)
        if line[0] == "evaluate":
            gapped = "--env.gaps" in said
            well = not gapped or said["--policy.path"] != "base"
            rollouts = [Rollout(k, NOMINAL, well) for k in range(int(said["--n"]))]
            domain = Domain.SIM_TARGET if gapped else Domain.SIM
            made = summarise(rollouts, domain=domain, policy=said["--policy.path"])
            write_json(out / "evaluation.json", made.to_json())
        elif line[0] == "identify":
            late = TwinParameter("actuator_response.latency.latency_s", "s", 0.0, 0.2,
                                 (0.19, 0.21), True, "look")  # fmt: skip
            save_twin(Twin("bench", "so101", (late,)), out / "station_twin.yaml")
        elif line[0] == "diagnose":
            share = {dimension.value: 1.0}
            take = TakeDiagnosis("u" * 26, 0, "slip", "grasp", share, 0.0, False, ())
            top = {"top": {dimension.value: 1}, "abstained": 0}
            save_diagnosis(Diagnosis("d1", "", (take,), top), out / "diagnosis.json")
        elif line[0] == "plan":
            about = PlanContext(out, "base", record_with=said["--record_with"])
            typed = () if is_a else commands("collect", dimension, about)
            item = PlanItem("p:1", dimension, takes=20 * (not is_a), commands=typed,
                            remedy="change_task" if is_a else "collect")  # fmt: skip
            save_plan(Plan("p", "d1", (item,)), out / "plan.yaml")
        return 0


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Commands:
    fake = Commands()
    monkeypatch.setattr(cli, "main", fake.main)
    return fake


def test_the_loop_is_typed_once_and_its_end_told(typed: Commands, tmp_path: Path) -> None:
    """A cell whose plan has only words, and one for which 20 episodes are collected."""
    folder = tmp_path / "out"
    assert demo.run(DemoConfig(folder, json=True)) == 0
    told = json.loads((folder / "demo.json").read_text())
    assert told["better"] == [False, True]
    a, b = told["loops"]
    assert (a["done"], a["verdict"]) == ("nothing: the plan has only words", "nothing done")
    assert (b["diagnosed"], b["plan"]) == ("spatial geometry 1×", "collect 20 episodes")
    assert b["after"]["successes"] == b["before"]["trials"] == 60
    assert "d1" in b["ids"]["plan"]
    counts = Counter(line[0] for line in typed.typed)
    assert counts == {"evaluate": 5, "rollout": 2, "identify": 1, "diagnose": 2, "plan": 2,
                      "record": 1, "finetune": 1}  # fmt: skip
    page = (folder / "report.html").read_text()
    assert "Nothing here was measured on a real robot" in page
    assert "gaploop finetune" in page
    assert demo.run(DemoConfig(folder, json=True)) == 0
    assert sum(counts.values()) == len(typed.typed)
    with pytest.raises(UnusableInputError, match="other settings"):
        demo.run(DemoConfig(folder, quick=True))


def test_what_fails_is_typed_again_and_a_remedy_that_fails_is_told(
    typed: Commands, tmp_path: Path
) -> None:
    typed.code = {"rollout": cli.INTERRUPTED}
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path, demo.QUICK)
    typed.code = {"record": 2}
    cells = demo.run_demo(tmp_path, demo.QUICK)
    assert [line[0] for line in typed.typed[:4]] == ["evaluate", "evaluate", "rollout", "rollout"]
    assert "--n=6" in typed.typed[0]
    assert cells[1].row[4] == "nothing: gaploop record failed; what it says is above."
    assert demo.message(cells).startswith("Cell A is not shown to be better")

"""The quick demo, run once: the whole loop on real files, and the thread of ids through it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gaploop.core import labels
from gaploop.core.journal_format import TRUTH, read_journal
from gaploop.core.plan import Plan, PlanItem, load_plan, save_plan
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.core.vocabulary import Domain, GapDimension, Outcome
from gaploop.datasets.frames import load_frames
from gaploop.failure_analysis.diagnosis import diagnose
from gaploop.finetune.closed_loop import TWIN, LoopBudget, TargetCell, roll_out_and_diagnose
from gaploop.finetune.demo import (
    DemoCell,
    DemoResult,
    draw_targets,
    run_demo,
    write_report,
)
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.reproduction import reproduced

TINY = LoopBudget(2, 2, 4, 10, reproduced=2, simulated=2, nominal=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo's folder in which the first cell is measured already, and the second, which isn't
    measured, has a plan that names what no command does."""
    folder = tmp_path_factory.mktemp("demo")
    name = "object_property.size.size_factor"
    small = TwinParameter(name, "1", 1.0, 0.55, (0.52, 0.58), True, "calipers")
    for name in "ab":
        (folder / f"cell_{name}").mkdir()
    save_twin(Twin("bench", "so101", (small,)), folder / "cell_a" / TWIN)
    task = GapDimension.TASK_SPECIFICATION
    item = PlanItem("p:t", task, takes=0, remedy="change_task", why="", protocol="")
    save_plan(Plan("p", "d", (item,)), folder / "cell_b" / "plan.yaml")
    return folder


@pytest.fixture(scope="module")
def demo(folder: Path) -> Iterator[DemoResult]:
    drawn = (
        TargetCell({"object_property.size": 0.9}, 1),
        TargetCell({"task_specification.tolerance": 1.0}, 1),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gaploop.finetune.demo.STATIONS", drawn)
        patch.setattr("gaploop.finetune.demo.QUICK", TINY)
        # Two more processes that import torch take longer than all the rollouts.
        patch.setattr("gaploop.finetune.demo.evaluate", partial(evaluate, workers=1))
        one = partial(roll_out_and_diagnose, workers=1)
        patch.setattr("gaploop.finetune.demo.roll_out_and_diagnose", one)
        yield run_demo(folder, None, base="base", quick=True, say=lambda *_: None)


def adapted(demo: DemoResult) -> DemoCell:
    return demo.cells[0]


def test_two_dimensions_of_all_nine_are_drawn_and_cells_in_which_nothing_fails_anew() -> None:
    """A demo began with a cell in which the base did 95 of 100 scenes: nothing to find out."""
    drawn = [draw_targets(seed) for seed in range(40)]
    assert drawn[0] == draw_targets(0)
    assert all(set(one.gaps).isdisjoint(other.gaps) for one, other in drawn)
    assert {d for both in drawn for cell in both for d in cell.gaps} == set(GapDimension)
    strong = draw_targets(0, lambda cell: min(cell.gaps.values()) > 0.9)
    assert all(min(cell.gaps.values()) > 0.9 for cell in strong)


def test_every_stage_names_the_one_before(demo: DemoResult) -> None:
    loop = adapted(demo)
    failed = {
        t.info.uid
        for t in read_journal(loop.folder / "rollouts_journal")
        if t.outcome is Outcome.FAILURE
    }
    assert {t.uid for t in loop.diagnosis.takes} == failed
    plan = load_plan(loop.folder / "plan.yaml")
    assert plan.diagnosis == loop.diagnosis.id
    assert plan.items[0].remedy == "resimulate"
    takes = load_frames(loop.folder / "resimulated", []).episodes
    run = json.loads((loop.folder / loop.run_folder / "run.json").read_text())
    assert {t.info.uid for t in takes if t.outcome is Outcome.SUCCESS} <= set(
        run["lineage"]["takes"]
    )
    assert run["lineage"]["base"] == loop.lineage["base"] == loop.before.policy
    assert loop.after is not None
    assert loop.after.policy == loop.lineage["policy"] == run["result"]["policy"]


def test_failed_rollouts_are_tagged_with_what_was_diagnosed(demo: DemoResult) -> None:
    loop = adapted(demo)
    said = labels.current(labels.read(loop.folder / "rollouts" / "meta/gap/labels.jsonl"))
    episodes = {e.info.uid: e for e in load_frames(loop.folder / "rollouts", []).episodes}
    for take in loop.diagnosis.takes:
        assert said[take.uid]["failure_mode"] == take.mode == episodes[take.uid].failure_mode
        if not take.abstained:
            assert take.top in episodes[take.uid].info.dimensions


def test_the_diagnosis_is_the_same_without_the_truth(demo: DemoResult) -> None:
    """What was injected stands in truth.jsonl; a diagnosis that opened it would cheat."""
    loop = demo.cells[0]
    journal = loop.folder / "rollouts_journal"
    assert (journal / TRUTH).exists()
    (journal / TRUTH).unlink()
    takes = list(read_journal(journal))
    assert loop.twin is not None
    # unlabelled: the automatic labels must not feed back either
    again = reproduced(
        diagnose(takes), takes, loop.twin, "base", loop.folder / "reproduction", n=2, workers=1
    )
    assert [t.dimensions for t in again.takes] == [t.dimensions for t in loop.diagnosis.takes]


def test_the_target_cells_are_called_sim_to_sim(demo: DemoResult, folder: Path) -> None:
    assert all(loop.before.domain is Domain.SIM_TARGET for loop in demo.cells)
    assert "Sim-to-sim" in adapted(demo).verdict.message  # type: ignore[union-attr]
    page = write_report(demo, folder, 1.0).read_text()
    assert "Sim-to-sim" in page
    assert "Nothing here was measured on a real robot" in page


def test_where_a_plan_has_only_words_nothing_is_done_and_that_is_said(demo: DemoResult) -> None:
    cell = demo.cells[1]
    assert not cell.plan.takes
    assert cell.after is None
    assert cell.done == "nothing: no command does what the plan says"
    assert cell.words()[-1] == "nothing done"
    assert not demo.better[1]
    assert "Cell B is not shown to be better" in demo.message()


def test_stages_that_are_there_are_not_run_again(demo: DemoResult, folder: Path) -> None:
    stages: list[str] = []

    def say(stage: str, _done: int, _total: int) -> None:
        stages.append(stage)

    again = run_demo(folder, None, base="base", quick=True, say=say)
    assert again.to_json() == demo.to_json()
    assert not [s for s in stages if "olling out" in s or "dapting" in s or "iagnosing" in s]

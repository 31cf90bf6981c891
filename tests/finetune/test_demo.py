"""The quick demo, run once: the whole loop on real files, and the thread of ids through it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gaploop.core import labels
from gaploop.core.journal_format import TRUTH, read_journal
from gaploop.core.plan import load_plan
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.frames import load_frames
from gaploop.failure_analysis.diagnosis import diagnose
from gaploop.finetune.closed_loop import LoopResult
from gaploop.finetune.demo import MENDABLE, OTHERWISE, DemoResult, draw_targets, run_demo
from gaploop.finetune.loop_report import write_report

SEED = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(folder: Path) -> DemoResult:
    return run_demo(folder, SEED, base="base", quick=True, say=lambda *_: None)


def adapted(demo: DemoResult) -> LoopResult:
    return next(loop for loop in demo.loops if loop.verdict)


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_draws_one_gap_of_each_kind_and_always_the_same(seed: int) -> None:
    mendable, otherwise = draw_targets(seed)
    assert (mendable, otherwise) == draw_targets(seed)
    assert set(mendable.gaps) < set(MENDABLE)
    assert set(otherwise.gaps) < set(OTHERWISE)


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
    takes = load_frames(loop.folder / "takes", []).episodes
    assert {t.info.plan for t in takes} <= {item.id for item in plan.items if item.takes}
    run = json.loads((loop.folder / "run" / "run.json").read_text())
    assert set(run["lineage"]["plans"]) == {t.info.plan for t in takes}
    assert {t.info.uid for t in takes if t.outcome is Outcome.SUCCESS} <= set(
        run["lineage"]["takes"]
    )
    assert run["lineage"]["base"] == loop.lineage["base"] == loop.before.policy
    assert loop.after is not None
    assert loop.after.policy == loop.lineage["adapter"] == run["result"]["policy"]


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
    journal = demo.loops[1].folder / "rollouts_journal"
    assert (journal / TRUTH).exists()
    (journal / TRUTH).unlink()
    again = diagnose(read_journal(journal))
    # unlabelled: the automatic labels must not feed back either
    assert [t.dimensions for t in again.takes] == [
        t.dimensions for t in demo.loops[1].diagnosis.takes
    ]


def test_the_target_cells_are_called_sim_to_sim(demo: DemoResult, folder: Path) -> None:
    assert all(loop.before.domain is Domain.SIM_TARGET for loop in demo.loops)
    assert "Sim-to-sim" in adapted(demo).verdict.message  # type: ignore[union-attr]
    page = write_report(demo, folder, 1.0).read_text()
    assert "Sim-to-sim" in page
    assert "Nothing here was measured on a real robot" in page


def test_the_gap_that_demonstrations_do_not_fix_asks_for_none(demo: DemoResult) -> None:
    plan = demo.loops[1].plan
    assert plan.takes == 0
    assert all(item.remedy != "collect" for item in plan.items)


def test_stages_that_are_there_are_not_run_again(demo: DemoResult, folder: Path) -> None:
    stages: list[str] = []

    def say(stage: str, _done: int, _total: int) -> None:
        stages.append(stage)

    again = run_demo(folder, SEED, base="base", quick=True, say=say)
    assert again.to_json() == demo.to_json()
    assert not [s for s in stages if "olling out" in s or "dapting" in s or "iagnosing" in s]

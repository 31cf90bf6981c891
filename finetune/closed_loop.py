"""The whole loop on one cell: roll out, diagnose, plan, collect, adapt, compare.

Every stage reads what the stage before wrote and leaves its own files in the run folder, so a
loop that was stopped goes on where it was, and the thread of ids can be followed by hand:
failed takes → diagnosis → plan → demonstrations → adapter → verdict.

The "real" cell here is the embedded one with injected gaps, so everything that this module
finds is sim-to-sim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, Rig, embedded_rig, scripted_leader
from gaploop.collect.session import (
    MakeLeader,
    Quota,
    SessionSpec,
    TakeResult,
    plan_quotas,
    record_takes,
)
from gaploop.core import labels
from gaploop.core.errors import GaploopError
from gaploop.core.files import read_json, write_json
from gaploop.core.journal_format import LABELS, read_journal
from gaploop.core.plan import Plan, load_plan, save_plan
from gaploop.core.vocabulary import TakeKind
from gaploop.datasets.lerobot_publish import publish
from gaploop.failure_analysis.diagnosis import (
    Diagnosis,
    diagnose,
    load_diagnosis,
    save_diagnosis,
    suggested_labels,
)
from gaploop.failure_analysis.planning.plan import make_plan
from gaploop.failure_analysis.reference import Reference
from gaploop.finetune.adapt import ADAPTER, adapt, base_of, kind_of
from gaploop.finetune.evaluate import EVALUATION_SEEDS, MAX_S, evaluate
from gaploop.finetune.evaluation import Evaluation
from gaploop.finetune.gate.judge import Verdict, compare
from gaploop.finetune.lerobot_adapter import LoraOptions
from gaploop.finetune.lerobot_policy import load_policy, policy_id
from gaploop.finetune.pretrain import POLICY, PretrainOptions, pretrain
from gaploop.finetune.tuning.presets import preset_for
from gaploop.finetune.tuning.work import AdaptOptions
from gaploop.sim.arms import SO101
from gaploop.sim.tasks import INSTRUCTIONS

DEMONSTRATION_S: Final = 10.0
"""A demonstration's time limit [simulated s]; they take about 3."""
DEMONSTRATION_SEEDS: Final = 500_000
"""Scenes of demonstrations on the target cell begin here: none is evaluated or pretrained on."""
SIM_SEEDS: Final = 700_000
"""Scenes of the nominal takes that are mixed in begin here."""
SIM_TAKES: Final = 40
"""Nominal takes that are mixed in."""
DIAGNOSIS: Final = "diagnosis.json"
PACKAGED_TASK: Final = "pick_place"
"""Task of the packaged base."""
BASE_TAKES: Final = 400
"""Scripted takes behind the base of a task that has none packaged, as behind the packaged one."""

type Say = Callable[[str, int, int], None]
"""Called with (stage in words, steps done, steps in all)."""


def silent(_stage: str, _done: int, _total: int) -> None:
    """Say nothing; a `Say`."""


@dataclass(frozen=True)
class LoopBudget:
    """How much of everything.

    Attributes:
        diagnosed: rollouts recorded with pictures for the diagnosis.
        evaluated: paired rollouts per success rate.
        takes: demonstrations that a plan may ask for.
        steps: optimiser steps of the adapter.
    """

    diagnosed: int = 16
    evaluated: int = 100
    takes: int = 20
    steps: int = 600


@dataclass(frozen=True)
class TargetCell:
    """A stand-in for a real cell: the embedded one with gaps.

    Attributes:
        gaps: gap dimension to severity in [0, 1].
        gap_seed: draws mechanism and direction.
        task: the cell's task.
        robot: the cell's arm.
    """

    gaps: Mapping[str, float]
    gap_seed: int
    task: str = "pick_place"
    robot: str = SO101.name

    @property
    def instruction(self) -> str:
        """What an operator is told to do."""
        return INSTRUCTIONS[self.task]

    def rig(self, conditions: Mapping[str, object]) -> EmbeddedRig:
        """Build it with `conditions` set up."""
        return embedded_rig(
            task=self.task,
            gaps=self.gaps,
            gap_seed=self.gap_seed,
            conditions=conditions,
            robot=self.robot,
        )


@dataclass(frozen=True)
class LoopResult:
    """What came of one loop.

    Attributes:
        before: the base policy on the target cell.
        after: the adapted policy on the same scenes; None where the plan collects nothing.
        verdict: the comparison; None likewise.
        lineage: stage to the ids and folders it left.
    """

    target: TargetCell
    folder: Path
    diagnosis: Diagnosis
    plan: Plan
    before: Evaluation
    after: Evaluation | None
    nominal_before: Evaluation | None
    nominal_after: Evaluation | None
    verdict: Verdict | None
    lineage: Mapping[str, Any]


def close_the_gap(
    target: TargetCell,
    folder: Path,
    *,
    base: str | Path,
    sim: Sequence[Path],
    nominal: Evaluation,
    budget: LoopBudget = LoopBudget(),
    seed: int = 0,
    say: Say = silent,
) -> LoopResult:
    """Run the loop on one target cell, in `folder`; stages already there are not run again.

    Args:
        base: the policy to start from.
        sim: datasets of nominal takes to mix in.
        nominal: the base on the nominal cell, on seeds 0, 1, …; the retention check pairs with it.
        seed: of scenes, sampling and initial adapter weights.

    Raises:
        UnusableInputError: as the stages say.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = measured(folder / "before.json", base, target, budget.evaluated, "base", say)
    diagnosis = roll_out_and_diagnose(target, folder, base, budget.diagnosed, say)
    plan = plan_for(diagnosis, folder / "plan.yaml", budget.takes)
    lineage: dict[str, Any] = {
        "base": policy_id(base),
        "failed": [take.uid for take in diagnosis.takes],
        "diagnosis": diagnosis.id,
        "plan": plan.id,
    }
    if not plan.takes:
        return LoopResult(target, folder, diagnosis, plan, before, None, None, None, None, lineage)
    spec = SessionSpec(
        folder / "takes_journal", target.instruction, max_s=DEMONSTRATION_S,
        seed=DEMONSTRATION_SEEDS,
    )  # fmt: skip
    _record("Collecting the planned takes", spec, plan_quotas(plan), target, scripted_leader, say)
    publish(spec.journal, folder / "takes", "local/takes")
    run, adapter = folder / "run", folder / "run" / ADAPTER
    if not (run / "run.json").exists():
        preset = preset_for(kind_of(base_of(base)), full=False)
        adapt(
            AdaptOptions(
                base,
                (folder / "takes",),
                run,
                tuple(sim),
                lora=LoraOptions(preset.r, targets=preset.targets),
                spec=replace(preset.spec, steps=budget.steps, seed=seed),
                resume=run.exists(),
            ),
            lambda step, steps, _loss: say("Adapting with LoRA", step, steps),
        )
    n = budget.evaluated
    after = measured(folder / "after.json", adapter, target, n, "adapted", say)
    kept = measured(folder / "nominal_after.json", adapter, None, nominal.trials, "adapted", say)
    verdict = compare(before, after, retention_before=nominal, retention_after=kept)
    record = read_json(run / "run.json")
    lineage |= {
        "demonstrations": record["inputs"][0]["uids"],
        "run": record["id"],
        "adapter": record["result"]["policy"],
    }
    write_json(folder / "verdict.json", verdict.to_json() | {"lineage": lineage})
    return LoopResult(
        target, folder, diagnosis, plan, before, after, nominal, kept, verdict, lineage
    )


def measured(
    path: Path, policy: str | Path, target: TargetCell | None, n: int, name: str, say: Say
) -> Evaluation:
    """Return the evaluation kept at `path`, or evaluate on `target` (None: nominal) and keep it."""
    if path.exists():
        return Evaluation.from_json(read_json(path), str(path))
    where = "target cell" if target else "nominal cell"
    stage, done = f"Rolling out the {name} policy, {where}", 0

    def progress(steps: int) -> None:
        nonlocal done
        done += steps
        say(stage, done, n)

    say(stage, 0, n)
    result = evaluate(
        policy,
        n,
        gaps=target.gaps if target else None,
        gap_seed=target.gap_seed if target else 0,
        task=target.task if target else "pick_place",
        progress=progress,
        robot=target.robot if target else SO101.name,
    )
    write_json(path, result.to_json())
    return result


def roll_out_and_diagnose(
    target: TargetCell,
    folder: Path,
    base: str | Path,
    rollouts: int,
    say: Say = silent,
    reference: Reference | None = None,
) -> Diagnosis:
    """Record rollouts of the base on the target and diagnose them; what `folder` holds is kept.

    `reference` says what is usual; chosen by `choose_reference` if None.
    """
    path = folder / DIAGNOSIS
    if path.exists():
        return load_diagnosis(path)
    journal, policy = folder / "rollouts_journal", load_policy(base)

    def leader(rig: Rig, seed: int) -> PolicyLeader:
        del seed  # a policy draws nothing
        return PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)

    spec = SessionSpec(
        journal,
        target.instruction,
        TakeKind.ROLLOUT,
        MAX_S,
        EVALUATION_SEEDS,
        policy=policy_id(base),
        resume=True,
    )
    stage = "Recording rollouts of the base policy"
    _record(stage, spec, [Quota(rollouts)], target, leader, say)
    say("Diagnosing", 0, 1)
    diagnosis = diagnose(read_journal(journal), reference, source=str(journal.name))
    for take in diagnosis.takes:
        for event in suggested_labels(take):
            labels.append(journal / LABELS, event)
    publish(journal, folder / "rollouts", "local/rollouts")
    save_diagnosis(diagnosis, path)
    say("Diagnosing", 1, 1)
    return diagnosis


def plan_for(diagnosis: Diagnosis, path: Path, takes: int) -> Plan:
    """Return the plan kept at `path`, or plan within a number of takes and keep it."""
    if not path.exists():
        save_plan(make_plan(diagnosis, takes), path)
    return load_plan(path)


def record_demonstrations(
    target: TargetCell, folder: Path, takes: int, seed: int,
    on_take: Callable[[TakeResult, bool], None] = lambda _result, _counts: None,
) -> Path:  # fmt: skip
    """Record scripted takes on a cell and publish them; a folder that has them is left alone.

    Args:
        target: the cell.
        folder: where journal and dataset go.
        takes: how many.
        seed: the first scene.
        on_take: as of `record_takes`.

    Returns:
        the dataset's folder.
    """
    spec = SessionSpec(
        folder / "takes_journal", target.instruction, max_s=DEMONSTRATION_S, seed=seed, resume=True
    )
    record_takes(spec, [Quota(takes)], target.rig, scripted_leader, on_take=on_take)
    publish(spec.journal, folder / "takes", "local/takes")
    return folder / "takes"


@dataclass(frozen=True)
class LoopStart:
    """What adapting starts from: the base policy of a task, and nominal takes to mix in.

    Attributes:
        base: the policy.
        sim: the takes.
    """

    base: str
    sim: Path


def start_for(
    task: str, folder: Path, sim_takes: int = SIM_TAKES, robot: str = SO101.name
) -> LoopStart:
    """Return where a task starts from; what isn't packaged or in `folder` yet is made.

    Pretraining the base of another task than `pick_place`, or of another arm than the SO-101,
    takes a quarter of an hour.
    """
    ships = robot == SO101.name
    name = task if ships else f"{task}_{robot}"
    run, packaged = folder / f"base_{name}", ships and task == PACKAGED_TASK
    if not packaged and not (run / "run.json").exists():
        pretrain(PretrainOptions((), run, BASE_TAKES, task, resume=run.exists(), robot=robot))
    base = "base" if packaged else str(run / POLICY)
    nominal, place = TargetCell({}, 0, task, robot), folder / f"sim_{name}_{sim_takes}"
    sim = record_demonstrations(nominal, place, sim_takes, SIM_SEEDS)
    return LoopStart(base, sim)


def _record(
    stage: str,
    spec: SessionSpec,
    quotas: Sequence[Quota],
    target: TargetCell,
    leader: MakeLeader,
    say: Say,
) -> None:
    total, done = sum(q.takes for q in quotas), 0

    def on_take(_result: TakeResult, counts: bool) -> None:
        nonlocal done
        done += counts
        say(stage, done, total)

    say(stage, 0, total)
    end = record_takes(spec, quotas, target.rig, leader, on_take=on_take)
    if end.gave_up:
        raise GaploopError(end.gave_up[0])

"""The stages of the loop on one cell: roll out, measure, diagnose, plan, carry the remedy out.

Each leaves its files in the run folder, and what is there isn't done again. The "real" cell here is
the embedded one with injected gaps, so everything that this module finds is sim-to-sim.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gaploop.collect.campaign import Quota, plan_quotas
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.probe import parts_of, probe_cell
from gaploop.collect.rig import scripted_leader
from gaploop.collect.take import TakeResult, record_takes
from gaploop.core import labels
from gaploop.core.journal_format import LABELS, read_journal
from gaploop.core.plan import Plan, load_plan, save_plan
from gaploop.core.run_record import RUN
from gaploop.core.station import SIM_STATION
from gaploop.core.take import TakeInfo
from gaploop.core.twin import Twin, load_twin, save_twin
from gaploop.core.vocabulary import TakeKind
from gaploop.datasets.lerobot_publish import publish
from gaploop.failure_analysis.diagnosis import (
    Diagnosis,
    diagnose,
    load_diagnosis,
    save_diagnosis,
    suggested_labels,
)
from gaploop.failure_analysis.planning import remedies as offers
from gaploop.failure_analysis.planning.gains import Budget, expected_curves
from gaploop.failure_analysis.planning.planner import PlanRequest
from gaploop.failure_analysis.planning.planner import plan_for as planned_for
from gaploop.failure_analysis.reference import Reference
from gaploop.finetune.adapt import ADAPTER, adapt
from gaploop.finetune.config import FinetuneConfig, StartPolicy
from gaploop.finetune.demonstrations import TargetCell
from gaploop.finetune.evaluate import EVALUATION_SEEDS, MAX_S
from gaploop.finetune.lerobot_policy import load_policy, policy_id
from gaploop.finetune.pretrain import POLICY
from gaploop.finetune.recalibration import recalibrate
from gaploop.finetune.reproduction import reproduced
from gaploop.finetune.tuning.presets import TRACKED_SPECS
from gaploop.sim.catalogue import arm_named
from gaploop.sim.gaps.mechanism import Values
from gaploop.sim.identification.drives import fit_station
from gaploop.sim.randomise import preset

DEMONSTRATION_S: Final = 10.0
"""A demonstration's time limit [simulated s]; they take about 3."""
DEMONSTRATION_SEEDS: Final = 500_000
"""Scenes of demonstrations on the target cell begin here: none is evaluated or pretrained on."""
SIM_SEEDS: Final = 700_000
"""Scenes of the nominal episodes that are mixed in begin here."""
PROBE_SEEDS: Final = 800_000
"""Scenes of probes begin here."""
NOTHING: Final[Mapping[str, Values]] = {"actuator_response.latency": {"latency_s": 0.0}}
"""Changes nothing of a cell that stands for a real one all the same."""
DIAGNOSIS: Final = "diagnosis.json"
TWIN: Final = "station_twin.yaml"

type Say = Callable[[str, int, int], None]
"""Called with (stage in words, steps done, steps in all)."""


def silent(_stage: str, _done: int, _total: int) -> None:
    """Say nothing; a `Say`."""


def counting(say: Say, stage: str, total: int) -> Callable[[int], None]:
    """Say that a stage begins; return what is called with how many more steps of it are done."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        say(stage, done, total)

    say(stage, 0, total)
    return count


@dataclass(frozen=True)
class LoopBudget:
    """How much of everything.

    Attributes:
        diagnosed: rollouts recorded with pictures for the diagnosis.
        evaluated: paired rollouts per success rate.
        takes: demonstrations that a plan may ask for.
        reproduced: scenes on which failures are reproduced, in each cell.
        simulated: demonstrations in a twin.
        nominal: episodes of the nominal cell that are mixed in.
    """

    diagnosed: int = 16
    evaluated: int = 100
    takes: int = 20
    steps: int = 600
    reproduced: int = 12
    simulated: int = offers.TAKES
    nominal: int = offers.MIXED


@dataclass(frozen=True)
class CarriedOut:
    """A plan that was carried out.

    Attributes:
        run: folder of its run.json; None where there is no new policy.
        takes: that an operator recorded.
        is_trained: whether its weights are others than the base's.
        speed_scale: how fast it drives from now on, as a share of its speed.
    """

    policy: str | Path
    run: Path | None
    done: str
    takes: int = 0
    is_trained: bool = True
    speed_scale: float = 1.0


def carry_out(
    plan: Plan,
    target: TargetCell,
    folder: Path,
    *,
    base: str | Path,
    sim: Sequence[Path],
    twin: Twin | None,
    budget: LoopBudget = LoopBudget(steps=TRACKED_SPECS["lora"].steps),
    seed: int = 0,
    say: Say = silent,
) -> CarriedOut | None:
    """Do what a plan says, as its commands do; None where it has only words.

    One policy learns from all takes together. They show the camera as it stands, so that only a
    policy that learned from none is recalibrated.

    Args:
        target: where an operator records.
        folder: the run folder; what it holds of these remedies isn't done again.
        twin: where demonstrations are simulated; its file lies in `folder`. None: not measured.
        budget: how many takes a twin gets, and optimiser steps.
    """
    remedies = {item.remedy: item.dimension for item in reversed(plan.items)}
    known = (dict(twin.values()) if twin else {}) or NOTHING
    cells: list[tuple[str, str, TargetCell, Sequence[Quota]]] = []
    if plan.takes:
        wanted = f"{plan.takes} episodes collected"
        cells.append(("takes", wanted, target, plan_quotas(plan)))
    if "resimulate" in remedies:
        wanted = f"{budget.simulated} episodes simulated in the twin"
        there = TargetCell({}, 0, target.task, target.robot, known)
        cells.append(("resimulated", wanted, there, [Quota(budget.simulated)]))
    for dimension in {i.dimension for i in plan.items if i.remedy == "randomise"}:
        ranges = preset(offers.RANGES[dimension])
        wanted = f"{offers.RANDOMISED_TAKES} episodes randomised by {ranges.name}"
        there = TargetCell({}, 0, target.task, target.robot, known, ranges)
        name = f"randomised_{dimension.value}"
        cells.append((name, wanted, there, [Quota(offers.RANDOMISED_TAKES)]))
    recorded = {
        name: wanted
        for name, wanted, cell, quotas in cells
        if collected(folder, name, cell, quotas, f"{wanted[0].upper()}{wanted[1:]}", say)
    }
    if recorded:
        run = folder / "_".join(["run", *recorded])
        learn_from([folder / name for name in recorded], run, base, sim, budget.steps, seed, say)
        done = ", ".join(recorded.values())
        return CarriedOut(run / ADAPTER, run, done, plan.takes if "takes" in recorded else 0)
    if "drive_slower" in remedies:
        scale = offers.SPEED_SCALE
        done = f"driven at {scale:.0%} of its speed"
        return CarriedOut(base, None, done, is_trained=False, speed_scale=scale)
    told = twin.values((*offers.READ, *offers.LIGHT, offers.DELAY)) if twin else {}
    if not remedies.keys() & {"recalibrate", "compensate"} or not told:
        return None
    run = folder / "recalibrated"
    say("Recalibrating", 0, 1)
    if not (run / RUN).exists():
        shutil.rmtree(run, ignore_errors=True)  # what a stopped run left
        recalibrate(base, folder / TWIN, run)
    say("Recalibrating", 1, 1)
    return CarriedOut(run / POLICY, run, "recalibrated from the twin", is_trained=False)


def collected(
    folder: Path, name: str, cell: TargetCell, quotas: Sequence[Quota], stage: str, say: Say,
    seed: int = DEMONSTRATION_SEEDS,
) -> bool:  # fmt: skip
    """Record scripted takes on a cell as the dataset `folder/name`; say whether any went well.

    Some cells even the script can't manage; what it was asked for and didn't get is left out.
    """
    journal, about = folder / f"{name}_journal", TakeInfo("", cell.instruction)
    counted = record_takes(
        journal,
        about,
        quotas,
        cell.rig,
        scripted_leader,
        max_s=DEMONSTRATION_S,
        seed=seed,
        resume=True,
        on_take=_told(say, stage, quotas),
    ).counted
    if counted:
        publish(journal, folder / name, f"local/{name}")
    return counted > 0


def learn_from(
    real: Sequence[Path], run: Path, base: str | Path, sim: Sequence[Path], steps: int, seed: int,
    say: Say = silent,
) -> None:  # fmt: skip
    """Adapt the base to takes with LoRA, in `run`, unless that is done."""
    if (run / RUN).exists():
        return
    adapt(
        FinetuneConfig(
            StartPolicy(str(base)),
            real=tuple(real),
            sim=tuple(sim),
            steps=steps,
            seed=seed,
            output_dir=run,
            resume=run.exists(),
        ),
        lambda step, of, _loss: say("Adapting with LoRA", step, of),
    )


def measured_twin(target: TargetCell, folder: Path, say: Say = silent) -> Twin:
    """Return the twin kept in `folder`, or probe the cell and fit it."""
    path = folder / TWIN
    if path.exists():
        return load_twin(path)
    arm = arm_named(target.robot)
    parts = parts_of(arm.joint_names, SIM_STATION.grid)
    journal = folder / "probe_journal"
    count = counting(say, "Probing the station", len(parts))
    probe_cell(
        parts, journal, target.rig, seed=PROBE_SEEDS, resume=True, on_part=lambda _end: count(1)
    )
    say("Identifying its twin", 0, 1)
    twin, _ = fit_station(list(read_journal(journal)), arm, "target cell")
    save_twin(twin, path)
    say("Identifying its twin", 1, 1)
    return twin


def roll_out_and_diagnose(
    target: TargetCell,
    folder: Path,
    base: str | Path,
    rollouts: int,
    say: Say = silent,
    reference: Reference | None = None,
    twin: Twin | None = None,
    reproduced_on: int = LoopBudget.reproduced,
    workers: int = 2,
) -> Diagnosis:
    """Record rollouts of the base on the target and diagnose them; what `folder` holds is kept.

    Args:
        reference: what is usual; chosen by `choose_reference` if None.
        twin: reproduces the failures; the takes alone judge if None.
        reproduced_on: scenes of that, in each cell.
    """
    path = folder / DIAGNOSIS
    if path.exists():
        return load_diagnosis(path)
    journal = folder / "rollouts_journal"
    loaded, quotas = load_policy(base, task=target.instruction), [Quota(rollouts)]
    record_takes(
        journal,
        TakeInfo("", target.instruction, kind=TakeKind.ROLLOUT, policy=policy_id(base)),
        quotas,
        target.rig,
        lambda rig, _seed: PolicyLeader(loaded, rig.follower, rig.fps, rig.control_hz),
        max_s=MAX_S,
        seed=EVALUATION_SEEDS,
        resume=True,
        on_take=_told(say, "Recording rollouts of the base policy", quotas),
    )
    takes = list(read_journal(journal))
    say("Diagnosing", 0, 1)
    diagnosis = diagnose(takes, reference, source=str(journal.name))
    if twin is not None:
        say("Reproducing the failures", 0, 1)
        diagnosis = reproduced(
            diagnosis, takes, twin, base, folder / "reproduction", n=reproduced_on, workers=workers
        )
        say("Reproducing the failures", 1, 1)
    for take in diagnosis.takes:
        for event in suggested_labels(take):
            labels.append(journal / LABELS, event)
    publish(journal, folder / "rollouts", "local/rollouts")
    save_diagnosis(diagnosis, path)
    say("Diagnosing", 1, 1)
    return diagnosis


def plan_for(
    diagnosis: Diagnosis, path: Path, takes: int, about: offers.PlanContext | None = None
) -> Plan:
    """Return the plan kept at `path`, or plan within a number of takes and keep it.

    Remedies that are commands are weighed where `about` fills them in.
    """
    if not path.exists():
        images = about is not None and about.sees_pictures
        curves = expected_curves(image_policy=images)
        ask = PlanRequest(Budget(takes=takes), curves, image_policy=images, about=about)
        save_plan(planned_for(diagnosis, ask), path)
    return load_plan(path)


def _told(say: Say, stage: str, quotas: Sequence[Quota]) -> Callable[[TakeResult, bool], None]:
    """Return what tells of every take that counts, as `on_take` of `record_takes`."""
    count = counting(say, stage, sum(q.takes for q in quotas))
    return lambda _result, counts: count(counts)

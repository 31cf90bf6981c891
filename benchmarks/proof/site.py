"""One site of the study: base measured, failures diagnosed, arms recorded, trained and tried.

Every stage keeps its files in the site's folder and every finished cell a row, so that a study
that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.proof.arms import Takes, evenly, takes_of
from benchmarks.proof.design import STAGED, Part, Site, StudyArm
from benchmarks.proof.rows import StudyRow
from benchmarks.stages import DEMONSTRATION_S, DEMONSTRATION_SEEDS, plan_for, roll_out_and_diagnose
from benchmarks.starts import LoopStart
from gaploop.collect.campaign import Quota
from gaploop.collect.rig import scripted_leader
from gaploop.collect.take import record_takes
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.journal_format import take_folders
from gaploop.core.plan import Plan
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import GapDimension
from gaploop.datasets.lerobot_publish import publish
from gaploop.failure_analysis.planning.ledger import effort_from
from gaploop.failure_analysis.reference import load_reference
from gaploop.finetune.adapt import MERGED, adapt
from gaploop.finetune.config import FinetuneConfig, StartPolicy
from gaploop.finetune.demonstrations import TargetCell
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.evaluation import Evaluation

SCENES: Final = 50_000
"""Scenes of the evaluations begin here, 1,000 to a seed; diagnosed rollouts begin at 0."""
RANDOMISED: Final = 50
"""Simulated takes of the arm `randomisation`."""
SLOWER: Final = 0.5
"""Speed of the remedy for actuators, with as much more time."""


@dataclass(frozen=True)
class SiteJob:
    """A site's cells, as plain data that can go to another process or machine.

    `reference` is a file that says what is usual for the arm; None where one ships.
    """

    site: Site
    part: Part
    start: LoopStart
    folder: Path
    code: str
    reference: Path | None = None


@dataclass(frozen=True)
class _Made:
    """What an arm made: takes, and the success of the policy that came of them."""

    after: Evaluation
    planned: Takes = field(default_factory=dict)
    takes: int = 0
    attempts: int = 0
    data: str = ""


def run_site(job: SiteJob) -> list[StudyRow]:
    """Run the cells of a site that have no row yet; return the rows of all."""
    job.folder.mkdir(parents=True, exist_ok=True)
    return [_row(job, arm, budget) for arm, budget in job.part.cells()]


def _row(job: SiteJob, arm: StudyArm, budget: int) -> StudyRow:
    path = job.folder / f"row_{arm}_{budget}.json"
    if path.exists():
        return _of_size(StudyRow.from_json(read_json(path)), job.part.rollouts, path)
    site, folder = job.site, job.folder
    before = rated(job, "before", job.start.base)
    usual = load_reference(job.reference) if job.reference else None
    diagnosis = roll_out_and_diagnose(
        site.cell, folder, job.start.base, job.part.diagnosed, reference=usual
    )
    plan = plan_for(diagnosis, folder / f"plan_{budget}.yaml", budget or max(job.part.budgets))
    made = _made(job, arm, budget, plan, before)
    shares = diagnosis.summary["dimensions"] if diagnosis.takes else {}
    row = StudyRow(
        task=site.task,
        gap=site.gap,
        seed=site.seed,
        arm=arm.value,
        budget=budget,
        gaps=dict(site.gaps),
        found=max(shares, key=lambda d: shares[d]) if shares else "",
        failures=len(diagnosis.takes),
        planned={d.value: n for d, n in made.planned.items()},
        takes=made.takes,
        attempts=made.attempts,
        hours=hours(made),
        before=bits(before),
        after=bits(made.after),
        base=before.policy,
        policy=made.after.policy,
        data=made.data,
        code=job.code,
        robot=site.robot,
    )
    write_json(path, row.to_json())
    return row


def _of_size(row: StudyRow, rollouts: int, path: Path) -> StudyRow:
    if len(row.after) != rollouts:
        raise UnusableInputError(
            f"{path} holds a cell of {len(row.after)} rollouts, and {rollouts} are wanted: give "
            f"--n={len(row.after)}, or another --output_dir."
        )
    return row


def _made(job: SiteJob, arm: StudyArm, budget: int, plan: Plan, before: Evaluation) -> _Made:
    """Do what the arm does; without takes, the base's success is what it is left with."""
    site = job.site
    if arm is StudyArm.REMEDY:
        instead = {item.dimension for item in plan.items if not item.takes}
        if not plan.takes and GapDimension.ACTUATOR_RESPONSE in instead:
            return _Made(rated(job, "slower", job.start.base, SLOWER))
        return _Made(before)
    if arm is StudyArm.RANDOMISATION:
        takes: Takes = evenly(RANDOMISED, STAGED, site.seed)
        cells = {d: site.varied(d, 10_000 + site.seed) for d in takes}
        return trained(job, "randomised", takes, cells)
    takes = takes_of(arm, site, budget, plan)
    name = "_".join(f"{d.value}{n}" for d, n in sorted(takes.items()))
    if arm is StudyArm.ON_SITE:
        cells = {d: site.with_varied(d) for d in takes}
        return trained(job, f"on_site_{name}", takes, cells)
    cells = {d: site.set_up_for(d) for d in takes}
    return trained(job, name, takes, cells) if takes else _Made(before)


def trained(
    job: SiteJob, name: str, takes: Takes, cells: Mapping[GapDimension, TargetCell]
) -> _Made:
    """Record, train and try; arms that record the same takes share all of it."""
    folder = job.folder / _short(name)
    recorded = _recorded(folder, job.site, takes, cells)
    attempts = len(take_folders(folder / "journal"))
    if not recorded:
        return _Made(rated(job, "before", job.start.base), takes, 0, attempts)
    run = folder / "run"
    if not (run / "run.json").exists():
        adapt(
            FinetuneConfig(
                StartPolicy(job.start.base), real=(folder / "takes",), sim=(job.start.sim,),
                steps=job.part.steps, seed=job.site.seed, output_dir=run, resume=True,
            )
        )  # fmt: skip
    record = read_json(run / "run.json")
    after = rated(job, f"{folder.name}/after", run / MERGED)
    return _Made(after, takes, recorded, attempts, record["inputs"][0]["sha256"])


def _recorded(
    folder: Path, site: Site, takes: Takes, cells: Mapping[GapDimension, TargetCell]
) -> int:
    """Record and publish takes that aren't there yet; return how many succeeded.

    A dimension that even the script can't manage yields fewer than it was asked for: so it is with
    people, and the attempts have been paid for.
    """
    path, root = folder / "recorded.json", folder / "takes"
    if not path.exists():
        counted = 0
        for number, (dimension, wanted) in enumerate(sorted(takes.items())):
            cell = cells[dimension]
            quota = Quota(wanted, dimension.value, {dimension.value: 1.0})
            counted += record_takes(
                folder / "journal",
                TakeInfo("", cell.instruction),
                [quota],
                cell.rig,
                scripted_leader,
                max_s=DEMONSTRATION_S,
                resume=True,
                seed=DEMONSTRATION_SEEDS + 10_000 * site.seed + 1_000 * number,
            ).counted
        if counted:
            publish(folder / "journal", root, "local/takes")
        write_json(path, {"takes": counted})
    return int(read_json(path)["takes"])


def rated(job: SiteJob, name: str, policy: str | Path, speed_scale: float = 1.0) -> Evaluation:
    """Return the success of a policy at the site, kept or measured now."""
    path = job.folder / f"{name}.json"
    if not path.exists():
        site = job.site
        result = evaluate(
            policy,
            job.part.rollouts,
            gaps=site.gaps,
            gap_seed=site.gap_seed,
            seed=SCENES + 1_000 * site.seed,
            workers=1,
            task=site.task,
            speed_scale=speed_scale,
            robot=site.robot,
        )
        write_json(path, result.to_json())
    return Evaluation.from_json(read_json(path), str(path))


def tried(
    path: Path, policy: str | Path, cell: TargetCell | None, rollouts: int, seed: int = 0
) -> str:
    """Return `bits` of the evaluation kept at `path`, or made now in a cell (None: nominal)."""
    if not path.exists():
        cell = cell or TargetCell({}, 0)
        result = evaluate(
            policy, rollouts, gaps=cell.gaps, gap_seed=cell.gap_seed, seed=seed, workers=1,
            parameters=cell.parameters, randomise=cell.randomise,
        )  # fmt: skip
        write_json(path, result.to_json())
    return bits(Evaluation.from_json(read_json(path), str(path)))


def hours(made: _Made) -> float:
    """Return what recording took, at the planner's times: attempts, and a set-up a dimension."""
    effort = effort_from()
    each_s = effort.take.mean_s + effort.reset.mean_s
    return round((made.attempts * each_s + len(made.planned) * effort.setup.mean_s) / 3600, 4)


def bits(result: Evaluation) -> str:
    """Return 1 for each success and 0 for each failure, in the scenes' order."""
    return "".join("01"[r.success] for r in sorted(result.outcomes, key=lambda r: r.seed))


def _short(name: str) -> str:
    """Return a folder's name: recipes over eight dimensions are longer than some file systems."""
    return (
        name if len(name) < 80 else f"{name[:40]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    )

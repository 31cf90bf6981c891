"""The demo: two cells with gaps, the whole loop on each of them, and its report.

Roll out, measure, diagnose, plan, carry the plan out, compare on the same scenes. Sim-to-sim
throughout. Probe, diagnosis and plan find out by themselves what the cells are like, from the
takes, and can be wrong: then the report says so. One cell is put right by commands, the other needs
demonstrations; or two are drawn from a seed, out of all nine dimensions. Every stage reads what the
stage before wrote and leaves its own files, so a demo that was stopped goes on where it was, and
the thread of ids can be followed by hand:
failed takes → diagnosis → plan → takes → policy → verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from gaploop.collect.campaign import Quota
from gaploop.core.files import read_json, write_atomically, write_json
from gaploop.core.journal_format import read_journal
from gaploop.core.messages import Image
from gaploop.core.plan import Plan, PlanItem
from gaploop.core.run_record import RUN
from gaploop.core.take import Take
from gaploop.core.twin import Twin
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis_record import Diagnosis
from gaploop.failure_analysis.planning import remedies as offers
from gaploop.failure_analysis.report import page
from gaploop.failure_analysis.report.report import SIM_TO_SIM, diagnosis_report
from gaploop.failure_analysis.station import words
from gaploop.finetune.closed_loop import (
    SIM_SEEDS,
    TWIN,
    LoopBudget,
    Say,
    TargetCell,
    carry_out,
    collected,
    counting,
    measured_twin,
    plan_for,
    roll_out_and_diagnose,
)
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.evaluation import Evaluation
from gaploop.finetune.gate.judge import Answer, Verdict, compare
from gaploop.finetune.lerobot_policy import policy_id
from gaploop.sim.gaps import draw_gaps

STATIONS: Final = (
    TargetCell({"actuator_response.latency": 0.8}, 5),
    TargetCell({"spatial_geometry.table_height": 0.9}, 2),
)
"""An arm that is late: probed, and compensated by a command. And a table that is too low at a
station that nobody probed: what its episodes show leads to 20 demonstrations."""
SEVERITIES: Final = (0.85, 1.0)
"""Range that severities are drawn from: mostly enough for the base policy to fail."""
TRIED, LEAST_FAILING, DRAWS = 8, 3, 6
"""Rollouts by which a drawn cell is tried, how many must fail, how often it is drawn at most."""
TRIED_SEEDS: Final = 900
"""Scenes of these begin here."""
INSTANTS: Final = (0.0, 0.33, 0.67, 1.0)
"""Which pictures of an episode are shown, as fractions of its length."""
COLUMNS: Final = (
    "injected", "measured", "diagnosed", "plan", "done", "before", "after", "nominal sim after",
    "verdict",
)  # fmt: skip
"""What `DemoCell.words` returns."""


FULL: Final = LoopBudget(evaluated=60, steps=400)
QUICK: Final = LoopBudget(6, 6, 4, 40, reproduced=2, simulated=4, nominal=4)


@dataclass(frozen=True)
class DemoCell:
    """What came of one cell.

    Attributes:
        twin: None where the cell wasn't probed.
        done: what was done about it, in words.
        after: the policy that came of it, on the same scenes; None where nothing was done.
        lineage: stage to the ids that it left.
        run_folder: where the policy was made, in `folder`; "" where none was.
    """

    name: str
    target: TargetCell
    folder: Path
    twin: Twin | None
    diagnosis: Diagnosis
    plan: Plan
    before: Evaluation
    done: str
    lineage: Mapping[str, Any]
    after: Evaluation | None = None
    nominal_after: Evaluation | None = None
    verdict: Verdict | None = None
    run_folder: str = ""

    def words(self) -> tuple[str, ...]:
        """Return it in words, in the order of `COLUMNS`."""
        top: Mapping[str, int] = self.diagnosis.summary["top"]
        named = [f"{words(d)} {n}×" for d, n in sorted(top.items(), key=lambda item: -item[1])]
        if abstained := self.diagnosis.summary["abstained"]:
            named.append(f"not named {abstained}×")
        differs = "not probed"
        if self.twin:
            differs = ", ".join(map(words, self.twin.mechanisms)) or "nothing differs"
        return (
            injected(self.target),
            differs,
            ", ".join(named) or "no failures",
            "; ".join(map(_advice, self.plan.items)) or "nothing to do",
            self.done,
            *(_rate(result) for result in (self.before, self.after, self.nominal_after)),
            self.verdict.verdict.value if self.verdict else "nothing done",
        )


@dataclass(frozen=True)
class DemoResult:
    """What the demo found; `seed` is None for `STATIONS`."""

    seed: int | None
    base: str
    nominal: Evaluation
    cells: tuple[DemoCell, ...]

    @property
    def better(self) -> tuple[bool, ...]:
        """Of each cell, whether what commands or takes did got promoted."""
        return tuple(
            cell.verdict is not None and cell.verdict.verdict is Answer.PROMOTE
            for cell in self.cells
        )

    def message(self) -> str:
        """Return how it ended, in a line."""
        told = [
            f"Cell {cell.name} {'got better' if better else 'is not shown to be better'}"
            for cell, better in zip(self.cells, self.better, strict=True)
        ]
        return f"{', '.join(told)}."

    def to_json(self) -> dict[str, Any]:
        """Return what `demo.json` holds."""
        return {
            "schema": "gaploop.demo.v1",
            "evidence": "sim-to-sim",
            "seed": self.seed,
            "better": list(self.better),
            "nominal": asdict(self.nominal.total),
            "loops": [
                {
                    "gaps": dict(cell.target.gaps),
                    "gap_seed": cell.target.gap_seed,
                    "measured": list(cell.twin.mechanisms) if cell.twin else None,
                    "diagnosed": dict(cell.diagnosis.summary.get("top", {})),
                    "plan": [
                        {"dimension": i.dimension.value, "remedy": i.remedy, "takes": i.takes}
                        for i in cell.plan.items
                    ],
                    "done": cell.done,
                    "before": asdict(cell.before.total),
                    "after": asdict(cell.after.total) if cell.after else None,
                    "nominal_after": asdict(cell.nominal_after.total)
                    if cell.nominal_after else None,
                    "verdict": cell.verdict.to_json() if cell.verdict else None,
                    "lineage": dict(cell.lineage),
                }
                for cell in self.cells
            ],
        }  # fmt: skip


def run_demo(folder: Path, seed: int | None, *, base: str, quick: bool, say: Say) -> DemoResult:
    """Run the demo in `folder`; stages already there are not run again.

    Args:
        seed: draws the cells; `STATIONS` if None.
    """
    budget = QUICK if quick else FULL
    n = budget.evaluated
    nominal = _measured(folder / "nominal.json", base, None, n, "base", say)
    stage, quotas = "Recording nominal episodes", [Quota(budget.nominal)]
    collected(folder, "sim", TargetCell({}, 0), quotas, stage, say, SIM_SEEDS)
    say(stage, budget.nominal, budget.nominal)

    def fails(cell: TargetCell) -> bool:
        say("Looking for cells in which the base policy fails", 0, 1)
        tried = evaluate(
            base, TRIED, gaps=cell.gaps, gap_seed=cell.gap_seed, seed=TRIED_SEEDS, workers=1
        )
        return tried.trials - tried.successes >= LEAST_FAILING

    targets = STATIONS if seed is None else draw_targets(seed, fails)
    cells = tuple(
        close_the_gap(
            name,
            target,
            folder / f"cell_{name.lower()}",
            base=base,
            sim=[folder / "sim"],
            nominal=nominal,
            budget=budget,
            probe=seed is not None or target is STATIONS[0],
            say=_within(f"Cell {name}", say),
        )
        for name, target in zip("AB", targets, strict=True)
    )
    result = DemoResult(seed, base, nominal, cells)
    write_json(folder / "demo.json", result.to_json())
    return result


def draw_targets(
    seed: int, fails: Callable[[TargetCell], bool] = lambda _cell: True
) -> tuple[TargetCell, TargetCell]:
    """Draw two cells with gaps of different dimensions, out of all nine.

    Args:
        fails: says whether there is anything to find out in a cell; one without is drawn anew.
    """
    rng = np.random.default_rng([seed, 42])

    def drawn(dimension: str) -> TargetCell:
        for _ in range(DRAWS):
            severity = round(float(rng.uniform(*SEVERITIES)), 2)
            cell = TargetCell({dimension: severity}, int(rng.integers(10**6)))
            if fails(cell):
                break
        return cell

    one, other = map(drawn, rng.choice([d.value for d in GapDimension], 2, replace=False).tolist())
    return one, other


def close_the_gap(
    name: str,
    target: TargetCell,
    folder: Path,
    *,
    base: str | Path,
    sim: Sequence[Path],
    nominal: Evaluation,
    budget: LoopBudget,
    probe: bool,
    say: Say,
) -> DemoCell:
    """Run the loop on one cell, in `folder`; stages already there are not run again.

    Args:
        probe: measure the cell, and reproduce its failures in its twin; takes alone judge without.
        nominal: the base on the nominal cell, on seeds 0, 1, …; the retention check pairs with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = _measured(folder / "before.json", base, target, budget.evaluated, "base", say)
    twin = measured_twin(target, folder, say) if probe else None
    diagnosis = roll_out_and_diagnose(
        target, folder, base, budget.diagnosed, say, twin=twin, reproduced_on=budget.reproduced
    )
    there = folder / TWIN if twin else None
    about = offers.PlanContext(folder, str(base), twin, there, target.task)
    plan = plan_for(diagnosis, folder / "plan.yaml", budget.takes, about)
    lineage: dict[str, Any] = {
        "base": policy_id(base),
        "failed": [take.uid for take in diagnosis.takes],
        **({"twin": ", ".join(twin.mechanisms) or "nothing differs"} if twin else {}),
        "diagnosis": diagnosis.id,
        "plan": plan.id,
    }
    found = (name, target, folder, twin, diagnosis, plan, before)
    if not plan.items:
        why = "no cause was named" if diagnosis.takes else "nothing failed"
        return DemoCell(*found, f"nothing: {why}", lineage)
    made = carry_out(plan, target, folder, base=base, sim=sim, twin=twin, budget=budget, say=say)
    if made is None:
        return DemoCell(*found, "nothing: no command does what the plan says", lineage)
    path, trials = folder / "after.json", budget.evaluated
    after = _measured(path, made.policy, target, trials, "new", say, made.speed_scale)
    kept = nominal  # where nothing was trained, nothing is forgotten
    if made.is_trained:
        path = folder / "nominal_after.json"
        kept = _measured(path, made.policy, None, nominal.trials, "new", say)
    verdict = compare(before, after, retention_before=nominal, retention_after=kept)
    if made.run is not None:
        record = read_json(made.run / RUN)
        if made.takes:
            lineage["demonstrations"] = record["inputs"][0]["uids"]
        lineage |= {"run": record["id"], "policy": record["result"]["policy"]}
    write_json(folder / "verdict.json", verdict.to_json() | {"lineage": lineage})
    run = made.run.name if made.run else ""
    return DemoCell(*found, made.done, lineage, after, kept, verdict, run)


def write_report(result: DemoResult, folder: Path, minutes: float) -> Path:
    """Write `report.html`, and each cell's `diagnosis.html`; return the first."""
    pages, lineage = list[tuple[str, str, str]](), list[tuple[str, str, str]]()
    for cell in result.cells:
        shown = {t.uid for t in cell.diagnosis.takes}
        takes = (t for t in read_journal(cell.folder / "rollouts_journal") if t.info.uid in shown)
        pictures = {t.info.uid: _pictures(t) for t in takes}
        path = cell.folder / "diagnosis.html"
        write_atomically(path, diagnosis_report(cell.diagnosis, pictures, cell.plan))
        found = f"{len(shown)} of {cell.diagnosis.summary['takes']} recorded rollouts failed"
        pages.append((cell.name, found, f"{cell.folder.name}/{path.name}"))
        for stage, ids in cell.lineage.items():
            listed = ids if isinstance(ids, str) else ", ".join(f"…{uid[-12:]}" for uid in ids)
            lineage.append((cell.name, stage, listed))
    facts = [(f"{minutes:.1f} min", "on this machine")]
    for cell in result.cells:
        change = f"{cell.before.rate:.0%} → {cell.after.rate:.0%}" if cell.after else "no change"
        facts.append((change, f"cell {cell.name}: {cell.done}"))
    trials = result.nominal.trials
    caption = f"Success over {trials} rollouts each, on the same scenes; 95 % Wilson intervals."
    blocks = [
        page.notice(SIM_TO_SIM),
        *(
            page.notice(cell.verdict.message, "good" if better else "bad")
            for cell, better in zip(result.cells, result.better, strict=True)
            if cell.verdict
        ),
        page.facts(facts),
        success_bars(result),
        page.text(caption),
        page.table(("cell", *COLUMNS), [(cell.name, *cell.words()) for cell in result.cells]),
    ]
    limits = (
        "Nothing here was measured on a real robot. The cells, their gaps and the demonstrator "
        "are simulated; the policy sees joints and tracked poses, not pixels. One training seed."
    )
    ids = "Each stage names the one before by id; the files lie in the cell's folder."
    sections = [
        page.section("In short", result.message(), blocks),
        page.section("Diagnosis and plan", "", [page.table(("cell", "", "page"), pages)]),
        page.section("Lineage", ids, [page.table(("cell", "stage", "id"), lineage)]),
        page.section("What this does not show", limits),
    ]
    report = folder / "report.html"
    title = "Closing the gap, sim-to-sim"
    write_atomically(report, page.page(title, sections, subtitle="gaploop demo"))
    return report


def success_bars(result: DemoResult) -> Markup:
    """Return success with 95 % intervals in every cell, before and after."""
    kept = next((cell.nominal_after for cell in result.cells if cell.nominal_after), None)
    groups = [("nominal sim", result.nominal, kept)]
    for cell in result.cells:
        groups.append((f"cell {cell.name}, {injected(cell.target)}", cell.before, cell.after))
    rows = []
    for name, before, after in groups:
        rows.append(page.BarRow(f"{name}: before", before.rate, *before.interval, _rate(before)))
        if after is not None:
            found = (after.rate, *after.interval, _rate(after))
            rows.append(page.BarRow("after the remedy", *found, "good"))
    return page.bars(rows, (0.0, 1.0))


def injected(target: TargetCell) -> str:
    """Return what was injected: known from the draw, never from the takes."""
    drawn = draw_gaps(target.gaps, target.gap_seed)
    return ", ".join(f"{words(g.dimension)}: {words(g.mechanism)}, {g.severity:g}" for g in drawn)


def _measured(
    path: Path, policy: str | Path, target: TargetCell | None, n: int, name: str, say: Say,
    speed_scale: float = 1.0,
) -> Evaluation:  # fmt: skip
    """Return the evaluation kept at `path`, or evaluate on `target` (None: nominal) and keep it."""
    if path.exists():
        return Evaluation.from_json(read_json(path), str(path))
    where = "target cell" if target else "nominal cell"
    cell = target or TargetCell({}, 0)
    progress = counting(say, f"Rolling out the {name} policy, {where}", n)
    result = evaluate(policy, n, progress=progress, speed_scale=speed_scale, **vars(cell))
    write_json(path, result.to_json())
    return result


def _within(cell: str, say: Say) -> Callable[[str, int, int], None]:
    return lambda stage, done, total: say(f"{cell}: {stage[0].lower()}{stage[1:]}", done, total)


def _rate(result: Evaluation | None) -> str:
    if result is None:
        return "—"
    low, high = result.interval
    return f"{result.rate:.0%} [{low:.0%}, {high:.0%}]"


def _advice(item: PlanItem) -> str:
    if item.takes:
        return f"collect {item.takes} episodes"
    return "roll out more first" if item.remedy == "collect" else words(item.remedy)


def _pictures(take: Take) -> list[Image]:
    """Return a few pictures of a take's first camera, in order."""
    images = next((list(pictures()) for pictures in take.cameras.values()), [])
    return [images[round(at * (len(images) - 1))] for at in INSTANTS] if images else []

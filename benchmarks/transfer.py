"""`benchmarks transfer`: which remedy brings a simulated policy to a hidden station, at what cost.

Runs the study of docs/figures/transfer_protocol.md; sim-to-sim. Rows are kept as they come and
policies in the stations' folders, so the same command goes on; --budget_s ends it between two rows,
and --data=FILE.parquet makes the figures from stored rows without running anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.proof.rows import kept_rows, mean_of, won
from gaploop.core.files import read_json, write_atomically, write_json
from gaploop.core.statistics import Estimate, percent, points, rate
from gaploop.core.vocabulary import GapDimension
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.proof.site import SiteJob
    from gaploop.core.plan import Plan
    from gaploop.core.twin import Randomisation, Twin

ROWS: Final = "transfer.parquet"
PICTURE: Final = "transfer.png"
ROLLOUTS, NOMINAL, DIAGNOSED, TAKES = 20, 10, 10, 20
SEVERITIES: Final = (0.7, 1.0)
LEAST_FAILING: Final = 3
"""Of eight rollouts of the base: a station that fails less often is drawn anew."""
PAIR: Final = "pair"
PAIRED: Final = (GapDimension.SPATIAL_GEOMETRY, GapDimension.ACTUATOR_RESPONSE)
FIXABLE: Final = (
    "spatial_geometry", "object_property", "contact_dynamics", "actuator_response", "sensor_noise",
    "visual_domain",
)  # fmt: skip
"""Dimensions that a command has a remedy for."""
PRESETS: Final = {
    "randomise": ("all", 1.0), "mild": ("all", 0.5), "visual": ("visual", 1.0),
    "dynamics": ("dynamics", 1.0),
}  # fmt: skip
MAIN: Final = (
    "nothing", "plan", "collect", "resimulate", "recalibrate", "randomise", "oracle", "uniform",
)  # fmt: skip
EXERCISES: Final = ("mild", "visual", "dynamics", "around_twin", "plus_5", "drives_only")
EXERCISED: Final = ("spatial_geometry", "object_property", "actuator_response", PAIR)
ARMS: Final = (*MAIN, *EXERCISES)
PROBE_H: Final = 0.05
"""An operator's time for a probe [h]."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run what has no row yet, or read rows from --data; return the figures."""
    rows = kept_rows(
        config.data or folder / ROWS, "site",
        None if config.data else lambda done: _run(config, folder, done),
    )  # fmt: skip
    figures = {arm: _figures(rows, arm) for arm in ARMS if any(r["arm"] == arm for r in rows)}
    write_atomically(folder / PICTURE, _picture(figures))
    return {
        "evidence": "sim-to-sim",
        "rows": rows,
        "figures": figures,
        "picture": str(folder / PICTURE),
    }


def _run(config: BenchConfig, folder: Path, done: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield rows in the protocol's order until the time is used up."""
    from benchmarks.starts import start_for

    nine = [d.value for d in GapDimension]
    until_s = time.monotonic() + (config.budget_s or np.inf)
    start = start_for("pick_place", folder)
    start = replace(start, base=config.policy.required())
    seeds = range(config.seed, config.seed + (config.seeds or 1))
    parts = ((MAIN, nine), (MAIN, [PAIR]), (EXERCISES, EXERCISED))
    work = [
        (seed, arm, kind)
        for seed in seeds
        for arms, kinds in parts
        for arm in arms
        for kind in kinds
        if arm in (config.arms or ARMS) and (not config.gaps or kind in config.gaps)
    ]
    with options.progress("Rows", len(work)) as advance:
        for seed, arm, kind in work:
            if (f"pick_place-{kind}-{seed}", arm) not in done and time.monotonic() < until_s:
                began_s = time.process_time()
                station = _Station(_job(kind, seed, start, config.n or ROLLOUTS, folder))
                yield station.row(arm) | {"processor_s": time.process_time() - began_s}
            advance()


def _job(kind: str, seed: int, start: Any, rollouts: int, folder: Path) -> SiteJob:
    """Return a station, as it was drawn before or drawn now until the base fails there."""
    from benchmarks.proof.design import Part, Site
    from benchmarks.proof.site import SiteJob
    from gaploop.finetune.evaluate import evaluate
    from gaploop.sim.gaps import mechanisms_of

    site = Site("pick_place", kind, seed, {}, 0)
    place = folder / site.name
    place.mkdir(exist_ok=True)
    kept = place / "station.json"
    rng = np.random.default_rng([seed, 2026, [*GapDimension, PAIR].index(kind)])
    while not kept.exists():
        keys = [
            str(rng.choice([m.key for m in mechanisms_of(d)]))
            for d in (PAIRED if kind == PAIR else (kind,))
        ]
        gaps = {key: round(float(rng.uniform(*SEVERITIES)), 2) for key in keys}
        gap_seed = int(rng.integers(100_000, 1_000_000))
        tried = evaluate(start.base, 8, gaps=gaps, gap_seed=gap_seed, seed=900, workers=1)
        if tried.trials - tried.successes >= LEAST_FAILING:
            write_json(kept, {"gaps": gaps, "gap_seed": gap_seed})
    drawn = read_json(kept)
    site = replace(site, gaps=drawn["gaps"], gap_seed=drawn["gap_seed"])
    return SiteJob(site, Part(rollouts=rollouts), start, place, "")


@dataclass(frozen=True)
class _Done:
    """What an arm did: a policy, in words what was done, and an operator's hours and takes."""

    policy: str | Path
    done: str = ""
    hours: float = 0.0
    takes: int = 0
    is_trained: bool = True
    speed_scale: float = 1.0


class _Station:
    """A station's arms; its folder keeps what they share."""

    def __init__(self, job: SiteJob) -> None:
        self.job, self.site, self.folder = job, job.site, job.folder
        self.base, self.sim = job.start.base, [job.start.sim]

    def row(self, arm: str) -> dict[str, Any]:
        """Carry an arm out and try what came of it."""
        from benchmarks.proof.site import bits, rated

        before = rated(self.job, "before", self.base)
        made = self._made(arm)
        same = made.policy == self.base and made.speed_scale == 1.0
        name = "before" if same else f"after_{arm}"
        after = rated(self.job, name, made.policy, made.speed_scale)
        trained = made.policy != self.base and made.is_trained
        nominal = self._nominal(arm, made.policy) if trained else self._nominal("base", self.base)
        return {
            "site": self.site.name,
            "kind": self.site.gap,
            "seed": self.site.seed,
            "gaps": json.dumps(dict(self.site.gaps)),
            "gap_seed": self.site.gap_seed,
            "arm": arm,
            "done": made.done,
            "hours": made.hours,
            "takes": made.takes,
            "before": bits(before),
            "after": bits(after),
            "nominal_before": self._nominal("base", self.base),
            "nominal_after": nominal,
            "policy": after.policy,
        }

    def _nominal(self, name: str, policy: str | Path) -> str:
        from benchmarks.proof.site import bits
        from gaploop.finetune.evaluate import evaluate
        from gaploop.finetune.evaluation import Evaluation

        shared = self.folder.parent if name == "base" or name in PRESETS else self.folder
        path = shared / f"nominal_{name}.json"
        if not path.exists():
            write_json(path, evaluate(policy, NOMINAL, workers=1).to_json())
        return bits(Evaluation.from_json(read_json(path), str(path)))

    def _made(self, arm: str) -> _Done:
        if arm == "nothing":
            return _Done(self.base)
        if arm in PRESETS:
            return self._randomised(arm)
        if arm in ("collect", "uniform"):
            return self._recorded(arm)
        if arm == "oracle":
            return self._oracle()
        return self._planned() if arm == "plan" else self._from_twin(arm)

    def _planned(self) -> _Done:
        from benchmarks.stages import DIAGNOSIS, TWIN, plan_for, roll_out_and_diagnose
        from gaploop.core.journal_format import take_folders
        from gaploop.failure_analysis.planning.ledger import effort_from
        from gaploop.failure_analysis.planning.planner import FIND_OUT
        from gaploop.failure_analysis.planning.remedies import OPERATOR_H, PlanContext

        twin, path = self._twin(), self.folder / "plan.yaml"
        about = PlanContext(self.folder, self.base, twin, self.folder / TWIN)
        for rollouts in (DIAGNOSED, 2 * DIAGNOSED):
            found = roll_out_and_diagnose(
                self.site.cell, self.folder, self.base, rollouts, twin=twin, workers=1
            )
            plan = plan_for(found, path, TAKES, about)
            made = self._carried_out(plan, twin)
            if made.done or not any(note.startswith(FIND_OUT) for note in plan.notes):
                break
            if rollouts == DIAGNOSED:
                path.unlink()
                (self.folder / DIAGNOSIS).unlink()
        effort = effort_from()
        each_h = (effort.take.mean_s + effort.reset.mean_s) / 3600
        recorded = self.folder / "takes_journal"
        attempts = len(take_folders(recorded)) if recorded.exists() else 0
        rolled_out = len(take_folders(self.folder / "rollouts_journal"))
        hours = PROBE_H + each_h * (rolled_out + attempts)
        if attempts:
            hours += effort.setup.mean_s / 3600
        elif made.done:
            hours += OPERATOR_H.value
        words = "; ".join(f"{i.dimension.value}: {i.remedy}" for i in plan.items)
        return replace(made, hours=hours, done=made.done or f"in words ({words})")

    def _twin(self) -> Twin:
        from benchmarks.stages import measured_twin

        return measured_twin(self.site.cell, self.folder)

    def _carried_out(self, plan: Plan, twin: Twin) -> _Done:
        from benchmarks.stages import carry_out

        found = carry_out(
            plan, self.site.cell, self.folder, base=self.base, sim=self.sim, twin=twin,
            seed=self.site.seed,
        )  # fmt: skip
        if found is None:
            return _Done(self.base)
        trained, scale = found.is_trained, found.speed_scale
        return _Done(found.policy, found.done, 0.0, found.takes, trained, scale)

    def _from_twin(self, arm: str) -> _Done:
        """Do one remedy with the twin; a station without one keeps the base."""
        from gaploop.collect.campaign import Quota
        from gaploop.core.plan import Plan, PlanItem
        from gaploop.core.twin import around_twin
        from gaploop.failure_analysis.planning import remedies
        from gaploop.finetune.demonstrations import TargetCell

        twin, hours = self._twin(), PROBE_H + remedies.OPERATOR_H.value
        drives = [m for m in twin.mechanisms if m.startswith("actuator_response.")]
        if arm == "drives_only" and len(drives) == len(twin.mechanisms):
            arm = "resimulate"
        if arm in ("resimulate", "recalibrate"):
            if not twin.mechanisms:
                return _Done(self.base, hours=PROBE_H)
            item = PlanItem(arm, self.site.dimensions[0], 0, arm, "")
            made = self._carried_out(Plan(arm, "", (item,)), twin)
            return replace(made, hours=hours if made.done else PROBE_H)
        cells = []
        if arm == "plus_5":
            cells.append(("five", self.site.cell, 5))
        known = twin.values(drives if arm == "drives_only" else None)
        if known:
            drawn = around_twin(twin) if arm == "around_twin" else None
            there = TargetCell({}, 0, parameters=known, randomise=drawn)
            cells.append((f"{arm}_takes", there, remedies.TAKES))
        made = self._learned(arm, self.folder, [(n, c, [Quota(k)]) for n, c, k in cells])
        return replace(made, hours=hours if cells else PROBE_H, takes=5 * (arm == "plus_5"))

    def _randomised(self, arm: str) -> _Done:
        """Return the policy that all stations share."""
        from benchmarks.stages import NOTHING
        from gaploop.collect.campaign import Quota
        from gaploop.failure_analysis.planning.remedies import OPERATOR_H, RANDOMISED_TAKES
        from gaploop.finetune.demonstrations import TargetCell
        from gaploop.sim.randomise import preset

        ranges: Randomisation = preset(*PRESETS[arm])
        cell = TargetCell({}, 0, parameters=NOTHING, randomise=ranges)
        made = self._learned(arm, self.folder.parent, [(arm, cell, [Quota(RANDOMISED_TAKES)])])
        return replace(made, hours=OPERATOR_H.value)

    def _learned(self, name: str, folder: Path, cells: Sequence[tuple[str, Any, Any]]) -> _Done:
        from benchmarks.stages import collected, learn_from, silent
        from gaploop.finetune.adapt import ADAPTER

        roots = [
            folder / root
            for root, cell, quotas in cells
            if (folder / root).exists() or collected(folder, root, cell, quotas, root, silent)
        ]
        if not roots:
            return _Done(self.base)
        run = folder / f"run_{name}"
        learn_from(roots, run, self.base, self.sim, 400, self.site.seed)
        return _Done(run / ADAPTER, ", ".join(root.name for root in roots))

    def _recorded(self, arm: str) -> _Done:
        from benchmarks.proof.arms import evenly
        from benchmarks.proof.design import STAGED
        from benchmarks.proof.site import hours, trained
        from gaploop.finetune.adapt import MERGED

        site = self.site
        takes: Mapping[GapDimension, int] = {site.dimensions[0]: TAKES}
        cells = {site.dimensions[0]: site.cell}
        if arm == "uniform":
            takes = evenly(TAKES, STAGED, site.seed)
            cells = {d: site.set_up_for(d) for d in takes}
        made = trained(self.job, arm, takes, cells)
        policy = self.folder / arm / "run" / MERGED if made.takes else self.base
        return _Done(policy, f"{made.takes} takes", hours(made), made.takes)

    def _oracle(self) -> _Done:
        """Return what comes of the true parameters."""
        from gaploop.core.twin import Twin, TwinParameter, save_twin
        from gaploop.failure_analysis.planning.remedies import DELAY, LIGHT, READ
        from gaploop.finetune.recalibration import POLICY, recalibrate
        from gaploop.sim.gaps import draw_gaps, mechanism_named

        if not set(self.site.gaps) <= {*READ, *LIGHT, DELAY}:
            return replace(self._recorded("collect"), hours=0.0)
        run, known = self.folder / "oracle", []
        for gap in draw_gaps(self.site.gaps, self.site.gap_seed):
            key = f"{gap.dimension}.{gap.mechanism}"
            for p in mechanism_named(key).parameters:
                true = gap.parameters.get(p.name, p.nominal)
                known.append(
                    TwinParameter(f"{key}.{p.name}", p.unit, p.nominal, true, (true, true), True,
                                  "truth")
                )  # fmt: skip
        if not (run / POLICY).exists():
            save_twin(Twin(self.site.name, "so101", tuple(known)), self.folder / "truth.yaml")
            recalibrate(self.base, self.folder / "truth.yaml", run)
        return _Done(run / POLICY, "recalibrated by the truth", is_trained=False)


def _figures(rows: Sequence[Mapping[str, Any]], arm: str) -> dict[str, Any]:
    """Return an arm's means over its stations, and against two others where both have run."""
    mine = {r["site"]: r for r in rows if r["arm"] == arm}
    dimensions = {k: r for k, r in mine.items() if r["kind"] != PAIR}
    found: dict[str, Any] = {"stations": len(mine)}
    for name, of in (
        ("all", dimensions),
        ("fixable", {k: r for k, r in dimensions.items() if r["kind"] in FIXABLE}),
    ):
        found[name] = {
            "success": mean_of([won(r["after"]) for r in of.values()]),
            "hours": float(np.mean([r["hours"] for r in of.values()])) if of else None,
            "stations": len(of),
        }
        for other in ("nothing", "collect"):
            theirs = {r["site"]: r for r in rows if r["arm"] == other and r["site"] in of}
            found[name][f"over_{other}"] = mean_of(
                [won(of[k]["after"]) - won(theirs[k]["after"]) for k in theirs]
            )
    found["kept"] = mean_of(
        [won(r["nominal_after"]) - won(r["nominal_before"]) for r in mine.values()]
    )
    return found


def _picture(figures: Mapping[str, Any]) -> bytes:
    """Draw success over the dimensions that commands can fix, and over all nine, by arm."""

    from gaploop.failure_analysis.report.page import ACCENT, PALE, SOFT, figure_png, new_figure

    with new_figure(7.6, 0.5 + 0.32 * len(figures)) as (drawn, axes):
        for y, found in enumerate(figures.values()):
            for shift, of, colour in ((-0.18, "fixable", ACCENT), (0.18, "all", PALE)):
                if (e := found[of]["success"]) is None:
                    continue
                axes.barh(y + shift, e.value, 0.34, color=colour)
                span = [[e.value - e.low], [e.high - e.value]]
                axes.errorbar(e.value, y + shift, xerr=span, color=SOFT, capsize=2, lw=1)
        axes.set_yticks(range(len(figures)), [arm.replace("_", " ") for arm in figures])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel("success at hidden stations, sim-to-sim")
        for label, colour in (("six dimensions with commands", ACCENT), ("all nine", PALE)):
            axes.barh(0, 0, color=colour, label=label)
        axes.legend(frameon=False, loc="lower right")
        return figure_png(drawn)


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    rows = result["rows"]
    arms = list(result["figures"])
    kinds = [k for k in (*GapDimension, PAIR) if any(r["kind"] == k for r in rows)]
    lines = [
        f"Sim-to-sim, {len(rows)} rows; means over stations with 95 % intervals.",
        "",
        "| arm | six dimensions | n | over nothing | over collect | hours | all nine | n | "
        "nominal, change |",
        "|---" * 9 + "|",
    ]
    for arm, found in result["figures"].items():
        six, nine = found["fixable"], found["all"]
        hours = "" if six["hours"] is None else f"{six['hours']:.2f}"
        lines.append(
            f"| `{arm}` | {_text(six['success'], percent)} | {six['stations']} | "
            f"{_text(six['over_nothing'], points)} | {_text(six['over_collect'], points)} | "
            f"{hours} | {_text(nine['success'], percent)} | {nine['stations']} | "
            f"{_text(found['kept'], points)} |"
        )
    lines += ["", "| station | gap | " + " | ".join(arms) + " |", "|---" * (len(arms) + 2) + "|"]
    for site in dict.fromkeys(r["site"] for kind in kinds for r in rows if r["kind"] == kind):
        mine = {r["arm"]: r for r in rows if r["site"] == site}
        first = next(iter(mine.values()))
        gaps = ", ".join(f"`{k}` {v:g}" for k, v in json.loads(first["gaps"]).items())
        cells = [
            percent(rate(mine[a]["after"].count("1"), len(mine[a]["after"]))) if a in mine else ""
            for a in arms
        ]
        lines.append(f"| {first['kind']} {first['seed']} | {gaps} | " + " | ".join(cells) + " |")
    lines += ["", "What `plan` chose:", ""]
    lines += [f"- {r['kind']} {r['seed']}: {r['done']}" for r in rows if r["arm"] == "plan"]
    return "\n".join([*lines, "", f"Picture: {result['picture']}"])


def _text(estimate: Estimate | None, words: Any) -> str:
    return words(estimate) if estimate else ""

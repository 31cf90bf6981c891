"""Close a gap, step by step: a policy fails, find out why, record what helps, adapt, compare.

The robot is simulated, and so is the "real" cell, whose table is 17 mm too low: sim-to-sim.
A quarter of an hour on two cores; stages that are done aren't done again:

    python examples/01_close_the_gap.py
"""

from pathlib import Path

from gaploop.failure_analysis.planning.plan import make_plan
from gaploop.finetune.adapt import ADAPTER, adapt
from gaploop.finetune.closed_loop import (
    TargetCell,
    record_demonstrations,
    roll_out_and_diagnose,
    start_for,
)
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.gate.judge import compare
from gaploop.finetune.tuning.work import AdaptOptions


def main(out: Path, rollouts: int = 50, budget: int = 10) -> None:
    """Go round the loop once, in the folder `out`."""
    # A policy that was made in simulation, and a cell that differs from it. What differs is known
    # to the simulator only: neither diagnosis nor plan are told.
    cell = TargetCell({"spatial_geometry.table_height": 0.9}, gap_seed=2)
    start = start_for("pick_place", out)
    before = evaluate(start.base, rollouts, gaps=cell.gaps, gap_seed=cell.gap_seed)
    print(f"In the changed cell the policy succeeds in {before.rate:.0%} of {rollouts} rollouts.")

    # Why? Roll out with the recorder on, and diagnose the takes that failed.
    diagnosis = roll_out_and_diagnose(cell, out, start.base, rollouts=12)
    shares = diagnosis.summary["dimensions"]
    for dimension in sorted(shares, key=shares.get, reverse=True)[:3]:
        print(f"  {shares[dimension]:4.0%}  {dimension}")

    # What to do about it? So many takes for a dimension, or something better than takes.
    plan = make_plan(diagnosis, budget)
    for item in plan.items:
        print(f"  {item.dimension.value}: {item.remedy}, {item.takes} takes. {item.protocol}")
    if not plan.takes:
        return

    # Record them (here a script demonstrates) and put an adapter on the policy, trained on them and
    # on as many simulated takes, so that nothing is forgotten.
    takes = record_demonstrations(cell, out / "collected", plan.takes, seed=500_000)
    run = out / "run"
    if not (run / "run.json").exists():
        adapt(AdaptOptions(start.base, (takes,), run, (start.sim,), resume=run.exists()))

    # Did it help? The same scenes again.
    after = evaluate(run / ADAPTER, rollouts, gaps=cell.gaps, gap_seed=cell.gap_seed)
    verdict = compare(before, after)
    print(f"Now {after.rate:.0%}: {verdict.verdict.value}. {verdict.says}")


if __name__ == "__main__":
    main(Path("outputs/close_the_gap"))

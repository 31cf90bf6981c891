"""Close the loop: a policy fails, find out why, record what helps, adapt, compare.

The robot is simulated, and so is the "real" cell, whose table is 17 mm too low: sim-to-sim.
A few minutes on two cores; after Ctrl-C the same command continues where it stopped:

    python examples/01_close_the_loop.py
"""

from pathlib import Path

import gaploop

# What differs from nominal simulation. Only the simulator knows it: diagnosis and plan don't.
CELL = {"gaps": {"spatial_geometry.table_height": 0.9}, "gap_seed": 2}
TASK = "Put the cube on the disc"


def main(out: Path, rollouts: int = 50, budget: int = 10) -> None:
    """Run the loop once, in the folder `out`."""
    base = {"path": "base"}
    before = gaploop.evaluate(policy=base, env=CELL, n=rollouts, output_dir=out / "before")
    print(f"In the changed cell the policy succeeds in {before.rate:.0%} of {rollouts} rollouts.")

    # Why? Roll out with the recorder on, and diagnose the takes that failed.
    if not (out / "rollouts").exists():
        gaploop.rollout(robot=CELL, policy=base, dataset=dataset(out / "rollouts", 12))
    diagnosis = gaploop.diagnose(out / "rollouts", output_dir=out / "diagnosis")
    shares = diagnosis.summary["dimensions"]
    for dimension in sorted(shares, key=shares.get, reverse=True)[:3]:
        print(f"  {shares[dimension]:4.0%}  {dimension}")

    # What to do about it? For each dimension a number of takes, or a better remedy than takes.
    plan = gaploop.plan(out / "diagnosis", budget={"takes": budget})
    for item in plan.items:
        print(f"  {item.dimension.value}: {item.remedy}, {item.takes} episodes. {item.protocol}")
    if not plan.takes:
        return

    # Record them (a script demonstrates here), and nominal takes so the policy forgets nothing.
    plan_file = out / "diagnosis/plan.yaml"
    gaploop.record(robot=CELL, plan=plan_file, resume=True, dataset=dataset(out / "takes"))
    gaploop.record(robot={"seed": 500_000}, resume=True, dataset=dataset(out / "nominal", 40))

    # Train an adapter for the policy on both, and evaluate it on the same scenes again.
    adapted = gaploop.finetune(
        policy=base,
        real=[out / "takes"],
        sim=[out / "nominal"],
        output_dir=out / "run",
        resume=(out / "run").exists(),
    )
    after = gaploop.evaluate(
        policy={"path": adapted.policy.folder}, env=CELL, n=rollouts, output_dir=out / "after"
    )
    verdict = gaploop.compare(before, after)
    print(f"Now {after.rate:.0%}: {verdict.verdict.value}. {verdict.message}")


def dataset(root: Path, takes: int = 20) -> dict[str, object]:
    """Return the options of a dataset."""
    return {"root": root, "num_episodes": takes, "single_task": TASK}


if __name__ == "__main__":
    main(Path("outputs/close_the_loop"))

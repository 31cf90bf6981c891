"""What a plan's remedies bring at a blind station, typed where `diagnosis_tiers` left off.

After the page's own plan, `gaploop plan … --try` tries remedies in the station's twin; the commands
that it prints are typed. Then each policy drives thirty scenes at the station, and thirty of the
nominal cell: the policy as it was, what the plan made, what twenty demonstrations of the station
bring (`collect`), and what as many as a plan simulates bring where the simulation is the station
itself (`true_twin`, which no lab has).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.proof.rows import mean_of
from gaploop.core.files import read_json
from gaploop.core.plan import Plan, load_plan
from gaploop.core.statistics import percent
from gaploop.failure_analysis.planning.remedies import MIXED, TAKES

SCENES: Final = 30
SEED: Final = 5000
"""First scene of the rollouts at the station; no other step draws from there."""
COLLECTED: Final = 20
BEFORE, PLANNED, COLLECT, TRUE_TWIN = POLICIES = ("before", "plan", "collect", "true_twin")

type Type = Callable[[str], object]
"""Types a whole command; RuntimeError where it fails."""


def remedied(robot: str, policy: str, type_command: Type) -> dict[str, Any]:
    """Carry out what the plan in the working folder says; return who succeeded how often.

    Args:
        robot: options of the station's cell, as `--robot.…`.
        policy: the policy that fails there.
        type_command: runs a command.

    Returns:
        "said", what `told` returns, and for each policy its name to {"here", "nominal"}: successes
        of `SCENES`. One lacks where there is no command, or nobody could show the task there.
    """
    twin = Path("station", "station_twin.yaml")
    measured = f"--twin={twin} --try" if twin.exists() else ""
    type_command(
        f"gaploop plan diagnosis {measured} --policy.path={policy} --budget.takes=20 "
        "--takes='[rollouts]' --output_dir=remedies"
    )
    plan = load_plan(Path("remedies", "plan.yaml"))
    found: dict[str, Any] = {"said": told(plan)}
    rated = _Rated(robot, type_command)
    found[BEFORE] = rated(BEFORE, [f"--policy.path={policy}"])
    if runs := [item for item in plan.items if item.commands]:
        for line in runs[0].commands[:-1]:
            type_command(line)
        drives = shlex.split(runs[0].commands[-1])
        found[PLANNED] = rated(
            PLANNED, [w for w in drives if w.startswith(("--policy.path=", "--speed_scale="))]
        )
    for name, takes in ((COLLECT, COLLECTED), (TRUE_TWIN, TAKES)):
        try:
            type_command(
                f"gaploop record --robot.type=so101_sim --teleop.type=scripted {robot} "
                f"--dataset.root={name} --dataset.num_episodes={takes}"
            )
        except RuntimeError:  # the scripted person gave up
            continue
        type_command(
            f"gaploop finetune --policy.path={policy} --real='[{name}]' --sim_takes={MIXED} "
            f"--output_dir={name}_policy"
        )
        found[name] = rated(name, [f"--policy.path={name}_policy"])
    return found


def told(plan: Plan) -> dict[str, Any]:
    """Return what a plan chose first, and what it expects of it, in points of success."""
    if not plan.items:
        return {"remedy": "nothing", "dimension": "no cause", "expected": None}
    first = next((item for item in plan.items if item.commands), plan.items[0])
    gain = first.gain_points
    return {
        "remedy": first.remedy if first.commands else f"{first.remedy}, in words",
        "dimension": first.dimension.value,
        "expected": None if gain is None else [gain.value, gain.low, gain.high],
    }


class _Rated:
    """Counts a policy's successes at the station and in the nominal cell."""

    def __init__(self, robot: str, type_command: Type) -> None:
        self._cells = {"here": robot.replace("--robot.", "--env."), "nominal": ""}
        self._type = type_command

    def __call__(self, name: str, policy: Sequence[str]) -> dict[str, int]:
        """Let it drive; `policy` holds the options that say how."""
        found = {}
        for cell, options in self._cells.items():
            folder = Path(f"{name}_{cell}")
            self._type(
                f"gaploop evaluate {shlex.join(policy)} {options} --n={SCENES} --seed={SEED} "
                f"--workers=1 --output_dir={folder}"
            )
            found[cell] = int(read_json(folder / "evaluation.json")["successes"])
        return found


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what remedies brought at stations, as lines of Markdown; none without one."""
    tried = [r for r in rows if r.get("remedies")]
    if not tried:
        return []
    lines = [
        "",
        f"Successes of {SCENES} at the station (and nominally):",
        "",
        "| station | plan | expected | before | after its commands | collect 20 | a true twin |",
        "|---" * 7 + "|",
    ]
    for row in tried:
        found = row["remedies"]
        said, cells = found["said"], []
        for name in POLICIES:
            rated = found.get(name)
            cells.append(f"{rated['here']} ({rated['nominal']})" if rated else "–")
        gain = said["expected"]
        expected = f"{gain[0]:+.0f} [{gain[1]:.0f}, {gain[2]:.0f}]" if gain else ""
        planned = f"{said['dimension'].replace('_', ' ')}: {said['remedy'].replace('_', ' ')}"
        lines.append(f"| {row['station']} | {planned} | {expected} | {' | '.join(cells)} |")
    # Where nothing could be done, the policy stays as it was.
    here = {
        name: [np.array([r["remedies"].get(name, r["remedies"][BEFORE])["here"] / SCENES])
               for r in tried]
        for name in POLICIES
    }  # fmt: skip
    means = [
        f"{name.replace('_', ' ')} {percent(mean)}"
        for name, of in here.items()
        if (mean := mean_of(of))
    ]
    return [*lines, "", f"Mean success, 95 % over stations: {', '.join(means)}."]

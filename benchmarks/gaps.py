"""What every gap mechanism costs the base policy, at half and full severity (sim-to-sim)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.finetune.evaluation import Rollout

SEVERITIES: Final = (0.5, 1.0)
DIRECTIONS: Final = 3
"""Each mechanism is drawn this often, each draw with its own direction."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Return a row per mechanism: success of the policy at each severity, with intervals."""
    from gaploop.finetune.evaluate import evaluate
    from gaploop.finetune.evaluation import wilson
    from gaploop.sim.gaps import MECHANISMS

    n = config.n or 30
    per_direction = max(n // DIRECTIONS, 1)
    cells = len(MECHANISMS) * len(SEVERITIES) * DIRECTIONS
    rows = []
    with options.progress("Rolling out", total=cells * per_direction + n) as advance:

        def told(done: Sequence[Rollout]) -> None:
            advance(len(done))

        nominal = evaluate(config.policy.required(), n, seed=config.seed, on_rollouts=told)
        for mechanism in MECHANISMS:
            key = f"{mechanism.dimension.value}.{mechanism.name}"

            def rollouts(severity: float, key: str = key) -> Iterator[Rollout]:
                for direction in range(DIRECTIONS):
                    yield from evaluate(
                        config.policy.required(),
                        per_direction,
                        gaps={key: severity},
                        gap_seed=config.seed + direction,
                        seed=config.seed + direction * per_direction,
                        on_rollouts=told,
                    ).outcomes

            cost = {}
            for severity in SEVERITIES:
                wins = [r.success for r in rollouts(severity)]
                cost[str(severity)] = wilson(sum(wins), len(wins))
            rows.append({"mechanism": key, "held_out": mechanism.held_out, "success": cost})
    del folder  # everything is in the returned rows
    return {
        "evidence": "sim-to-sim",
        "n": DIRECTIONS * per_direction,
        "nominal": nominal.by_condition["nominal"],
        "rows": rows,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the rows as a Markdown table."""
    head = [f"severity {s:g}" for s in SEVERITIES]
    lines = [
        f"Nominal: {result['nominal']}. Sim-to-sim; {result['n']} rollouts a cell over "
        f"{DIRECTIONS} drawn directions; 95 % Wilson intervals.",
        "",
        "| mechanism | " + " | ".join(head) + " |",
        "|---" * (len(head) + 1) + "|",
    ]
    for row in result["rows"]:
        mark = " (held out)" if row["held_out"] else ""
        values = " | ".join(str(rate) for rate in row["success"].values())
        lines.append(f"| `{row['mechanism']}`{mark} | {values} |")
    return "\n".join(lines)

"""The gate with simulated outcomes beside it: errors, power and pairs, whatever that is worth.

Attempts are made up. A simulated attempt agrees with the station's on the same scene, or says the
opposite, with a chance that makes the two correlate as asked for; else it is drawn by itself. Each
gate is tried on the same attempts with and without what was simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import gate_tests as tests
from gaploop.scripts import options

if TYPE_CHECKING:
    import numpy as np

    from benchmarks.bench import BenchConfig
    from benchmarks.gate_tests import Flags, Numbers
    from gaploop.core.suite import Rules

GATES: Final = 2000
"""Made-up gates per cell of the table."""


@dataclass(frozen=True)
class MadeUpSimulation:
    """A simulation and what it is worth.

    Attributes:
        correlation: of a simulated attempt with the station's on the same scene.
        favours: success that it adds to the candidate's and takes from the baseline's.
        turns: from this pair on the correlation is the opposite; 0 never.
    """

    correlation: float
    favours: float = 0.0
    turns: int = 0


SIMULATIONS: Final = {
    "correlates at 0.7": MadeUpSimulation(0.7),
    "correlates at 0.4": MadeUpSimulation(0.4),
    "knows nothing": MadeUpSimulation(0.0),
    "favours the candidate by 40 points": MadeUpSimulation(0.0, favours=0.2),
    "says the opposite, and favours the candidate": MadeUpSimulation(-0.7, favours=0.2),
    "correlates at 0.7, from pair 60 on at -0.7": MadeUpSimulation(0.7, turns=60),
}


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """Return errors, power and pairs of gates with and without what was simulated."""
    from gaploop.core.suite import Rules
    from gaploop.finetune.gate.evidence import make_design
    from gaploop.finetune.gate.outcomes import OTHERS

    rules, gates = Rules(), config.n or GATES
    design = make_design(rules)
    truths = {"equal": 0.0, "margin": design.margin, "retrain": None, "gain": rules.gain}
    rows = []
    with options.progress("Gates", total=len(SIMULATIONS) * len(truths)) as advance:
        for name, simulation in SIMULATIONS.items():
            row: dict[str, Any] = {"simulation": name}
            for n, (truth, gain) in enumerate(truths.items()):
                seed = [config.seed, 11, n]
                row[truth] = _compared(
                    seed, gates, rules, design.margin, design.max_pairs, gain, simulation
                )
                advance()
            rows.append(row)
    return {
        "evidence": "made-up attempts",
        "gates": gates,
        "rules": vars(rules),
        "design": asdict(design),
        "others": OTHERS,
        "rows": rows,
    }


def _compared(
    seed: list[int], gates: int, rules: Rules, margin: float, pairs: int, gain: float | None,
    simulation: MadeUpSimulation,
) -> dict[str, Any]:  # fmt: skip
    """Return how the gates end without and with simulation, on equal attempts."""
    import numpy as np

    from gaploop.finetune.evaluation import wilson

    rng = np.random.default_rng(seed)
    rates: Numbers = np.full((gates, 2), rules.baseline_rate)
    if gain is None:
        size = rules.baseline_rate * (1 - rules.baseline_rate) / rules.retrain_sd**2 - 1
        rates = rng.beta(rules.baseline_rate * size, (1 - rules.baseline_rate) * size, (gates, 2))
    else:
        rates[:, 1] += gain
    success = rng.random((gates, pairs, 2), dtype=np.float32) < rates[:, None]
    old, new = success[..., 0], success[..., 1]
    plain = tests.gate(old, new, rules, margin, pairs)
    control = made_up_control(rng, success, rates, simulation)
    helped = tests.gate(old, new, rules, margin, pairs, control)
    chosen = rng.integers(gates, size=(1000, gates))
    saved = 1 - helped.pairs[chosen].mean(1) / plain.pairs[chosen].mean(1)
    return {
        "plain": wilson(int(plain.promoted.sum()), gates),
        "helped": wilson(int(helped.promoted.sum()), gates),
        "plain_pairs": float(plain.pairs.mean()),
        "helped_pairs": float(helped.pairs.mean()),
        "saved": 1 - float(helped.pairs.mean() / plain.pairs.mean()),
        "saved_interval": np.quantile(saved, (0.025, 0.975)).tolist(),
    }


def made_up_control(
    rng: np.random.Generator, success: Flags, rates: Numbers, simulation: MadeUpSimulation
) -> Numbers:
    """Return controls of made-up attempts, each from its scene and `OTHERS` others.

    Args:
        rng: draws.
        success: shape (gates, pairs, 2): baseline, candidate.
        rates: true success of each, shape (gates, 2).
        simulation: what the simulated attempts are like.

    Returns:
        shape (gates, pairs).
    """
    import numpy as np

    from gaploop.finetune.gate.outcomes import OTHERS

    alone = np.clip(rates + simulation.favours * np.array([-1.0, 1.0]), 0, 1)
    control: Numbers = np.empty(success.shape[:2])
    turn = simulation.turns or success.shape[1]
    for part, sign in ((slice(turn), 1), (slice(turn, None), -1)):
        r = sign * simulation.correlation
        seen = success[:, part] if r >= 0 else ~success[:, part]
        agrees = rng.random(seen.shape, dtype=np.float32) < abs(r)
        own = np.where(agrees, seen, rng.random(seen.shape, dtype=np.float32) < alone[:, None])
        rate = abs(r) * (rates if r >= 0 else 1 - rates) + (1 - abs(r)) * alone
        others = rng.binomial(OTHERS, rate[:, None], seen.shape) / OTHERS
        control[:, part] = np.diff(own - others, axis=-1)[..., 0]
    return control


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    rules, design = result["rules"], result["design"]
    lines = [
        f"{result['gates']} made-up gates a cell, baseline {rules['baseline_rate']:.0%}, margin "
        f"{design['margin']:.1%}, at most {design['max_pairs']} pairs; {result['others']} other "
        "scenes for each pair; 95 % intervals. Without simulation → with it, on equal attempts.",
        "",
        "| simulation | promoted, equal | promoted, better by the margin | promoted, retrain | "
        f"power at +{rules['gain']:.0%} | pairs, retrain | pairs, +{rules['gain']:.0%} | saved, "
        "retrain | saved, gain |",
        "|---" * 9 + "|",
    ]
    for row in result["rows"]:
        cells = [
            f"{row[t]['plain'].rate:.1%} → {_rate(row[t]['helped'])}"
            for t in ("equal", "margin", "retrain", "gain")
        ]
        cells += [
            f"{row[t]['plain_pairs']:.0f} → {row[t]['helped_pairs']:.0f}"
            for t in ("retrain", "gain")
        ]
        for truth in ("retrain", "gain"):
            low, high = row[truth]["saved_interval"]
            cells.append(f"{row[truth]['saved']:.0%} [{low:.0%}, {high:.0%}]")
        lines.append(f"| {row['simulation']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _rate(rate: Any) -> str:
    low, high = rate.interval
    return f"{rate.rate:.1%} [{low:.1%}, {high:.1%}]"

"""The gate on policies trained on identical data, and on a true gain: errors, power, attempts.

Trainings on the same data differ in their true success, so "false promotion" has two meanings.
A test of two given policies is right to promote the luckier of two retrains; a gate that is to
find better data or a better recipe is wrong to. Here a promotion of any mere retrain is false.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import gate_tests as tests
from benchmarks.gate_phases import measure_phases, phases_table
from gaploop.core.files import write_atomically
from gaploop.scripts import options

if TYPE_CHECKING:
    import numpy as np

    from benchmarks.bench import BenchConfig
    from benchmarks.gate_tests import Flags, Numbers
    from gaploop.core.suite import Rules
    from gaploop.finetune.gate.evidence import GateDesign

PICTURE: Final = "gate_retrains.png"
DRAWS: Final = 2000
"""Comparisons per cell of the study."""
SPREADS: Final = (0.0, 0.02, 0.03, 0.04)
"""True standard deviations of success between retrains that are tried."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Return errors, power and attempts of the gate beside other tests."""
    from benchmarks.gate_picture import picture
    from benchmarks.gate_retrains import make_retrains, stored_outcomes
    from gaploop.core.suite import Rules
    from gaploop.finetune.gate.evidence import make_design

    if config.data is not None:
        return {"evidence": "sim-to-sim", "phases": measure_phases(config.data, config.seed)}
    if config.retrains:
        make_retrains(folder, config.retrains, config.n or 500, config.workers)
    stored = stored_outcomes(folder)
    if stored is not None:
        write_atomically(folder / PICTURE, picture(stored))
    rules = Rules()
    design = make_design(rules)
    compared = _tests(rules, design)
    cells = len(compared) * (len(SPREADS) + 1)
    rows = []
    with options.progress("Comparing", total=cells) as advance:
        for name, test in compared.items():
            rows.append(_row(name, test, rules, design, config.seed, advance))
    return {
        "evidence": "sim-to-sim",
        "draws": DRAWS,
        "rules": vars(rules),
        "design": asdict(design),
        "rows": rows,
        "phases": measure_phases(None, config.seed),
        "retrains": _retrains(stored, rules, config.seed) if stored is not None else None,
    }


def _tests(rules: Rules, design: GateDesign) -> dict[str, tests.Test]:
    from gaploop.finetune.gate.evidence import LONGEST, fixed_pairs

    plain = fixed_pairs(rules, 0.0)
    none = replace(rules, retrain_sd=0.0)
    return {
        "gate": lambda old, new: tests.gate(old, new, rules, design.margin, design.max_pairs),
        "gate, retrain_sd 0": lambda old, new: tests.gate(
            old, new, none, 0.0, math.ceil(LONGEST * plain)
        ),
        "fixed size, same margin": lambda old, new: tests.fixed(
            old, new, design.fixed_pairs, design.margin, rules.alpha
        ),
        "fixed size (McNemar)": lambda old, new: tests.fixed(old, new, plain, 0.0, rules.alpha),
        f"Barnard, {tests.LOOKS} looks, Bonferroni": lambda old, new: tests.barnard(
            old, new, 2 * plain, rules.alpha
        ),
        "McNemar, looked at after every pair": lambda old, new: tests.peeking(
            old, new, plain, rules.alpha
        ),
    }


def _row(
    name: str,
    test: tests.Test,
    rules: Rules,
    design: GateDesign,
    seed: int,
    advance: Callable[..., None],
) -> dict[str, Any]:
    """Return what a test does with retrains of several spreads, and with a true gain."""
    import numpy as np

    from gaploop.finetune.evaluation import wilson

    rng = np.random.default_rng([seed, 3])
    longest = max(design.max_pairs, 1200)
    row: dict[str, Any] = {"test": name, "false_promotion": {}}
    for spread in SPREADS:
        ended = test(*_drawn(rng, rules.baseline_rate, spread, None, longest))
        row["false_promotion"][f"{spread:g}"] = wilson(int(ended.promoted.sum()), DRAWS)
        if spread == rules.retrain_sd:
            row["pairs_retrain"] = float(ended.pairs.mean())
        advance()
    ended = test(*_drawn(rng, rules.baseline_rate, rules.retrain_sd, rules.gain, longest))
    row["power"] = wilson(int(ended.promoted.sum()), DRAWS)
    row["pairs_gain"] = float(ended.pairs.mean())
    advance()
    margin = design.margin if name in ("gate", "fixed size, same margin") else 0.0
    row["fixed_pairs"] = _fixed_of_power(rules, margin, row["power"].rate)
    mean = (row["pairs_retrain"] + row["pairs_gain"]) / 2
    row["saved"] = {
        "retrain": 1 - row["pairs_retrain"] / row["fixed_pairs"],
        "gain": 1 - row["pairs_gain"] / row["fixed_pairs"],
        "mean": 1 - mean / row["fixed_pairs"],
    }
    return row


def _drawn(
    rng: np.random.Generator, mean: float, spread: float, gain: float | None, pairs: int
) -> tuple[Flags, Flags]:
    """Draw true rates, Beta-distributed, and attempts; `gain` is added to the baseline's rate."""
    import numpy as np

    rates: Numbers = np.full((2, DRAWS), mean)
    if spread:
        size = mean * (1 - mean) / spread**2 - 1  # of a beta distribution with that deviation
        rates = rng.beta(mean * size, (1 - mean) * size, (2, DRAWS))
    if gain is not None:
        rates[1] = np.minimum(rates[0] + gain, 1.0)
    return (
        rng.random((DRAWS, pairs), dtype=np.float32) < rates[0, :, None],
        rng.random((DRAWS, pairs), dtype=np.float32) < rates[1, :, None],
    )


def _fixed_of_power(rules: Rules, margin: float, power: float) -> int:
    from gaploop.finetune.gate.evidence import fixed_pairs

    return fixed_pairs(replace(rules, power=min(max(power, 0.5), 0.999)), margin)


def _retrains(stored: Flags, rules: Rules, seed: int) -> dict[str, Any]:
    """Return what the gate does with real retrains; scenes are drawn anew, pairs kept together."""
    import numpy as np

    from gaploop.finetune.gate.evidence import make_design

    rng = np.random.default_rng([seed, 4])
    success = stored.mean(1)
    spread = retrain_spread(stored)
    measured = replace(
        rules, retrain_sd=min(spread, 0.035), baseline_rate=float(min(success.mean(), 0.89))
    )
    default = replace(rules, baseline_rate=measured.baseline_rate)
    result: dict[str, Any] = {
        "retrains": len(stored),
        "rollouts": stored.shape[1],
        "success": success.tolist(),
        "retrain_sd": spread,
        "retrain_sd_interval": _spread_interval(stored, np.random.default_rng([seed, 5])),
        "seen_sd": float(success.std(ddof=1)),
        "plans": {},
    }
    for name, plan in (("default", default), ("retrain_sd as measured", measured)):
        design = make_design(plan)
        result["plans"][name] = _on_retrains(stored, plan, design, rng)
    return result


def _on_retrains(
    stored: Flags, rules: Rules, design: GateDesign, rng: np.random.Generator
) -> dict[str, Any]:
    import numpy as np

    count = len(stored)
    few, many = max(DRAWS // (count * (count - 1)), 20), max(DRAWS // count, 20)
    promoted = np.full((count, count), np.nan)
    found = np.full(count, np.nan)
    pairs: dict[str, list[float]] = {"retrain": [], "gain": []}
    for i in range(count):
        for j in range(count):
            size = (many if i == j else few, design.max_pairs)
            scenes = rng.integers(stored.shape[1], size=size)
            old, new = stored[i][scenes], stored[j][scenes]
            if i == j:
                new = _added(old, rules.gain, float(stored[i].mean()), rng)
            ended = tests.gate(old, new, rules, design.margin, design.max_pairs)
            pairs["gain" if i == j else "retrain"].append(float(ended.pairs.mean()))
            if i == j:
                found[i] = ended.promoted.mean()
            else:
                promoted[i, j] = ended.promoted.mean()
    return {
        "margin": design.margin,
        "max_pairs": design.max_pairs,
        "fixed_pairs": design.fixed_pairs,
        "false_promotion": _over_retrains(promoted, rng),
        "power": float(found.mean()),
        "pairs": {name: float(np.mean(values)) for name, values in pairs.items()},
    }


def _added(old: Flags, gain: float, rate: float, rng: np.random.Generator) -> Flags:
    """Return attempts that succeed as often as independent ones at `rate` + `gain`."""
    import numpy as np

    drawn: Flags = rng.random(old.shape, dtype=np.float32) < min(rate + gain, 1.0)
    return drawn


def _over_retrains(promoted: Numbers, rng: np.random.Generator) -> dict[str, Any]:
    """Return the mean over ordered pairs of retrains, with a bootstrap interval over retrains."""
    import numpy as np

    count = len(promoted)
    means: list[float] = []
    for _ in range(1000):
        chosen = rng.integers(count, size=count)
        if len(set(chosen.tolist())) > 1:
            means.append(float(np.nanmean(promoted[np.ix_(chosen, chosen)])))
    low, high = np.quantile(means, [0.025, 0.975])
    return {"rate": float(np.nanmean(promoted)), "interval": [float(low), float(high)]}


def retrain_spread(stored: Flags) -> float:
    """Return the standard deviation of true success between retrains, from paired outcomes.

    Half the mean squared difference of two retrains, less what the scenes alone would make of
    it; 0 where that is negative.

    Args:
        stored: success, shape (retrains, scenes), on the same scenes.
    """
    import numpy as np

    parts = _squares(stored)
    return math.sqrt(max(float(parts[np.triu_indices(len(parts), 1)].mean()) / 2, 0.0))


def _squares(stored: Flags) -> Numbers:
    """Return the squared true difference of each two retrains, estimated without bias."""
    import numpy as np

    x = stored[:, None].astype(np.float32) - stored
    return np.asarray(x.mean(2) ** 2 - x.var(2, ddof=1) / x.shape[2], dtype=np.float64)


def _spread_interval(stored: Flags, rng: np.random.Generator) -> list[float]:
    """Return the 95 % interval of the spread: bootstrap over retrains; nobody pairs with itself."""
    import numpy as np

    parts, count, found = _squares(stored), len(stored), []
    for _ in range(1000):
        chosen = rng.integers(count, size=count)
        two = chosen[:, None] != chosen
        drawn = parts[np.ix_(chosen, chosen)][two]
        found.append(math.sqrt(max(float(drawn.mean()) / 2, 0.0)) if drawn.size else 0.0)
    return [float(edge) for edge in np.quantile(found, [0.025, 0.975])]


def table(result: Mapping[str, Any]) -> str:
    """Return the study as Markdown."""
    if "rules" not in result:
        return phases_table(result["phases"])
    rules, design = result["rules"], result["design"]
    spreads = [f"{s:g}" for s in SPREADS]
    lines = [
        f"Baseline {rules['baseline_rate']:.0%}; planned for retrain_sd {rules['retrain_sd']:g}: "
        f"margin {design['margin']:.1%}, at most {design['max_pairs']} pairs. {result['draws']} "
        "comparisons a cell; 95 % Wilson intervals. A promotion of a mere retrain is false.",
        "",
        "| test | "
        + " | ".join(f"false, spread {s}" for s in spreads)
        + " | power at +10 | pairs, retrain | pairs, +10 | fixed of equal power | saved, mean |",
        "|---" * (len(spreads) + 6) + "|",
    ]
    for row in result["rows"]:
        cells = [_rate(row["false_promotion"][s]) for s in spreads]
        cells += [_rate(row["power"]), f"{row['pairs_retrain']:.0f}", f"{row['pairs_gain']:.0f}"]
        cells += [str(row["fixed_pairs"]), f"{row['saved']['mean']:.0%}"]
        lines.append(f"| {row['test']} | " + " | ".join(cells) + " |")
    lines += ["", phases_table(result["phases"])]
    if result["retrains"]:
        lines += ["", *_retrain_lines(result["retrains"])]
    return "\n".join(lines)


def _rate(rate: Any) -> str:
    low, high = rate.interval
    return f"{rate.rate:.1%} [{low:.1%}, {high:.1%}]"


def _retrain_lines(found: Mapping[str, Any]) -> list[str]:
    rates = ", ".join(f"{rate:.0%}" for rate in found["success"])
    low, high = found["retrain_sd_interval"]
    lines = [
        f"{found['retrains']} trainings on identical data, {found['rollouts']} rollouts each "
        f"(sim-to-sim): success {rates}; spread of the true "
        f"rates {found['retrain_sd']:.3f} [{low:.3f}, {high:.3f}], of the seen ones "
        f"{found['seen_sd']:.3f}. "
        "Resampling takes the seen ones for true, so its false promotion is an upper bound."
    ]
    for name, plan in found["plans"].items():
        low, high = plan["false_promotion"]["interval"]
        lines.append(
            f"{name}: margin {plan['margin']:.1%}; false promotion "
            f"{plan['false_promotion']['rate']:.1%} [{low:.1%}, {high:.1%}] (bootstrap over "
            f"retrains), power {plan['power']:.0%}; {plan['pairs']['retrain']:.0f} pairs for a "
            f"retrain, {plan['pairs']['gain']:.0f} for +10, fixed {plan['fixed_pairs']}."
        )
    return lines

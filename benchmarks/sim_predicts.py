"""Does simulation predict? Rank correlations with success out of distribution on a real robot.

A study's counts of trials on a robot, by training condition and evaluation setting, are set against
what might have foretold them: what was simulated (--data), the robot's own base setting, a single
setting, a single task, and the robot once more. The last is the most that anything can reach, for
the robot's rates are counts, too.

Rows of `randomisation` or `seeing_remedies` as --data, without trials, tell likewise, sim-to-sim,
what foretells which training condition or remedy does best at a made-up station.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError

if TYPE_CHECKING:
    import numpy as np

    from benchmarks.bench import BenchConfig
    from benchmarks.gate_tests import Numbers
    from gaploop.failure_analysis.factors import Trials

BASE: Final = "base"
"""The evaluation setting that is like the training; all others are out of distribution."""
RESAMPLES: Final = 2000
"""Bootstrap samples of training conditions, and splits of the trials into two halves."""
PREDICTORS: Final = {
    "nominal_after": "the nominal cell", "sim_after": "the randomised simulation",
    "mild_after": "the fixed mild cell",
}  # fmt: skip
"""Columns of success elsewhere than at the station."""
LEARNED: Final = 0.9
"""Success in its own cell from which on a policy counts as trained."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """Return how well each predictor ranks the training conditions."""
    import numpy as np

    from benchmarks.factors_lessons import FACTORS, counted_once, read_counts
    from gaploop.core.files import sha256

    rng = np.random.default_rng(config.seed)
    if config.trials is None and config.data is not None and config.data.suffix == ".parquet":
        return between_stations(config.data, rng)
    if config.trials is None:
        raise UnusableInputError(
            f"Which trials? Name a CSV file of counts with --trials=FILE; columns: "
            f"{', '.join(FACTORS)}, successes, trials."
        )
    rows = counted_once(read_counts(config.trials))
    names, tasks, settings, won, tried = counts_of(rows)
    rates, ood = won / tried, [n for n, setting in enumerate(settings) if setting != BASE]
    real = rates[:, :, ood].mean((1, 2))
    found = []
    if config.data is not None:
        simulated = simulated_rates(config.data, names)
        known = [n for n, name in enumerate(names) if name in simulated]
        values = np.array([simulated[names[n]] for n in known])
        found.append(_ranked("simulation, out of distribution", values, real[known], rng))
    base = rates[:, :, settings.index(BASE)].mean(1)
    found.append(_ranked("the robot in its base setting", base, real, rng))
    for n in ood:
        rest = [other for other in ood if other != n]
        others = rates[:, :, rest].mean((1, 2))
        one = rates[:, :, n].mean(1)
        found.append(_ranked(f"the robot with another {settings[n]}; the rest", one, others, rng))
    for n, task in enumerate(tasks):
        others = np.delete(rates[:, :, ood], n, 1).mean((1, 2))
        one = rates[:, n, ood].mean(1)
        found.append(_ranked(f"the robot at {task}; the other tasks", one, others, rng))
    order = np.argsort(-real)
    return {
        "evidence": "real robot, published counts",
        "sha256": sha256(config.trials),
        "trials": int(tried.sum()),
        "predictors": found,
        "again": again(won[:, :, ood], tried[:, :, ood], rng),
        "conditions": {names[n]: {"base": base[n], "ood": real[n]} for n in order},
    }


def between_stations(path: Path, rng: np.random.Generator) -> dict[str, Any]:
    """Return how well remedies rank at a station as at all the others, and as in the nominal cell.

    Args:
        path: rows of stations and arms, with 1 for each success and 0 for each failure.
        rng: draws.

    Raises:
        UnusableInputError: other rows, or an arm that wasn't tried at a station.
    """
    import numpy as np

    from benchmarks.proof.rows import kept_rows, won

    kept = kept_rows(path, "station", None)
    unfinished = {
        r["arm"] for r in kept if r.get("own_after") and won(r["own_after"]).mean() < LEARNED
    }
    rows = {(r.get("station"), r["arm"]): r for r in kept if r["arm"] not in unfinished}
    stations, arms = (list(dict.fromkeys(key[n] for key in rows)) for n in range(2))
    if len(stations) < 2 or len(rows) < len(stations) * len(arms):
        raise UnusableInputError(
            f"{path}: ranks need rows of every arm at every station, as seeing_remedies keeps them."
        )
    known = ["after", *(c for c in PREDICTORS if all(row.get(c) for row in rows.values()))]
    won_of = {
        c: np.array([[won(rows[station, arm][c]) for station in stations] for arm in arms])
        for c in known
    }
    here = won_of["after"]
    successes, tried = here.sum(2), np.full(here.shape[:2], here.shape[2])
    rates = successes / tried
    elsewhere = (rates.sum(1, keepdims=True) - rates) / (len(stations) - 1)
    found = []
    predictors = {PREDICTORS[c]: won_of[c].mean(2) for c in known[1:]}
    for name, predictor in (("other stations", elsewhere), *predictors.items()):
        row: dict[str, Any] = {"predictor": name, "conditions": len(arms)}
        for kind, of in (("spearman", _spearman), ("kendall", _kendall)):
            each = np.array([of(predictor[:, n], rates[:, n]) for n in range(len(stations))])
            drawn = each[rng.integers(len(each), size=(RESAMPLES, len(each)))]
            row[kind] = float(np.nanmean(each))
            row[f"{kind}_interval"] = np.nanquantile(np.nanmean(drawn, 1), (0.025, 0.975)).tolist()
        found.append(row)
    found += [
        _ranked(f"{name}; the stations' mean", values.mean(1), rates.mean(1), rng)
        for name, values in predictors.items()
    ]
    once_more = [
        again(successes[:, [n], None], tried[:, [n], None], rng) for n in range(len(stations))
    ]
    return {
        "evidence": "sim-to-sim",
        "trials": int(tried.sum()),
        "stations": len(stations),
        "predictors": found,
        "again": float(np.nanmean(once_more)),
        "left_out": sorted(unfinished),
    }


def counts_of(
    rows: Sequence[Trials],
) -> tuple[list[str], list[str], list[str], Numbers, Numbers]:
    """Return training conditions, tasks, settings; successes and trials of each, in that order.

    Raises:
        UnusableInputError: a condition wasn't tried at every task in every setting, or no setting
            is called base.
    """
    import numpy as np

    from benchmarks.factors_lessons import SETTING, TASK, TRAINING

    cells: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        cell = cells[row.levels[TRAINING], row.levels[TASK], row.levels[SETTING]]
        cell[0] += row.successes
        cell[1] += row.trials
    names, tasks, settings = (list(dict.fromkeys(key[n] for key in cells)) for n in range(3))
    missing = [(n, t, s) for n in names for t in tasks for s in settings if (n, t, s) not in cells]
    if missing or BASE not in settings:
        where = " / ".join(missing[0]) if missing else f"setting '{BASE}'"
        raise UnusableInputError(f"No trials of {where}. Ranks need every cell of the table.")
    table = np.array([[[cells[n, t, s] for s in settings] for t in tasks] for n in names], float)
    return names, tasks, settings, table[..., 0], table[..., 1]


def simulated_rates(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """Return success out of distribution in simulation, by training condition.

    Args:
        folder: holds for each condition, under its name, what `gaploop evaluate --factors=…` wrote.
        names: the conditions that were tried on the robot.

    Raises:
        UnusableInputError: fewer than three of them are there, or an evaluation has one setting.
    """
    from gaploop.core.files import read_json
    from gaploop.finetune.evaluation import Evaluation

    found = {}
    for file in sorted(folder.glob("*/evaluation.json")):
        seen = Evaluation.from_json(read_json(file), str(file))
        rates = [rate.rate for name, rate in seen.by_condition.items() if name != seen.base]
        if not rates:
            raise UnusableInputError(f"{file} has one setting. Run gaploop evaluate --factors=all.")
        if file.parent.name in names:
            found[file.parent.name] = sum(rates) / len(rates)
    if len(found) < 3:
        raise UnusableInputError(
            f"{folder} holds evaluations of {len(found)} training conditions, and ranks need three "
            f"or more, in folders called: {', '.join(names)}."
        )
    return found


def _ranked(
    name: str, predictor: Numbers, real: Numbers, rng: np.random.Generator
) -> dict[str, Any]:
    """Return rank correlations, with bootstrap intervals over training conditions."""
    import numpy as np

    row: dict[str, Any] = {"predictor": name, "conditions": len(real)}
    chosen = rng.integers(len(real), size=(RESAMPLES, len(real)))
    for kind, of in (("spearman", _spearman), ("kendall", _kendall)):
        drawn = [of(predictor[some], real[some]) for some in chosen]
        row[kind] = of(predictor, real)
        row[f"{kind}_interval"] = np.nanquantile(drawn, (0.025, 0.975)).tolist()
    return row


def _spearman(one: Numbers, other: Numbers) -> float:
    import numpy as np
    from scipy.stats import rankdata

    ranks = rankdata(one), rankdata(other)
    varied = all(rank.std() > 0 for rank in ranks)
    return float(np.corrcoef(*ranks)[0, 1]) if varied else float("nan")


def _kendall(one: Numbers, other: Numbers) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(one, other).statistic)


def again(won: Numbers, tried: Numbers, rng: np.random.Generator) -> float:
    """Return how well the robot's rates would rank the conditions if it were all done once more.

    The trials of each cell are split into two halves at random; the rank correlation of the halves
    is stepped up to the full number of trials (Spearman 1910, Brown 1910).

    Args:
        won: successes, shape (conditions, tasks, settings).
        tried: trials, likewise.
        rng: draws.
    """
    import numpy as np

    half = tried.astype(int) // 2
    found = []
    for _ in range(RESAMPLES // 4):
        first = rng.hypergeometric(won.astype(int), (tried - won).astype(int), half)
        second = (won - first) / (tried - half)
        found.append(_spearman((first / half).mean((1, 2)), second.mean((1, 2))))
    r = float(np.mean(found))
    return 2 * r / (1 + r)


def table(result: Mapping[str, Any]) -> str:
    """Return the correlations as Markdown."""
    if "stations" in result:
        where = "the station"
        told = (
            f"Sim-to-sim, {result['stations']} stations. What ranks remedies as they do at one of "
            "them; means over stations with 95 % bootstrap intervals."
        )
        if result["left_out"]:
            told += f" Left out, below {LEARNED:.0%} in their own cells: "
            told += f"{', '.join(result['left_out'])}."
    else:
        where = "the robot"
        told = (
            f"{result['trials']} trials on a real robot, published counts. What ranks the training "
            "conditions as their success out of distribution on the robot does; 95 % bootstrap "
            "intervals over the conditions."
        )
    lines = [
        told,
        "",
        "| predictor | conditions | Spearman | Kendall |",
        "|---|---|---|---|",
    ]
    for row in result["predictors"]:
        cells = [_correlation(row, kind) for kind in ("spearman", "kendall")]
        lines.append(f"| {row['predictor']} | {row['conditions']} | " + " | ".join(cells) + " |")
    lines.append(f"| {where} once more: the most to be had | | {result['again']:.3f} | |")
    return "\n".join(lines)


def _correlation(row: Mapping[str, Any], kind: str) -> str:
    low, high = row[f"{kind}_interval"]
    return f"{row[kind]:.2f} [{low:.2f}, {high:.2f}]"

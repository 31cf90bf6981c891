"""Failure detection for three policy classes at equal elapsed time (sim-to-sim).

Copy the so101_cell.json it writes to failure_analysis/live_so101_cell.json: the score that ships.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.files import write_json
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.detection_rollouts import Rolled
    from gaploop.failure_analysis.live import FailureScore, SignalTrack, Usual

SCHEMA: Final = "gaploop.live.v1"
TRIALS: Final = 60
RESAMPLES: Final = 2000
LANDMARKS: Final = 10
"""Times at which a take is looked at for `learn_weights`."""
SHARES: Final = (0.5, 0.75, 1.0)
"""Of the longest time for which both takes of a pair ran."""
FALSE_ALARMS: Final = 0.1
UNSEEN: Final = GapDimension.TASK_SPECIFICATION.value
"""Where the criterion differs and nothing else, the failed take looks like a successful one."""

type Scores = Callable[[SignalTrack], FloatArray]
"""Returns the score along a take, shape (m,)."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Roll out (kept in `folder`), fit on other classes, test; return AUROC by class."""
    from benchmarks.detection_corpus import recorded
    from benchmarks.detection_policies import STEPS, diffusion_policy
    from benchmarks.detection_rollouts import CLASSES, rolled, trials

    if config.data is not None:
        done = {name: rolls for name, rolls in recorded(config.data).items() if _is_fit(rolls)}
        file = _shipped(done, "pick_place, policy", config.seed, folder)
        return {**analysed(done, config.seed), "file": str(file)}
    n = config.n or TRIALS
    with options.progress("Training the diffusion policy", total=sum(STEPS)) as advance:
        before = 0

        def told(what: str, done: int, _of: int) -> None:
            nonlocal before
            if what.startswith("Training"):
                advance(done - before)
                before = done

        diffusion_policy(folder / "policies", progress=told)
    wanted = trials(config.seed, n)
    with options.progress("Rolling out", total=len(CLASSES) * len(wanted)) as advance:
        done = {name: rolled(name, wanted, folder, config.seed, advance) for name in CLASSES}
    file = _shipped(done, "act", config.seed, folder)
    return {**analysed(done, config.seed), "file": str(file)}


def _shipped(done: Mapping[str, Sequence[Rolled]], base: str, seed: int, folder: Path) -> Path:
    """Write the score that ships: weights from all classes, what is usual from the base's takes."""
    from dataclasses import replace

    from benchmarks.detection_rollouts import NOMINAL
    from gaploop.failure_analysis.live import SHIPPED, fit_score
    from gaploop.finetune.lerobot_policy import policy_id

    groups = [(_usual(v), [r.track for r in v]) for v in done.values()]
    nominal = [r.track for r in done[base] if r.trial.dimension == NOMINAL]
    name = "the packaged base in the nominal embedded cell (simulation)"
    score = fit_score(nominal, learn_weights(groups, seed), name)
    path = folder / SHIPPED.name
    save(replace(score, policy=policy_id("base")), path)
    return path


def save(score: FailureScore, path: Path) -> None:
    """Write a score as `shipped_score` reads it."""
    from gaploop.failure_analysis.live_signals import STREAMED

    usual = score.usual
    arrays = {
        "mean": usual.mean, "spread": usual.spread, "weights": score.weights,
        "level": score.level, "score_spread": score.spread, "peaks": score.peaks,
    }  # fmt: skip
    data = {k: _plain(v) for k, v in arrays.items()}
    notes = {"schema": SCHEMA, "name": score.name, "policy": score.policy, "features": STREAMED}
    write_json(path, {**notes, **data})


def _plain(values: FloatArray) -> Any:
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [None if math.isnan(v) else round(v, 6) for v in values.tolist()]


def analysed(done: Mapping[str, Sequence[Rolled]], seed: int) -> dict[str, Any]:
    """Fit each class's detector on its own nominal successes and the other classes' failures."""
    usual = {name: _usual(rolls) for name, rolls in done.items()}
    classes = {}
    for name, rolls in done.items():
        others = {k: v for k, v in done.items() if k != name}
        score = _detector(name, rolls, others, usual, seed)
        classes[name] = _class_result(rolls, others, score, seed)
    means = [c["auroc"]["seen"]["1.0"]["auroc"] for c in classes.values()]
    return {
        "evidence": "sim-to-sim",
        "classes": classes,
        "mean_auroc": float(np.mean(means)),
        "least_auroc": float(np.min(means)),
        "mean_auroc_with_task_specification": float(
            np.mean([c["auroc"]["all"]["1.0"]["auroc"] for c in classes.values()])
        ),
        "false_alarms_stated": FALSE_ALARMS,
    }


def row_at(track: SignalTrack, t_s: float) -> int:
    """Return the last row of a track that was there at `t_s` [s]."""
    return max(int(np.searchsorted(track.t_s, t_s + 1e-6)) - 1, 0)


def _is_fit(rolls: Sequence[Rolled]) -> bool:
    """Say whether enough nominal takes went well to say what is usual."""
    from gaploop.failure_analysis.live import LEAST_TAKES

    went = sum(r.trial.part == "fit" and not r.track.failed for r in rolls)
    return went >= LEAST_TAKES


def _usual(rolls: Sequence[Rolled]) -> Usual:
    from gaploop.failure_analysis.live import Usual

    return Usual.fit([r.track for r in rolls if r.trial.part == "fit" and not r.track.failed])


def _detector(
    name: str,
    rolls: Sequence[Rolled],
    others: Mapping[str, Sequence[Rolled]],
    usual: Mapping[str, Usual],
    seed: int,
) -> FailureScore:
    """Return the score of a class; its own failures are never looked at."""
    from gaploop.failure_analysis.live import fit_score

    groups = [(usual[k], [r.track for r in v]) for k, v in others.items()]
    fit = [r.track for r in rolls if r.trial.part == "fit"]
    return fit_score(fit, learn_weights(groups, seed), f"nominal successes of {name}")


def learn_weights(
    groups: Iterable[tuple[Usual, Sequence[SignalTrack]]], seed: int = 0
) -> FloatArray:
    """Return weights that tell failed from successful takes at equal elapsed times.

    L2-regularised logistic regression on deviations at times drawn from the lengths of the
    group's successful takes, for both outcomes alike: how long a take was tells nothing.

    Args:
        groups: for each policy what is usual for it, and takes of both outcomes.
        seed: draws the times.

    Returns:
        Shape (2 * len(STREAMED),); the larger, the more a deviation says "failing".
    """
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    rows, failed = [], []
    for usual, tracks in groups:
        ends = np.array([t.t_s[-1] for t in tracks if not t.failed])
        for track in tracks:
            for end in rng.choice(ends, LANDMARKS) * rng.uniform(0.4, 1.0, LANDMARKS):
                if end > track.t_s[-1]:
                    continue  # at equal elapsed time: it doesn't run any more
                k = row_at(track, float(end))
                rows.append(usual.deviations(track.t_s[k : k + 1], track.values[k : k + 1])[0])
                failed.append(track.failed)
    model = LogisticRegression(C=0.03, class_weight="balanced", max_iter=2000)
    model.fit(np.array(rows), failed)
    return np.asarray(model.coef_[0], dtype=np.float64)


def _class_result(
    rolls: Sequence[Rolled],
    others: Mapping[str, Sequence[Rolled]],
    score: FailureScore,
    seed: int,
) -> dict[str, Any]:
    from dataclasses import replace

    test = [r for r in rolls if r.trial.part == "test"]
    tracks = [r.track for r in test]
    seen = [r.track for r in test if r.trial.dimension != UNSEEN]
    even = replace(score, weights=np.ones_like(score.weights))
    forest = _forest([r.track for v in others.values() for r in v], seed)
    baselines: dict[str, Scores] = {
        "successes only (even weights)": even.along,
        "random forest on final signals": forest,
        "tracking error": _one("tracking_rms_rad"),
        "way left": _one("way_left_m"),
        "length": lambda track: track.t_s,
    }
    lengths = [float(t.t_s[-1]) for t in tracks]
    return {
        "takes": _counts(rolls),
        "auroc": {
            "seen": {str(s): auroc(seen, score.along, s, seed) for s in SHARES},
            "all": {str(s): auroc(tracks, score.along, s, seed) for s in SHARES},
        },
        "baselines": {k: auroc(seen, v, 1.0, seed) for k, v in baselines.items()},
        "length_uncontrolled": _plain_auroc(lengths, [t.failed for t in tracks]),
        "alarms": _alarms(score, tracks),
        "by_dimension": {
            d.value: auroc(
                [r.track for r in test if r.trial.dimension == d.value or not r.track.failed],
                score.along, 1.0, seed,
            )["auroc"]
            for d in GapDimension
        },
    }  # fmt: skip


def auroc(tracks: Sequence[SignalTrack], scores: Scores, share: float, seed: int) -> dict[str, Any]:
    """Return the chance that a failed take scores above a successful one at equal elapsed time.

    Each pair is compared at `share` of the longest time for which both ran, so that how long a
    take was tells nothing: a score that is the elapsed time gets exactly 0.5. The interval is the
    2.5 to 97.5 % bootstrap over takes of both outcomes.
    """
    failed = [t for t in tracks if t.failed]
    went = [t for t in tracks if not t.failed]
    if not failed or not went:
        return {"auroc": float("nan"), "interval": None, "failed": len(failed), "went": len(went)}
    along = {id(t): scores(t) for t in tracks}
    wins = np.empty((len(failed), len(went)))
    for i, bad in enumerate(failed):
        for j, good in enumerate(went):
            t_s = share * min(bad.t_s[-1], good.t_s[-1])
            high, low = along[id(bad)][row_at(bad, t_s)], along[id(good)][row_at(good, t_s)]
            wins[i, j] = 0.5 if high == low or np.isnan(high + low) else float(high > low)
    rng = np.random.default_rng([seed, 5])
    bad_share, good_share = (
        rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n for n in wins.shape
    )
    drawn = np.einsum("rf,rf->r", bad_share, good_share @ wins.T)
    return {
        "auroc": float(wins.mean()),
        "interval": [float(q) for q in np.percentile(drawn, [2.5, 97.5])],
        "failed": len(failed),
        "went": len(went),
    }


def _one(name: str) -> Scores:
    from gaploop.failure_analysis.live_signals import STREAMED

    return lambda track: track.values[:, STREAMED.index(name)]


def _forest(tracks: Sequence[SignalTrack], seed: int) -> Scores:
    """Return a plain random forest on the signals at the end of the other classes' takes."""
    from sklearn.ensemble import RandomForestClassifier

    rows = np.nan_to_num(np.array([t.values[-1] for t in tracks]), nan=-1.0)
    forest = RandomForestClassifier(100, class_weight="balanced", random_state=seed)
    forest.fit(rows, [t.failed for t in tracks])
    return lambda t: np.asarray(forest.predict_proba(np.nan_to_num(t.values, nan=-1.0))[:, 1])


def _plain_auroc(values: Sequence[float], failed: Sequence[bool]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(failed, values)) if len(set(failed)) == 2 else float("nan")


def _alarms(score: FailureScore, tracks: Sequence[SignalTrack]) -> dict[str, Any]:
    """Return how many takes of each outcome the calibrated threshold alarms about, and when."""
    from gaploop.finetune.evaluation import wilson

    limit = score.threshold(FALSE_ALARMS)
    result: dict[str, Any] = {"stated": FALSE_ALARMS, "threshold": limit}
    for failed in (True, False):
        chosen = [(t, score.along(t)) for t in tracks if t.failed is failed]
        times = [float(t.t_s[np.argmax(s > limit)]) for t, s in chosen if (s > limit).any()]
        if chosen:
            result["failed" if failed else "went"] = {
                "alarmed": str(wilson(len(times), len(chosen))),
                "median_s": float(np.median(times)) if times else None,
            }
    return result


def _counts(rolls: Sequence[Rolled]) -> dict[str, list[int]]:
    """Return failed and all takes by part and dimension."""
    counts: dict[str, list[int]] = {}
    for r in rolls:
        row = counts.setdefault(f"{r.trial.part} {r.trial.dimension}", [0, 0])
        row[0] += r.track.failed
        row[1] += 1
    return counts


def table(result: Mapping[str, Any]) -> str:
    """Return AUROC by class and detector as Markdown."""
    return "\n".join(_lines(result))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    classes = result["classes"]
    yield "| at equal elapsed time | " + " | ".join(classes) + " |"
    yield "|---" * (len(classes) + 1) + "|"
    for share in SHARES:
        cells = [_cell(c["auroc"]["seen"][str(share)]) for c in classes.values()]
        yield f"| live score, {share:.0%} of the common time | " + " | ".join(cells) + " |"
    cells = [_cell(c["auroc"]["all"]["1.0"]) for c in classes.values()]
    yield "| … task specification included | " + " | ".join(cells) + " |"
    for name in next(iter(classes.values()))["baselines"]:
        cells = [_cell(c["baselines"][name]) for c in classes.values()]
        yield f"| {name} | " + " | ".join(cells) + " |"
    cells = [f"{c['length_uncontrolled']:.2f}" for c in classes.values()]
    yield "| length, uncontrolled | " + " | ".join(cells) + " |"
    for outcome in ("failed", "went"):
        cells = [_alarm_cell(c["alarms"].get(outcome)) for c in classes.values()]
        yield f"| alarms, {outcome} | " + " | ".join(cells) + " |"
    yield ""
    yield (
        f"Mean AUROC {result['mean_auroc']:.3f}, least {result['least_auroc']:.3f} "
        f"({result['mean_auroc_with_task_specification']:.3f} with task specification). "
        f"Sim-to-sim; 95 % bootstrap intervals over takes; alarms at a stated "
        f"{result['false_alarms_stated']:.0%} of the nominal takes that go well."
    )


def _cell(value: Mapping[str, Any]) -> str:
    if value["interval"] is None:
        return "·"
    low, high = value["interval"]
    return f"{value['auroc']:.3f} [{low:.2f}, {high:.2f}]"


def _alarm_cell(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "·"
    when = f", median {value['median_s']:.1f} s" if value["median_s"] is not None else ""
    return f"{value['alarmed']}{when}"

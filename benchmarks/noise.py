"""Learned noise of readings against white noise of equal variance, on held-out logs of real arms.

Of each log, the readings without what is beyond a local polynomial stand for the true path. Noise
learned from every second log, or white noise rounded to the readings' steps, is put on the others'
paths, and what is beyond the same polynomial is compared with the real one's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.messages import FloatArray
from gaploop.sim.identification.noise import learn_noise, replay, smooth, window_of, without_spikes

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

ROWS: Final = 32
"""Readings that the classifier is shown at a time."""
MOST_LOGS: Final = 120
KINDS: Final = ("white", "learned")


def measure(config: BenchConfig, _folder: Path) -> dict[str, Any]:
    """Compare on every set of logs below a folder: LeRobot datasets, and servo logs."""
    if config.data is None:
        raise UnusableInputError("Which recordings? Name their folder with --data=DIR.")
    sets = _read(existing_folder(config.data, "Folder of recordings"))
    rng = np.random.default_rng(config.seed)
    return {"sets": [_compare(name, logs, hz, rng) for name, (logs, hz) in sets.items()]}


def _read(data: Path) -> dict[str, tuple[list[FloatArray], float]]:
    """Return each set's readings, shape (n, n_joints) a log, and their rate [Hz]."""
    import pandas

    sets = {}
    for path in sorted(data.rglob("meta/info.json")):
        root, column = path.parent.parent, "observation.state"
        rows = pandas.concat(map(pandas.read_parquet, sorted((root / "data").rglob("*.parquet"))))
        logs = [np.stack(log[column]).astype(float) for _, log in rows.groupby("episode_index")]
        sets[root.name] = logs, float(json.loads(path.read_text())["fps"])
    for path in sorted(data.rglob("logs.parquet")):
        rows = pandas.read_parquet(path)
        logs = [log[["position_rad"]].to_numpy(float) for _, log in rows.groupby("log")]
        sets[path.parent.name] = logs, 1 / float(np.median(np.diff(rows["t"])))
    if not sets:
        raise UnusableInputError(f"{data} holds no LeRobot dataset and no logs.parquet.")
    chosen = {}
    for name, (logs, hz) in sets.items():
        long = [log for log in logs if len(log) > 3 * window_of(1 / hz)]
        keep = np.linspace(0, len(long) - 1, min(len(long), MOST_LOGS)).astype(int)
        chosen[name] = [long[k] for k in np.unique(keep)], hz
    return chosen


def _compare(
    name: str, logs: Sequence[FloatArray], hz: float, rng: np.random.Generator
) -> dict[str, Any]:
    learn, judge, per = logs[::2], logs[1::2], 1 / hz
    row: dict[str, Any] = {"name": name, "hz": hz, "learned_from": len(learn), "logs": len(judge)}
    figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    shown, labels = {k: [] for k in KINDS}, {k: [] for k in KINDS}  # type: ignore[var-annotated]
    row["values"] = []
    for j in range(logs[0].shape[1]):
        values = learn_noise([log[:, j] for log in learn], per)
        step = values["step_rad"]
        seen = [without_spikes(log[:, j], values["dead_rad"])[0] for log in learn]
        left = np.concatenate([log - smooth(log, per)[0] for log in seen])
        if not np.std(left):
            continue  # a joint that never moves
        row["values"].append(values)
        passes = 1 - 1 / window_of(per) * 2.3  # of white noise through the polynomial
        white = {"step_rad": step, "noise_rad": math.sqrt(np.var(left) / passes)}
        for kind, wanted in (("white", white), ("learned", values)):
            clean = [without_spikes(log[:, j], values["dead_rad"])[0] for log in judge]
            paths = [smooth(log, per)[0] for log in clean]
            made = replay(wanted, paths, per, j)
            pairs = [(log[:, j], m) for log, m in zip(judge, made, strict=True)]
            for k, pair in enumerate(pairs):
                for real, readings in enumerate(pair[::-1]):
                    part = _features(readings, per, float(np.std(left)))
                    shown[kind] += part
                    labels[kind] += [(real, k)] * len(part)
            figures[kind].append(_distances(pairs, per))
    for kind in KINDS:
        of = figures[kind]
        row[kind] = {f: float(np.mean([d[f] for d in of])) for f in of[0]}
        row[kind]["auroc"] = _auroc(np.array(shown[kind]), np.array(labels[kind]), rng)
    return row


def _distances(pairs: Sequence[tuple[FloatArray, FloatArray]], per: float) -> dict[str, float]:
    from scipy.signal import welch
    from scipy.stats import ks_2samp

    beyond = [[x - smooth(x, per)[0] for x in side] for side in zip(*pairs, strict=True)]
    power = [np.mean([welch(x, nperseg=64)[1] for x in side if len(x) >= 64], 0) for side in beyond]
    db = 10 * np.log10(np.maximum(power[1][3:], 1e-30) / np.maximum(power[0][3:], 1e-30))
    jumps = [np.concatenate([np.diff(x) for x in side]) for side in beyond]
    sides = zip(*pairs, strict=True)
    same = [np.concatenate([np.diff(x) == 0 for x in side]).mean() for side in sides]
    return {
        "spectrum_db": float(np.sqrt(np.mean(db**2))),
        "increments_ks": float(ks_2samp(*jumps).statistic),
        "repeats_real": float(same[0]),
        "repeats": float(same[1]),
        "repeats_off": float(abs(same[1] - same[0])),
    }


def _features(x: FloatArray, per: float, scale: float) -> list[list[float]]:
    """Return what the classifier knows of each span of readings."""
    path, speed = smooth(x, per)
    r, rows = (x - path) / scale, []
    for at in range(0, len(x) - ROWS + 1, ROWS):
        u, v = r[at : at + ROWS], speed[at : at + ROWS]
        same = np.diff(x[at : at + ROWS]) == 0
        power = max(float(u @ u), 1e-12)
        size = np.quantile(np.abs(u), [0.1, 0.5, 0.9, 1.0])
        lags = [float(u[k:] @ u[:-k]) / power for k in (1, 2, 3)]
        edges = np.flatnonzero(np.diff(np.r_[True, ~same, True].astype(int)))
        longest = int(np.diff(edges)[::2].max()) if same.any() else 0
        fast = float(np.mean(v)) * per / scale
        rows.append([*np.log10(size + 1e-6), *lags, same.mean(), longest, math.log10(fast + 1e-6)])
    return rows


def _auroc(x: FloatArray, labels: FloatArray, rng: np.random.Generator) -> list[float]:
    """Return how well a forest tells real from made on logs it hasn't seen; with 95 % interval."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GroupKFold, cross_val_predict

    real, log = labels[:, 0], labels[:, 1]
    forest = RandomForestClassifier(100, min_samples_leaf=5, max_features=0.5, random_state=0)
    folds = GroupKFold(min(5, len(set(log.tolist()))))
    says = cross_val_predict(forest, x, real, groups=log, cv=folds, method="predict_proba")[:, 1]
    rows, drawn = [np.flatnonzero(log == k) for k in np.unique(log)], []
    for _ in range(200):
        some = np.concatenate([rows[k] for k in rng.integers(len(rows), size=len(rows))])
        drawn.append(roc_auc_score(real[some], says[some]))
    return [float(roc_auc_score(real, says)), *np.quantile(drawn, [0.025, 0.975]).tolist()]


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| logs | noise | spectrum off [dB] | increments off (KS) | repeats: real, made | told"
        " apart (AUROC) |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in result["sets"]:
        for kind in KINDS:
            f, name = row[kind], f"{row['name']} ({row['logs']} held out, {row['hz']:.0f} Hz)"
            repeats = f"{f['repeats_real']:.0%}, {f['repeats']:.0%}"
            auroc = "{:.2f} [{:.2f}, {:.2f}]".format(*f["auroc"])
            lines.append(
                f"| {name} | {kind} | {f['spectrum_db']:.1f} | {f['increments_ks']:.2f} | "
                f"{repeats} | {auroc} |"
            )
    return "\n".join(lines)

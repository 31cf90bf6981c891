"""Rules of `check` for statistics: recomputed from the frames and compared with what is written.

Policies normalise by `meta/stats.json`; LeRobot aggregates it from the statistics of each
episode in `meta/episodes`, so both are compared. Quantiles of numbers are held against the ranks
that they have among the frames. Statistics of pictures are of some of them only: they have to agree
with what the episodes say.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.statistics import QUANTILES
from gaploop.datasets import columns, layout
from gaploop.datasets.check.findings import DAMAGE, WARNING, Findings, FixDraft
from gaploop.datasets.check.frames import RunMoments, Scan
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.v3_files import INDICES, batches, matrix
from gaploop.datasets.whole_stats import complete_stats

NAMES: Final = ("mean", "std", "min", "max")
ABSURD: Final = 1e6
"""No joint, image or pose statistic of a robot dataset is larger than this."""
RELATIVE: Final = 1e-2
"""Share of a feature's range by which a written statistic may differ from the recomputed one."""
EXACT: Final = 1e-4
"""The same for the mean of one episode, which LeRobot computes from the very same rows."""
_FLOAT32: Final = 1e-5
"""Error of LeRobot's float32 mean of squares, as a share of the largest square;"""
_FLOAT32_ROW: Final = 6e-8
"""half a unit of the last place for each row that it adds up: of an entry that stands, all err to
one side, which makes 0.2 % in twenty minutes."""
_FLOAT64: Final = 1e-11
"""The same of our own sums."""
RANK: Final = 0.005
"""Share of the frames by which a quantile's rank may be off, beside `RELATIVE` of the range."""
type Floats = NDArray[np.float64]
type Summary = Mapping[str, Floats]
"""Name of a statistic to its values, shape (width,)."""


def check_stats(info: DatasetInfo, scan: Scan | None, findings: Findings) -> None:
    """Check `meta/stats.json` and the statistics of each episode."""
    stats: Mapping[str, Any] | None = None
    try:
        path = info.root / layout.STATS
        if path.exists() and not path.is_file():  # reading a pipe would never end
            raise UnusableInputError("It is not a file.")
        stats = read_json(path)
        if not isinstance(stats, dict):
            stats = None
            raise UnusableInputError("It is not a table of statistics.")
    except UnusableInputError as error:
        findings.error("missing_stats", layout.STATS, str(error))
    if stats is not None:
        for key, spec in info.features.items():
            used = key == columns.ACTION or key.startswith("observation.")  # by policies
            if not used or spec.get("dtype") in ("string", "language"):
                continue
            if key in _depth_in_rows(info):
                continue
            entry = stats.get(key)
            if not isinstance(entry, dict) or not set(NAMES) <= set(entry):
                text = f"No statistics of {key}: normalisation fails."
                findings.error("missing_stats", layout.STATS, text)
                continue
            for problem in _problems(entry):
                findings.error("absurd_stats", f"{layout.STATS}: {key}", problem)
    if scan is None or not scan.whole or not len(scan.runs):
        return
    # Of the numeric features that every run holds, finite throughout.
    bad = {feature for _, feature in scan.not_finite}
    moments = {
        key: found
        for key, found in scan.moments.items()
        if key not in bad and len(found.low) == len(scan.runs)
    }
    rows = np.array([run.rows for run in scan.runs], dtype=np.float64)
    limits: dict[str, tuple[Floats, Floats]] = {}  # between which each quantile has to lie
    for key, found in moments.items():
        entry = (stats or {}).get(key)
        if not isinstance(entry, dict) or not set(NAMES) <= set(entry) or _problems(entry):
            continue  # reported already, or a feature that no policy reads
        width, where = _vector(entry["mean"]).size, f"{layout.STATS}: {key}"
        shape = tuple(info.features[key]["shape"])
        fitted, counts = _of_last_axis(found, rows, shape, width)
        due = summary(fitted, counts)
        wrong = [name for name in NAMES if not _agree(name, _vector(entry[name]), due)]
        if width > shape[-1] and np.ndim(entry["mean"]) == 1:
            wrong = ["mean"]  # (12,) for (3, 4): can't be taken off a frame
        if "count" in entry and not np.array_equal(_vector(entry["count"]), [rows.sum()]):
            wrong.append("count")
        if wrong:
            name = wrong[0]
            says = f"{_vector(entry[name]).round(4).tolist()}"[:80]
            truth = [rows.sum()] if name == "count" else due[name].round(4).tolist()
            text = f"{', '.join(wrong)} are not those of the frames: {name} {says}, "
            say = findings.warn if wrong == ["count"] else findings.error
            say("wrong_stats", where, f"{text}recomputed {str(truth)[:80]}.")
        elif _imprecise(_vector(entry["std"]), due):
            says, truth = (str(v.round(4).tolist()) for v in (_vector(entry["std"]), due["std"]))
            text = f"std was computed in float32: {says[:80]}, recomputed {truth[:80]}."
            findings.warn("wrong_stats", where, text)
        elif key == columns.ACTION or key.startswith("observation."):  # by policies
            slack = RELATIVE * (due["max"] - due["min"]) + EXACT * np.abs(due["mean"]) + 1e-9
            with contextlib.suppress(LookupError, TypeError, ValueError):
                stated = np.stack([_vector(entry[name]) for name in QUANTILES])
                if stated.shape[1] == width:
                    limits[key] = stated - slack, stated + slack
    if stats is not None:
        with findings.guard("data"):
            _check_quantiles(info, stats, limits, findings)
    with findings.guard(f"{layout.EPISODES}: statistics"):
        _check_episode_stats(info, scan, moments, rows, stats, findings)


def _of_last_axis(
    moments: RunMoments, rows: Floats, shape: Sequence[int], width: int
) -> tuple[RunMoments, Floats]:
    """Return moments as LeRobot's statistics have them, of the last axis: (4,) for (3, 4).

    Other writers state every entry, (3, 4) for (3, 4): where so many are written, they stay.
    """
    if width != shape[-1] or width == moments.low.shape[1]:
        return moments, rows
    low, high, total, squares = (x.reshape(len(x), -1, width) for x in moments)
    joined = RunMoments(low.min(axis=1), high.max(axis=1), total.sum(axis=1), squares.sum(axis=1))
    return joined, rows * (moments.low.shape[1] // width)


def _check_quantiles(
    info: DatasetInfo,
    stats: Mapping[str, Any],
    limits: Mapping[str, tuple[Floats, Floats]],
    findings: Findings,
) -> None:
    """Count how many frames lie below and above the limits of the quantiles, (5, width) each."""
    lacking = [
        key
        for key in (columns.ACTION, columns.STATE)
        if isinstance(entry := stats.get(key), dict)
        and set(NAMES) <= set(entry)
        and not set(QUANTILES) <= set(entry)
    ]
    if lacking:
        text = f"No quantiles of {' and '.join(lacking)}: pi0.5 and others normalise by them."
        findings.warn("missing_stats", layout.STATS, text)
    below = {key: np.zeros(low.shape) for key, (low, _) in limits.items()}
    upto = {key: np.zeros(low.shape) for key, (low, _) in limits.items()}
    total = dict.fromkeys(limits, 0)
    for path in layout.data_files(info.root) if limits else ():
        for table in batches(path, limits):
            for key in limits.keys() & set(table.column_names):
                size = int(np.prod(info.features[key]["shape"]))
                values = matrix(table[key], size).reshape(-1, limits[key][0].shape[1])
                total[key] += len(values)
                for i, (low, high) in enumerate(zip(*limits[key], strict=True)):
                    below[key][i] += (values < low).sum(axis=0)
                    upto[key][i] += (values <= high).sum(axis=0)
    level = np.array(list(QUANTILES.values()))[:, None]
    for key, rows in total.items():
        early = upto[key] < (level - RANK) * rows - 1
        late = below[key] > (level + RANK) * rows + 1
        off = np.asarray((early | late).any(axis=1)).tolist()
        odd = [name for name, is_off in zip(QUANTILES, off, strict=True) if is_off]
        if odd:
            name = odd[-1]
            at = int(np.argmax((early | late)[list(QUANTILES).index(name)]))
            share = upto[key][list(QUANTILES).index(name)][at] / rows
            text = f"{', '.join(odd)} are not those of the frames: {share:.0%} of entry {at} lie "
            text += f"up to {name}. LeRobot takes the mean over episodes; pi0.5 and others "
            text += "normalise by them."
            findings.warn("wrong_stats", f"{layout.STATS}: {key}", text)


def _depth_in_rows(info: DatasetInfo) -> set[str]:
    """Return depth that doesn't say so: LeRobot counts it as if it were of 8 bits."""
    told = {
        k for k in info.picture_keys if (info.features[k].get("info") or {}).get("is_depth_map")
    }
    return set(info.picture_keys) - {*info.camera_keys, *info.video_keys, *told}


def _problems(entry: Mapping[str, Any]) -> list[str]:
    try:
        values = {name: _vector(entry[name]) for name in NAMES}
    except (TypeError, ValueError):
        return ["Statistics are not numbers."]
    if len({len(v) for v in values.values()}) != 1:
        return ["mean, std, min and max have different lengths."]
    if not all(np.isfinite(v).all() for v in values.values()):
        return ["NaN or infinite statistics."]
    low, mean, high = values["min"], values["mean"], values["max"]
    slack = 1e-3 * (1 + np.abs(high - low))
    problems = []
    if (mean < low - slack).any() or (mean > high + slack).any():
        problems.append("The mean lies outside min and max.")
    if (values["std"] < 0).any() or (values["std"] > (high - low) + slack).any():
        problems.append("The standard deviation is negative or larger than the range.")
    if any(np.abs(v).max(initial=0) > ABSURD for v in values.values()):
        problems.append(f"Values above {ABSURD:g}.")
    return problems


def _vector(value: Any) -> Floats:
    return np.asarray(value, dtype=np.float64).reshape(-1)


def summary(moments: RunMoments, rows: Floats) -> Summary:
    """Return min, max, mean, std of all runs together."""
    n = rows.sum()
    mean = moments.total.sum(axis=0) / n
    variance = np.maximum(moments.squares.sum(axis=0) / n - mean**2, 0)
    low, high = moments.low.min(axis=0), moments.high.max(axis=0)
    error = np.maximum(_FLOAT32, _FLOAT32_ROW * rows.max(keepdims=True))
    return {"min": low, "max": high, "mean": mean, "std": np.sqrt(variance), "float32": error}


def _agree(name: str, written: Floats, found: Summary, relative: float = RELATIVE) -> bool:
    if written.shape != found["min"].shape:
        return False
    low, high = found["min"], found["max"]
    size = np.maximum(np.abs(low), np.abs(high))
    if name == "std":
        slack = relative * found["std"] ** 2 + found["float32"] * size**2 + 1e-12
        return bool((np.abs(written**2 - found["std"] ** 2) <= slack).all())
    share = relative if name == "mean" else EXACT
    slack = share * (high - low) + found["float32"] * size + 1e-9
    return bool((np.abs(written - found[name]) <= slack).all())


def _imprecise(written: Floats, found: Summary) -> bool:
    """Say whether a deviation of `_agree`'s is off all the same, as float32 makes it.

    Of an entry far from 0 that hardly varies, LeRobot's float32 mean of squares leaves little.
    """
    size = np.maximum(np.abs(found["min"]), np.abs(found["max"]))
    slack = RELATIVE * found["std"] ** 2 + _FLOAT64 * size**2 + 1e-12
    off = np.abs(written**2 - found["std"] ** 2) > slack
    return bool((off & (found["max"] > found["min"])).any())


def _check_episode_stats(
    info: DatasetInfo,
    scan: Scan,
    moments: Mapping[str, RunMoments],
    rows: Floats,
    stats: Mapping[str, Any] | None,
    findings: Findings,
) -> None:
    run_of = {run.episode: i for i, run in enumerate(scan.runs)}
    found: dict[str, dict[str, list[int]]] = {"wrong": {}, "imprecise": {}}
    parts: dict[str, list[Summary]] = {}
    stores = [k for k in info.features if k not in INDICES and k not in _depth_in_rows(info)]
    for path in layout.episode_files(info.root):
        # Edit tools leave the indices' statistics behind.
        for key, table in stat_columns(path, stores):
            if "count" in table:
                parts.setdefault(key, []).append(table)
            for row, episode in enumerate(table["episode_index"].astype(int).tolist()):
                if key in moments and (run := run_of.get(episode)) is not None:
                    stated = {name: table[name][row] for name in NAMES}
                    shape = info.features[key]["shape"]
                    fitted, counts = _of_last_axis(moments[key], rows, shape, stated["mean"].size)
                    if fault := _fault_of_run(stated, fitted, counts, run):
                        found[fault].setdefault(key, []).append(episode)
    for key, which in found["wrong"].items():
        text = f"statistics of {key} are not those of their frames."
        findings.about(which, "episode_stats", layout.EPISODES, text)
    for key, which in found["imprecise"].items():
        text = f"std of {key} was computed in float32 and is far off."
        findings.about(which, "episode_stats", layout.EPISODES, text, severity=WARNING)
    if stats is None or found["wrong"]:
        return
    for key, tables in parts.items():  # what only the episodes can vouch for
        entry = stats.get(key)
        if key in moments or not isinstance(entry, dict):
            continue
        counts = np.concatenate([t["count"][:, :1] for t in tables])
        low = np.concatenate([t["min"] for t in tables]).min(axis=0)
        high = np.concatenate([t["max"] for t in tables]).max(axis=0)
        slack = RELATIVE * (high - low) + _FLOAT32 * np.maximum(np.abs(low), np.abs(high)) + 1e-9
        odd = []
        for name in ("mean", *QUANTILES):
            if name not in entry or not all(name in t for t in tables):
                continue
            values = np.concatenate([t[name] for t in tables])
            due = (values * counts).sum(axis=0) / counts.sum()
            fits = False
            with contextlib.suppress(TypeError, ValueError):  # no numbers, or of another width
                written = _vector(entry[name])
                inside = (written >= low - slack) & (written <= high + slack)
                near = name != "mean" or (np.abs(written - due) <= slack).all()
                fits = bool(written.shape == low.shape and inside.all() and near)
            if not fits:
                odd.append(name)
        if odd:
            text = f"Not what the episodes' statistics make: {', '.join(odd)}."
            findings.error("wrong_stats", f"{layout.STATS}: {key}", text)


def _fault_of_run(written: Summary, moments: RunMoments, rows: Floats, run: int) -> str:
    """Return "wrong" or "imprecise" where statistics aren't those of the frames of a run."""
    due = summary(RunMoments(*(x[run : run + 1] for x in moments)), rows[run : run + 1])
    if not all(_agree(name, written[name], due, EXACT) for name in NAMES):
        return "wrong"
    return "imprecise" if _imprecise(written["std"], due) else ""


def differing_episodes(
    table: pa.Table,
    info: DatasetInfo,
    moments: Mapping[str, RunMoments],
    rows: Floats,
    episodes: Sequence[int],
) -> list[int]:
    """Return rows of an episode table whose statistics are not those of their frames.

    `moments` and `rows` are recomputed of each episode there is, `episodes` are those of `table`.
    """
    wrong: set[int] = set()
    for key, found in moments.items():
        names = [n for n in NAMES if f"stats/{key}/{n}" in table.column_names]
        if len(names) < len(NAMES) or len(found.low) != len(rows):
            continue
        cells = {n: table[f"stats/{key}/{n}"].to_pylist() for n in names}
        for i, episode in enumerate(episodes):
            fault = "no numbers"
            with contextlib.suppress(TypeError, ValueError):
                written = {n: _vector(cells[n][i]) for n in names}
                shape = info.features[key]["shape"]
                fitted, counts = _of_last_axis(found, rows, shape, written["mean"].size)
                fault = _fault_of_run(written, fitted, counts, episode)
            if fault:
                wrong.add(i)
    return sorted(wrong)


def stat_columns(path: Path, keys: Iterable[str]) -> Iterator[tuple[str, dict[str, Floats]]]:
    """Yield features and their statistics in an episode file, shape (episodes, width).

    Beside them stands `episode_index`; features without statistics are left out.
    """
    with pq.ParquetFile(path) as file:
        present = set(file.schema_arrow.names)
        for key in keys:
            stats = [n for n in (*NAMES, *QUANTILES, "count") if f"stats/{key}/{n}" in present]
            if not set(NAMES) <= set(stats) or "episode_index" not in present:
                continue
            table = file.read(["episode_index", *(f"stats/{key}/{n}" for n in stats)])
            if len(table) and not any(column.null_count for column in table.columns):
                found = {name: _rows(table[f"stats/{key}/{name}"]) for name in stats}
                yield key, {"episode_index": _rows(table["episode_index"])[:, 0], **found}


def _rows(column: pa.ChunkedArray) -> Floats:
    flat: Any = column.combine_chunks()
    while pa.types.is_nested(flat.type):
        flat = flat.flatten()
    values = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.float64)
    return values.reshape(len(column), -1) if len(column) else np.empty((0, 1))


def fix_stats(draft: FixDraft, info: DatasetInfo, scan: Scan | None) -> None:
    """Write `stats.json`, and statistics of pictures per episode, anew where something is amiss."""
    findings = Findings()
    check_stats(info, scan, findings)
    with contextlib.suppress(*DAMAGE):  # what can't be computed is left as it is
        if findings.items and complete_stats(info):
            draft.did("rebuilt_stats", f"{layout.STATS}: computed anew from the frames")

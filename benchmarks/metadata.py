"""`benchmarks metadata`: queries and checks over the metadata of many datasets, beside LeRobot.

Datasets of 1,000 episodes with statistics are simulated on disk. Each measurement runs in a process
of its own, so that its peak memory is its own. The peer is what one would write: open every dataset
with `LeRobotDatasetMetadata`, put the episodes into one pandas frame, filter it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.datasets.columns import EPISODE_COLUMNS
from gaploop.datasets.layout import EPISODES, INFO, STATS, TASKS

SIZES: Final = (10_000, 100_000, 1_000_000)
PER_DATASET: Final = 1_000
FRAMES: Final = 200
JOINTS: Final = 6
QUERY: Final = "outcome=failure dimensions=contact_dynamics"
PANDAS: Final = (
    'frame[(frame.gap_outcome == "failure") & '
    '["contact_dynamics" in n for n in frame.gap_dimensions]]'
)
_STATISTICS: Final = ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99")
_RUN: Final = """
import json, resource, sys, time
{imports}
started = time.perf_counter()
{work}
print(json.dumps({{"seconds": time.perf_counter() - started, "found": found,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}}))
"""
_SOURCES: Final = "from gaploop.datasets.survey.sources import find_datasets\n"
_JOBS: Final[dict[str, tuple[str, str]]] = {
    "imports alone": (
        _SOURCES + "import gaploop.datasets.survey.check",
        "found = 0",
    ),
    "query": (
        _SOURCES + "from gaploop.datasets.survey.stream import find",
        "found = sum(len(f.episodes) for f in find({query!r}, find_datasets([{folder!r}])))",
    ),
    "check": (
        _SOURCES + "from gaploop.datasets.survey.check import overviews, shared_uids",
        """
parts = list(overviews(find_datasets([{folder!r}])))
assert all(one.ok for one in parts), next(one.findings for one in parts if not one.ok)
shared_uids([one.uids for one in parts])
found = sum(one.episodes for one in parts)""",
    ),
    "LeRobot imports": (
        "import pandas\nfrom lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata",
        "found = 0",
    ),
    "LeRobot + pandas": (
        """
import glob, os
import pandas
from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata""",
        """
names = sorted(glob.glob({folder!r} + "/*"))
parts = [LeRobotDatasetMetadata("bench/" + os.path.basename(n), root=n).episodes.to_pandas()
         for n in names]
frame = pandas.concat(parts, ignore_index=True)
found = len({pandas_query})""",
    ),
}
"""Job to what it imports and what is timed."""


def measure(config: Any, folder: Path) -> Mapping[str, Any]:
    """Measure at `config.n` episodes, or at each of `SIZES`."""
    sizes = (config.n,) if config.n else SIZES
    rows = []
    for episodes in sizes:
        data = folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        try:
            simulate(data, episodes, config.seed)
            rows += [{"episodes": episodes, "job": job, **_timed(job, data)} for job in _JOBS]
        finally:
            shutil.rmtree(data, ignore_errors=True)
    return {"query": QUERY, "per_dataset": PER_DATASET, "rows": rows}


def _timed(job: str, data: Path) -> dict[str, Any]:
    imports, work = _JOBS[job]
    work = work.format(query=QUERY, folder=str(data), pandas_query=PANDAS)
    code = _RUN.format(imports=imports, work=work)
    with_cache = {"HF_HOME": str(data.parent / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_environment(with_cache)
    )
    shutil.rmtree(data.parent / "cache", ignore_errors=True)
    if done.returncode:
        return {"seconds": None, "found": None, "peak_mb": None, "error": done.stderr[-300:]}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    import os

    return {**os.environ, **more}


def simulate(folder: Path, episodes: int, seed: int) -> None:
    """Write datasets of up to `PER_DATASET` episodes: metadata alone, as LeRobot writes it."""
    draw = np.random.default_rng(seed)
    base = _table(PER_DATASET, draw)
    for number, first in enumerate(range(0, episodes, PER_DATASET)):
        count = min(PER_DATASET, episodes - first)
        _write(folder / f"set_{number:04d}", _labelled(base.slice(0, count), first, draw))


def _table(rows: int, draw: np.random.Generator) -> pa.Table:
    index = np.arange(rows)
    table = {
        "episode_index": index,
        "tasks": [["Put the cube on the disc"]] * rows,
        "length": np.full(rows, FRAMES),
        "data/chunk_index": np.zeros(rows, np.int64),
        "data/file_index": np.zeros(rows, np.int64),
        "dataset_from_index": index * FRAMES,
        "dataset_to_index": (index + 1) * FRAMES,
    }
    for feature in ("action", "observation.state"):
        for name in _STATISTICS:
            values = pa.array(draw.normal(size=rows * JOINTS))
            offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * JOINTS)
            table[f"stats/{feature}/{name}"] = pa.ListArray.from_arrays(offsets, values)
    return pa.table(table)


def _labelled(table: pa.Table, first: int, draw: np.random.Generator) -> pa.Table:
    n = len(table)
    failed = draw.random(n) < 0.3
    tagged = draw.random(n) < 0.5
    gap: dict[str, Any] = {name: [""] * n for name in EPISODE_COLUMNS}
    gap |= {
        "gap_uid": [f"019d0000-0000-7000-8000-{first + i:012x}" for i in range(n)],
        "gap_kind": ["rollout"] * n,
        "gap_domain": ["sim"] * n,
        "gap_outcome": np.where(failed, "failure", "success"),
        "gap_dimensions": [["contact_dynamics"] if t else [] for t in tagged],
        "gap_dimension_weights": [[float(w)] if t else [] for t, w in zip(
            tagged, draw.random(n), strict=True)],
        "gap_conditions": [json.dumps({"distractors": int(k)}) for k in draw.integers(0, 9, n)],
        "gap_session": [f"session_{(first + i) // 50}" for i in range(n)],
        "gap_t0_ns": np.full(n, 1_790_000_000_000_000_000) + np.arange(n),
    }  # fmt: skip
    for name, kind in EPISODE_COLUMNS.items():
        table = table.append_column(pa.field(name, kind), pa.array(gap[name], type=kind))
    return table


def _write(root: Path, table: pa.Table) -> None:
    vector = {"dtype": "float32", "shape": [JOINTS], "names": [f"j{i}.pos" for i in range(JOINTS)]}
    info = {
        "codebase_version": "v3.0",
        "fps": 50,
        "robot_type": "so101_sim",
        "total_episodes": len(table),
        "total_frames": len(table) * FRAMES,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "splits": {"train": f"0:{len(table)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": {"action": vector, "observation.state": vector},
    }
    path = root / EPISODES / "chunk-000" / "file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, compression="snappy")
    (root / INFO).write_text(json.dumps(info))
    one = {name: [0.0] * JOINTS for name in _STATISTICS} | {"count": [1]}
    (root / STATS).write_text(json.dumps({"action": one, "observation.state": one}))
    tasks = pa.table({"task_index": [0], "task": ["Put the cube on the disc"]}).to_pandas()
    tasks.set_index("task").to_parquet(root / TASKS)
    data = root / "data" / "chunk-000" / "file-000.parquet"
    data.parent.mkdir(parents=True)
    data.touch()  # no frames: nothing here reads them


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as a table."""
    lines = [f"{'episodes':>10} {'job':<17} {'seconds':>9} {'peak MB':>9} {'found':>9}"]
    for row in result["rows"]:
        if row["seconds"] is None:
            lines.append(f"{row['episodes']:>10} {row['job']:<17} failed: {row['error']}")
            continue
        lines.append(
            f"{row['episodes']:>10} {row['job']:<17} {row['seconds']:>9.1f} "
            f"{row['peak_mb']:>9.0f} {row['found']:>9}"
        )
    return "\n".join(lines)

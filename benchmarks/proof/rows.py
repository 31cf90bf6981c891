"""The study's results: a row for each cell, kept as parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate
from gaploop.sim.catalogue import SO101

SCHEMA: Final = "gaploop.proof.v1"
_AS_TEXT: Final = ("gaps", "planned")
"""Columns that are kept as JSON: which keys they have differs from row to row."""


@dataclass(frozen=True)
class StudyRow:
    """One cell of the design, as it is kept.

    Attributes:
        task, gap, seed, arm, budget: which cell.
        gaps: what was hidden, "dimension.mechanism" to severity.
        found: the dimension that the diagnosis named, "" where it named none.
        failures: rollouts that were diagnosed.
        planned: dimension to takes; empty where the arm records none.
        takes: successful takes that were recorded and trained on.
        attempts: takes that were recorded.
        hours: to record them, as the planner reckons [h].
        before: success of the base, scene by scene, as "1" and "0".
        after: of what the arm made; the same scenes.
        base: id of the base policy.
        policy: id of what was tried.
        data: hash of the takes, "" where there are none.
        code: hash of the program.
        robot: the cell's arm; rows from before there was another are the SO-101's.
    """

    task: str
    gap: str
    seed: int
    arm: str
    budget: int
    gaps: Mapping[str, float]
    found: str
    failures: int
    planned: Mapping[str, int]
    takes: int
    attempts: int
    hours: float
    before: str
    after: str
    base: str
    policy: str
    data: str
    code: str
    robot: str = SO101.name

    @property
    def key(self) -> str:
        """Names the cell."""
        return f"{self.site}-{self.arm}-{self.budget}"

    @property
    def site(self) -> str:
        """Names the site."""
        return site_name(self.robot, self.task, self.gap, self.seed)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The hidden dimensions."""
        return tuple(name.partition(".")[0] for name in self.gaps)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StudyRow:
        """Return a row that was kept."""
        known = {"robot": SO101.name, **value}
        return cls(**{f.name: known[f.name] for f in fields(cls)})


def site_name(robot: str, task: str, gap: str, seed: int) -> str:
    """Name a site; the arm is named where it isn't the default one."""
    name = f"{task}-{gap}-{seed}"
    return name if robot == SO101.name else f"{robot}-{name}"


def save_rows(rows: Iterable[StudyRow], path: Path) -> None:
    """Write rows as parquet, atomically, sorted by cell: the same rows give the same bytes."""
    plain = [row.to_json() for row in sorted(rows, key=lambda row: row.key)]
    for row in plain:
        row |= {name: json.dumps(row[name], sort_keys=True) for name in _AS_TEXT}
    table = pa.Table.from_pylist(plain).replace_schema_metadata({"gaploop": SCHEMA})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_atomically(path, buffer.getvalue())


def load_rows(path: Path) -> list[StudyRow]:
    """Return the rows of a parquet file.

    Raises:
        UnusableInputError: there is no such file, or it holds something else.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UnusableInputError(f"{path}: no results of the study ({error}).") from None
    if (table.schema.metadata or {}).get(b"gaploop") != SCHEMA.encode():
        raise UnusableInputError(f"{path}: a parquet file, but not of {SCHEMA}.")
    rows = table.to_pylist()
    return [
        StudyRow.from_json({**row, **{name: json.loads(row[name]) for name in _AS_TEXT}})
        for row in rows
    ]


def kept_rows(
    path: Path, key: str, run: Callable[[set[tuple[str, str]]], Iterator[dict[str, Any]]] | None
) -> list[dict[str, Any]]:
    """Return rows of a parquet file, and of `run`, each of which is kept there as it comes.

    Args:
        path: the file; it needn't exist.
        key: the column that names a station.
        run: yields further rows, given stations and arms that have one; None for no more.

    Raises:
        UnusableInputError: there are none.
    """
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    for row in run({(r[key], r["arm"]) for r in rows}) if run else ():
        rows.append(row)
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), buffer, compression="zstd")
        write_atomically(path, buffer.getvalue())
    if not rows:
        raise UnusableInputError(
            f"No rows in {path}: give more --budget_s, or stored rows: --data=FILE."
        )
    return rows


def won(bits: str) -> FloatArray:
    """Return 1.0 for each success of `site.bits`, and 0.0 for each failure."""
    return np.array([bit == "1" for bit in bits], dtype=np.float64)


def mean_of(stations: Sequence[FloatArray], resamples: int = 2000) -> Estimate | None:
    """Return the mean over stations, by bootstrap over stations and then over scenes."""
    if not stations:
        return None
    rng, drawn = np.random.default_rng(0), []
    for _ in range(resamples):
        of = rng.integers(len(stations), size=len(stations))
        drawn.append(np.mean([rng.choice(stations[k], len(stations[k])).mean() for k in of]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(float(np.mean([s.mean() for s in stations])), float(low), float(high))


def beside_base(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an arm's means over its stations: before, after, and what became of nominal scenes."""
    return {
        "stations": len(rows),
        "before": mean_of([won(r["before"]) for r in rows]),
        "after": mean_of([won(r["after"]) for r in rows]),
        "nominal": mean_of([won(r["nominal_after"]) - won(r["nominal_before"]) for r in rows]),
    }

"""Measures a corpus: each task's and controller's reference, then the signals of every take.

The result is one table, so that fitting and scoring take seconds. It is made anew where the code
that measures has changed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.corpus.design import SHIFTS, DrawnStation
from benchmarks.corpus.record import STATIONS
from benchmarks.corpus.scores import read_truth
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.journal_format import TRUTH, read_journal
from gaploop.core.vocabulary import FailureMode, Outcome
from gaploop.failure_analysis.modes import failure_mode
from gaploop.failure_analysis.reference import (
    Reference,
    build_reference,
    load_reference,
    save_reference,
)
from gaploop.failure_analysis.signals.registry import TakeSignals, measure, registry
from gaploop.failure_analysis.views.view import TakeView
from gaploop.finetune.workers import run_jobs

TABLE: Final = "signals.parquet"
REFERENCES: Final = "references"


@dataclass(frozen=True)
class MeasuredTake:
    """One take of the corpus, measured, with what was injected.

    Attributes:
        uid: the take.
        station: key of its station.
        part: which part of the benchmark it belongs to.
        task: of the cell.
        controller: who drove.
        usual: name of the reference it is set against.
        scene: seed of its scene.
        gaps: "dimension.mechanism" to severity.
        shift: which of `SHIFTS` the station is set up with for good; -1 for none.
        failed: it was judged a failure.
        mode: failure mode by the rules, or "".
        duration_s: its length [s].
        unseen: sources that it has no channel for.
        values: signal to value.
    """

    uid: str
    station: str
    part: str
    task: str
    controller: str
    usual: str
    scene: int
    gaps: Mapping[str, float]
    shift: int
    failed: bool
    mode: str
    duration_s: float
    unseen: Mapping[str, str]
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> TakeSignals:
        """Its signals, as `measure` returns them."""
        return TakeSignals(self.values, self.unseen)

    @property
    def failure_mode(self) -> FailureMode | None:
        """Its mode, or None where none was seen."""
        return FailureMode(self.mode) if self.mode else None

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The injected dimensions, sorted; empty where there is no gap."""
        return tuple(sorted({gap.partition(".")[0] for gap in self.gaps}))


def measure_corpus(
    stations: Sequence[DrawnStation],
    folder: Path,
    *,
    workers: int = 1,
    progress: Callable[[int], None] = lambda _stations: None,
) -> list[MeasuredTake]:
    """Return every take of a recorded corpus, measured; from its table where that still holds.

    Args:
        stations: as recorded.
        folder: of the corpus.
        workers: processes.
        progress: called with the number of stations just finished.
    """
    mark = _mark(stations)
    table = folder / TABLE
    known = _read(table, mark)
    if known is not None:
        progress(len(stations))
        return known
    references = corpus_references(stations, folder, anew=True)
    jobs = [_Job(s, folder / STATIONS / s.key, references[s.usual]) for s in stations]
    takes: dict[str, list[MeasuredTake]] = {}
    for key, found in run_jobs(_measure, jobs, workers):
        takes[key] = found
        progress(1)
    every = [take for station in stations for take in takes[station.key]]
    _write(table, every, mark)
    return every


def corpus_references(
    stations: Sequence[DrawnStation], folder: Path, anew: bool = False
) -> dict[str, Reference]:
    """Return what is usual for each task and controller, from the corpus's nominal successes.

    Raises:
        UnusableInputError: too few nominal takes went well.
    """
    result = {}
    for station in stations:
        if station.part != "reference":
            continue
        path = folder / REFERENCES / f"{station.usual}.json"
        if anew or not path.exists():
            built = build_reference(read_journal(folder / STATIONS / station.key), station.usual)
            if built is None:
                raise UnusableInputError(
                    f"Too few nominal takes of {station.usual} went well. Raise --n."
                )
            path.parent.mkdir(exist_ok=True)
            save_reference(built, path)
        result[station.usual] = load_reference(path)
    return result


@dataclass(frozen=True)
class _Job:
    station: DrawnStation
    journal: Path
    reference: Reference


def _measure(job: _Job) -> tuple[str, list[MeasuredTake]]:
    truth = read_truth(job.journal / TRUTH)
    found = []
    for take in read_journal(job.journal):
        view = TakeView(take, job.reference.background, True, job.reference.start_pose_rad)
        measured = measure(view)
        failed = take.outcome is Outcome.FAILURE
        mode = failure_mode(view, measured).mode if failed else None
        s = job.station
        found.append(
            MeasuredTake(
                uid=take.info.uid,
                station=s.key,
                part=s.part,
                task=s.task,
                controller=s.controller,
                usual=s.usual,
                scene=int(truth[take.info.uid]["scene"]),
                gaps=dict(s.gaps),
                shift=SHIFTS.index(s.conditions) if s.conditions else -1,
                failed=failed,
                mode=mode.value if mode else "",
                duration_s=take.duration_s,
                unseen=measured.unseen,
                values=measured.values,
            )
        )
    return job.station.key, found


def _mark(stations: Iterable[DrawnStation]) -> str:
    """Return a hash of what is measured and of the code that measures it."""
    here = Path(__file__).resolve().parents[2] / "failure_analysis"
    digest = hashlib.sha256("\n".join(s.key for s in stations).encode())
    for name in ("signals", "views", "modes"):
        for source in sorted((here / name).glob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _write(path: Path, takes: Sequence[MeasuredTake], mark: str) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_row(take) for take in takes]
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"mark": mark})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_atomically(path, buffer.getvalue())


def _row(take: MeasuredTake) -> dict[str, Any]:
    row = {k: v for k, v in vars(take).items() if k != "values"}
    row["gaps"], row["unseen"] = json.dumps(dict(take.gaps)), json.dumps(dict(take.unseen))
    return {**row, **{f"signal.{k}": float(v) for k, v in take.values.items()}}


def _read(path: Path, mark: str) -> list[MeasuredTake] | None:
    import pyarrow.parquet as pq

    if not path.exists():
        return None
    table = pq.read_table(path)
    if (table.schema.metadata or {}).get(b"mark", b"").decode() != mark:
        return None
    return [_from_row(row) for row in table.to_pylist()]


def _from_row(row: dict[str, Any]) -> MeasuredTake:
    values = {
        k.removeprefix("signal."): math.nan if v is None else v
        for k, v in row.items()
        if k.startswith("signal.")
    }
    rest = {k: v for k, v in row.items() if not k.startswith("signal.")}
    rest["gaps"], rest["unseen"] = json.loads(rest["gaps"]), json.loads(rest["unseen"])
    return MeasuredTake(**rest, values={k: values[k] for k in registry() if k in values})

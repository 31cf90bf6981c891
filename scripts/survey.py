"""The command `gaploop survey`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_atomically
from gaploop.scripts.options import emit, jsonable, progress

if TYPE_CHECKING:
    from gaploop.datasets.survey.sources import Metadata

POSITIONAL: Final = "roots"
_ROWS_SHOWN: Final = 20

EXAMPLE: Final = """
gaploop survey recordings
gaploop survey recordings --where='outcome=failure lighting=dim'
gaploop survey --roots='[recordings/monday, hf://datasets/me/pick_place]' --json
"""


@dataclass
class SurveyConfig:
    """Show what many datasets hold and what is wrong with their metadata, or find episodes.

    Reads metadata only, in blocks, so that a thousand datasets with a million episodes need little
    memory; of a Hub only the columns wanted are read. Without --where: episodes, frames, outcomes,
    gap dimensions and findings; exit code 1 where a dataset has an error. With --where: the
    episodes found; exit code 1 where a dataset couldn't be searched. gaploop check also reads
    one dataset's data and videos.
    """

    roots: list[str] = field(default_factory=list)
    """Datasets, folders above any number of them, or hf://datasets/OWNER/NAME
    (`gaploop survey A B` is short for it)."""
    where: str = ""
    """Find these episodes; the language of gaploop label --where."""
    output_dir: Path | None = None
    """Also write survey.jsonl there, one line a dataset."""
    json: bool = False
    """Print one JSON object: {"datasets", "episodes", …, "by_dataset": [...]}."""


def run(config: SurveyConfig) -> int:
    """Survey; the work is in `datasets.survey`."""
    from gaploop.datasets.survey.sources import find_datasets

    if not config.roots:
        raise UnusableInputError("Which datasets? Name them: gaploop survey DIR …")
    sources = find_datasets(config.roots)
    if config.output_dir is not None:
        writable_folder(config.output_dir)
    return _find(config, sources) if config.where else _overview(config, sources)


def _find(config: SurveyConfig, sources: Sequence[Metadata]) -> int:
    from gaploop.datasets.check.findings import numbers
    from gaploop.datasets.survey.stream import find

    results = _read(find(config.where, sources), len(sources))
    hits = [found for found in results if len(found.episodes)]
    skipped = [found for found in results if found.skipped]
    answer = {
        "where": config.where,
        "datasets": len(results),
        "episodes": sum(found.scanned for found in results),
        "found": sum(len(found.episodes) for found in results),
        "frames": sum(found.frames for found in results),
        "by_dataset": [{**asdict(f), "episodes": f.episodes.tolist()} for f in results],
    }
    lines = [f"{f.dataset}: {numbers(f.episodes.tolist())}" for f in hits[:_ROWS_SHOWN]]
    if len(hits) > _ROWS_SHOWN:
        lines.append(f"… and {len(hits) - _ROWS_SHOWN} more datasets; all with --json.")
    lines += [f"Not searched: {f.dataset}: {f.skipped}" for f in skipped[:_ROWS_SHOWN]]
    lines.append(
        f"{answer['found']} of {answer['episodes']} episodes in {len(hits)} of {len(results)} "
        f"datasets, {answer['frames']} frames."
    )
    _tell(config, answer, lines)
    return int(bool(skipped))


def _overview(config: SurveyConfig, sources: Sequence[Metadata]) -> int:
    from gaploop.datasets.survey.check import overviews, shared_uids

    results = _read(overviews(sources), len(sources))
    totals: dict[str, Counter[str]] = {}
    for one in results:
        for column, counts in one.counts.items():
            totals.setdefault(column.removeprefix("gap_"), Counter()).update(counts)
    answer: dict[str, Any] = {
        "ok": all(one.ok for one in results),
        "datasets": len(results),
        "episodes": sum(one.episodes for one in results),
        "frames": sum(one.frames for one in results),
        "shared_takes": shared_uids([one.uids for one in results]),
        "counts": {name: dict(count.most_common()) for name, count in totals.items()},
        "fps": dict(Counter(f"{one.fps:g}" for one in results).most_common()),
        "robot_types": dict(Counter(one.robot_type for one in results).most_common()),
        "by_dataset": [
            {
                "dataset": one.dataset,
                "episodes": one.episodes,
                "frames": one.frames,
                "fps": one.fps,
                "robot_type": one.robot_type,
                "counts": {name.removeprefix("gap_"): dict(c) for name, c in one.counts.items()},
                "findings": [finding.to_json() for finding in one.findings],
            }
            for one in results
        ],
    }
    lines = [
        f"{answer['datasets']} datasets, {answer['episodes']} episodes, {answer['frames']} frames."
    ]
    for name in ("outcome", "domain", "kind", "dimensions"):
        if found := answer["counts"].get(name):
            lines.append(f"{name}: " + ", ".join(f"{n} {word}" for word, n in found.items()))
    lines.append("fps: " + ", ".join(f"{n} at {fps}" for fps, n in answer["fps"].items()))
    if answer["shared_takes"]:
        lines.append(f"{answer['shared_takes']} takes are in more than one of the datasets.")
    faulty = [one for one in results if one.findings]
    lines += [
        f"{finding.severity} {finding.code}: {one.dataset}: {finding.message}"
        for one in faulty[:_ROWS_SHOWN]
        for finding in one.findings[:3]
    ]
    if len(faulty) > _ROWS_SHOWN:
        more = len(faulty) - _ROWS_SHOWN
        lines.append(f"… and {more} more datasets with findings; all with --json.")
    if not faulty:
        lines.append("Nothing wrong with their metadata.")
    _tell(config, answer, lines)
    return int(not answer["ok"])


def _read[T](results: Iterator[T], total: int) -> list[T]:
    found = []
    with progress("Reading metadata", total) as advance:
        for result in results:
            found.append(result)
            advance()
    return found


def _tell(config: SurveyConfig, answer: dict[str, Any], lines: Sequence[str]) -> None:
    if config.output_dir is not None:
        each = (f"{json.dumps(jsonable(one))}\n" for one in answer["by_dataset"])
        write_atomically(config.output_dir / "survey.jsonl", "".join(each))
    emit(config.json, answer, "\n".join(lines))

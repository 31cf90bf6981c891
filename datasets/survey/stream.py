"""Queries over the metadata of many datasets: streamed in blocks, so that memory stays bounded.

A thousand datasets with a million episodes fit into a few hundred megabytes, because at any time
one block of one dataset is in memory, and of it only the columns that the query asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json
from gaploop.datasets import layout
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.labels.query import Condition, parse_query
from gaploop.datasets.survey.sources import HubMetadata, Metadata, read_info

BLOCK_ROWS: Final = 20_000
"""Episodes in memory at once."""
HUB_AT_ONCE: Final = 8
"""Datasets of a Hub that are read side by side: waiting for answers takes most of the time."""
INDEX: Final = "episode_index"


@dataclass(frozen=True)
class QueryMatch:
    """What a query found in one dataset.

    Attributes:
        scanned: episodes that it has.
        frames: of the episodes found.
        episodes: indices of those found, shape (n,).
        skipped: why it couldn't be searched; "" where it could.
    """

    dataset: str
    scanned: int
    frames: int
    episodes: NDArray[np.int64]
    skipped: str = ""


def understand(text: str, sources: Sequence[Metadata]) -> tuple[Condition, ...]:
    """Read a query once, before anything is searched.

    Names of conditions that aren't in the vocabulary are looked up in the datasets.

    Raises:
        UnusableInputError: it can't be understood.
    """
    try:
        return parse_query(text, ())
    except UnusableInputError:
        names = set[str]()
    for source in sources:
        try:
            for block in blocks(source, ["gap_conditions"]):
                if "gap_conditions" in block.column_names:
                    for conditions in block["gap_conditions"].unique().to_pylist():
                        value = parse_json(conditions or "{}")
                        names |= set(value) if isinstance(value, dict) else set()
        except DAMAGE:
            continue  # what can't be read is reported by the search itself
    return parse_query(text, names)


def blocks(
    source: Metadata, columns: Iterable[str] | None, rows: int = BLOCK_ROWS
) -> Iterator[pa.Table]:
    """Yield a dataset's `meta/episodes` in blocks, in the order of its files.

    Args:
        columns: those wanted; ones that a file lacks are left out. All but statistics if None.

    Raises:
        UnusableInputError: a damaged file.
        OSError: a file that can't be read.
    """
    wanted = None if columns is None else set(columns)
    files = (f for f in source.files if f.startswith(f"{layout.EPISODES}/"))
    for path in sorted(f for f in files if f.endswith(".parquet")):
        try:
            with source.open(path) as stream, pq.ParquetFile(stream, pre_buffer=True) as file:
                names = [n for n in file.schema_arrow.names if not n.startswith("stats/")]
                chosen = [n for n in names if wanted is None or n in wanted]
                for batch in file.iter_batches(rows, columns=chosen):
                    yield pa.Table.from_batches([batch])
        except (pa.ArrowException, ValueError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UnusableInputError(
                f"{source.name}/{path} can't be read ({reason}). Restore it from a copy."
            ) from None


def find(text: str, sources: Sequence[Metadata], rows: int = BLOCK_ROWS) -> Iterator[QueryMatch]:
    """Yield what a query finds in each dataset, in order.

    A dataset that can't be searched is said to be skipped; the others are searched all the same.

    Raises:
        UnusableInputError: the query can't be understood.
    """
    query = understand(text, sources)
    yield from in_order(lambda source: _search(query, source, rows), sources)


def _search(query: Sequence[Condition], source: Metadata, rows: int) -> QueryMatch:
    scanned = frames = 0
    parts: list[NDArray[np.int64]] = []
    reason = ""
    try:
        info = read_info(source)
        for block in blocks(source, {INDEX, "length", *(part.column for part in query)}, rows):
            chosen = np.array(
                [
                    all(part.allows(part.of_row(row, info.robot_type)) for part in query)
                    for row in block.to_pylist()
                ],
                dtype=bool,
            )
            scanned += len(block)
            parts.append(block[INDEX].to_numpy()[chosen].astype(np.int64))
            frames += int(block["length"].to_numpy()[chosen].sum())
    except DAMAGE as error:
        reason = " ".join(str(error).split())
    indices = np.concatenate(parts) if parts and not reason else np.empty(0, np.int64)
    return QueryMatch(source.name, scanned, 0 if reason else frames, indices, reason)


def in_order[T](work: Callable[[Metadata], T], sources: Sequence[Metadata]) -> Iterator[T]:
    """Yield what `work` makes of each dataset, in order; those of a Hub side by side."""
    if not any(isinstance(source, HubMetadata) for source in sources):
        yield from map(work, sources)
        return
    with ThreadPoolExecutor(HUB_AT_ONCE, thread_name_prefix="metadata") as pool:
        yield from pool.map(work, sources)

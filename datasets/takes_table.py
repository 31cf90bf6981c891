"""Takes as a Hugging Face `datasets.Dataset`, for people who analyse in pandas or polars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from gaploop.core.errors import unknown_choice
from gaploop.core.take import Take
from gaploop.core.vocabulary import CONDITIONS, GapDimension
from gaploop.datasets.columns import EPISODE_COLUMNS, episode_row
from gaploop.datasets.layout import is_dataset, read_episodes, read_info
from gaploop.datasets.lerobot_read import read_episode
from gaploop.datasets.sources import load_takes

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

type Rows = Literal["takes", "frames"]

_WEIGHTS: Final = ("gap_dimensions", "gap_dimension_weights")
_SCALARS: Final = {n: t for n, t in EPISODE_COLUMNS.items() if n not in _WEIGHTS}
_VECTORS: Final = ("state", "action", "sent", "environment_state")
SCHEMAS: Final = {
    "takes": pa.schema(
        {
            "episode": pa.int64(), "task": pa.string(), "robot_type": pa.string(),
            "fps": pa.float64(), "frames": pa.int64(), "duration_s": pa.float64(),
            **{name.removeprefix("gap_"): kind for name, kind in _SCALARS.items()},
            **{d.value: pa.float64() for d in GapDimension},
            **{name: pa.string() for name in CONDITIONS},
        }
    ),
    "frames": pa.schema(
        {
            "uid": pa.string(), "episode": pa.int64(), "frame": pa.int64(), "t_s": pa.float64(),
            **{name: pa.list_(pa.float64()) for name in _VECTORS},
            "intervention": pa.bool_(), "safety": pa.int64(),
        }
    ),
}  # fmt: skip


def takes_dataset(
    path: Path | str, rows: Rows = "takes", *, streaming: bool = False
) -> Dataset | IterableDataset:
    """Return the takes of a journal or dataset as a table of Hugging Face `datasets`.

    Args:
        path: the folder, as for `load_takes`.
        rows: "takes", one row for each: what is known about it, the weight of each gap dimension,
            and what was set up, as text; or "frames", one row for each frame, joints in LeRobot
            units as in `core.take.Frames`. Pictures are in neither.
        streaming: read take after take while it is iterated, for what doesn't fit into memory.

    Returns:
        A `Dataset` (`to_pandas()`; `to_polars()` where polars is installed), in memory: nothing is
        copied to a cache. With `streaming` an `IterableDataset`.

    Raises:
        UnusableInputError: neither journal nor dataset, or an unknown kind of rows.
    """
    import datasets

    if rows not in SCHEMAS:
        raise unknown_choice("kind of rows", rows, SCHEMAS, "rows")
    first = load_takes(Path(path))  # refuses at once
    schema = SCHEMAS[rows]
    make = _take_rows if rows == "takes" else _frame_rows
    if streaming:

        def read() -> Iterator[dict[str, Any]]:
            takes: Iterator[Take]
            if is_dataset(Path(path)):  # `load_takes` has the numbers of all takes in memory
                info = read_info(Path(path))
                takes = (read_episode(info, episode) for episode in read_episodes(info))
            else:
                takes = load_takes(Path(path))
            return chain.from_iterable(map(make, takes))

        return datasets.IterableDataset.from_generator(
            read, features=datasets.Features.from_arrow_schema(schema)
        )
    tables = [pa.Table.from_pylist(list(make(take)), schema=schema) for take in first]
    return datasets.Dataset(pa.concat_tables(tables))


def _take_rows(take: Take) -> Iterator[dict[str, Any]]:
    row, info = episode_row(take), take.info
    said = {name: info.conditions.get(name) for name in CONDITIONS}
    yield {
        "episode": take.episode,
        "task": info.task,
        "robot_type": info.robot_type,
        "fps": info.fps,
        "frames": len(take.frames),
        "duration_s": take.duration_s,
        **{name.removeprefix("gap_"): row[name] for name in _SCALARS},
        **{d.value: float(info.dimensions.get(d.value, 0.0)) for d in GapDimension},
        **{n: v if v is None or isinstance(v, str) else json.dumps(v) for n, v in said.items()},
    }


def _frame_rows(take: Take) -> Iterator[dict[str, Any]]:
    frames = take.frames
    columns = {
        "t_s": frames.t_s,
        **{name: getattr(frames, name) for name in _VECTORS},
        "intervention": frames.intervention,
        "safety": frames.safety,
    }
    for n in range(len(frames)):
        cells = {name: values[n].tolist() for name, values in columns.items()}
        yield {"uid": take.info.uid, "episode": take.episode, "frame": n, **cells}

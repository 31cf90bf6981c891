"""Which takes of a published dataset are trained on, read from Parquet without any video.

Successful demonstrations count whole, rollouts only where a person had taken over. A failed
rollout is never a demonstration by accident: that takes `select="all"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets import columns, layout
from gaploop.finetune.batches import Episode, Float32Array, Signature, Source

SELECTIONS: Final = {
    "demonstrations": "successful demonstrations whole, rollouts where a person had taken over",
    "successful": "every successful take whole, whoever drove",
    "all": "every take that isn't discarded or interrupted, whatever its outcome",
}
_GONE: Final = (Outcome.DISCARDED, Outcome.INTERRUPTED)


@dataclass(frozen=True)
class _Rows:
    """The columns of one dataset's data files that training reads."""

    episode: NDArray[np.int64]
    state: Float32Array
    environment: Float32Array
    action: Float32Array
    intervention: NDArray[np.bool_]


def load_source(
    root: Path, select: str = "demonstrations", episodes: Sequence[int] | None = None
) -> Source:
    """Read the selected takes of one dataset.

    Args:
        root: the dataset's folder.
        select: one of `SELECTIONS`.
        episodes: only these episode indices; all of them if None.

    Raises:
        UnusableInputError: no dataset, a feature missing, takes of several domains or without
            an outcome, NaN in what would be trained on, or nothing selected.
    """
    if select not in SELECTIONS:
        raise unknown_choice("selection", select, SELECTIONS, "--select")
    info = layout.read_info(root)
    known = layout.read_episodes(info, episodes)
    _check_labelled(root, known, select)
    chosen = {e.index: e for e in known if _wanted(e, select)}
    rows = _read_rows(info, list(chosen)) if chosen else None
    taken = [
        take for e in chosen.values() if rows and (take := _episode(e, rows, select)) is not None
    ]
    if not taken:
        raise UnusableInputError(_nothing(root, known, select))
    _check_finite(root, taken)
    domain = _domain(root, [chosen[e.index] for e in taken])
    return Source(str(root), domain, _signature(info, chosen[taken[0].index]), tuple(taken))


def _wanted(episode: layout.Episode, select: str) -> bool:
    if episode.outcome in _GONE:
        return False
    if select == "all":
        return True
    if select == "successful":
        return episode.outcome is Outcome.SUCCESS
    return episode.info.kind is TakeKind.ROLLOUT or episode.outcome is Outcome.SUCCESS


def _episode(episode: layout.Episode, rows: _Rows, select: str) -> Episode | None:
    mine = np.flatnonzero(rows.episode == episode.index)
    spans_only = select == "demonstrations" and episode.info.kind is TakeKind.ROLLOUT
    usable = rows.intervention[mine] if spans_only else np.ones(len(mine), dtype=bool)
    if not usable.any():
        return None
    return Episode(
        episode.info.uid,
        episode.index,
        rows.state[mine],
        rows.environment[mine],
        rows.action[mine],
        usable,
        episode.info.plan,
    )


def _read_rows(info: layout.DatasetInfo, wanted: Sequence[int]) -> _Rows:
    for feature in (columns.STATE, columns.ACTION):
        if feature not in info.features:
            raise UnusableInputError(
                f"{info.root} has no {feature}, which a policy is trained on. Record or import it "
                "with joint states and actions."
            )
    optional = [c for c in (columns.ENVIRONMENT, columns.INTERVENTION) if c in info.features]
    names = ["episode_index", "frame_index", columns.STATE, columns.ACTION, *optional]
    tables = [layout.read_parquet(path, names) for path in layout.data_files(info)]
    if not tables:
        raise UnusableInputError(f"{info.root} has no data files. Restore it from a copy.")
    table = pa.concat_tables(tables, promote_options="permissive")
    table = table.filter(pa.compute.is_in(table["episode_index"], pa.array(wanted)))
    table = table.sort_by([("episode_index", "ascending"), ("frame_index", "ascending")])
    n, has = table.num_rows, table.column_names
    intervention = np.zeros(n, dtype=bool)
    if columns.INTERVENTION in has:
        intervention = _column(table, columns.INTERVENTION, 1)[:, 0] > 0
    return _Rows(
        table["episode_index"].to_numpy().astype(np.int64),
        _column(table, columns.STATE, info.width(columns.STATE)),
        _column(table, columns.ENVIRONMENT, info.width(columns.ENVIRONMENT))
        if columns.ENVIRONMENT in has
        else np.empty((n, 0), dtype=np.float32),
        _column(table, columns.ACTION, info.width(columns.ACTION)),
        intervention,
    )


def _column(table: pa.Table, name: str, width: int) -> Float32Array:
    column = table[name].combine_chunks()
    if pa.types.is_nested(column.type):
        column = column.flatten()
    values = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float32)
    return values.reshape(table.num_rows, width)


def _signature(info: layout.DatasetInfo, episode: layout.Episode) -> Signature:
    return Signature(
        info.fps,
        info.names(columns.STATE),
        info.names(columns.ENVIRONMENT),
        info.names(columns.ACTION),
        episode.info.units,
        info.robot_type,
    )


def _check_labelled(root: Path, episodes: Sequence[layout.Episode], select: str) -> None:
    bare = [
        e.index
        for e in episodes
        if e.outcome is Outcome.UNLABELLED and e.info.kind is not TakeKind.ROLLOUT
    ]
    if bare and select != "all":
        raise UnusableInputError(
            f"{root}: {len(bare)} of {len(episodes)} takes have no outcome (first: episode "
            f"{bare[0]}). Say how they went with gaploop label, or train on every take with "
            "--select=all."
        )


def _check_finite(root: Path, episodes: Sequence[Episode]) -> None:
    for episode in episodes:
        for name in ("state", "environment", "action"):
            bad = ~np.isfinite(getattr(episode, name)).all(axis=1)
            if bad.any():
                raise UnusableInputError(
                    f"{root}: episode {episode.index} has NaN or infinite {name} at frame "
                    f"{int(np.argmax(bad))}. Remove the take with gaploop edit delete, or record "
                    "it again."
                )


def _domain(root: Path, episodes: Sequence[layout.Episode]) -> Domain:
    found = sorted({e.info.domain for e in episodes})
    if len(found) > 1:
        raise UnusableInputError(
            f"{root} mixes takes of {' and '.join(found)}. Split it by domain with gaploop edit "
            "split, so that each gets its share."
        )
    return found[0]


def _nothing(root: Path, episodes: Sequence[layout.Episode], select: str) -> str:
    if not episodes:
        return f"{root} has no takes. Record some with gaploop record."
    counts: dict[str, int] = {}
    for episode in episodes:
        key = f"{episode.outcome.value} {episode.info.kind.value}s"
        counts[key] = counts.get(key, 0) + 1
    held = ", ".join(f"{n} {what}" for what, n in counts.items())
    return (
        f"{root}: --select={select} ({SELECTIONS[select]}) leaves none of its takes ({held}). "
        "Record demonstrations, or choose another --select."
    )

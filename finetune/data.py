"""Which takes of a published dataset are trained on, read from Parquet without any video.

Successful demonstrations count whole, rollouts only where a person had taken over. A failed
rollout is never a demonstration by accident: that takes `select="all"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets import columns, layout
from gaploop.datasets.frames import FrameTable, load_frames
from gaploop.finetune.batches import Episode, Signature, Source

SELECTIONS: Final = {
    "demonstrations": "successful demonstrations whole, rollouts where a person had taken over",
    "successful": "every successful take whole, whoever drove",
    "all": "every take that isn't discarded or interrupted, whatever its outcome",
}
_GONE: Final = (Outcome.DISCARDED, Outcome.INTERRUPTED)


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
    table = _frames(info, list(chosen)) if chosen else None
    taken = [
        take for e in chosen.values() if table and (take := _episode(e, table, select)) is not None
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


def _episode(episode: layout.Episode, table: FrameTable, select: str) -> Episode | None:
    mine = table.rows_of(episode.index)
    usable = np.ones(mine.stop - mine.start, dtype=bool)
    if select == "demonstrations" and episode.info.kind is TakeKind.ROLLOUT:
        taken_over = table.columns.get(columns.INTERVENTION)
        usable = np.zeros_like(usable) if taken_over is None else taken_over[mine].reshape(-1) > 0
    if not usable.any():
        return None
    none = np.empty((len(table), 0), dtype=np.float32)
    return Episode(
        episode.info.uid,
        episode.index,
        np.asarray(table.columns[columns.STATE][mine], dtype=np.float32),
        np.asarray(table.columns.get(columns.ENVIRONMENT, none)[mine], dtype=np.float32),
        np.asarray(table.columns[columns.ACTION][mine], dtype=np.float32),
        usable,
        episode.info.plan,
    )


def _frames(info: layout.DatasetInfo, wanted: list[int]) -> FrameTable:
    for feature in (columns.STATE, columns.ACTION):
        if feature not in info.features:
            raise UnusableInputError(
                f"{info.root} has no {feature}, which a policy is trained on. Record or import it "
                "with joint states and actions."
            )
    optional = [c for c in (columns.ENVIRONMENT, columns.INTERVENTION) if c in info.features]
    return load_frames(info.root, [columns.STATE, columns.ACTION, *optional], wanted)


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

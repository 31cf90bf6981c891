"""Which takes of a published dataset are trained on, read from Parquet without any video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.datasets import columns, layout
from gaploop.datasets.frames import FrameTable, load_frames
from gaploop.datasets.mixing import selection
from gaploop.datasets.mixing.mixture import MixtureStage
from gaploop.datasets.mixing.sources import open_mixture
from gaploop.datasets.mixing.spec import MixtureSpec, SourceSpec
from gaploop.finetune.batches import Signature, TrainingEpisode, TrainingSource


def load_source(
    root: Path, select: str = "demonstrations", episodes: Sequence[int] | None = None
) -> TrainingSource:
    """Read the selected takes of one dataset.

    Args:
        root: the dataset's folder.
        select: one of `selection.SELECTIONS`.
        episodes: only these episode indices; all of them if None.

    Raises:
        UnusableInputError: no dataset, a feature missing, takes of several domains or without
            an outcome, NaN in what would be trained on, or nothing selected.
    """
    selection.check_selection(select)
    info = layout.read_info(root)
    known = layout.read_episodes(info, episodes)
    chosen = {e.index: e for e in selection.wanted_episodes(root, known, select)}
    table = _frames(info, list(chosen)) if chosen else None
    driven = selection.interventions(info, list(chosen.values()))
    taken = []
    for episode in chosen.values():
        usable = selection.usable_frames(episode, select, driven.get(episode.index))
        if table is not None and usable.any():
            taken.append(_episode(episode, table, usable))
    if not taken:
        raise UnusableInputError(selection.nothing_left(root, known, select))
    _check_finite(root, taken)
    domain = _domain(root, [chosen[e.index] for e in taken])
    return TrainingSource(str(root), domain, _signature(info, chosen[taken[0].index]), tuple(taken))


def load_mixture_sources(spec: MixtureSpec) -> tuple[list[TrainingSource], list[MixtureStage]]:
    """Read the takes of a mixture, each source's datasets together, and its stages.

    Raises:
        UnusableInputError: as `open_mixture` and `load_source`; takes of several domains in one
            source.
    """
    opened = open_mixture(spec)
    sources = []
    for number, source in enumerate(spec.sources):
        parts = []
        for place, info in enumerate(opened.datasets):
            weights = {
                t.episode.index: t.weight
                for t in opened.takes
                if t.source == number and t.dataset == place
            }
            if weights:
                part = load_source(info.root, source.select, sorted(weights))
                taken = (replace(e, weight=weights[e.index]) for e in part.episodes)
                parts.append(replace(part, episodes=tuple(taken)))
        sources.append(_together(source, parts))
    sizes = [sum(e.weight * int(e.usable.sum()) for e in s.episodes) for s in sources]
    return sources, opened.stages(sizes)


def _together(spec: SourceSpec, parts: Sequence[TrainingSource]) -> TrainingSource:
    domains = sorted({p.domain for p in parts})
    if len(domains) > 1:
        raise UnusableInputError(
            f"Source '{spec.name}' mixes takes of {' and '.join(domains)}. Make a source of each, "
            "so that each gets its share."
        )
    root = ", ".join(p.root for p in parts)
    episodes = tuple(e for p in parts for e in p.episodes)
    return TrainingSource(root, domains[0], parts[0].signature, episodes)


def _episode(
    episode: layout.EpisodeRow, table: FrameTable, usable: NDArray[np.bool_]
) -> TrainingEpisode:
    mine = table.rows_of(episode.index)
    none = np.empty((len(table), 0), dtype=np.float32)
    return TrainingEpisode(
        episode.info.uid,
        episode.index,
        np.asarray(table.columns[columns.STATE][mine], dtype=np.float32),
        np.asarray(table.columns.get(columns.ENVIRONMENT, none)[mine], dtype=np.float32),
        np.asarray(table.columns[columns.ACTION][mine], dtype=np.float32),
        usable,
        episode.info.plan,
        session=episode.info.session,
        station=episode.info.station,
        dimensions=dict(episode.info.dimensions),
    )


def _frames(info: layout.DatasetInfo, wanted: list[int]) -> FrameTable:
    for feature in (columns.STATE, columns.ACTION):
        if feature not in info.features:
            raise UnusableInputError(
                f"{info.root} has no {feature}, which a policy is trained on. Record or import it "
                "with joint states and actions."
            )
    optional = [c for c in (columns.ENVIRONMENT,) if c in info.features]
    return load_frames(info.root, [columns.STATE, columns.ACTION, *optional], wanted)


def _signature(info: layout.DatasetInfo, episode: layout.EpisodeRow) -> Signature:
    return Signature(
        info.fps,
        info.names(columns.STATE),
        info.names(columns.ENVIRONMENT),
        info.names(columns.ACTION),
        episode.info.units,
        info.robot_type,
    )


def _check_finite(root: Path, episodes: Sequence[TrainingEpisode]) -> None:
    for episode in episodes:
        for name in ("state", "environment", "action"):
            bad = ~np.isfinite(getattr(episode, name)).all(axis=1)
            if bad.any():
                raise UnusableInputError(
                    f"{root}: episode {episode.index} has NaN or infinite {name} at frame "
                    f"{int(np.argmax(bad))}. Remove the take with gaploop edit delete, or record "
                    "it again."
                )


def _domain(root: Path, episodes: Sequence[layout.EpisodeRow]) -> Domain:
    found = sorted({e.info.domain for e in episodes})
    if len(found) > 1:
        raise UnusableInputError(
            f"{root} mixes takes of {' and '.join(found)}. Split it by domain with gaploop edit "
            "split, so that each gets its share."
        )
    return found[0]

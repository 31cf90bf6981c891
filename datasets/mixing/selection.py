"""Which takes, and which frames of them, a policy learns from.

Successful demonstrations count whole, rollouts only where a person had taken over. A failed
rollout is never a demonstration by accident: that takes `select="all"`. Nothing learns from a
probe.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns
from gaploop.datasets.frames import load_frames
from gaploop.datasets.layout import DatasetInfo, EpisodeRow

SELECTIONS: Final = {
    "demonstrations": "successful demonstrations whole, rollouts where a person had taken over",
    "successful": "every successful take whole, whoever drove",
    "all": "every take that isn't discarded or interrupted, whatever its outcome",
}
_GONE: Final = (Outcome.DISCARDED, Outcome.INTERRUPTED)


def check_selection(select: str, option: str = "--select") -> None:
    """Check that `select` is one of `SELECTIONS`.

    Raises:
        UnknownChoiceError: it isn't.
    """
    if select not in SELECTIONS:
        raise unknown_choice("selection", select, SELECTIONS, option)


def wanted_episodes(root: Path, episodes: Sequence[EpisodeRow], select: str) -> list[EpisodeRow]:
    """Return the episodes that may be learned from.

    Raises:
        UnusableInputError: takes without an outcome, of which nobody knows.
    """
    bare = [
        e.index
        for e in episodes
        if e.outcome is Outcome.UNLABELLED and e.info.kind not in (TakeKind.ROLLOUT, TakeKind.PROBE)
    ]
    if bare and select != "all":
        raise UnusableInputError(
            f"{root}: {len(bare)} of {len(episodes)} takes have no outcome (first: episode "
            f"{bare[0]}). Say how they went with gaploop label, or train on every take with "
            "--select=all."
        )

    def is_wanted(episode: EpisodeRow) -> bool:
        """Say whether any frame of an episode may be learned from."""
        if episode.outcome in _GONE or episode.info.kind is TakeKind.PROBE:
            return False
        if select == "all":
            return True
        driven = select == "demonstrations" and episode.info.kind is TakeKind.ROLLOUT
        return driven or episode.outcome is Outcome.SUCCESS

    return [e for e in episodes if is_wanted(e)]


def interventions(
    info: DatasetInfo, episodes: Sequence[EpisodeRow]
) -> dict[int, NDArray[np.bool_]]:
    """Return, for each rollout among `episodes`, the frames in which a person drove.

    Returns:
        Episode index to bool, shape (n_frames,); none of them where the dataset doesn't say.
    """
    rollouts = [e for e in episodes if e.info.kind is TakeKind.ROLLOUT]
    if not rollouts or columns.INTERVENTION not in info.features:
        return {e.index: np.zeros(e.length, dtype=bool) for e in rollouts}
    table = load_frames(info.root, [columns.INTERVENTION], [e.index for e in rollouts])
    driven = table.columns[columns.INTERVENTION]
    return {e.index: driven[table.rows_of(e.index)].reshape(-1) > 0 for e in rollouts}


def usable_frames(
    episode: EpisodeRow, select: str, driven: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    """Return which frames of a wanted episode are learned from, bool, shape (n_frames,).

    Args:
        driven: the frames in which a person drove, for a rollout; None if unknown.
    """
    if select == "demonstrations" and episode.info.kind is TakeKind.ROLLOUT:
        return np.zeros(episode.length, dtype=bool) if driven is None else driven
    return np.ones(episode.length, dtype=bool)


def span_ends(usable: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, for each frame, the first one after it that isn't usable, or the episode's end.

    A chunk of actions that starts at a usable frame is learned from up to there.
    """
    n = len(usable)
    breaks = np.append(np.flatnonzero(~usable), n)
    return breaks[np.searchsorted(breaks, np.arange(n), side="left")]


def nothing_left(root: Path, episodes: Sequence[EpisodeRow], select: str) -> str:
    """Return the message for a selection that leaves no take."""
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

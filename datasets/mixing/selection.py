"""Which takes, and which frames of them, a policy learns from.

Successful demonstrations count whole, rollouts only where a person had taken over. A failed
rollout is never a demonstration by accident: that takes `select="all"`. Nothing learns from a
probe.
"""

from __future__ import annotations

import logging
from collections import Counter
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
log = logging.getLogger(__name__)
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
        UnusableInputError: some takes without an outcome, of which nobody knows. Where nobody
            said how any demonstration went, as in plain datasets, all of them count.
    """
    judged = [e for e in episodes if e.info.kind not in (TakeKind.ROLLOUT, TakeKind.PROBE)]
    if (
        judged
        and select == "demonstrations"
        and all(e.outcome is Outcome.UNLABELLED for e in judged)
    ):
        log.warning(
            "%s: nobody said how its %d takes went; all of them count as demonstrations. Leave "
            "some out: gaploop label --outcome=failure.", root, len(judged),
        )  # fmt: skip
        return [e for e in episodes if e.info.kind is not TakeKind.PROBE
                and (e.outcome not in _GONE)]  # fmt: skip
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
        if episode.outcome in _GONE or episode.info.kind is TakeKind.PROBE:
            return False
        if select == "all":
            return True
        driven = select == "demonstrations" and episode.info.kind is TakeKind.ROLLOUT
        return driven or episode.outcome is Outcome.SUCCESS

    return [e for e in episodes if is_wanted(e)]


def wanted_frames(
    info: DatasetInfo, episodes: Sequence[EpisodeRow], select: str
) -> list[tuple[EpisodeRow, NDArray[np.bool_]]]:
    """Return the takes that are learned from, each with which of its frames, shape (n_frames,).

    Raises:
        UnusableInputError: takes without an outcome, or none is left.
    """
    chosen = wanted_episodes(info.root, episodes, select)
    usable: dict[int, NDArray[np.bool_]]
    usable = {e.index: np.ones(e.length, dtype=bool) for e in chosen}
    rollouts = [e for e in chosen if e.info.kind is TakeKind.ROLLOUT]
    if rollouts and select == "demonstrations":  # only where a person drove, as far as it is said
        usable |= {e.index: np.zeros(e.length, dtype=bool) for e in rollouts}
        if columns.INTERVENTION in info.features:
            table = load_frames(info.root, [columns.INTERVENTION], [e.index for e in rollouts])
            driven = table.columns[columns.INTERVENTION].reshape(-1) > 0
            usable |= {e.index: driven[table.rows_of(e.index)] for e in rollouts}
    found = [(e, usable[e.index]) for e in chosen if usable[e.index].any()]
    if not found:
        if not episodes:
            raise UnusableInputError(f"{info.root} has no takes. Record some with gaploop record.")
        counts = Counter(f"{e.outcome.value} {e.info.kind.value}s" for e in episodes)
        held = ", ".join(f"{n} {what}" for what, n in counts.items())
        raise UnusableInputError(
            f"{info.root}: --select={select} ({SELECTIONS[select]}) leaves none of its takes "
            f"({held}). Record demonstrations, or choose another --select."
        )
    return found


def span_ends(usable: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, for each frame, the first one after it that isn't usable, or the episode's end.

    A chunk of actions that starts at a usable frame is learned from up to there.
    """
    n = len(usable)
    breaks = np.append(np.flatnonzero(~usable), n)
    return breaks[np.searchsorted(breaks, np.arange(n), side="left")]

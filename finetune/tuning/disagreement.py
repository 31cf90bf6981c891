"""Demonstrations that disagree with the policy that is tuned on them, each beside the others.

The policy is asked along every episode what it would do. Where a station differs from what it
learned from, all episodes disagree with it, in about the same way; one that disagrees much more
than the others was driven, or recorded, otherwise. Whether training without it is better, only
training without it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.finetune.batches import TrainingEpisode, chunks_at
from gaploop.finetune.lerobot_policy import ActPolicy

LEAST: Final = 8
"""Episodes that there must be to say what is usual."""
SPREADS: Final = 3.0
"""So many spreads above the median an episode stands out, in logarithms; and by"""
TIMES: Final = 2.0
"""so many times the median."""
QUARTILE: Final = 0.75
"""Of an episode's moments: what lasts counts, a single surprise doesn't."""
FLOOR: Final = 0.1
"""Differences of commands that mean nothing, in LeRobot's units (degrees, percent)."""


def disagreement(policy: ActPolicy, episodes: Sequence[TrainingEpisode]) -> FloatArray:
    """Return by how much each episode disagrees with a policy, relative to the median one; (n,)."""
    off = []
    for episode in episodes:
        batch = chunks_at(episode, np.arange(0, len(episode.action), 5), policy.bundle.chunk)
        ahead = slice(0, policy.execute)
        apart = batch.action[:, ahead] - policy.predict(batch)[:, ahead]
        off.append(np.asarray(apart[~batch.is_pad[:, ahead].any(axis=1)], dtype=np.float64))
    every = np.concatenate(off)
    usual = np.median(every, axis=0)  # what the station does otherwise isn't the episode's fault
    size = np.maximum(np.median(np.abs(every - usual), axis=0), FLOOR)
    each = np.array(
        [np.quantile(np.sqrt((((o - usual) / size) ** 2).mean(axis=(1, 2))), QUARTILE) for o in off]
    )
    return np.asarray(each / np.median(each))


def standing_out(times: FloatArray) -> list[int]:
    """Return which of some episodes disagree much more than the others, the worst first.

    The spread is that below the median, which bad episodes hardly widen.
    """
    if len(times) < LEAST:
        return []
    levels = np.log(times)
    spread = np.median(levels) - np.quantile(levels, 0.16)
    most = max(SPREADS * spread, np.log(TIMES))
    return [int(k) for k in np.argsort(-levels) if levels[k] > most]

"""Open-loop action error on held-out takes: what can be measured without a robot.

It compares what a policy would have done with what the person did, from the same recorded
observations. It works on any dataset with joint states, actions and an environment state, of
any arm; a low error is necessary for success, not proof of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.statistics import Estimate
from gaploop.finetune.batches import check_signature, load_source
from gaploop.finetune.lerobot_policy import load_policy
from gaploop.finetune.tuning.tracked import episode_errors

SCHEMA: Final = "gaploop.action_error.v1"


@dataclass(frozen=True)
class ActionError:
    """Mean absolute error of executed actions, in the dataset's units.

    Attributes:
        value: mean over joints, frames and episodes, each episode counting the same.
        interval: bootstrap interval at 95 %, drawn over episodes (frames of one take depend
            on each other).
        by_joint: the same mean for each action entry.
        by_episode: episode index to its mean error.
        constant: error of the best constant answer (each entry's median over the takes), for
            scale.
        units: LeRobot units, or "" where the dataset doesn't say.
    """

    value: float
    interval: tuple[float, float]
    by_joint: Mapping[str, float]
    by_episode: Mapping[int, float]
    constant: float
    units: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {"schema": SCHEMA, **asdict(self)}


def action_error(
    policy_path: str | Path,
    root: Path,
    episodes: Sequence[int],
    *,
    select: str = "all",
    seed: int = 0,
) -> ActionError:
    """Measure a policy on takes that it wasn't trained on.

    Args:
        policy_path: as for `load_policy`.
        root: the dataset's folder.
        episodes: the held-out episodes.
        select: which of them count, see `vocabulary.SELECTIONS`.
        seed: of the bootstrap.

    Raises:
        UnusableInputError: the dataset doesn't fit the policy, or an episode doesn't exist.
    """
    if not episodes:
        raise UnusableInputError(f"No held-out episodes of {root} named. Give at least one.")
    policy = load_policy(policy_path)
    source = load_source(root, select, episodes)
    signature = source.signature
    check_signature(signature, policy.bundle.signature, str(root), f"policy {policy_path}")
    per_episode = np.stack([episode_errors(policy, e).mean(axis=0) for e in source.episodes])
    means = per_episode.mean(axis=1)
    error = bootstrap_mean(means, seed)
    actions = np.concatenate([e.action for e in source.episodes])
    return ActionError(
        value=error.value,
        interval=(error.low, error.high),
        by_joint=dict(zip(signature.action_names, per_episode.mean(axis=0).tolist(), strict=True)),
        by_episode={e.index: float(m) for e, m in zip(source.episodes, means, strict=True)},
        constant=float(np.abs(actions - np.median(actions, axis=0)).mean()),
        units=signature.units,
    )


def bootstrap_mean(values: NDArray[np.float64], seed: int, resamples: int = 2000) -> Estimate:
    """Return a mean with its 95 % percentile bootstrap interval (Efron 1979).

    `values` has one a unit that is drawn whole, such as a take; shape (n,).
    """
    draws = np.random.default_rng(seed).integers(0, len(values), size=(resamples, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))

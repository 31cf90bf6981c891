"""Episodes that were driven otherwise than the rest stand out, whatever the station differs in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gaploop.finetune.batches import TrainingEpisode, chunks_at
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy
from gaploop.finetune.tuning.takes import LEAST, disagreement, standing_out


def episode(k: int, policy: ActPolicy, offset_deg: float) -> TrainingEpisode:
    """Do what the policy would, `offset_deg` off as all at the station do, with a tremor."""
    rng = np.random.default_rng(k)
    n, arm = 60, len(policy.bundle.signature.state_names)
    state = np.cumsum(rng.normal(0.0, 0.5, (n, arm)), axis=0).astype(np.float32)
    scene = rng.normal(0.2, 0.02, (1, len(policy.bundle.signature.environment_names)))
    still = TrainingEpisode(
        f"e{k}", k, state, np.repeat(scene, n, axis=0).astype(np.float32), state, np.ones(n, bool)
    )
    action = state.copy()
    for row in range(0, n, policy.execute):
        planned = policy.predict(chunks_at(still, np.array([row]), policy.bundle.chunk))[0]
        action[row : row + policy.execute] = planned[: min(policy.execute, n - row)]
    action += offset_deg + rng.normal(0.0, 1.0, action.shape).astype(np.float32)
    return replace(still, action=action)


@pytest.fixture(scope="module")
def policy() -> ActPolicy:
    loaded = load_policy("base")
    assert isinstance(loaded, ActPolicy)
    return loaded


@pytest.mark.parametrize("offset_deg", [0.0, 8.0])
def test_one_that_sways_stands_out_and_no_other(policy: ActPolicy, offset_deg: float) -> None:
    usual = [episode(k, policy, offset_deg) for k in range(LEAST + 2)]
    assert standing_out(disagreement(policy, usual)) == []
    sway = 10.0 * np.sin(np.arange(60) / 3.0, dtype=np.float32)[:, None]
    odd = replace(usual[3], action=usual[3].action + sway)
    times = disagreement(policy, [*usual[:3], odd, *usual[4:]])
    assert standing_out(times) == [3]


def test_of_a_few_episodes_nothing_is_said() -> None:
    assert standing_out(np.array([1.0] * (LEAST - 2) + [50.0])) == []

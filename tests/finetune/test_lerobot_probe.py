"""Asking a policy: its own features and plans, and it drives on as if never asked."""

from __future__ import annotations

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import Observation
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy
from gaploop.finetune.lerobot_probe import LeRobotProbe, probe


@pytest.fixture(scope="module")
def base() -> ActPolicy:
    return load_policy("base")


def seen(k: int) -> Observation:
    rng = np.random.default_rng(k)
    return Observation(
        rng.uniform(-20, 20, 6), np.array([0.2, 0.2, 0.0, -0.3, 0.2, 1.0, 0.0]) + 0.01 * k, {}
    )


def test_a_probe_tells_the_features_and_the_plan_that_the_policy_drives_by(base: ActPolicy) -> None:
    asked = probe(base)
    assert asked.features(seen(0)).shape == (base.bundle.policy.config.dim_model,)
    assert not asked.needs_images
    base.reset()
    base.act(seen(0))
    assert base.chunk is not None
    np.testing.assert_allclose(asked.chunk(seen(0)), base.chunk, atol=1e-4)
    assert not np.allclose(asked.features(seen(1)), asked.features(seen(2)))


def test_asking_changes_nothing_about_driving(base: ActPolicy) -> None:
    asked = probe(base)
    base.reset()
    alone = [base.act(seen(k)) for k in range(25)]
    base.reset()
    beside = []
    for k in range(25):
        asked.features(seen(k + 100))
        if k == 7:
            asked.reset()
        beside.append(base.act(seen(k)))
    np.testing.assert_array_equal(alone, beside)


def test_an_encoder_that_is_not_there_is_named_with_those_that_are(base: ActPolicy) -> None:
    bundle = base.bundle
    with pytest.raises(UnusableInputError, match=r"model\.encoder"):
        LeRobotProbe(bundle.policy, bundle.preprocessor, bundle.postprocessor, encoder="nowhere")


def test_takes_that_the_policy_cannot_have_driven_are_refused(base: ActPolicy) -> None:
    without = Observation(np.zeros(6), None, {})
    with pytest.raises(UnusableInputError, match="environment_state"):
        probe(base).chunk(without)
    other = Observation(np.zeros(7), seen(0).environment_state, {})
    with pytest.raises(UnusableInputError, match=r"state of shape \(6,\)"):
        probe(base).chunk(other)

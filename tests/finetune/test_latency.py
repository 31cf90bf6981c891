"""Number formats that make a policy faster plan nearly what it plans as trained."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.types import Observation
from gaploop.finetune.lerobot_latency import PlanTiming, time_plans, variant
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy
from gaploop.finetune.policy_fit import facts_of


@pytest.fixture(scope="module")
def policy() -> ActPolicy:
    return load_policy("base")


def seen(policy: ActPolicy) -> Observation:
    facts = facts_of(policy)
    assert facts.state is not None
    scene = np.array([0.1, 0.2, 0.0, -0.4, 0.2, 1.0, 0.0])
    return Observation(facts.state.mean, scene, {})


@pytest.mark.parametrize(("name", "within_deg"), [("fp32", 0.0), ("bf16", 3.0), ("int8", 6.0)])
def test_a_variant_plans_what_the_policy_plans(
    policy: ActPolicy, name: str, within_deg: float
) -> None:
    plain = policy.plan(seen(policy))
    other = variant(policy, name).plan(seen(policy))
    assert np.abs(other - plain).max() <= within_deg
    assert (name == "fp32") == np.array_equal(other, plain)
    assert np.array_equal(policy.plan(seen(policy)), plain)  # the original is as it was


@pytest.mark.slow
def test_compiled_it_plans_the_same_or_says_why_it_cant_be(policy: ActPolicy) -> None:
    from gaploop.finetune.lerobot_latency import warm_up

    if shutil.which("g++") is None:
        with pytest.raises(UnusableInputError, match="can't be computed on this machine"):
            warm_up(variant(policy, "compile"), seen(policy), "compile")
        return
    compiled = variant(policy, "compile")
    warm_up(compiled, seen(policy), "compile")
    assert np.allclose(compiled.plan(seen(policy)), policy.plan(seen(policy)), atol=0.05)


def test_an_unknown_variant_is_refused_with_those_there_are(policy: ActPolicy) -> None:
    with pytest.raises(UnusableInputError, match="fp32"):
        variant(policy, "fp8")


def test_what_a_policy_was_trained_for_is_read_off_it(policy: ActPolicy) -> None:
    facts = facts_of(policy)
    assert (facts.fps, facts.units, facts.needs_scene) == (50.0, "deg", True)
    assert facts.action is not None
    assert facts.action.mean.shape == (6,)
    assert facts.action_names[0] == "shoulder_pan.pos"


def test_times_are_quantiles_of_what_was_timed() -> None:
    assert len(time_plans(lambda: None, 7).took_s) == 7
    assert PlanTiming((1.0, 2.0, 3.0)).quantile_s(0.5) == 2.0

"""What a policy makes of a take: plans that change, observations unlike its training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from failure_analysis_makers import take
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Observation
from gaploop.failure_analysis.signals.registry import measure
from gaploop.failure_analysis.views.policy_view import (
    FeatureSpace,
    ask,
    features_of,
    observations,
    overlap_rms,
)
from gaploop.failure_analysis.views.view import TakeView


class Planner:
    """A policy that plans to stay where it is, plus `sway` that alternates from plan to plan."""

    needs_images = False

    def maps(self, observation: Observation) -> Mapping[str, Sequence[FloatArray]]:
        del observation
        return {}

    def __init__(self, sway: float = 0.0) -> None:
        self._sway, self._count = sway, 0

    def reset(self) -> None:
        self._count = 0

    def features(self, observation: Observation) -> FloatArray:
        return observation.state[:5]

    def chunk(self, observation: Observation) -> FloatArray:
        self._count += 1
        return np.zeros((20, len(observation.state))) + self._sway * (self._count % 2)


def test_changes_of_plan_are_found_in_radians() -> None:
    calm, torn = (ask(take(), Planner(sway)) for sway in (0.0, 2.0))
    assert measure(TakeView(take(), policy=calm))["chunk_disagreement_rad"] == pytest.approx(0.0)
    measured = measure(TakeView(take(), policy=torn))
    assert measured["chunk_disagreement_rad"] == pytest.approx(math.radians(2.0))
    assert math.isnan(measured["feature_mahalanobis"])  # nobody said where it is at home


def test_without_the_policy_its_signals_are_unknown_and_that_is_said() -> None:
    measured = measure(TakeView(take()))
    assert math.isnan(measured["chunk_disagreement_rad"])
    assert "queried" in measured.unseen["policy"]


def test_what_is_unlike_the_training_stands_far_from_it() -> None:
    probe = Planner()
    space = FeatureSpace.fit(features_of([take(seed=k) for k in range(4)], probe))
    near = measure(TakeView(take(seed=1), policy=ask(take(seed=1), probe, space)))
    far_take = take(seed=1, offset_rad=3.0)
    far = measure(TakeView(far_take, policy=ask(far_take, probe, space)))
    assert far["feature_mahalanobis"] > 1.5 * near["feature_mahalanobis"]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100.0), d=st.integers(2, 8))
def test_distances_do_not_hang_on_the_features_scale(seed: int, scale: float, d: int) -> None:
    rng = np.random.default_rng(seed)
    mix = rng.normal(0, 1, (d, d)) + 2 * np.eye(d)
    features = rng.normal(0, 1, (300, d)) @ mix
    space, scaled = FeatureSpace.fit(features), FeatureSpace.fit(features * scale + 7.0)
    probe = rng.normal(0, 3, (20, d)) @ mix
    np.testing.assert_allclose(
        space.mahalanobis(probe), scaled.mahalanobis(probe * scale + 7.0), rtol=1e-3
    )
    rms = np.sqrt(np.mean(space.mahalanobis(features) ** 2))
    assert 0.5 < rms < 1.01  # the covariance is shrunk, the more so the less round it is


@settings(max_examples=50, deadline=None)
@given(steps=st.integers(1, 30), h=st.integers(1, 25), shift=st.floats(0.0, 5.0))
def test_overlapping_plans_of_one_path_agree(steps: int, h: int, shift: float) -> None:
    path = np.outer(np.arange(80.0) ** 1.5, [1.0, -2.0])
    found = overlap_rms(path[steps : steps + h] + shift, path[:h], steps)
    assert math.isnan(found) if steps >= h else found == pytest.approx(shift, abs=1e-9)


def test_pictures_are_decoded_only_for_policies_that_look() -> None:
    def refuse() -> None:
        raise AssertionError("pictures were opened")

    made = take()
    made.cameras["overhead"] = refuse  # type: ignore[index]
    assert len(list(observations(made, images=False))) == 60
    with pytest.raises(AssertionError):
        next(observations(made, images=True))


def test_few_observations_are_no_home() -> None:
    with pytest.raises(UnusableInputError, match="too few"):
        FeatureSpace.fit(np.zeros((3, 4)))

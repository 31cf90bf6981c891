"""What a loaded policy expects of an arm: names, units, rate, cameras, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.finetune.lerobot_act import ACTION, STATE
from gaploop.finetune.lerobot_policy import ActPolicy

_IMAGES: Final = "observation.images."
type Stats = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class FeatureSpread:
    """How a feature was spread over the takes that a policy learned from.

    Attributes:
        mean: shape (n,), in LeRobot units.
        std: shape (n,).
    """

    mean: FloatArray
    std: FloatArray


@dataclass(frozen=True)
class PolicyFacts:
    """What a policy was trained for.

    Attributes:
        fps: frames a second [Hz].
        state_names: entries of `observation.state`; numbers where the policy doesn't name them.
        action_names: entries of `action`.
        units: LeRobot units of both; "" where it doesn't say.
        robot_type: LeRobot's name of the follower; "" where it doesn't say.
        cameras: name to (height, width) of the pictures it sees [px].
        needs_scene: it sees the tracked scene.
        execute: steps of a plan that it executes before the next one.
        state: statistics of `observation.state`; None where it normalises otherwise.
        action: statistics of `action`.
    """

    fps: float
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    units: str = ""
    robot_type: str = ""
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    needs_scene: bool = False
    execute: int = 1
    state: FeatureSpread | None = None
    action: FeatureSpread | None = None


def facts_of(policy: ActPolicy) -> PolicyFacts:
    """Return what a loaded policy was trained for."""
    bundle = policy.bundle
    signature = bundle.signature
    inputs = bundle.policy.config.input_features or {}
    steps = bundle.preprocessor.steps
    stats: Stats = next((s.stats for s in steps if getattr(s, "stats", None)), {})
    return PolicyFacts(
        signature.fps,
        signature.state_names,
        signature.action_names,
        signature.units,
        signature.robot_type,
        {
            key.removeprefix(_IMAGES): (int(feature.shape[1]), int(feature.shape[2]))
            for key, feature in inputs.items()
            if key.startswith(_IMAGES)
        },
        policy.needs_scene,
        policy.execute,
        _spread(stats, STATE),
        _spread(stats, ACTION),
    )


def _spread(stats: Stats, key: str) -> FeatureSpread | None:
    said = stats.get(key, {})
    if "mean" not in said or "std" not in said:
        return None
    mean, std = (np.asarray(said[name], dtype=np.float64).ravel() for name in ("mean", "std"))
    return FeatureSpread(mean, std)

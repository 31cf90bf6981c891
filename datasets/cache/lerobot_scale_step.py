"""The scaling of cached pictures as a LeRobot processor step.

A policy trained on pictures that the cache has scaled must see camera pictures scaled the same
way when it drives. Its saved preprocessor names this class by its full path, so that plain
lerobot-rollout does it. (It isn't in LeRobot's registry of steps on purpose: registered names
resolve only after somebody has imported the module.)
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from lerobot.configs.types import FeatureType, PipelineFeatureType, PolicyFeature
from lerobot.processor.pipeline import ObservationProcessorStep

from gaploop.datasets.cache.lerobot_frames import all_scaled

PICTURES: Final = "observation.image"
"""How LeRobot's names of pictures begin."""


@dataclass
class ScaleStep(ObservationProcessorStep):  # type: ignore[misc]
    """Scales every colour picture as the frame cache does, to a height and width [px]."""

    height: int
    width: int

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Scale the pictures, float (…, 3, height, width) in [0, 1] or uint8."""
        size, result = (self.height, self.width), dict(observation)
        for key, value in observation.items():
            if not (str(key).startswith(PICTURES) and isinstance(value, torch.Tensor)):
                continue
            if value.ndim < 3 or value.shape[-3] != 3 or tuple(value.shape[-2:]) == size:
                continue
            # In whole steps of brightness, as the cache does it: training saw nothing finer.
            is_bytes = value.dtype == torch.uint8
            whole = value if is_bytes else (value * 255).round().to(torch.uint8)
            small = all_scaled(whole, size)
            result[key] = small if is_bytes else small.to(value.dtype) / 255
        return result

    def get_config(self) -> dict[str, Any]:
        """Options to save with the policy."""
        return {"height": self.height, "width": self.width}

    def transform_features(
        self, features: dict[PipelineFeatureType, dict[str, PolicyFeature]]
    ) -> dict[PipelineFeatureType, dict[str, PolicyFeature]]:
        """Say which shapes pictures have after scaling."""
        seen = features.get(PipelineFeatureType.OBSERVATION, {})
        for key, feature in seen.items():
            if feature.type is FeatureType.VISUAL and feature.shape[0] == 3:
                seen[key] = replace(feature, shape=(3, self.height, self.width))
        return features

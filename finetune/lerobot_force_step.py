"""Forces as a policy's input, as a LeRobot processor step.

LeRobot's policies read `observation.state` and leave other numbers out. So what sensors beside the
arm read is put behind the joints' state, after each has been normalised by its own statistics. A
saved preprocessor names this class by its full path, as it does `TrackerStep`, and for its reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from lerobot.configs.types import PipelineFeatureType, PolicyFeature
from lerobot.processor.pipeline import ObservationProcessorStep
from lerobot.utils.constants import OBS_STATE

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.columns import FORCE


def widened(features: Mapping[str, PolicyFeature]) -> dict[str, PolicyFeature]:
    """Return a new policy's inputs: its state is as wide as it is with the forces behind it."""
    wide = sum(f.shape[0] for key, f in features.items() if key.startswith(FORCE))
    state = features.get(OBS_STATE)
    if not wide or state is None:
        return dict(features)
    return {**features, OBS_STATE: replace(state, shape=(state.shape[0] + wide,))}


@dataclass
class ForceStep(ObservationProcessorStep):  # type: ignore[misc]
    """Puts `observation.force.<sensor>` of these keys behind `observation.state`, (…, n)."""

    keys: list[str]

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return it with the wider state, on the state's device.

        Raises:
            UnusableInputError: a sensor isn't there.
        """
        missing = [key for key in (OBS_STATE, *self.keys) if key not in observation]
        if missing:
            raise UnusableInputError(
                f"The policy needs {', '.join(missing)}. Name the sensor in --sensors, with "
                "observe: true."
            )
        parts = [torch.as_tensor(observation[key]) for key in (OBS_STATE, *self.keys)]
        parts = [part.to(parts[0]) for part in parts]
        return {**observation, OBS_STATE: torch.cat(parts, dim=-1)}

    def get_config(self) -> dict[str, Any]:
        """Options to save with the policy."""
        return {"keys": list(self.keys)}

    def transform_features(
        self, features: dict[PipelineFeatureType, dict[str, PolicyFeature]]
    ) -> dict[PipelineFeatureType, dict[str, PolicyFeature]]:
        """Say how wide the state is then."""
        seen = features.get(PipelineFeatureType.OBSERVATION, {})
        features[PipelineFeatureType.OBSERVATION] = widened(seen)
        return features

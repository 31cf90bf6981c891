"""The camera tracker as a LeRobot processor step.

A saved policy's preprocessor names this class by its full path, so that plain lerobot-rollout
runs it on a robot that yields only pictures and joints. It isn't entered in LeRobot's registry
of steps on purpose: registered names resolve only after somebody has imported the module.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from lerobot.configs.types import FeatureType, PipelineFeatureType, PolicyFeature
from lerobot.processor.pipeline import ObservationProcessorStep
from lerobot.utils.constants import OBS_ENV_STATE, OBS_IMAGES
from numpy.typing import NDArray

from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnusableInputError
from gaploop.sim.catalogue import SO101
from gaploop.sim.scene import CAMERA_NAME
from gaploop.sim.tracker import NAMES, Tracker


@dataclass
class TrackerStep(ObservationProcessorStep):  # type: ignore[misc]
    """Adds `observation.environment_state` from a picture, unless it is there already.

    Attributes:
        camera: key of the picture is observation.images.<camera>.
        domain: last feature of the tracked scene: 0 for sim, 1 for real.
        task: task whose target the tracker looks for.
        image_size_px: size that pictures are tracked at.
        robot: arm of the cell whose overhead camera took them, one of core.arms.CELL_ARMS.
    """

    camera: str = CAMERA_NAME
    domain: float = 0.0
    task: str = "pick_place"
    image_size_px: int = 192
    robot: str = SO101.name
    _trackers: list[Tracker] = field(default_factory=list, init=False, repr=False)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Add `observation.environment_state`, float32, shape (7,) or (B, 7), and return it all.

        The picture is float (…, 3, H, W) in [0, 1], uint8 of that layout, or uint8 (…, H, W, 3),
        batched or not.

        Raises:
            UnusableInputError: if neither the state nor the picture is there.
        """
        if OBS_ENV_STATE in observation:
            return observation
        key = f"{OBS_IMAGES}.{self.camera}"
        if key not in observation:
            have = ", ".join(sorted(map(str, observation))) or "nothing"
            raise UnusableInputError(
                f"The policy sees by a tracker, which needs the cell's camera '{key}'; "
                f"the observation has {have}. Elsewhere take a policy that sees pictures; in the "
                "cell name the overhead camera so, or set the step's 'camera'."
            )
        value = torch.as_tensor(observation[key])
        batched = value.ndim == 4
        pictures: list[NDArray[np.uint8]] = []
        for picture in value if batched else value[None]:
            if picture.shape[0] == 3 and picture.shape[-1] != 3:
                picture = picture.permute(1, 2, 0)
            if picture.is_floating_point():
                picture = (picture * 255.0).round().clamp(0, 255)
            pictures.append(np.ascontiguousarray(picture.to(torch.uint8).cpu().numpy()))
        while len(self._trackers) < len(pictures):
            arm = CELL_ARMS[self.robot]
            self._trackers.append(Tracker.nominal(self.image_size_px, self.domain, self.task, arm))
        rows = [t.observe(p) for t, p in zip(self._trackers, pictures, strict=False)]
        state = torch.as_tensor(np.stack(rows), dtype=torch.float32, device=value.device)
        observation[OBS_ENV_STATE] = state if batched else state[0]
        return observation

    def reset(self) -> None:
        """Forget the scenes of the takes before."""
        for tracker in self._trackers:
            tracker.reset()

    def get_config(self) -> dict[str, Any]:
        """Options to save with the policy."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        if self.robot == SO101.name:  # saved as before there was another arm
            del options["robot"]
        return options

    def transform_features(
        self, features: dict[PipelineFeatureType, dict[str, PolicyFeature]]
    ) -> dict[PipelineFeatureType, dict[str, PolicyFeature]]:
        """Announce the tracked scene."""
        observed = features.setdefault(PipelineFeatureType.OBSERVATION, {})
        observed.setdefault(OBS_ENV_STATE, PolicyFeature(FeatureType.ENV, (len(NAMES),)))
        return features

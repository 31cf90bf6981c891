"""Recalibration as LeRobot processor steps, so that a policy folder carries it.

`gaploop calibrate from_twin` writes them into a copy of a policy; wherever it drives, through
gaploop or plain lerobot-rollout, it then gets the scene and the joints as they are. Not registered,
for the reason of `TrackerStep`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import chain, repeat
from typing import Any, cast

import numpy as np
import torch
from lerobot.configs.types import PipelineFeatureType, PolicyFeature
from lerobot.processor.pipeline import ObservationProcessorStep, PolicyActionProcessorStep
from lerobot.utils.constants import OBS_ENV_STATE, OBS_IMAGES, OBS_STATE

from gaploop.core.arms import CELL_ARMS
from gaploop.sim.catalogue import SO101
from gaploop.sim.identification.flicker import FLICKER, FlickerFilter
from gaploop.sim.recalibration import ColourCorrection, Recalibration
from gaploop.sim.scene import CAMERA_NAME

type Features = dict[PipelineFeatureType, dict[str, PolicyFeature]]


class _Step:
    """What the steps share: their fields are their options, and names and shapes stay."""

    def get_config(self) -> dict[str, Any]:
        """Options to save with the policy."""
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self)) if f.init}

    def transform_features(self, features: Features) -> Features:
        """Return `features`."""
        return features


@dataclass
class LightStep(_Step, ObservationProcessorStep):  # type: ignore[misc]
    """Takes exposure, colour cast and flicker out of a camera's pictures; before the tracker.

    What was tracked in the picture as it came is forgotten.

    Attributes:
        known: mechanism to values, as of `ColourCorrection` and `FlickerFilter`.
        camera: key of the picture is observation.images.<camera>.
    """

    known: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    camera: str = CAMERA_NAME
    _bands: list[FlickerFilter] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self._clear = ColourCorrection(self.known)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the observation with a clear picture, as float or uint8 as it was, batched or not.

        The picture is in any layout that `TrackerStep` takes, if it is there.
        """
        key = f"{OBS_IMAGES}.{self.camera}"
        if key not in observation:
            return observation
        given = torch.as_tensor(observation[key])
        is_first = given.shape[-3] == 3 and given.shape[-1] != 3
        view = given.movedim(-3, -1) if is_first else given
        if given.is_floating_point():
            view = (view * 255.0).round().clamp(0, 255).to(torch.uint8)
        views = view.reshape(-1, *view.shape[-3:]).cpu().numpy()
        lamp = self.known.get(FLICKER)
        while lamp and len(self._bands) < len(views):
            self._bands.append(FlickerFilter(lamp))
        each = zip(views, chain(self._bands, repeat(None)), strict=False)
        clears = np.stack([self._clear(picture, bands) for picture, bands in each])
        clear = torch.from_numpy(clears).reshape(view.shape).to(given.device)
        if given.is_floating_point():
            clear = clear.to(given.dtype) / 255.0
        rest = {k: v for k, v in observation.items() if k != OBS_ENV_STATE}
        return {**rest, key: clear.movedim(-1, -3) if is_first else clear}

    def reset(self) -> None:
        """Forget the scenes of the takes before."""
        for bands in self._bands:
            bands.reset()


@dataclass
class RecalibrateStep(_Step, ObservationProcessorStep):  # type: ignore[misc]
    """Puts the tracked scene and the joint readings right; stands behind the tracker.

    Attributes:
        known: mechanism to values, as of `Recalibration`.
        task: task whose target the tracker looks for.
    """

    known: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    task: str = "pick_place"
    robot: str = SO101.name

    def __post_init__(self) -> None:
        self._made = Recalibration(self.known, CELL_ARMS[self.robot], self.task)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the observation with what is tracked and read put right, batched or not."""
        changed = dict(observation)
        if OBS_ENV_STATE in observation:
            tracked = torch.as_tensor(observation[OBS_ENV_STATE])
            rows = tracked.reshape(-1, tracked.shape[-1]).cpu().numpy()
            right = np.stack(
                [self._made.scene(np.asarray(row, dtype=np.float64)) for row in rows]
            ).reshape(tracked.shape)
            changed[OBS_ENV_STATE] = torch.as_tensor(right).to(tracked)
        if OBS_STATE in observation and self._made.zero.any():
            read = torch.as_tensor(observation[OBS_STATE])
            changed[OBS_STATE] = read - torch.as_tensor(self._made.zero).to(read)
        return changed


@dataclass
class ReadingGoalStep(_Step, PolicyActionProcessorStep):  # type: ignore[misc]
    """Says goals as the joints read them; stands at the end.

    Attributes:
        known: as of `RecalibrateStep`.
    """

    known: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    robot: str = SO101.name

    def __post_init__(self) -> None:
        self._zero = torch.as_tensor(Recalibration(self.known, CELL_ARMS[self.robot]).zero)

    def action(self, action: torch.Tensor) -> torch.Tensor:
        """Return goals with each joint's zero added, shape (…, n_joints)."""
        return action + self._zero.to(action)

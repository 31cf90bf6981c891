"""One row of a take's frames, with its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gaploop.core.errors import DeviceError
from gaploop.core.types import FloatArray, Image


@dataclass(frozen=True)
class FrameRow:
    """One row of `frames.arrows`; joints in the robot's LeRobot units.

    Attributes:
        t_s: time since the take began [s].
        state: `observation.state`, shape (n_joints,).
        action: what was requested, shape (n_joints,).
        sent: what was sent after the safety filter, shape (n_joints,).
        environment_state: tracked scene, shape (m,).
        intervention: a person had taken over.
        safety: `SafetyReason` bits.
        camera_age_s: camera to age of its picture [s].
        pictures: camera to its picture, one for every camera of the header.
    """

    t_s: float
    state: FloatArray
    action: FloatArray
    sent: FloatArray
    environment_state: FloatArray = field(default_factory=lambda: np.empty(0))
    intervention: bool = False
    safety: int = 0
    camera_age_s: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, Image] = field(default_factory=dict)

    def check(self, cameras: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise DeviceError unless every camera's picture is there and of the size it should be.

        Args:
            cameras: camera to {"width", "height"}.
        """
        for camera, spec in cameras.items():
            if camera not in self.pictures:
                raise DeviceError(f"No picture of camera '{camera}' at {self.t_s:.3f} s. Check it.")
            picture, shape = self.pictures[camera], (spec["height"], spec["width"], 3)
            if picture.shape != shape or picture.dtype != np.uint8:
                raise DeviceError(
                    f"Camera '{camera}' gave {picture.dtype} {picture.shape}, not uint8 {shape}. "
                    "Set its size and restart."
                )

    def values(self, ages_s: Sequence[float]) -> FloatArray:
        """Return the row's numbers as in `frames.arrows`, given the ages of its pictures [s]."""
        return np.concatenate(
            (
                [self.t_s],
                self.state,
                self.action,
                self.sent,
                self.environment_state,
                [float(self.intervention), float(self.safety), *ages_s],
            )
        )

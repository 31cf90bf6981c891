"""One turn of the control loop: read, look, ask, filter, send."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gaploop.core.clock import Clock
from gaploop.core.protocols import CameraSource, Follower, Leader, SceneTracker
from gaploop.core.types import CameraFrame, FloatArray, FollowerState, Observation, Tick
from gaploop.teleop.safety import SafetyFilter

type OnFrame = Callable[[Observation], None]


class Scene:
    """Takes the pictures of one policy frame and tracks the scene in the first camera's."""

    def __init__(self, cameras: Sequence[CameraSource], tracker: SceneTracker | None) -> None:
        self._cameras, self._tracker = cameras, tracker
        self._tracked_at_s = math.nan
        self._tracked: FloatArray | None = None
        if tracker is not None:
            tracker.reset()

    def look(self) -> tuple[dict[str, CameraFrame], FloatArray | None]:
        """Return the newest pictures, and the tracked scene where something tracks."""
        pictures = {camera.name: camera.frame() for camera in self._cameras}
        if self._tracker is not None and pictures:
            newest = pictures[self._cameras[0].name]
            if newest.t_capture_s != self._tracked_at_s:  # a picture is tracked once
                self._tracked = self._tracker.observe(newest.image, newest.t_capture_s)
                self._tracked_at_s = newest.t_capture_s
        return pictures, self._tracked


@dataclass(frozen=True, slots=True)
class TurnTiming:
    """When a turn is taken."""

    index: int
    t_s: float
    period_s: float
    lateness_s: float
    overruns: int
    is_frame: bool


@dataclass(frozen=True)
class Turn:
    """What one turn of the loop needs."""

    follower: Follower
    leader: Leader
    safety: SafetyFilter
    clock: Clock
    scene: Scene
    on_frame: tuple[OnFrame, ...]

    def take(self, at: TurnTiming) -> Tick:
        """Take the turn and return what happened in it."""
        state = self.follower.read()
        pictures: Mapping[str, CameraFrame] = {}
        tracked: FloatArray | None = None
        if at.is_frame:
            pictures, tracked = self.scene.look()
            if self.on_frame:
                self._hand_on(state, pictures, tracked)
        sample = self.leader.read(self.clock.now_s())
        command = self.safety.filter(sample, state, self.clock.now_s())
        self.follower.send(command)
        return Tick(
            at.index,
            at.t_s,
            at.period_s,
            at.lateness_s,
            sample,
            command,
            state,
            pictures,
            tracked,
            at.is_frame,
            self.clock.now_s() - sample.t_s,
            at.overruns,
        )

    def _hand_on(
        self,
        state: FollowerState,
        pictures: Mapping[str, CameraFrame],
        tracked: FloatArray | None,
    ) -> None:
        observation = Observation(
            self.follower.to_units(state.position_rad),
            tracked,
            {name: picture.image for name, picture in pictures.items()},
        )
        for callback in self.on_frame:
            callback(observation)

"""A scene file as a rig: its demonstrator or a policy drives it, its takes are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from gaploop.collect.rig import Rig
from gaploop.core.messages import CameraFrame, FloatArray, FollowerState, LeaderSample, SafeCommand
from gaploop.core.protocols import Leader
from gaploop.core.station import SIM_STATION
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.sim.cell import CellClock, SimCell
from gaploop.sim.scene_file import Demonstrator, SceneWorld, load_scene
from gaploop.sim.world import GymWorld, WorldSpec
from gaploop.teleop.loop import Rates
from gaploop.teleop.safety import make_safety


class WorldArm:
    """A scene's arm; implements core's `Follower`. Hinges are in degrees, slides in metres."""

    name, units, robot_type = "follower", "deg", "scene_sim"

    def __init__(self, world: GymWorld, scene: SceneWorld) -> None:
        self._world, self._scene = world, scene
        self.joint_names = scene.joint_names
        self.joint_limits_rad: FloatArray = scene.limits
        self.now_s = 0.0
        self._goal = scene.home

    def reset(self, seed: int) -> None:
        """Set up the scene."""
        self.seen, _ = self._world.reset(seed=seed)
        self.now_s, self._goal = 0.0, self._scene.home

    def advance(self, duration_s: float) -> None:
        """Let frames pass [s]."""
        for _ in range(round(duration_s / self._scene.period_s)):
            self.seen, *_ = self._world.step(self._scene.action_of(self._goal))
            self.now_s += self._scene.period_s

    def read(self) -> FollowerState:
        """Return what the servos report: angles, and the share of their force."""
        nothing = np.full(len(self.joint_names), np.nan)
        angles = self.from_units(np.asarray(self.seen["agent_pos"], dtype=np.float64))
        return FollowerState(
            t_s=self.now_s,
            position_rad=angles,
            velocity_rad_s=self._scene.velocities(),
            current_a=nothing,
            load_pct=nothing,
            temperature_c=nothing,
            voltage_v=nothing,
            status=np.zeros(len(nothing), dtype=np.int64),
        )

    def send(self, command: SafeCommand) -> None:
        """Set the servos' goals."""
        self._goal = command.sent_rad.copy()

    def torque_on(self) -> None:
        """Do nothing: the simulated arm always holds its goal."""

    def torque_off(self) -> None:
        """Do nothing: a simulated arm can't hurt anybody."""

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert joints [rad, m] to [°, m]."""
        return np.asarray(self._scene.action_of(q_rad), dtype=np.float64)

    def from_units(self, values: FloatArray) -> FloatArray:
        """Convert joints [°, m] to [rad, m]."""
        return self._scene.joints_of(values)

    def close(self) -> None:
        """Free the renderers."""
        self._world.close()


class WorldCamera:
    """A camera of a scene; implements core's `CameraSource`."""

    def __init__(self, name: str, arm: WorldArm) -> None:
        self.name, self._arm = name, arm

    def frame(self) -> CameraFrame:
        """Return the newest picture."""
        return CameraFrame(self._arm.seen["pixels"][self.name], self._arm.now_s)


class WaypointLeader:
    """A scene's demonstrator as core's `Leader`; made after the scene was reset."""

    def __init__(self, scene: SceneWorld, arm: WorldArm) -> None:
        self._scene, self._arm = scene, arm
        self.reset()

    def reset(self) -> None:
        """Begin at the first waypoint."""
        self._driver = Demonstrator(self._scene)

    def read(self, t_s: float) -> LeaderSample:
        """Return what is asked for at loop time `t_s` [s]."""
        goal = self._arm.from_units(np.asarray(self._driver(None), dtype=np.float64))
        return LeaderSample(t_s, goal)

    def done(self) -> bool:
        """Say whether the last waypoint has been reached."""
        return self._driver.done


@dataclass(frozen=True, kw_only=True)
class WorldRig(Rig):
    """A scene file as a rig; `cell` is what its clock advances."""

    cell: WorldArm
    scene: SceneWorld

    def scripted_leader(self, seed: int = 0) -> Leader:
        """Return the scene's demonstrator; make it after `reset`."""
        del seed  # it has no habits
        return WaypointLeader(self.scene, self.cell)


def world_rig(
    path: Path,
    *,
    gaps: Mapping[str, float],
    gap_seed: int = 0,
    conditions: Mapping[str, Any],
    fps: float | None = None,
) -> WorldRig:
    """Build a scene file as a rig, on simulated, unthrottled time.

    Raises:
        UnusableInputError: the file doesn't fit its model, or gaps that the scene can't have.
    """
    scene = load_scene(path)
    scene = scene if fps is None else replace(scene, fps=fps)
    spec = WorldSpec(gaps, gap_seed, conditions)
    world = GymWorld(lambda: SceneWorld(scene), spec)
    inner = cast(SceneWorld, world.unwrapped)
    arm = WorldArm(world, inner)
    arm.reset(0)
    station = replace(SIM_STATION, name=path.stem, workspace=None)
    rates = Rates(scene.fps, scene.fps)
    safety = make_safety(station, arm, rates.period_s)

    def reset(seed: int) -> None:
        arm.reset(seed)
        safety.clear()  # setting up the scene anew is the operator's word

    return WorldRig(
        follower=arm,
        cameras=tuple(WorldCamera(camera.name, arm) for camera in scene.cameras),
        tracker=None,
        clock=CellClock(cast(SimCell, arm)),
        safety=safety,
        control_hz=rates.control_hz,
        fps=rates.fps,
        domain=Domain.SIM if spec.is_nominal else Domain.SIM_TARGET,
        station=station,
        reset=reset,
        judge=lambda: Outcome.SUCCESS if inner.success() else Outcome.FAILURE,
        truth=lambda: {"gap_seed": gap_seed, "injected": [asdict(gap) for gap in world.injected]},
        close=arm.close,
        conditions=dict(conditions),
        calibration="nominal",
        cell=arm,
        scene=inner,
    )

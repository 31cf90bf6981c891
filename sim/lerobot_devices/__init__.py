"""The embedded cell as LeRobot devices.

Use them from LeRobot's own commands:

    lerobot-record --robot.discover_packages_path=gaploop.sim.lerobot_devices \
        --robot.type=so101_sim --teleop.type=scripted ...

Time: each `send_action` advances the simulation by one 1/fps step, however long the caller
takes, so that recordings do not depend on the load of the machine. The scripted teleoperator
sets up the next scene when it has rested after an attempt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from lerobot.robots.robot import Robot
from lerobot.teleoperators.teleoperator import Teleoperator
from lerobot.utils.errors import DeviceAlreadyConnectedError, DeviceNotConnectedError
from numpy.typing import NDArray

from gaploop.core.arm import CellArm
from gaploop.core.errors import DeviceError, unknown_choice
from gaploop.sim.arms import arm_named, from_degrees, to_degrees
from gaploop.sim.cell import SimCell
from gaploop.sim.expert import ScriptedLeader, Sees
from gaploop.sim.gaps import add_mechanisms
from gaploop.sim.lerobot_devices.config import ScriptedConfig, So101SimConfig
from gaploop.sim.randomise import known_and_drawn
from gaploop.sim.relay import RelayLeader, scripted
from gaploop.sim.scene import CAMERA_NAME

__all__ = ["Scripted", "ScriptedConfig", "So101Sim", "So101SimConfig"]


_CELLS: dict[str, tuple[SimCell, int]] = {}
"""Cells of this process by name, with their present scene: a scripted teleoperator finds its
robot's cell here."""


def _keys(arm: CellArm) -> tuple[str, ...]:
    return tuple(f"{name}.pos" for name in arm.joint_names)


def _named(q_rad: NDArray[np.float64], arm: CellArm) -> dict[str, Any]:
    """Return joint angles [rad] as LeRobot has them: by key, in its units."""
    return {k: float(v) for k, v in zip(_keys(arm), to_degrees(q_rad, arm), strict=True)}


class _CellDevice:
    """What LeRobot asks of every device and a simulated arm has no need of."""

    arm: CellArm

    @property
    def action_features(self) -> dict[str, Any]:
        """Joint positions."""
        return dict.fromkeys(_keys(self.arm), float)

    @property
    def is_calibrated(self) -> bool:
        """A simulated arm, or a script, needs no calibration."""
        return True

    def calibrate(self) -> None:
        """Nothing to calibrate."""

    def configure(self) -> None:
        """Nothing to configure."""


class So101Sim(_CellDevice, Robot):  # type: ignore[misc]
    """LeRobot robot backed by an embedded cell."""

    config_class = So101SimConfig
    name = "so101_sim"

    def __init__(self, config: So101SimConfig) -> None:
        super().__init__(config)
        self.config = config
        # LeRobot counts these to size its image writers.
        self.cameras: dict[str, Any] = {CAMERA_NAME: None}
        self.arm = arm_named(config.model, "--robot.model")
        self._cell: SimCell | None = None

    @property
    def cell(self) -> SimCell:
        """The cell, privileged, for scoring; raises DeviceNotConnectedError before connect()."""
        if self._cell is None:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        return self._cell

    @property
    def observation_features(self) -> dict[str, Any]:
        """Joint positions and the overhead picture."""
        size = self.config.image_size
        return {**dict.fromkeys(_keys(self.arm), float), CAMERA_NAME: (size, size, 3)}

    @property
    def is_connected(self) -> bool:
        """Whether the cell has been built."""
        return self._cell is not None

    def connect(self, calibrate: bool = True) -> None:
        """Build the cell; `calibrate` has no meaning here."""
        del calibrate
        if self._cell is not None:
            raise DeviceAlreadyConnectedError(f"{self} is already connected.")
        config = self.config
        if config.gaps_module:
            add_mechanisms(config.gaps_module)
        known, drawn = known_and_drawn(config.twin, config.randomise, config.model, "--robot.model")
        self._cell = SimCell(
            config.task,
            gaps=config.gaps,
            gap_seed=config.gap_seed,
            conditions=config.conditions,
            image_size=config.image_size,
            camera_hz=config.camera_hz,
            camera_latency_s=config.camera_latency_s,
            robot=config.model,
            parameters=known,
            randomise=drawn,
        )
        self._cell.reset(config.seed)
        _CELLS[config.cell] = (self._cell, config.seed)

    def get_observation(self) -> dict[str, Any]:
        """Joint positions in LeRobot's units and the newest overhead picture."""
        read = _named(self.cell.read().position_rad, self.arm)
        return {**read, CAMERA_NAME: self.cell.frame().image.copy()}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        """Set the goals and let one 1/fps step of simulated time pass."""
        keys = _keys(self.arm)
        if any(key not in action for key in keys):
            given = ", ".join(map(str, action)) or "(empty)"
            raise unknown_choice("action", given, keys, "send_action")
        goal = from_degrees([float(action[key]) for key in keys], self.arm)
        low, high = self.cell.joint_limits_rad.T
        sent = np.clip(goal, low, high)
        self.cell.command(sent)
        self.cell.advance(1.0 / self.config.fps)
        return _named(sent, self.arm)

    def disconnect(self) -> None:
        """Take the cell down; safe to call twice."""
        if self._cell is not None:
            name = self.config.cell
            if name in _CELLS and _CELLS[name][0] is self._cell:
                del _CELLS[name]
            self._cell.close()
            self._cell = None


class Scripted(_CellDevice, Teleoperator):  # type: ignore[misc]
    """LeRobot teleoperator that solves the task of an embedded cell by itself."""

    config_class = ScriptedConfig
    name = "scripted"

    def __init__(self, config: ScriptedConfig) -> None:
        super().__init__(config)
        self.config = config
        if config.sees not in ("scene", "tracker"):
            raise unknown_choice("sight", config.sees, ("scene", "tracker"), "--teleop.sees")
        self.arm = arm_named(config.model, "--teleop.model")
        self._connected = False
        self._leader: ScriptedLeader | RelayLeader | None = None
        self._done_s: float | None = None

    @property
    def feedback_features(self) -> dict[str, Any]:
        """It takes no feedback."""
        return {}

    @property
    def is_connected(self) -> bool:
        """Whether connect() has been called."""
        return self._connected

    def connect(self, calibrate: bool = True) -> None:
        """Get ready; the cell is looked up at the first action.

        LeRobot connects teleoperators before robots. `calibrate` has no meaning here.
        """
        del calibrate
        self._connected = True

    def get_action(self) -> dict[str, Any]:
        """Next joint command in LeRobot's units; sets up a new scene after an attempt."""
        if not self._connected:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        config = self.config
        if config.cell not in _CELLS:
            offered = ", ".join(sorted(_CELLS)) or "none"
            raise DeviceError(
                f"No embedded cell '{config.cell}' in this process (offered: {offered}). "
                "Connect --robot.type=so101_sim first; the scripted teleoperator sees only that."
            )
        cell, scene = _CELLS[config.cell]
        if self._leader is None:
            sees: Sees = "tracker" if config.sees == "tracker" else "scene"
            self._leader = scripted(cell, config.seed, sees=sees, retries=config.retries)
        leader = self._leader
        if not leader.done():
            self._done_s = None
        elif self._done_s is None:
            self._done_s = cell.now_s
        if self._done_s is not None and cell.now_s - self._done_s >= config.pause_s:
            cell.reset(scene + 1)
            _CELLS[config.cell] = (cell, scene + 1)
            leader.reset()
        return _named(leader.read(cell.now_s).q_rad, self.arm)

    def send_feedback(self, feedback: dict[str, Any]) -> None:
        """Ignore feedback."""
        del feedback

    def disconnect(self) -> None:
        """Let go of the cell; safe to call twice."""
        self._connected = False
        self._leader = None

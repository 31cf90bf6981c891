"""The embedded cell as devices: a follower, a camera and clocks of simulated time."""

from __future__ import annotations

from gaploop.core.clock import MonotonicClock
from gaploop.core.messages import CameraFrame, FloatArray, FollowerState, SafeCommand
from gaploop.sim.arms import from_degrees, to_degrees
from gaploop.sim.cell import SimCell
from gaploop.sim.scene import CAMERA_NAME


class CellFollower:
    """The cell's arm; implements core's `Follower`. The gripper's unit is 0 to 100, not degrees."""

    name = "follower"
    units = "deg"

    def __init__(self, cell: SimCell) -> None:
        self._cell = cell
        self.robot_type = cell.arm.robot_type
        self.joint_names: tuple[str, ...] = tuple(cell.joint_names)
        self.joint_limits_rad: FloatArray = cell.joint_limits_rad

    def enter(self, cell: SimCell) -> None:
        """Be the same arm in another cell, for a leader that outlives cells."""
        self._cell = cell

    def read(self) -> FollowerState:
        """Return what the servos report."""
        return self._cell.read()

    def send(self, command: SafeCommand) -> None:
        """Set the servos' goal positions."""
        self._cell.command(command.sent_rad)

    def torque_on(self) -> None:
        """Do nothing: the simulated arm always holds its goal."""

    def torque_off(self) -> None:
        """Do nothing: a simulated arm can't hurt anybody."""

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert joint angles [rad], gripper last, to LeRobot's degrees and gripper percent."""
        return to_degrees(q_rad, self._cell.arm)

    def from_units(self, values: FloatArray) -> FloatArray:
        """Convert LeRobot's degrees and gripper percent to joint angles [rad]."""
        return from_degrees(values, self._cell.arm)

    def close(self) -> None:
        """Free the cell's renderer; a simulated arm has no torque to take off."""
        self._cell.close()


class CellCamera:
    """The cell's overhead camera; implements core's `CameraSource`."""

    name = CAMERA_NAME

    def __init__(self, cell: SimCell) -> None:
        self._cell = cell

    def frame(self) -> CameraFrame:
        """Return the newest picture."""
        return self._cell.frame()


class CellClock:
    """Simulated time: waiting lets the cell's physics advance, as fast as the machine can."""

    def __init__(self, cell: SimCell) -> None:
        self._cell = cell

    def now_s(self) -> float:
        """Return simulated time since the cell's reset [s]."""
        return self._cell.now_s

    def sleep_until(self, deadline_s: float) -> None:
        """Advance the cell to `deadline_s` [s]."""
        remaining_s = deadline_s - self._cell.now_s
        if remaining_s > 0:
            self._cell.advance(remaining_s)


class PacedCellClock:
    """Simulated time that passes as fast as real time: for a cell that a person drives.

    It is advanced while a loop waits; its time then is this clock's.
    """

    def __init__(self, cell: SimCell) -> None:
        self._cell, self._real = cell, MonotonicClock()
        self.restart()

    def enter(self, cell: SimCell) -> None:
        """Go on with another cell's time."""
        self._cell = cell
        self.restart()

    def restart(self) -> None:
        """Begin anew: the cell has been reset."""
        self._start_s = self._real.now_s() - self._cell.now_s

    def now_s(self) -> float:
        """Return real time since the cell's time was 0 [s]."""
        return self._real.now_s() - self._start_s

    def sleep_until(self, deadline_s: float) -> None:
        """Advance the cell to now, then wait for `deadline_s` [s] of this clock."""
        behind_s = min(deadline_s, self.now_s()) - self._cell.now_s
        if behind_s > 0:
            self._cell.advance(behind_s)
        self._real.sleep_until(self._start_s + deadline_s)

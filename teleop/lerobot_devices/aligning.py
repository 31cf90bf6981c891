"""A leader arm that is brought to its follower's pose before somebody takes over with it.

Only while it is being brought there do its motors hold; a hand feels them and they yield slowly.
As LeRobot's `teleop_smooth_move_to`, but within the loop's turns: the follower goes on being
driven, and a leader that is held back ends the attempt to align instead of pulling harder.
"""

from __future__ import annotations

import numpy as np

from gaploop.core.errors import DeviceError
from gaploop.core.messages import FloatArray, LeaderSample, SafetyReason, Tick
from gaploop.teleop.lerobot_devices.servo_arm import ServoLeader, WrappedLeader
from gaploop.teleop.servos.registers import RAD_PER_TICK
from gaploop.teleop.servos.torque import torque_on

SPEED_RAD_S = 1.0
"""How fast it is brought there: no faster than a hand would [rad/s]."""
THERE_RAD = 0.06
"""A joint this near is in place: servos without a load stop within a few degrees [rad]."""
LONGEST_TURN_S = 0.05
"""A turn that was late doesn't move it further than this [s] would."""


class AligningLeader(WrappedLeader):
    """A limp leader arm with motors. A `Leader` that can be moved; a `TakeSink`, to let go."""

    def __init__(self, leader: ServoLeader) -> None:
        super().__init__(leader)
        self._goal: FloatArray | None = None
        self._last_s = 0.0
        self._here_rad: FloatArray | None = None
        self._is_barred = False  # the loop goes on for a moment after a trip

    def reset(self) -> None:
        """Be limp: whoever leads is ready."""
        self.let_go()
        self._is_barred = False
        self._leader.reset()

    def read(self, t_s: float) -> LeaderSample:
        """Return where the leader asks the follower to be."""
        sample = self._leader.read(t_s)
        self._here_rad = sample.q_rad
        return sample

    def align(self, q_rad: FloatArray, t_s: float) -> bool:
        """Move on towards the follower's `q_rad` [rad], shape (n_joints,); say if it is there.

        Raises:
            DeviceError: a motor doesn't take torque; all are limp.
        """
        leader = self._leader
        if self._is_barred:
            return True
        here = self.read(t_s).q_rad if self._here_rad is None else self._here_rad
        if self._goal is None:
            self._goal, self._last_s = leader.ticks_at(here), t_s
            if any(leader.group.each(leader.buses, torque_on)):
                self.let_go()
                raise DeviceError(
                    f"The leader arm on {', '.join(leader.ports)} doesn't hold. Check its power."
                )
        step = SPEED_RAD_S * min(t_s - self._last_s, LONGEST_TURN_S) / RAD_PER_TICK
        self._last_s = t_s
        self._goal = self._goal + np.clip(leader.ticks_at(q_rad) - self._goal, -step, step)
        leader.send_ticks(self._goal)
        return bool(np.abs(here - q_rad).max() <= THERE_RAD)

    def let_go(self) -> None:
        """Be limp; DeviceError where a motor didn't confirm that its torque is off."""
        if self._goal is not None:
            self._goal = None
            self._leader.torque_off()

    def tick(self, tick: Tick) -> None:
        """Let go where the follower has tripped: nobody asks for turns any more."""
        if tick.command.reasons & SafetyReason.TRIPPED:
            self._is_barred = True
            self.let_go()

    def close(self) -> None:
        """Take torque off and disconnect; safe to call twice. DeviceError as of `let_go`."""
        self._goal = None
        self._leader.close()


def aligning(leader: object) -> AligningLeader | None:
    """Return a leader arm that can be moved, or None where a leader has no motors of its own."""
    return AligningLeader(leader) if isinstance(leader, ServoLeader) else None

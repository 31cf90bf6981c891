"""What a leader arm that does more than lead passes on from the arm as it is."""

from __future__ import annotations

from gaploop.teleop.lerobot_devices.servo_arm import ServoLeader


class WrappedLeader:
    """A leader around a servo arm; sub-classes say what it does beside leading.

    Args:
        leader: the arm, connected.
    """

    def __init__(self, leader: ServoLeader) -> None:
        self._leader = leader

    @property
    def servo_joints(self) -> tuple[str, ...]:
        """The joints whose servos report in `LeaderSample.state`, in its order."""
        return self._leader.servo_joints

    @property
    def ports(self) -> tuple[str, ...]:
        """Paths of the serial ports."""
        return self._leader.ports

    def done(self) -> bool:
        """A person never has nothing more to ask for."""
        return self._leader.done()

    def faults(self) -> dict[str, dict[str, int]]:
        """Return what went wrong so far on its buses, as `ServoLeader.faults`."""
        return self._leader.faults()

    def fault_counts(self) -> dict[str, int]:
        """Return what went wrong so far on its buses, kind to count."""
        return self._leader.fault_counts()

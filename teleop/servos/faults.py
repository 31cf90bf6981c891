"""What goes wrong on a bus, as counts: data, not log lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class ServoFaults:
    """Counts for one servo since its bus was opened.

    Attributes:
        silent: it was asked and didn't answer in time; counted once until it answers again.
        corrupt: a packet with its id had a wrong checksum.
        wrong_size: it answered with another number of bytes than asked for.
        refused: it answered that it won't.
        repeated: it answered twice.
        late: its answer came after its time and counted for nothing.
        reboots: it was found without the torque or the settings that it had.
    """

    silent: int = 0
    corrupt: int = 0
    wrong_size: int = 0
    refused: int = 0
    repeated: int = 0
    late: int = 0
    reboots: int = 0

    @property
    def total(self) -> int:
        """All of them together."""
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(slots=True)
class BusErrorCounts:
    """Counts for one bus since it was opened.

    Attributes:
        servos: by id.
        garbage_bytes: bytes that belong to no whole packet.
        corrupt: packets with a wrong checksum whose id belongs to no servo of the bus.
        unasked: whole packets that answer nothing that was asked.
        stale_bytes: bytes that came after their time and were thrown away.
        timeouts: requests that ended without all their answers, the same ones missing once.
        io_errors: the port failed: unplugged, or it took nothing; once until something answers.
    """

    servos: dict[int, ServoFaults] = field(default_factory=dict)
    garbage_bytes: int = 0
    corrupt: int = 0
    unasked: int = 0
    stale_bytes: int = 0
    timeouts: int = 0
    io_errors: int = 0

    def of(self, servo_id: int) -> ServoFaults:
        """Return the counts of one servo."""
        return self.servos.setdefault(servo_id, ServoFaults())

    def count_corrupt(self, ids: Iterable[int]) -> None:
        """Count packets with a wrong checksum under the ids they claim."""
        for servo_id in ids:
            if servo_id in self.servos:
                self.servos[servo_id].corrupt += 1
            else:
                self.corrupt += 1

    @property
    def total(self) -> int:
        """All of them together; bytes count one each."""
        own = self.garbage_bytes + self.corrupt + self.unasked + self.stale_bytes
        return (
            own
            + self.timeouts
            + self.io_errors
            + sum(servo.total for servo in self.servos.values())
        )

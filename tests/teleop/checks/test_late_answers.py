"""A servo that answers late is never told to hold what another of its registers does."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

from gaploop.core.clock import ManualClock
from gaploop.teleop.checks import servos
from gaploop.teleop.emulator.arms import so101
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.servos.calibration import MotorRange
from gaploop.teleop.servos.registers import Protocol


class LatePort:
    """A serial port as pyserial's, on the arm's own clock."""

    def __init__(self, arm: EmulatedBus, clock: ManualClock) -> None:
        self.timeout = 0.0
        self._arm, self._clock = arm, clock
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._here = b""

    @property
    def in_waiting(self) -> int:
        while self._under_way and self._under_way[0][0] <= self._clock.now_s():
            self._here += self._under_way.popleft()[1]
        return len(self._here)

    def reset_input_buffer(self) -> None:
        self.read(self.in_waiting)

    def write(self, packet: bytes) -> None:
        self._arm.move_on()
        self._under_way.append(self._arm.hear(packet, 1_000_000))

    def read(self, size: int) -> bytes:
        if size and not self.in_waiting:
            over_s = self._clock.now_s() + self.timeout
            due_s = self._under_way[0][0] if self._under_way else over_s
            self._clock.sleep_until(min(due_s, over_s))
        size = min(self.in_waiting, size)
        data, self._here = self._here[:size], self._here[size:]
        return data


@pytest.mark.parametrize("latency_s", [0.0, 0.06, 0.1, 0.4])
def test_no_register_is_read_as_another(latency_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With answers 60 ms late the doctor found ranges upside down, and had the arm calibrated."""
    clock = ManualClock()
    plan = so101().calibrated()
    time_ = SimpleNamespace(
        monotonic=clock.now_s,
        perf_counter=clock.now_s,
        sleep=lambda wait_s: clock.sleep_until(clock.now_s() + wait_s),
    )
    monkeypatch.setattr(servos, "time", time_)
    slow = Fault("slow", latency_s=latency_s)
    arm = EmulatedBus(plan=plan, hand="still", serve=False, clock=clock, faults=[slow])
    bus = servos._Bus(LatePort(arm, clock), Protocol.FEETECH)
    assert bus.ids() == ([1, 2, 3, 4, 5, 6] if latency_s < servos.QUIET_S else [], [])
    patient = servos._Bus(LatePort(arm, clock), Protocol.FEETECH, servos.LATE_S)
    assert patient.ids() == ([1, 2, 3, 4, 5, 6], [])
    wanted = {one["id"]: one for one in plan.calibration().values()}
    for servo_id, one in wanted.items():
        truth = MotorRange(one["homing_offset"], one["range_min"], one["range_max"])
        assert bus.calibration(servo_id) == (truth, 0)
        found = bus.servo(servo_id)
        assert found is not None
        assert (found.model, found.error, found.torque) == ("sts3215", "none", False)
    assert bus.seconds_per_turn(tuple(wanted)) >= latency_s
    arm.stop()

"""Answers that come late: nothing on a line tells what a packet answers, yet none is mistaken."""

from __future__ import annotations

from collections import deque

import pytest
from fake_servos import FakeServos
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gaploop.core.messages import NO_REPLY
from gaploop.teleop.servos import exchange
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import Answers, BusLine, Request, Script
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.servos.registers import Protocol, ServoRegister
from gaploop.teleop.servos.torque import torque_off, torque_on

MODELS = {
    Protocol.FEETECH: dict.fromkeys((1, 2, 3), "sts3215"),
    Protocol.DYNAMIXEL: {1: "xl430-w250", 2: "xl330-m288", 3: "xl330-m288"},
}


class Wire(SerialPort):
    """A line that keeps the order of what servos say, and may keep it back; knows no time.

    Each entry of `plan` is one request's lot: whether its answer is lost on the way, and how many
    of the answers that are under way arrive while it is waited for.
    """

    def __init__(self, servos: FakeServos, plan: list[tuple[bool, int]]) -> None:
        super().__init__("fake")
        self.servos, self.plan = servos, plan
        self.under_way: deque[bytes] = deque()
        self.here = b""
        self.asked = 0
        self.heard = 0

    def discard(self) -> int:
        count, self.here = len(self.here), b""
        return count

    def read(self, most: int = 4096) -> bytes:
        del most
        data, self.here = self.here, b""
        return data

    def write(self, data: bytes) -> None:
        self.asked += 1
        for servo_id in self.servos.memory:
            self.servos.put(servo_id, "Present_Position", self.asked)
        answer = self.servos.reply(data)
        is_lost, arrive = self.plan.pop() if self.plan else (False, 1000)
        if answer and not is_lost:
            self.under_way.append(answer)
        while arrive and self.under_way:
            self.here += self.under_way.popleft()
            arrive -= 1


def drive[T](line: BusLine, script: Script[T]) -> T:
    """Run a script as `exchange.run` does, without waiting."""
    answers: Answers | None = None
    while True:
        try:
            request = next(script) if answers is None else script.send(answers)
        except StopIteration as stop:
            result: T = stop.value
            return result
        line.start(request)
        if request.ids and request.packet and isinstance(line.port, Wire) and line.port.here:
            line.receive()
        answers = line.end()


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not let what is owed lapse in the middle of a test."""
    monkeypatch.setattr(exchange, "LATE_S", 1e9)


def a_bus(protocol: Protocol, servos: FakeServos, plan: list[tuple[bool, int]]) -> ServoBus:
    models = MODELS[protocol]
    line = BusLine(Wire(servos, plan), protocol)
    return ServoBus(line, list(models), list(models.values()))


lots = st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=60)


@pytest.mark.parametrize("protocol", list(Protocol))
@settings(max_examples=150)
@given(plan=lots)
def test_what_is_taken_for_an_answer_is_one(
    protocol: Protocol, plan: list[tuple[bool, int]]
) -> None:
    """Answers 30 ms late were taken for the next request's: stale positions counted as fresh.

    Each request has a number that the servos report as their position.
    """
    with FakeServos(protocol, MODELS[protocol]) as servos:
        bus = a_bus(protocol, servos, plan)
        wire = bus.line.port
        assert isinstance(wire, Wire)
        # Servos that miss turn after turn are asked less often: 24 lots may take far more turns.
        turn = 0
        while wire.plan or turn < 40:
            assert turn < 1000
            before = wire.asked
            state = drive(bus.line, bus.read(float(turn)))
            for place, status in zip(state.position_ticks, state.status, strict=True):
                if not status & NO_REPLY:
                    assert before < place <= wire.asked
            turn += 1


@pytest.mark.parametrize("protocol", list(Protocol))
@given(plan=lots)
def test_torque_off_is_never_confirmed_by_what_was_true_before(
    protocol: Protocol, plan: list[tuple[bool, int]]
) -> None:
    """The answer to "is torque off?" from before torque came on must not confirm it later."""
    with FakeServos(protocol, MODELS[protocol]) as servos:
        bus = a_bus(protocol, servos, [])
        wire = bus.line.port
        assert isinstance(wire, Wire)
        wire.plan = plan
        for _ in range(4):
            drive(bus.line, bus.which_hold())
            left = drive(bus.line, torque_on(bus))
            for servo_id in set(servos.memory) - set(left):
                assert servos.get(servo_id, "Torque_Enable") == 1
            servos.dead = {2}  # it keeps its torque
            left = drive(bus.line, torque_off(bus))
            servos.dead = set()
            assert 2 in left
            for servo_id in set(servos.memory) - set(left):
                assert servos.get(servo_id, "Torque_Enable") == 0


@pytest.mark.parametrize("protocol", list(Protocol))
@settings(max_examples=150)
@example(plan=[(False, 0)] * 2, questions=[(False, 0), (False, 0), (False, 1)])
@example(  # the first answer is lost, so that each late one was taken for the one before
    plan=[(False, 0)] * 6 + [(True, 0)],
    questions=[(False, 0)] * 5 + [(False, 1), (False, 0), (False, 1)],
)
@given(plan=lots, questions=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=4))
def test_no_register_is_read_as_another(
    protocol: Protocol, plan: list[tuple[bool, int]], questions: list[tuple[bool, int]]
) -> None:
    """The answer for one gain was taken for the next one's: "another arm than this session's".

    A packet that was sent twice got two late answers, and only the first was known to be late.
    """
    with FakeServos(protocol, MODELS[protocol]) as servos:
        bus = a_bus(protocol, servos, plan)
        for servo_id, memory in servos.memory.items():
            memory[:] = bytes((7 * address + 31 * servo_id) % 256 for address in range(256))
        for of_all, number in questions:
            register = ServoRegister(20 + number, 1)
            if of_all:
                found = drive(bus.line, bus.collect(register, bus.ids))
            else:
                found = drive(bus.line, plainly_read(bus, register))
            for servo_id, data in found.items():
                assert data[0] == servos.memory[servo_id][register.address]


def plainly_read(bus: ServoBus, register: ServoRegister) -> Script[dict[int, bytes]]:
    """Read from servo 1 as who looks for servos does, who asks the same again."""
    packet = bus.line.wire.read(1, register.address, register.size)
    answers = yield Request(packet, (1,), register.size)
    return {servo_id: reply.data for servo_id, reply in answers.items()}


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_line_that_lost_something_is_soon_as_quick_as_before(protocol: Protocol) -> None:
    """Longer questions are for the time in which a late answer may come."""
    with FakeServos(protocol, MODELS[protocol]) as servos:
        bus = a_bus(protocol, servos, [])
        wire = bus.line.port
        assert isinstance(wire, Wire)
        wire.plan = [(True, 9)] * 2  # it is asked twice in a turn
        drive(bus.line, bus.read(0.0))
        assert bus.line.owed
        bus.line.owed = [one._replace(sent_s=-1e10) for one in bus.line.owed]
        for turn in range(3):
            state = drive(bus.line, bus.read(turn + 1.0))
        assert not state.status.any()
        assert not bus.line.owed
        assert bus.line.whole is not None or bus.silent == ()

"""Requests on several buses at once, their replies collected by one poll() loop.

What is done on a bus is a script: a generator that yields a `Request`, gets back who answered,
and may yield another. `run` drives the scripts of several buses at the same time, so that a
leader and a follower cost one waiting time, not two. Every request has a deadline, so nothing
that a bus does, or fails to do, can hang the caller.

An answer that misses its deadline may still come, in the time of another request. It says whose it
is and how long, but not what it answers. So it is remembered who still owes which answers, in
order; one like that counts for nothing, and whoever wants the same again meanwhile asks for
a few bytes more (`BusLine.more_bytes`), whose answer can't be mistaken for it. A late answer that
is taken for a new one makes a stale position a fresh one, and a torque that was off one that is.

What goes wrong is counted: data, not log lines.
"""

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.frames import Expected, Frame, FrameParser, Reply
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.servos.registers import Protocol

MIN_WAIT_S: Final = 0.006
"""Least time to wait beyond what the bytes take [s]: a USB adapter sends once a millisecond, and an
ordinary kernel may be late by a few."""
MAX_WAIT_S: Final = 0.040
"""Most, where answers were late before: an FTDI adapter without the low-latency flag keeps them for
16 ms, and a computer that is short of processors hears them later still [s]."""
SLOW_S: Final = 0.020
"""A line whose answers have to be waited for this long is slow [s]."""
LATE_S: Final = 0.25
"""An answer is told from a later request's for this long [s]; a servo that is silent for less trips
the arm."""
_PATIENCE: Final = 6.0
"""How many usual reply times are waited for."""
_ERROR_CODE: Final = 0x7F  # of a Dynamixel's error byte; the highest bit is the alert

type Answers = Mapping[int, Reply]
type Script[T] = Generator[Request, Answers, T]


@dataclass(frozen=True, slots=True)
class Request:
    """One packet and who should answer it.

    Attributes:
        ids: who answers, in this order; nobody where empty.
        skip: so many bytes of each answer's data were only asked for to tell it from others.
        fresh: the answer to the same packet sent earlier won't do.
        wait_s: how long to wait beyond what the bytes take [s]; as the bus needs where None.
        expected: what a bus that is well answers. Where just that comes, nothing is cut into
            frames: `BusLine.whole` has all that came, and there are no answers.
    """

    packet: bytes
    ids: tuple[int, ...] = ()
    size: int = 0
    wait_s: float | None = None
    expected: Expected | None = None
    skip: int = 0
    fresh: bool = False


class Owed(NamedTuple):
    """An answer of `size` data bytes that may still come, and to what, sent when [s]."""

    id: int
    size: int
    sent_s: float
    packet: bytes


@dataclass(slots=True)
class ServoFaults:
    """Counts for one servo since its bus was opened.

    Attributes:
        silent: it was asked and didn't answer in time; counted once until it answers again.
        corrupt: a packet with its id had a wrong checksum.
        wrong_size: it answered with another number of bytes than asked for.
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


@dataclass(slots=True)
class BusErrorCounts:
    """Counts for one bus since it was opened.

    Attributes:
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


class BusLine:
    """One bus: its open port, what comes in on it, and what went wrong."""

    def __init__(self, port: SerialPort, protocol: Protocol) -> None:
        self.port = port
        self.protocol = protocol
        self.faults = BusErrorCounts()
        self.reply_s = MIN_WAIT_S / _PATIENCE
        """Usual time between what the bytes take and the last answer [s]."""
        self.wire = dynamixel if protocol is Protocol.DYNAMIXEL else feetech
        """How requests and answers are written."""
        self.parser: FrameParser = self.wire.Parser()
        self.answers: dict[int, Reply] = {}
        self.whole: bytes | None = None
        """What came, where it is a request's `expected`: whole frames of all that were asked."""
        self.request = Request(b"")
        self.deadline_s = 0.0
        self.is_timed = True
        """Whether somebody waits for the answers: else when they are read says nothing."""
        self._sent_s = 0.0
        self._wire_s = 0.0
        self._counted_bytes = 0
        self._expected: Expected | None = None
        self._held = b""
        """What has come towards `_expected`."""
        self.owed: list[Owed] = []
        """Answers that may still come, as they were asked for. A line keeps the order."""
        self._failed = False
        self._missing: set[int] = set()
        """Servos that didn't answer when they were asked last."""

    @property
    def wait_s(self) -> float:
        """How long to wait for answers beyond what the bytes take [s]."""
        return min(max(_PATIENCE * self.reply_s, MIN_WAIT_S), MAX_WAIT_S)

    @property
    def is_slow(self) -> bool:
        """Say whether answers have come so late that asking again at once makes it worse."""
        return _PATIENCE * self.reply_s > SLOW_S

    @property
    def complete(self) -> bool:
        """Say whether all who were asked have answered."""
        return self.whole is not None or len(self.answers) >= len(self.request.ids)

    def start(self, request: Request) -> None:
        """Send a request. A port that fails counts as nobody answering."""
        self.request, self.answers, self.whole = request, {}, None
        self._expected, self._held = request.expected, b""
        expected = self.parser.expect(request.size, len(request.ids)) if request.ids else 0
        if self.owed:
            now_s = time.monotonic()
            self.owed = [one for one in self.owed if now_s - one.sent_s < LATE_S]
        if not request.packet:
            self.deadline_s = 0.0
            return
        try:
            if request.ids and (stale := self.port.discard()):
                self.faults.stale_bytes += stale
                self._wait_longer()
            self.port.write(request.packet)
        except OSError:
            self._fail()
            return
        self._sent_s = time.monotonic()
        self._wire_s = (len(request.packet) + expected) * self.port.byte_s
        wait_s = self.wait_s if request.wait_s is None else request.wait_s
        self.deadline_s = self._sent_s + self._wire_s + wait_s

    def more_bytes(self, ids: Sequence[int], size: int, most: int) -> int | None:
        """Return by how many bytes a question must be longer for its answers to be known.

        0 where nothing is owed; None where any length, to `most` more, might be mistaken.
        """
        now_s = time.monotonic()
        taken = {o.size for o in self.owed if o.id in ids and now_s - o.sent_s < LATE_S}
        return next((more for more in range(most + 1) if size + more not in taken), None)

    def receive(self) -> None:
        """Take in what has come; a port that fails ends the request."""
        try:
            data = self.port.read()
        except OSError:
            data = b""
        if not data:  # readable without bytes: unplugged, or the other end has closed
            self._fail()
            return
        expected = self._expected
        if expected is not None:
            data = self._held + data
            if len(data) < expected.length:
                self._held = data  # until all of it is there, or the deadline has come
                return
            self._expected, self._held = None, b""
            if len(data) == expected.length and expected.is_all_of(data):
                self.whole = data
        if self.whole is None:
            self._take(self.parser.feed(data))
        if self.is_timed and self.complete:  # so that waiting fits the adapter
            took_s = max(time.monotonic() - self._sent_s - self._wire_s, 0.0)
            self.reply_s += 0.05 * (took_s - self.reply_s)

    def _fail(self) -> None:
        """The port failed: that ends the request, and counts once until an answer comes."""
        self.faults.io_errors += not self._failed
        self._failed = True
        self.deadline_s = 0.0

    def end(self) -> Answers:
        """Close the request: save what can be saved, count what is missing."""
        if self.whole is not None and not self.owed:  # as nearly always: nothing is left over
            self._missing.difference_update(self.request.ids)
            self._failed = False
            return self.answers
        if self._held:
            self._take(self.parser.feed(self._held))
            self._held = b""
        if self.parser.waiting_bytes:
            self._take(self.parser.flush())
        faults, request = self.faults, self.request
        if self.complete:
            self._missing.difference_update(request.ids)
            self._failed = self._failed and not request.ids
        else:
            missing = {i for i in request.ids if i not in self.answers}
            faults.timeouts += not missing <= self._missing
            for servo_id in missing - self._missing:
                faults.of(servo_id).silent += 1
            self._missing = (self._missing - set(request.ids)) | missing
            if request.packet:
                self._owe(missing)
        for servo_id in self.parser.corrupt_ids:  # counted under the ids that they claim
            (faults.servos.get(servo_id) or faults).corrupt += 1
        self.parser.corrupt_ids.clear()
        faults.garbage_bytes += self.parser.rejected_bytes - self._counted_bytes
        self._counted_bytes = self.parser.rejected_bytes
        return self.answers

    def _take(self, frames: Sequence[Frame]) -> None:
        ids, size, answers = self.request.ids, self.request.size, self.answers
        for frame in frames:
            reply = self.wire.reply_of(frame)
            if reply is None:
                continue  # an adapter that echoes what is sent
            if self.owed and self._is_late(reply):
                continue
            known = reply.id in ids and reply.id not in answers
            if known and len(reply.data) == size and not reply.error:
                answers[reply.id] = self._wanted(reply)
            else:
                refused = self.protocol is Protocol.DYNAMIXEL and bool(reply.error & _ERROR_CODE)
                if reply.id not in ids:
                    self.faults.unasked += 1
                elif reply.id in answers:
                    self.faults.of(reply.id).repeated += 1
                elif len(reply.data) == size or (refused and not reply.data):
                    self.faults.of(reply.id).refused += refused
                    answers[reply.id] = self._wanted(reply)
                else:
                    self.faults.of(reply.id).wrong_size += 1

    def _owe(self, ids: Iterable[int]) -> None:
        request = self.request
        self.owed += [Owed(i, request.size, self._sent_s, request.packet) for i in ids]

    def _is_late(self, reply: Reply) -> bool:
        """Say whether a reply answers an earlier request, as far as can be told, and only that."""
        request, size = self.request, len(reply.data)
        alike = [one for one in self.owed if (one.id, one.size) == (reply.id, size)]
        if not alike:
            if size == request.size and reply.id in request.ids:
                self.owed = [one for one in self.owed if one.id != reply.id]  # none before it comes
            return False
        self.owed.remove(alike[0])
        # It may answer a later one: of those before, any may be lost.
        same = all(one.packet == request.packet for one in alike)
        if same and not request.fresh and reply.id not in self.answers:
            self._owe((reply.id,))  # it will do, and what answers this very packet is to come
            return False
        self.faults.of(reply.id).late += 1
        self._wait_longer()
        return True

    def _wanted(self, reply: Reply) -> Reply:
        """Return a reply without what was only asked for to know it by."""
        skip = self.request.skip
        return Reply(reply.id, reply.error, reply.data[skip:]) if skip else reply

    def _wait_longer(self) -> None:
        """Something came too late: an adapter that always is would else never be heard."""
        self.reply_s = min(1.5 * self.reply_s, MAX_WAIT_S / _PATIENCE)


def send_ahead(scripts: Sequence[tuple[BusLine, Script[Any]]]) -> None:
    """Send each script's first request and don't wait: `run(scripts, is_sent=True)` goes on.

    Until then nothing else may be asked on these buses.
    """
    for line, script in scripts:
        line.start(next(script))


def run(scripts: Sequence[tuple[BusLine, Script[Any]]], *, is_sent: bool = False) -> list[Any]:
    """Run one script on each bus, all at once, and return their results in order.

    Where `is_sent`, `send_ahead` has sent their first requests.
    """
    results: list[Any] = [None] * len(scripts)
    active: dict[int, int] = {}

    def advance(index: int, answers: Answers | None) -> None:
        """Let a script go on until it asks something that is answered, or returns."""
        line, script = scripts[index]
        while True:
            try:
                request = next(script) if answers is None else script.send(answers)
            except StopIteration as stop:
                results[index] = stop.value
                active.pop(line.port.fileno(), None)
                return
            line.start(request)
            if request.ids and line.deadline_s > 0:
                active[line.port.fileno()] = index
                return
            answers = line.end()

    for index, (line, _) in enumerate(scripts):
        if not is_sent:
            advance(index, None)
            continue
        if line.port.wait(0.0):
            line.is_timed = False
            line.receive()
            line.is_timed = True
        if line.complete or line.deadline_s <= 0 or line.port.fileno() < 0:
            advance(index, line.end())
        else:
            active[line.port.fileno()] = index
    while active:
        lines = [scripts[index][0] for index in active.values()]
        first_s = min(line.deadline_s for line in lines)
        # Nobody goes on before all have answered, so only one bus is waited for: what comes on
        # the others meanwhile doesn't wake the thread, which costs more than reading it.
        has_come = lines[-1].port.wait(first_s - time.monotonic())
        for line in lines:
            came = has_come if line is lines[-1] else line.port.wait(0.0)
            if came or line.port.fileno() < 0:  # closed by who takes torque off: that ends it
                line.receive()
        now_s = time.monotonic()
        for fd, index in tuple(active.items()):
            line = scripts[index][0]
            if line.complete or now_s >= line.deadline_s:
                active.pop(fd)
                advance(index, line.end())
    return results

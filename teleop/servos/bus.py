"""The servos of one bus: their whole state in one transaction, their goals in another.

On a Dynamixel bus a servo answers a sync read only after it has heard the one before it, so a
servo that vanished would silence all behind it. Those are asked again at once, and from the next
turn on silent servos are asked last. A servo that is silent for long is asked now and then only.

A servo that comes back from silence may have lost power: it is then limp and has forgotten its
settings. It is asked for its torque before it is trusted again.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gaploop.core.messages import NO_REPLY, REBOOTED
from gaploop.teleop.servos import dynamixel
from gaploop.teleop.servos import registers as reg
from gaploop.teleop.servos.exchange import (
    Answers,
    BusErrorCounts,
    BusLine,
    Request,
    Script,
    ServoFaults,
)
from gaploop.teleop.servos.frames import Reply
from gaploop.teleop.servos.registers import BusState, Decoder, encode_goals

PATIENT_TURNS: Final = 20
"""Turns of silence after which a servo is asked only every `PROBE_TURNS` turns."""
PROBE_TURNS: Final = 10
SET_UP_TRIES: Final = 3
"""Before the loop runs there is time to ask again."""
_PLACES: Final = slice(0, 7, 6)
"""Rows of `BusState.values` that outlast a servo's silence: position and angle."""
MORE_BYTES: Final = {reg.Protocol.DYNAMIXEL: 22, reg.Protocol.FEETECH: 40}
"""A question may be begun so many bytes earlier, so that its answer can be told from a late one:
from the state's span that leads to Goal Velocity (104) and to Max Torque Limit (16); what lies
between is defined on every model, but for five bytes of Feetech's that read as 0."""
WATCH_S: Final = 0.1
"""So often those that hold are asked whether they still do [s]."""
_TORQUE: Final = reg.ServoRegister(64, 1)
_WATCHED: Final = {
    reg.Protocol.FEETECH: (reg.ServoRegister(33, 23),),
    reg.Protocol.DYNAMIXEL: (
        _TORQUE,
        _TORQUE,
        reg.ServoRegister(11, 1),
        _TORQUE,
        reg.ServoRegister(100, 2),
    ),
}
"""Spans asked for in turn: mode, torque, limits; and on a Feetech servo, whose torque comes back
with the next goal, what else it forgets."""
_AS_WAS: Final = ("Operating_Mode", "Acceleration", "Goal_Velocity", "Lock")
_NO_LESS: Final = ("Torque_Limit", "Goal_PWM")
"""What a servo that holds keeps as it was, and what it may cut, but not by half."""
LEAP_TICKS: Final = 100.0
LEAP_TICKS_S: Final = 10_000.0
"""A joint that went further since its last answer leapt: 9° and 15 rad/s, faster than a hand or an
STS3215 turns one [ticks, ticks/s]."""
LEAP_C: Final = 5.0
"""A motor that got hotter by more since then, too [°C]."""
ALERT_TURNS: Final = 20
"""A known hardware error is read again every so many turns."""

_FORGOTTEN: Final = {
    reg.Protocol.DYNAMIXEL: (
        "Velocity_I_Gain",
        "Velocity_P_Gain",
        "Position_D_Gain",
        "Position_I_Gain",
        "Position_P_Gain",
        "Goal_PWM",
        "Goal_Current",
        "Profile_Acceleration",
        "Profile_Velocity",
        "Goal_Position",
    ),
    reg.Protocol.FEETECH: ("Acceleration", "Goal_Position", "Goal_Velocity", "Torque_Limit"),
}
"""RAM registers that LeRobot's `configure` or a user's set-up may have changed."""


class ServoBus:
    """One bus and the servos that are wanted on it, in the order of every array."""

    def __init__(self, line: BusLine, ids: Sequence[int], models: Sequence[str]) -> None:
        self.line = line
        self.protocol = line.protocol
        self.ids = tuple(ids)
        self.models = tuple(models)
        self.decoder = Decoder(line.protocol, models, line.wire.AROUND)
        self.holding: set[int] = set()
        """Servos whose torque should be on."""
        self.released: set[int] = set()
        """Servos that were let go of alone: they get no goals until torque is turned on."""
        self.rebooted: set[int] = set()
        """Servos that came back limp and haven't been set up again."""
        self.revive = False
        """Set a servo that came back limp up again at once: right for a leader, not a follower."""
        self.settings: dict[int, list[tuple[reg.ServoRegister, bytes]]] = {}
        """What each servo forgets when it loses power; `remember` reads it."""
        self.torque_limits: dict[int, tuple[reg.ServoRegister, bytes]] = {}
        """What some servos, such as a gripper's, are set to each time before they take torque."""
        self.heard_s = [-math.inf] * len(self.ids)
        """When each servo answered last, on the caller's clock [s]."""
        lacking = np.full((7, len(self.ids)), np.nan)
        self._last = BusState(lacking, np.zeros(len(self.ids), dtype=np.int64))
        """What was read last: a silent servo's place stays in it."""
        self._silent: dict[int, int] = {}
        self._unchecked: set[int] = set()
        self._errors: dict[int, int] = {}
        self._turn = 0
        self._span = reg.STATE_SPAN[line.protocol]
        self._watched_s = -math.inf
        self._watches = 0
        self._as_held: dict[int, dict[str, int]] = {}
        """What each servo was set to when it took torque."""
        self.forget_faults()

    def forget_faults(self) -> None:
        """Begin to count anew: finding out who is there waits for some who aren't."""
        self.line.faults = BusErrorCounts({servo_id: ServoFaults() for servo_id in self.ids})

    @property
    def silent(self) -> tuple[int, ...]:
        """Servos that didn't answer when they were asked last."""
        return tuple(i for i in self.ids if i in self._silent)

    @property
    def is_well(self) -> bool:
        """Say whether every servo has answered, and none is in trouble."""
        unwell = self._silent or self._errors or self._unchecked or self.rebooted
        return not (unwell or self.line.owed)

    # Requests

    def register(self, name: str) -> reg.ServoRegister:
        """Return where a register lies."""
        return reg.TABLES[self.protocol][name]

    def ask(self, register: reg.ServoRegister, ids: Iterable[int]) -> Request:
        """Return the request for the same register of several servos.

        Its answers can't be mistaken for late ones. Where they could, nobody is asked.
        """
        wanted, more = tuple(ids), 0
        if self.line.owed:
            most = min(register.address, MORE_BYTES[self.protocol])
            found = self.line.more_bytes(wanted, register.size, most)
            if found is None:
                return Request(b"", wanted, register.size)
            more = found
        address, size = register.address - more, register.size + more
        packet = self.line.wire.sync_read(address, size, wanted)
        return Request(packet, wanted, size, skip=more, fresh=True)

    def store(self, servo_id: int, register: reg.ServoRegister, data: bytes) -> Request:
        """Return the request that writes one servo's register; it answers."""
        return Request(self.line.wire.write(servo_id, register.address, data), (servo_id,))

    def store_all(self, register: reg.ServoRegister, id_data: bytes) -> Request:
        """Return the request that writes a register of several servos; nobody answers."""
        return Request(self.line.wire.sync_write(register.address, register.size, id_data))

    def set_goals(self, ticks: Iterable[float]) -> None:
        """Send a goal position for each servo [ticks] in one packet that nobody answers.

        But for released ones: a goal would switch a Feetech servo's torque on again.
        """
        ids: Sequence[int] = self.ids
        if self.released:
            pairs = [p for p in zip(ids, ticks, strict=True) if p[0] not in self.released]
            ids, ticks = [servo_id for servo_id, _ in pairs], [tick for _, tick in pairs]
        register = self.register("Goal_Position")
        self.line.start(self.store_all(register, encode_goals(self.protocol, ids, ticks)))

    # Reading the state

    def read(self, now_s: float) -> Script[BusState]:
        """Read all servos' state at `now_s` [s]; `status` holds NO_REPLY where none came."""
        self._turn += 1
        order = self.ids
        if self._silent:
            heard = [i for i in self.ids if i not in self._silent]
            probe = self._turn % PROBE_TURNS == 0
            lost = [i for i, turns in self._silent.items() if turns < PATIENT_TURNS or probe]
            # One lost servo may hide another that is back, so each comes first in its turn.
            first = self._turn // PROBE_TURNS % len(lost) if lost else 0
            order = (*heard, *lost[first:], *lost[:first])
        answers: dict[int, Reply] = {}
        if order:
            request = self.ask(self._span, order)
            if self.is_well:
                expected = self.line.wire.expected(self._span.size, order)
                request = replace(request, expected=expected)
            answers = dict((yield request))
            whole = self.line.whole
            state = None if whole is None else self.decoder.decode(whole)
            if whole is not None and state is not None:  # as nearly always
                if not self._doubtful(state, now_s):
                    if self.holding and now_s - self._watched_s >= WATCH_S:
                        yield from self._watch(now_s)
                    self.heard_s = [now_s] * len(self.ids)
                    self._last = state
                    for servo_id in self.rebooted:
                        state.status[self.ids.index(servo_id)] |= REBOOTED
                    return state
                step, (before, after) = len(whole) // len(order), self.line.wire.AROUND
                for k, servo_id in enumerate(order):
                    data = whole[k * step + before : (k + 1) * step - after]
                    answers[servo_id] = Reply(servo_id, 0, data)
            again = [i for i in order if i not in answers and i not in self._silent]
            if not answers and self.line.is_slow:
                again = []  # they were waited for long enough; more questions make it worse
            if again and answers.keys() != set(order):
                # The first one missing may be the one that silences the others: ask it last.
                answers |= yield self.ask(self._span, again[1:] + again[:1])
            if doubt := self._doubtful(self._decoded(answers), now_s):
                answers = {i: reply for i, reply in answers.items() if i not in doubt}
                answers |= yield self.ask(self._span, doubt)
        if self._silent or len(answers) != len(self.ids):
            for servo_id in self.ids:
                if servo_id in answers and answers[servo_id].data:
                    if self._silent.pop(servo_id, 0) and servo_id in self.holding:
                        self._unchecked.add(servo_id)
                elif servo_id in order or servo_id in self._silent:
                    self._silent[servo_id] = self._silent.get(servo_id, 0) + 1
        if self.protocol is reg.Protocol.DYNAMIXEL:
            alert = [i for i, reply in answers.items() if reply.error & dynamixel.ALERT]
            if alert or self._errors:  # ask those that raise an alert for its cause
                known = {i: self._errors[i] for i in alert if i in self._errors}
                known |= {i: bits for i, bits in self._errors.items() if i in self._silent}
                if len(known) < len(alert) or (alert and self._turn % ALERT_TURNS == 0):
                    causes = yield self.ask(self.register("Hardware_Error_Status"), alert)
                    known |= {i: reply.data[0] for i, reply in causes.items() if reply.data}
                self._errors = known
                for servo_id in alert:  # one whose cause couldn't be read is an error all the same
                    self._errors[servo_id] = self._errors.get(servo_id, 0) or dynamixel.ALERT
        if self._unchecked:  # those that were silent may have let go
            torque = yield self.ask(self.register("Torque_Enable"), sorted(self._unchecked))
            for servo_id, reply in torque.items():
                if not reply.data:
                    continue
                self._unchecked.discard(servo_id)
                if not reply.data[0] and servo_id in self.holding:
                    yield from self._lost_hold(servo_id)
        if self.holding and now_s - self._watched_s >= WATCH_S:
            yield from self._watch(now_s)
        return self._state(answers, now_s)

    def _doubtful(self, state: BusState, now_s: float) -> list[int]:
        """Return servos that report what they hardly can: a leap, sudden heat, or a new error.

        Of garbled answers on a Feetech bus one in 256 has a right checksum, and would stop an arm.
        Those servos are asked again; what they then say is believed.
        """
        if self.protocol is not reg.Protocol.FEETECH:
            return []
        before, found = self._last, list[int]()
        places = zip(state.values[0].tolist(), before.values[0].tolist(), strict=True)
        heats = zip(state.values[4].tolist(), before.values[4].tolist(), strict=True)
        bits = zip(state.status.tolist(), before.status.tolist(), strict=True)
        each = zip(self.ids, self.heard_s, places, heats, bits, strict=True)
        for servo_id, heard_s, (at, was_at), (hot, was_hot), (error, was_error) in each:
            far = abs(at - was_at)  # NaN where one isn't known
            if far > reg.TICKS_PER_TURN / 2 and 0 <= at < reg.TICKS_PER_TURN:
                far = reg.TICKS_PER_TURN - far  # across the encoder's end
            leaps = far > LEAP_TICKS + LEAP_TICKS_S * abs(now_s - heard_s)
            if leaps or abs(hot - was_hot) > LEAP_C or error & ~was_error:
                found.append(servo_id)
        return found

    def read_places(self, now_s: float) -> Script[Sequence[int] | None]:
        """Read where the servos are [ticks] at `now_s` [s], and nothing else.

        None where not all of them answer, or one is known to be unwell: `read` deals with that.
        """
        if not self.is_well:
            return None
        register = self.register("Present_Position")
        expected = self.line.wire.expected(register.size, self.ids)
        yield replace(self.ask(register, self.ids), expected=expected)
        if self.line.whole is None:
            return None
        self.heard_s = [now_s] * len(self.ids)
        return self.decoder.places(self.line.whole)

    def _lost_hold(self, servo_id: int) -> Script[None]:
        """Take note of a servo that should hold and doesn't."""
        if servo_id not in self.rebooted:
            self.line.faults.of(servo_id).reboots += 1
            self.rebooted.add(servo_id)
        if self.revive:  # write what it forgot, and turn its torque on
            torque = (self.register("Torque_Enable"), b"\x01")
            for register, data in (*self.settings.get(servo_id, []), torque):
                if servo_id not in (yield self.store(servo_id, register, data)):
                    return
            self.rebooted.discard(servo_id)

    def _watch(self, now_s: float) -> Script[None]:
        """Ask servos that should hold whether they do, with the settings that they had.

        One that reboots quickly enough misses no question, and is limp all the same.
        """
        self._watched_s = now_s
        spans = _WATCHED[self.protocol]
        span = spans[self._watches % len(spans)]
        self._watches += 1
        let_go = yield from self._not_holding(span, self.ids)
        if let_go:  # asked twice: an answer that was garbled mustn't let go of the arm
            let_go = yield from self._not_holding(span, let_go)
        for servo_id in let_go:
            yield from self._lost_hold(servo_id)

    def _not_holding(self, span: reg.ServoRegister, ids: Iterable[int]) -> Script[list[int]]:
        """Return which of `ids` should hold, and don't, or with other settings than they had."""
        let_go = list[int]()
        for servo_id, found in (yield from self._settings_in(span, ids)).items():
            was = {} if self.revive else self._as_held.get(servo_id, {})
            still_holds = found.get("Torque_Enable", 1) == 1 and all(
                found[name] == was[name] if name in _AS_WAS else 2 * found[name] >= was[name]
                for name in (*_AS_WAS, *_NO_LESS)
                if name in found and name in was
            )
            if not still_holds:
                let_go.append(servo_id)
        return let_go

    def _settings_in(
        self, span: reg.ServoRegister, ids: Iterable[int]
    ) -> Script[dict[int, dict[str, int]]]:
        asked = [i for i in ids if i in self.holding and i not in self._silent]
        answers = (yield self.ask(span, asked)) if asked else {}
        names = [
            (name, one)
            for name, one in reg.TABLES[self.protocol].items()
            if span.address <= one.address and one.end <= span.end
        ]
        return {
            servo_id: {name: one.value_in(reply.data, span.address) for name, one in names}
            for servo_id, reply in answers.items()
            if reply.data
        }

    def note_holding(self, ids: Iterable[int]) -> Script[None]:
        """Take note that these servos hold from now on, and with which settings."""
        self.holding, self._as_held = set(ids), {}
        for span in dict.fromkeys(_WATCHED[self.protocol]):
            for servo_id, found in (yield from self._settings_in(span, self.ids)).items():
                self._as_held.setdefault(servo_id, {}).update(found)

    def _decoded(self, answers: Answers) -> BusState:
        """Return what servos answered; nothing but NaN and no error of those that didn't."""
        replies = [answers.get(i) for i in self.ids]
        nothing, (before, after) = bytes(self._span.size), map(bytes, self.line.wire.AROUND)
        parts = (reply.data if reply and reply.data else nothing for reply in replies)
        state = self.decoder.decode(b"".join(before + part + after for part in parts))
        if self.protocol is reg.Protocol.FEETECH:
            for k, reply in enumerate(replies):
                if reply and reply.error:
                    state.status[k] |= reply.error & reg.FEETECH_STATUS_BITS
        state.values[:, [not (reply and reply.data) for reply in replies]] = np.nan
        return state

    def _state(self, answers: Answers, now_s: float) -> BusState:
        state = self._decoded(answers)
        for servo_id, bits in self._errors.items():
            state.status[self.ids.index(servo_id)] |= bits
        for servo_id in self.rebooted:
            state.status[self.ids.index(servo_id)] |= REBOOTED
        missing = np.array([not ((reply := answers.get(i)) and reply.data) for i in self.ids])
        pairs = zip(missing, self.heard_s, strict=True)
        self.heard_s = [before_s if lacks else now_s for lacks, before_s in pairs]
        places = np.where(missing, self._last.values[_PLACES], state.values[_PLACES])
        state.values[_PLACES] = places
        self._last = state
        state.status[missing] |= NO_REPLY
        return state

    # Set-up

    def collect(self, register: reg.ServoRegister, ids: Iterable[int]) -> Script[dict[int, bytes]]:
        """Read a register of several servos, asking again who doesn't answer at first."""
        found: dict[int, bytes] = {}
        wanted = tuple(ids)
        for _ in range(SET_UP_TRIES):
            answers = yield self.ask(register, [i for i in wanted if i not in found])
            found |= {i: reply.data for i, reply in answers.items() if reply.data}
            if len(found) == len(wanted):
                break
        return found

    def probe(self) -> Script[None]:
        """Find out what a step of a Feetech servo's speed is worth."""
        if self.protocol is reg.Protocol.FEETECH:
            phase = yield from self.collect(self.register("Phase"), self.ids)
            fine, fast = reg.FEETECH_PHASE_FINE_SPEED, reg.FEETECH_FAST_TICKS_S
            bits = [phase[i][0] if i in phase else fine for i in self.ids]
            steps = [reg.FEETECH_SLOW_TICKS_S if one & fine else fast for one in bits]
            self.decoder.set_speed_steps(steps)

    def which_hold(self) -> Script[set[int]]:
        """Return the servos whose torque is on."""
        found = yield from self.collect(self.register("Torque_Enable"), self.ids)
        return {i for i, data in found.items() if data[0]}

    def remember(self) -> Script[None]:
        """Read what a servo forgets when it loses power, so that it can be written again."""
        for name in _FORGOTTEN[self.protocol]:
            register = self.register(name)
            wanted = [
                i
                for i, model in zip(self.ids, self.models, strict=True)
                if name != "Goal_Current" or reg.MODELS[model].has_current
            ]
            found = yield from self.collect(register, wanted)
            for servo_id, data in found.items():
                self.settings.setdefault(servo_id, []).append((register, data))

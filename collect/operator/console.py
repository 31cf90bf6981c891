"""Ties a session to its operator: one thread records, another one hears keys and shows.

The thread that records waits here for the operator's word; none of what the one with the window
calls (`command`, `choose`, `seen`) waits for a device or a disk. A take is sealed as soon as it
ends, before anybody has said how it went: what the operator says are label events, so that it can
be said later, otherwise, or be taken back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect.journal import JournalWriter
from gaploop.collect.operator import machine
from gaploop.collect.operator.keys import DIGITS, Command, KeyMap, Twice
from gaploop.collect.operator.machine import SessionStage, SessionState, StageTiming
from gaploop.collect.operator.view import SHOWN_TAKES, Hint, Loop, Quotas, ScreenContent, TakeSeen
from gaploop.collect.rig import Rig
from gaploop.collect.rollout import Attempts, RolloutDriver
from gaploop.collect.take import FAULTS_IN_A_ROW, PATIENCE_S, Operator, TakeResult, run_take
from gaploop.core import journal_format, labels
from gaploop.core.errors import DeviceError, TrippedError
from gaploop.core.labels import LabelEvent
from gaploop.core.messages import Tick
from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.vocabulary import Outcome

if TYPE_CHECKING:
    from gaploop.collect.devices import SessionDevices

log = logging.getLogger(__name__)

SOURCE: Final = "operator"


class SessionLabels:
    """What stands about each take, and by which author: written behind, so that nobody waits.

    Used by one thread at a time.
    """

    def __init__(self, journal: Path = Path(), author: str = "") -> None:
        self._path, self._author = journal / journal_format.LABELS, author or SOURCE
        self._entries: dict[str, dict[str, Any]] = {}
        """uid to label field to the value that stands."""
        self._detected = set[str]()
        """Of these a detector said the outcome: a person who says the same is written down."""
        self._writer = ThreadPoolExecutor(1, "labels")
        self._waiting: list[Future[None]] = []
        self.fault = ""
        """Why a label couldn't be written; it still stands in memory."""

    def add(
        self,
        uid: str,
        outcome: Outcome,
        dimensions: Mapping[str, float] = MappingProxyType({}),
        detected: Outcome | None = None,
    ) -> None:
        """Take note of a sealed take, and of what a detector said of it."""
        if detected is not None:
            outcome = detected
            self._detected.add(uid)
        nothing = {"outcome": outcome.value, "failure_mode": "", "discard_reason": ""}
        self._entries[uid] = {**nothing, "dimensions": dict(dimensions)}

    def now(self, uid: str) -> Mapping[str, Any]:
        """Return label field to the value that stands; empty for a take that isn't known."""
        return dict(self._entries.get(uid, {}))

    def outcome(self, uid: str, sealed: Outcome = Outcome.UNLABELLED) -> Outcome:
        """Return the outcome that stands; `sealed` for a take that isn't known."""
        return Outcome(self.now(uid).get("outcome", sealed))

    def say(self, uid: str, said: Mapping[str, Any]) -> None:
        """Write down label fields; only what differs from what stands."""
        now = self._entries[uid]
        for name, value in said.items():
            is_news = name == "outcome" and uid in self._detected
            if now.get(name) != value or is_news:
                self._detected -= {uid} if is_news else set()
                now[name] = value
                event = LabelEvent(uid, name, value, self._author, SOURCE)
                self._waiting.append(self._writer.submit(labels.append, self._path, event))

    def flush(self) -> None:
        """Wait until everything said so far is on disk."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            try:
                future.result()
            except OSError as error:
                self.fault = f"a label wasn't written ({error.strerror or error}): make room"
                log.warning("%s", self.fault)

    def close(self) -> None:
        """Write what waits; safe to call twice."""
        self._writer.shutdown()
        self.flush()


LOOK_S: Final = 0.05
"""Whoever waits for the operator looks this often whether the time is over [s]."""
NOTE_S: Final = 6.0
"""A note is shown this long [s]."""
CLEAR_AGAIN: Final = "Press it again: the arm holds where it is and comes slowly to the leader."
HOLD_AGAIN: Final = "Press it again: torque comes on, and the arm holds where it is."
"""Where a policy drives: it waits for the next attempt."""


@dataclass(frozen=True)
class Safety:
    """What the operator can do to the arm, whatever the session does."""

    estop: Callable[[], None] = lambda: None
    clear: Callable[[], None] = lambda: None
    loop: Callable[[], Loop] = Loop
    leave: Callable[[], object] = lambda: None
    """The operator's word to end; given again while the arm is lowered, it is let go of."""


class OperatorConsole:
    """A session's state, shared by the thread that records and the one that has the window.

    Args:
        book: what is said of takes; None where nothing is recorded.
        stage: what the session begins with.
        bell: is heard as a take begins or ends, one is to be begun, or the arm has tripped.
        hand_held: the leader's dead-man button, where it has one.
    """

    def __init__(
        self,
        timing: StageTiming,
        keys: KeyMap,
        book: SessionLabels | None = None,
        *,
        task: str = "",
        stage: SessionStage = SessionStage.READY,
        bell: Callable[[], object] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
        hand_held: Hint | None = None,
        attended: bool = True,
    ) -> None:
        self.keys = keys
        self.safety = Safety()
        self.driver: RolloutDriver | None = None
        """Drives in a rollout; the operator can take over from it."""
        self.on_label: Callable[[], object] = lambda: None
        """Called when a label was given; must not wait."""
        self.labelled = 0
        """How often a label was given."""
        self.records = book is not None
        self._book, self.task, self._bell = book or SessionLabels(), task, bell
        self._now_s, self._hand_held = now_s, hand_held
        self.attended = attended
        """Whether there is somebody to ask; else episodes stay unlabelled, nothing is waited
        for."""
        self._changed = threading.Condition(threading.RLock())
        self._state = SessionState(timing, stage, since_s=now_s())
        self._numbers: dict[str, int] = {}
        self.quotas, self.setup = Quotas(), ""
        """How far quotas are filled, and what is set up."""
        self._note, self._note_s = "", 0.0
        self._twice = Twice(now_s)
        self._ends = self._tripped = self._clears = False
        self._blocker = ""

    # -- the thread that has the window -----------------------------------------------------

    def hear(self, names: Iterable[str], stops: Collection[str] = ()) -> None:
        """Take keys that were pressed since, in order, the emergency stop first.

        Those in `stops` have stopped the arm already, as they were pressed. Where a stop is among
        them, nothing is cleared by the others: they were pressed before anybody
        could see that it was heeded.
        """
        pressed = list(names)
        is_stop = [n in stops or self.keys.command(n) is Command.ESTOP for n in pressed]
        if any(stop and n not in stops for n, stop in zip(pressed, is_stop, strict=True)):
            self.command(Command.ESTOP)
        elif any(is_stop):
            self._twice.forget()
        for name, stopped in zip(pressed, is_stop, strict=True):
            clears = self.keys.command(name) is Command.CLEAR
            if not stopped and not (clears and any(is_stop)):
                self.key(name)

    def key(self, name: str) -> bool:
        """Take a key by its name; return whether it meant anything."""
        if len(name) == 1 and name in DIGITS:
            return self.choose(DIGITS.index(name))
        command = self.keys.command(name)
        if command is None:
            return False
        self.command(command)
        return True

    def command(self, command: Command) -> None:
        """Take a command."""
        if command is Command.ESTOP:
            self.safety.estop()
            self._twice.forget()
        elif command is Command.CLEAR:
            with self._changed:
                if self._clears:
                    self._twice.press()
        elif command is Command.TAKE_OVER:
            if self.driver is not None:
                self.driver.switch()
        else:
            if command is Command.STOP and self.left:
                self.safety.leave()
            with self._changed:
                self._step(machine.press(self._state, command, self._now_s()))

    def choose(self, place: int) -> bool:
        """Give the answer at `place`, from 0; return whether anything is being asked."""
        with self._changed:
            asked = self._state.prompt is not None
            self._step(machine.choose(self._state, place, self._now_s()))
        return asked

    def seen(self) -> ScreenContent:
        """Return what to show, and let time pass."""
        loop = self.safety.loop()
        with self._changed:
            self._heed(loop)
            self._step(machine.tick(self._state, self._now_s()))
            return ScreenContent(
                self._now_s(),
                self._state,
                self.keys,
                self.task,
                self.quotas,
                tuple(
                    TakeSeen(number, uid, self._book.now(uid))
                    for uid, number in [*self._numbers.items()][-SHOWN_TAKES:]
                ),
                loop,
                self.setup,
                self._shown_note() or self._book.fault or loop.alignment,
                self._hand_held,
                None if self.driver is None else self.driver.driven(),
            )

    def _shown_note(self) -> str:
        if self._tripped and self._twice.awaits_confirmation:
            return CLEAR_AGAIN if self.driver is None else HOLD_AGAIN
        return self._note if self._now_s() - self._note_s < NOTE_S else ""

    def leave(self) -> None:
        """End the session now, as when the window was closed; a take that runs is interrupted."""
        with self._changed:
            if self._state.stage is not SessionStage.ENDED:
                self._set(replace(self._state, stage=SessionStage.ENDED, prompt=None))

    # -- the thread that records ------------------------------------------------------------

    @property
    def left(self) -> bool:
        """Whether the session is over."""
        return self._state.stage is SessionStage.ENDED

    def note(self, text: str) -> None:
        """Show a line for a while."""
        self._note, self._note_s = text, self._now_s()

    def await_set_up(self, setup: str, *, ask: bool = True) -> bool:
        """Show what to set up and, with `ask`, wait until it is; False where the session ends."""
        self.setup = setup
        if ask and self.attended:
            with self._changed:
                self._set(machine.set_up(self._state, self._now_s()))
                self._bell()
            self._wait(lambda s: s.stage is not SessionStage.SET_UP)
        return not self.left

    def await_start(self, blocker: Callable[[], str] = lambda: "") -> bool:
        """Wait until the operator wants the next take; False where the session ends.

        No take begins until `blocker` returns "" instead of why not, which is shown; what it raises
        ends the waiting.
        """

        starts = (SessionStage.STARTING, SessionStage.ENDED)
        self._wait(lambda s: s.stage in starts, lambda: self.block(blocker()))
        self._ends = False
        return not self.left

    def block(self, why: str) -> None:
        """Show why no take can begin now; "" where one can."""
        with self._changed:
            self._blocker = why
            self._heed(self.safety.loop())

    def begun(self, longest_s: float) -> None:
        """Say that the first turn of a take of at most `longest_s` [s] has been recorded."""
        with self._changed:
            self._set(machine.begun(self._state, self._now_s(), longest_s))
            self._bell()

    def over(self) -> str:
        """Say why the take is to end, "" where it isn't."""
        return "ended by the operator" if self._ends else ""

    def await_verdict(
        self,
        uid: str,
        outcome: Outcome,
        proposed: Outcome | None = None,
        purpose: Mapping[str, float] = MappingProxyType({}),
        detected: Outcome | None = None,
    ) -> Outcome:
        """Ask about a take that was sealed with `outcome`, and return the one that stands.

        Args:
            uid: "" where it couldn't be recorded, and nothing is asked.
            proposed: what is marked.
            purpose: the take's dimensions where it doesn't fail.
            detected: what a detector said, which stands until a person says something.
        """
        with self._changed:
            if uid:
                self._book.add(uid, outcome, purpose, detected)
                self._numbers[uid] = len(self._numbers) + 1
            self._bell()
            self._step(machine.ended(self._state, uid, self._now_s(), proposed, purpose))
            if not self.attended and self._state.prompt is not None:
                self._step(machine.skipped(self._state, self._now_s()))
        self._wait(lambda s: s.stage is not SessionStage.VERDICT)
        return self._book.outcome(uid, outcome)

    def outcome(self, uid: str, sealed: Outcome) -> Outcome:
        """Return the outcome of a take that stands now."""
        with self._changed:
            return self._book.outcome(uid, sealed)

    # -- both -------------------------------------------------------------------------------

    def _wait(
        self, is_so: Callable[[SessionState], bool], look: Callable[[], object] = lambda: None
    ) -> None:
        while not is_so(self._state) and not self.left:
            look()
            with self._changed:
                self._step(machine.tick(self._state, self._now_s()))
                if not is_so(self._state):
                    self._changed.wait(LOOK_S)

    def _heed(self, loop: Loop) -> None:
        """Let no take start while the arm has tripped."""
        tripped = bool(loop.trip or loop.lost)
        if tripped and not self._tripped:
            self._bell()
        if not tripped:
            self._twice.forget()
        if self._tripped and (loop.found or not tripped):
            self._note = ""  # it said what to do about that
        if tripped and self._twice.confirmed():
            self.safety.clear()
        self._tripped, self._clears = tripped, tripped and loop.clears
        why = (
            "No episode starts before this is cleared."
            if tripped and self.attended
            else self._blocker
        )
        if why != self._state.blocked:
            self._set(machine.block(self._state, why))

    def _step(self, step: machine.Step) -> None:
        before = self._state.stage
        state, said = step
        if state is not self._state:
            self._set(state)
        self._ends = self._ends or state.stage is SessionStage.ENDING
        if said:
            self._book.say(state.newest, said)
            self.labelled += 1
            self.on_label()
        if before is SessionStage.RESET and state.stage is SessionStage.READY:
            self._bell()

    def _set(self, state: SessionState) -> None:
        self._state = state
        self._changed.notify_all()


def listen_to(leader: Any, console: OperatorConsole) -> None:
    """Have the keys that a leader's own window needs for itself do here what they do anywhere."""
    leader.listen(lambda: console.command(Command.ESTOP), lambda: console.command(Command.CLEAR))


# -- takes, as the operator wants them -----------------------------------------------------------

PATIENCE: Final = 10_000
"""Attempts per episode that are asked for: a person decides when to give up."""


class ConsoleOperator(Operator):
    """Looks after a session through a console.

    A take is sealed as soon as it has ended, as `unlabelled`, so that nothing can be lost while
    the operator thinks; what he says is a label. In the embedded cell its judge's word is marked.

    Args:
        devices: count turns, and are told who writes the take.
        told: called before and after every take, such as to count quotas anew.
        on_result: called with every take that has a verdict.
    """

    attempts_per_take = PATIENCE

    def __init__(
        self,
        console: OperatorConsole,
        devices: SessionDevices | None = None,
        told: Callable[[], object] = lambda: None,
        on_result: Callable[[TakeResult], None] = lambda _result: None,
        attempts: Attempts | None = None,
    ) -> None:
        super().__init__(math.inf if console.attended else PATIENCE_S, attempts)
        self._console, self._devices = console, devices
        self._told, self._on_result = told, on_result
        self._trips = 0
        """How many demonstrations in a row ended in a safety trip."""
        if attempts is not None:
            attempts.on_note = lambda note, result: console.note(note.words(result))

    def begin(self, blocker: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Wait until the reset is over, nothing is in the way, and the operator wants the take.

        Raises DeviceError where nobody watches and the policy, or the arm, failed too often in a
        row.
        """
        self._told()
        if not self._console.attended and self._trips >= FAULTS_IN_A_ROW:
            raise TrippedError(
                f"{self._trips} episodes in a row ended in a safety trip, the last one because: "
                f"{getattr(self._devices, 'trip', '')} Nobody is there to see to it: do that, then "
                "run the same command again."
            )
        if not self._console.attended and not super().begin(blocker, stop):
            return False
        told_at = self._console.labelled

        def look() -> str:
            nonlocal told_at
            if told_at != self._console.labelled:  # quotas are counted anew, here: it may take time
                told_at = self._console.labelled
                self._told()
            return self._blocker(blocker)

        return self._console.await_start(look)

    def _blocker(self, blocker: Callable[[], str]) -> str:
        """Return why no take can begin now, and show it, also where nobody is asked."""
        self._console.block(why := super()._blocker(blocker))
        return why

    def call_person(
        self, why: str, is_done: Callable[[], bool], stop: Callable[[], bool]
    ) -> bool:  # fmt: skip
        """Show what is needed and wait until the operator has done it."""
        if not self._console.attended:
            return super().call_person(why, is_done, stop)
        return self._console.await_set_up(why) and self._console.await_start()

    def outcome(self, result: TakeResult) -> Outcome:
        """Return what the operator says of a take now."""
        return self._console.outcome(result.uid, result.outcome)

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run a take, called as `run_take`, and wait for the verdict."""
        writer: JournalWriter = given["writer"]
        self._console.task = writer.header.info.task  # a scene may draw it anew
        stop = given.pop("stop", lambda: False)
        run: Callable[..., TakeResult] = run_take
        longest_s = given["max_s"]
        if self._attempts is not None:  # longer where the policy drives slowly
            run, longest_s = self._attempts.run, longest_s / self._attempts.speed.scale
        begun = _Beginning(lambda: self._console.begun(longest_s))
        sinks: list[TakeSink] = [begun, *given.pop("sinks", ())]
        if self._devices is not None:
            self._devices.writer = writer
            if rig.running is None and self._devices.statistics is not None:
                sinks.append(self._devices.statistics)  # else they count the running loop
        try:
            result = run(
                rig,
                leader,
                sinks=sinks,
                stop=lambda: bool(stop()) or self._console.left,
                ended=self._console.over,
                judged=False,  # the judge proposes, the operator decides
                **given,
            )
        except DeviceError as error:
            self._cut_off(str(error))
            raise
        if result.outcome is Outcome.INTERRUPTED:
            self._cut_off(result.reason)
            return result
        tripped = result.outcome is Outcome.FAILURE
        self._trips = self._trips + 1 if tripped and self._attempts is None else 0
        detected = None if self._attempts is None else self._attempts.detected.get(result.uid)
        proposed = Outcome.FAILURE if tripped else detected or rig.judge()
        outcome = self._console.await_verdict(
            result.uid, result.outcome, proposed, writer.header.info.dimensions, detected
        )
        judged = replace(result, outcome=outcome)
        self._on_result(judged)
        self._told()
        return judged

    def _cut_off(self, why: str) -> None:
        self._console.note(f"The episode is interrupted: {why}")
        self._console.await_verdict("", Outcome.INTERRUPTED)


class _Beginning:
    def __init__(self, say: Callable[[], None]) -> None:
        self._say: Callable[[], None] | None = say

    def tick(self, _tick: Tick) -> None:
        if self._say is not None:
            say, self._say = self._say, None
            say()

"""A session with an operator: takes begin on a key, and a person says how they went.

A thread records what lacks and connects anew what was lost; whoever calls `AttendedSession.run`
shows and hears keys meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from gaploop.collect.campaign import CampaignProgress, Quota, counts, held
from gaploop.collect.devices import LoopMonitor, SessionDevices
from gaploop.collect.journal import JournalWriter
from gaploop.collect.operator.console import OperatorConsole
from gaploop.collect.operator.machine import Suggestion
from gaploop.collect.operator.session_labels import LabelSuggester, SessionLabels, known_takes
from gaploop.collect.operator.view import QuotaBar, Quotas, SetUp
from gaploop.collect.rig import Rig
from gaploop.collect.rollout import Attempts
from gaploop.collect.session import SessionEnd, SessionSpec, drive_on, record_takes
from gaploop.collect.setup_words import change_words, words
from gaploop.collect.take import PATIENCE_S, Attendant, TakeResult, run_take
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Leader, Suggest, TakeSink
from gaploop.core.station import Station
from gaploop.core.types import Tick
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.loop import run_loop
from gaploop.teleop.stopping import CleanupStep

PATIENCE: Final = 10_000
"""Attempts per take that are asked for: a person decides when to give up."""
REMEMBERED: Final = 5
"""Takes of earlier sessions that can be labelled anew."""


class Operator(Attendant):
    """Looks after a session through a console.

    A take is sealed as soon as it has ended, as `unlabelled`, so that nothing can be lost while
    the operator thinks; what he says is a label. In the embedded cell its judge's word is marked.

    Args:
        eyes: returns what watches the loop now.
        told: called before and after every take, such as to count quotas anew.
        on_result: called with every take that has a verdict.
        attempts: runs those of a policy that drives, and that the operator can take over from.
    """

    attempts_per_take = PATIENCE

    def __init__(
        self,
        console: OperatorConsole,
        eyes: Callable[[], LoopMonitor | None] = lambda: None,
        suggester: LabelSuggester | None = None,
        told: Callable[[], object] = lambda: None,
        on_result: Callable[[TakeResult], None] = lambda _result: None,
        patience_s: float = PATIENCE_S,
        attempts: Attempts | None = None,
    ) -> None:
        super().__init__(patience_s)
        self._console, self._eyes, self._suggester = console, eyes, suggester
        self._told, self._on_result, self._attempts = told, on_result, attempts
        if attempts is not None:
            attempts.on_note = lambda note, result: console.note(note.words(result))

    def begin(self, blocker: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Wait until the reset is over, nothing is in the way, and the operator wants the take.

        Raises DeviceError where nobody watches and the policy failed too often in a row.
        """
        attempts = self._attempts

        def in_the_way() -> str:
            return blocker() or ("" if attempts is None else attempts.blocker())

        if attempts is not None and not self._console.attended:
            attempts.require_policy()
        self._told()
        if not self._console.attended and not super().begin(in_the_way, stop):
            return False
        told_at = self._console.labelled

        def look() -> str:
            nonlocal told_at
            if told_at != self._console.labelled:  # quotas are counted anew, here: it may take time
                told_at = self._console.labelled
                self._told()
            return in_the_way()

        return self._console.await_start(look)

    def outcome(self, result: TakeResult) -> Outcome:
        """Return what the operator says of a take now."""
        return self._console.outcome(result.uid, result.outcome)

    def retracted(self, result: TakeResult) -> bool:
        """Whether the operator took back what he said of a take, and said nothing since."""
        return self._console.retracted(result.uid)

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run a take, called as `run_take`, and wait for the verdict."""
        writer: JournalWriter = given["writer"]
        eyes, stop = self._eyes(), given.pop("stop", lambda: False)
        run: Callable[..., TakeResult] = run_take
        longest_s = given["max_s"]
        if self._attempts is not None:  # longer where the policy drives slowly
            run, longest_s = self._attempts.run, longest_s / self._attempts.speed.scale
        begun = _Beginning(lambda: self._console.begun(longest_s))
        sinks: list[TakeSink] = [begun, *given.pop("sinks", ())]
        if eyes is not None:
            eyes.watch(writer)
            if rig.loop is run_loop:  # else they watch the running loop, between takes, too
                sinks.append(eyes)
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
        proposed = Outcome.FAILURE if tripped else rig.judge()
        if self._suggester is not None and proposed is not Outcome.SUCCESS:
            self._suggester.ask(result.uid, writer.folder, result.sealing)
        outcome = self._console.await_verdict(
            result.uid, result.outcome, Suggestion(proposed), writer.header.info.dimensions
        )
        judged = replace(result, outcome=outcome)
        self._on_result(judged)
        self._told()
        return judged

    def _cut_off(self, why: str) -> None:
        self._console.note(f"The take is interrupted: {why}")
        self._console.await_verdict("", Outcome.INTERRUPTED)


class _Beginning:
    def __init__(self, say: Callable[[], None]) -> None:
        self._say: Callable[[], None] | None = say

    def tick(self, _tick: Tick) -> None:
        if self._say is not None:
            say, self._say = self._say, None
            say()


class AttendedSession:
    """Records in a thread of its own, with the devices of a session and an operator.

    Args:
        devices: started by now.
        stopped: numbers of the signals that came.
        publish: begins a publication; must not wait.
        progress: says how far the campaign has come that is followed, if one is.
        always: conditions that are set up for all takes.
        by_hand: a person sets the station up, and says when it is.
        patience_s: where nobody is asked, how long to wait for what is in a take's way [s].
    """

    def __init__(
        self,
        devices: SessionDevices,
        spec: SessionSpec,
        quotas: Sequence[Quota],
        console: OperatorConsole,
        book: SessionLabels,
        *,
        suggest: Suggest,
        station: Station,
        stopped: list[int],
        publish: Callable[[], None],
        attempts: Attempts | None = None,
        progress: Callable[[], CampaignProgress] | None = None,
        always: Mapping[str, Any] = MappingProxyType({}),
        by_hand: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._devices, self._spec, self._quotas = devices, spec, tuple(quotas)
        self._console, self._book, self._station = console, book, station
        self._stopped, self._publish, self._attempts = stopped, publish, attempts
        self._progress, self._always, self._by_hand = progress, dict(always), by_hand
        self._suggester = LabelSuggester(suggest, console.suggested)
        if progress is None:  # a campaign is counted from the journal, which takes a while
            console.on_label = self._count
        self._wanted = sum(quota.takes for quota in quotas)
        self._results: list[TakeResult] = []
        self._recovered = self._lacking = 0
        self._end: SessionEnd | None = None
        self._operator = Operator(
            console,
            lambda: devices.monitor,
            self._suggester,
            self._recount,
            self._results.append,
            patience_s,
            attempts,
        )
        for uid, outcome, said in known_takes(spec.journal, REMEMBERED):
            console.remember(uid, outcome, said)
        self._held = held(spec.journal, spec.kind, quotas, resume=spec.resume).total()
        self._count()

    def run(self, turn: Callable[[], None]) -> SessionEnd:
        """Record until everything is, or the operator stops; raises what `record_takes` raises.

        `turn` hears keys and shows how things stand; it returns after some 10 ms.
        """
        attempt = CleanupStep()

        def record() -> None:
            with attempt:
                reconnected, trip = drive_on(
                    self._devices,
                    self._record_what_lacks,
                    self._is_over,
                    finished=None if self._console.attended else lambda: len(self._results),
                )
                self._recount()
                self._end = SessionEnd(
                    takes=tuple(
                        replace(r, outcome=self._operator.outcome(r)) for r in self._results
                    ),
                    counted=self._wanted - self._lacking,
                    wanted=self._wanted,
                    recovered=self._recovered,
                    interrupted=bool(self._stopped) or self._lacking > 0,
                    reconnected=reconnected,
                    trip=trip,
                )

        thread = threading.Thread(target=record, name="session")
        thread.start()
        try:
            # To its end, which takes a while where takes are still sealed: until then the
            # operator sees that, and can stop the arm.
            while thread.is_alive():
                turn()
                if self._stopped and not self._console.left:
                    self._console.leave()
                if self._console.left:
                    self._devices.end()
            self._devices.end()
            while self._devices.moves:  # on its way down, which the operator sees and can stop
                turn()
        finally:
            self._console.leave()
            self._devices.end()
            thread.join()
        if attempt.error is not None:
            raise attempt.error
        assert self._end is not None
        return self._end

    def close(self) -> None:
        """Give up what is still being worked out."""
        self._suggester.close()

    def _record_what_lacks(self) -> bool:
        """Record with the devices as they are connected now; return whether more is to be."""
        quotas = self._quotas
        if self._results and self._progress is None and not self._spec.resume:
            quotas = (replace(quotas[0], takes=self._lacking),)
        end = record_takes(
            self._spec,
            quotas,
            self._devices.rig,
            self._devices.leader,
            set_up=self._set_up,
            stop=self._is_over,
            publish=self._publish,
            attendant=self._operator,
        )
        self._recovered += end.recovered
        is_filled = self._count()
        if self._console.left:
            return False
        return not is_filled or self._console.finish(lambda: not self._count())

    def _is_over(self) -> bool:
        return bool(self._stopped) or self._console.left

    def _set_up(self, quota: Quota, before: Quota | None) -> bool:
        grid = self._station.grid
        had = {} if before is None else before.conditions
        change = change_words(None if before is None else had, quota.conditions, grid)
        conditions = {**self._always, **quota.conditions}
        ask = self._by_hand and change != "nothing to change" and bool(conditions or had)
        there = SetUp(words(conditions, grid), conditions, grid)
        change = change[:1].upper() + change[1:]
        asked = SetUp(change, conditions, grid) if ask else there
        going = self._console.await_set_up(asked, ask=ask)
        self._console.show(there if conditions else SetUp())
        return going

    def _recount(self) -> None:
        """Count anew what labels say, of quotas and of a policy's successes; may take time."""
        self._count()
        if self._attempts is not None:
            outcomes = {r.uid: self._console.outcome(r.uid, r.outcome) for r in self._results}
            self._attempts.judged(outcomes)

    def _count(self) -> bool:
        """Tell the console how far the quotas are filled; return whether they are."""
        if self._progress is None:
            counted = self._held + sum(
                counts(
                    self._spec.kind,
                    self._console.outcome(r.uid, r.outcome),
                    self._console.retracted(r.uid),
                )
                for r in self._results
            )
            self._lacking = max(0, self._wanted - counted)
            self._console.tell(Quotas(counted, self._wanted))
            return not self._lacking
        self._book.flush()
        now = self._progress()
        self._lacking = now.wanted - now.have
        # A bar for every dimension, and one for each of its set-ups where it has several.
        bars: list[QuotaBar] = []
        for dimension, setups in now.by_dimension().items():
            have, wanted = sum(min(s.have, s.wanted) for s in setups), sum(s.wanted for s in setups)
            bars.append(QuotaBar((dimension or "takes").replace("_", " "), have, wanted))
            for setup in setups if len(setups) > 1 else ():
                name = f"· {words(setup.conditions, self._station.grid)}"
                bars.append(QuotaBar(name, setup.have, setup.wanted))
        self._console.tell(Quotas(now.have, now.wanted, tuple(bars), now.left_s))
        return not self._lacking

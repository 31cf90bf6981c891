"""An operator at a console: takes begin on a key, and a person says how they went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from gaploop.collect.devices import LoopMonitor
from gaploop.collect.journal import JournalWriter
from gaploop.collect.operator.console import OperatorConsole
from gaploop.collect.operator.machine import Suggestion
from gaploop.collect.operator.session_labels import LabelSuggester
from gaploop.collect.rig import Rig
from gaploop.collect.rollout import Attempts
from gaploop.collect.take import Operator, TakeResult, run_take
from gaploop.core.errors import DeviceError
from gaploop.core.messages import Tick
from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.loop import run_loop

PATIENCE: Final = 10_000
"""Attempts per take that are asked for: a person decides when to give up."""


class ConsoleOperator(Operator):
    """Looks after a session through a console.

    A take is sealed as soon as it has ended, as `unlabelled`, so that nothing can be lost while
    the operator thinks; what he says is a label. In the embedded cell its judge's word is marked.

    Args:
        monitor: returns what watches the loop now.
        told: called before and after every take, such as to count quotas anew.
        on_result: called with every take that has a verdict.
        attempts: runs those of a policy that drives, and that the operator can take over from.
    """

    attempts_per_take = PATIENCE

    def __init__(
        self,
        console: OperatorConsole,
        monitor: Callable[[], LoopMonitor | None] = lambda: None,
        suggester: LabelSuggester | None = None,
        told: Callable[[], object] = lambda: None,
        on_result: Callable[[TakeResult], None] = lambda _result: None,
        attempts: Attempts | None = None,
    ) -> None:
        super().__init__(attempts=attempts)
        self._console, self._monitor, self._suggester = console, monitor, suggester
        self._told, self._on_result = told, on_result
        if attempts is not None:
            attempts.on_note = lambda note, result: console.note(note.words(result))

    def begin(self, blocker: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Wait until the reset is over, nothing is in the way, and the operator wants the take.

        Raises DeviceError where nobody watches and the policy failed too often in a row.
        """
        self._told()
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

    def outcome(self, result: TakeResult) -> Outcome:
        """Return what the operator says of a take now."""
        return self._console.outcome(result.uid, result.outcome)

    def retracted(self, result: TakeResult) -> bool:
        """Whether the operator took back what he said of a take, and said nothing since."""
        return self._console.retracted(result.uid)

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run a take, called as `run_take`, and wait for the verdict."""
        writer: JournalWriter = given["writer"]
        monitor, stop = self._monitor(), given.pop("stop", lambda: False)
        run: Callable[..., TakeResult] = run_take
        longest_s = given["max_s"]
        if self._attempts is not None:  # longer where the policy drives slowly
            run, longest_s = self._attempts.run, longest_s / self._attempts.speed.scale
        begun = _Beginning(lambda: self._console.begun(longest_s))
        sinks: list[TakeSink] = [begun, *given.pop("sinks", ())]
        if monitor is not None:
            monitor.watch(writer)
            if rig.loop is run_loop:  # else it watches the running loop, between takes, too
                sinks.append(monitor)
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

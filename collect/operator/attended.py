"""A session with an operator: takes begin on a key, and a person says how they went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from gaploop.collect.journal import JournalWriter
from gaploop.collect.operator.console import OperatorConsole
from gaploop.collect.operator.inquiry import Suggestion
from gaploop.collect.operator.loop_monitor import LoopMonitor
from gaploop.collect.operator.suggesting import LabelSuggester
from gaploop.collect.rig import Rig
from gaploop.collect.rollout import Attempts
from gaploop.collect.take import PATIENCE_S, Attendant, TakeResult, overcome, run_take
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Leader, TakeSink
from gaploop.core.types import Tick
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.loop import run_loop

PATIENCE: Final = 10_000
"""Attempts per take that are asked for: a person decides when to give up."""


class Operator(Attendant):
    """Looks after a session through a console.

    A take is sealed as soon as it has ended, as `unlabelled`, so that nothing can be lost while
    the operator thinks; what he says is a label. In the embedded cell its judge's word is marked.

    Args:
        console: shared with the thread that has the window.
        eyes: returns what watches the loop now.
        suggester: proposes labels for failed takes, or None.
        told: called before and after every take, such as to count quotas anew.
        on_result: called with every take that has a verdict.
        patience_s: where nobody is asked, how long to wait for what is in a take's way [s].
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
    ) -> None:
        super().__init__(patience_s)
        self._console, self._eyes, self._suggester = console, eyes, suggester
        self._told, self._on_result = told, on_result

    def begin(self, hurdle: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Wait until the reset is over, nothing is in the way, and the operator wants the take."""
        self._told()
        if not self._console.asks and not overcome(hurdle, stop, self.patience_s):
            return False
        told_at = self._console.labelled

        def look() -> str:
            nonlocal told_at
            if told_at != self._console.labelled:  # quotas are counted anew, here: it may take time
                told_at = self._console.labelled
                self._told()
            return hurdle()

        return self._console.await_start(look)

    def outcome(self, result: TakeResult) -> Outcome:
        """Return what the operator says of a take now."""
        return self._console.outcome(result.uid, result.outcome)

    def taken_back(self, result: TakeResult) -> bool:
        """Whether the operator took back what he said of a take, and said nothing since."""
        return self._console.taken_back(result.uid)

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run a take, called as `run_take`, and wait for the verdict."""
        writer: JournalWriter = given["writer"]
        eyes, stop = self._eyes(), given.pop("stop", lambda: False)
        begun = _Beginning(lambda: self._console.begun(self.longest_s(given["max_s"])))
        sinks: list[TakeSink] = [begun, *given.pop("sinks", ())]
        if eyes is not None:
            eyes.watch(writer)
            if rig.loop is run_loop:  # else they watch the running loop, between takes, too
                sinks.append(eyes)
        try:
            result = self.run_take(
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
        return self._judged(rig, writer, result)

    def run_take(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run a take, called as the function of that name."""
        return run_take(rig, leader, **given)

    def longest_s(self, asked_s: float) -> float:
        """Return how long a take may last [s], of what was asked for."""
        return asked_s

    def _cut_off(self, why: str) -> None:
        self._console.note(f"The take is interrupted: {why}")
        self._console.await_verdict("", Outcome.INTERRUPTED)

    def _judged(self, rig: Rig, writer: JournalWriter, result: TakeResult) -> TakeResult:
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


class Supervisor(Operator):
    """Looks after rollouts through a console: an operator who can also take over.

    Args:
        attempts: runs them.
        console: shared with the thread that has the window.
        given: as of `Operator`.
    """

    def __init__(self, attempts: Attempts, console: OperatorConsole, *given: Any) -> None:
        super().__init__(console, *given)
        self._attempts = attempts
        attempts.on_note = lambda note, result: console.note(note.words(result))

    def begin(self, hurdle: Callable[[], str], stop: Callable[[], bool]) -> bool:
        """Wait until the next attempt may begin; False ends the session.

        Raises:
            DeviceError: nobody watches, and the policy failed too often in a row.
        """
        if not self._console.asks:
            self._attempts.require_policy()
        return super().begin(hurdle, stop)

    def run_take(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run an attempt, called as the function of that name."""
        return self._attempts.run(rig, leader, **given)

    def longest_s(self, asked_s: float) -> float:
        """Return how long an attempt may last [s]: longer where the policy drives slowly."""
        return asked_s / self._attempts.speed.scale


class _Beginning:
    """A sink that says when the first turn has come."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say: Callable[[], None] | None = say

    def tick(self, _tick: Tick) -> None:
        """Say so once."""
        if self._say is not None:
            say, self._say = self._say, None
            say()

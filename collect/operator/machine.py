"""The states of a recording session: ready → recording → verdict → reset → ready.

Pure: no time, no device, no file. `press`, `begun`, `ended`, `tick` and the rest take a
`SessionState` and a time of any monotonic clock [s], and return the next `SessionState`, with what
was said of its newest take; whoever holds the state writes that down.

Keys mean what they do in lerobot-record: right ends a take early, ends the reset, and passes over a
question; left throws the take away and records it again; q ends the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from gaploop.collect.operator.keys import Command
from gaploop.core.vocabulary import FailureMode, GapDimension, Outcome

type LabelUpdate = Mapping[str, Any]
"""Label field to value, as in `core.labels`."""


class Question(StrEnum):
    """What is asked."""

    OUTCOME = "outcome"
    MODE = "failure_mode"
    DIMENSION = "dimensions"
    REASON = "discard_reason"


ASKED: Final = {
    Question.OUTCOME: "How did it go?",
    Question.MODE: "What was seen?",
    Question.DIMENSION: "Why?",
    Question.REASON: "Why discard it?",
}
REASONS: Final = (
    "operator error",
    "wrong set-up",
    "disturbed",
    "equipment",
    "bad demonstration",
    "other",
)
RERECORDED: Final = "re-recorded"
CHOICES: Final[Mapping[Question, tuple[str, ...]]] = {
    Question.OUTCOME: (Outcome.SUCCESS.value, Outcome.FAILURE.value, Outcome.DISCARDED.value),
    Question.MODE: tuple(mode.value for mode in FailureMode),
    Question.DIMENSION: tuple(dimension.value for dimension in GapDimension),
    Question.REASON: REASONS,
}


@dataclass(frozen=True)
class LabelPrompt:
    """A take about which the operator is asked.

    Attributes:
        proposed: the outcome that is marked unless the operator marks another.
        marked: place of the answer that the operator has marked, or None.
        purpose: the take's dimensions where it doesn't fail.
    """

    uid: str
    question: Question = Question.OUTCOME
    proposed: Outcome | None = None
    marked: int | None = None
    purpose: Mapping[str, float] = MappingProxyType({})

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers there are."""
        return CHOICES[self.question]

    @property
    def at(self) -> int | None:
        """Place of the answer that is marked, by the operator or as it is proposed."""
        if self.marked is not None or self.question is not Question.OUTCOME:
            return self.marked
        return self.choices.index(self.proposed) if self.proposed in self.choices else None

    def mark(self, step: int) -> LabelPrompt:
        """Mark the answer `step` places further down, round and round."""
        here = self.at
        start = here if here is not None else (-1 if step > 0 else 0)
        return replace(self, marked=(start + step) % len(self.choices))

    def answer(self, place: int) -> tuple[LabelPrompt | None, LabelUpdate]:
        """Give the answer at `place`; return what is asked next, if anything, and what was said."""
        value = self.choices[place]
        if self.question is Question.OUTCOME:
            if value == Outcome.FAILURE.value:
                # Its dimensions are its cause: what it was recorded for isn't that.
                return self._ask(Question.MODE), _cleared(Outcome.FAILURE, {})
            said = _cleared(Outcome(value), self.purpose)
            return (self._ask(Question.REASON) if value == Outcome.DISCARDED.value else None), said
        if self.question is Question.MODE:
            return self._ask(Question.DIMENSION), {Question.MODE.value: value}
        if self.question is Question.DIMENSION:
            return None, {Question.DIMENSION.value: {value: 1.0}}
        return None, {Question.REASON.value: value}

    def skip(self) -> tuple[LabelPrompt | None, LabelUpdate]:
        """Pass over the question: the outcome stays as sealed, a mode and a dimension open."""
        if self.question is Question.MODE:
            return self._ask(Question.DIMENSION), {}
        return None, {}

    def _ask(self, question: Question) -> LabelPrompt:
        return replace(self, question=question, marked=None)


def _cleared(outcome: Outcome, dimensions: Mapping[str, float]) -> dict[str, Any]:
    """Return what an outcome says, with what an earlier one said taken back."""
    return {
        "outcome": outcome.value,
        "failure_mode": "",
        "dimensions": dict(dimensions),
        "discard_reason": "",
    }


def _rerecorded(purpose: Mapping[str, float]) -> LabelUpdate:
    return {**_cleared(Outcome.DISCARDED, purpose), "discard_reason": RERECORDED}


class SessionStage(StrEnum):
    """What a session is doing."""

    DRIVING = "driving"
    """Nothing is recorded, in all of the session."""
    SET_UP = "set up"
    """The station is being changed for the next conditions; the operator says when."""
    READY = "ready"
    STARTING = "starting"
    """An episode was asked for and hasn't begun yet."""
    RECORDING = "recording"
    ENDING = "ending"
    """The episode was told to end."""
    VERDICT = "verdict"
    RESET = "reset"
    ENDED = "ended"


BETWEEN: Final = (SessionStage.SET_UP, SessionStage.READY, SessionStage.RESET)
"""Stages in which nothing is recorded or asked, and the newest episode can be labelled anew."""
RUNS_ON: Final = (SessionStage.STARTING, SessionStage.RECORDING, SessionStage.ENDING)


@dataclass(frozen=True)
class StageTiming:
    """How long the longest take and putting things back last [s].

    With `auto_start` the next take begins when that is over, as in lerobot-record.
    """

    episode_s: float
    reset_s: float
    auto_start: bool = False


@dataclass(frozen=True)
class SessionState:
    """How a session stands.

    Attributes:
        since_s: when the stage began [s].
        prompt: what the operator is asked of the newest take.
        verdict: what the operator has said of the take before it ended.
        leaving: the session ends after this take's verdict.
        blocked: why no take may start, such as a trip; "" where it may.
        newest: uid of the newest take, which can be labelled anew, or "".
        purpose: the dimensions that it has where it doesn't fail.
    """

    timing: StageTiming
    stage: SessionStage = SessionStage.READY
    since_s: float = 0.0
    prompt: LabelPrompt | None = None
    verdict: Command | None = None
    leaving: bool = False
    blocked: str = ""
    newest: str = ""
    purpose: Mapping[str, float] = MappingProxyType({})

    def elapsed_s(self, now_s: float) -> float:
        """Return how long the stage has lasted [s]."""
        return max(0.0, now_s - self.since_s)

    @property
    def limit_s(self) -> float | None:
        """How long the stage lasts [s]; None where it has no end of its own."""
        if self.stage is SessionStage.RECORDING:
            return self.timing.episode_s
        return self.timing.reset_s if self.stage is SessionStage.RESET else None

    def left_s(self, now_s: float) -> float | None:
        """Return the time that the stage has left [s]; None where it has no end of its own."""
        limit_s = self.limit_s
        return None if limit_s is None else max(0.0, limit_s - self.elapsed_s(now_s))


SETTLE_S: Final = 0.4
"""A press this soon after an episode began or ended was meant for the state before [s]."""

_VERDICTS: Final = {Command.SUCCESS: 0, Command.FAILURE: 1, Command.DISCARD: 2}
"""Command to the place of its answer to `Question.OUTCOME`."""

type Step = tuple[SessionState, LabelUpdate]


def press(state: SessionState, command: Command, now_s: float) -> Step:
    """Take a command of the operator; one that means nothing here changes nothing."""
    if state.stage is SessionStage.ENDED:
        return state, {}
    if state.prompt is not None:
        return _answered(state, command, now_s)
    if state.stage in (SessionStage.RECORDING, SessionStage.ENDING):
        # It ends the take; what the operator has said of it by that is kept until it has ended.
        if command is Command.STOP:
            state = replace(state, leaving=True)
        elif command in (*_VERDICTS, Command.RERECORD):
            state = replace(state, verdict=command)
        elif command is not Command.NEXT:
            return state, {}
        is_early = command is Command.NEXT and state.elapsed_s(now_s) < SETTLE_S
        if state.stage is SessionStage.ENDING or is_early:
            return state, {}
        return replace(state, stage=SessionStage.ENDING), {}
    if command is Command.STOP:
        return _leave(state, now_s)
    if state.stage not in BETWEEN:
        return state, {}
    if command is Command.NEXT:
        if state.stage is SessionStage.RESET and state.elapsed_s(now_s) < SETTLE_S:
            return state, {}
        if state.stage is SessionStage.SET_UP:
            return _enter(state, SessionStage.READY, now_s), {}
        if state.stage is SessionStage.RESET:
            state = _enter(state, SessionStage.READY, now_s)
        return _start(state, now_s)
    if not state.newest:
        return state, {}
    if command is Command.RERECORD:
        return state, _rerecorded(state.purpose)
    if command in _VERDICTS:
        prompt = LabelPrompt(state.newest, purpose=state.purpose)
        return _after_answer(state, prompt.answer(_VERDICTS[command]), now_s)
    return state, {}


def choose(state: SessionState, place: int, now_s: float) -> Step:
    """Give the answer at `place`, from 0; one that there isn't changes nothing."""
    if state.prompt is None or not 0 <= place < len(state.prompt.choices):
        return state, {}
    return _after_answer(state, state.prompt.answer(place), now_s)


def tick(state: SessionState, now_s: float) -> Step:
    """Let time pass: a reset ends by itself, and a take begins by itself with `auto_start`."""
    if state.prompt is not None:
        return state, {}
    if state.stage is SessionStage.RESET and state.left_s(now_s) == 0.0:
        state = _enter(state, SessionStage.READY, now_s)
    if state.timing.auto_start and state.stage is SessionStage.READY:
        return _start(state, now_s)
    return state, {}


def begun(state: SessionState, now_s: float, longest_s: float) -> SessionState:
    """The take has begun; it lasts `longest_s` [s] at most."""
    if state.stage is not SessionStage.STARTING:
        return state
    timing = replace(state.timing, episode_s=longest_s)
    return _enter(replace(state, timing=timing), SessionStage.RECORDING, now_s)


def ended(
    state: SessionState,
    uid: str,
    now_s: float,
    proposed: Outcome | None = None,
    purpose: Mapping[str, float] = MappingProxyType({}),
) -> Step:
    """The take has ended ("" where it couldn't be recorded); ask how it went, unless that was said.

    Its `purpose` are its dimensions where it doesn't fail.
    """
    if state.stage is SessionStage.ENDED and uid:  # stopped as it was about to begin, and it began
        return replace(state, newest=uid, purpose=purpose), {}
    if state.stage not in RUNS_ON:
        return state, {}
    said, state = state.verdict, replace(state, verdict=None)
    if not uid:
        return _after_verdict(state, now_s)
    prompt = LabelPrompt(uid, proposed=proposed, purpose=purpose)
    state = _enter(state, SessionStage.VERDICT, now_s)
    state = replace(state, newest=uid, purpose=purpose, prompt=prompt)
    return (state, {}) if said is None else _answered(state, said, now_s, anew_press=False)


def skipped(state: SessionState, now_s: float) -> Step:
    """Pass over what is asked, where nobody is there to answer."""
    if state.prompt is None:
        return state, {}
    return _after_answer(state, state.prompt.skip(), now_s)


def set_up(state: SessionState, now_s: float) -> SessionState:
    """The next take needs other conditions: the operator says when they are set up."""
    return state if state.stage is SessionStage.ENDED else _enter(state, SessionStage.SET_UP, now_s)


def block(state: SessionState, why: str) -> SessionState:
    """Let no take start, or let it again where `why` is empty."""
    return replace(state, blocked=why)


def _enter(state: SessionState, stage: SessionStage, now_s: float) -> SessionState:
    return replace(state, stage=stage, since_s=now_s)


def _start(state: SessionState, now_s: float) -> Step:
    if state.blocked:
        return state, {}
    return _enter(state, SessionStage.STARTING, now_s), {}


def _leave(state: SessionState, now_s: float) -> Step:
    return _enter(replace(state, prompt=None), SessionStage.ENDED, now_s), {}


def _answered(
    state: SessionState, command: Command, now_s: float, *, anew_press: bool = True
) -> Step:
    prompt = state.prompt
    if prompt is None:
        return state, {}
    is_outcome = prompt.question is Question.OUTCOME
    settled = not anew_press or state.elapsed_s(now_s) >= SETTLE_S or not is_outcome
    if command in (Command.UP, Command.DOWN):
        step = -1 if command is Command.UP else 1
        return replace(state, prompt=prompt.mark(step)), {}
    if command in _VERDICTS:  # also while it is asked why: the answer before was a slip
        outcome = replace(prompt, question=Question.OUTCOME, marked=None)
        return _after_answer(state, outcome.answer(_VERDICTS[command]), now_s)
    if command is Command.ACCEPT and prompt.at is not None and settled:
        return _after_answer(state, prompt.answer(prompt.at), now_s)
    if command is Command.NEXT and settled:
        return _after_answer(state, prompt.skip(), now_s)
    if command is Command.RERECORD:
        return _after_answer(state, (None, _rerecorded(prompt.purpose)), now_s)
    if command is Command.STOP:
        return _leave(state, now_s)
    return state, {}


def _after_answer(
    state: SessionState, answer: tuple[LabelPrompt | None, LabelUpdate], now_s: float
) -> Step:
    """Go on after an answer: with the next question, or with what comes after the verdict."""
    then, said = answer
    state = replace(state, prompt=then)
    if then is None and state.stage is SessionStage.VERDICT:
        state, _ = _after_verdict(state, now_s)
    return state, said


def _after_verdict(state: SessionState, now_s: float) -> Step:
    if state.leaving:
        return _leave(state, now_s)
    return _enter(state, SessionStage.RESET, now_s), {}

"""The states of a recording session: ready → recording → verdict → reset → ready.

Pure: no time, no device, no file. `press`, `begun`, `ended`, `tick` and the rest take a
`SessionState` and a time of any monotonic clock [s], and return the next `SessionState` and what is
to be done; whoever holds the state does it.

Keys mean what they do in lerobot-record: right ends a take early, ends the reset, and passes over a
question; left throws the take away and records it again; q ends the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


ASKED: Final = MappingProxyType(
    {
        Question.OUTCOME: "How did it go?",
        Question.MODE: "What was seen?",
        Question.DIMENSION: "Why?",
        Question.REASON: "Why discard it?",
    }
)
REASONS: Final = (
    "operator error",
    "wrong set-up",
    "disturbed",
    "equipment",
    "bad demonstration",
    "other",
)
RERECORDED: Final = "re-recorded"
CHOICES: Final[Mapping[Question, tuple[str, ...]]] = MappingProxyType(
    {
        Question.OUTCOME: (Outcome.SUCCESS.value, Outcome.FAILURE.value, Outcome.DISCARDED.value),
        Question.MODE: tuple(mode.value for mode in FailureMode),
        Question.DIMENSION: tuple(dimension.value for dimension in GapDimension),
        Question.REASON: REASONS,
    }
)


@dataclass(frozen=True)
class Suggestion:
    """What the machine thinks; a person's word counts."""

    outcome: Outcome | None = None
    mode: str = ""
    dimension: str = ""

    @classmethod
    def of(cls, labels: Mapping[str, object]) -> Suggestion:
        """Read what a `Suggest` returned; what isn't in the vocabulary is passed over."""
        mode, dimensions = labels.get("failure_mode"), labels.get("dimensions")
        known = CHOICES[Question.DIMENSION]
        shares = dimensions if isinstance(dimensions, Mapping) else {}
        shares = {d: s for d, s in shares.items() if d in known and isinstance(s, int | float)}
        return cls(
            mode=str(mode) if mode in CHOICES[Question.MODE] else "",
            dimension=max(shares, key=lambda d: shares[d], default=""),
        )


@dataclass(frozen=True)
class LabelPrompt:
    """A take about which the operator is asked.

    Attributes:
        suggestion: what is marked unless the operator marks something else.
        marked: place of the answer that the operator has marked, or None.
        purpose: the take's dimensions where it doesn't fail.
    """

    uid: str
    question: Question = Question.OUTCOME
    suggestion: Suggestion = Suggestion()
    marked: int | None = None
    purpose: Mapping[str, float] = MappingProxyType({})

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers there are."""
        return CHOICES[self.question]

    @property
    def at(self) -> int | None:
        """Place of the answer that is marked, by the operator or the suggestion."""
        if self.marked is not None:
            return self.marked
        suggested = {
            Question.OUTCOME: self.suggestion.outcome or "",
            Question.MODE: self.suggestion.mode,
            Question.DIMENSION: self.suggestion.dimension,
        }.get(self.question, "")
        return self.choices.index(suggested) if suggested in self.choices else None

    def mark(self, step: int) -> LabelPrompt:
        """Mark the answer `step` places further down, round and round."""
        here = self.at
        start = here if here is not None else (-1 if step > 0 else 0)
        return replace(self, marked=(start + step) % len(self.choices))

    def suggest(self, suggestion: Suggestion) -> LabelPrompt:
        """Take a suggestion in; the outcome that was proposed before stays unless it has one."""
        outcome = suggestion.outcome or self.suggestion.outcome
        return replace(self, suggestion=replace(suggestion, outcome=outcome))

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
    """A take was asked for and hasn't begun yet."""
    RECORDING = "recording"
    ENDING = "ending"
    """The take was told to end."""
    VERDICT = "verdict"
    RESET = "reset"
    DONE = "done"
    """Everything is recorded; labels can still be taken back."""
    ENDED = "ended"


BETWEEN: Final = (SessionStage.SET_UP, SessionStage.READY, SessionStage.RESET, SessionStage.DONE)
"""Stages in which nothing is recorded or asked, and earlier takes can be labelled anew."""
RUNS_ON: Final = (SessionStage.STARTING, SessionStage.RECORDING, SessionStage.ENDING)


class ActionKind(StrEnum):
    """What is to be done outside."""

    START = "start"
    """Let the next take begin."""
    END = "end"
    """End the take that is being recorded."""
    LABEL = "label"
    """Write down what was said."""
    UNDO = "undo"
    LEAVE = "leave"
    """End the session."""


@dataclass(frozen=True)
class Action:
    """One thing to be done, and about which take.

    With `anew` a label is the first word about it: those that follow are taken back with it.
    """

    kind: ActionKind
    uid: str = ""
    update: LabelUpdate = MappingProxyType({})
    anew: bool = False


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
        stood_s: how long the stage's clock has stood still [s].
        paused_s: when it was last paused [s], or None where it isn't.
        prompt: what the operator is asked, of the take just ended or of an earlier one.
        verdict: what the operator has said of the take before it ended.
        leaving: the session ends after this take's verdict.
        blocked: why no take may start, such as a trip; "" where it may.
        takes: uids of the takes that can be labelled anew, oldest first.
        purposes: uid to the dimensions that the take has where it doesn't fail.
        pointed: place in `takes` that the operator points at, or None for the newest.
    """

    timing: StageTiming
    stage: SessionStage = SessionStage.READY
    since_s: float = 0.0
    stood_s: float = 0.0
    paused_s: float | None = None
    prompt: LabelPrompt | None = None
    verdict: Command | None = None
    leaving: bool = False
    blocked: str = ""
    takes: tuple[str, ...] = ()
    purposes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pointed: int | None = None

    @property
    def paused(self) -> bool:
        """Whether the clock stands still."""
        return self.paused_s is not None

    def elapsed_s(self, now_s: float) -> float:
        """Return for how long the stage's clock has run [s]."""
        until_s = now_s if self.paused_s is None or self.stage in RUNS_ON else self.paused_s
        return max(0.0, until_s - self.since_s - self.stood_s)

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

    @property
    def at(self) -> str:
        """Uid of the take that the operator points at; "" where there is none."""
        if not self.takes:
            return ""
        return self.takes[-1 if self.pointed is None else self.pointed]


SETTLE_S: Final = 0.4
"""A press this soon after a take began or ended was meant for the state before [s]."""

_VERDICTS: Final = {Command.SUCCESS: 0, Command.FAILURE: 1, Command.DISCARD: 2}
"""Command to the place of its answer to `Question.OUTCOME`."""

type Step = tuple[SessionState, tuple[Action, ...]]


def press(state: SessionState, command: Command, now_s: float) -> Step:
    """Take a command of the operator; one that means nothing here changes nothing."""
    if state.stage is SessionStage.ENDED:
        return state, ()
    if command is Command.PAUSE:
        return _pause(state, now_s), ()
    if state.prompt is not None:
        return _answered(state, command, now_s)
    if state.stage in (SessionStage.RECORDING, SessionStage.ENDING):
        # It ends the take; what the operator has said of it by that is kept until it has ended.
        if command is Command.STOP:
            state = replace(state, leaving=True)
        elif command in (*_VERDICTS, Command.RERECORD):
            state = replace(state, verdict=command)
        elif command is not Command.NEXT:
            return state, ()
        if state.stage is SessionStage.ENDING:
            return state, ()
        if command is Command.NEXT and state.elapsed_s(now_s) < SETTLE_S:
            return state, ()
        return replace(state, stage=SessionStage.ENDING), (Action(ActionKind.END),)
    if command is Command.STOP:
        return _leave(state, now_s)
    if state.stage not in BETWEEN:
        return state, ()
    if command is Command.NEXT:
        settles = state.stage is SessionStage.RESET and not state.paused
        if settles and state.elapsed_s(now_s) < SETTLE_S:
            return state, ()
        if state.stage is SessionStage.DONE:
            return _leave(state, now_s)
        if state.stage is SessionStage.SET_UP:
            return _enter(state, SessionStage.READY, now_s), ()
        if state.paused:
            state = _pause(state, now_s)
        if state.stage is SessionStage.RESET:
            state = _enter(state, SessionStage.READY, now_s)
        return _start(state, now_s)
    if command in (Command.UP, Command.DOWN):
        if not state.takes:
            return state, ()
        last = len(state.takes) - 1
        place = last if state.pointed is None else state.pointed
        place += -1 if command is Command.UP else 1
        return replace(state, pointed=min(last, max(0, place))), ()
    if command is Command.UNDO:
        return state, (Action(ActionKind.UNDO),)
    if not state.at:
        return state, ()
    purpose = state.purposes.get(state.at, {})
    if command is Command.RERECORD:
        return state, (Action(ActionKind.LABEL, state.at, _rerecorded(purpose), anew=True),)
    if command in _VERDICTS:
        prompt = LabelPrompt(state.at, purpose=purpose)
        return _after_answer(state, prompt, prompt.answer(_VERDICTS[command]), now_s)
    return state, ()


def choose(state: SessionState, place: int, now_s: float) -> Step:
    """Give the answer at `place`, from 0; one that there isn't changes nothing."""
    if state.prompt is None or not 0 <= place < len(state.prompt.choices):
        return state, ()
    return _after_answer(state, state.prompt, state.prompt.answer(place), now_s)


def tick(state: SessionState, now_s: float) -> Step:
    """Let time pass: a reset ends by itself, and a take begins by itself with `auto_start`."""
    if state.prompt is not None:
        return state, ()
    if state.stage is SessionStage.RESET and not state.paused and state.left_s(now_s) == 0.0:
        state = _enter(state, SessionStage.READY, now_s)
    if state.timing.auto_start and state.stage is SessionStage.READY:
        return _start(state, now_s)
    return state, ()


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
    suggestion: Suggestion | None = None,
    purpose: Mapping[str, float] = MappingProxyType({}),
) -> Step:
    """The take has ended ("" where it couldn't be recorded); ask how it went, unless that was said.

    Its `purpose` are its dimensions where it doesn't fail.
    """
    takes, purposes = (*state.takes, uid), {**state.purposes, uid: purpose}
    if state.stage is SessionStage.ENDED and uid:  # stopped as it was about to begin, and it began
        return replace(state, takes=takes, purposes=purposes), ()
    if state.stage not in RUNS_ON:
        return state, ()
    said, state = state.verdict, replace(state, verdict=None)
    if not uid:
        return _after_verdict(state, now_s)
    prompt = LabelPrompt(uid, suggestion=suggestion or Suggestion(), purpose=purpose)
    state = _enter(state, SessionStage.VERDICT, now_s)
    state = replace(state, takes=takes, purposes=purposes, pointed=None, prompt=prompt)
    return (state, ()) if said is None else _answered(state, said, now_s, anew_press=False)


def skipped(state: SessionState, now_s: float) -> Step:
    """Pass over what is asked, where nobody is there to answer."""
    if state.prompt is None:
        return state, ()
    return _after_answer(state, state.prompt, state.prompt.skip(), now_s)


def suggested(state: SessionState, uid: str, suggestion: Suggestion) -> SessionState:
    """Take in what the machine thinks of a take, if it is being asked about."""
    if state.prompt is None or state.prompt.uid != uid:
        return state
    return replace(state, prompt=state.prompt.suggest(suggestion))


def set_up(state: SessionState, now_s: float) -> SessionState:
    """The next take needs other conditions: the operator says when they are set up."""
    return state if state.stage is SessionStage.ENDED else _enter(state, SessionStage.SET_UP, now_s)


def filled(state: SessionState, now_s: float) -> SessionState:
    """Everything is recorded."""
    stays = (SessionStage.ENDED, SessionStage.VERDICT, SessionStage.DONE)
    return state if state.stage in stays else _enter(state, SessionStage.DONE, now_s)


def unfilled(state: SessionState, now_s: float) -> SessionState:
    """A label was changed, so that something lacks again."""
    return _enter(state, SessionStage.READY, now_s) if state.stage is SessionStage.DONE else state


def block(state: SessionState, why: str) -> SessionState:
    """Let no take start, or let it again where `why` is empty."""
    return replace(state, blocked=why)


def _enter(state: SessionState, stage: SessionStage, now_s: float) -> SessionState:
    """Enter a stage; a pause asked for during the take or the verdict begins here."""
    paused_s = None if state.paused_s is None else now_s
    return replace(state, stage=stage, since_s=now_s, stood_s=0.0, paused_s=paused_s)


def _pause(state: SessionState, now_s: float) -> SessionState:
    if state.paused_s is None:
        return replace(state, paused_s=now_s)
    stood_s = 0.0 if state.stage in RUNS_ON else now_s - state.paused_s
    return replace(state, paused_s=None, stood_s=state.stood_s + stood_s)


def _start(state: SessionState, now_s: float) -> Step:
    if state.blocked or state.paused:
        return state, ()
    return _enter(replace(state, pointed=None), SessionStage.STARTING, now_s), (
        Action(ActionKind.START),
    )


def _leave(state: SessionState, now_s: float) -> Step:
    return _enter(replace(state, prompt=None), SessionStage.ENDED, now_s), (
        Action(ActionKind.LEAVE),
    )


def _answered(
    state: SessionState, command: Command, now_s: float, *, anew_press: bool = True
) -> Step:
    prompt = state.prompt
    if prompt is None:
        return state, ()
    is_outcome = prompt.question is Question.OUTCOME
    settled = not anew_press or state.elapsed_s(now_s) >= SETTLE_S or not is_outcome
    if command in (Command.UP, Command.DOWN):
        step = -1 if command is Command.UP else 1
        return replace(state, prompt=prompt.mark(step)), ()
    if command in _VERDICTS and is_outcome:
        return _after_answer(state, prompt, prompt.answer(_VERDICTS[command]), now_s)
    if command is Command.ACCEPT and prompt.at is not None and settled:
        return _after_answer(state, prompt, prompt.answer(prompt.at), now_s)
    if command is Command.NEXT and settled:
        return _after_answer(state, prompt, prompt.skip(), now_s)
    if command is Command.RERECORD:
        return _after_answer(state, prompt, (None, _rerecorded(prompt.purpose)), now_s)
    if command is Command.UNDO:
        if is_outcome:
            return state, ()  # nothing has been answered
        asked = None
        if state.stage is SessionStage.VERDICT:  # back to the first question
            asked = replace(prompt, question=Question.OUTCOME, marked=None)
        return replace(state, prompt=asked), (Action(ActionKind.UNDO),)
    if command is Command.STOP:
        return _leave(state, now_s)
    return state, ()


def _after_answer(
    state: SessionState,
    asked: LabelPrompt,
    answer: tuple[LabelPrompt | None, LabelUpdate],
    now_s: float,
) -> Step:
    """Go on after an answer: with the next question, or with what comes after the verdict."""
    then, said = answer
    actions: tuple[Action, ...] = ()
    if said:
        actions = (
            Action(ActionKind.LABEL, asked.uid, said, anew=asked.question is Question.OUTCOME),
        )
    state = replace(state, prompt=then)
    if then is not None or state.stage is not SessionStage.VERDICT:
        return state, actions
    state, more = _after_verdict(state, now_s)
    return state, (*actions, *more)


def _after_verdict(state: SessionState, now_s: float) -> Step:
    if state.leaving:
        return _leave(state, now_s)
    return _enter(state, SessionStage.RESET, now_s), ()

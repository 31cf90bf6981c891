"""The states of a recording session: ready → recording → verdict → reset → ready.

Pure: `press`, `begun`, `ended`, `tick` and the rest take a `SessionState` and a time and return the
next `SessionState` and what is to be done. Whoever holds the state does it. Time is any monotonic
clock [s].

Right ends a take early, ends the reset, and passes over a question; left throws the take away
and records it again; Esc ends the session: as in lerobot-record. A take starts only from
`READY`, and only when the reset before it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from gaploop.collect.operator.commands import Command
from gaploop.collect.operator.inquiry import (
    RERECORDED,
    Inquiry,
    Question,
    Said,
    Suggestion,
    discarded,
)
from gaploop.collect.operator.state import BETWEEN, RUNS_ON, Act, Deed, SessionStage, SessionState

SETTLE_S: Final = 0.4
"""A press this soon after a take began or ended was meant for the state before [s]."""

type Step = tuple[SessionState, tuple[Act, ...]]


def press(state: SessionState, command: Command, now_s: float) -> Step:
    """Take a command of the operator; one that means nothing here changes nothing."""
    if state.stage is SessionStage.ENDED:
        return state, ()
    if command is Command.PAUSE:
        return _pause(state, now_s), ()
    if state.inquiry is not None:
        return _answered(state, command, now_s)
    if state.stage in (SessionStage.RECORDING, SessionStage.ENDING):
        return _while_recording(state, command, now_s)
    if state.stage in BETWEEN:
        return _between(state, command, now_s)
    if command is Command.STOP and state.stage is SessionStage.STARTING:
        return _leave(state, now_s)
    return state, ()


def choose(state: SessionState, place: int, now_s: float) -> Step:
    """Give the answer at `place`, from 0; one that there isn't changes nothing."""
    if state.inquiry is None or not 0 <= place < len(state.inquiry.choices):
        return state, ()
    return _heard(state, state.inquiry, state.inquiry.answer(place), now_s)


def tick(state: SessionState, now_s: float) -> Step:
    """Let time pass: a reset ends by itself, and a take begins by itself with `auto_start`."""
    if state.inquiry is not None:
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
    """The take has ended; ask how it went, unless the operator has said so already.

    Args:
        state: before.
        uid: the take; "" where it couldn't be recorded.
        now_s: the time [s].
        suggestion: what is marked.
        purpose: the take's dimensions where it doesn't fail.
    """
    if (
        state.stage is SessionStage.ENDED and uid
    ):  # stopped while it was about to begin, and it began
        takes, purposes = (*state.takes, uid), {**state.purposes, uid: purpose}
        return replace(state, takes=takes, purposes=purposes), ()
    if state.stage not in RUNS_ON:
        return state, ()
    said, state = state.verdict, replace(state, verdict=None)
    if not uid:
        return _after_verdict(state, now_s)
    state = _enter(state, SessionStage.VERDICT, now_s)
    state = replace(
        state,
        takes=(*state.takes, uid),
        purposes={**state.purposes, uid: purpose},
        pointed=None,
        inquiry=Inquiry(uid, suggestion=suggestion or Suggestion(), purpose=purpose),
    )
    return (state, ()) if said is None else _answered(state, said, now_s, anew_press=False)


def skipped(state: SessionState, now_s: float) -> Step:
    """Pass over what is asked, where nobody is there to answer."""
    if state.inquiry is None:
        return state, ()
    return _heard(state, state.inquiry, state.inquiry.skip(), now_s)


def suggested(state: SessionState, uid: str, suggestion: Suggestion) -> SessionState:
    """Take in what the machine thinks of a take, if it is being asked about."""
    if state.inquiry is None or state.inquiry.uid != uid:
        return state
    return replace(state, inquiry=state.inquiry.suggest(suggestion))


def set_up(state: SessionState, now_s: float) -> SessionState:
    """The next take needs other conditions: the operator says when they are set up."""
    return state if state.stage is SessionStage.ENDED else _enter(state, SessionStage.SET_UP, now_s)


def filled(state: SessionState, now_s: float) -> SessionState:
    """Everything is recorded."""
    return (
        state
        if state.stage in (SessionStage.ENDED, SessionStage.VERDICT, SessionStage.DONE)
        else _enter(state, SessionStage.DONE, now_s)
    )


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
    return _enter(replace(state, pointed=None), SessionStage.STARTING, now_s), (Act(Deed.START),)


def _leave(state: SessionState, now_s: float) -> Step:
    return _enter(replace(state, inquiry=None), SessionStage.ENDED, now_s), (Act(Deed.LEAVE),)


def _while_recording(state: SessionState, command: Command, now_s: float) -> Step:
    """End the take; what the operator has said of it by that is kept until it has ended."""
    if command is Command.STOP:
        state = replace(state, leaving=True)
    verdicts = (Command.SUCCESS, Command.FAILURE, Command.DISCARD, Command.RERECORD)
    if command in verdicts:
        state = replace(state, verdict=command)
    elif command not in (Command.NEXT, Command.STOP):
        return state, ()
    if state.stage is SessionStage.ENDING:
        return state, ()
    if command is Command.NEXT and state.elapsed_s(now_s) < SETTLE_S:
        return state, ()
    return replace(state, stage=SessionStage.ENDING), (Act(Deed.END),)


_VERDICTS: Final = {Command.SUCCESS: 0, Command.FAILURE: 1, Command.DISCARD: 2}
"""Command to the place of its answer to `Question.OUTCOME`."""


def _between(state: SessionState, command: Command, now_s: float) -> Step:
    if command is Command.STOP:
        return _leave(state, now_s)
    if command is Command.NEXT:
        return _go_on(state, now_s)
    if command in (Command.UP, Command.DOWN):
        return _point(state, -1 if command is Command.UP else 1), ()
    if command is Command.UNDO:
        return state, (Act(Deed.UNDO),)
    if not state.at:
        return state, ()
    purpose = state.purposes.get(state.at, {})
    if command is Command.RERECORD:
        said = discarded(RERECORDED, purpose)
        return state, (Act(Deed.LABEL, state.at, said, anew=True),)
    if command in _VERDICTS:
        inquiry = Inquiry(state.at, purpose=purpose)
        return _heard(state, inquiry, inquiry.answer(_VERDICTS[command]), now_s)
    return state, ()


def _go_on(state: SessionState, now_s: float) -> Step:
    if state.elapsed_s(now_s) < SETTLE_S and state.stage is SessionStage.RESET and not state.paused:
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


def _point(state: SessionState, step: int) -> SessionState:
    if not state.takes:
        return state
    last = len(state.takes) - 1
    here = last if state.pointed is None else state.pointed
    return replace(state, pointed=min(last, max(0, here + step)))


def _answered(
    state: SessionState, command: Command, now_s: float, *, anew_press: bool = True
) -> Step:
    """Take a command while a question is open."""
    inquiry = state.inquiry
    if inquiry is None:
        return state, ()
    is_outcome = inquiry.question is Question.OUTCOME
    settled = not anew_press or state.elapsed_s(now_s) >= SETTLE_S or not is_outcome
    if command in (Command.UP, Command.DOWN):
        step = -1 if command is Command.UP else 1
        return replace(state, inquiry=inquiry.mark(step)), ()
    if command in _VERDICTS and is_outcome:
        return _heard(state, inquiry, inquiry.answer(_VERDICTS[command]), now_s)
    if command is Command.ACCEPT and inquiry.at is not None and settled:
        return _heard(state, inquiry, inquiry.answer(inquiry.at), now_s)
    if command is Command.NEXT and settled:
        return _heard(state, inquiry, inquiry.skip(), now_s)
    if command is Command.RERECORD:
        said = discarded(RERECORDED, inquiry.purpose)
        return _heard(state, inquiry, (None, said), now_s)
    if command is Command.UNDO:
        return _undone(state, inquiry)
    if command is Command.STOP:
        return _leave(state, now_s)
    return state, ()


def _undone(state: SessionState, inquiry: Inquiry) -> Step:
    """Go back to the first question, if one has been answered."""
    if inquiry.question is Question.OUTCOME:
        return state, ()
    asked = None
    if state.stage is SessionStage.VERDICT:
        asked = replace(inquiry, question=Question.OUTCOME, marked=None)
    return replace(state, inquiry=asked), (Act(Deed.UNDO),)


def _heard(
    state: SessionState, asked: Inquiry, answer: tuple[Inquiry | None, Said], now_s: float
) -> Step:
    """Go on after an answer: with the next question, or with what comes after the verdict."""
    then, said = answer
    acts: tuple[Act, ...] = ()
    if said:
        acts = (Act(Deed.LABEL, asked.uid, said, anew=asked.question is Question.OUTCOME),)
    state = replace(state, inquiry=then)
    if then is not None or state.stage is not SessionStage.VERDICT:
        return state, acts
    state, more = _after_verdict(state, now_s)
    return state, (*acts, *more)


def _after_verdict(state: SessionState, now_s: float) -> Step:
    if state.leaving:
        return _leave(state, now_s)
    return _enter(state, SessionStage.RESET, now_s), ()

"""The keys that do something now, as an operator is reminded of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gaploop.collect.intervention import Driver
from gaploop.collect.operator.commands import Command
from gaploop.collect.operator.screen_content import Driven, ScreenContent
from gaploop.collect.operator.state import BETWEEN, RUNS_ON, SessionStage, SessionState

HINTS: Final = 6


@dataclass(frozen=True)
class Hint:
    """A key and what it does now."""

    key: str
    does: str


def hints(seen: ScreenContent) -> tuple[Hint, ...]:
    """Return the keys that do something now, most wanted first, as many as there is room for."""
    found = tuple(_hints(seen))
    # The last one is the emergency stop.
    return found if len(found) <= HINTS else (*found[: HINTS - 1], found[-1])


def _hints(seen: ScreenContent) -> Iterator[Hint]:
    if seen.loop.trip or seen.loop.found:
        clear = seen.keys.name(Command.CLEAR)
        does = "let the arm move" if seen.loop.found else "clear the trip"
        yield Hint(f"{clear} {clear}" if clear else "Enter Enter", does)
    if seen.driven is not None and seen.driven.can_switch and not seen.loop.lost:
        yield from _switch(seen, seen.driven)
    for command, does in _do(seen.state):
        if command is Command.NEXT and seen.state.blocked and seen.state.inquiry is None:
            continue
        if key := seen.keys.name(command):
            yield Hint(key, does)
    if seen.hand_held:
        yield Hint(seen.hand_held, "hold to move the arm")
    if estop := seen.keys.name(Command.ESTOP):
        yield Hint(estop, "EMERGENCY STOP")


def _switch(seen: ScreenContent, driven: Driven) -> Iterator[Hint]:
    """Yield what the key for taking over does now."""
    key, state = seen.keys.name(Command.TAKE_OVER), seen.state
    is_on = driven.driver in (Driver.PERSON, Driver.ALIGNING)
    if state.stage in RUNS_ON:
        yield Hint(key, "hand back to the policy" if is_on else "TAKE OVER")
    elif state.stage in BETWEEN and state.inquiry is None:
        yield Hint(key, "let the arm hold" if is_on else "drive, to put things back")


def _do(state: SessionState) -> Iterator[tuple[Command, str]]:
    if state.inquiry is not None:
        if state.inquiry.at is not None:
            yield Command.ACCEPT, "take the marked answer"
        yield Command.NEXT, "pass over"
        yield Command.UP, "mark another"
        yield Command.RERECORD, "discard, record again"
        return
    if state.stage is SessionStage.RECORDING:
        yield Command.NEXT, "end the take"
        yield Command.SUCCESS, "end it: success"
        yield Command.FAILURE, "end it: failure"
        yield Command.RERECORD, "discard, record again"
        yield Command.STOP, "last take, then end"
        return
    if state.stage not in BETWEEN:
        return
    go = {
        SessionStage.RESET: "start the next take",
        SessionStage.SET_UP: "it is set up",
        SessionStage.DONE: "end",
    }
    yield Command.NEXT, go.get(state.stage, "start the take")
    if state.takes:
        yield Command.UNDO, "take back the last label"
        yield Command.UP, "earlier take; then label it"
    yield Command.PAUSE, "go on" if state.paused else "pause"
    yield Command.STOP, "end the session"

"""The states of a session: whatever is pressed whenever, no take is lost or begun too early."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gaploop.collect.operator import machine
from gaploop.collect.operator.keys import Command
from gaploop.collect.operator.machine import (
    CHOICES,
    RUNS_ON,
    SETTLE_S,
    LabelPrompt,
    LabelUpdate,
    Question,
    SessionStage,
    SessionState,
    StageTiming,
)
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome

TIMING = StageTiming(episode_s=10.0, reset_s=5.0)
C = Command


def recording(timing: StageTiming = TIMING, **more: object) -> SessionState:
    state, _ = machine.press(SessionState(timing), C.NEXT, 0.0)
    return replace(machine.begun(state, 0.0, timing.episode_s), **more)  # type: ignore[arg-type]


def verdict(proposed: Outcome | None = None) -> SessionState:
    return machine.ended(recording(), "a", 3.0, proposed)[0]


def play(
    state: SessionState, now_s: float, *commands: Command | int
) -> tuple[SessionState, list[LabelUpdate]]:
    """Press commands, or digits by their place, a second apart; return what was said."""
    said: list[LabelUpdate] = []
    for n, command in enumerate(commands):
        at_s = now_s + n
        if isinstance(command, Command):
            state, more = machine.press(state, command, at_s)
        else:
            state, more = machine.choose(state, command, at_s)
        said += [more] if more else []
    return state, said


class Session(RuleBasedStateMachine):
    """A session in which an operator presses anything at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.state = SessionState(StageTiming(10.0, 5.0))
        self.reset_began_s: float | None = None
        self.takes = 0
        self.running = False

    def take(self, step: machine.Step, *, asked: bool = False) -> None:
        before, (self.state, said) = self.state, step
        if self.state.stage is SessionStage.STARTING is not before.stage:
            assert not self.running
            assert not before.blocked
            if before.stage is SessionStage.RESET:
                assert asked, "a reset ends by time or by the operator's word"
            self.running = True
        if self.state.stage is SessionStage.ENDING:
            assert self.running
        for name, value in said.items():
            LabelEvent(self.state.newest, name, value, "a", "operator")  # in the vocabulary

    @rule(command=st.sampled_from(Command))
    def presses(self, command: Command) -> None:
        asked = command is Command.NEXT
        self.take(machine.press(self.state, command, self.now_s), asked=asked)

    @rule(place=st.integers(-1, 12))
    def chooses(self, place: int) -> None:
        self.take(machine.choose(self.state, place, self.now_s))

    @rule(duration_s=st.floats(0.0, 8.0))
    def waits(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.take(machine.tick(self.state, self.now_s))

    @rule(why=st.sampled_from(["", "tripped"]))
    def trips(self, why: str) -> None:
        self.state = machine.block(self.state, why)

    @precondition(lambda self: self.running)
    @rule(is_recorded=st.booleans(), outcome=st.sampled_from([None, *Outcome]))
    def ends(self, is_recorded: bool, outcome: Outcome | None) -> None:
        self.running = False
        self.takes += is_recorded
        uid = f"take{self.takes}" if is_recorded else ""
        self.state = machine.begun(self.state, self.now_s, TIMING.episode_s)
        self.take(machine.ended(self.state, uid, self.now_s, outcome))

    @invariant()
    def the_newest_take_is_known(self) -> None:
        assert self.state.newest == (f"take{self.takes}" if self.takes else "")

    @invariant()
    def a_question_is_about_a_known_take(self) -> None:
        if self.state.prompt is not None:
            assert self.state.prompt.uid == self.state.newest
        if self.state.stage is SessionStage.VERDICT:
            assert self.state.prompt is not None

    @invariant()
    def what_runs_is_shown_as_running(self) -> None:
        assert not self.running or self.state.stage in (*RUNS_ON, SessionStage.ENDED)
        assert self.running or self.state.stage not in RUNS_ON


TestSession = Session.TestCase


def test_a_take_goes_from_ready_through_verdict_and_reset_to_the_next() -> None:
    state, _ = play(SessionState(TIMING), 0.0, C.NEXT)
    assert state.stage is SessionStage.STARTING
    state = machine.begun(state, 1.0, TIMING.episode_s)
    assert state.left_s(4.0) == 7.0
    state, _ = play(state, 4.0, C.NEXT)
    assert state.stage is SessionStage.ENDING
    state, _ = machine.ended(state, "a", 4.1)
    assert state.stage is SessionStage.VERDICT
    state, said = play(state, 5.0, C.FAILURE, 6, 0)
    assert [dict(update) for update in said] == [
        {"outcome": "failure", "failure_mode": "", "dimensions": {}, "discard_reason": ""},
        {"failure_mode": "slip"},
        {"dimensions": {"contact_dynamics": 1.0}},
    ]
    assert state.stage is SessionStage.RESET
    assert machine.tick(state, 11.9)[0].stage is SessionStage.RESET
    assert machine.tick(state, 12.1)[0].stage is SessionStage.READY


def test_with_auto_start_the_next_take_begins_when_the_reset_is_over() -> None:
    state = recording(StageTiming(10.0, 5.0, auto_start=True))
    state, _ = machine.ended(state, "a", 2.0)
    state, _ = play(state, 3.0, C.SUCCESS)
    assert machine.tick(state, 7.9)[0].stage is SessionStage.RESET
    assert machine.tick(state, 8.0)[0].stage is SessionStage.STARTING


@pytest.mark.parametrize("command", [C.SUCCESS, C.FAILURE, C.DISCARD, C.RERECORD])
def test_a_verdict_pressed_while_recording_ends_the_take_and_is_not_asked_again(
    command: Command,
) -> None:
    state, _ = play(recording(), 3.0, command)
    assert state.stage is SessionStage.ENDING
    state, said = machine.ended(state, "a", 3.0)
    wanted = {C.SUCCESS: "success", C.FAILURE: "failure"}.get(command, "discarded")
    assert said["outcome"] == wanted
    if command is C.RERECORD:
        assert (state.stage, said["discard_reason"]) == (SessionStage.RESET, "re-recorded")


def test_enter_takes_what_is_proposed_and_right_passes_over() -> None:
    _, said = play(verdict(Outcome.FAILURE), 5.0, C.ACCEPT, C.DOWN, C.ACCEPT)
    assert [update.get("outcome") for update in said] == ["failure", None]
    state, said = play(verdict(Outcome.FAILURE), 5.0, C.FAILURE, C.NEXT, C.NEXT)
    assert len(said) == 1
    assert state.stage is SessionStage.RESET
    state, said = play(verdict(), 5.0, C.NEXT)
    assert (state.stage, said) == (SessionStage.RESET, [])


def test_enter_without_anything_marked_answers_nothing() -> None:
    state, said = play(verdict(), 5.0, C.ACCEPT)
    assert (state.stage, said) == (SessionStage.VERDICT, [])


def test_a_press_meant_for_the_take_does_not_answer_the_question_that_has_just_come() -> None:
    """The operator presses right as time runs out: the verdict must not be passed over by it."""
    state = verdict()
    state, said = machine.press(state, C.NEXT, 3.0 + SETTLE_S / 2)
    assert (state.stage, said) == (SessionStage.VERDICT, {})


def test_a_trip_lets_no_take_start() -> None:
    state = machine.block(SessionState(TIMING), "tripped")
    assert play(state, 0.0, C.NEXT)[0].stage is SessionStage.READY


def test_escape_while_recording_keeps_the_take_asks_and_then_leaves() -> None:
    state, _ = play(recording(), 2.0, C.STOP)
    assert state.stage is SessionStage.ENDING
    state, _ = machine.ended(state, "a", 2.5)
    assert state.stage is SessionStage.VERDICT
    state, (said,) = play(state, 4.0, C.SUCCESS)
    assert (state.stage, said["outcome"]) == (SessionStage.ENDED, "success")


def test_the_newest_take_is_labelled_anew() -> None:
    state = replace(SessionState(TIMING), newest="b")
    state, (said,) = play(state, 0.0, C.SUCCESS)
    assert (state.newest, said["outcome"]) == ("b", "success")
    assert state.stage is SessionStage.READY


@given(st.sampled_from(Question), st.integers(-30, 30))
def test_marking_goes_round_and_stays_among_the_answers(question: Question, step: int) -> None:
    marked = LabelPrompt("a", question).mark(step)
    assert marked.at is not None
    assert 0 <= marked.at < len(CHOICES[question])
    again = marked.mark(len(CHOICES[question]))
    assert again.at == marked.at

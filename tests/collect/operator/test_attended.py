"""A session with an operator: what he says is what the journal holds, and nothing waits for him."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.campaign import Quota
from gaploop.collect.operator.console import (
    ConsoleOperator,
    OperatorConsole,
    Safety,
    SessionLabels,
)
from gaploop.collect.operator.keys import HELD_S, Command, KeyMap
from gaploop.collect.operator.machine import CHOICES, Question, SessionStage, StageTiming
from gaploop.collect.operator.view import Loop, Quotas
from gaploop.collect.rig import Rig, embedded_rig
from gaploop.collect.take import SessionEnd, record_takes
from gaploop.core import labels
from gaploop.core.journal_format import LABELS, read_end, read_journal, take_folders
from gaploop.core.messages import LeaderSample
from gaploop.core.protocols import Leader
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome

C = Command
MODES, DIMENSIONS = CHOICES[Question.MODE], CHOICES[Question.DIMENSION]
WITHIN_S = 60.0


class Idle:
    """Asks for the home pose."""

    def reset(self) -> None:
        """Nothing to reset."""

    def read(self, t_s: float) -> LeaderSample:
        return LeaderSample(t_s, np.zeros(6))

    def done(self) -> bool:
        return False


class Desk:
    """A session in a thread, and the operator's hands on its console."""

    def __init__(self, journal: Path, takes: int):
        self.journal = journal
        self.book = SessionLabels(journal, "ana")
        self._ahead_s = 0.0
        self.console = OperatorConsole(
            *(StageTiming(0.3, 0.0), KeyMap(), self.book),
            task="t",
            now_s=lambda: time.monotonic() + self._ahead_s,
        )
        self.end: SessionEnd | None = None
        self.told: list[int] = []
        operator = ConsoleOperator(self.console, told=lambda: self.told.append(1))

        def record() -> None:
            self.end = record_takes(
                journal,
                TakeInfo("", "t"),
                [Quota(takes)],
                lambda _conditions: embedded_rig(),
                lambda _rig, _seed: idle(),
                stop=lambda: self.console.left,
                operator=operator,
                max_s=0.3,
            )

        self.thread = threading.Thread(target=record)

    def __enter__(self) -> Desk:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.console.leave()
        self.thread.join(WITHIN_S)
        self.book.close()

    def until(self, stage: SessionStage, *, is_so: Callable[[], bool] = lambda: True) -> None:
        """Wait for a stage, as the window does."""
        give_up_s = time.monotonic() + WITHIN_S
        while self.console.seen().state.stage is not stage or not is_so():
            assert time.monotonic() < give_up_s, self.console.seen().state
            time.sleep(0.01)

    def take(self, *keys: Command) -> None:
        """Record a take and press keys at its verdict, later than a slip of the finger."""
        self.until(SessionStage.READY)
        self.console.command(C.NEXT)
        self.until(SessionStage.VERDICT)
        self._ahead_s += 0.45
        for key in keys:
            self.console.command(key)

    def finished(self) -> SessionEnd:
        """Return how the session ended by itself."""
        self.thread.join(WITHIN_S)
        self.book.flush()
        assert self.end is not None
        return self.end


def idle() -> Leader:
    return Idle()


def said(journal: Path) -> list[tuple[str, object]]:
    return [(e.field, e.value) for e in labels.read(journal / LABELS) if e.source == "operator"]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = embedded_rig()
    yield made
    made.close()


def test_what_the_operator_says_is_what_the_journal_holds(tmp_path: Path) -> None:
    with Desk(tmp_path, 1) as desk:
        desk.take(C.FAILURE)
        desk.console.choose(MODES.index("slip"))
        desk.console.choose(DIMENSIONS.index("contact_dynamics"))
        desk.take(C.DISCARD)
        desk.console.choose(1)
        desk.take(C.SUCCESS)
        end = desk.finished()
    assert [take.outcome for take in end.takes] == ["failure", "discarded", "success"]
    assert (end.counted, end.wanted, end.gave_up) == (1, 1, ())
    failed, thrown, good = read_journal(tmp_path)
    assert (failed.outcome, failed.failure_mode) == (Outcome.FAILURE, "slip")
    assert failed.info.dimensions == {"contact_dynamics": 1.0}
    assert (thrown.outcome, good.outcome) == (Outcome.DISCARDED, Outcome.SUCCESS)
    assert ("discard_reason", "wrong set-up") in said(tmp_path)
    sealed = [read_end(folder) for folder in take_folders(tmp_path)]
    assert {end.outcome for end in sealed if end} == {Outcome.UNLABELLED}
    assert {e.author for e in labels.read(tmp_path / LABELS)} == {"ana"}


def test_a_take_is_sealed_while_the_operator_still_thinks(tmp_path: Path) -> None:
    with Desk(tmp_path, 1) as desk:
        desk.take()
        desk.until(
            SessionStage.VERDICT, is_so=lambda: read_end(take_folders(tmp_path)[0]) is not None
        )
        assert said(tmp_path) == []


def test_passing_over_leaves_it_unlabelled_and_it_can_be_said_later_and_otherwise(
    tmp_path: Path,
) -> None:
    with Desk(tmp_path, 3) as desk:
        desk.take(C.NEXT)
        desk.until(SessionStage.READY)
        uid = desk.console.seen().takes[-1].uid
        for command, outcome in ((C.SUCCESS, "success"), (C.DISCARD, "discarded")):
            desk.console.command(command)
            assert desk.console.outcome(uid, Outcome.UNLABELLED) == outcome
        desk.console.command(C.SUCCESS)  # instead of a reason
        assert desk.console.outcome(uid, Outcome.UNLABELLED) == "success"
    assert next(read_journal(tmp_path)).outcome is Outcome.SUCCESS


def test_a_take_relabelled_as_failed_is_recorded_once_more(tmp_path: Path) -> None:
    with Desk(tmp_path, 2) as desk:
        desk.take(C.SUCCESS)
        desk.until(SessionStage.READY)
        time.sleep(0.2)  # the session waits for the next take by now
        told = len(desk.told)
        desk.console.command(C.FAILURE)
        desk.until(
            SessionStage.READY, is_so=lambda: len(desk.told) > told
        )  # quotas are counted at once
        desk.console.command(C.NEXT)
        desk.console.command(C.NEXT)
        desk.take(C.SUCCESS)
        desk.take(C.SUCCESS)
        assert desk.finished().counted == 2
    assert len(take_folders(tmp_path)) == 3


def test_closing_the_window_interrupts_the_open_take_and_keeps_the_rest(tmp_path: Path) -> None:
    with Desk(tmp_path, 5) as desk:
        desk.take(C.SUCCESS)
        desk.until(SessionStage.READY)
        desk.console.leave()
        assert desk.finished().counted == 1


def console_with(safety: Safety, **more: object) -> OperatorConsole:
    made = OperatorConsole(
        StageTiming(1.0, 0.0), KeyMap(), SessionLabels(Path("/nowhere"), ""), **more
    )  # type: ignore[arg-type]
    made.safety = safety
    return made


def test_a_trip_is_cleared_by_two_presses_and_the_e_stop_works_at_any_time() -> None:
    done: list[str] = []
    tripped = [""]
    now = [0.0]
    console = console_with(
        Safety(
            lambda: done.append("estop"),
            lambda: done.append("clear"),
            lambda: Loop(trip=tripped[0]),
        ),
        now_s=lambda: now[0],
    )
    console.key("space")
    console.key("c")
    assert done == ["estop"]
    tripped[0] = "emergency stop"
    assert console.seen().state.blocked
    now[0] = 10.0
    console.key("c")
    now[0] = 14.0  # too late for the second press
    console.key("c")
    assert done == ["estop"]
    console.key("right")
    assert console.seen().state.stage is SessionStage.READY
    now[0] = 15.0
    console.key("c")
    now[0] += 2 * HELD_S
    console.seen()
    assert done == ["estop", "clear"]
    tripped[0] = ""
    assert not console.seen().state.blocked


def test_the_operator_says_when_a_set_up_stands() -> None:
    console = console_with(Safety())
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(console.await_set_up("lighting: dim")))
    thread.start()
    give_up_s = time.monotonic() + WITHIN_S
    while (seen := console.seen()).state.stage is not SessionStage.SET_UP:
        assert time.monotonic() < give_up_s
    assert seen.setup == "lighting: dim"
    console.key("right")
    thread.join(WITHIN_S)
    assert answers == [True]


def test_nobody_is_asked_where_nobody_is() -> None:
    console = console_with(Safety(loop=lambda: Loop(trip="too hot")), attended=False)
    console.seen()
    assert console.await_set_up("x")
    console.command(C.NEXT)
    assert console.await_start()
    assert console.await_verdict("a", Outcome.UNLABELLED) is Outcome.UNLABELLED
    console.quotas = Quotas(1, 1)


@pytest.mark.parametrize("attended", [True, False])
def test_what_is_in_the_way_of_the_next_take_is_shown_to_whoever_looks(attended: bool) -> None:
    """Where nobody is asked, a full disk was shown as "The episode is about to begin."."""
    console = console_with(Safety(), attended=attended)
    ways, seen = ["no room", "no room", ""], list[str]()

    def blocker() -> str:
        shown = console.seen().state
        seen.append(f"{shown.stage.value} {shown.blocked}")
        if not ways[0]:
            console.command(C.NEXT)
        return ways.pop(0) if ways[1:] else ways[0]

    assert ConsoleOperator(console).begin(blocker, lambda: False)
    assert seen[1].endswith(" no room")
    assert not console.seen().state.blocked


def test_a_label_that_cannot_be_written_is_said_and_still_stands(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file where the folder should be")
    book = SessionLabels(tmp_path / "journal", "ana")
    book.add("a", Outcome.UNLABELLED)
    book.say("a", {"outcome": "success"})
    book.close()
    assert "wasn't written" in book.fault
    assert book.outcome("a") is Outcome.SUCCESS


def test_what_was_said_of_a_lost_servo_goes_when_it_answers_again() -> None:
    """ "Check that servo's cable" stayed after it had been done."""
    loop = [Loop()]
    console = console_with(Safety(loop=lambda: loop[0]))
    loop[0] = Loop(lost="a servo stopped answering")
    console.seen()
    console.note("The episode is interrupted: check that servo's cable.")
    assert "cable" in console.seen().note
    loop[0] = Loop(lost="Everything answers again.", found=True)
    assert console.seen().note == ""

"""What is shown: the same in window and terminal, in every state, without a display."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console as Rich

from gaploop.collect.intervention import Driver
from gaploop.collect.operator.keys import ROLLOUT, KeyMap
from gaploop.collect.operator.machine import (
    LabelPrompt,
    Question,
    SessionStage,
    SessionState,
    StageTiming,
)
from gaploop.collect.operator.terminal import line, render
from gaploop.collect.operator.view import (
    Loop,
    QuotaBar,
    Quotas,
    ScreenContent,
    Shown,
    TakeSeen,
    Tone,
    look,
)
from gaploop.collect.operator.window import (
    SIZE_PX,
    OperatorWindow,
    name_of,
)
from gaploop.collect.rollout import Driven
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.leaders.panel import pygame

TIMING = StageTiming(10.0, 5.0)
SLIP = {"outcome": "failure", "failure_mode": "slip", "dimensions": {"contact_dynamics": 1.0}}

states = st.builds(
    SessionState,
    st.just(TIMING),
    stage=st.sampled_from(SessionStage),
    since_s=st.floats(0, 10),
    prompt=st.none()
    | st.builds(
        LabelPrompt,
        st.just("a"),
        st.sampled_from(Question),
        st.none() | st.sampled_from(Outcome),
    ),
    blocked=st.sampled_from(["", "No episode starts before this is cleared."]),
    newest=st.sampled_from(["", "a"]),
)
seens = st.builds(
    ScreenContent,
    st.floats(0, 30),
    states,
    st.sampled_from([KeyMap(), KeyMap(ROLLOUT)]),
    task=st.sampled_from(["", "Put the cube on the disc"]),
    quotas=st.builds(
        Quotas,
        st.integers(0, 20),
        st.integers(0, 20),
        st.lists(
            st.builds(QuotaBar, st.just("visual domain"), st.integers(0, 9), st.integers(0, 9))
        ).map(tuple),
        st.just(math.nan) | st.floats(0, 1e5),
    ),
    takes=st.sampled_from(
        [(), (TakeSeen(3, "a", SLIP), TakeSeen(4, "b", {"outcome": "unlabelled"}))]
    ),
    loop=st.builds(
        Loop,
        st.just(math.nan) | st.floats(0, 1000),
        dropped=st.sampled_from([{}, {"top": 3}]),
        trip=st.sampled_from(["", "a motor is too hot (gripper). To go on: let it cool."]),
        faults=st.sampled_from([(), ("the camera is slow",)]),
        behind_s=st.sampled_from([0.0, 1.2]),
        clears=st.booleans(),
    ),
    setup=st.sampled_from(["", "lighting: dim"]),
    driven=st.none()
    | st.builds(
        Driven,
        st.sampled_from(Driver),
        st.booleans(),
        st.floats(0.1, 1.0),
        st.none() | st.integers(0, 20),
        st.integers(0, 9),
        st.floats(0, 99),
    ),
)


@pytest.fixture(scope="module")
def window() -> Iterator[OperatorWindow]:
    made = OperatorWindow("test")
    yield made
    made.close()


def text_of(shown: Shown) -> str:
    buffer = io.StringIO()
    Rich(file=buffer, width=200).print(render(shown, 200))
    return buffer.getvalue()


@settings(max_examples=60, deadline=None)
@given(seens)
def test_everything_can_be_shown_and_the_terminal_says_all_of_it(seen: ScreenContent) -> None:
    shown = look(seen)
    said = text_of(shown)
    words = [shown.word, shown.count, shown.note, shown.driving, *(c.words for c in shown.choices)]
    words += [row.words for row in shown.rows] + [hint.does for hint in shown.hints]
    assert all(word in said for word in words if word)
    assert "\n" not in line(shown)
    if seen.loop.trip:
        assert shown.word == "TRIPPED"
        assert seen.loop.trip in shown.below
        does = [hint.does for hint in shown.hints]
        assert does[:1] == ["clear the trip"] if seen.loop.clears else "clear the trip" not in does
    if seen.state.prompt is not None:
        assert len(shown.choices) == len(seen.state.prompt.choices)
        assert sum(choice.marked for choice in shown.choices) <= 1


@settings(max_examples=25, deadline=None)
@given(seen=seens, size=st.sampled_from([SIZE_PX, (640, 400), (1920, 1200)]))
def test_every_state_can_be_drawn_at_every_size(
    window: OperatorWindow, seen: ScreenContent, size: tuple[int, int]
) -> None:
    pygame.display.set_mode(size)
    picture = np.full((48, 64, 3), 200, dtype=np.uint8)
    window.draw(look(seen), {"top": picture, "wrist": picture}, "holding: Hold Space to move.")
    surface = pygame.display.get_surface()
    assert surface.get_size() == size
    assert len({tuple(surface.get_at((x, size[1] // 8))) for x in range(0, size[0], 3)}) > 1


@pytest.mark.parametrize(
    ("stage", "colour"),
    [(SessionStage.RECORDING, (200, 44, 44)), (SessionStage.READY, (22, 128, 66))],
)
def test_the_state_is_a_word_of_25_mm_on_its_colour(
    window: OperatorWindow, stage: SessionStage, colour: tuple[int, int, int]
) -> None:
    pygame.display.set_mode(SIZE_PX)
    window.draw(look(ScreenContent(1.0, SessionState(TIMING, stage), KeyMap())), {})
    pixels = pygame.surfarray.array3d(pygame.display.get_surface()).transpose(1, 0, 2)
    assert tuple(pixels[4, 4]) == colour
    ink = (pixels[:150, :900] > 200).all(axis=2).any(axis=1)
    assert ink.sum() >= 94  # 25 mm at 96 dpi


def test_a_picture_is_drawn_where_it_belongs_in_its_own_colours(window: OperatorWindow) -> None:
    pygame.display.set_mode(SIZE_PX)
    red = np.zeros((48, 64, 3), dtype=np.uint8)
    red[:] = (250, 10, 20)
    window.draw(look(ScreenContent(1.0, SessionState(TIMING), KeyMap())), {"top": red})
    assert tuple(pygame.display.get_surface().get_at((380, 480)))[:3] == (250, 10, 20)


@pytest.mark.parametrize("question", list(Question))
def test_pictures_stay_while_a_question_is_open(question: Question, window: OperatorWindow) -> None:
    """The picture vanished behind the question, though the arm went on following its leader."""
    pygame.display.set_mode(SIZE_PX)
    pink = np.full((48, 64, 3), (250, 10, 200), dtype=np.uint8)
    state = SessionState(TIMING, stage=SessionStage.VERDICT, prompt=LabelPrompt("a", question))
    window.draw(look(ScreenContent(1.0, state, KeyMap())), {"top": pink, "side": pink})
    shown = pygame.surfarray.array3d(pygame.display.get_surface())
    assert (shown == (250, 10, 200)).all(axis=2).sum() > 60_000  # pixels


def test_the_time_left_and_its_share_go_together() -> None:
    seen = ScreenContent(4.0, SessionState(TIMING, SessionStage.RECORDING), KeyMap(), task="t")
    shown = look(seen)
    assert (shown.clock, shown.share, shown.tone) == ("0:06", pytest.approx(0.4), Tone.RECORD)
    assert look(replace(seen, now_s=30.0)).clock == "0:00"
    assert (
        look(
            ScreenContent(
                0.0, SessionState(StageTiming(90.0, 5.0), SessionStage.RECORDING), KeyMap()
            )
        ).clock
        == "1:30"
    )


def test_what_a_take_is_labelled_is_said_in_words() -> None:
    takes = (TakeSeen(1, "a", SLIP), TakeSeen(2, "b", {"outcome": "success", "failure_mode": ""}))
    rows = look(ScreenContent(0.0, SessionState(TIMING, newest="b"), KeyMap(), takes=takes)).rows
    assert [(r.number, r.words) for r in rows] == [
        (2, "success"),
        (1, "failure: slip, contact dynamics"),
    ]


@pytest.mark.usefixtures("window")
def test_keys_of_the_window_have_the_names_of_the_map() -> None:
    def pressed(key: int) -> str:
        return name_of(pygame.event.Event(pygame.KEYDOWN, key=key))

    named = {pygame.K_RIGHT: "right", pygame.K_s: "s", pygame.K_KP5: "5"}
    assert {key: pressed(key) for key in named} == named
    assert pressed(pygame.K_LSHIFT) == pressed(pygame.K_ESCAPE) == ""
    assert name_of(pygame.event.Event(pygame.KEYUP, key=pygame.K_s)) == ""


@given(seens)
def test_an_encoder_that_falls_behind_is_told_before_pictures_are_dropped(
    seen: ScreenContent,
) -> None:
    shown = look(seen)
    if seen.loop.behind_s and not seen.loop.lost:
        assert "1.2 s BEHIND" in shown.loop
        assert shown.trouble

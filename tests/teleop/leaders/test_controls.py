from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gaploop.teleop.leaders.controls import Action, Controls
from gaploop.teleop.leaders.options import CartesianOptions

events = st.lists(
    st.tuples(st.sampled_from(Action), st.sampled_from(["press", "release", "lose focus"]))
)


@given(events)
def test_held_means_that_the_last_word_about_the_button_was_press(
    said: list[tuple[Action, str]],
) -> None:
    """Also for buttons that arrive twice, out of order, or that the focus was lost on."""
    controls = Controls(CartesianOptions())
    held = False
    for action, what in said:
        if what == "press":
            controls.press(action)
            held = (held or action is Action.HOLD) and action not in (Action.ESTOP, Action.CLEAR)
        elif what == "release":
            controls.release(action)
            held = held and action is not Action.HOLD
        else:
            controls.release_all()
            held = False
        assert controls.intent().held == held
        assert 1 <= controls.intent().step <= 4


def test_opposite_keys_cancel() -> None:
    controls = Controls(CartesianOptions())
    controls.press(Action.LEFT)
    controls.press(Action.RIGHT)
    controls.press(Action.UP, 0.4)
    intent = controls.intent()
    assert (intent.left, intent.up) == (0.0, 0.4)


def test_estop_is_told_once_and_lets_go_of_everything() -> None:
    told: list[str] = []
    controls = Controls(
        CartesianOptions(), lambda: told.append("e-stop"), lambda: told.append("clear")
    )
    controls.press(Action.HOLD)
    controls.press(Action.ESTOP)
    controls.press(Action.FORWARD)
    assert told == ["e-stop"]
    assert not controls.intent().held
    controls.press(Action.CLEAR)
    assert told == ["e-stop", "clear"]


def test_clutch_uncouples_although_the_dead_man_is_held() -> None:
    controls = Controls(CartesianOptions())
    controls.press(Action.HOLD)
    assert controls.intent().drives
    controls.press(Action.CLUTCH)
    assert not controls.intent().drives
    controls.release(Action.CLUTCH)
    controls.press(Action.CLUTCH)
    assert controls.intent().drives


def test_the_frame_does_not_change_while_moving() -> None:
    controls = Controls(CartesianOptions())
    controls.press(Action.HOLD)
    controls.press(Action.FRAME)
    assert controls.intent().frame == "base"
    controls.release_all()
    controls.press(Action.FRAME)
    assert controls.intent().frame == "tool"


def test_speed_keys_stop_at_the_ends() -> None:
    controls = Controls(CartesianOptions(speed_step=4))
    for action in (Action.FASTER, Action.SLOWER):
        for _ in range(6):
            controls.press(action)
            controls.release(action)
    assert controls.intent().step == 1


def test_nothing_drives_without_device_focus_or_clutch() -> None:
    controls = Controls(CartesianOptions())
    controls.press(Action.HOLD)
    assert controls.intent().drives
    assert not controls.intent(present=False).drives
    assert not controls.intent(focused=False).drives
    assert not replace(controls.intent(), clutch_in=False).drives

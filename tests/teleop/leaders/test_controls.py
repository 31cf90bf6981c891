from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gaploop.teleop.leaders.controls import ControlAction, Controls

events = st.lists(
    st.tuples(st.sampled_from(ControlAction), st.sampled_from(["press", "release", "lose focus"]))
)


@given(events)
def test_held_means_that_the_last_word_about_the_button_was_press(
    said: list[tuple[ControlAction, str]],
) -> None:
    """Also for buttons that arrive twice, out of order, or that the focus was lost on."""
    controls = Controls()
    held = False
    for action, what in said:
        if what == "press":
            controls.press(action)
            held = (held or action is ControlAction.HOLD) and action not in (
                ControlAction.ESTOP,
                ControlAction.CLEAR,
            )
        elif what == "release":
            controls.release(action)
            held = held and action is not ControlAction.HOLD
        else:
            controls.release_all()
            held = False
        assert controls.intent().held == held
        assert 1 <= controls.intent().step <= 4


def test_opposite_keys_cancel() -> None:
    controls = Controls()
    controls.press(ControlAction.LEFT)
    controls.press(ControlAction.RIGHT)
    controls.press(ControlAction.UP, 0.4)
    intent = controls.intent()
    assert (intent.left, intent.up) == (0.0, 0.4)


def test_estop_is_told_once_and_lets_go_of_everything() -> None:
    told: list[str] = []
    controls = Controls()
    controls.listen(lambda: told.append("e-stop"), lambda: told.append("clear"))
    controls.press(ControlAction.HOLD)
    controls.press(ControlAction.ESTOP)
    controls.press(ControlAction.FORWARD)
    assert told == ["e-stop"]
    assert not controls.intent().held
    controls.press(ControlAction.CLEAR)
    assert told == ["e-stop", "clear"]


def test_the_frame_does_not_change_while_moving() -> None:
    controls = Controls()
    controls.press(ControlAction.HOLD)
    controls.press(ControlAction.FRAME)
    assert controls.intent().frame == "base"
    controls.release_all()
    controls.press(ControlAction.FRAME)
    assert controls.intent().frame == "tool"


def test_speed_keys_stop_at_the_ends() -> None:
    controls = Controls()
    for action in (ControlAction.FASTER, ControlAction.SLOWER):
        for _ in range(6):
            controls.press(action)
            controls.release(action)
    assert controls.intent().step == 1


def test_nothing_drives_without_device_or_focus() -> None:
    controls = Controls()
    controls.press(ControlAction.HOLD)
    assert controls.intent().drives
    assert not controls.intent(present=False).drives
    assert not controls.intent(focused=False).drives

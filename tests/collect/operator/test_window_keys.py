"""A leader with a window of its own in `gaploop teleoperate`: kept alive, and its keys heeded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gaploop.collect import lerobot_factory
from gaploop.collect.devices import lost_after_trip, subscribers
from gaploop.collect.lerobot_registry import registries
from gaploop.collect.operator.keys import PUMP_S, Keys, WindowKeys
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import LeaderSample, SafetyReason
from gaploop.sim.lerobot_devices import So101SimConfig
from gaploop.teleop.leaders.motion import MotionLeader
from gaploop.teleop.leaders.options import ForceOptions
from gaploop.teleop.lerobot_motion import MotionConfig

WITHIN_S = 120.0
"""Something that hangs is given up after this long."""


class Window:
    """A leader's window, in which the test presses keys."""

    def __init__(self) -> None:
        self.pumped: list[str] = []
        self.presses: list[Callable[[], None]] = []
        self.estop: Callable[[], None] = lambda: None
        self.clear: Callable[[], None] = lambda: None

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        self.estop, self.clear = on_estop, on_clear

    def pump(self, trip: str = "") -> None:
        self.pumped.append(trip)
        if self.presses:
            self.presses.pop(0)()

    def reset(self) -> None:
        pass

    def read(self, t_s: float) -> LeaderSample:
        raise NotImplementedError

    def done(self) -> bool:
        return False


def test_the_window_is_pumped_while_a_key_is_waited_for() -> None:
    window = Window()
    keys = WindowKeys.of(Keys(), window, lambda: None)
    keys.say("stall (elbow_flex). To go on: free it")
    window.presses = [lambda: None, lambda: None, lambda: window.clear()]
    assert keys.presses(WITHIN_S) == ["c"]
    assert len(window.pumped) == 3
    assert keys.presses(PUMP_S) == []
    assert window.pumped[-1] == "stall (elbow_flex). To go on: free it"


def test_the_window_names_the_key_that_clears_there() -> None:
    """It said "press c twice" where Enter clears and c closes the gripper."""
    words = WindowKeys(Keys(), Window(), lambda: None).clear_hint
    assert "Enter" in words
    assert "c twice" not in words
    assert Keys().clear_hint == ""  # nobody is there to press anything


def test_its_estop_is_told_at_once_and_its_clear_is_a_key() -> None:
    told: list[str] = []
    window = Window()
    keys = WindowKeys.of(Keys(), window, lambda: told.append("e-stop"))
    window.presses = [lambda: window.estop(), lambda: window.clear()]
    assert keys.presses(WITHIN_S) == ["space"]
    assert keys.presses(WITHIN_S) == ["c"]
    assert told == ["e-stop"]
    assert keys.works


def test_an_estop_in_the_window_is_told_before_what_else_was_pressed_there() -> None:
    told: list[str] = []
    window = Window()
    keys = WindowKeys.of(Keys(), window, lambda: told.append("e-stop"))

    def both() -> None:
        window.clear()
        window.estop()

    window.presses = [both]
    assert keys.presses(1.0) == ["space", "c"]
    assert told == ["e-stop"]


def test_a_gamepad_that_was_pulled_out_needs_no_new_connection() -> None:
    both = SafetyReason.STALE_LEADER | SafetyReason.LOST_SERVO
    assert lost_after_trip(Window()) & both == SafetyReason.LOST_SERVO
    assert lost_after_trip(None) & both == both


def test_a_leader_without_a_window_leaves_the_terminals_keys() -> None:
    class Arm:
        pass

    terminal = Keys(None)
    assert WindowKeys.of(terminal, Arm(), lambda: None) is terminal  # type: ignore[arg-type]
    assert subscribers(Arm()) == ()  # type: ignore[arg-type]


def test_motion_is_a_teleoperator_of_the_embedded_cell() -> None:
    _, teleoperators, _ = registries()
    assert teleoperators.get_choice_class("motion") is MotionConfig  # type: ignore[attr-defined]
    station = lerobot_factory.station_for(So101SimConfig(), None)
    arms = lerobot_factory.connect(
        So101SimConfig(), MotionConfig(script="chirp", seconds=2.0), station
    )
    try:
        assert isinstance(arms.leader, MotionLeader)
        assert subscribers(arms.leader) == (arms.leader,)
        arms.leader.reset()
        assert arms.leader.duration_s > 10.0
    finally:
        arms.follower.close()


def test_force_feedback_of_a_leader_without_motors_gets_one_clear_line() -> None:
    inputs = lerobot_factory.LeaderInputs(force=ForceOptions(enabled=True))
    station = lerobot_factory.station_for(So101SimConfig(), None)
    with pytest.raises(UnusableInputError, match="not motion") as caught:
        lerobot_factory.connect(So101SimConfig(), MotionConfig(), station, inputs=inputs)
    assert "\n" not in str(caught.value)

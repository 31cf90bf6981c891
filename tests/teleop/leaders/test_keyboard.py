"""The keyboard's window on SDL's dummy display, driven by posted events."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaploop.core.errors import DeviceError
from gaploop.core.kinematics import ArmModel
from gaploop.teleop.leaders.cartesian import CartesianLeader
from gaploop.teleop.leaders.controls import ControlAction, Controls, Intent
from gaploop.teleop.leaders.panel import (
    BASE_HELP,
    BASE_KEYS,
    KEY_HELP,
    KEYS,
    BaseKeyboard,
    Keyboard,
    pygame,
    sign_of,
)

START = np.array([0.0, -0.3, 0.6, 0.6, 0.0, 0.2])


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Desk:
    def __init__(self) -> None:
        self.clock, self.told = Clock(), list[str]()
        controls = Controls()
        controls.listen(lambda: self.told.append("e-stop"), lambda: self.told.append("clear"))
        self.keyboard = Keyboard(controls, "test", self.clock)
        self.post(pygame.WINDOWFOCUSGAINED)

    def post(self, kind: int, **values: int) -> None:
        pygame.event.post(pygame.event.Event(kind, **values))

    def key(self, scancode: int, *, down: bool = True) -> None:
        self.post(pygame.KEYDOWN if down else pygame.KEYUP, scancode=scancode, key=0)

    def intent(self) -> Intent:
        self.keyboard.pump()
        return self.keyboard.latest().intent


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.keyboard.close()


def test_keys_say_what_they_mean(desk: Desk) -> None:
    for scancode in (pygame.KSCAN_SPACE, pygame.KSCAN_W, pygame.KSCAN_V, pygame.KSCAN_3):
        desk.key(scancode)
    intent = desk.intent()
    assert intent.drives
    assert (intent.forward, intent.gripper, intent.step) == (1.0, 1.0, 3)
    desk.key(pygame.KSCAN_W, down=False)
    assert desk.intent().forward == 0.0


def test_every_action_has_a_key_and_every_key_is_explained() -> None:
    assert {*KEYS.values(), *BASE_KEYS.values()} == set(ControlAction)
    assert len(KEY_HELP) >= len(KEYS) / 2
    assert len(BASE_HELP) >= len(BASE_KEYS) / 2


def test_losing_the_focus_releases_the_dead_man(desk: Desk) -> None:
    desk.key(pygame.KSCAN_SPACE)
    assert desk.intent().drives
    desk.post(pygame.WINDOWFOCUSLOST)
    assert not desk.intent().drives
    desk.post(pygame.WINDOWFOCUSGAINED)
    assert not desk.intent().drives, "the button must be pressed anew"
    desk.key(pygame.KSCAN_SPACE)
    assert desk.intent().drives


def test_estop_and_clear_reach_the_loop(desk: Desk) -> None:
    desk.key(pygame.KSCAN_ESCAPE)
    desk.key(pygame.KSCAN_RETURN)
    desk.intent()
    assert desk.told == ["e-stop", "clear"]


def test_closing_the_window_ends_the_session(desk: Desk) -> None:
    desk.post(pygame.QUIT)
    desk.key(pygame.KSCAN_SPACE)
    desk.intent()
    assert desk.keyboard.latest().closed


SPEEDS = np.array([[-0.2, 0.2], [-0.1, 0.1], [-1.0, 1.0]])


class Cab(Desk):
    """A base's keys in place of an arm's."""

    def __init__(self) -> None:
        super().__init__()
        self.keyboard.close()
        self.base = self.keyboard = BaseKeyboard(
            ("x.vel", "y.vel", "theta.vel"), SPEEDS, "test", self.clock
        )
        self.base.listen(lambda: self.told.append("e-stop"), lambda: self.told.append("clear"))
        self.post(pygame.WINDOWFOCUSGAINED)

    def speeds(self) -> list[float]:
        self.keyboard.pump()
        return list(self.base.speeds())


@pytest.fixture
def cab() -> Iterator[Cab]:
    made = Cab()
    yield made
    made.keyboard.close()


@pytest.mark.parametrize(
    ("key", "way"),
    [
        (pygame.KSCAN_W, [0.2, 0.0, 0.0]),
        (pygame.KSCAN_S, [-0.2, 0.0, 0.0]),
        (pygame.KSCAN_A, [0.0, 0.1, 0.0]),
        (pygame.KSCAN_D, [0.0, -0.1, 0.0]),
        (pygame.KSCAN_Z, [0.0, 0.0, 1.0]),
        (pygame.KSCAN_X, [0.0, 0.0, -1.0]),
    ],
)
def test_a_base_goes_while_shift_is_held_in_shares_of_its_limits(
    cab: Cab, key: int, way: list[float]
) -> None:
    """With a leader arm nobody could drive LeKiwi's base: the arm asks for no speed."""
    still = [0.0, 0.0, 0.0]
    cab.key(key)
    assert cab.speeds() == still
    cab.key(pygame.KSCAN_LSHIFT)
    assert cab.speeds() == pytest.approx(np.multiply(way, 0.25))
    cab.key(pygame.KSCAN_4)
    assert cab.speeds() == pytest.approx(way)
    cab.post(pygame.WINDOWFOCUSLOST)
    assert cab.speeds() == still
    cab.post(pygame.WINDOWFOCUSGAINED)
    cab.key(pygame.KSCAN_RSHIFT)
    cab.key(key)
    assert cab.speeds() == pytest.approx(way)
    cab.key(pygame.KSCAN_RSHIFT, down=False)
    assert cab.speeds() == still


def test_a_base_stands_where_nobody_hears_its_keys_and_space_stops_the_arm(cab: Cab) -> None:
    cab.key(pygame.KSCAN_LSHIFT)
    cab.key(pygame.KSCAN_W)
    assert any(cab.speeds())
    heard = []
    thread = threading.Thread(target=lambda: heard.append(cab.base.speeds().tolist()))
    cab.clock.now_s += 0.3
    thread.start()
    thread.join()
    assert heard == [[0.0, 0.0, 0.0]], "the main thread hangs"
    cab.key(pygame.KSCAN_SPACE)
    assert not any(cab.speeds())
    assert cab.told == ["e-stop"]
    cab.post(pygame.QUIT)
    cab.speeds()
    assert cab.base.done()


def test_a_main_thread_that_hangs_makes_the_input_old(desk: Desk) -> None:
    desk.key(pygame.KSCAN_SPACE)
    desk.intent()
    heard = []
    thread = threading.Thread(target=lambda: heard.append(desk.keyboard.latest()))
    desk.clock.now_s += 0.3
    thread.start()
    thread.join()
    assert heard[0].age_s == pytest.approx(0.3)
    assert desk.keyboard.latest().age_s == 0.0, "on the main thread, asking pumps"


def test_closed_twice_and_heard_after(desk: Desk) -> None:
    desk.keyboard.close()
    desk.keyboard.close()
    assert not desk.keyboard.latest().intent.drives
    assert desk.keyboard.latest().closed


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_no_event_moves_the_arm_without_the_dead_man(desk: Desk, data: st.DataObject) -> None:
    """The law end to end: events in, joint angles out."""
    arm = ArmModel.load("so101")
    leader = CartesianLeader(arm, arm.joint_limits_rad, desk.keyboard, lambda: START)
    leader.reset()
    desk.keyboard.controls.release_all()
    others = [code for code in KEYS if code != pygame.KSCAN_SPACE]
    before = leader.read(desk.clock.now_s).q_rad
    for _ in range(data.draw(st.integers(1, 8))):
        event = data.draw(st.sampled_from(["press", "release", "hold", "let go", "blur", "focus"]))
        if event in ("press", "release"):
            desk.key(data.draw(st.sampled_from(others)), down=event == "press")
        elif event in ("hold", "let go"):
            desk.key(pygame.KSCAN_SPACE, down=event == "hold")
        else:
            desk.post(pygame.WINDOWFOCUSLOST if event == "blur" else pygame.WINDOWFOCUSGAINED)
        drives = desk.intent().drives
        for _ in range(3):
            desk.clock.now_s += 0.02
            desk.keyboard.pump()
            after = leader.read(desk.clock.now_s).q_rad
        if not drives:
            np.testing.assert_array_equal(after, before)
        before = after


def test_what_the_window_says() -> None:
    held = Intent(held=True)
    assert sign_of(Intent(), (), "", "Space").word == "HOLDING"
    assert sign_of(held, (ControlAction.HOLD, ControlAction.UP), "", "Space").word == "MOVING"
    assert "up" in sign_of(held, (ControlAction.HOLD, ControlAction.UP), "", "Space").below
    assert sign_of(held, (), "Stall", "Space").word == "TRIPPED"
    assert sign_of(Intent(focused=False), (), "", "Space").word == "CLICK HERE"
    assert sign_of(Intent(present=False), (), "Stale", "R1").word == "NO GAMEPAD"


def test_the_window_is_drawn(desk: Desk) -> None:
    desk.intent()
    waiting = pygame.surfarray.array3d(pygame.display.get_surface())
    desk.key(pygame.KSCAN_SPACE)
    desk.key(pygame.KSCAN_W)
    desk.clock.now_s += 1.0
    desk.intent()
    moving = pygame.surfarray.array3d(pygame.display.get_surface())
    assert moving[5, 5, 1] > 100, "green"
    assert (waiting != moving).any()


@pytest.mark.parametrize("driver", ["nowhere", ""])
def test_without_a_display_there_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """Left alone, SDL drew on a surface that nobody sees, and the operator waited for a window."""
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if driver:
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    with pytest.raises(DeviceError, match="No window can be opened") as caught:
        Keyboard(Controls(), "test")
    assert "\n" not in str(caught.value)

"""The gamepad, through SDL's own virtual joystick: plugged in, used, pulled out, put back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaploop.core.errors import DeviceError
from gaploop.teleop.leaders.controls import Controls, TimedIntent
from gaploop.teleop.leaders.panel import Gamepad, pygame

GAMEPAD = 1  # SDL_JOYSTICK_TYPE_GAMECONTROLLER


def sdl_library() -> ctypes.CDLL:
    """Return the SDL that pygame itself has loaded."""
    beside = Path(pygame.__file__).parent.parent / "pygame.libs"
    found = sorted(beside.glob("libSDL2-2*"))
    if not found:
        pytest.skip("this pygame doesn't carry its own SDL")
    library = ctypes.CDLL(str(found[0]))
    library.SDL_JoystickFromInstanceID.restype = ctypes.c_void_p
    library.SDL_JoystickSetVirtualAxis.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int16)
    library.SDL_JoystickSetVirtualButton.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint8)
    return library


class Desk:
    def __init__(self) -> None:
        self.sdl, self.now_s, self.told = sdl_library(), 100.0, list[str]()
        pygame.display.init()
        pygame.joystick.init()
        self.plug_in()
        controls = Controls()
        controls.listen(lambda: self.told.append("e-stop"), lambda: self.told.append("clear"))
        self.gamepad = Gamepad(controls, "test", lambda: self.now_s)
        pygame.event.post(pygame.event.Event(pygame.WINDOWFOCUSGAINED))

    def plug_in(self) -> None:
        assert self.sdl.SDL_JoystickAttachVirtual(GAMEPAD, 6, 15, 0) >= 0

    def pull_out(self) -> None:
        assert self.sdl.SDL_JoystickDetachVirtual(0) == 0

    @property
    def stick(self) -> int:
        newest = pygame.joystick.Joystick(0).get_instance_id()
        return int(self.sdl.SDL_JoystickFromInstanceID(newest))

    def axis(self, number: int, share: float) -> None:
        self.sdl.SDL_JoystickSetVirtualAxis(self.stick, number, round(share * 32767))

    def button(self, number: int, *, down: bool = True) -> None:
        self.sdl.SDL_JoystickSetVirtualButton(self.stick, number, int(down))

    def latest(self) -> TimedIntent:
        self.gamepad.pump()
        return self.gamepad.latest()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.gamepad.close()
    if pygame.joystick.get_init() and pygame.joystick.get_count():
        made.pull_out()


def hold(desk: Desk) -> None:
    desk.button(pygame.CONTROLLER_BUTTON_RIGHTSHOULDER)


def test_sticks_and_buttons_say_what_they_mean(desk: Desk) -> None:
    hold(desk)
    desk.axis(pygame.CONTROLLER_AXIS_LEFTY, -1.0)
    desk.axis(pygame.CONTROLLER_AXIS_RIGHTX, 1.0)
    intent = desk.latest().intent
    assert intent.drives
    assert intent.forward == pytest.approx(1.0)
    assert intent.roll == pytest.approx(1.0)


def test_worn_sticks_rest_and_little_way_is_little_speed(desk: Desk) -> None:
    hold(desk)
    desk.axis(pygame.CONTROLLER_AXIS_LEFTX, 0.12)
    desk.axis(pygame.CONTROLLER_AXIS_LEFTY, 0.5)
    intent = desk.latest().intent
    assert intent.left == 0.0
    assert -0.3 < intent.forward < -0.1


def test_triggers_move_the_gripper(desk: Desk) -> None:
    hold(desk)
    assert desk.latest().intent.gripper == 0.0
    desk.axis(pygame.CONTROLLER_AXIS_TRIGGERRIGHT, 1.0)
    assert desk.latest().intent.gripper == pytest.approx(-1.0)


def test_estop_and_clear(desk: Desk) -> None:
    hold(desk)
    assert desk.latest().intent.held
    desk.button(pygame.CONTROLLER_BUTTON_B)
    assert not desk.latest().intent.held
    desk.button(pygame.CONTROLLER_BUTTON_START)
    desk.latest()
    assert desk.told == ["e-stop", "clear"]


def test_pulled_out_it_stops_and_grows_old_and_plugged_in_it_recovers(desk: Desk) -> None:
    hold(desk)
    assert desk.latest().intent.drives
    desk.pull_out()
    assert not desk.latest().intent.drives
    assert not desk.latest().intent.present
    desk.now_s += 0.5
    assert desk.latest().age_s >= 0.5, "stale: the safety filter trips"
    desk.plug_in()
    heard = desk.latest()
    assert heard.intent.present
    assert heard.age_s == 0.0
    assert not heard.intent.drives, "the button must be pressed anew"
    hold(desk)
    assert desk.latest().intent.drives


def test_without_a_gamepad_there_is_one_clear_line() -> None:
    with pytest.raises(DeviceError, match="No gamepad found") as caught:
        Gamepad(Controls(), "test")
    assert "\n" not in str(caught.value)
    assert not pygame.display.get_init(), "nothing is left open"

"""Keyboard and gamepad, and the window that they need: events in, intents out.

pygame's window and event queue belong to the thread that made them, the main thread; the control
loop runs in its own. So `pump`, on the main thread, turns events into a snapshot and replaces the
old one in a single assignment, and `latest`, on any thread, reads it. Where the loop itself runs
on the main thread, `latest` pumps.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np

from gaploop.core.errors import DeviceError
from gaploop.core.messages import SPEED, FloatArray
from gaploop.teleop.leaders.controls import (
    MOTIONS,
    SPEED_STEPS,
    STALE_S,
    ControlAction,
    Controls,
    Intent,
    IntentSource,
    TimedIntent,
)

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
# Drawn by the processor: a window with an OpenGL context of its own keeps MuJoCo from rendering
# in the same thread (EGL_BAD_ACCESS), and a control room's PC need not have a GPU.
os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its use of pkg_resources is not our user's business
    import pygame
    from pygame._sdl2 import controller

__all__ = ["controller", "pygame"]

INK: Final = (238, 240, 243)
DIM: Final = (176, 183, 194)
GROUND: Final = (20, 22, 26)
RED: Final = (200, 44, 44)
AMBER: Final = (190, 122, 8)
GREEN: Final = (22, 128, 66)
GREY: Final = (70, 76, 88)


@lru_cache(maxsize=128)
def letters(height_px: int) -> Any:
    """Return pygame's own font; opening it takes longer than drawing a line with it."""
    return pygame.font.Font(None, max(8, height_px))


log = logging.getLogger(__name__)

PUMP_S: Final = 0.01
"""`latest` pumps no more often than this [s]."""
UNSEEN: Final = ("offscreen", "dummy")
"""SDL's drivers that draw on nothing. Without a display it takes one of them by itself, and the
operator would look for a window that isn't there."""
DRAW_S: Final = 0.05
"""The window is drawn no more often than this [s]."""
SIZE_PX: Final = (1200, 730)
STATE_PX: Final = 200
"""Font of the state: capitals of 26 mm on a screen of 96 dpi, readable across a room."""
KEY_PX: Final = 46
"""Font of the rest: capitals of 6 mm; 20/20 sight reads 3 mm from two metres (ISO 8596)."""
ROW_PX: Final = 50


class Guest(Protocol):
    """Whoever shares the window with the leader: pygame has one window and one event queue."""

    def on_event(self, event: Any, held: bool) -> bool:
        """Take an event first; True keeps it from the leader, whose keys count while `held`."""

    def draw(self, sign: Sign) -> None:
        """Draw the window, the leader's state in it."""


class LeaderPanel(IntentSource):
    """Base of keyboard and gamepad, for the main thread; DeviceError where there is no display."""

    still = "HOLDING"
    """What it says where nothing is to be moved."""

    def __init__(
        self,
        controls: Controls,
        title: str,
        help_lines: Mapping[str, str],
        hold_key: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.controls = controls
        self._now_s, self._hold_key = now_s, hold_key
        self._thread = threading.get_ident()
        self._closed = False
        self._trip = ""
        self._guest: Guest | None = None
        open_display(title, SIZE_PX)
        self._window: LeaderWindow | None = LeaderWindow(help_lines)
        self._focused = bool(pygame.key.get_focused())
        self._drawn_s = float("-inf")
        self._snapshot: tuple[Intent, float, bool] = (Intent(), now_s(), False)

    @property
    def present(self) -> bool:
        """Say whether the device is there."""
        return True

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        """Call these when the e-stop is pressed and when a trip is cleared, in `pump`."""
        self.controls.listen(on_estop, on_clear)

    def host(self, guest: Guest) -> None:
        """Let `guest` have events first and draw the window from now on."""
        self._guest = guest

    def pump(self, trip: str = "") -> None:
        """Handle what has happened, 30 times a second or more, and show why the filter tripped."""
        self._trip = trip
        self._pump()

    def latest(self) -> TimedIntent:
        """Return the newest intent and its age."""
        if threading.get_ident() == self._thread and self._now_s() - self._snapshot[1] > PUMP_S:
            self._pump()
        intent, at_s, closed = self._snapshot
        return TimedIntent(intent, self._now_s() - at_s, closed)

    def close(self) -> None:
        """Close the window; safe to call twice. On another thread it only stops the input."""
        self._closed = True
        self._snapshot = (Intent(present=False), self._snapshot[1], True)
        if self._window is not None and threading.get_ident() == self._thread:
            self._window = None
            self._let_go()
            pygame.display.quit()

    def on_event(self, event: Any) -> None:
        """Handle an event of the device; sub-classes say how."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """Let go of the device."""

    def _pump(self) -> None:
        if self._window is None:
            return
        for event in pygame.event.get():
            held = ControlAction.HOLD in self.controls.pressed
            if self._guest is not None and self._guest.on_event(event, held):
                continue
            if event.type in (pygame.QUIT, pygame.WINDOWCLOSE):
                self.controls.release_all()
                self._closed = True
            elif event.type in (pygame.WINDOWFOCUSLOST, pygame.WINDOWFOCUSGAINED):
                # What is let go of elsewhere is never heard here.
                self._focused = event.type == pygame.WINDOWFOCUSGAINED
                self.controls.release_all()
            else:
                self.on_event(event)
        intent = self.controls.intent(present=self.present, focused=self._focused)
        # A device that is gone isn't heard any more: its last word grows old.
        heard_s = self._now_s() if self.present else self._snapshot[1]
        self._snapshot = (intent, heard_s, self._closed)
        if self._now_s() - self._drawn_s >= DRAW_S:
            self._drawn_s = self._now_s()
            sign = sign_of(intent, self.controls.pressed, self._trip, self._hold_key, self.still)
            if self._guest is None:
                self._window.draw(sign, intent)
            else:
                self._guest.draw(sign)


def open_display(title: str, size_px: tuple[int, int], instead: str = "") -> None:
    """Open pygame's window; DeviceError where there is no display, with what to do `instead`."""
    try:
        pygame.display.init()
        driver = pygame.display.get_driver()
        if driver in UNSEEN and "SDL_VIDEODRIVER" not in os.environ:
            pygame.display.quit()
            raise pygame.error(f"SDL fell back to its driver '{driver}'")
        pygame.font.init()
        letters.cache_clear()  # fonts don't outlive the module's end
        pygame.display.set_mode(size_px, pygame.RESIZABLE)
    except pygame.error as error:
        shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or "none set"
        raise DeviceError(
            f"No window can be opened for the operator ({error}; display: {shown}). {instead}Run "
            "it on a desktop, or over SSH with X forwarding (ssh -X)."
        ) from error
    pygame.display.set_caption(title)


@dataclass(frozen=True)
class Sign:
    """The state: a word, its colour and a line below."""

    word: str
    colour: tuple[int, int, int]
    below: str


def sign_of(
    intent: Intent,
    pressed: Sequence[ControlAction],
    trip: str,
    hold_key: str,
    still: str = "HOLDING",
) -> Sign:
    """Return what the window says; `trip` is why the safety filter tripped, or ""."""
    if not intent.present:
        return Sign("NO GAMEPAD", RED, "Plug it in again, then clear the trip.")
    if trip:
        return Sign("TRIPPED", RED, trip)
    if not intent.focused:
        return Sign("CLICK HERE", AMBER, "This window has lost the keyboard: nothing moves by it.")
    if not intent.held:
        return Sign(still, GREY, f"Hold {hold_key} to move.")
    moves = [action.value for action in pressed if action in MOTIONS]
    return Sign("MOVING" if moves else "READY", GREEN, ", ".join(moves) or "No motion requested.")


class LeaderWindow:
    """Draws on the pygame display; belongs to the thread that made it."""

    def __init__(self, help_lines: Mapping[str, str]) -> None:
        self._surface = pygame.display.get_surface()
        self._help = help_lines
        font = letters(KEY_PX)
        self._indent = 28 + max(font.size(keys)[0] for keys in self._help)
        self._drawn: object = None

    def draw(self, sign: Sign, intent: Intent) -> None:
        """Draw, if anything has changed."""
        shown = (sign, intent.step, intent.frame, pygame.display.get_window_size())
        if shown == self._drawn:
            return
        self._drawn = shown
        surface = self._surface = pygame.display.get_surface()
        width, height = surface.get_size()
        scale = min(width / SIZE_PX[0], height / SIZE_PX[1])
        surface.fill(GROUND)
        pygame.draw.rect(surface, sign.colour, (0, 0, width, round(248 * scale)))
        self._text(sign.word, STATE_PX * scale, INK, (36 * scale, 28 * scale))
        self._text(sign.below, KEY_PX * scale, INK, (42 * scale, 190 * scale))
        settings = f"SPEED  {SPEED_STEPS[intent.step - 1]:.0%}     FRAME  {intent.frame}"
        self._text(settings, KEY_PX * scale, INK, (42 * scale, 287 * scale))
        rows = (len(self._help) + 1) // 2
        for index, (keys, does) in enumerate(self._help.items()):
            x = (42 + 610 * (index // rows)) * scale
            y = (360 + ROW_PX * (index % rows)) * scale
            self._text(keys, KEY_PX * scale, INK, (x, y))
            ink = INK if does.isupper() else DIM
            self._text(does, KEY_PX * scale, ink, (x + self._indent * scale, y))
        pygame.display.flip()

    def _text(
        self, text: str, height_px: float, ink: tuple[int, int, int], at: tuple[float, float]
    ) -> None:
        font = letters(round(height_px))
        room_px = self._surface.get_width() - at[0] - 12
        if (wide_px := font.size(text)[0]) > room_px:
            font = letters(int(height_px * room_px / wide_px))
        self._surface.blit(font.render(text, True, ink), (round(at[0]), round(at[1])))


# Keyboard: keys are taken by their place, named as on a US keyboard

KEYS: Final[Mapping[int, ControlAction]] = {
    pygame.KSCAN_SPACE: ControlAction.HOLD,
    pygame.KSCAN_W: ControlAction.FORWARD,
    pygame.KSCAN_S: ControlAction.BACK,
    pygame.KSCAN_A: ControlAction.LEFT,
    pygame.KSCAN_D: ControlAction.RIGHT,
    pygame.KSCAN_R: ControlAction.UP,
    pygame.KSCAN_F: ControlAction.DOWN,
    pygame.KSCAN_UP: ControlAction.PITCH_UP,
    pygame.KSCAN_DOWN: ControlAction.PITCH_DOWN,
    pygame.KSCAN_LEFT: ControlAction.ROLL_LEFT,
    pygame.KSCAN_RIGHT: ControlAction.ROLL_RIGHT,
    pygame.KSCAN_C: ControlAction.CLOSE,
    pygame.KSCAN_V: ControlAction.OPEN,
    pygame.KSCAN_H: ControlAction.HOME,
    pygame.KSCAN_TAB: ControlAction.FRAME,
    pygame.KSCAN_MINUS: ControlAction.SLOWER,
    pygame.KSCAN_EQUALS: ControlAction.FASTER,
    pygame.KSCAN_ESCAPE: ControlAction.ESTOP,
    pygame.KSCAN_RETURN: ControlAction.CLEAR,
}
"""Place of a key (USB HID usage) to what it does."""

SPEED_KEYS: Final[Mapping[int, int]] = {pygame.KSCAN_1 + n: 1 + n for n in range(4)}
"""Place of a key to the speed step it chooses."""

KEY_HELP: Final = {
    "Space": "hold to move",
    "W  S": "forward, back",
    "A  D": "left, right",
    "R  F": "up, down",
    "Up  Down": "finger tips up, down",
    "Left  Right": "roll",
    "C  V": "close, open gripper",
    "Esc": "EMERGENCY STOP",
    "Enter": "clear a trip",
    "1 2 3 4": "speed",
    "H": "back to the start",
    "Tab": "frame: base, tool",
}


BASE_KEYS: Final[Mapping[int, ControlAction]] = {
    pygame.KSCAN_LSHIFT: ControlAction.HOLD,
    pygame.KSCAN_RSHIFT: ControlAction.HOLD,
    pygame.KSCAN_W: ControlAction.FORWARD,
    pygame.KSCAN_S: ControlAction.BACK,
    pygame.KSCAN_A: ControlAction.LEFT,
    pygame.KSCAN_D: ControlAction.RIGHT,
    pygame.KSCAN_Z: ControlAction.TURN_LEFT,
    pygame.KSCAN_X: ControlAction.TURN_RIGHT,
    pygame.KSCAN_MINUS: ControlAction.SLOWER,
    pygame.KSCAN_EQUALS: ControlAction.FASTER,
    pygame.KSCAN_SPACE: ControlAction.ESTOP,
    pygame.KSCAN_ESCAPE: ControlAction.ESTOP,
    pygame.KSCAN_RETURN: ControlAction.CLEAR,
}
"""The same of a base, which one hand drives while the other leads the arm: LeRobot's keys."""

BASE_HELP: Final = {
    "Shift": "hold to drive",
    "W  S": "forward, back",
    "A  D": "left, right",
    "Z  X": "turn left, right",
    "1 2 3 4": "speed",
    "Space": "EMERGENCY STOP",
    "Enter": "clear a trip",
}


class Keyboard(LeaderPanel):
    """A keyboard, while its window has the focus."""

    keys, help_lines, hold_key = KEYS, KEY_HELP, "Space"

    def __init__(
        self, controls: Controls, title: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(controls, title, self.help_lines, self.hold_key, now_s)
        pygame.key.set_repeat()  # off: a key held down is one press

    def on_event(self, event: Any) -> None:
        """Handle a key."""
        if event.type not in (pygame.KEYDOWN, pygame.KEYUP):
            return
        down = event.type == pygame.KEYDOWN
        if down and event.scancode in SPEED_KEYS:
            self.controls.set_speed_step(SPEED_KEYS[event.scancode])
        action = self.keys.get(event.scancode)
        if action is not None:
            (self.controls.press if down else self.controls.release)(action)


class BaseKeyboard(Keyboard):
    """Drives the base under an arm that somebody leads, who has no base: LeKiwi's, and the like.

    Space stays the emergency stop, as it is in a session that is led by an arm.

    Args:
        speeds: how a base's speeds are called, as `core.messages.SPEED` says.
        limits: of each [m/s, rad/s], shape (n, 2).
    """

    keys, help_lines, hold_key, still = BASE_KEYS, BASE_HELP, "Shift", "BASE STANDS"

    def __init__(
        self,
        speeds: Sequence[str],
        limits: FloatArray,
        title: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(Controls(), title, now_s)
        self._speeds, self._limits = speeds, limits

    def done(self) -> bool:
        """Say whether the window was closed."""
        return self.latest().closed

    def speeds(self) -> FloatArray:
        """Return what is asked of the base [m/s, rad/s], shape (n,); never blocks."""
        heard = self.latest()
        asked, intent = np.zeros(len(self._speeds)), heard.intent
        if heard.age_s > STALE_S or not intent.drives:
            return asked
        shares = {"x": intent.forward, "y": intent.left, "theta": intent.turn}
        for n, (name, (low, high)) in enumerate(zip(self._speeds, self._limits, strict=True)):
            share = shares.get(name.removesuffix(SPEED), 0.0) * SPEED_STEPS[intent.step - 1]
            asked[n] = share * (high if share > 0 else -low)
        return asked


# Gamepad, through SDL's mapping: buttons have the same names on every pad

BUTTONS: Final[Mapping[int, ControlAction]] = {
    pygame.CONTROLLER_BUTTON_RIGHTSHOULDER: ControlAction.HOLD,
    pygame.CONTROLLER_BUTTON_DPAD_UP: ControlAction.PITCH_UP,
    pygame.CONTROLLER_BUTTON_DPAD_DOWN: ControlAction.PITCH_DOWN,
    pygame.CONTROLLER_BUTTON_DPAD_LEFT: ControlAction.SLOWER,
    pygame.CONTROLLER_BUTTON_DPAD_RIGHT: ControlAction.FASTER,
    pygame.CONTROLLER_BUTTON_B: ControlAction.ESTOP,
    pygame.CONTROLLER_BUTTON_Y: ControlAction.HOME,
    pygame.CONTROLLER_BUTTON_BACK: ControlAction.FRAME,
    pygame.CONTROLLER_BUTTON_START: ControlAction.CLEAR,
}

AXES: Final[Mapping[int, tuple[ControlAction | None, ControlAction]]] = {
    pygame.CONTROLLER_AXIS_LEFTY: (ControlAction.FORWARD, ControlAction.BACK),
    pygame.CONTROLLER_AXIS_LEFTX: (ControlAction.LEFT, ControlAction.RIGHT),
    pygame.CONTROLLER_AXIS_RIGHTY: (ControlAction.UP, ControlAction.DOWN),
    pygame.CONTROLLER_AXIS_RIGHTX: (ControlAction.ROLL_LEFT, ControlAction.ROLL_RIGHT),
    pygame.CONTROLLER_AXIS_TRIGGERLEFT: (None, ControlAction.OPEN),
    pygame.CONTROLLER_AXIS_TRIGGERRIGHT: (None, ControlAction.CLOSE),
}
"""Axis to what its negative and its positive half do (up and left are negative)."""

AXIS_END: Final = 32767
"""Value of an axis at its end."""
DEAD_ZONE: Final = 0.15
"""Share of the way that counts as rest: worn sticks don't come back to the middle."""
STICK_POWER: Final = 2.0
"""Little way, little speed: the share beyond the dead zone to this power."""

PAD_HELP: Final = {
    "R1": "hold to move",
    "Left stick": "forward, back, sideways",
    "Right stick": "up, down; roll",
    "D-pad up": "finger tips up, down",
    "R2  L2": "close, open gripper",
    "D-pad side": "slower, faster",
    "B  (circle)": "EMERGENCY STOP",
    "Start": "clear a trip",
    "Y  (triangle)": "back to the start",
    "Back": "frame: base, tool",
}


class Gamepad(LeaderPanel):
    """The first gamepad there is, or DeviceError; one pulled out may be plugged in again."""

    def __init__(
        self, controls: Controls, title: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(controls, title, PAD_HELP, "R1", now_s)
        pygame.joystick.init()
        controller.init()
        self._pad: Any = None
        self._id = -1
        self._take_first()
        if self._pad is None:
            joysticks = map(pygame.joystick.Joystick, range(pygame.joystick.get_count()))
            seen = ", ".join(repr(joystick.get_name()) for joystick in joysticks)
            self.close()
            if seen:
                raise DeviceError(
                    f"SDL doesn't know {seen} as a gamepad. Give its mapping in the environment "
                    "variable SDL_GAMECONTROLLERCONFIG, or use --teleop.type=keyboard."
                )
            raise DeviceError(
                "No gamepad found. Plug one in (a wireless one must be switched on and paired), or "
                "use --teleop.type=keyboard."
            )

    @property
    def present(self) -> bool:
        """Say whether the gamepad is plugged in."""
        return self._pad is not None

    def on_event(self, event: Any) -> None:
        """Handle an event of the gamepad in use."""
        if event.type == pygame.CONTROLLERDEVICEADDED:
            self._take_first()
        elif getattr(event, "instance_id", None) != self._id:
            return
        elif event.type == pygame.CONTROLLERDEVICEREMOVED:
            log.warning("the gamepad is gone")
            self._pad, self._id = None, -1
            self.controls.release_all()
        elif event.type == pygame.CONTROLLERBUTTONDOWN and event.button in BUTTONS:
            self.controls.press(BUTTONS[event.button])
        elif event.type == pygame.CONTROLLERBUTTONUP and event.button in BUTTONS:
            self.controls.release(BUTTONS[event.button])
        elif event.type == pygame.CONTROLLERAXISMOTION and event.axis in AXES:
            share = event.value / AXIS_END
            beyond = (abs(share) - DEAD_ZONE) / (1.0 - DEAD_ZONE)
            for action, here in zip(AXES[event.axis], (share < 0, share > 0), strict=True):
                if action is None:
                    continue
                if here and beyond > 0:
                    self.controls.press(action, beyond**STICK_POWER)
                else:
                    self.controls.release(action)

    def _take_first(self) -> None:
        """Take the first gamepad that SDL knows, unless one is in use."""
        pads = [i for i in range(controller.get_count()) if controller.is_controller(i)]
        if self._pad is None and pads:
            self._pad = controller.Controller(pads[0])
            # Controller.id is its place in the list, which the next one plugged in has too.
            self._id = self._pad.as_joystick().get_instance_id()

    def _let_go(self) -> None:
        if self._pad is not None:
            self._pad.quit()
        self._pad, self._id = None, -1
        controller.quit()
        pygame.joystick.quit()

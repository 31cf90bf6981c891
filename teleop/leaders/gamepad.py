"""A gamepad as an input device, through SDL's mapping: buttons have the same names on every pad."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gaploop.core.errors import DeviceError
from gaploop.teleop.leaders.controls import ControlAction, Controls
from gaploop.teleop.leaders.panel import LeaderPanel
from gaploop.teleop.leaders.sdl import controller, pygame

log = logging.getLogger(__name__)

BUTTONS: Final[Mapping[int, ControlAction]] = {
    pygame.CONTROLLER_BUTTON_RIGHTSHOULDER: ControlAction.HOLD,
    pygame.CONTROLLER_BUTTON_LEFTSHOULDER: ControlAction.CLUTCH,
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

FULL: Final = 32767
"""Value of an axis at its end."""
DEAD_ZONE: Final = 0.15
"""Share of the way that counts as rest: worn sticks don't come back to the middle."""
STICK_POWER: Final = 2.0
"""Little way, little speed: the share beyond the dead zone to this power."""

HELP: Final = {
    "R1": "hold to move",
    "Left stick": "forward, back, sideways",
    "Right stick": "up, down; roll",
    "D-pad up": "finger tips up, down",
    "R2  L2": "close, open gripper",
    "D-pad side": "slower, faster",
    "B  (circle)": "EMERGENCY STOP",
    "Start": "clear a trip",
    "Y  (triangle)": "back to the start",
    "L1": "clutch out, in",
    "Back": "frame: base, tool",
}


class Gamepad(LeaderPanel):
    """The first gamepad there is, or DeviceError; one pulled out may be plugged in again."""

    def __init__(
        self, controls: Controls, title: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(controls, title, HELP, "R1", now_s)
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
            share = event.value / FULL
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

"""From buttons and sticks to an intent: what is pressed now, and what a press switches.

Pure bookkeeping, without pygame: keyboard and gamepad say which `ControlAction` is pressed how far.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import number

FRAMES: Final = ("base", "tool")
"""What forward, left and up refer to, the first one at first; in the tool's, forward is along the
fingers."""
SPEED_STEPS: Final = (0.1, 0.25, 0.5, 1.0)
"""Shares of the top speed that the operator steps through."""
STALE_S: Final = 0.1
"""An input older than this counts as a released dead-man button [s]."""
FIRST_STEP: Final = 2
"""Speed step to start with, 1 (a tenth of the speed) to 4 (all of it)."""


SCRIPTS: Final = ("chirp", "reverse", "step", "poses", "grip", "rest")
_MOTION_RANGES: Final = {
    "amplitude_rad": (0.02, 2.0),
    "seconds": (2.0, 600.0),
    "low_hz": (0.02, 5.0),
    "high_hz": (0.02, 20.0),
    "cycles": (1, 100),
    "size_m": (0.01, 0.6),
    "dwell_s": (0.0, 60.0),
    "velocity_rad_s": (0.005, 6.0),
    "acceleration_rad_s2": (0.05, 100.0),
}


@dataclass
class MotionOptions:
    """A scripted motion that logs sensors and actuators without an operator."""

    script: str = "chirp"
    """chirp (each joint swings ever faster), reverse (strokes at several speeds: backlash and
    friction), step (each joint to either side as fast as it may, and rest), poses (turn to the
    middle and either side, low and high, and rest), grip (open and close the gripper) or rest"""
    joints: list[str] = field(default_factory=list)
    """joints that chirp, reverse and step move, one after the other; all of them if left out"""
    amplitude_rad: float = 0.4
    """largest swing to either side [rad]; made smaller where limits or workspace ask for it"""
    seconds: float = 20.0
    """how long chirp moves each joint, and rest takes [s]"""
    low_hz: float = 0.1
    """frequency that chirp starts with [Hz]"""
    high_hz: float = 3.0
    """frequency that chirp ends with [Hz]"""
    speeds_rad_s: list[float] = field(default_factory=lambda: [0.2, 0.5, 1.0])
    """speeds of reverse [rad/s], in an order drawn by the seed"""
    cycles: int = 2
    """strokes there and back of reverse, for each speed"""
    size_m: float = 0.12
    """what poses lifts the tool by [m]"""
    dwell_s: float = 1.0
    """rest after each step, at each of the poses and before and after the gripper closes [s]"""
    velocity_rad_s: float = 1.5
    """fastest joint [rad/s]; the station's limit holds as well"""
    acceleration_rad_s2: float = 10.0
    """fastest change of that speed [rad/s²]; the station's limit holds as well"""
    seed: int = 0
    """draws the orders"""

    def __post_init__(self) -> None:
        if self.script not in SCRIPTS:
            raise unknown_choice("script", self.script, SCRIPTS, "--teleop.script")
        for name, (low, high) in _MOTION_RANGES.items():
            number(getattr(self, name), f"--teleop.{name}", low, high)
        if self.high_hz < self.low_hz:
            raise UnusableInputError(
                f"--teleop.high_hz ({self.high_hz:g}) must not be below --teleop.low_hz "
                f"({self.low_hz:g})."
            )
        if not self.speeds_rad_s or not all(0.01 <= v <= 6.0 for v in self.speeds_rad_s):
            raise UnusableInputError(
                f"--teleop.speeds_rad_s must be speeds of 0.01 to 6, got {self.speeds_rad_s}."
            )


@dataclass(frozen=True)
class Intent:
    """What the operator asks for now. Directions are shares of the top speed, in [-1, 1].

    Attributes:
        held: the dead-man button is down, the device is there, and its window has the focus.
        forward: +1 away from the base (tool frame: along the fingers).
        left: +1 to the left, seen from the base.
        up: +1 up.
        roll: +1 clockwise about the fingers, seen from the base.
        pitch: +1 finger tips up.
        gripper: +1 opens, -1 closes.
        turn: +1 turns a base to the left.
        hand: how far a hand-held device has moved and turned since the button was pressed: forward,
            left, up [m], roll and pitch [rad]; None where it doesn't tell.
    """

    held: bool = False
    forward: float = 0.0
    left: float = 0.0
    up: float = 0.0
    roll: float = 0.0
    pitch: float = 0.0
    gripper: float = 0.0
    turn: float = 0.0
    home: bool = False
    step: int = 2
    frame: str = "base"
    present: bool = True
    focused: bool = True
    hand: tuple[float, float, float, float, float] | None = None

    @property
    def drives(self) -> bool:
        """Say whether anything may move."""
        return self.held and self.present and self.focused


@dataclass(frozen=True)
class TimedIntent:
    """An intent, its age since the device was last asked [s], and whether the window was closed."""

    intent: Intent = field(default_factory=Intent)
    age_s: float = 0.0
    closed: bool = False


class IntentSource:
    """An input device; what it doesn't have, such as a window to share, it leaves out."""

    has_window = True
    """It has a window on this machine."""

    def latest(self) -> TimedIntent:
        """Return the newest intent; never blocks. Called by the control loop's thread."""
        raise NotImplementedError

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        """Call these when the e-stop is pressed and when a trip is cleared, in `pump`."""

    def host(self, guest: Any) -> None:
        """Let `guest` share the window; see `Panel.host`."""

    def pump(self, trip: str = "") -> None:
        """Handle what has happened; on the main thread, 30 times a second or more.

        `trip` is why the safety filter has tripped, to show it; "" where it hasn't.
        """

    def close(self) -> None:
        """Let go of the device; safe to call twice."""


class ControlAction(Enum):
    """What a key, button or stick direction means."""

    HOLD = "hold to move"
    FORWARD = "forward"
    BACK = "back"
    LEFT = "left"
    RIGHT = "right"
    UP = "up"
    DOWN = "down"
    PITCH_UP = "tip up"
    PITCH_DOWN = "tip down"
    ROLL_LEFT = "roll left"
    ROLL_RIGHT = "roll right"
    TURN_LEFT = "turn left"
    TURN_RIGHT = "turn right"
    OPEN = "open"
    CLOSE = "close"
    HOME = "home"
    FRAME = "frame"
    SLOWER = "slower"
    FASTER = "faster"
    ESTOP = "e-stop"
    CLEAR = "clear a trip"


MOTIONS: Final = tuple(
    action
    for action in ControlAction
    if action.name not in ("HOLD", "FRAME", "SLOWER", "FASTER", "ESTOP", "CLEAR")
)
"""Actions that move the arm, or its base, while `HOLD` is pressed."""


class Controls:
    """What is pressed."""

    def __init__(self) -> None:
        self._amounts: dict[ControlAction, float] = {}
        self._step, self._frame = FIRST_STEP, FRAMES[0]
        self.listen(lambda: None, lambda: None)

    def listen(self, on_estop: Callable[[], None], on_clear: Callable[[], None]) -> None:
        """Call these from now on when the e-stop is pressed and when a trip is cleared."""
        self._on_estop, self._on_clear = on_estop, on_clear

    @property
    def pressed(self) -> tuple[ControlAction, ...]:
        """What is pressed now, in order of pressing."""
        return tuple(self._amounts)

    def press(self, action: ControlAction, amount: float = 1.0) -> None:
        """Take note of a press; `amount` in (0, 1] is how far a stick is pushed."""
        new = action not in self._amounts
        self._amounts[action] = min(max(amount, 0.0), 1.0)
        if not new:
            return
        match action:
            case ControlAction.ESTOP:
                self.release_all()
                self._on_estop()
            case ControlAction.CLEAR:
                self.release_all()
                self._on_clear()
            case ControlAction.FRAME if ControlAction.HOLD not in self._amounts:
                self._frame = FRAMES[1 - FRAMES.index(self._frame)]
            case ControlAction.SLOWER:
                self.set_speed_step(self._step - 1)
            case ControlAction.FASTER:
                self.set_speed_step(self._step + 1)

    def release(self, action: ControlAction) -> None:
        """Take note of a release."""
        self._amounts.pop(action, None)

    def release_all(self) -> None:
        """Forget every press: the dead-man button must be pressed anew."""
        self._amounts.clear()

    def set_speed_step(self, step: int) -> None:
        """Choose a speed step, 1 to 4."""
        self._step = min(max(step, 1), len(SPEED_STEPS))

    def intent(self, *, present: bool = True, focused: bool = True) -> Intent:
        """Return what the operator wants now."""
        amount = self._amounts.get

        def between(plus: ControlAction, minus: ControlAction) -> float:
            return amount(plus, 0.0) - amount(minus, 0.0)

        return Intent(
            held=ControlAction.HOLD in self._amounts,
            forward=between(ControlAction.FORWARD, ControlAction.BACK),
            left=between(ControlAction.LEFT, ControlAction.RIGHT),
            up=between(ControlAction.UP, ControlAction.DOWN),
            roll=between(ControlAction.ROLL_RIGHT, ControlAction.ROLL_LEFT),
            pitch=between(ControlAction.PITCH_UP, ControlAction.PITCH_DOWN),
            gripper=between(ControlAction.OPEN, ControlAction.CLOSE),
            turn=between(ControlAction.TURN_LEFT, ControlAction.TURN_RIGHT),
            home=ControlAction.HOME in self._amounts,
            step=self._step,
            frame=self._frame,
            present=present,
            focused=focused,
        )

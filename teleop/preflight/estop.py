"""Does the emergency stop stop the arm? The program's own, and the one that cuts the power."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Follower
from gaploop.core.types import NO_REPLY, REBOOTED, FollowerState
from gaploop.teleop.control import ControlThread, LoopMode
from gaploop.teleop.preflight.item import By, Item, Person, Result

NAME: Final = "estop"
SLACK_S: Final = 0.2
"""Torque is off this much after the hold that the station asks for, at most [s]."""
PRESS_S: Final = 30.0
"""How long a press of the switch is waited for [s]."""
POLL_S: Final = 0.005
SILENT_S: Final = 2.0
"""An arm that reports nothing for this long has lost its power, or its bus [s]."""
SAG: Final = 0.7
"""A supply below this share of what it was has been cut."""


def check_estop(control: ControlThread, follower: Follower, hold_s: float) -> Item:
    """Press the program's emergency stop, the one behind the space bar, and time it.

    Args:
        control: running; it is tripped, and limp, afterwards.
        follower: says whether every servo has let go.
        hold_s: how long a trip is held before torque goes off [s].
    """
    if tripped := control.snapshot().tripped:
        found = f"not tried: the arm had tripped before ({tripped.name})"
        return Item(NAME, Result.FAIL, By.MACHINE, found, "Fix that, then check again.")
    clock = control.clock
    pressed_s = clock.now_s()
    control.estop()
    allowed_s = hold_s + SLACK_S
    while control.snapshot().mode is not LoopMode.TRIPPED:
        if clock.now_s() - pressed_s > 2 * allowed_s + 1.0 or not control.alive:
            break
        time.sleep(POLL_S)
    took_s = clock.now_s() - pressed_s
    data = {"took_s": took_s, "allowed_s": allowed_s}
    try:
        follower.torque_off()
    except DeviceError as error:
        return Item(NAME, Result.FAIL, By.MACHINE, str(error), "Switch the power off.", data)
    found = f"torque off {took_s * 1e3:.0f} ms after the program's stop, {hold_s * 1e3:.0f} of "
    found += "them held on purpose"
    if control.snapshot().mode is LoopMode.TRIPPED and took_s <= allowed_s:
        return Item(NAME, Result.OK, By.MACHINE, found, data=data)
    mend = "The machine is too busy, or real-time rights are missing: gaploop doctor"
    return Item(NAME, Result.FAIL, By.MACHINE, found, mend, data)


def check_switch(control: ControlThread, person: Person) -> Item:
    """Have the switch pressed that cuts the arm's power, and see it on the bus.

    Args:
        control: tripped; it goes on asking the arm how it is.
        person: presses it.
    """
    before = control.snapshot().state
    volts = np.nanmedian(before.voltage_v) if before is not None else np.nan
    what = (
        "Cut the arm's power now, with its emergency stop, or the supply's switch or plug "
        f"({PRESS_S:.0f} s)."
    )
    if not person.told(what):
        found = "nobody is there to press the arm's emergency stop"
        mend = "Run it in a terminal, with somebody beside the arm."
        return Item(NAME, Result.UNANSWERED, By.PERSON, found, mend)
    began_s = heard_s = time.monotonic()
    newest = before
    while (now_s := time.monotonic()) - began_s < PRESS_S:
        if (state := control.snapshot().state) is not newest:
            newest, heard_s = state, now_s
        why = _is_cut(newest, float(volts))
        if why or now_s - heard_s > SILENT_S:
            why = why or "the bus is silent"
            found = f"the switch cuts the arm's power: {why}"
            _wait_until_back(control, person)
            return Item(NAME, Result.OK, By.MACHINE, found, data={"seen": why})
        time.sleep(POLL_S)
    found = f"the arm's power wasn't cut within {PRESS_S:.0f} s"
    mend = "Put a switch into the supply's lead where the operator reaches it, and press it."
    return Item(NAME, Result.FAIL, By.MACHINE, found, mend)


def _wait_until_back(control: ControlThread, person: Person) -> None:
    """Have the power switched on again, so that what follows finds an arm that answers."""
    person.told(f"That works. Switch it on again ({PRESS_S:.0f} s).")
    give_up_s = time.monotonic() + PRESS_S
    while time.monotonic() < give_up_s:
        state = control.snapshot().state
        if state is not None and not (state.status & NO_REPLY).any():
            return
        time.sleep(POLL_S)


def _is_cut(state: FollowerState | None, volts: float) -> str:
    if state is None:
        return ""
    if (state.status & NO_REPLY).all():
        return "no servo answers"
    if (state.status & REBOOTED).any():
        return "a servo lost power"
    if np.nanmedian(state.voltage_v) < SAG * volts:
        return f"the supply fell to {np.nanmedian(state.voltage_v):.1f} V"
    return ""

"""Are the arm's limits set, and does it stand inside them?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.protocols import Follower
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain
from gaploop.teleop.preflight.item import By, Item, Result
from gaploop.teleop.safety import SafetyFilter, make_safety
from gaploop.teleop.workspace import guards_for

NAME: Final = "limits"
AT_STOP_RAD: Final = 0.1
"""A joint at rest on its stop may read this much beyond its limit [rad]."""


def check_limits(
    station: Station, follower: Follower, period_s: float, has_file: bool
) -> Iterator[Item]:
    """Yield what the safety filter will hold the arm to, and whether the arm stands within it.

    Args:
        station: limits and workspace.
        follower: the arm.
        period_s: of the control loop [s].
        has_file: somebody wrote a station file for this cell.
    """
    try:
        safety = make_safety(station, follower, period_s)
    except UnusableInputError as error:
        yield Item(NAME, Result.FAIL, By.MACHINE, str(error), "Correct the station file.")
        return
    yield _stands(safety, station, follower)
    boxes = len(guards_for(station, follower))
    limits = safety.limits
    words = (
        f"{limits.velocity_rad_s:g} rad/s, {limits.acceleration_rad_s2:g} rad/s², trips at "
        f"{limits.stall_current_a:g} A for {limits.stall_s:g} s, torque off after "
        f"{limits.torque_off_s:g} s; {f'{boxes} workspace box(es)' if boxes else 'no box'}"
    )
    data = {"boxes": boxes, "velocity_rad_s": limits.velocity_rad_s, "station": station.name}
    if boxes and (has_file or station.domain is not Domain.REAL):
        yield Item(NAME, Result.OK, By.MACHINE, words, data=data)
    elif not boxes:
        mend = "Give the station a robot_model, so that the arm can be kept off table and people."
        yield Item(NAME, Result.WARN, By.MACHINE, words, mend, data)
    else:
        words += "; the arm model's own box, for no station file says what is around the arm"
        mend = "Write a station.yaml with the cell's workspace and name it: --station=FILE"
        yield Item(NAME, Result.WARN, By.MACHINE, words, mend, data)


def _stands(safety: SafetyFilter, station: Station, follower: Follower) -> Item:
    limits_rad = station.joint_limits(follower.joint_names, follower.joint_limits_rad)
    q_rad = follower.read().position_rad
    data: dict[str, Any] = {"q_rad": q_rad.tolist()}
    try:
        safety.reset(q_rad)
    except DeviceError as error:
        return Item(NAME, Result.FAIL, By.MACHINE, str(error), "Run: lerobot-calibrate", data)
    beyond = np.maximum(limits_rad[:, 0] - q_rad, q_rad - limits_rad[:, 1])
    out = [f"{follower.joint_names[j]} by {beyond[j]:.2f} rad"
           for j in np.flatnonzero(beyond > AT_STOP_RAD)]  # fmt: skip
    if out:
        found = f"the arm stands outside its joint limits: {', '.join(out)}"
        mend = "Put it inside by hand; if it is inside, run lerobot-calibrate."
        return Item(NAME, Result.FAIL, By.MACHINE, found, mend, data)
    return Item(NAME, Result.OK, By.MACHINE, "the arm stands inside its joint limits", data=data)

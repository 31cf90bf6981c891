"""Builds the leaders that need to know the arm they lead: keyboard, gamepad, scripted motion."""

from __future__ import annotations

import math
from dataclasses import replace

from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel, Box, model_of
from gaploop.core.protocols import Follower
from gaploop.core.station import Station
from gaploop.teleop.leaders.cartesian import JOINT_RAD_S, CartesianLeader, common_limits
from gaploop.teleop.leaders.controls import Controls, IntentSource, MotionOptions
from gaploop.teleop.leaders.motion import MotionLeader


def make_tool_leader(
    device: str, follower: Follower, station: Station, page: tuple[str, int] | None = None
) -> CartesianLeader:
    """Open the operator's window and return a leader that drives the tool from an input device.

    Call it on the main thread, and there `leader.pump(trip)` 30 times a second or more. Attach
    the leader to the control loop as a sink.

    Args:
        device: keyboard, gamepad, or browser.
        page: of a browser: host and port that its page is served on.

    Raises:
        UnusableInputError: no model of this arm is known, or it doesn't fit.
        DeviceError: nobody opens the page, there is no gamepad, or no window can be opened.
    """
    arm = arm_of(follower, station, f"--teleop.type={device}")
    title = f"gaploop: {follower.robot_type}"
    source: IntentSource
    if page is not None:
        from gaploop.teleop.leaders.browser import Browser

        source = Browser(title, *page)
    else:
        from gaploop.teleop.leaders import panel

        made = panel.Keyboard if device == "keyboard" else panel.Gamepad
        source = made(Controls(), title)
    return CartesianLeader(
        arm,
        station.joint_limits(follower.joint_names, follower.joint_limits_rad),
        source,
        lambda: follower.read().position_rad,
        box_of(arm, station),
        joint_velocity_rad_s=min(JOINT_RAD_S, station.safety.velocity_rad_s),
    )


def make_motion_leader(
    follower: Follower,
    station: Station,
    options: MotionOptions | None = None,
    *,
    clear_m: float = -math.inf,
    whose: str = "--teleop.type=motion",
) -> MotionLeader:
    """Return a leader that runs a scripted motion. Its `reset` builds the script and may refuse.

    Attach the leader to the control loop as a sink, so that a trip ends the script.

    Args:
        clear_m: least height of every guarded point, where the workspace reaches lower [m].

    Raises:
        UnusableInputError: no model of this arm is known, or it doesn't fit.
    """
    arm = arm_of(follower, station, whose)
    limits_rad = station.joint_limits(follower.joint_names, follower.joint_limits_rad)
    box = box_of(arm, station)
    if box is not None:
        x, y, (low_m, high_m) = box
        box = (x, y, (max(low_m, clear_m), high_m))
    return MotionLeader(
        arm,
        common_limits(arm, limits_rad),
        lambda: follower.read().position_rad,
        within_limits(options or MotionOptions(), station),
        box,
    )


def within_limits(options: MotionOptions, station: Station) -> MotionOptions:
    """Return a script as fast as the station allows, so that its filter has nothing to change."""
    safety = station.safety
    return replace(
        options,
        velocity_rad_s=min(options.velocity_rad_s, 0.9 * safety.velocity_rad_s),
        acceleration_rad_s2=min(options.acceleration_rad_s2, 0.9 * safety.acceleration_rad_s2),
    )


def arm_of(follower: Follower, station: Station, whose: str) -> ArmModel:
    """Return the model of an arm: the station's, or the one known for its robot type.

    Raises:
        UnusableInputError: there is none, or it has other joints; `whose` needs it.
    """
    name = station.robot_model or model_of(follower.robot_type)
    joints = ", ".join(follower.joint_names)
    if not name:
        raise UnusableInputError(
            f"{whose} needs a model of the arm and none is known for "
            f"{follower.robot_type}. Name one in the station file as robot_model "
            f"({', '.join(ARM_MODELS)}, or the path of an MJCF file), or use a leader arm."
        )
    arm = ArmModel.load(name)
    if arm.joint_names != tuple(follower.joint_names):
        raise UnusableInputError(
            f"{whose} drives one arm with the joints of the model '{arm.name}' "
            f"({', '.join(arm.joint_names)}); {follower.robot_type} has {joints}. "
            "Use a leader arm, or name the right robot_model in the station file."
        )
    return arm


def box_of(arm: ArmModel, station: Station) -> Box | None:
    """Return the box that an arm is kept in: the station's, or that of its model [m]."""
    if station.workspace is not None:
        return (station.workspace.x, station.workspace.y, station.workspace.z)
    spec = ARM_MODELS.get(arm.name)
    return None if spec is None else spec.workspace_m

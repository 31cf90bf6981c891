"""LeRobot's joint units and what bus servos would report.

`observation.state` and `action` follow LeRobot's so101_follower with use_degrees: the arm's joints
in degrees about the middle of their range, the gripper 0 (closed) to 100 (open). The MuJoCo
model's zero is the middle of the calibrated range, so arm angles map one to one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gaploop.core.arm import CellArm
from gaploop.sim.arms import SO101

ENCODER_STEP_RAD = 2.0 * math.pi / 4096.0  # 4096 steps per turn: STS3215 and X series alike
SUPPLY_VOLTAGE_V = 12.0
SUPPLY_RESISTANCE_OHM = 0.15  # assumed: lead and supply of a six-servo chain
AMBIENT_TEMPERATURE_C = 32.0  # assumed: housing of an idle, powered servo
WINDING_RISE_C_PER_A2_S = 0.02  # assumed: some degrees per minute of hard work


def to_degrees(q_rad: ArrayLike, arm: CellArm = SO101) -> NDArray[np.float64]:
    """Convert joint angles to LeRobot's units.

    Args:
        q_rad: joint positions [rad], gripper last, shape (..., n_joints).
        arm: whose joints they are.

    Returns:
        Arm joints [degree] and gripper [0..100], same shape.
    """
    q = np.asarray(q_rad, dtype=np.float64)
    out = np.degrees(q)
    closed, opened = arm.grip.travel_rad
    out[..., -1] = 100.0 * (q[..., -1] - closed) / (opened - closed)
    return np.asarray(out)


def from_degrees(state: ArrayLike, arm: CellArm = SO101) -> NDArray[np.float64]:
    """Convert LeRobot's units to joint angles; inverse of `to_degrees`.

    Args:
        state: arm joints [degree] and gripper [0..100], shape (..., n_joints).
        arm: whose joints they are.

    Returns:
        Joint positions [rad], same shape.
    """
    values = np.asarray(state, dtype=np.float64)
    out = np.radians(values)
    closed, opened = arm.grip.travel_rad
    out[..., -1] = closed + (opened - closed) * values[..., -1] / 100.0
    return np.asarray(out)

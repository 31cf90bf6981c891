"""LeRobot's joint units and what an STS3215 servo would report.

`observation.state` and `action` follow LeRobot's so101_follower with use_degrees: the five
arm joints in degrees about the middle of their range, the gripper 0 (closed) to 100 (open).
The MuJoCo model's zero is the middle of the calibrated range, so arm angles map one to one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Travel of the gripper joint in the SO-101 model [rad].
GRIPPER_CLOSED_RAD = -0.174533
GRIPPER_OPEN_RAD = 1.7453292

ENCODER_STEP_RAD = 2.0 * math.pi / 4096.0  # STS3215 memory table: 4096 steps per turn
CURRENT_STEP_A = 0.0065  # STS3215 memory table: register 69 counts 6.5 mA
# Feetech's sheet for the 12 V STS3215 (C018): stall torque 30 kg cm = 2.94 N m, which is the
# model's force limit, at a stall current of 2.7 A, and 0.18 A running free. Torque is taken
# as linear in current between the two.
STALL_TORQUE_NM = 2.94
STALL_CURRENT_A = 2.7
FREE_CURRENT_A = 0.18
TORQUE_CONSTANT_NM_PER_A = STALL_TORQUE_NM / (STALL_CURRENT_A - FREE_CURRENT_A)
SUPPLY_VOLTAGE_V = 12.0
SUPPLY_RESISTANCE_OHM = 0.15  # assumed: lead and supply of a six-servo chain
AMBIENT_TEMPERATURE_C = 32.0  # assumed: housing of an idle, powered servo
WINDING_RISE_C_PER_A2_S = 0.02  # assumed: some degrees per minute of hard work


def to_degrees(q_rad: ArrayLike) -> NDArray[np.float64]:
    """Convert joint angles to LeRobot's units.

    Args:
        q_rad: joint positions [rad], gripper last, shape (..., 6).

    Returns:
        Arm joints [degree] and gripper [0..100], shape (..., 6).
    """
    q = np.asarray(q_rad, dtype=np.float64)
    out = np.degrees(q)
    span = GRIPPER_OPEN_RAD - GRIPPER_CLOSED_RAD
    out[..., 5] = 100.0 * (q[..., 5] - GRIPPER_CLOSED_RAD) / span
    return np.asarray(out)


def from_degrees(state: ArrayLike) -> NDArray[np.float64]:
    """Convert LeRobot's units to joint angles; inverse of `to_degrees`.

    Args:
        state: arm joints [degree] and gripper [0..100], shape (..., 6).

    Returns:
        Joint positions [rad], shape (..., 6).
    """
    values = np.asarray(state, dtype=np.float64)
    out = np.radians(values)
    span = GRIPPER_OPEN_RAD - GRIPPER_CLOSED_RAD
    out[..., 5] = GRIPPER_CLOSED_RAD + span * values[..., 5] / 100.0
    return np.asarray(out)


def current_from_torque(torque_nm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Estimate the current that a servo would report, in register steps.

    Args:
        torque_nm: torque at the output shaft [N m], any shape.

    Returns:
        Magnitude of the current [A], same shape.
    """
    current_a = np.abs(torque_nm) / TORQUE_CONSTANT_NM_PER_A
    return np.asarray(np.round(current_a / CURRENT_STEP_A) * CURRENT_STEP_A)

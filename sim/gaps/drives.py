"""Drives joint by joint: what a twin measures of an arm, and no made-up station draws.

The mechanisms of `mechanisms` change all drives alike. A real arm has one worn servo, or one cable
that pulls: here each joint has its own values, on top of what is said of all of them.
"""

from __future__ import annotations

import math
from typing import Final

import mujoco
import numpy as np

from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import GapDimension
from gaploop.sim.gaps.mechanism import Appliers, Mechanism, Parameter, Values

SHARED: Final = (
    Parameter("torque_factor", "1", 0.01, 5.0, 1.0),
    Parameter("damping_factor", "1", 0.01, 100.0, 1.0),
    Parameter("armature_factor", "1", 0.05, 50.0, 1.0),
)
"""What is said of all drives here, for want of a mechanism that does."""
PER_JOINT: Final = (
    *SHARED,
    Parameter("gain_factor", "1", 1e-3, 10.0, 1.0),
    Parameter("friction_nm", "N m", -0.5, 3.0),
    Parameter("backlash_rad", "rad", 0.0, 0.5),
    Parameter("speed_limit_rad_s", "rad/s", 0.05, math.inf, math.inf),
)
"""What is said of one joint, as "joint.parameter". Friction is beyond the model's own, or less."""
JOINTS: Final = tuple(
    dict.fromkeys(arm.joint_names[k] for arm in CELL_ARMS.values() for k in arm.arm_columns)
)
"""Joints of all arms of the cell, without grippers."""


class _Drives(Mechanism):
    dimension, name = GapDimension.ACTUATOR_RESPONSE, "drives"
    parameters = (
        *SHARED,
        *(
            Parameter(f"{joint}.{p.name}", p.unit, p.low, p.high, p.nominal)
            for joint in JOINTS
            for p in PER_JOINT
        ),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        arm = on.model.arm
        joints = [arm.joint_names[k] for k in arm.arm_columns]
        foreign = {
            q.name.partition(".")[0]
            for q in self.parameters[len(SHARED) :]
            if p[q.name] != q.nominal
        }.difference(joints)
        if foreign:
            raise UnusableInputError(
                f"{self.key}: {on.model.arm.name} has no joint {min(foreign)}. One of: "
                f"{', '.join(joints)}."
            )

        @on.model.change_servos
        def change(model: mujoco.MjModel, servo: int, dof: int, stronger: float) -> None:
            joint = model.actuator(servo).name
            gain = p[f"{joint}.gain_factor"]
            model.actuator_gainprm[servo, 0] *= gain
            model.actuator_biasprm[servo, 1] *= gain
            torque = p["torque_factor"] * p[f"{joint}.torque_factor"]
            model.actuator_forcerange[servo] *= torque
            damping = p["damping_factor"] * p[f"{joint}.damping_factor"]
            model.actuator_biasprm[servo, 2] *= damping
            model.dof_damping[dof] *= damping
            model.dof_armature[dof] *= p["armature_factor"] * p[f"{joint}.armature_factor"]
            friction_nm = model.dof_frictionloss[dof] + p[f"{joint}.friction_nm"] * stronger
            model.dof_frictionloss[dof] = max(friction_nm, 0.0)

        play, limit = np.zeros(len(arm.joint_names)), np.full(len(arm.joint_names), np.inf)
        play[arm.arm_columns] = [p[f"{joint}.backlash_rad"] for joint in joints]
        limit[arm.arm_columns] = [p[f"{joint}.speed_limit_rad_s"] for joint in joints]
        on.commands.play_rad = on.commands.play_rad + play
        on.commands.speed_limit_rad_s = np.minimum(on.commands.speed_limit_rad_s, limit)


DRIVES: Final = _Drives()

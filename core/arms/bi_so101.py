"""Two SO-101 side by side, named as LeRobot's `bi_so_follower` names them.

The cube starts before the left arm and the disc lies before the right one, too far from the other
arm each: the left arm hands over in the middle. Frame: that of the cell, between both bases.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.arm import Arm, MountedArm, Paint
from gaploop.core.arms.so101 import CELL as ONE

HALF_WAY_M: Final = 0.21
"""From the middle to either base: with its hand down an arm reaches 0.30 m from its first axis."""
PAN_RAD, *REST_RAD = ONE.home_q_rad  # at home each arm is turned outwards, out of the other's way

LEFT: Final = MountedArm("left_", replace(ONE, home_q_rad=(-PAN_RAD, *REST_RAD)), (0.0, HALF_WAY_M))
RIGHT: Final = MountedArm("right_", ONE, (0.0, -HALF_WAY_M))
PAIR: Final = (LEFT, RIGHT)


def load(mjcf: Path, paint: Paint) -> Any:
    """Return both arms, as a `mujoco.MjSpec`."""
    import mujoco

    spec = mujoco.MjSpec()
    for side in PAIR:
        arm = side.arm.load(mjcf, paint)
        for option in ("timestep", "iterations", "ls_iterations", "impratio", "integrator", "cone"):
            setattr(spec.option, option, getattr(arm.option, option))  # or it warns
        frame = spec.worldbody.add_frame(pos=[*side.at_m, 0.0])
        spec.attach(arm, prefix=side.prefix, frame=frame)
    return spec


ARM: Final = Arm(
    name="bi_so101",
    cell=replace(
        ONE,
        name="bi_so101",
        label="pair of SO-101",
        load=load,
        joint_names=tuple(side.prefix + name for side in PAIR for name in ONE.joint_names),
        home_q_rad=LEFT.arm.home_q_rad + RIGHT.arm.home_q_rad,
        zero_keys=ONE.zero_keys * 2,
        servos=replace(
            ONE.servos, stall_nm=ONE.servos.stall_nm * 2, nm_per_a=ONE.servos.nm_per_a * 2
        ),
        spawn_centre_m=(0.15, 0.22),
        goal_centre_m=(0.15, -0.22),
        camera_pos_m=(0.18, 0.0, 1.18),
        report_eye_m=(0.95, -0.45, 0.62),
        report_at_m=(0.12, 0.0, 0.06),
        mounted=PAIR,
        relay_m=(0.16, 0.0),
    ),
)

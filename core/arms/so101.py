"""The SO-101 (and the SO-100, whose links are as long to within millimetres)."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core import arm

# The MuJoCo Menagerie model that so101-nexus ships (Apache-2.0).
MODEL: Final = arm.ModelFile(
    "so101_nexus", "assets/SO101_menagerie/so101.xml", "pip install 'gaploop[sim]'"
)
GRIPPER_RAD: Final = (-0.174533, 1.7453292)  # of the model's joint
# Turns of its links, as so101.xml has them.
_HALF: Final = 0.7071067811865475
_TILT, _UPRIGHT = 0.017209108230571014, 0.7068973380865913
STALL_NM: Final = 2.94
"""Of an STS3215 at 12 V (C018), by Feetech's sheet: 30 kg cm; the model's force limit."""


def load(mjcf: Path, paint: arm.Paint) -> Any:
    """Return the arm alone, as a `mujoco.MjSpec`.

    Only its collision geometry is drawn: on a CPU the visual meshes cost over ten times the time.
    """
    import mujoco

    spec = mujoco.MjSpec.from_file(str(mjcf))
    for geom in [g for g in spec.geoms if g.classname.name == "visual"]:
        spec.delete(geom)
    used = {g.meshname for g in spec.geoms if g.meshname}
    for mesh in list(spec.meshes):
        if (mesh.name or mesh.file.rsplit(".", 1)[0]) not in used:
            spec.delete(mesh)
    for geom in spec.geoms:
        gripper = geom.classname.name.startswith("collision_gripper")
        geom.group = 0
        geom.rgba = np.array(paint.jaw if gripper else paint.arm)
    base = spec.body("base")
    for pos, size, rgba in (
        ((0.012, 0.0, 0.018), (0.048, 0.038, 0.018), paint.arm),
        ((0.026, 0.0, 0.044), (0.026, 0.016, 0.014), paint.servo),
    ):
        base.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, pos=pos, size=size, rgba=rgba,
            contype=0, conaffinity=0, mass=0.0,
        )  # fmt: skip
    return spec


# STS3215, ids 1 to 6, 1 Mbit/s.
CHAIN: Final = arm.ServoChain(
    protocol="feetech",
    models=("sts3215",) * 6,
    zero_ticks=arm.ASSEMBLED_TICKS,
    settings={"Return_Delay_Time": 0},
)
LEADER: Final = replace(CHAIN, zero_ticks=(2101, 1902, 2087, 2050, 2140, 1990))
"""The same servos, assembled by the same hands: no two arms have the same calibration."""

CELL: Final = arm.CellArm(
    name="so101",
    label="SO-101",
    model=MODEL,
    load=load,
    joint_names=arm.SIX_JOINTS,
    home_q_rad=(1.397, -0.57, 0.587, 1.552, 0.046, 0.75),
    finger_bodies=("gripper", "moving_jaw_so101_v1"),
    zero_keys=("pan_rad", "lift_rad", "elbow_rad", "wrist_rad", "roll_rad"),
    grip=arm.Grip(
        travel_rad=GRIPPER_RAD,
        open_rad=0.75,
        shut_rad=-0.10,
        empty_rad=0.0,
        fixed_jaw_x_m=0.020,
        widest_m=0.026,
    ),
    # Feetech's sheet: a stall current of 2.7 A, and 0.18 A running free. Torque is taken as
    # linear in current between the two. Register 69 counts 6.5 mA. LeRobot's so101_follower
    # limits the gripper to half its torque (Max_Torque_Limit 500).
    servos=arm.Servos(
        stall_nm=(STALL_NM,) * 6,
        nm_per_a=(STALL_NM / (2.7 - 0.18),) * 6,
        current_step_a=0.0065,
        gripper_nm=0.5 * STALL_NM,
        stalls_a=2.5,
    ),
    links=(
        arm.Link((arm.PAN_AXIS_X_M, 0.0, 0.0624), quat=(0.0, 0.0, -1.0, 0.0)),
        arm.Link((-0.0303992, -0.0182778, -0.0542), quat=(0.5, -0.5, -0.5, -0.5)),
        arm.Link((-0.11257, -0.028, 0.0), quat=(_HALF, 0.0, 0.0, _HALF)),
        arm.Link((-0.1349, 0.0052, 0.0), quat=(_HALF, 0.0, 0.0, -_HALF)),
        arm.Link((0.0, -0.0611, 0.0181), quat=(_TILT, -_TILT, _UPRIGHT, _UPRIGHT)),
    ),
    tool_m=(0.012, -0.000218, -0.098127),
    spawn_centre_m=(0.15, 0.0),
    camera_pos_m=(0.20, 0.0, 0.62),
    camera_fovy_deg=36.0,
    shade_z_m=0.36,
    report_eye_m=(0.62, -0.42, 0.42),
    report_at_m=(0.13, 0.0, 0.085),
)

ARM: Final = arm.Arm(
    name="so101",
    robot_types=(
        *("so100_follower", "so101_follower", "so_follower", "bi_so_follower"),
        *("so100_leader", "so101_leader", "so_leader", "bi_so_leader"),
        "so101_sim",
    ),
    kinematics=arm.ArmSpec(
        label="SO-101",
        model=MODEL,
        points=(
            arm.GuardedPoint("fixed finger tip", "gripper", (-0.0081, 0.0, -0.103)),
            arm.GuardedPoint("moving finger tip", "moving_jaw_so101_v1", (-0.012, -0.078, 0.0192)),
            arm.GuardedPoint("wrist", "wrist"),
            arm.GuardedPoint("elbow", "lower_arm"),
        ),
        workspace_m=((-0.15, 0.45), (-0.40, 0.40), (-0.005, 0.50)),
        gripper_percent_rad=GRIPPER_RAD,
        half_range_rad=arm.half_ranges(1.91986, 1.7453293, 1.69, 1.658063, 2.7438473, 0.9599311),
    ),
    stall_current_a=2.5,  # an STS3215 stalls at 2.7 A and 12 V (Feetech's sheet)
    full_turn=frozenset({"wrist_roll"}),
    park_rad={"shoulder_lift": -1.745, "elbow_flex": 1.69, "wrist_flex": 0.98},
    emulated={"follower": CHAIN, "leader": LEADER},
    cell=CELL,
)

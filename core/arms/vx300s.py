"""The ViperX 300 S: links and meshes of the model that gym-aloha ships (Apache-2.0).

gym-aloha's arm has a sliding motor on each finger and up to 60 N m of friction in its joints. Here
one servo moves both fingers, as on the real arm, and all servos are as stiff for their strength as
the SO-101's in its model, so that faults of the same size mean the same.
"""

from html import escape  # xml.sax would bring the whole of urllib
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.arm import PAN_AXIS_X_M, Arm, CellArm, Grip, Link, ModelFile, Paint, Servos

MODEL: Final = ModelFile(
    "gym_aloha",
    "assets",
    "pip install --no-deps gym-aloha==0.1.5 (only its files are used; its own requirements ask for "
    "an older MuJoCo)",
)
PREFIX: Final = "vx300s_left/"
JOINT_NAMES: Final = (
    "waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper",
)  # fmt: skip
STALL_NM: Final = (10.6, 21.2, 21.2, 10.6, 10.6, 4.1, 4.1)
"""Of each joint: ROBOTIS' sheets, 12 V; shoulder and elbow have two servos."""
GRIPPER_TRAVEL_RAD: Final = (-0.6213, 1.4910)
"""Gripper servo closed and open: constants.py of gym-aloha (PUPPET_GRIPPER_JOINT_*)."""
FINGER_TRAVEL_M: Final = (0.021, 0.057)
"""Finger slides closed and open: joint ranges of gym-aloha's model. In truth a crank moves them;
linear between the two ends is what gym-aloha, too, makes of it."""
TCP_X_M: Final = 0.1450
"""Tool centre along the gripper's x axis: 9 mm above the finger tips."""
GRIPPER_NM: Final = 0.55
"""The gripper's limit: the one at which the jaws press with 16 N, as the SO-101's do."""

# The SO-101 model's servo: gain, damping and friction per N m of stall torque (so101.xml).
_GAIN: Final = 998.22 / 2.94
_DAMPING: Final = 2.731 / 2.94
_JOINT_DAMPING: Final = 0.60 / 2.94
_FRICTION: Final = 0.052 / 2.94
# Rotor inertias seen through the gears [kg m2]: shoulder, elbow and forearm_roll from MuJoCo
# Menagerie's aloha.xml; the others assumed, such that servos this stiff don't ring.
_ARMATURE: Final = (0.20, 0.395, 0.383, 0.14, 0.10, 0.04, 0.005)
_FINGER_KG: Final = 8.0
"""Of the gripper's rotor, seen at each finger: a gear between unlike masses would be soft."""
_DRAWN_AS_BOX: Final = ("7_gripper", "9_gripper_bar")  # 9,000 and 7,600 triangles as meshes


def load(at: Path, paint: Paint) -> Any:
    """Return the arm alone, as a `mujoco.MjSpec`, from the folder of the meshes."""
    import mujoco

    links, arm = (escape(str(at / f"vx300s_{part}.xml")) for part in ("dependencies", "left"))
    spec = mujoco.MjSpec.from_string(
        f'<mujoco model="vx300s"><compiler meshdir="{escape(str(at))}" fitaabb="true"/>'
        f'<include file="{links}"/><worldbody><include file="{arm}"/></worldbody></mujoco>'
    )
    spec.compiler.inertiagrouprange = [0, 5]  # theirs leaves what stands on the table weightless
    for part in (*spec.cameras, *spec.sites):
        spec.delete(part)
    for item in (*spec.bodies, *spec.joints, *spec.geoms):
        item.name = item.name.removeprefix(PREFIX)
    for old, new in (
        ("vx300s_left", "base"),
        ("gripper_link", "gripper"),
        ("left_finger_link", "left_finger"),
        ("right_finger_link", "right_finger"),
    ):
        spec.body(old).name = new
    # Colours as the SO-101's, coarse hulls, and contact with the world but not with itself.
    for mesh in spec.meshes:
        mesh.maxhullvert = 32
    for geom in spec.geoms:
        is_finger = "finger" in geom.name
        geom.rgba = np.array(paint.jaw if is_finger else paint.arm)
        # Things have bits 1 and 1: they meet an arm of bits 2 and 1, its own links don't.
        geom.contype, geom.conaffinity = (0, 0) if geom.name == "1_base" else (2, 1)
        if geom.name in _DRAWN_AS_BOX:
            geom.type = mujoco.mjtGeom.mjGEOM_BOX
        if is_finger:  # as the SO-101's jaws
            geom.condim, geom.priority = 6, 1
            geom.friction = [1.0, 5e-3, 5e-4]
            geom.solref, geom.solimp = [0.01, 1.0], [0.9, 0.95, 0.001, 0.5, 2.0]
    # Servos on all joints, and one more joint that moves both fingers.
    low_m, high_m = FINGER_TRAVEL_M
    low_rad, high_rad = GRIPPER_TRAVEL_RAD
    spec.body("gripper_prop_link").add_joint(
        name="gripper", type=mujoco.mjtJoint.mjJNT_HINGE, axis=[1, 0, 0],
        range=[low_rad, high_rad], limited=mujoco.mjtLimited.mjLIMITED_TRUE,
    )  # fmt: skip
    per_rad = (high_m - low_m) / (high_rad - low_rad)
    unused = [0.0] * (mujoco.mjNEQDATA - 2)
    for finger, sign in (("left_finger", 1.0), ("right_finger", -1.0)):
        joint = spec.joint(finger)
        joint.frictionloss, joint.armature = 0.0, _FINGER_KG
        _damp(joint, 5.0)
        spec.add_equality(
            type=mujoco.mjtEq.mjEQ_JOINT, objtype=mujoco.mjtObj.mjOBJ_JOINT, name1=finger,
            name2="gripper", solref=[0.01, 1.0],
            solimp=[0.98, 0.995, 0.001, 0.5, 2.0],
            data=[sign * (low_m - per_rad * low_rad), sign * per_rad, *unused],
        )  # fmt: skip
    strength_nm = (*STALL_NM[:-1], GRIPPER_NM)
    for name, stall_nm, armature in zip(JOINT_NAMES, strength_nm, _ARMATURE, strict=True):
        joint = spec.joint(name)
        joint.armature, joint.frictionloss = armature, _FRICTION * stall_nm
        _damp(joint, _JOINT_DAMPING * stall_nm)
        servo = spec.add_actuator(
            name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT,
            forcelimited=True, forcerange=[-stall_nm, stall_nm],
            ctrllimited=True, ctrlrange=list(joint.range),
        )  # fmt: skip
        kp, kv = _GAIN * stall_nm, _DAMPING * stall_nm
        servo.set_to_position(kp=kp, kv=kv)
    spec.body("base").pos = [PAN_AXIS_X_M, 0.0, 0.0]
    # x along the jaws' travel, z out of the hand.
    spec.body("gripper").add_site(
        name="gripperframe", pos=[TCP_X_M, 0.0, 0.0], quat=[0.5, 0.5, 0.5, 0.5], group=3
    )
    return spec


def _damp(joint: Any, per_speed: float) -> None:
    """Damp a joint in proportion to its speed: the further coefficients are of its powers."""
    coefficients = np.zeros_like(joint.damping)
    coefficients[0] = per_speed
    joint.damping = coefficients


ARM: Final = Arm(
    name="vx300s",
    cell=CellArm(
        name="vx300s",
        label="ViperX 300 S",
        model=MODEL,
        load=load,
        joint_names=JOINT_NAMES,
        home_q_rad=(1.35, -0.152, 0.453, 0.0, 1.27, -1.571, 1.2),
        finger_bodies=("left_finger", "right_finger"),
        main_joints=(0, 1, 2, 4),
        zero_keys=("pan_rad", "lift_rad", "elbow_rad", "", "wrist_rad", "roll_rad"),
        grip=Grip(
            travel_rad=GRIPPER_TRAVEL_RAD,
            open_rad=1.2,  # jaws 59 mm apart
            shut_rad=-0.58,  # as good as closed
            empty_rad=-0.48,  # 2 mm
            fixed_jaw_x_m=None,
            widest_m=0.026,
        ),
        # ROBOTIS' sheets at 12 V: XM540-W270 10.6 N m at 4.4 A, XM430-W350 4.1 N m at 2.3 A;
        # shoulder and elbow have two servos, of which one reports. Registers count 2.69 mA.
        servos=Servos(
            stall_nm=STALL_NM,
            nm_per_a=(2.41, 4.82, 4.82, 2.41, 2.41, 1.78, 1.78),
            current_step_a=0.00269,
            gripper_nm=GRIPPER_NM,
            stalls_a=4.0,
        ),
        links=(
            Link((PAN_AXIS_X_M, 0.0, 0.079)),
            Link((0.0, 0.0, 0.04805), axis=(0.0, 1.0, 0.0)),
            Link((0.05955, 0.0, 0.3), axis=(0.0, 1.0, 0.0)),
            Link((0.2, 0.0, 0.0), axis=(1.0, 0.0, 0.0)),
            Link((0.1, 0.0, 0.0), axis=(0.0, 1.0, 0.0)),
            Link((0.069744, 0.0, 0.0), axis=(1.0, 0.0, 0.0)),
        ),
        tool_m=(TCP_X_M, 0.0, 0.0),
        spawn_centre_m=(0.30, 0.0),
        camera_pos_m=(0.35, 0.0, 1.10),
        camera_fovy_deg=20.76,  # the same 0.40 m of table as above the SO-101
        shade_z_m=0.64,
        report_eye_m=(1.10, -0.75, 0.62),
        report_at_m=(0.20, 0.0, 0.20),
    ),
)

"""The ViperX 300 S's model: links and meshes of the one that gym-aloha ships (Apache-2.0).

gym-aloha's arm has a sliding motor on each finger and up to 60 N m of friction in its joints. Here
one servo moves both fingers, as on the real arm, and all servos are as stiff for their strength as
the SO-101's in its model, so that faults of the same size mean the same.
"""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from gaploop.sim import headless  # noqa: F401  (sets the renderer up before mujoco is imported)

# isort: split
import mujoco
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.sim import look
from gaploop.sim.so101 import PAN_AXIS_X_M

PACKAGE: Final = "gym_aloha"
PREFIX: Final = "vx300s_left/"
JOINT_NAMES: Final = (
    "waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper",
)  # fmt: skip
HOME_Q_RAD: Final = (1.35, -0.152, 0.453, 0.0, 1.27, -1.571, 1.2)
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


def is_installed() -> bool:
    """Say whether the package with the meshes is there."""
    found = util.find_spec(PACKAGE)
    return found is not None and bool(found.submodule_search_locations)


def folder() -> Path:
    """Return where the model's files are.

    Raises:
        UnusableInputError: the package isn't installed.
    """
    found = util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise UnusableInputError(
            "The ViperX 300 S (vx300s) needs the meshes of gym-aloha, which isn't installed. Run: "
            "pip install --no-deps gym-aloha==0.1.5 (only its files are used; its own "
            "requirements ask for an older MuJoCo)"
        )
    return Path(found.submodule_search_locations[0]) / "assets"


def load() -> mujoco.MjSpec:
    """Return the arm alone.

    Raises:
        UnusableInputError: the package with the meshes isn't installed.
    """
    at = folder()
    links, arm = (quoteattr(str(at / f"vx300s_{part}.xml")) for part in ("dependencies", "left"))
    spec = mujoco.MjSpec.from_string(
        f'<mujoco model="vx300s"><compiler meshdir={quoteattr(str(at))} fitaabb="true"/>'
        f"<include file={links}/><worldbody><include file={arm}/></worldbody></mujoco>"
    )
    spec.compiler.inertiagrouprange = [0, 5]  # theirs leaves what stands on the table weightless
    _rename(spec)
    _draw(spec)
    _drive(spec)
    spec.body("base").pos = [PAN_AXIS_X_M, 0.0, 0.0]
    # x along the jaws' travel, z out of the hand.
    spec.body("gripper").add_site(
        name="gripperframe", pos=[TCP_X_M, 0.0, 0.0], quat=[0.5, 0.5, 0.5, 0.5], group=3
    )
    return spec


def _rename(spec: mujoco.MjSpec) -> None:
    for camera in list(spec.cameras):
        spec.delete(camera)
    for site in list(spec.sites):
        spec.delete(site)
    for item in (*spec.bodies, *spec.joints, *spec.geoms):
        item.name = item.name.removeprefix(PREFIX)
    for old, new in (
        ("vx300s_left", "base"),
        ("gripper_link", "gripper"),
        ("left_finger_link", "left_finger"),
        ("right_finger_link", "right_finger"),
    ):
        spec.body(old).name = new


def _draw(spec: mujoco.MjSpec) -> None:
    """Colours as the SO-101's, coarse hulls, and contact with the world but not with itself."""
    for mesh in spec.meshes:
        mesh.maxhullvert = 32
    for geom in spec.geoms:
        finger = "finger" in geom.name
        geom.rgba = np.array(look.JAW_RGBA if finger else look.ARM_RGBA)
        # Things have bits 1 and 1: they meet an arm of bits 2 and 1, its own links don't.
        geom.contype, geom.conaffinity = (0, 0) if geom.name == "1_base" else (2, 1)
        if geom.name in _DRAWN_AS_BOX:
            geom.type = mujoco.mjtGeom.mjGEOM_BOX
        if finger:  # as the SO-101's jaws
            geom.condim, geom.priority = 6, 1
            geom.friction = [1.0, 5e-3, 5e-4]
            geom.solref, geom.solimp = [0.01, 1.0], [0.9, 0.95, 0.001, 0.5, 2.0]


def _drive(spec: mujoco.MjSpec) -> None:
    """Servos on all joints, and one more joint that moves both fingers."""
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


def _damp(joint: mujoco.MjsJoint, per_speed: float) -> None:
    """Damp a joint in proportion to its speed: the further coefficients are of its powers."""
    coefficients = np.zeros_like(joint.damping)
    coefficients[0] = per_speed
    joint.damping = coefficients

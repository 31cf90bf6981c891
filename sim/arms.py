"""The arms that the embedded cell can have: everything about them that the cell must know.

An arm is data: another one is another `CellArm`. Each is mounted with its first, vertical axis over
the same point of the table (`so101.PAN_AXIS_X_M`), so that tracked scenes mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from gaploop.sim import headless  # noqa: F401  (sets the renderer up before mujoco is imported)

# isort: split
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import unknown_choice
from gaploop.sim import so101, vx300s

type Point = tuple[float, float, float]


@dataclass(frozen=True)
class Servos:
    """What an arm's servos can do and report, gripper last.

    Attributes:
        stall_nm: stall torque of each joint [N m], which is the model's force limit.
        nm_per_a: torque per current that a joint's servo reports [N m/A].
        current_step_a: unit of the current register [A].
        gripper_nm: torque that the gripper is limited to [N m].
        stalls_a: current from which on a station should call it a stall [A].
    """

    stall_nm: tuple[float, ...]
    nm_per_a: tuple[float, ...]
    current_step_a: float
    gripper_nm: float
    stalls_a: float

    def current_a(self, torque_nm: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate the current that each servo would report, in register steps.

        Args:
            torque_nm: torque at the output shafts [N m], shape (n_joints,).

        Returns:
            Magnitude of the current [A], same shape.
        """
        current_a = np.abs(torque_nm) / np.asarray(self.nm_per_a)
        return np.asarray(np.round(current_a / self.current_step_a) * self.current_step_a)


@dataclass(frozen=True)
class Grip:
    """How an arm's gripper takes hold of things.

    Attributes:
        travel_rad: gripper joint closed and open: 0 and 100 of LeRobot's units.
        open_rad: opening for a grasp.
        shut_rad: goal that closes on whatever is there.
        empty_rad: closed further than this it holds nothing.
        fixed_jaw_x_m: inner face of the jaw that doesn't move, along the tool's x axis; None
            where both jaws move, and the tool's centre goes to the object's.
        widest_m: half width that still fits between the open jaws.
    """

    travel_rad: tuple[float, float]
    open_rad: float
    shut_rad: float
    empty_rad: float
    fixed_jaw_x_m: float | None
    widest_m: float

    def beside_m(self, half_m: float, clearance_m: float) -> float:
        """Return where an object's centre is along the tool's x axis before the jaws close [m]."""
        return 0.0 if self.fixed_jaw_x_m is None else self.fixed_jaw_x_m - half_m - clearance_m


@dataclass(frozen=True)
class CellArm:
    """An arm of the embedded cell.

    Attributes:
        name: what options call it.
        says: what people call it.
        load: makes its model, drawn as the cell draws it: joints and servos by `joint_names`, its
            base's body "base", its hand's "gripper", and a site `kinematics.TCP_SITE` whose z axis
            points out of the hand and whose x axis points along the jaws' travel.
        joint_names: order of all joint arrays, gripper last.
        home_q_rad: pointing down and turned aside, so that the camera sees the whole workspace.
        finger_bodies: bodies of the two jaws.
        main_joints: which joints turn, lift, bend and tilt the arm: what some faults act upon.
        zero_keys: of each joint but the gripper, the joint of the gap `zero_offset` that it has, or
            "" where the gap knows none such.
        grip: its gripper.
        servos: its servos.
        spawn_centre_m: middle of the ring of places where things start, on the table.
        camera_pos_m: the overhead camera, which looks straight down.
        camera_fovy_deg: its field of view.
        shade_z_m: height of what hides a part of the scene: above the arm's highest carry.
        report_eye_m: from where pictures for people are taken.
        report_at_m: what they show in their middle.
    """

    name: str
    says: str
    load: Callable[[], mujoco.MjSpec]
    joint_names: tuple[str, ...]
    home_q_rad: tuple[float, ...]
    finger_bodies: tuple[str, str]
    main_joints: tuple[int, int, int, int]
    zero_keys: tuple[str, ...]
    grip: Grip
    servos: Servos
    spawn_centre_m: tuple[float, float]
    camera_pos_m: Point
    camera_fovy_deg: float
    shade_z_m: float
    report_eye_m: Point
    report_at_m: Point

    @property
    def robot_type(self) -> str:
        """The name that recordings carry."""
        return f"{self.name}_sim"

    @property
    def n_arm(self) -> int:
        """Number of joints without the gripper."""
        return len(self.joint_names) - 1


SO101: Final = CellArm(
    name="so101",
    says="SO-101",
    load=so101.load,
    joint_names=so101.JOINT_NAMES,
    home_q_rad=(1.397, -0.57, 0.587, 1.552, 0.046, 0.75),
    finger_bodies=("gripper", "moving_jaw_so101_v1"),
    main_joints=(0, 1, 2, 3),
    zero_keys=("pan_rad", "lift_rad", "elbow_rad", "wrist_rad", "roll_rad"),
    grip=Grip(
        travel_rad=(-0.174533, 1.7453292),  # of the model's joint
        open_rad=0.75,
        shut_rad=-0.10,
        empty_rad=0.0,
        fixed_jaw_x_m=0.020,
        widest_m=0.026,
    ),
    # Feetech's sheet for the 12 V STS3215 (C018): stall torque 30 kg cm = 2.94 N m, which is the
    # model's force limit, at a stall current of 2.7 A, and 0.18 A running free. Torque is taken as
    # linear in current between the two. Register 69 counts 6.5 mA. LeRobot's so101_follower limits
    # the gripper to half its torque (Max_Torque_Limit 500).
    servos=Servos((2.94,) * 6, (2.94 / (2.7 - 0.18),) * 6, 0.0065, 0.5 * 2.94, 2.5),
    spawn_centre_m=(0.15, 0.0),
    camera_pos_m=(0.20, 0.0, 0.62),
    camera_fovy_deg=36.0,
    shade_z_m=0.36,
    report_eye_m=(0.62, -0.42, 0.42),
    report_at_m=(0.13, 0.0, 0.085),
)

VX300S: Final = CellArm(
    name="vx300s",
    says="ViperX 300 S",
    load=vx300s.load,
    joint_names=vx300s.JOINT_NAMES,
    home_q_rad=vx300s.HOME_Q_RAD,
    finger_bodies=("left_finger", "right_finger"),
    main_joints=(0, 1, 2, 4),
    zero_keys=("pan_rad", "lift_rad", "elbow_rad", "", "wrist_rad", "roll_rad"),
    grip=Grip(
        travel_rad=vx300s.GRIPPER_TRAVEL_RAD,
        open_rad=1.2,  # jaws 59 mm apart
        shut_rad=-0.58,  # as good as closed
        empty_rad=-0.48,  # 2 mm
        fixed_jaw_x_m=None,
        widest_m=0.026,
    ),
    # ROBOTIS' sheets at 12 V: XM540-W270 10.6 N m at 4.4 A, XM430-W350 4.1 N m at 2.3 A; shoulder
    # and elbow have two servos, of which one reports. Registers count 2.69 mA.
    servos=Servos(
        vx300s.STALL_NM, (2.41, 4.82, 4.82, 2.41, 2.41, 1.78, 1.78), 0.00269, vx300s.GRIPPER_NM, 4.0
    ),
    spawn_centre_m=(0.30, 0.0),
    camera_pos_m=(0.35, 0.0, 1.10),
    camera_fovy_deg=20.76,  # the same 0.40 m of table as above the SO-101
    shade_z_m=0.64,
    report_eye_m=(1.10, -0.75, 0.62),
    report_at_m=(0.20, 0.0, 0.20),
)

ARMS: Final = {arm.name: arm for arm in (SO101, VX300S)}
"""The arms by name; the first is the default everywhere."""


def arm_named(name: str, where: str = "--env.robot") -> CellArm:
    """Return an arm of the cell.

    Args:
        name: one of `ARMS`.
        where: the option that named it, for the message.

    Raises:
        UnusableInputError: no such arm, or the package with its model isn't installed.
    """
    if name not in ARMS:
        raise unknown_choice("arm of the embedded cell", name, ARMS, where)
    if name == VX300S.name:
        vx300s.folder()
    return ARMS[name]


def arm_of(robot_type: str) -> CellArm:
    """Return the arm of a recording's robot type; the default for one that the cell hasn't."""
    return next((arm for arm in ARMS.values() if arm.robot_type == robot_type), SO101)


@cache
def arm_with_joints(joint_names: tuple[str, ...]) -> CellArm | None:
    """Return the arm that has these joints, or None where none has or its model isn't here."""
    found = next((arm for arm in ARMS.values() if arm.joint_names == joint_names), None)
    return found if found is not VX300S or vx300s.is_installed() else None

"""What a simulated camera shows: its size, the lens and the pose that were measured of a real one.

MuJoCo draws a pinhole camera with square pixels and its centre in the middle. A measured lens is
drawn wider by one, at its own resolution, and the picture is bent: OpenCV's model, inverted for
each pixel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import cv2
import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gaploop.core.arm import CellArm
from gaploop.core.camera import MeasuredCamera, read_measured
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, mapping
from gaploop.sim.kinematics import TCP_SITE

OVERHEAD: Final = "overhead"
WRIST: Final = "wrist"
IN_MODEL: Final = "wrist_cam"
"""The SO-101's camera mount has it; another arm's model may."""
WIDEST: Final = np.tan(np.radians(75.0))
"""Half of the widest view that a pinhole camera draws, as a slope."""
OFF_PX: Final = 0.05
"""A pixel's ray, bent again, comes back this near."""
CV_FROM_MUJOCO: Final = np.diag([1.0, -1.0, -1.0])
"""MuJoCo's cameras look along -z, y up; OpenCV's along z, y down."""


class Lens:
    """Bends what a pinhole camera draws as a measured lens does.

    Attributes:
        source_px: width and height of what has to be drawn.
        fovy_deg: vertical field of view that it has to be drawn with.
    """

    def __init__(self, camera: MeasuredCamera, where: str) -> None:
        """Invert the lens; UnusableInputError where that can't be done."""
        K, D, size = camera.matrix, camera.distortion, (camera.width, camera.height)
        px = np.stack(np.meshgrid(*(np.arange(n, dtype=np.float64) for n in size)), -1)
        px = px.reshape(-1, 1, 2)
        until = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 200, 1e-12)
        rays = cv2.undistortPointsIter(px, K, D, np.eye(3), np.eye(3), until)
        ahead = np.concatenate([rays, np.ones_like(rays[..., :1])], -1)
        back, _ = cv2.projectPoints(ahead, np.zeros(3), np.zeros(3), K, D)
        half = np.abs(rays).max(axis=(0, 1))
        if not (np.abs(back - px).max() < OFF_PX and half.max() < WIDEST):
            raise UnusableInputError(
                f"{where}: at the picture's edge its distortion can't be inverted, or it sees "
                "wider than 150°. Show boards at the edges: gaploop calibrate intrinsics"
            )
        focal_px = float(max(K[0, 0], K[1, 1]))
        width, height = (2 * int(np.ceil(focal_px * h + 1.0)) for h in half)
        self.source_px = width, height
        self.fovy_deg = float(np.degrees(2.0 * np.arctan(0.5 * height / focal_px)))
        middle = np.array([0.5 * width - 0.5, 0.5 * height - 0.5])
        places = (rays * focal_px + middle).reshape(size[1], size[0], 2).astype(np.float32)
        self._bend = cv2.convertMaps(places, None, cv2.CV_16SC2)
        flat = np.array([[focal_px, 0.0, middle[0]], [0.0, focal_px, middle[1]], [0.0, 0.0, 1.0]])
        self._flatten = K, D, np.eye(3), flat, self.source_px, cv2.CV_32FC1

    def bent(self, drawn: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return what the lens makes of a picture of `source_px`, shape (height, width, 3)."""
        return np.asarray(cv2.remap(drawn, *self._bend, cv2.INTER_LINEAR), dtype=np.uint8)

    def flat(self, photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a photo by the lens, of its size, as a picture of `source_px`."""
        maps = cv2.initUndistortRectifyMap(*self._flatten)
        return np.asarray(cv2.remap(photo, *maps, cv2.INTER_LINEAR), dtype=np.uint8)


@dataclass(frozen=True)
class View:
    """A camera that is shown.

    Attributes:
        in_model: its name in the model.
        size_px: width and height of its pictures.
        measured: what is known of the real one, or None.
        where: which it is, in words.
    """

    name: str
    in_model: str
    size_px: tuple[int, int]
    measured: MeasuredCamera | None = None
    where: str = ""

    @cached_property
    def lens(self) -> Lens | None:
        """What bends its pictures."""
        return Lens(self.measured, self.where) if self.measured else None

    def put_into(
        self, spec: mujoco.MjSpec, tool: str = "", base_m: ArrayLike = (0.0, 0.0, 0.0),
        base_quat: Sequence[float] = (1.0, 0.0, 0.0, 0.0),
    ) -> None:  # fmt: skip
        """Give a model, not yet compiled, the measured camera.

        Args:
            tool: site whose frame is the tool's.
            base_m: where the arm's base frame is in the world [m]; likewise `base_quat`.

        Raises:
            UnusableInputError: its pose wasn't measured, and the model doesn't have it either.
        """
        there = spec.camera(self.in_model)
        T = self.measured.T_mount_camera if self.measured else None
        if self.measured is None or self.lens is None:
            if there is None:
                raise UnusableInputError(f"{self.where}: this arm's model has none. Leave it out.")
            return
        if T is None:
            if there is None:
                raise UnusableInputError(
                    f"{self.where}: its place wasn't measured. Run: gaploop calibrate hand_eye "
                    f"FOLDER --camera_name={self.name}"
                )
            there.fovy = self.lens.fovy_deg
            return
        if there is not None:
            spec.delete(there)
        body, mount = spec.worldbody, (np.asarray(base_m, dtype=np.float64), base_quat)
        if self.measured.in_hand:
            site = spec.site(tool)
            if site is None:
                raise UnusableInputError(
                    f"{self.where}: it is on the tool, and the model has no site "
                    f"'{tool}'. Name the tool's site in the scene file: tool: NAME"
                )
            body, mount = site.parent, (site.pos, site.quat)
        turn = np.zeros(9)
        quat = np.array(mount[1], dtype=np.float64)
        mujoco.mju_normalize4(quat)
        mujoco.mju_quat2Mat(turn, quat)
        frame = turn.reshape(3, 3)
        place = mount[0] + frame @ T[:3, 3]
        mujoco.mju_mat2Quat(quat, (frame @ T[:3, :3] @ CV_FROM_MUJOCO).reshape(-1))
        body.add_camera(name=self.in_model, pos=place, quat=quat, fovy=self.lens.fovy_deg)


@dataclass(frozen=True)
class Mounted:
    """A camera of a compiled model as it was measured.

    Attributes:
        camera: its id.
        body: whose frame it is fixed to.
        pos_m, quat: where in that frame; None where only the lens was measured.
    """

    view: View
    camera: int
    body: int = 0
    pos_m: NDArray[np.float64] | None = None
    quat: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, model: mujoco.MjModel, said: Any, name: str, where: str, folder: Path) -> Mounted:
        """Read `{calibration: FILE, frame: NAME}` of a camera of the model; FILE is in `folder`.

        `frame` is the body or site whose frame the file's pose is given in: the arm's base, or the
        tool of a camera in the hand.

        Raises:
            UnusableInputError: no such file, or a pose without its frame.
        """
        given = mapping(said, where, "calibration: FILE, frame: NAME")
        check_keys(given, ("calibration", "frame"), where, ("calibration",))
        path = folder / str(given["calibration"])
        known = MeasuredCamera.from_json(read_measured(path, name), where)
        view = View(name, name, (known.width, known.height), known, where)
        camera, T = model.camera(name).id, known.T_mount_camera
        if T is None:
            return cls(view, camera)
        bodies = {model.body(b).name: b for b in range(model.nbody)}
        sites = {model.site(s).name: s for s in range(model.nsite)}
        frame = str(given.get("frame", ""))
        if not frame or frame not in {*bodies, *sites}:
            named = "frame of the tool" if known.in_hand else "frame of the arm's base"
            choices = filter(None, {**bodies, **sites})
            raise unknown_choice(f"{named} (frame: a body or site)", frame, choices, where)
        mount = np.eye(4)
        if frame not in bodies:
            turn, site = np.zeros(9), sites[frame]
            mujoco.mju_quat2Mat(turn, model.site_quat[site])
            mount[:3, :3], mount[:3, 3] = turn.reshape(3, 3), model.site_pos[site]
            body = int(model.site_bodyid[site])
        else:
            body = bodies[frame]
        pose, quat = mount @ T, np.zeros(4)
        mujoco.mju_mat2Quat(quat, (pose[:3, :3] @ CV_FROM_MUJOCO).reshape(-1))
        return cls(view, camera, body, pose[:3, 3], quat)

    def put_on(self, model: mujoco.MjModel) -> None:
        """Give the model's camera the measured place and field of view."""
        assert self.view.lens is not None
        model.cam_sensorsize[self.camera] = 0.0  # else it counts instead of the angle
        model.cam_fovy[self.camera] = self.view.lens.fovy_deg
        if self.pos_m is not None:
            model.cam_mode[self.camera] = int(mujoco.mjtCamLight.mjCAMLIGHT_FIXED)
            model.cam_bodyid[self.camera] = self.body
            model.cam_pos[self.camera], model.cam_quat[self.camera] = self.pos_m, self.quat


def read_cameras(said: Any, where: str) -> dict[str, dict[str, Any]]:
    """Return `{name: {calibration: FILE} or {size_px: [width, height]}}` with files read.

    The result is plain data: what a calibration file says of the camera stands for its path.
    """
    found = {}
    for name, camera in mapping(said, where, "name: {calibration, size_px}").items():
        place = f"{where}, {name}"
        given = mapping(camera, place, "calibration: FILE")
        check_keys(given, ("calibration", "size_px"), place)
        if "calibration" in given:
            if "size_px" in given:
                raise UnusableInputError(f"{place}: the calibration says its size. Drop size_px.")
            given = {"calibration": read_measured(Path(str(given["calibration"])), str(name))}
        elif "size_px" in given:
            given = {"size_px": list(_size(given["size_px"], place))}
        found[str(name)] = given
    return found


def _size(value: Any, where: str) -> tuple[int, int]:
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not all(type(n) is int and 8 <= n <= 4096 for n in value):
        raise UnusableInputError(f"{where}: give size_px: [width, height] in px, not {value!r}.")
    width, height = value
    return width, height


def view_of(name: str, said: Mapping[str, Any], in_model: str, size_px: Any, where: str) -> View:
    """Return a camera as `read_cameras` says it."""
    if "calibration" not in said:
        return View(name, in_model, _size(said.get("size_px", size_px), where))
    known = MeasuredCamera.from_json(said["calibration"], where)
    return View(name, in_model, (known.width, known.height), known, where)


def cell_views(
    cameras: Mapping[str, Mapping[str, Any]], image_size: int, arm: CellArm
) -> tuple[View, ...]:
    """Return the cell's cameras that are shown; the overhead one where none is named.

    Args:
        cameras: as `read_cameras` returns them.
        image_size: width and height of those of which nothing else is said [px].

    Raises:
        UnknownChoiceError: a camera that the cell hasn't, and without calibration.
    """
    own = {OVERHEAD: OVERHEAD}
    own |= {side.prefix + WRIST: side.prefix + IN_MODEL for side in arm.arms}
    found = []
    for name, said in (cameras or {OVERHEAD: {}}).items():
        if name not in own and "calibration" not in said:
            raise unknown_choice("camera of the embedded cell", name, own, "cameras")
        in_model, where = own.get(name, name), f"Camera {name}"
        found.append(view_of(name, said, in_model, (image_size,) * 2, where))
    return tuple(found)


def put_cell_views(views: Sequence[View], spec: mujoco.MjSpec, arm: CellArm) -> None:
    """Give the cell's model the measured cameras; refuse what leaves a pair's arm open."""
    for view in views:
        side = next((s for s in arm.arms if view.name.startswith(s.prefix)), None)
        if side is None:
            if view.measured is not None and view.measured.T_mount_camera is not None:
                names = " or ".join(f"{s.prefix}{view.name}" for s in arm.arms)
                raise UnusableInputError(f"{view.where}: of which arm's frame? Call it {names}.")
            side = arm.arms[0]
        view.put_into(spec, side.prefix + TCP_SITE, (*side.at_m, 0.0))


def fixed(views: Sequence[View], model: mujoco.MjModel) -> list[int]:
    """Return the cameras among them, by id, that stand still; all of them where none does."""
    ids = [int(model.camera(view.in_model).id) for view in views]
    return [c for c in ids if not moves(model, c)] or ids


def moves(model: mujoco.MjModel, camera: int) -> bool:
    """Say whether a camera of a model moves with a body."""
    body = int(model.cam_bodyid[camera])
    still = int(model.body_weldid[body]) == 0 and int(model.body_mocapid[body]) < 0
    return not (still and int(model.cam_mode[camera]) == int(mujoco.mjtCamLight.mjCAMLIGHT_FIXED))

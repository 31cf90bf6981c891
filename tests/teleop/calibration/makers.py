"""Pictures of boards with known truth: every pixel's ray is traced to the printed plane.

Nothing here uses the code under test but the description of the board and of the camera.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray, Image
from gaploop.teleop.calibration.board import Board, charuco
from gaploop.teleop.calibration.intrinsics import Intrinsics

SUPERSAMPLES = 3
SQUARE_PX = 80  # 21/28 of it are a whole number of pixels, and each module of a marker too

CHARUCO = Board()


def camera(width: int = 640, height: int = 480, focal_px: float = 0.0) -> Intrinsics:
    """A webcam whose axes, centre and distortion are all off."""
    focal_px = focal_px or 0.85 * width
    centre = width * 0.512, height * 0.481
    matrix = np.array([[focal_px, 0, centre[0]], [0, focal_px * 1.006, centre[1]], [0, 0, 1]])
    return Intrinsics(width, height, matrix, np.array([-0.24, 0.10, 0.0009, -0.0007, -0.015]))


@dataclass(frozen=True)
class Picture:
    """How a picture is taken: lens blur and noise in grey levels."""

    blur_px: float = 0.6
    noise: float = 2.0
    seed: int = 0


def render(
    board: Board, lens: Intrinsics, T_camera_board: FloatArray, how: Picture | None = None
) -> Image:
    """Return an RGB picture of `board`, shape (height, width, 3)."""
    how = how or Picture()
    rng = np.random.default_rng(how.seed)
    grey = np.full((lens.height, lens.width), 110.0, dtype=np.float32)
    grey += np.linspace(-25, 25, lens.width, dtype=np.float32)  # a wall, lit from one side
    box = _box(board, lens, T_camera_board)
    if box is not None:
        x0, y0, x1, y1 = box
        shades, seen = _trace(board, lens, T_camera_board, box)
        grey[y0:y1, x0:x1] = grey[y0:y1, x0:x1] * (1 - seen) + shades * seen
    if how.blur_px > 0:
        grey = cv2.GaussianBlur(grey, (0, 0), how.blur_px)
    grey = grey + rng.normal(0, how.noise, grey.shape)
    return np.repeat(np.clip(np.rint(grey), 0, 255).astype(np.uint8)[..., None], 3, axis=2)


def look_at(eye_m: FloatArray, target_m: FloatArray, roll_rad: float = 0.0) -> FloatArray:
    """Return T_world_camera of a camera at `eye_m` whose optical axis meets `target_m`."""
    forward = np.asarray(target_m, float) - eye_m
    forward /= np.linalg.norm(forward)
    side = np.cross(forward, (0.0, 0.0, 1.0) if abs(forward[2]) < 0.95 else (1.0, 0.0, 0.0))
    side /= np.linalg.norm(side)
    down = np.cross(forward, side)
    T = np.eye(4)
    T[:3, :3] = np.stack([side, down, forward], axis=1)
    T[:3, 3] = eye_m
    c, s = np.cos(roll_rad), np.sin(roll_rad)
    T[:3, :3] = T[:3, :3] @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    return T


def spread_poses(board: Board, lens: Intrinsics, n: int, seed: int = 0) -> list[FloatArray]:
    """Return T_camera_board of a board held about the picture, tilted every way."""
    rng = np.random.default_rng(seed)
    made: list[FloatArray] = []
    size_m = board.columns * board.square_m
    places = [(x, y) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    for i in range(n):
        x, y = places[i % 9]
        width_share = rng.uniform(0.42, 0.62)  # of the picture's width that the board covers
        z = lens.focal_px * size_m / (width_share * lens.width)
        reach_x = 0.5 * (1 - width_share) * 1.02
        reach_y = 0.5 * (1 - width_share * lens.width / lens.height * board.rows / board.columns)
        centre = (
            np.array([x * reach_x * lens.width, y * max(reach_y, 0.0) * 1.02 * lens.height])
            * z
            / lens.focal_px
        )
        direction = i * 2.399963 + 0.3  # the golden angle: tilts go round
        tilt = np.deg2rad(rng.uniform(12, 38)) * np.array([np.cos(direction), np.sin(direction), 0])
        R = cv2.Rodrigues(tilt)[0] @ cv2.Rodrigues(np.array([0, 0, rng.uniform(-0.4, 0.4)]))[0]
        T = np.eye(4)
        T[:3, :3] = R
        T[:3, 3] = np.array([*centre, z]) - R @ board.centre_m
        made.append(T)
    return made


@functools.lru_cache(maxsize=8)
def texture(board: Board) -> NDArray[np.float32]:
    """Return the printed sheet with half a square of white about it, SQUARE_PX a square."""
    wide, high = board.columns * SQUARE_PX, board.rows * SQUARE_PX
    sheet = charuco(board).generateImage((wide, high))
    edge = SQUARE_PX // 2
    framed = cv2.copyMakeBorder(sheet, edge, edge, edge, edge, cv2.BORDER_CONSTANT, value=255)
    return np.asarray(15 + 220 * (framed / 255.0), dtype=np.float32)


def _box(board: Board, lens: Intrinsics, T: FloatArray) -> tuple[int, int, int, int] | None:
    """Return the part of the picture that the sheet may cover."""
    edge = board.square_m / 2
    x = np.linspace(-edge, board.columns * board.square_m + edge, 15)
    y = np.linspace(-edge, board.rows * board.square_m + edge, 15)
    points = np.array([(a, b, 0.0) for a in x for b in y])
    if ((points @ T[:3, :3].T + T[:3, 3])[:, 2] < 0.02).any():
        return None
    pixels = lens.project(T, points)
    low = np.maximum(np.floor(pixels.min(axis=0)) - 2, 0).astype(int)
    high = np.minimum(np.ceil(pixels.max(axis=0)) + 3, (lens.width, lens.height)).astype(int)
    return None if (high <= low).any() else (low[0], low[1], high[0], high[1])


@functools.lru_cache(maxsize=8)
def _rays(key: tuple[float, ...], width: int, height: int) -> NDArray[np.float32]:
    """Return the ray (x/z, y/z) of every subpixel, shape (height * s, width * s, 2)."""
    matrix, lens = np.array(key[:9]).reshape(3, 3), np.array(key[9:])
    s = SUPERSAMPLES
    # Of every pixel and of those around the picture; subpixels lie on straight lines between them.
    grid = np.stack(np.meshgrid(np.arange(-1.0, width + 1), np.arange(-1.0, height + 1)), axis=-1)
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 40, 1e-9)
    rays = cv2.undistortPointsIter(grid.reshape(-1, 1, 2), matrix, lens, None, None, criteria)
    rays = cv2.resize(rays.reshape(grid.shape), None, fx=s, fy=s, interpolation=cv2.INTER_LINEAR)
    return np.ascontiguousarray(rays[s:-s, s:-s], dtype=np.float32)


def _trace(
    board: Board, lens: Intrinsics, T: FloatArray, box: tuple[int, int, int, int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return shade and coverage of the pixels in `box`, from a ray through every subpixel."""
    x0, y0, x1, y1 = box
    s = SUPERSAMPLES
    key = (*lens.camera_matrix.ravel(), *lens.distortion.ravel())
    rays = _rays(key, lens.width, lens.height)[y0 * s : y1 * s, x0 * s : x1 * s]
    H = np.linalg.inv(np.stack([T[:3, 0], T[:3, 1], T[:3, 3]], axis=1)).astype(np.float32)
    plane = rays @ H[:, :2].T + H[:, 2]
    scale = SQUARE_PX / board.square_m
    at = (plane[..., :2] / plane[..., 2:]) * np.float32(scale) + np.float32(SQUARE_PX // 2 - 0.5)
    sheet = texture(board)
    shades = cv2.remap(sheet, at[..., 0], at[..., 1], cv2.INTER_LINEAR)
    inside = (at > -0.5).all(axis=-1) & (at[..., 0] < sheet.shape[1] - 0.5)
    inside &= at[..., 1] < sheet.shape[0] - 0.5
    seen = inside.astype(np.float32)
    size = (x1 - x0, y1 - y0)
    total = cv2.resize(seen, size, interpolation=cv2.INTER_AREA)
    shade = cv2.resize(shades * seen, size, interpolation=cv2.INTER_AREA)
    return shade / np.maximum(total, 1e-6), total


SMALL_CHARUCO = Board(columns=7, rows=5, square_m=0.016, marker_m=0.012)


@dataclass(frozen=True)
class Scene:
    """An SO-101, a camera and a board, all of known place."""

    setup: str
    board: Board
    lens: Intrinsics
    T_mount_camera: FloatArray
    T_far_board: FloatArray

    def T_camera_board(self, q_rad: FloatArray) -> FloatArray:  # noqa: N802
        """Return where the board is for the camera at joint positions [rad]."""
        T = arm().T_base_tcp(q_rad)
        far_mount = T if self.setup == "eye_in_hand" else np.linalg.inv(T)
        return np.linalg.inv(far_mount @ self.T_mount_camera) @ self.T_far_board

    def picture(self, q_rad: FloatArray, how: Picture | None = None) -> Image:
        """Return what the camera sees at joint positions [rad]."""
        return render(self.board, self.lens, self.T_camera_board(q_rad), how)


def scene(setup: str, board: Board) -> Scene:
    """Return a camera on the gripper over a board on the table, or beside an arm holding one."""
    if setup == "eye_in_hand":
        T_tcp_camera = np.eye(4)
        tilt = cv2.Rodrigues(np.array([0.35, 0.02, -0.03]))[0]
        T_tcp_camera[:3, :3] = cv2.Rodrigues(np.array([0.0, 0.0, np.pi / 2]))[0] @ tilt
        T_tcp_camera[:3, 3] = (0.055, 0.004, -0.075)
        T_base_board = np.array(
            [[0, -1, 0, 0.29], [-1, 0, 0, 0.05], [0, 0, -1, 0.002], [0, 0, 0, 1.0]]
        )
        return Scene(setup, board, camera(focal_px=480), T_tcp_camera, T_base_board)
    T_base_camera = look_at(np.array([0.62, 0.18, 0.33]), np.array([0.22, 0.0, 0.20]), 0.1)
    T_tcp_board = np.eye(4)
    # Held by its edge, facing away from the gripper.
    T_tcp_board[:3, :3] = cv2.Rodrigues(np.array([np.pi - 0.2, 0.0, 0.1]))[0]
    T_tcp_board[:3, 3] = (-0.05, 0.04, 0.02)
    return Scene(setup, board, camera(focal_px=760), T_base_camera, T_tcp_board)


@functools.lru_cache(maxsize=1)
def arm() -> ArmModel:
    """Return the SO-101's kinematics."""
    return ArmModel.load("so101")


def arm_poses(where: Scene, n: int, seed: int = 0, spread_rad: float = 0.5) -> list[FloatArray]:
    """Return joint positions [rad] from which the camera sees the whole board."""
    rng = np.random.default_rng(seed)
    home = np.array([0.0, -0.5, 0.4, 1.2, 0.0, 0.1])
    if where.setup == "eye_to_hand":
        home = np.array([0.1, -0.3, 0.3, 0.0, 0.0, 0.1])
    low, high = arm().joint_limits_rad.T
    found: list[FloatArray] = []
    for _ in range(200_000):
        step = spread_rad * np.array([0.8, 1.0, 1.0, 1.2, 1.6, 0])
        q = np.clip(home + rng.uniform(-1, 1, 6) * step, low, high)
        T = where.T_camera_board(q)
        corners = where.board.corners_m @ T[:3, :3].T + T[:3, 3]
        facing = T[:3, 2] @ (T[:3, :3] @ where.board.centre_m + T[:3, 3])
        if corners[:, 2].min() < 0.06 or facing < 0.5 * np.linalg.norm(corners.mean(axis=0)):
            continue
        pixels = where.lens.project(T, where.board.corners_m)
        edge = 0.04 * where.lens.width
        size = np.array([where.lens.width, where.lens.height])
        wide = np.ptp(pixels[:, 0]) > 0.2 * where.lens.width
        if wide and (pixels > edge).all() and (pixels < size - edge).all():
            found.append(q)
            if len(found) == n:
                return found
    raise AssertionError(f"only {len(found)} of {n} poses see the board")

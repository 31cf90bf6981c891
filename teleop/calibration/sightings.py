"""Folders of pictures, and of pictures with the arm's pose in each.

A folder for hand-eye calibration holds pictures and `poses.jsonl` with a row per picture: `image`,
and either the joint positions by name [rad] or the tool's pose.

    {"image": "000.png", "q_rad": {"shoulder_pan": 0.1, …}}
    {"image": "000.png", "T_base_tcp": [[…], […], […], […]]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, parse_json, read_text
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray, Image
from gaploop.core.paths import inside
from gaploop.teleop.calibration.board import Board, BoardView, find_board, why_not_found
from gaploop.teleop.calibration.hand_eye import Sighting
from gaploop.teleop.calibration.intrinsics import checked_pose

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
POSES: Final = "poses.jsonl"
_ASKED: Final = 6
"""How many pictures without a board are searched for another board: that is slow."""


type ArmPose = tuple[FloatArray, FloatArray | None]
"""The tool's pose, (4, 4), and joints [rad] where known."""


def image_files(folder: Path) -> list[Path]:
    """Return a folder's pictures by name and number; UnusableInputError where there are none."""
    files = [
        p
        for p in existing_folder(folder, "Folder").iterdir()
        if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith(".")
    ]
    if not files:
        raise UnusableInputError(
            f"{folder} holds no pictures ({', '.join(IMAGE_SUFFIXES)}). Name the folder that does, "
            "or take some with --camera.type=opencv."
        )
    parts = re.compile(r"(\d+)")
    return sorted(files, key=lambda p: [int(t) if t.isdigit() else t for t in parts.split(p.name)])


def read_image(path: Path) -> Image:
    """Return a picture as RGB, shape (h, w, 3); UnusableInputError where it can't be read."""
    data = np.fromfile(path, dtype=np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    if image is None:
        raise UnusableInputError(f"{path} is not a picture that can be read. Remove it.")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))


def write_image(path: Path, image: Image) -> None:
    """Write an RGB picture, shape (h, w, 3), without loss as PNG."""
    ok, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not ok:
        raise UnusableInputError(f"{path}: a picture of shape {image.shape} can't be written.")
    path.write_bytes(data.tobytes())


def find_boards(
    board: Board, files: Sequence[Path], advance: Callable[[], None] = lambda: None
) -> tuple[list[BoardView], list[str]]:
    """Look for a board in pictures, `advance` after each; return views, and pictures without.

    Raises:
        UnusableInputError: it is in none.
    """
    views, missed = [], []
    for path in files:
        view = find_board(board, read_image(path), path.name)
        views += [view] if view is not None else []
        missed += [path.name] if view is None else []
        advance()
    if not views:
        some = files[:: max(len(files) // _ASKED, 1)][:_ASKED]
        hint = why_not_found(board, (read_image(path) for path in some))
        raise UnusableInputError(
            f"No {board.words} in any of {len(files)} pictures in {files[0].parent}. {hint}"
        )
    return views, missed


def read_poses(folder: Path, arm: ArmModel | None) -> dict[str, ArmPose]:
    """Read a folder's poses by picture, or raise UnusableInputError; joints need `arm`."""
    path = folder / POSES
    if not path.is_file():
        raise UnusableInputError(
            f"{folder} has no {POSES}, so nobody knows where the arm was. See "
            "docs/teleoperate/calibration.md, or capture with --robot.type=…"
        )
    rows: dict[str, ArmPose] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UnusableInputError(f"{where} isn't JSON ({error}). Fix it.") from None
        image = str(row.get("image", "")) if isinstance(row, dict) else ""
        if not image:
            raise UnusableInputError(f"{where}: 'image' is missing. It names the picture's file.")
        if "T_base_tcp" in row:
            rows[image] = checked_pose(row["T_base_tcp"], f"{where}: T_base_tcp"), None
            continue
        given = row.get("q_rad")
        if not isinstance(given, Mapping):
            raise UnusableInputError(
                f"{where}: no joint positions, no T_base_tcp. See docs/teleoperate/calibration.md."
            )
        if arm is None:
            raise UnusableInputError(
                f"{where} has joint positions: which arm? --arm_model=so101, koch, openmanipulator "
                "or an MJCF file."
            )
        # Only the gripper may be missing: it doesn't move the tool.
        lacking = [name for name in arm.joint_names[:-1] if name not in given]
        if lacking:
            raise UnusableInputError(
                f"{where}: joint {', '.join(lacking)} is missing. The {arm.name} arm has "
                f"{', '.join(arm.joint_names)}."
            )
        try:
            q = np.array([float(given.get(name, 0.0)) for name in arm.joint_names])
        except (TypeError, ValueError):
            q = np.full(1, np.nan)
        if not np.isfinite(q).all() or np.abs(q[:-1]).max() > 2 * np.pi:
            raise UnusableInputError(
                f"{where}: joint positions must be finite and in radians, within ±2π; got {given}."
            )
        rows[image] = arm.T_base_tcp(q), q
    return rows


def find_sightings(
    board: Board, folder: Path, arm: ArmModel | None, advance: Callable[[], None] = lambda: None
) -> tuple[list[Sighting], list[str]]:
    """Return what a folder's pictures and poses show, and the pictures without a board."""
    poses = read_poses(folder, arm)
    pictures = [inside(folder, image, "image", "poses") for image in poses]
    for image, picture in zip(poses, pictures, strict=True):
        if not picture.is_file():
            raise UnusableInputError(
                f"{folder} has a pose for {image} but no such picture. Remove the row."
            )
    views, missed = find_boards(board, pictures, advance)
    return [Sighting(poses[v.name][0], v, poses[v.name][1]) for v in views], missed


def joints_row(image: str, joint_names: Sequence[str], q_rad: FloatArray) -> str:
    """Return the line of `poses.jsonl` for joint positions [rad], shape (n_joints,)."""
    q = {name: round(float(v), 6) for name, v in zip(joint_names, q_rad, strict=True)}
    return json.dumps({"image": image, "q_rad": q})

"""Folders of pictures, and of pictures with the arm's pose in each.

A folder for hand-eye calibration holds pictures and `poses.jsonl` or `poses.csv` with a row per
picture: `image`, and either the joint positions by name [rad] or the tool's pose.

    {"image": "000.png", "q_rad": {"shoulder_pan": 0.1, …}}      poses.jsonl
    {"image": "000.png", "T_base_tcp": [[…], […], […], […]]}     poses.jsonl
    image,shoulder_pan_rad,shoulder_lift_rad,…                   poses.csv
    image,x_m,y_m,z_m,qw,qx,qy,qz                                poses.csv
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from scipy.spatial.transform import Rotation

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, parse_json, read_text
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray, Image
from gaploop.core.paths import inside
from gaploop.teleop.calibration.board import Board, BoardView, find_board, why_not_found
from gaploop.teleop.calibration.geometry import checked_pose
from gaploop.teleop.calibration.hand_eye import Sighting

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
POSE_FILES: Final = ("poses.jsonl", "poses.csv")
_POSE_COLUMNS: Final = ("x_m", "y_m", "z_m", "qw", "qx", "qy", "qz")
_ASKED: Final = 6
"""How many pictures without a board are searched for another board: that is slow."""


@dataclass(frozen=True)
class BoardSightings:
    """The boards that a folder's pictures show, and the pictures without one."""

    views: tuple[BoardView, ...]
    missed: tuple[str, ...]


@dataclass(frozen=True)
class PoseRow:
    """One row of a poses file: a picture, the tool's pose (4, 4), and joints [rad] where known."""

    image: str
    T_base_tcp: FloatArray
    q_rad: FloatArray | None = None


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
) -> BoardSightings:
    """Look for a board in pictures, `advance` after each; UnusableInputError if it is in none."""
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
    return BoardSightings(tuple(views), tuple(missed))


def read_poses(folder: Path, arm: ArmModel | None) -> list[PoseRow]:
    """Read a folder's poses file, or raise UnusableInputError; joint positions need `arm`."""
    path = next((folder / n for n in POSE_FILES if (folder / n).is_file()), None)
    if path is None:
        raise UnusableInputError(
            f"{folder} has neither poses.jsonl nor poses.csv, so nobody knows where the arm was. "
            "See docs/teleoperate/calibration.md for their columns, or capture with --robot.type=…"
        )
    lines = _csv_rows(path) if path.suffix == ".csv" else _jsonl_rows(path)
    rows = []
    for number, row in lines:
        where, image = f"{path}:{number}", str(row.get("image", ""))
        if not image:
            raise UnusableInputError(f"{where}: 'image' is missing. It names the picture's file.")
        if "T_base_tcp" in row:
            rows.append(PoseRow(image, checked_pose(row["T_base_tcp"], f"{where}: T_base_tcp")))
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
        rows.append(PoseRow(image, arm.T_base_tcp(q), q))
    return rows


def find_sightings(
    board: Board, folder: Path, arm: ArmModel | None, advance: Callable[[], None] = lambda: None
) -> tuple[list[Sighting], BoardSightings]:
    """Return what a folder's pictures and poses show, and where; UnusableInputError if bad."""
    rows = read_poses(folder, arm)
    by_image = {row.image: row for row in rows}
    pictures = [inside(folder, row.image, "image", "poses") for row in rows]
    for row, picture in zip(rows, pictures, strict=True):
        if not picture.is_file():
            raise UnusableInputError(
                f"{folder} has a pose for {row.image} but no such picture. Remove the row."
            )
    found = find_boards(board, pictures, advance)
    sightings = [
        Sighting(by_image[v.name].T_base_tcp, v, by_image[v.name].q_rad) for v in found.views
    ]
    return sightings, found


def joints_row(image: str, joint_names: Sequence[str], q_rad: FloatArray) -> str:
    """Return the line of `poses.jsonl` for joint positions [rad], shape (n_joints,)."""
    q = {name: round(float(v), 6) for name, v in zip(joint_names, q_rad, strict=True)}
    return json.dumps({"image": image, "q_rad": q})


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        for number, row in enumerate(rows, start=2):
            cells = {k: v for k, v in row.items() if k is not None}  # None: more than columns
            texts = {k.strip(): (v or "").strip() for k, v in cells.items()}
            try:
                values = {k: float(v) for k, v in texts.items() if k != "image"}
            except ValueError as error:
                raise UnusableInputError(
                    f"{path}:{number}: {error}. Write angles in radians."
                ) from None
            pose_row: dict[str, Any] = {"image": texts.get("image", "")}
            if set(_POSE_COLUMNS) <= values.keys():
                x, y, z, qw, qx, qy, qz = (values[name] for name in _POSE_COLUMNS)
                if not 0.9 < float(np.linalg.norm((qw, qx, qy, qz))) < 1.1:
                    raise UnusableInputError(
                        f"{path}:{number}: qw, qx, qy, qz must be a unit quaternion."
                    )
                T = np.eye(4)
                T[:3, :3] = Rotation.from_quat((qx, qy, qz, qw)).as_matrix()
                T[:3, 3] = x, y, z
                pose_row["T_base_tcp"] = T
            else:
                pose_row["q_rad"] = {k.removesuffix("_rad"): v for k, v in values.items()}
            yield number, pose_row
    except csv.Error as error:
        raise UnusableInputError(f"{path} is no CSV file ({error}). Save it as such.") from None


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UnusableInputError(f"{path}:{number} isn't JSON ({error}). Fix it.") from None
        if not isinstance(row, dict):
            raise UnusableInputError(f"{path}:{number} must be an object with 'image'.")
        yield number, row

"""The calibration file: what is known about a cell's cameras and arms, under one id.

    {"schema": "gaploop.calibration.v1", "id": "sha256:…",
     "content": {"cameras": {"wrist": {"intrinsics": {…}, "hand_eye": {…}, "latency": {…}}},
                 "arms": {"follower": {"calibration": {…}}}},
     "history": [{"id", "at", "what", "content"}, …]}

The id is a hash of the content, so that equal content has an equal id and a file that was
edited by hand is noticed. Every take carries the id; the history keeps what it stood for.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from filelock import FileLock

from gaploop.core.camera import SCHEMA, checked_pose
from gaploop.core.clock import utc_ns
from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import (
    existing_folder,
    parse_json,
    read_json,
    read_text,
    sha256,
    writable_folder,
    write_json,
)
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray, Image
from gaploop.core.paths import inside
from gaploop.teleop.calibration.board import Board, BoardView, find_board, why_not_found
from gaploop.teleop.calibration.hand_eye import HandEye, Sighting
from gaploop.teleop.calibration.intrinsics import Intrinsics

SECTIONS: Final = ("cameras", "arms")
FORMER: Final = "references"
"""A section of version 0.1.0: kept, and read by nothing."""
SUFFIX: Final = ".calibration.json"
OLD_DAYS: Final = 30.0
"""A calibration older than this is worth repeating [days]: `gaploop doctor` says so."""
_DAY_S: Final = 86_400.0


@dataclass(frozen=True)
class CalibrationVersion:
    """A version of the content: its hash, when (ISO 8601, UTC) and by what change it was made."""

    id: str
    at: str
    what: str
    content: Mapping[str, Any]


@dataclass(frozen=True)
class CellCalibration:
    """What is known about a cell: its `content`, as in the module, and every version of it."""

    path: Path
    content: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[CalibrationVersion, ...] = ()

    @property
    def id(self) -> str:
        """Return the hash that takes carry; "" where nothing has been calibrated."""
        return calibration_id(self.content) if self.content else ""

    def get(self, section: str, name: str, part: str = "") -> Mapping[str, Any] | None:
        """Return one part, such as `cameras`, `wrist`, `intrinsics`; None where it isn't there."""
        found: Mapping[str, Any] | None = self.content.get(section, {}).get(name)
        return found.get(part) if found is not None and part else found

    def intrinsics(self, camera: str) -> Intrinsics:
        """Return a camera's intrinsics; UnusableInputError, with the command, where it has none."""
        return Intrinsics.from_json(*self._of_camera(camera, "intrinsics", "intrinsics"))

    def hand_eye(self, camera: str) -> HandEye:
        """Return where a camera is; UnusableInputError, with the command, where nobody knows."""
        return HandEye.from_json(*self._of_camera(camera, "hand_eye", "hand-eye calibration"))

    def ages_days(self, now_ns: int | None = None) -> dict[str, float]:
        """Return what was calibrated, such as `cameras.wrist.intrinsics`, to its age [days]."""
        now_s = (utc_ns() if now_ns is None else now_ns) * 1e-9
        return {name: (now_s - _seconds(value["at"])) / _DAY_S for name, value in self.parts()}

    def doubts(self, arm_file: Path | None = None) -> list[str]:
        """Return a line for each part that may no longer hold, from its age or from what changed.

        `arm_file` is the arm's own calibration (lerobot-calibrate's).
        """
        said = [
            f"{name} was calibrated {age:.0f} days ago. Repeat it if anything was touched."
            for name, age in self.ages_days().items()
            if age > OLD_DAYS
        ]
        known = self.get("arms", "follower", "calibration")
        file = arm_file if arm_file is not None and arm_file.is_file() else None
        if known is not None and file is not None and known["sha256"] != sha256(file):
            said.append(
                f"The arm was calibrated again ({file}) after its cameras were. Repeat: "
                "gaploop calibrate hand_eye"
            )
        return said

    def parts(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield every calibrated part's name with its values, among them `at`."""
        for section in SECTIONS:
            for name, parts in self.content.get(section, {}).items():
                yield from ((f"{section}.{name}.{k}", v) for k, v in parts.items())

    def _of_camera(self, camera: str, part: str, what: str) -> tuple[Mapping[str, Any], str]:
        """Return a part of a camera's calibration, and where it stands."""
        value = self.get("cameras", camera, part)
        if value is None:
            known = ", ".join(self.content.get("cameras", {})) or "none"
            raise UnusableInputError(
                f"{self.path} has no {what} of camera {camera!r} (cameras in it: {known}). Run: "
                f"gaploop calibrate {part} FOLDER --camera_name={camera} "
                f"--station={str(self.path).removesuffix(SUFFIX)}.yaml"
            )
        return value, f"{self.path}: cameras.{camera}.{part}"


def calibration_id(content: Mapping[str, Any]) -> str:
    """Return the hash of a content: `sha256:` and 16 hexadecimal digits.

    Equal values have an equal id, in whatever order their keys stand.
    """
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"


def calibration_path(station: Path | None = None) -> Path:
    """Return where the calibration is: beside the station file.

    `lab/left.yaml` has `lab/left.calibration.json`; without a station it is
    `station.calibration.json` in the current folder.
    """
    station = station or Path("station.yaml")
    return station.with_name(f"{station.stem}{SUFFIX}")


def load_calibration(path: Path, missing_ok: bool = False) -> CellCalibration:
    """Read a calibration file, with `missing_ok` an empty one; UnusableInputError if it is bad."""
    if missing_ok and not path.exists():
        return CellCalibration(path)
    if not path.exists():
        raise UnusableInputError(
            f"No calibration {path}. Run: gaploop calibrate intrinsics, or name another "
            "station file: its calibration lies beside it."
        )
    value = read_json(path)
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise UnusableInputError(
            f"{path} has schema {schema!r}, this version reads {SCHEMA!r}. Name a calibration file."
        )
    try:
        content = _content(value["content"], path)
        history = tuple(
            CalibrationVersion(
                str(e["id"]), str(e["at"]), str(e["what"]), _content(e["content"], path)
            )
            for e in value["history"]
        )
        found, said = calibration_id(content), str(value["id"])
    except DAMAGE as error:
        raise UnusableInputError(f"{path} is not whole ({error}). Restore it.") from None
    if found != said:
        raise UnusableInputError(
            f"{path} was changed by hand: its content is {found}, its id {said}. Restore it, or "
            "calibrate again beside another station file: --station=FILE."
        )
    return CellCalibration(path, content, history)


def _content(value: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a content if its parts are where they are looked for, each with the time it is of."""
    content = dict(value)
    for section in content:
        if section not in (*SECTIONS, FORMER):
            raise unknown_choice("section", section, SECTIONS, str(path))
    for _, part in CellCalibration(path, content).parts():
        _seconds(part["at"])
    return content


def save_part(path: Path, place: tuple[str, ...], value: Mapping[str, Any]) -> CellCalibration:
    """Set one part of a calibration file and keep the rest; return it as it stands now.

    The file is made if needed, and written atomically.

    Args:
        place: such as `("cameras", "wrist", "intrinsics")`.
        value: JSON values; the time is added as `at`.

    Raises:
        UnusableInputError: the file can't be read or its folder not written.
    """
    writable_folder(path.parent, "Folder", "--station")
    with FileLock(f"{path}.lock"):  # two commands at once must not lose each other's part
        before = load_calibration(path, missing_ok=True)
        content = holder = dict(before.content)
        at = datetime.fromtimestamp(utc_ns() * 1e-9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for key in place[:-1]:
            holder = holder.setdefault(key, {})
        holder[place[-1]] = {"at": at, **value}
        content = json.loads(json.dumps(content, allow_nan=False))  # as it will be read back
        entry = CalibrationVersion(calibration_id(content), at, ".".join(place), content)
        after = CellCalibration(path, content, (*before.history, entry))
        history = [asdict(version) for version in after.history]
        value = {"schema": SCHEMA, "id": after.id, "content": content, "history": history}
        write_json(path, value)
    return after


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except DAMAGE:
        raise UnusableInputError(f"{at!r} is not a time as in 2025-01-31T12:00:00Z.") from None


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

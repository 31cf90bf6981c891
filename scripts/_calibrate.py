"""The parts of `gaploop calibrate` that work on files."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_json
from gaploop.scripts import options
from gaploop.scripts._calibrate_text import (
    age,
    hand_eye_answer,
    hand_eye_lines,
    intrinsics_answer,
    intrinsics_lines,
    quality,
)

if TYPE_CHECKING:
    from gaploop.core.kinematics import ArmModel
    from gaploop.scripts.calibrate import BoardOptions, CalibrateFields
    from gaploop.teleop.calibration.board import Board
    from gaploop.teleop.calibration.store import CellCalibration

log = logging.getLogger(__name__)

WORTH_EXPLAINING_MM: Final = 1.0
"""A hand-eye residual above this is looked into: a good print and a good arm are below it."""


def show(config: CalibrateFields) -> int:
    """Print what is calibrated, how long ago, and how well."""
    from gaploop.teleop.calibration.store import OLD_DAYS, load_calibration

    calibration = load_calibration(calibration_file(config))
    ages = calibration.ages_days()
    lines = [f"{calibration.path}: {calibration.id}"]
    for name, part in calibration.parts():
        old = "  older than a month: worth repeating" if ages[name] > OLD_DAYS else ""
        lines.append(f"  {name:<32} {age(ages[name]):>10}  {quality(part)}{old}")
    answer = {
        "path": calibration.path,
        "id": calibration.id,
        "parts": {n: {"age_days": ages[n], **p} for n, p in calibration.parts()},
        "versions": [{"id": e.id, "at": e.at, "what": e.what} for e in calibration.history],
    }
    options.emit(config.json, answer, "\n".join(lines))
    return 0


def board(config: CalibrateFields) -> int:
    """Write a board to print."""
    from gaploop.teleop.calibration.board import write_sheet

    made = make_board(config.board)
    path = config.path or Path("board.pdf")
    page = write_sheet(made, path, config.page)
    text = (
        f"{path}: {made.words}, on {page}.\n"
        "Print at 100 % (actual size), check the 100 mm bar, glue to something flat, measure a "
        f"square.\nThen: gaploop calibrate intrinsics FOLDER {made.options}"
    )
    options.emit(config.json, {"path": path, "page": page, "board": asdict(made)}, text)
    return 0


def intrinsics(config: CalibrateFields) -> int:
    """Calibrate a lens from a folder of pictures, taken first where a camera is given."""
    from gaploop.teleop.calibration.intrinsics import calibrate_intrinsics
    from gaploop.teleop.calibration.pictures import coverage_picture
    from gaploop.teleop.calibration.sightings import find_boards, image_files

    folder, name = named_folder(config), camera_name(config)
    made = make_board(config.board)
    if getattr(config, "camera", None) is not None:
        from gaploop.scripts._calibrate_live import take_board_pictures

        config.camera_name = name
        take_board_pictures(config, made, folder)
    files = image_files(folder)
    with options.progress("Looking for boards", len(files)) as advance:
        found = find_boards(made, files, advance)
    with options.progress("Fitting"):
        result = calibrate_intrinsics(made, found.views, config.lens, config.drop_outliers)
    report = writable_folder(config.output_dir or folder / "report")
    picture = report / "coverage.png"
    coverage_picture(picture, found.views, result)
    answer = intrinsics_answer(result, found, picture)
    write_json(report / "intrinsics.json", options.jsonable(answer))
    lines = intrinsics_lines(result, found, picture)
    _refuse(result.refusals(), lines, picture)
    values = {**result.to_json(), "board": asdict(made)}
    saved = save(config, ("cameras", name, "intrinsics"), values)
    lines.append(saved_line(saved, f"cameras.{name}.intrinsics"))
    options.emit(config.json, {**answer, "calibration": saved.id}, "\n".join(lines))
    return 0


def hand_eye(config: CalibrateFields) -> int:
    """Find where a camera is, from a folder of pictures with the arm's pose in each."""
    from gaploop.teleop.calibration.hand_eye import calibrate_hand_eye, explained
    from gaploop.teleop.calibration.pictures import hand_eye_picture
    from gaploop.teleop.calibration.sightings import find_sightings
    from gaploop.teleop.calibration.store import load_calibration

    calibration = load_calibration(calibration_file(config), missing_ok=True)
    folder, name, made = named_folder(config), camera_name(config), make_board(config.board)
    lens = calibration.intrinsics(name)
    arm = arm_model(config)
    if getattr(config, "robot", None) is not None:
        from gaploop.scripts._calibrate_live import take_poses

        if arm is None:
            raise UnusableInputError(
                f"--robot.type={_kind(config)} has no kinematic model here. Give "
                "--arm_model=FILE.xml."
            )
        config.camera_name = name
        take_poses(config, made, folder, arm)
        note_arm_file(config)
    with options.progress("Looking for boards") as advance:
        sightings, found = find_sightings(made, folder, arm, advance)
    with options.progress("Fitting"):
        result = calibrate_hand_eye(made, lens, sightings, config.setup)
        if result.held_out.board_mm > WORTH_EXPLAINING_MM:
            result = explained(result, made, lens, sightings, arm)
    report = writable_folder(config.output_dir or folder / "report")
    picture = report / "hand_eye.png"
    hand_eye_picture(picture, result)
    answer = hand_eye_answer(result, found, picture)
    write_json(report / "hand_eye.json", options.jsonable(answer))
    lines = hand_eye_lines(result, found, picture)
    _refuse(result.refusals(), lines, picture)
    values = {**result.to_json(), "board": asdict(made), "intrinsics_at": _at(calibration, name)}
    saved = save(config, ("cameras", name, "hand_eye"), values)
    lines.append(saved_line(saved, f"cameras.{name}.hand_eye"))
    options.emit(config.json, {**answer, "calibration": saved.id}, "\n".join(lines))
    return 0


def make_board(given: BoardOptions) -> Board:
    """Return the board that the options describe, or raise UnusableInputError."""
    from gaploop.teleop.calibration.board import Board

    marker_mm = 0.75 * given.square_mm if given.marker_mm is None else given.marker_mm
    return Board(
        given.kind,
        given.columns,
        given.rows,
        given.square_mm * 1e-3,
        marker_mm * 1e-3,
        given.dictionary.removeprefix("DICT_"),
        given.legacy,
    )


def calibration_file(config: CalibrateFields) -> Path:
    """Return where the calibration file is or will be."""
    from gaploop.teleop.calibration.store import calibration_path

    return calibration_path(config.station, config.calibration)


def camera_name(config: CalibrateFields) -> str:
    """Return the camera's name, or raise UnusableInputError."""
    from gaploop.teleop.calibration.store import load_calibration

    if config.camera_name:
        return config.camera_name
    known = tuple(load_calibration(calibration_file(config), True).content.get("cameras", {}))
    if len(known) == 1:
        return str(known[0])
    hint = f" Known: {', '.join(known)}." if known else ""
    raise UnusableInputError(f"Which camera? Name it with --camera_name=wrist.{hint}")


def named_folder(config: CalibrateFields) -> Path:
    """Return the folder of pictures, or raise UnusableInputError."""
    if config.path is None:
        raise UnusableInputError(
            f"Which folder of pictures? gaploop calibrate {config.what} FOLDER. With "
            "--camera.type=opencv they are taken into it."
        )
    return config.path


def arm_model(config: CalibrateFields) -> ArmModel | None:
    """Return the arm's kinematics where an arm is named."""
    from gaploop.core.kinematics import ArmModel, model_of

    robot = getattr(config, "robot", None)
    name = config.arm_model or (model_of(_kind(config)) if robot is not None else "")
    return ArmModel.load(name) if name else None


def _kind(config: CalibrateFields) -> str:
    from gaploop.scripts._arms import kind

    return kind(getattr(config, "robot", None))


def save(
    config: CalibrateFields, place: tuple[str, ...], values: dict[str, Any]
) -> CellCalibration:
    """Set one part of the calibration file."""
    from gaploop.teleop.calibration.store import save_part

    return save_part(calibration_file(config), place, options.jsonable(values))


def note_arm_file(config: CalibrateFields) -> None:
    """Keep the hash of the arm's own calibration: results hold only for as long as it stays."""
    from gaploop.core.files import sha256

    file = arm_file(getattr(config, "robot", None))
    if file is not None:
        values = {"file": str(file), "sha256": sha256(file)}
        save(config, ("arms", config.arm_name or "follower", "calibration"), values)


def arm_file(robot: Any) -> Path | None:
    """Return lerobot-calibrate's file of a robot config, if the robot has one."""
    if robot is None:
        return None
    from lerobot.robots import make_robot_from_config

    path = getattr(make_robot_from_config(robot), "calibration_fpath", None)
    return Path(path) if path is not None and Path(path).is_file() else None


def saved_line(saved: CellCalibration, place: str) -> str:
    """Return the line that says where a result went."""
    return f"Saved as {place} in {saved.path} ({saved.id})."


def _refuse(reasons: tuple[str, ...], lines: list[str], picture: Path) -> None:
    if reasons:
        for line in lines:
            log.info("%s", line)
        raise UnusableInputError(f"Refused: {' '.join(reasons)} See {picture}")


def _at(calibration: CellCalibration, name: str) -> str:
    part = calibration.get("cameras", name, "intrinsics") or {}
    return str(part.get("at", ""))

"""`gaploop calibrate drift`: keep a reference, or compare with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options
from gaploop.scripts._calibrate import (
    arm_model,
    calibration_file,
    camera_name,
    make_board,
    note_arm_file,
    save,
    saved_line,
)

if TYPE_CHECKING:
    from gaploop.core.types import FloatArray
    from gaploop.scripts.calibrate import CalibrateFields
    from gaploop.teleop.calibration.board import BoardView
    from gaploop.teleop.calibration.drift import CalibrationSighting


def drift(config: CalibrateFields) -> int:
    """Store what is seen now, or compare it with what was stored; 1 where it has drifted."""
    from gaploop.teleop.calibration.drift import check_drift
    from gaploop.teleop.calibration.store import load_calibration

    seen = _observed(config)
    if config.store:
        note_arm_file(config)
        saved = save(config, ("references", config.reference), seen.to_json())
        line = saved_line(saved, f"references.{config.reference}")
        options.emit(config.json, {"stored": config.reference, "calibration": saved.id}, line)
        return 0
    calibration = load_calibration(calibration_file(config))
    found = check_drift(calibration, seen, config.reference, arm_model(config))
    figures = [
        f"{value:.1f} {unit}"
        for value, unit in ((found.px, "px"), (found.mm, "mm"), (found.deg, "°"))
        if np.isfinite(value)
    ]
    if found.verdict == "unknown":
        raise UnusableInputError(
            f"Nothing to compare with '{config.reference}': show what it was stored with (joints "
            "with --robot.type=…, the board with --camera.type=… or a folder)."
        )
    head = f"Against '{config.reference}': {found.verdict}, at most {', '.join(figures)}."
    options.emit(config.json, asdict(found), "\n".join([head, *found.says]))
    return int(found.verdict == "drifted")


def _observed(config: CalibrateFields) -> CalibrationSighting:
    """Return what is seen: by arm and camera, or in a folder."""
    from gaploop.teleop.calibration.drift import CalibrationSighting

    board, views = None, {}
    looks = getattr(config, "camera", None) is not None or config.path is not None
    if looks or config.camera_name:
        board, name = make_board(config.board), camera_name(config)
        config.camera_name = name
        views = {name: _view(config)}
    q_rad, names = _joints(config)
    if q_rad is None and not views:
        raise UnusableInputError(
            "Nothing to look at. Give the arm (--robot.type=…), a camera (--camera.type=… "
            "--camera_name=…), both, or a folder with a picture of the board."
        )
    return CalibrationSighting(q_rad, names, views, board)


def _view(config: CalibrateFields) -> BoardView:
    from gaploop.teleop.calibration.board import find_board, why_not_found
    from gaploop.teleop.calibration.sightings import image_files, read_image

    made = make_board(config.board)
    if getattr(config, "camera", None) is None and config.path is not None:
        path = image_files(config.path)[-1]
        image, name = read_image(path), str(path)
    else:
        from gaploop.scripts._calibrate_live import one_picture

        image, name = one_picture(config).image, f"camera {config.camera_name}"
    view = find_board(made, image, name)
    if view is None:
        raise UnusableInputError(
            f"No {made.words} in the picture of {name}. {why_not_found(made, [image])}"
        )
    return view


def _joints(config: CalibrateFields) -> tuple[FloatArray | None, tuple[str, ...]]:
    from gaploop.teleop.calibration.sightings import POSE_FILES, read_poses

    if getattr(config, "robot", None) is not None:
        from gaploop.scripts._calibrate_live import limp_arm

        with limp_arm(config) as follower:
            return follower.read().position_rad, follower.joint_names
    arm, folder = arm_model(config), config.path
    if arm is None or folder is None or not any((folder / n).is_file() for n in POSE_FILES):
        return None, ()
    return read_poses(folder, arm)[-1].q_rad, arm.joint_names

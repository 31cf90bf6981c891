"""What `gaploop calibrate` does: show, board, intrinsics, hand_eye, from_twin."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gaploop.collect import lerobot_types
from gaploop.collect.calibration import limp_arm, one_camera, take_board_pictures, take_poses
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder
from gaploop.core.kinematics import ArmModel, model_of
from gaploop.core.twin import load_twin
from gaploop.scripts import options
from gaploop.scripts.calibrate import CalibrateConfig
from gaploop.teleop.calibration import store
from gaploop.teleop.calibration.board import parse_board, write_sheet
from gaploop.teleop.calibration.hand_eye import HandEyeResult, calibrate_hand_eye
from gaploop.teleop.calibration.intrinsics import (
    IntrinsicsResult,
    calibrate_intrinsics,
    draw_coverage,
)

log = logging.getLogger(__name__)


def from_twin(config: CalibrateConfig) -> int:
    """Write a policy that allows for what a twin says of camera, table, zeros, light and delay."""
    ask = (
        "Which twin, and where to? gaploop calibrate from_twin station_twin.yaml "
        "--policy.path=base --output_dir=recalibrated"
    )
    twin, out = options.required(config.path, ask), options.required(config.output_dir, ask)
    load_twin(twin)  # a wrong path is told before torch is imported
    from gaploop.finetune.recalibration import recalibrate

    made = recalibrate(config.policy.required(), twin, out)
    lines = [f"{made.folder} ({made.id}) allows for:"]
    lines += [
        f"  {mechanism}: " + ", ".join(f"{name} {value:+.4g}" for name, value in values.items())
        for mechanism, values in made.taken_out.items()
    ]
    if made.left:
        lines.append(
            f"It sees pictures, which can't be corrected for {', '.join(made.left)}: record "
            "episodes in the twin and fine-tune (gaploop record --robot.twin=FILE)."
        )
    lines.append("It is valid until something moves: gaploop doctor --station=FILE tells.")
    options.emit(config.json, made, "\n".join(lines))
    return 0


def show(config: CalibrateConfig) -> int:
    """Print what is calibrated, how long ago, and how well."""
    calibration = store.load_calibration(store.calibration_path(config.station))
    ages = calibration.ages_days()
    lines = [f"{calibration.path}: {calibration.id}"]
    for name, part in calibration.parts():
        days = ages[name]
        age = "today" if days < 1 else "1 day" if days < 2 else f"{days:.0f} days"
        good = str(part.get("file", ""))
        if "rms_px" in part:
            good = f"{part['rms_px']:.2f} px RMS, {part['width']}x{part['height']}"
        elif "held_out_mm" in part:
            good = f"{part['held_out_mm']:.1f} mm held out, {part['setup'].replace('_', ' ')}"
        old = "  older than a month: worth repeating" if days > store.OLD_DAYS else ""
        lines.append(f"  {name:<32} {age:>10}  {good}{old}")
    answer = {
        "path": calibration.path,
        "id": calibration.id,
        "parts": {n: {"age_days": ages[n], **p} for n, p in calibration.parts()},
        "versions": [{"id": e.id, "at": e.at, "what": e.what} for e in calibration.history],
    }
    options.emit(config.json, answer, "\n".join(lines))
    return 0


def board(config: CalibrateConfig) -> int:
    """Write a board to print."""
    made = parse_board(config.board)
    path = config.path or Path("board.pdf")
    page = write_sheet(made, path)
    text = (
        f"{path}: {made.words}, on {page}.\n"
        "Print at 100 % (actual size), check the 100 mm bar, glue to something flat, measure a "
        f"square.\nThen: gaploop calibrate intrinsics FOLDER {made.option}"
    )
    options.emit(config.json, {"path": path, "page": page, "board": asdict(made)}, text)
    return 0


def intrinsics(config: CalibrateConfig) -> int:
    """Calibrate a lens from a folder of pictures, taken first where a camera is given."""
    folder, name, made = _folder(config), _camera_name(config), parse_board(config.board)
    if config.camera is not None:
        with one_camera(config.camera, name, config.robot) as camera:
            take_board_pictures(camera, made, folder)
    files = store.image_files(folder)
    with options.progress("Looking for boards", len(files)) as advance:
        views, missed = store.find_boards(made, files, advance)
    with options.progress("Fitting"):
        result = calibrate_intrinsics(made, views, config.lens)
    picture = writable_folder(config.output_dir or folder / "report") / "coverage.png"
    store.write_image(picture, draw_coverage(views, result))
    size = f"{len(views)} pictures of {result.intrinsics.width}x{result.intrinsics.height} px"
    lines = [made.words, size + _not_found(missed), *result.lines()]
    lines.append(f"  coverage      {result.coverage.share:.0%} of the picture: {picture}")
    answer = {
        "errors_px": result.errors_px,
        "hurting": [asdict(image) for image in result.hurting],
        "missing": result.coverage.missing(),
        "not_found": missed,
        "picture": picture,
    }
    return _keep(config, name, "intrinsics", result, answer, lines, {"board": asdict(made)})


def hand_eye(config: CalibrateConfig) -> int:
    """Find where a camera is, from a folder of pictures with the arm's pose in each."""
    calibration = store.load_calibration(store.calibration_path(config.station), missing_ok=True)
    folder, name, made = _folder(config), _camera_name(config), parse_board(config.board)
    lens, arm = calibration.intrinsics(name), _arm_model(config)
    if config.robot is not None:
        lacks = "This robot has no kinematic model here. Give --arm_model=FILE.xml."
        arm = options.required(arm, lacks)
        with (
            limp_arm(config.robot, config.station, keep=True) as follower,
            one_camera(config.camera, name, config.robot) as camera,
        ):
            log.info("The arm is limp: hold it. Move it, keep still for half a second, move on.")
            take_poses(camera, follower, arm, made, folder)
    with options.progress("Looking for boards") as advance:
        sightings, missed = store.find_sightings(made, folder, arm, advance)
    with options.progress("Fitting"):
        result = calibrate_hand_eye(made, lens, sightings, config.setup)
    lines = [made.words, f"{len(sightings)} pictures{_not_found(missed)}", *result.lines()]
    answer = {
        "errors_mm": result.errors_mm,
        "outliers": [image for image, _ in result.outliers()],
        "turn_deg": result.turn_deg,
        "not_found": missed,
    }
    of = calibration.get("cameras", name, "intrinsics") or {}
    more = {"board": asdict(made), "intrinsics_at": str(of.get("at", ""))}
    return _keep(config, name, "hand_eye", result, answer, lines, more)


def _camera_name(config: CalibrateConfig) -> str:
    """Return the camera's name: as given, or the only one that is known."""
    if config.camera_name:
        return config.camera_name
    calibration = store.load_calibration(store.calibration_path(config.station), missing_ok=True)
    known = tuple(calibration.content.get("cameras", {}))
    if len(known) == 1:
        return str(known[0])
    hint = f" Known: {', '.join(known)}." if known else ""
    raise UnusableInputError(f"Which camera? Name it with --camera_name=wrist.{hint}")


def _folder(config: CalibrateConfig) -> Path:
    ask = f"Which folder of pictures? gaploop calibrate {config.what} FOLDER. With "
    return options.required(config.path, f"{ask}--camera.type=opencv they are taken into it.")


def _arm_model(config: CalibrateConfig) -> ArmModel | None:
    """Return the arm's kinematics where an arm is named."""
    robot = config.robot
    name = config.arm_model or (model_of(lerobot_types.kind(robot)) if robot is not None else "")
    return ArmModel.load(name) if name else None


def _keep(
    config: CalibrateConfig,
    camera: str,
    part: str,
    result: IntrinsicsResult | HandEyeResult,
    answer: dict[str, Any],
    lines: list[str],
    more: dict[str, Any],
) -> int:
    """Save a camera's result with `more` beside it, and print it; refuse one that is too poor."""
    refused = result.refusals()
    folder = writable_folder(config.output_dir or _folder(config) / "report")
    answer = {**result.to_json(), "ok": not refused, "refused": refused, **answer}
    options.keep(folder, f"{part}.json", answer)
    if refused:
        for line in lines:
            log.info("%s", line)
        raise UnusableInputError(f"Refused: {' '.join(refused)} See {folder}")
    place, values = ("cameras", camera, part), options.jsonable({**result.to_json(), **more})
    saved = store.save_part(store.calibration_path(config.station), place, values)
    lines.append(f"Saved as {'.'.join(place)} in {saved.path} ({saved.id}).")
    options.emit(config.json, {**answer, "calibration": saved.id}, "\n".join(lines))
    return 0


def _not_found(missed: list[str]) -> str:
    if not missed:
        return ""
    names = ", ".join(missed[:5]) + (", …" if len(missed) > 5 else "")
    return f"; no board in {len(missed)} ({names})"

"""The parts of `gaploop calibrate` that work on files."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_json
from gaploop.scripts import options

if TYPE_CHECKING:
    from gaploop.core.kinematics import ArmModel
    from gaploop.scripts.calibrate import BoardOptions, CalibrateFields
    from gaploop.teleop.calibration.board import Board
    from gaploop.teleop.calibration.hand_eye_model import HandEyeResult
    from gaploop.teleop.calibration.intrinsics import IntrinsicsResult
    from gaploop.teleop.calibration.sightings import Found
    from gaploop.teleop.calibration.store import Calibration

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
        lines.append(f"  {name:<32} {_age(ages[name]):>10}  {_quality(part)}{old}")
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
    from gaploop.teleop.calibration.board_sheet import write_sheet

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
    answer = _intrinsics_answer(result, found, picture)
    write_json(report / "intrinsics.json", options.jsonable(answer))
    lines = _intrinsics_lines(result, found, picture)
    _refuse(result.refusals(), lines, picture)
    values = {**result.to_json(), "board": asdict(made)}
    saved = save(config, ("cameras", name, "intrinsics"), values)
    lines.append(saved_line(saved, f"cameras.{name}.intrinsics"))
    options.emit(config.json, {**answer, "calibration": saved.id}, "\n".join(lines))
    return 0


def hand_eye(config: CalibrateFields) -> int:
    """Find where a camera is, from a folder of pictures with the arm's pose in each."""
    from gaploop.teleop.calibration.hand_eye import calibrate_hand_eye
    from gaploop.teleop.calibration.hand_eye_explain import explained
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
    answer = _hand_eye_answer(result, found, picture)
    write_json(report / "hand_eye.json", options.jsonable(answer))
    lines = _hand_eye_lines(result, found, picture)
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


def save(config: CalibrateFields, place: tuple[str, ...], values: dict[str, Any]) -> Calibration:
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


def saved_line(saved: Calibration, place: str) -> str:
    """Return the line that says where a result went."""
    return f"Saved as {place} in {saved.path} ({saved.id})."


def _refuse(reasons: tuple[str, ...], lines: list[str], picture: Path) -> None:
    if reasons:
        for line in lines:
            log.info("%s", line)
        raise UnusableInputError(f"Refused: {' '.join(reasons)} See {picture}")


def _intrinsics_answer(result: IntrinsicsResult, found: Found, picture: Path) -> dict[str, Any]:
    return {
        **result.to_json(),
        "ok": not result.refusals(),
        "refused": result.refusals(),
        "per_image": [asdict(image) for image in result.images],
        "hurting": [asdict(image) for image in result.hurting],
        "dropped": result.dropped,
        "not_found": found.missed,
        "missing": result.coverage.missing(),
        "picture": picture,
    }


def _intrinsics_lines(result: IntrinsicsResult, found: Found, picture: Path) -> list[str]:
    lens, std, K = result.intrinsics, result.std, result.intrinsics.camera_matrix
    fx, fy = (max(std[name], result.focal_std_px) for name in ("fx", "fy"))
    lines = [
        f"{len(result.images)} pictures of {lens.width}x{lens.height} px{_not_found(found)}",
        f"  focal length  {K[0, 0]:.2f} ± {fx:.2f}, {K[1, 1]:.2f} ± {fy:.2f} px",
        f"  centre        {K[0, 2]:.2f} ± {std['cx']:.2f}, {K[1, 2]:.2f} ± {std['cy']:.2f} px",
        f"  RMS error     {result.rms_px:.3f} px, in held-out pictures {result.held_out_px:.3f} px",
    ]
    if result.dropped:
        lines.append(f"  left out      {', '.join(result.dropped)}")
    lines += [
        f"  hurts         {h.name}: {h.held_out_px:.2f} px (others {h.others_px:.2f}), shifts the "
        f"result by {h.shift_px:.2f} px; {h.why}"
        for h in result.hurting
    ]
    if result.hurting:
        lines.append("                to leave such pictures out: --drop_outliers")
    lines += [f"  missing       {ask}" for ask in result.coverage.missing()]
    lines.append(f"  coverage      {result.coverage.share:.0%} of the picture: {picture}")
    return lines


def _hand_eye_answer(result: HandEyeResult, found: Found, picture: Path) -> dict[str, Any]:
    return {
        **result.to_json(),
        "ok": not result.refusals(),
        "refused": result.refusals(),
        "by_method": {name: asdict(r) for name, r in result.by_method.items()},
        "errors_mm": dict(zip(result.names, result.errors_mm.tolist(), strict=True)),
        "outliers": [name for name, _ in result.outliers()],
        "turn_deg": result.turn_deg,
        "not_found": found.missed,
        "picture": picture,
    }


def _hand_eye_lines(result: HandEyeResult, found: Found, picture: Path) -> list[str]:
    from gaploop.teleop.calibration.geometry import rotation_vector

    T = result.hand_eye.T_mount_camera
    values = zip(T[:3, 3] * 1e3, result.std_mm, strict=True)
    place = ", ".join(f"{value:.2f} ± {std:.2f}" for value, std in values)
    turn = ", ".join(f"{v:.2f}" for v in rotation_vector(T[:3, :3]) * 57.29577951308232)
    held = result.held_out
    lines = [
        f"{len(result.names)} pictures{_not_found(found)}, turned by {result.turn_deg[0]:.0f}° and "
        f"{result.turn_deg[1]:.0f}° about two axes",
        f"  {result.hand_eye.name:<13} {place} mm",
        f"  rotation      {turn} ° (rotation vector) ± "
        + ", ".join(f"{v:.2f}" for v in result.std_deg),
        f"  held out      board off by {held.board_mm:.2f} mm, {held.rotation_deg:.2f}°, "
        f"{held.pixels:.2f} px ({result.method}, best of {len(result.by_method)} methods)",
    ]
    lines += [
        f"  hurts         {name}: off by {error:.1f} mm" for name, error in result.outliers()[:5]
    ]
    lines += [f"  perhaps       {words}" for words in result.explanations]
    lines.append(f"  figure        {picture}")
    return lines


def _not_found(found: Found) -> str:
    if not found.missed:
        return ""
    names = ", ".join(found.missed[:5]) + (", …" if len(found.missed) > 5 else "")
    return f"; no board in {len(found.missed)} ({names})"


def _at(calibration: Calibration, name: str) -> str:
    part = calibration.get("cameras", name, "intrinsics") or {}
    return str(part.get("at", ""))


def _age(days: float) -> str:
    if days < 1:
        return "today"
    return "1 day" if days < 2 else f"{days:.0f} days"


def _quality(part: Any) -> str:
    if "rms_px" in part:
        return f"{part['rms_px']:.2f} px RMS, {part['width']}x{part['height']}"
    if "held_out_mm" in part:
        return f"{part['held_out_mm']:.1f} mm held out, {part['setup'].replace('_', ' ')}"
    if "latency_s" in part:
        low, high = part["interval_s"]
        return f"{part['latency_s'] * 1e3:.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f})"
    return str(part.get("file", ""))

"""What `gaploop calibrate` does: show, board, intrinsics, hand_eye, latency, drift, from_twin."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.collect import lerobot_factory
from gaploop.core import journal_format
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import existing_folder, sha256, writable_folder
from gaploop.core.kinematics import ArmModel, model_of
from gaploop.core.take import Take
from gaploop.core.telemetry import Telemetry
from gaploop.datasets.telemetry_zarr import read_telemetry
from gaploop.scripts import _calibrate_live, options
from gaploop.scripts.calibrate import CalibrateConfig
from gaploop.teleop.calibration.board import find_board, parse_board, why_not_found, write_sheet
from gaploop.teleop.calibration.drift import REST, CalibrationSighting, check_drift
from gaploop.teleop.calibration.geometry import rotation_vector
from gaploop.teleop.calibration.hand_eye import calibrate_hand_eye
from gaploop.teleop.calibration.intrinsics import calibrate_intrinsics
from gaploop.teleop.calibration.latency import (
    JointMotion,
    camera_latency,
    measure_latency,
    picture_motion,
)
from gaploop.teleop.calibration.pictures import coverage_picture, hand_eye_picture
from gaploop.teleop.calibration.sightings import (
    POSE_FILES,
    BoardSightings,
    find_boards,
    find_sightings,
    image_files,
    read_image,
    read_poses,
)
from gaploop.teleop.calibration.store import (
    OLD_DAYS,
    CellCalibration,
    calibration_path,
    load_calibration,
    save_part,
)

log = logging.getLogger(__name__)

WORTH_EXPLAINING_MM: Final = 1.0
"""A hand-eye residual above this is looked into: a good print and a good arm are below it."""
MOST_TAKES: Final = 20
"""More takes make the interval narrower than the arm's own spread."""


def from_twin(config: CalibrateConfig) -> int:
    """Write a policy that allows for what a twin says of camera, table, zeros, light and delay."""
    from gaploop.finetune.recalibration import recalibrate

    ask = (
        "Which twin, and where to? gaploop calibrate from_twin station_twin.yaml "
        "--policy.path=base --output_dir=recalibrated"
    )
    twin, out = options.required(config.path, ask), options.required(config.output_dir, ask)
    made = recalibrate(config.policy.required(), twin, out)
    lines = [f"{made.folder} ({made.id}) allows for:"]
    lines += [
        f"  {mechanism}: " + ", ".join(f"{name} {value:+.4g}" for name, value in values.items())
        for mechanism, values in made.taken_out.items()
    ]
    if made.left:
        lines.append(
            f"It sees pictures, which can't be corrected for {', '.join(made.left)}: record takes "
            "in the twin and fine-tune (gaploop record --robot.twin=FILE)."
        )
    lines.append(
        "It is valid until something moves: gaploop calibrate drift --store keeps a reference."
    )
    options.emit(config.json, made, "\n".join(lines))
    return 0


def show(config: CalibrateConfig) -> int:
    """Print what is calibrated, how long ago, and how well."""
    calibration = load_calibration(_file(config))
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
        elif "latency_s" in part:
            good = _milliseconds(part["latency_s"], part["interval_s"])
        old = "  older than a month: worth repeating" if days > OLD_DAYS else ""
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
        config.camera_name = name
        _calibrate_live.take_board_pictures(config, made, folder)
    files = image_files(folder)
    with options.progress("Looking for boards", len(files)) as advance:
        found = find_boards(made, files, advance)
    with options.progress("Fitting"):
        result = calibrate_intrinsics(made, found.views, config.lens)
    report = writable_folder(config.output_dir or folder / "report")
    picture = report / "coverage.png"
    coverage_picture(picture, found.views, result)
    answer = {
        **result.to_json(),
        "ok": not result.refusals(),
        "refused": result.refusals(),
        "per_image": [asdict(image) for image in result.images],
        "hurting": [asdict(image) for image in result.hurting],
        "not_found": found.missed,
        "missing": result.coverage.missing(),
        "picture": picture,
    }
    options.keep(report, "intrinsics.json", answer)
    lens, std, K = result.intrinsics, result.std, result.intrinsics.camera_matrix
    fx, fy = (max(std[of], result.focal_std_px) for of in ("fx", "fy"))
    lines = [
        f"{made.words}",
        f"{len(result.images)} pictures of {lens.width}x{lens.height} px{_not_found(found)}",
        f"  focal length  {K[0, 0]:.2f} ± {fx:.2f}, {K[1, 1]:.2f} ± {fy:.2f} px",
        f"  centre        {K[0, 2]:.2f} ± {std['cx']:.2f}, {K[1, 2]:.2f} ± {std['cy']:.2f} px",
        f"  RMS error     {result.rms_px:.3f} px, in held-out pictures {result.held_out_px:.3f} px",
    ]
    lines += [
        f"  hurts         {h.name}: {h.held_out_px:.2f} px (others {h.others_px:.2f}), shifts the "
        f"result by {h.shift_px:.2f} px; {h.why}"
        for h in result.hurting
    ]
    if result.hurting:
        lines.append(f"                delete such pictures from {folder}, or retake them")
    lines += [f"  missing       {ask}" for ask in result.coverage.missing()]
    lines.append(f"  coverage      {result.coverage.share:.0%} of the picture: {picture}")
    _refuse(result.refusals(), lines, picture)
    values = {**result.to_json(), "board": asdict(made)}
    saved = _save(config, ("cameras", name, "intrinsics"), values, lines)
    options.emit(config.json, {**answer, "calibration": saved.id}, "\n".join(lines))
    return 0


def hand_eye(config: CalibrateConfig) -> int:
    """Find where a camera is, from a folder of pictures with the arm's pose in each."""
    calibration = load_calibration(_file(config), missing_ok=True)
    folder, name, made = _folder(config), _camera_name(config), parse_board(config.board)
    lens = calibration.intrinsics(name)
    arm = _arm_model(config)
    if config.robot is not None:
        named = f"--robot.type={lerobot_factory.kind(config.robot)}"
        lacks = f"{named} has no kinematic model here. Give --arm_model=FILE.xml."
        arm = options.required(arm, lacks)
        config.camera_name = name
        _calibrate_live.take_poses(config, made, folder, arm)
        _note_arm_file(config)
    with options.progress("Looking for boards") as advance:
        sightings, found = find_sightings(made, folder, arm, advance)
    with options.progress("Fitting"):
        result = calibrate_hand_eye(made, lens, sightings, config.setup)
    report = writable_folder(config.output_dir or folder / "report")
    picture = report / "hand_eye.png"
    hand_eye_picture(picture, result)
    answer = {
        **result.to_json(),
        "ok": not result.refusals(),
        "refused": result.refusals(),
        "errors_mm": dict(zip(result.names, result.errors_mm.tolist(), strict=True)),
        "outliers": [image for image, _ in result.outliers()],
        "turn_deg": result.turn_deg,
        "not_found": found.missed,
        "picture": picture,
    }
    options.keep(report, "hand_eye.json", answer)
    T, held = result.hand_eye.T_mount_camera, result.held_out
    values = zip(T[:3, 3] * 1e3, result.std_mm, strict=True)
    place = ", ".join(f"{value:.2f} ± {std:.2f}" for value, std in values)
    turn = ", ".join(f"{v:.2f}" for v in np.degrees(rotation_vector(T[:3, :3])))
    lines = [
        f"{made.words}",
        f"{len(result.names)} pictures{_not_found(found)}, turned by {result.turn_deg[0]:.0f}° and "
        f"{result.turn_deg[1]:.0f}° about two axes",
        f"  {result.hand_eye.name:<13} {place} mm",
        f"  rotation      {turn} ° (rotation vector) ± "
        + ", ".join(f"{v:.2f}" for v in result.std_deg),
        f"  held out      board off by {held.board_mm:.2f} mm, {held.rotation_deg:.2f}°",
    ]
    lines += [
        f"  hurts         {image}: off by {error:.1f} mm" for image, error in result.outliers()[:5]
    ]
    if held.board_mm > WORTH_EXPLAINING_MM:
        lines.append(f"  perhaps       {result.explanation()}")
    lines.append(f"  figure        {picture}")
    _refuse(result.refusals(), lines, picture)
    of = calibration.get("cameras", name, "intrinsics") or {}
    kept = {**result.to_json(), "board": asdict(made), "intrinsics_at": str(of.get("at", ""))}
    saved = _save(config, ("cameras", name, "hand_eye"), kept, lines)
    options.emit(config.json, {**answer, "calibration": saved.id}, "\n".join(lines))
    return 0


def latency(config: CalibrateConfig) -> int:
    """Measure how late the arm follows, and how late a camera's pictures are if one is named.

    From a take, a journal, a dataset, or by moving the arm.
    """
    takes: list[Take] = []
    if config.robot is not None:
        motions, arm = [_calibrate_live.chirp_motion(config)], config.arm_name or "follower"
    else:
        motions, arm, takes = _recorded(config)
    result = measure_latency(motions)
    overall = result.overall
    lines = [
        f"{arm} follows {_milliseconds(overall.latency_s, overall.interval_s)} behind what it is "
        f"sent (at {result.rate_hz:.0f} Hz; dead time and the servos' own lag)"
    ]
    lines += [
        f"  {name:<16} {_milliseconds(lag.latency_s, lag.interval_s)}, correlation "
        f"{lag.correlation:.3f}"
        for name, lag in result.joints.items()
    ]
    lines += [f"  {name:<16} not measured: {why}" for name, why in result.skipped.items()]
    saved = _save(config, ("arms", arm, "latency"), result.to_json(), lines)
    answer: dict[str, Any] = {**result.to_json(), "arm": arm, "skipped": result.skipped}
    if config.camera_name:
        # How late the pictures of the longest take are.
        none = (
            "A camera's latency is measured from a take or a journal: name one that has pictures, "
            "or leave --camera_name out."
        )
        pairs = [(t, m) for t, m in zip(takes, motions, strict=False) if len(t.frames)]
        take, motion = max(options.required(pairs, none), key=lambda pair: pair[0].duration_s)
        name, frames = config.camera_name, take.frames
        if name not in take.cameras:
            raise unknown_choice("camera", name, take.cameras, f"take {take.info.uid}")
        with options.progress("Looking for motion"):
            change = picture_motion(take.cameras[name]())
        taken_s = frames.t_s - frames.camera_age_s.get(name, 0.0)
        lag = camera_latency(taken_s[: len(change) + 1], change, motion)
        answer["camera"] = asdict(lag)
        late = _milliseconds(lag.latency_s, lag.interval_s)
        lines.append(f"Pictures of {config.camera_name} are {late} behind the joints.")
        saved = _save(config, ("cameras", config.camera_name, "latency"), asdict(lag), lines)
    options.keep(config.output_dir, "latency.json", answer)
    options.emit(config.json, {**answer, "calibration": saved.id}, "\n".join(lines))
    return 0


def _recorded(config: CalibrateConfig) -> tuple[list[JointMotion], str, list[Take]]:
    """Return the motion of the takes under `config.path`, the arm's name, and the takes."""
    ask = (
        "Which take? gaploop calibrate latency TAKE, JOURNAL or DATASET; or with a robot, "
        "--robot.type=…, which is moved for it."
    )
    path = existing_folder(options.required(config.path, ask), "Folder")
    is_take = (path / journal_format.HEADER).is_file()
    folders = [path] if is_take else journal_format.take_folders(path)[-MOST_TAKES:]
    takes = [journal_format.read_take(folder) for folder in folders]
    telemetry: list[Telemetry] = [take.telemetry for take in takes]
    if not folders:
        files = sorted((path / "telemetry").glob("*.zarr.zip"))[-MOST_TAKES:]
        telemetry = [read_telemetry(file) for file in files]
    if not telemetry:
        raise UnusableInputError(
            f"{path} holds no telemetry. Name a take's folder, a journal or a dataset that "
            "gaploop recorded."
        )
    telemetry = [t for t in telemetry if len(t) > 1]
    takes = [take for take in takes if len(take.telemetry) > 1]
    if not telemetry:
        raise UnusableInputError(f"The takes in {path} are empty. Record again.")
    arm = config.arm_name
    if not arm:
        commanded = [
            of
            for of in telemetry[0].arms()
            if any(c.startswith(f"{of}.") and c.endswith(".sent_rad") for c in telemetry[0].columns)
        ]
        if len(commanded) != 1:
            raise UnusableInputError(
                f"Which arm? --arm_name={'|'.join(commanded) or '…'}: the telemetry has "
                f"{len(commanded)} that are commanded."
            )
        arm = commanded[0]
    return [JointMotion.of(t, arm) for t in telemetry], arm, takes


def drift(config: CalibrateConfig) -> int:
    """Store what is seen now, or compare it with what was stored; 1 where it has drifted.

    It is seen by arm and camera, or in a folder.
    """
    made, views = None, {}
    if config.camera is not None or config.path is not None or config.camera_name:
        made, name = parse_board(config.board), _camera_name(config)
        config.camera_name = name
        if config.camera is None and config.path is not None:
            path = image_files(config.path)[-1]
            image, where = read_image(path), str(path)
        else:
            image, where = _calibrate_live.one_picture(config).image, f"camera {name}"
        view = find_board(made, image, where)
        if view is None:
            why = why_not_found(made, [image])
            raise UnusableInputError(f"No {made.words} in the picture of {where}. {why}")
        views = {name: view}
    q_rad, names = None, tuple[str, ...]()
    arm, folder = _arm_model(config), config.path
    if config.robot is not None:
        with _calibrate_live.limp_arm(config) as follower:
            q_rad, names = follower.read().position_rad, follower.joint_names
    elif arm and folder and any((folder / n).is_file() for n in POSE_FILES):
        q_rad, names = read_poses(folder, arm)[-1].q_rad, arm.joint_names
    if q_rad is None and not views:
        raise UnusableInputError(
            "Nothing to look at. Give the arm (--robot.type=…), a camera (--camera.type=… "
            "--camera_name=…), both, or a folder with a picture of the board."
        )
    seen = CalibrationSighting(q_rad, names, views, made)
    if config.store:
        _note_arm_file(config)
        lines: list[str] = []
        saved = _save(config, ("references", REST), seen.to_json(), lines)
        options.emit(config.json, {"stored": REST, "calibration": saved.id}, lines[0])
        return 0
    calibration = load_calibration(_file(config))
    found = check_drift(calibration, seen, _arm_model(config))
    figures = [
        f"{value:.1f} {unit}"
        for value, unit in ((found.px, "px"), (found.mm, "mm"), (found.deg, "°"))
        if np.isfinite(value)
    ]
    if found.verdict == "unknown":
        raise UnusableInputError(
            f"Nothing to compare with '{REST}': show what it was stored with (joints "
            "with --robot.type=…, the board with --camera.type=… or a folder)."
        )
    head = f"Against '{REST}': {found.verdict}, at most {', '.join(figures)}."
    options.emit(config.json, asdict(found), "\n".join([head, *found.message]))
    return int(found.verdict == "drifted")


def _file(config: CalibrateConfig) -> Path:
    return calibration_path(config.station)


def _camera_name(config: CalibrateConfig) -> str:
    """Return the camera's name: as given, or the only one that is known."""
    if config.camera_name:
        return config.camera_name
    known = tuple(load_calibration(_file(config), True).content.get("cameras", {}))
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
    name = config.arm_model or (model_of(lerobot_factory.kind(robot)) if robot is not None else "")
    return ArmModel.load(name) if name else None


def _note_arm_file(config: CalibrateConfig) -> None:
    """Keep the hash of lerobot-calibrate's file: results hold only for as long as it stays."""
    if config.robot is None:
        return
    from lerobot.robots import make_robot_from_config

    path = getattr(make_robot_from_config(config.robot), "calibration_fpath", None)
    if path is not None and Path(path).is_file():
        values = {"file": str(path), "sha256": sha256(Path(path))}
        _save(config, ("arms", config.arm_name or "follower", "calibration"), values, [])


def _save(
    config: CalibrateConfig, place: tuple[str, ...], values: dict[str, Any], lines: list[str]
) -> CellCalibration:
    """Set one part of the calibration file, and add to `lines` where it went."""
    saved = save_part(_file(config), place, options.jsonable(values))
    lines.append(f"Saved as {'.'.join(place)} in {saved.path} ({saved.id}).")
    return saved


def _refuse(reasons: tuple[str, ...], lines: list[str], picture: Path) -> None:
    if reasons:
        for line in lines:
            log.info("%s", line)
        raise UnusableInputError(f"Refused: {' '.join(reasons)} See {picture}")


def _not_found(found: BoardSightings) -> str:
    if not found.missed:
        return ""
    names = ", ".join(found.missed[:5]) + (", …" if len(found.missed) > 5 else "")
    return f"; no board in {len(found.missed)} ({names})"


def _milliseconds(latency_s: float, interval_s: tuple[float, float]) -> str:
    low, high = interval_s
    return f"{latency_s * 1e3:.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f})"

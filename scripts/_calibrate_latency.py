"""`gaploop calibrate latency`: from a take, a journal, a dataset, or by moving the arm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, writable_folder, write_json
from gaploop.scripts import options
from gaploop.scripts._calibrate import save, saved_line

if TYPE_CHECKING:
    from gaploop.core.take import Take
    from gaploop.core.telemetry import Telemetry
    from gaploop.scripts.calibrate import CalibrateFields
    from gaploop.teleop.calibration.latency import JointMotion, Lag, LatencyResult

MOST_TAKES: Final = 20
"""More takes make the interval narrower than the arm's own spread."""


def latency(config: CalibrateFields) -> int:
    """Measure how late the arm follows, and how late a camera's pictures are if one is named."""
    if getattr(config, "robot", None) is not None:
        from gaploop.scripts._calibrate_chirp import moved

        takes: list[Take] = []
        motions, arm = [moved(config)], config.arm_name or "follower"
    else:
        motions, arm, takes = _recorded(config)
    from gaploop.teleop.calibration.latency import measure_latency

    result = measure_latency(motions)
    saved = save(config, ("arms", arm, "latency"), result.to_json())
    lines = [*_lines(arm, result), saved_line(saved, f"arms.{arm}.latency")]
    answer: dict[str, Any] = {**result.to_json(), "arm": arm, "skipped": result.skipped}
    if config.camera_name:
        lag = _camera(config.camera_name, takes, motions)
        saved = save(config, ("cameras", config.camera_name, "latency"), lag.to_json())
        answer["camera"] = lag.to_json()
        lines.append(f"Pictures of {config.camera_name} are {_words(lag)} behind the joints.")
        lines.append(saved_line(saved, f"cameras.{config.camera_name}.latency"))
    if config.output_dir is not None:
        folder = writable_folder(config.output_dir)
        write_json(folder / "latency.json", options.jsonable(answer))
    options.emit(config.json, {**answer, "calibration": saved.id}, "\n".join(lines))
    return 0


def _recorded(config: CalibrateFields) -> tuple[list[JointMotion], str, list[Take]]:
    """Return the motion of the takes under `config.path`, the arm's name, and the takes."""
    from gaploop.teleop.calibration.latency import JointMotion

    if config.path is None:
        raise UnusableInputError(
            "Which take? gaploop calibrate latency TAKE, JOURNAL or DATASET; or with a robot, "
            "--robot.type=…, which is moved for it."
        )
    found = list(_telemetry(existing_folder(config.path, "Folder")))
    if not found:
        raise UnusableInputError(
            f"{config.path} holds no telemetry. Name a take's folder, a journal or a dataset that "
            "gaploop recorded."
        )
    telemetry = [t for t, _ in found if len(t) > 1]
    if not telemetry:
        raise UnusableInputError(f"The takes in {config.path} are empty. Record again.")
    arm = config.arm_name or _only_arm(telemetry[0])
    takes = [take for _, take in found if take is not None]
    return [JointMotion.of(t, arm) for t in telemetry], arm, takes


def _telemetry(path: Path) -> Iterator[tuple[Telemetry, Take | None]]:
    from gaploop.core import journal_format
    from gaploop.datasets.telemetry_zarr import read_telemetry

    if (path / journal_format.HEADER).is_file():
        folders = [path]
    else:
        folders = journal_format.take_folders(path)[-MOST_TAKES:]
    for folder in folders:
        take = journal_format.read_take(folder)
        yield take.telemetry, take
    if not folders:
        for file in sorted((path / "telemetry").glob("*.zarr.zip"))[-MOST_TAKES:]:
            yield read_telemetry(file), None


def _only_arm(telemetry: Telemetry) -> str:
    commanded = [
        arm
        for arm in telemetry.arms()
        if any(n.startswith(f"{arm}.") and n.endswith(".sent_rad") for n in telemetry.columns)
    ]
    if len(commanded) != 1:
        raise UnusableInputError(
            f"Which arm? --arm_name={'|'.join(commanded) or '…'}: the telemetry has "
            f"{len(commanded)} that are commanded."
        )
    return commanded[0]


def _camera(name: str, takes: list[Take], motions: list[JointMotion]) -> Lag:
    """Return how late the pictures of the longest take are."""
    from gaploop.core.errors import unknown_choice
    from gaploop.teleop.calibration.latency import camera_latency, picture_motion

    pairs = [(t, m) for t, m in zip(takes, motions, strict=False) if len(t.frames)]
    if not pairs:
        raise UnusableInputError(
            "A camera's latency is measured from a take or a journal: name one that has pictures, "
            "or leave --camera_name out."
        )
    take, motion = max(pairs, key=lambda pair: pair[0].duration_s)
    if name not in take.cameras:
        raise unknown_choice("camera", name, take.cameras, f"take {take.info.uid}")
    frames = take.frames
    with options.progress("Looking for motion"):
        change = picture_motion(take.cameras[name]())
    taken_s = frames.t_s - frames.camera_age_s.get(name, 0.0)
    return camera_latency(taken_s[: len(change) + 1], change, motion)


def _lines(arm: str, result: LatencyResult) -> list[str]:
    lines = [
        f"{arm} follows {_words(result.overall)} behind what it is sent "
        f"(at {result.rate_hz:.0f} Hz; dead time and the servos' own lag)"
    ]
    lines += [
        f"  {name:<16} {_words(lag)}, correlation {lag.correlation:.3f}"
        for name, lag in result.joints.items()
    ]
    lines += [f"  {name:<16} says nothing: {why}" for name, why in result.skipped.items()]
    return lines


def _words(lag: Lag) -> str:
    low, high = lag.interval_s
    return f"{lag.latency_s * 1e3:.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f})"

"""Emulated arms with the calibration files that LeRobot wants, and their configs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaploop.core.clock import Clock
from gaploop.teleop.emulator.arms import koch, openmanipulator, so101
from gaploop.teleop.emulator.bus import EmulatedBus

PLANS = {"so101": so101, "koch": koch, "openmanipulator": openmanipulator}


@dataclass
class Emulated:
    """One arm on its bus."""

    bus: EmulatedBus
    folder: Path
    config: Any


def config_of(model: str, role: str, port: str, folder: Path, **options: Any) -> Any:
    from lerobot.robots.koch_follower import KochFollowerConfig
    from lerobot.robots.omx_follower import OmxFollowerConfig
    from lerobot.robots.so_follower import SO101FollowerConfig
    from lerobot.teleoperators.koch_leader import KochLeaderConfig
    from lerobot.teleoperators.omx_leader import OmxLeaderConfig
    from lerobot.teleoperators.so_leader import SO101LeaderConfig

    makers: dict[tuple[str, str], Any] = {
        ("so101", "follower"): SO101FollowerConfig,
        ("so101", "leader"): SO101LeaderConfig,
        ("koch", "follower"): KochFollowerConfig,
        ("koch", "leader"): KochLeaderConfig,
        ("openmanipulator", "follower"): OmxFollowerConfig,
        ("openmanipulator", "leader"): OmxLeaderConfig,
    }
    return makers[model, role](port=port, id="arm", calibration_dir=folder, **options)


def calibration_folder(root: Path, role: str, calibration: Any, name: str = "arm") -> Path:
    """Write a calibration file where LeRobot looks for it and return its folder."""
    kind = "robots" if role == "follower" else "teleoperators"
    folder = root / kind / role
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(calibration))
    return folder


@contextlib.contextmanager
def emulated(
    model: str,
    role: str,
    root: Path,
    *,
    plan: Any = None,
    hand: str = "still",
    clock: Clock | None = None,
    **options: Any,
) -> Iterator[Emulated]:
    """Start an arm, in real time unless given a clock; `options` go into its LeRobot config."""
    plan = plan or PLANS[model](role).calibrated()
    with EmulatedBus(plan=plan, hand=hand, wire_time=False, clock=clock) as bus:
        folder = calibration_folder(root, role, PLANS[model](role).calibration())
        yield Emulated(bus, folder, config_of(model, role, bus.port, folder, **options))

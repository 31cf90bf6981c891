"""A program that drives an arm is killed, crashes, is stopped or hangs: what becomes of the arm?

Each is a process of its own on an emulated arm that has weight, in real time: from the end to the
supervisor's first byte and to torque off, how far the tip fell, how fast the joints turned.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fault_schedules import (
    LOWER_RAD_S,
    SPEED_TOLERANCE_RAD_S,
    _configs,
    random_pose,
)
from gaploop.core import platform_calls
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray, LeaderSample
from gaploop.scripts import options
from gaploop.teleop.emulator.bus import EmulatedBus, raise_priority

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

ENDS: Final = {
    "SIGKILL": signal.SIGKILL,
    "SIGSEGV": signal.SIGSEGV,
    "SIGSTOP": signal.SIGSTOP,
    "hung loop": signal.SIGUSR1,
}
MODELS: Final = ("so101", "koch")
POSES: Final = 3
LOOK_S: Final = 0.005
WINDOW_S: Final = 0.2
"""Speeds are measured over this time, as the machine may be busy [s]."""
SETTLE_S: Final = 1.0
AFTER_S: Final = 2.0
"""An arm is watched for so long after its torque is off [s]."""
GIVE_UP_S: Final = 90.0
FIGURES: Final = ("first_s", "off_s", "drop_cm", "peak_rad_s")


def drive(model: str, folder: Path) -> None:
    """Hold an arm where it stands, as a session does, until something ends this process."""
    from gaploop.core.station import Station
    from gaploop.teleop.control import ControlThread
    from gaploop.teleop.lerobot_devices.make import make_follower
    from gaploop.teleop.loop import Rates
    from gaploop.teleop.safety import make_safety

    robot, _ = _configs(model)
    station, rates = Station("emulated"), Rates.near(50.0)
    follower = make_follower(
        robot(port=str(folder / "arm"), id="arm", calibration_dir=folder), station
    )
    q_rad, hangs = follower.read().position_rad, list[int]()
    signal.signal(signal.SIGUSR1, lambda number, _frame: hangs.append(number))

    def read(t_s: float) -> LeaderSample:
        while hangs:
            time.sleep(1.0)
        return LeaderSample(t_s, q_rad)

    leader: Any = SimpleNamespace(reset=lambda: None, read=read, done=lambda: False)
    safety = make_safety(station, follower, rates.period_s)
    with ControlThread(follower, leader, safety, rates) as control:
        control.start()
        control.wait(600.0)


def run(model: str, how: str, pose_rad: FloatArray, folder: Path) -> dict[str, float]:
    """Return what one end did: `first_s`, `off_s` [s], `drop_cm`, `peak_rad_s`; NaN where never."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["gaploop.teleop.lerobot_devices.make", "gaploop.teleop.control"]
    )
    with EmulatedBus(model, hand="none", link=folder / "arm") as bus:
        (folder / "arm.json").write_text(json.dumps(bus.plan.calibration()))
        servos, arm = bus.all_servos, ArmModel.load(model)
        with bus.lock:
            for servo, q_rad in zip(servos, pose_rad.tolist(), strict=True):
                servo.joint.q_rad = q_rad
                servo.hold_here()
            bus.hand.pose(pose_rad.tolist())
        program = context.Process(target=drive, args=(model, folder))
        program.start()
        raise_priority()  # shared with the thread that serves the bus; the program's is ordinary
        assert program.pid is not None
        while not all(servo.torque for servo in servos):
            time.sleep(LOOK_S)
        bus.hand.set_mode("none")
        time.sleep(SETTLE_S)
        first, hear = list[float](), bus.chain.hear

        def hears(data: bytes, baud: int) -> list[bytes]:
            if not (first or program.is_alive()):
                first.append(time.monotonic())
            return hear(data, baud)

        bus.chain.hear = hears  # type: ignore[method-assign]
        began_s = off_s = now_s = time.monotonic()
        os.kill(program.pid, ENDS[how])
        rows = list[tuple[float, ...]]()
        while now_s < min(off_s + AFTER_S, began_s + GIVE_UP_S):
            with bus.lock:
                rows.append((now_s, *(servo.joint.q_rad for servo in servos)))
                off_s = now_s if any(servo.torque for servo in servos) else off_s
            time.sleep(LOOK_S)
            now_s = time.monotonic()
        still_on = any(servo.torque for servo in servos)
        program.kill()
        program.join()
        platform_calls.ordinary_priority()
    times, q = np.array(rows)[:, 0], np.array(rows)[:, 1:]
    early = np.searchsorted(times, times - WINDOW_S)
    speed = np.abs(q - q[early])[:, :-1].max(axis=1) / np.maximum(times - times[early], WINDOW_S)
    tip_m = np.array([arm.points_m(one)[0, 2] for one in q])
    fast = (speed > LOWER_RAD_S + SPEED_TOLERANCE_RAD_S) | (times > off_s)
    falls = np.maximum(tip_m[:-1] - tip_m[1:], 0.0)
    return {
        "first_s": first[0] - began_s if first else math.nan,
        "off_s": math.nan if still_on else off_s - began_s,
        "drop_cm": 100.0 * float(falls[fast[1:]].sum()),
        "peak_rad_s": float(speed.max()),
    }


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """End programs in every way, from several poses; return how each went."""
    rows = list[dict[str, Any]]()
    cases = list(itertools.product(MODELS, ENDS, range(config.n or POSES)))
    with options.progress("Ends", total=len(cases)) as advance:
        for model, how, n in cases:
            pose_rad = random_pose(model, np.random.default_rng(config.seed + n))
            place = folder / f"{model}-{how}-{n}"
            place.mkdir(parents=True)
            rows.append({"model": model, "how": how} | run(model, how, pose_rad, place))
            advance()
    return {"ends": rows, "evidence": "emulated arms"}


def table(result: Mapping[str, Any]) -> str:
    """Return a row for each arm and end, with the worst of its poses."""
    lines = ["| | first byte s | torque off s | fell cm | rad/s |", "|---|---|---|---|---|"]
    ends = result["ends"]
    for model, how in dict.fromkeys((row["model"], row["how"]) for row in ends):
        rows = [row for row in ends if (row["model"], row["how"]) == (model, how)]
        worst = [max(row[name] for row in rows) for name in FIGURES]
        lines.append(f"| {model}, {how} | " + " | ".join(f"{x:.2f}" for x in worst) + " |")
    return "\n".join(lines)

"""What a turn on two servo buses costs: LeRobot's buses, the vendors' SDKs, and ours, side by side.

All drive the same emulated pair, which lives in a process of its own, in rounds that take turns. A
turn reads the follower and the leader and writes the follower's goals, 200 times a second.
LeRobot's buses read positions only, or every reading one register at a time; the SDKs read the
block that holds all of a servo's state; ours too, and turns it into SI units, which they don't;
rustypot is measured with our units, too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

ARMS: Final = {"so101": "Feetech", "koch": "Dynamixel"}
RATE_HZ: Final = 200.0
TURNS: Final = 300
"""Turns of one way in one round: 1.5 s."""
ROUNDS: Final = 5

MISSED: Final = (OSError, IndexError, RuntimeError)
"""What LeRobot's buses and rustypot raise where a servo didn't answer in time, or its late answer
was taken for the next."""

type Turn = Callable[[], None]


@dataclass(frozen=True)
class _Pair:
    """Where the emulated arms are, and the LeRobot configs that find them."""

    robot: Any
    teleop: Any


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Measure every way on every arm, in turns."""
    rounds = config.n or ROUNDS
    arms = {}
    with options.progress("Turns", total=len(ARMS) * rounds * len(WAYS)) as advance:
        for model in ARMS:
            with _emulated(model, folder) as pair:
                arms[model] = _compare(pair, rounds, advance)
    return {
        "evidence": "emulated servo buses on pseudo-terminals",
        "rate_hz": RATE_HZ,
        "turns": TURNS,
        "rounds": rounds,
        "arms": arms,
    }


def _compare(pair: _Pair, rounds: int, advance: Callable[[], None]) -> dict[str, Any]:
    cpu_ms: dict[str, list[float]] = {name: [] for name in WAYS}
    turn_ms: dict[str, list[float]] = {name: [] for name in WAYS}
    failed = dict.fromkeys(WAYS, 0)
    for _ in range(rounds):
        for name, (_, way) in WAYS.items():
            with way(pair) as turn:
                cpu, took, misses = _run(turn)
            cpu_ms[name].append(cpu)
            failed[name] += misses
            turn_ms[name] += took
            advance()
    return {
        name: {
            "reads": WAYS[name][0],
            "cpu_ms": _spread(cpu_ms[name]),
            "turn_ms": {"p50": _at(turn_ms[name], 0.5), "p99": _at(turn_ms[name], 0.99)},
            "failed_turns": failed[name],
        }
        for name in WAYS
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _run(turn: Turn) -> tuple[float, list[float], int]:
    """Return processor time of a turn and how long each took [ms], and how many failed."""
    for _ in range(20):
        with contextlib.suppress(*MISSED):
            turn()
    gc.collect()
    took_ms, failed, spent_s = [], 0, 0.0
    deadline_s = time.monotonic()
    for _ in range(TURNS):
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            turn()
        except MISSED:
            failed += 1
        spent_s += time.thread_time() - cpu_s
        took_ms.append((time.perf_counter() - started_s) * 1000.0)
        deadline_s = max(deadline_s + 1.0 / RATE_HZ, time.monotonic())
        time.sleep(max(deadline_s - time.monotonic(), 0.0))
    return spent_s / TURNS * 1000.0, took_ms, failed


# The pair


@contextlib.contextmanager
def _emulated(model: str, folder: Path) -> Iterator[_Pair]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(model, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        arms = ours.recv()
        for role, (_, calibration) in arms.items():
            place = folder / model / role
            place.mkdir(parents=True, exist_ok=True)
            (place / "bench.json").write_text(json.dumps(calibration))
        yield _configs(model, {role: port for role, (port, _) in arms.items()}, folder / model)
    finally:
        ours.close()  # the other end's recv ends with it
        process.join(10.0)
        if process.is_alive():
            process.terminate()


def _serve(model: str, pipe: Connection) -> None:
    """Emulate a follower and a leader that a hand moves, until the other end closes."""
    from gaploop.teleop.emulator.bus import EmulatedBus

    with (
        EmulatedBus(model, role="follower", hand="none") as follower,
        EmulatedBus(model, role="leader", hand="wave") as leader,
    ):
        buses = {"follower": follower, "leader": leader}
        pipe.send({role: (bus.port, bus.plan.calibration()) for role, bus in buses.items()})
        with contextlib.suppress(EOFError, OSError):
            pipe.recv()


def _configs(model: str, ports: Mapping[str, str], folder: Path) -> _Pair:
    from lerobot.robots.koch_follower import KochFollowerConfig
    from lerobot.robots.so_follower import SO101FollowerConfig
    from lerobot.teleoperators.koch_leader import KochLeaderConfig
    from lerobot.teleoperators.so_leader import SO101LeaderConfig

    makers: dict[str, tuple[Any, Any]] = {
        "so101": (SO101FollowerConfig, SO101LeaderConfig),
        "koch": (KochFollowerConfig, KochLeaderConfig),
    }
    robot, teleop = (
        make(port=ports[role], id="bench", calibration_dir=folder / role)
        for make, role in zip(makers[model], ("follower", "leader"), strict=True)
    )
    return _Pair(robot, teleop)


# The ways


@contextlib.contextmanager
def _lerobot_buses(pair: _Pair, *, poll: bool = False) -> Iterator[tuple[Any, Any]]:
    """LeRobot's own buses, its port handler replaced where `poll` says so."""
    from lerobot.robots import make_robot_from_config
    from lerobot.teleoperators import make_teleoperator_from_config

    devices = make_robot_from_config(pair.robot), make_teleoperator_from_config(pair.teleop)
    buses = tuple(device.bus for device in devices)
    for bus in buses:
        if poll:
            _use_poll(bus)
        bus.connect(handshake=False)
    try:
        yield buses[0], buses[1]
    finally:
        for bus in buses:
            bus.disconnect(disable_torque=False)


def _use_poll(bus: Any) -> None:
    from gaploop.teleop.lerobot_devices.arm import PollPortHandler
    from gaploop.teleop.servos.port import SerialPort

    handler = PollPortHandler(SerialPort(bus.port, bus.port_handler.baudrate))
    bus.port_handler = bus.sync_reader.port = bus.sync_writer.port = handler


@contextlib.contextmanager
def _lerobot_positions(pair: _Pair) -> Iterator[Turn]:
    with _lerobot_buses(pair) as (follower, leader):

        def turn() -> None:
            follower.sync_read("Present_Position", num_retry=2)
            goal = leader.sync_read("Present_Position", num_retry=2)
            follower.sync_write("Goal_Position", goal)

        yield turn


@contextlib.contextmanager
def _lerobot_all(pair: _Pair) -> Iterator[Turn]:
    with _lerobot_buses(pair) as (follower, leader):
        names = _readings(follower)

        def turn() -> None:
            for bus in (follower, leader):
                for name in names:
                    bus.sync_read(name, normalize=False, num_retry=2)
            goal = leader.sync_read("Present_Position", num_retry=2)
            follower.sync_write("Goal_Position", goal)

        yield turn


def _readings(bus: Any) -> list[str]:
    table = bus.model_ctrl_table[bus.models[0]]
    wanted = ("Position", "Velocity", "Current", "Temperature", "Voltage", "Input_Voltage")
    status = ("Status", "Hardware_Error_Status")
    return [n for n in (*(f"Present_{w}" for w in wanted), *status) if n in table]


@contextlib.contextmanager
def _sdk(pair: _Pair, *, poll: bool) -> Iterator[Turn]:
    from gaploop.teleop.servos.registers import STATE_SPAN, Protocol

    with _lerobot_buses(pair, poll=poll) as (follower, leader):
        dynamixel = "Dynamixel" in type(follower).__name__
        span = STATE_SPAN[Protocol.DYNAMIXEL if dynamixel else Protocol.FEETECH]
        place = (132, 4) if dynamixel else (56, 2)
        for bus in (follower, leader):
            bus._setup_sync_reader(bus.ids, span.address, span.size)

        def turn() -> None:
            for bus in (follower, leader):
                bus.sync_reader.txRxPacket()
            goals = {i: leader.sync_reader.getData(i, *place) for i in leader.ids}
            table = follower.model_ctrl_table[follower.models[0]]["Goal_Position"]
            follower._sync_write(*table, goals, raise_on_error=False)

        yield turn


@contextlib.contextmanager
def _rustypot(pair: _Pair, *, units: bool = False) -> Iterator[Turn]:
    """LeRobot 0.7's buses: the same block with each servo's error byte, in SI units if asked."""
    from gaploop.teleop.servos.registers import STATE_SPAN, Decoder, Protocol

    feetech = "SO" in type(pair.robot).__name__
    protocol = Protocol.FEETECH if feetech else Protocol.DYNAMIXEL
    span, model = STATE_SPAN[protocol], "sts3215" if feetech else "xl330-m288"
    decoder = Decoder(protocol, [model] * 6, (0, 0))
    goal, present, size = (42, 56, 2) if feetech else (116, 132, 4)
    start, ids = present - span.address, list(range(1, 7))
    name = "Sts3215PyController" if feetech else "Xl430PyController"
    kind = getattr(importlib.import_module("rustypot"), name)
    buses = [kind(config.port, 1_000_000, 0.02) for config in (pair.robot, pair.teleop)]

    def turn() -> None:
        follower, leader = buses
        for bus in (follower, leader):
            read = bus.sync_read_raw_data_with_error(ids, span.address, span.size)
            if units:
                decoder.decode(b"".join(bytes(values) for values, _error in read))
        goals = [list(values[start : start + size]) for values, _error in read]
        follower.sync_write_raw_data(ids, goal, goals)

    yield turn
    buses.clear()  # the ports are closed with them


@contextlib.contextmanager
def _ours(pair: _Pair) -> Iterator[Turn]:
    from gaploop.core.messages import SafeCommand
    from gaploop.teleop.lerobot_devices.make import make_follower, make_leader

    with contextlib.ExitStack() as stack:
        follower = make_follower(pair.robot)
        stack.callback(follower.close)
        leader = make_leader(pair.teleop, follower)
        stack.callback(leader.close)
        follower.torque_on()

        def turn() -> None:
            follower.read()
            sample = leader.read(0.0)
            follower.send(SafeCommand(sample.q_rad, sample.q_rad))

        yield turn


WAYS: Final[Mapping[str, tuple[str, Callable[[_Pair], Any]]]] = {
    "LeRobot's buses, positions": ("positions", _lerobot_positions),
    "LeRobot's buses, all": ("all, one register at a time", _lerobot_all),
    "SDK": ("all in one block", lambda pair: _sdk(pair, poll=False)),
    "SDK that waits in poll()": ("all in one block", lambda pair: _sdk(pair, poll=True)),
    **(
        {
            "rustypot": ("all in one block", _rustypot),
            "rustypot, units": ("and our decoding", lambda pair: _rustypot(pair, units=True)),
        }
        if find_spec("rustypot")
        else {}
    ),
    "gaploop": ("all in one block, both buses at once, SI units", _ours),
}


def table(result: Mapping[str, Any]) -> str:
    """Return the ways of each arm as Markdown."""
    lines: list[str] = []
    for model, ways in result["arms"].items():
        lines += [
            f"{model} ({ARMS[model]}), {result['rate_hz']:g} turns a second, emulated; processor "
            f"time of {result['rounds']} rounds, median (least to most)",
            "",
            "| way | reads | CPU ms a turn | turn p50 / p99 ms | failed turns |",
            "|---|---|---|---|---|",
        ]
        for name, one in ways.items():
            cpu, took = one["cpu_ms"], one["turn_ms"]
            lines.append(
                f"| {name} | {one['reads']} | {cpu['median']:.2f} ({cpu['least']:.2f} to "
                f"{cpu['most']:.2f}) | {took['p50']:.2f} / {took['p99']:.2f} | "
                f"{one['failed_turns']} |"
            )
        lines.append("")
    return "\n".join(lines)

"""An emulated SO-101 whose every joint can be watched, wired wrongly or stuck."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.messages import FloatArray, FollowerState
from gaploop.sim.catalogue import SO101
from gaploop.teleop.emulator.arms import JOINTS, arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus, Fault

SWAPPED = ("shoulder_lift", "elbow_flex")


class Mechanics:
    """A plant whose powered joints go to their goals at once, but for those that are stuck."""

    joint_names = JOINTS

    def __init__(self, stuck: tuple[str, ...] = ()) -> None:
        self.q = np.array(SO101.home_q_rad, dtype=np.float64)
        self.goal = self.q.copy()
        self.on = np.zeros(6, dtype=np.bool_)
        self.free = np.array([name not in stuck for name in JOINTS])
        self.start, self.moved = self.q.copy(), np.zeros(6)

    def command(self, q_rad: FloatArray) -> None:
        self.goal = np.array(q_rad)

    def power(self, share: FloatArray) -> None:
        self.on = share > 0.0

    def advance(self, duration_s: float) -> None:
        del duration_s
        self.q = np.where(self.on & self.free, self.goal, self.q)
        self.moved = np.maximum(self.moved, np.abs(self.q - self.start))

    def read(self) -> FollowerState:
        nothing = np.zeros(6)
        return FollowerState(
            0.0, self.q, nothing, nothing, np.full(6, 25.0), np.full(6, 7.4), nothing,
            np.zeros(6, dtype=np.int64),
        )  # fmt: skip


class Watcher:
    """A person who sees which joint of the arm itself moves, and pulls the plug when told to."""

    stopped, is_there = False, True

    def __init__(self, bus: EmulatedBus, mechanics: Mechanics) -> None:
        self.bus, self.mechanics = bus, mechanics
        self.questions: list[str] = []
        self.told_to: list[str] = []
        self.cut = [Fault("vanish", id=identity) for identity in bus.servos]

    def listening(
        self, estop: Callable[[], None], gone: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        del estop, gone
        return nullcontext()

    def ask(self, question: str, choices: Mapping[str, str]) -> str | None:
        self.questions.append(question)
        if "y" in choices:
            return "y"
        moved = self.mechanics.moved
        seen = JOINTS[int(moved.argmax())] if moved.max() > 0.05 else ""
        self.mechanics.start, self.mechanics.moved = self.mechanics.q.copy(), np.zeros(6)
        return next((key for key, name in choices.items() if name == seen), "0")

    def instruct(self, what: str) -> bool:
        self.told_to.append(what)
        for fault in self.cut:
            self.bus.inflict(fault, "Cut" in what)
        return True


@contextmanager
def emulated_arm(
    folder: Path, clock: Clock, *, swapped: bool = False, stuck: tuple[str, ...] = ()
) -> Iterator[tuple[Any, Watcher]]:
    """Yield LeRobot's config of an emulated follower, and somebody who watches it.

    Args:
        folder: for link and calibration.
        clock: the arm's time.
        swapped: two servos have each other's id, and were calibrated so.
        stuck: joints that don't move.
    """
    from gaploop.collect.lerobot_types import registries

    plan = arm_plan("so101", "follower").calibrated()
    said = plan.calibration()
    if swapped:
        one, two = SWAPPED
        ids = {servo.name: servo.id for servo in plan.servos}
        plan = plan.with_servo(one, id=ids[two]).with_servo(two, id=ids[one])
        said[one], said[two] = ({**said[two], "id": ids[one]}, {**said[one], "id": ids[two]})
    (folder / "f.json").write_text(json.dumps(said))
    mechanics = Mechanics(stuck)
    with ExitStack() as stack:
        bus = EmulatedBus(plan=plan, hand="still", link=folder / "f", plant=mechanics, clock=clock)
        stack.enter_context(bus)
        config: Any = registries()[0].get_choice_class("so101_follower")
        robot = config(port=str(folder / "f"), id="f", calibration_dir=folder)
        yield robot, Watcher(bus, mechanics)

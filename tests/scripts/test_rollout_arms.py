"""Rollouts on emulated arms: attempts are recorded, a lost cable ends one, torque is off after."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from gaploop.collect.campaign import Quota
from gaploop.collect.devices import ArmDevices, SessionDevices
from gaploop.collect.intervention import Driver
from gaploop.collect.lerobot_factory import ArmConnection
from gaploop.collect.operator.console import ConsoleOperator, OperatorConsole, SessionLabels
from gaploop.collect.operator.keys import HELD_S, ROLLOUT, Command, KeyMap
from gaploop.collect.operator.machine import SessionStage, StageTiming
from gaploop.collect.operator.view import look
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rollout import Attempts, Driven, RolloutDriver, SpeedRamp
from gaploop.collect.session import drive_on
from gaploop.collect.session_options import DriveOptions
from gaploop.collect.take import record_takes
from gaploop.core.errors import DeviceError, LostError, TrippedError
from gaploop.core.journal_format import read_end, read_journal, take_folders
from gaploop.core.messages import FloatArray, Observation
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.teleop.control import LoopMode
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.loop import Rates

pytestmark = pytest.mark.usefixtures("loop_time")

WITHIN_S = 120.0
STATION = Station(name="bench", domain=Domain.SIM_TARGET)
C = Command


class Still:
    """A policy that stands still."""

    fps = 30.0

    def __init__(self) -> None:
        self.acts = 0

    def reset(self) -> None: ...

    def act(self, observation: Observation) -> FloatArray:
        self.acts += 1
        return observation.state


class Bench:
    """An emulated follower and leader, and a policy that drives."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        from gaploop.collect.lerobot_types import registries

        self.journal, self.buses, made = folder / "journal", dict[str, EmulatedBus](), []
        for registry, role in zip(registries()[:2], ("follower", "leader"), strict=True):
            plan = arm_plan("so101", role).calibrated()
            (folder / f"{role}.json").write_text(json.dumps(plan.calibration()))
            bus = EmulatedBus(plan=plan, hand="still", link=folder / role)
            self.buses[role] = stack.enter_context(bus)
            chosen: Any = registry.get_choice_class(f"so101_{role}")
            made.append(chosen(port=str(folder / role), id=role, calibration_dir=folder))
        self.robot, self.teleop = made
        self.attempts = Attempts(SpeedRamp(self.journal, "p", 1.0))
        self.policy = Still()
        self.driver = RolloutDriver(
            self.policy,
            PolicyLeader,
            self.attempts,
            lambda _follower, _fps: None,
            has_person=True,
            drives_between=True,
        )

    @contextmanager
    def devices(
        self, *, is_watched: bool = True, station: Station = STATION
    ) -> Iterator[ArmDevices]:
        """Yield the connected arms, torque off."""
        arms = ArmConnection(
            DriveOptions(robot=self.robot, teleop=self.teleop),
            station,
            Rates.near(Still.fps),
            driver=self.driver,
        )
        with arms:
            devices = ArmDevices(
                arms.connect,
                shared=self.driver.leader,
                is_watched=is_watched,
                patience_s=0.0,
            )
            with closing(devices):
                yield devices

    def limp(self, role: str) -> bool:
        bus = self.buses[role]
        with bus.lock:
            return not any(servo.torque for servo in bus.servos.values())


def spans(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the stretches of frames in which the person drove, as [first, last + 1)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(int), [0]))))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(tmp_path, stack)


def until(is_so: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < give_up_s, "waited in vain"
        time.sleep(0.01)


class Desk:
    """A session in a thread; the test is its operator."""

    def __init__(self, bench: Bench, devices: ArmDevices, takes: int) -> None:
        self.book = SessionLabels(bench.journal, "ana")
        self.console = OperatorConsole(
            StageTiming(WITHIN_S, WITHIN_S), KeyMap(ROLLOUT), self.book, task="t"
        )
        driver = bench.driver
        self.console.safety = devices.safety
        self.console.driver = driver
        self.error: DeviceError | None = None

        def record() -> None:
            try:
                record_takes(
                    bench.journal,
                    TakeInfo("", "t", kind=TakeKind.ROLLOUT, policy="p"),
                    [Quota(takes)],
                    devices.rig,
                    devices.leader,
                    stop=lambda: self.console.left,
                    operator=ConsoleOperator(self.console, devices, attempts=bench.attempts),
                    max_s=WITHIN_S,
                )
            except DeviceError as error:
                self.error = error

        self.thread = threading.Thread(target=record)

    def __enter__(self) -> Desk:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.console.leave()
        self.thread.join(WITHIN_S)
        self.book.close()

    @property
    def driven(self) -> Driven:
        driven = self.console.seen().driven
        assert driven is not None
        return driven

    def at(self, *stages: SessionStage) -> bool:
        return self.console.seen().state.stage in stages

    def begin(self) -> None:
        until(lambda: self.at(SessionStage.READY) and not self.console.seen().state.blocked)
        self.console.key("right")
        until(lambda: self.at(SessionStage.RECORDING) and self.driven.driver is Driver.POLICY)


def test_the_leader_comes_the_person_drives_and_all_is_limp_afterwards(bench: Bench) -> None:
    with bench.devices() as devices:
        devices.start()
        assert not bench.limp("follower")
        with Desk(bench, devices, 1) as desk:
            desk.begin()
            assert look(desk.console.seen()).word == "POLICY"
            desk.console.key("t")
            until(lambda: desk.driven.driver is Driver.PERSON)
            assert bench.limp("leader"), "whoever has taken over holds a limp leader"
            until(lambda: desk.driven.person_s > 0.1)
            shown = look(desk.console.seen())
            assert shown.word == "YOU DRIVE"
            assert "taken over 1x" in shown.driving
            assert (shown.hints[0].key, shown.hints[0].does) == ("T", "hand back to the policy")
            desk.console.key("t")
            until(lambda: desk.driven.driver is Driver.POLICY)
            acts = bench.policy.acts
            until(lambda: bench.policy.acts > acts + 2)  # so there are frames that it drove
            desk.console.key("s")
            desk.thread.join(WITHIN_S)
    assert bench.limp("follower")
    assert bench.limp("leader")
    (take,) = read_journal(bench.journal)
    assert (take.outcome, take.info.domain) == (Outcome.SUCCESS, Domain.SIM_TARGET)
    ((first, last),) = spans(take.frames.intervention)
    assert 0 < first < last < len(take.frames)
    (note,) = bench.attempts.notes.values()
    assert (note.uid, note.interventions) == (take.info.uid, 1)


def test_things_are_put_back_with_the_leader_and_that_is_no_intervention(bench: Bench) -> None:
    with bench.devices() as devices:
        devices.start()
        with Desk(bench, devices, 1) as desk:
            until(lambda: desk.at(SessionStage.READY))
            desk.console.key("t")
            until(lambda: desk.driven.driver is Driver.PERSON)
            assert "you drive" in look(desk.console.seen()).driving
            desk.begin()
            desk.console.key("f")
            until(lambda: desk.at(SessionStage.VERDICT))
            assert look(desk.console.seen()).word == "WHAT FAILED?"
            desk.console.key("1")
            desk.console.key("right")
            desk.thread.join(WITHIN_S)
    (take,) = read_journal(bench.journal)
    assert (take.outcome, take.failure_mode) == (Outcome.FAILURE, "frozen")
    assert not take.frames.intervention.any()


def test_nothing_drives_after_a_trip_before_the_operator_says_so(bench: Bench) -> None:
    """With a stale camera, torque on and a terminal, neither space nor q did anything."""
    with bench.devices() as devices:
        devices.start()
        with Desk(bench, devices, 1) as desk:
            desk.begin()
            desk.console.key("space")
            until(
                lambda: (
                    devices.control.snapshot().mode is LoopMode.HELD
                    and not desk.at(SessionStage.RECORDING, SessionStage.ENDING)
                )
            )
            assert look(desk.console.seen()).word == "KEEP CLEAR"
            desk.console.key("c")
            assert devices.control.snapshot().mode is LoopMode.HELD, "one press is none"
            assert not bench.limp("follower")
            time.sleep(2 * HELD_S)
            desk.console.key("c")
            until(
                lambda: (
                    bool(desk.console.seen())
                    and devices.control.snapshot().mode is LoopMode.RUNNING
                )
            )
            desk.console.key("q")
            desk.thread.join(WITHIN_S)
    (take,) = read_journal(bench.journal)
    assert take.outcome is Outcome.FAILURE


def test_where_nobody_is_a_trip_waits_for_no_operator(bench: Bench) -> None:
    """An arm that refused torque once hung an unattended run for good."""
    with bench.devices(is_watched=False) as devices:
        devices.start()
        devices.estop()
        until(lambda: devices.control.snapshot().mode is LoopMode.HELD)
        blocker = devices.rig({}).blocker
        assert "holds" in blocker()
        until(lambda: not blocker())


def test_where_nobody_is_a_trip_of_a_real_arm_ends_the_session_and_says_why(bench: Bench) -> None:
    """It ended with exit code 2 and without its summary."""
    real = replace(STATION, domain=Domain.REAL)
    with bench.devices(is_watched=False, station=real) as devices:
        devices.start()
        devices.estop()
        until(lambda: devices.control.snapshot().mode is LoopMode.HELD)
        assert "holds" in devices.rig({}).blocker(), "nobody's word is needed to hold on"
        held_s = devices.arm.clock.now_s()
        until(lambda: devices.arm.clock.now_s() > held_s + 1.0)
        devices.estop()
        until(lambda: devices.control.snapshot().mode is LoopMode.TRIPPED)
        assert bench.limp("follower")
        with pytest.raises(TrippedError, match="emergency stop") as caught:
            devices.rig({}).blocker()
    assert caught.value.exit_code == 1


def test_what_is_finished_between_losses_counts_as_headway() -> None:
    finished = [0, 0, 1, 1, 2, 2, 2, 2]

    class Found:
        def reconnect(self, *_: object) -> bool:
            return True

    def lose() -> bool:
        raise LostError("a cable")

    with pytest.raises(DeviceError, match="a cable"):
        drive_on(
            cast(SessionDevices, Found()), lose, lambda: False, finished=lambda: finished.pop(0)
        )
    assert finished == [2], "the third loss since an episode was finished ends it"


def test_a_lost_cable_ends_the_attempt_and_asks_for_a_new_connection(bench: Bench) -> None:
    follower = bench.buses["follower"]
    with bench.devices() as devices:
        devices.start()
        with Desk(bench, devices, 2) as desk:
            desk.begin()
            follower.faults.add(Fault("unplug", at_s=follower.age_s()))
            until(lambda: desk.error is not None)
        assert isinstance(desk.error, LostError)
    (take,) = read_journal(bench.journal)
    assert take.outcome is Outcome.INTERRUPTED
    (end,) = map(read_end, take_folders(bench.journal))
    assert end is not None
    assert "cable" in end.reason

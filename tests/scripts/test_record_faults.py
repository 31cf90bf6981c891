"""Faults in a recording session on arms: each ends its take, and the session goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patient_wire import LoopTime

from gaploop.collect.campaign import Quota
from gaploop.collect.devices import ArmDevices
from gaploop.collect.journal import JournalWriter
from gaploop.collect.lerobot_factory import ArmConnection
from gaploop.collect.operator.console import ConsoleOperator, OperatorConsole, SessionLabels
from gaploop.collect.operator.keys import HELD_S, Command, KeyMap
from gaploop.collect.operator.machine import SessionStage, StageTiming
from gaploop.collect.operator.view import look
from gaploop.collect.rig import Rig
from gaploop.collect.session import publishing_at_the_end
from gaploop.collect.session_options import DriveOptions
from gaploop.collect.take import record_takes
from gaploop.core.errors import DeviceError, LostError, UnusableInputError
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader, read_end, read_journal, take_folders
from gaploop.core.messages import CameraFrame
from gaploop.core.protocols import Leader
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.layout import episode_rows
from gaploop.scripts.cli import main
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.loop import Rates

pytestmark = pytest.mark.usefixtures("loop_time")

WITHIN_S = 120.0


class Touch:
    """A sensor beside the arm, for --sensors."""

    def __init__(self, name: str) -> None:
        self.channels = {f"{name}.touch": "kPa"}

    def read(self) -> Mapping[str, float]:
        return dict.fromkeys(self.channels, 7.0)


STATION = Station(name="bench", domain=Domain.SIM_TARGET)


class Pair:
    """An emulated follower and leader."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.buses, self.options = folder, dict[str, EmulatedBus](), list[str]()
        for role, group in (("follower", "robot"), ("leader", "teleop")):
            plan = arm_plan("so101", role).calibrated()
            (folder / f"{role}.json").write_text(json.dumps(plan.calibration()))
            bus = EmulatedBus(plan=plan, hand="still", link=folder / role)
            self.buses[role] = stack.enter_context(bus)
            self.options += [f"--{group}.type=so101_{role}", f"--{group}.port={folder / role}"]
            self.options += [f"--{group}.id={role}", f"--{group}.calibration_dir={folder}"]

    def configs(self) -> tuple[Any, Any]:
        """Return LeRobot's configs of both arms."""
        from gaploop.collect.lerobot_types import registries

        made = []
        for registry, role in zip(registries()[:2], ("follower", "leader"), strict=True):
            chosen: Any = registry.get_choice_class(f"so101_{role}")
            port = str(self.folder / role)
            made.append(chosen(port=port, id=role, calibration_dir=self.folder))
        return made[0], made[1]

    def pull(self, role: str) -> None:
        """Pull a cable out."""
        self.buses[role].faults.add(Fault("unplug"))

    def plug(self, role: str) -> None:
        """Put it in again."""
        self.buses[role].faults.clear()

    def limp(self, role: str) -> bool:
        """Say whether no servo has torque."""
        bus = self.buses[role]
        with bus.lock:
            return not any(servo.torque for servo in bus.all_servos)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something, for a long time at most."""
    give_up_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < give_up_s, "waited in vain"
        time.sleep(0.05)  # what is asked reads a folder


@contextmanager
def loses(pair: Pair, journal: Path, clock: LoopTime, *takes: int) -> Iterator[None]:
    """Pull the follower's cable in the midst of these takes, until each has been cut."""
    left = list(takes)

    def pull() -> None:
        turns = clock.takes()
        if left and len(turns) == left[0] and turns[-1] >= 50:
            left.pop(0)
            pair.pull("follower")

    def plug() -> None:
        for cut in range(1, len(takes) + 1):
            until(lambda cut=cut: over.is_set() or _cut(journal) >= cut)  # type: ignore[misc]
            pair.plug("follower")

    over, plugger = threading.Event(), threading.Thread(target=plug)
    clock.on_turn = pull
    plugger.start()
    try:
        yield
    finally:
        over.set()
        plugger.join()
    assert not left


def _cut(journal: Path) -> int:
    ends = [end for end in map(read_end, take_folders(journal)) if end is not None]
    return sum(end.outcome is Outcome.INTERRUPTED for end in ends)


def test_a_pulled_cable_costs_one_take_of_a_session_that_nobody_watches(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], loop_time: LoopTime
) -> None:
    """A session of hours ended where a cable came out, with an error for a farewell."""
    journal = tmp_path / "data_journal"
    short = ["--dataset.episode_time_s=0.8", "--dataset.reset_time_s=0"]
    command = ["record", *pair.options, *short, "--dataset.num_episodes=2", "--display=none"]
    command.append(f"--sensors={{pad: {{driver: '{Touch.__module__}:Touch'}}}}")
    with loses(pair, journal, loop_time, 2):
        assert main([*command, f"--dataset.root={tmp_path / 'data'}", "--json"]) == 0
    heard = capsys.readouterr()
    assert "Everything answers again" in heard.err
    said = json.loads(heard.out)
    assert (said["counted"], said["published"], said["evidence"]) == (2, 2, "emulated")
    assert len(list(episode_rows(tmp_path / "data"))) == 2
    takes = list(read_journal(journal))
    outcomes = sorted(take.outcome for take in takes)
    assert outcomes == [Outcome.INTERRUPTED, Outcome.UNLABELLED, Outcome.UNLABELLED]
    ends = [end for end in map(read_end, take_folders(journal)) if end is not None]
    (cut,) = [end for end in ends if end.outcome is Outcome.INTERRUPTED]
    assert "cable" in cut.reason
    for take in takes:
        assert (take.info.domain, take.info.fps) == (Domain.SIM_TARGET, 30.0)
        assert len(take.frames) > 0
        assert 7 * (len(take.frames) - 1) < len(take.telemetry) <= 7 * len(take.frames)
        assert take.telemetry.arms() == ("follower", "leader")
        assert set(take.telemetry.columns["pad.touch"]) == {7.0}
    assert pair.limp("follower")


def test_an_arm_that_is_lost_in_every_take_ends_a_session_that_nobody_watches(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], loop_time: LoopTime
) -> None:
    """A servo that browned out took torque again without limit, with a take for each."""
    journal = tmp_path / "data_journal"
    command = ["record", *pair.options, "--dataset.num_episodes=1", "--display=none"]
    command += ["--dataset.episode_time_s=20", "--dataset.reset_time_s=0"]
    command += [f"--dataset.root={tmp_path / 'data'}"]
    with loses(pair, journal, loop_time, 1, 2, 3):
        assert main(command) == 2
    assert "lost 3 times and no episode finished in between" in capsys.readouterr().err
    assert [take.outcome for take in read_journal(journal)] == [Outcome.INTERRUPTED] * 3


@pytest.mark.parametrize(
    ("fault", "said", "takes"),
    [
        (Fault("overheat", id=3, value=75.0), "too hot", 1),
        (Fault("voltage", value=4.0), "voltage", 1),
        (Fault("overload", id=3), "pushed against something", 3),
    ],
    ids=["overheat", "voltage", "stall"],
)
def test_an_arm_that_trips_again_is_not_driven_on_where_nobody_is(
    fault: Fault,
    said: str,
    takes: int,
    pair: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    loop_time: LoopTime,
) -> None:
    """A motor that was too hot got torque again at once, for episodes of two rows, as long as it
    was; one that pushed was driven on without end."""
    journal = tmp_path / "data_journal"
    command = ["record", *pair.options, "--dataset.num_episodes=2", "--display=none"]
    command += ["--dataset.episode_time_s=8", "--dataset.reset_time_s=0"]

    def strike() -> None:
        if not pair.buses["follower"].faults.active and loop_time.takes()[-1:] > [50]:
            pair.buses["follower"].faults.add(fault)

    loop_time.on_turn = strike
    assert main([*command, f"--dataset.root={tmp_path / 'data'}"]) == 1
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert len(take_folders(journal)) == takes
    assert pair.limp("follower")


def test_an_arm_that_answers_and_does_not_drive_is_lost_anew(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each arm that refused torque began another wait of --reconnect_s, without end."""
    with closing(devices_of(pair, is_watched=False, patience_s=WITHIN_S)) as devices:
        devices.start()

        def refuse(*_: object) -> None:
            raise DeviceError("Servo 3 refuses torque.")

        monkeypatch.setattr(ArmDevices, "start", refuse)
        with pytest.raises(LostError, match="refuses torque"):
            devices.reconnect("Lost contact.", lambda: False)


def test_an_arm_that_stays_away_is_said_to_may_still_hold(pair: Pair) -> None:
    """A rollout that nobody watches ended with a word about the cable alone, torque on."""
    with closing(devices_of(pair, is_watched=False, patience_s=0.0)) as devices:
        devices.start()
        pair.pull("follower")
        with pytest.raises(DeviceError, match="Switch the arm's power off"):
            devices.reconnect("Lost contact.", lambda: False)


def _sealed(journal: Path) -> Path:
    """Record a take of nothing and return its folder."""
    header = TakeHeader(TakeInfo(uuid7(), task="t"), (), cameras={}, channels={})
    with JournalWriter(journal, header) as writer:
        writer.seal(Outcome.SUCCESS)
    return writer.folder


def test_what_ended_the_session_is_told_before_what_publishing_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "data"
    _sealed(journal)
    root.write_text("not a dataset")
    with pytest.raises(DeviceError, match="the arm"), publishing_at_the_end(journal, root, "me/x"):
        raise DeviceError("the arm")
    assert "gaploop publish --journal=" in caplog.text


def test_a_publication_that_fails_is_said_and_loses_no_take(tmp_path: Path) -> None:
    journal, root = tmp_path / "journal", tmp_path / "data"
    folder = _sealed(journal)
    root.write_text("not a dataset")
    with (
        pytest.raises(UnusableInputError, match=r"safe in .*journal.* gaploop publish --journal="),
        publishing_at_the_end(journal, root, "me/x") as published,
    ):
        pass
    assert published == []
    assert sorted(path.name for path in journal.iterdir()) == [folder.name]


class Moment:
    """A camera whose pictures stop and come again, on the loop's clock."""

    name = "top"

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s, self.plugged = now_s, True
        self._last = self.frame()

    def frame(self) -> CameraFrame:
        if self.plugged:
            self._last = CameraFrame(np.zeros((48, 64, 3), np.uint8), self.now_s())
        return self._last


class Desk:
    """A watched session on arms: a thread records, the test is the operator."""

    def __init__(self, devices: ArmDevices, journal: Path, takes: int) -> None:
        self.book = SessionLabels(journal, "ana")
        self.console = OperatorConsole(StageTiming(WITHIN_S, 0.0), KeyMap(), self.book, task="t")
        self.console.safety = devices.safety
        self.lost: list[str] = []
        self._devices, self._journal, self._takes = devices, journal, takes
        self.error: DeviceError | None = None
        self.thread = threading.Thread(target=self._record)

    def _record(self) -> None:
        operator = ConsoleOperator(self.console, self._devices)
        devices, left = self._devices, lambda: self.console.left
        while True:
            try:
                record_takes(
                    self._journal,
                    TakeInfo("", "t"),
                    [Quota(self._takes)],
                    devices.rig,
                    devices.leader,
                    stop=left,
                    operator=operator,
                    max_s=WITHIN_S,
                    resume=True,
                )
            except LostError as error:
                self.lost.append(str(error))
                if devices.reconnect(str(error), left):
                    continue
            return

    def __enter__(self) -> Desk:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.console.leave()
        self.thread.join(WITHIN_S)
        self.book.close()

    def sees(self, words: str) -> bool:
        """Say whether the view shows some words."""
        shown = look(self.console.seen())
        return words in f"{shown.word} {shown.below} {shown.note}"

    def take(self, *, lose: Callable[[], None] | None = None) -> None:
        """Begin a take; call it a success, or do something in its middle."""
        until(lambda: self._at(SessionStage.READY) and not self.console.seen().state.blocked)
        self.console.command(Command.NEXT)
        until(lambda: self._at(SessionStage.RECORDING))
        if lose is not None:
            lose()
            until(lambda: self._at(SessionStage.RESET, SessionStage.READY))
            return
        self.console.command(Command.SUCCESS)
        until(lambda: not self._at(SessionStage.RECORDING, SessionStage.ENDING))

    def _at(self, *stages: SessionStage) -> bool:
        return self.console.seen().state.stage in stages


type Connect = Callable[[], tuple[Rig, Leader | None]]


def connection(pair: Pair) -> Connect:
    robot, teleop = pair.configs()
    options = DriveOptions(robot=robot, teleop=teleop)
    return ArmConnection(options, STATION, Rates.near(25.0), records=False).connect


def devices_of(pair: Pair, connect: Connect | None = None, **options: Any) -> ArmDevices:
    return ArmDevices(connect or connection(pair), **options)


def test_the_operator_sees_what_is_lost_and_says_when_the_arm_may_move(
    pair: Pair, tmp_path: Path
) -> None:
    """A leader's cable came out: the window died with the session, and the next one began anew."""
    journal = tmp_path / "journal"
    with closing(devices_of(pair)) as devices:
        devices.start()
        with Desk(devices, journal, 2) as desk:
            desk.take(lose=lambda: pair.pull("leader"))
            until(lambda: desk.sees("DEVICE LOST"))
            pair.plug("leader")
            until(lambda: desk.sees("Everything answers again"))
            assert pair.limp("follower"), "it moves only when the operator says so"
            desk.console.command(Command.CLEAR)
            time.sleep(2 * HELD_S)
            desk.console.command(Command.CLEAR)
            desk.take()
            desk.take()
            desk.thread.join(WITHIN_S)
    assert len(desk.lost) == 1
    assert "cable" in desk.lost[0]
    outcomes = [take.outcome for take in read_journal(journal)]
    assert outcomes == [Outcome.INTERRUPTED, Outcome.SUCCESS, Outcome.SUCCESS]
    assert pair.limp("follower")


def test_a_camera_that_stands_costs_its_take_and_the_next_waits_for_it(
    pair: Pair, tmp_path: Path
) -> None:
    """A camera's last picture was recorded for twenty takes, and nobody saw it."""
    cameras: list[Moment] = []

    def connect() -> tuple[Rig, Leader | None]:
        rig, leader = connection(pair)()
        cameras.append(Moment(rig.clock.now_s))
        return replace(rig, cameras=tuple(cameras)), leader

    with closing(devices_of(pair, connect)) as devices:
        devices.start()
        (camera,) = cameras
        with Desk(devices, tmp_path / "journal", 1) as desk:
            desk.take(lose=lambda: setattr(camera, "plugged", False))
            until(lambda: desk.sees("WAITING Camera top is stale"))
            desk.console.command(Command.NEXT)
            assert desk.sees("WAITING")
            camera.plugged = True
            desk.take()
            desk.thread.join(WITHIN_S)
    cut, whole = (read_end(folder) for folder in take_folders(tmp_path / "journal"))
    assert cut is not None
    assert (cut.outcome, "Camera top is stale" in cut.reason) == (Outcome.INTERRUPTED, True)
    assert whole is not None
    assert whole.frames > 0
    assert desk.lost == []

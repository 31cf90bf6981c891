"""LeRobot's own commands drive through our safety filter, by the plug-ins that they find."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.robots import RobotConfig, make_robot_from_config
from lerobot.scripts.lerobot_record import RecordConfig, record
from lerobot.scripts.lerobot_teleoperate import TeleoperateConfig, teleoperate
from lerobot.teleoperators import TeleoperatorConfig, make_teleoperator_from_config
from lerobot.utils.import_utils import register_third_party_plugins

from gaploop.collect import lerobot_plugin
from gaploop.collect.lerobot_types import named_registries, registries
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.journal_format import TELEMETRY, read_end, read_header, read_stream, take_folders
from gaploop.core.station import SafetyLimits
from gaploop.core.vocabulary import Domain
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.lerobot_devices.make import make_follower
from gaploop.teleop.lerobot_devices.servo_arm import ServoFollower

pytestmark = pytest.mark.usefixtures("loop_time")

PLUGINS = Path(__file__).parents[2] / "plugins"
KINDS = ("robot", "teleoperator")


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """As pip leaves the two distributions: LeRobot looks through what is installed."""
    folder = tmp_path_factory.mktemp("site")
    for kind in KINDS:
        name = f"lerobot_{kind}_gaploop"
        (folder / f"{name}.py").symlink_to(PLUGINS / name / f"{name}.py")
        (folder / f"{name}-0.2.0.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.2.0\n"
        (folder / f"{name}-0.2.0.dist-info" / "METADATA").write_text(metadata)
    sys.path.insert(0, str(folder))
    register_third_party_plugins()
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture
def arm(tmp_path: Path) -> Iterator[Callable[..., tuple[EmulatedBus, Any]]]:
    """Return what emulates an arm, and describes it as one of our types for LeRobot."""
    with ExitStack() as stack:

        def make(model: str, kind: str, role: str, **options: Any) -> tuple[EmulatedBus, Any]:
            plan = arm_plan(model, role).calibrated()
            folder = tmp_path / role
            folder.mkdir()
            (folder / "arm.json").write_text(json.dumps(plan.calibration()))
            hand = "wave" if role == "leader" else "still"
            bus = stack.enter_context(EmulatedBus(plan=plan, hand=hand, wire_time=False))
            known: Any = RobotConfig if role == "follower" else TeleoperatorConfig
            given = {"port": bus.port, "id": "arm", "calibration_dir": folder, **options}
            return bus, known.get_choice_class(kind)(**given)

        yield make


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """LeRobot's loop lives on the machine's clock: beside busy programs a leader was stale."""
    monkeypatch.setattr(lerobot_plugin, "STALE_S", 60.0)
    monkeypatch.setattr(lerobot_plugin, "STALE_CAMERA_S", 60.0)


def limp(bus: EmulatedBus) -> bool:
    with bus.lock:
        return not any(servo.torque for servo in bus.all_servos)


@pytest.mark.members(1)
@pytest.mark.parametrize(
    ("model", "kind"),
    [("so101", "gaploop_so101"), ("koch", "gaploop_koch"), ("openmanipulator", "gaploop_omx")],
)
def test_lerobot_teleoperate_drives_through_our_filter_and_ends_limp(
    model: str, kind: str, arm: Any, tmp_path: Path
) -> None:
    """Plain LeRobot sends goals as they come, and in the end lets the arm fall."""
    bus, robot = arm(model, kind, "follower", journal=tmp_path / "journal")
    _, teleop = arm(model, kind, "leader")
    teleoperate(TeleoperateConfig(teleop=teleop, robot=robot, teleop_time_s=1.0))
    assert limp(bus)
    (folder,) = take_folders(tmp_path / "journal")
    header, end = read_header(folder), read_end(folder)
    assert header.info.domain is Domain.SIM_TARGET  # never taken for a real arm's
    assert end is not None
    rows = read_stream(folder / TELEMETRY)
    assert rows.num_rows > 3  # LeRobot's second is the clock's: 16 on a busy machine, else 200
    for joint in header.info.joint_names:
        name = f"follower.{joint}"
        asked, sent = (np.asarray(rows[f"{name}.{what}"]) for what in ("leader_rad", "sent_rad"))
        assert np.ptp(asked) > 0.0
        # The filter's own limit for a turn, which LeRobot's class hasn't got.
        assert np.abs(np.diff(sent)).max() <= SafetyLimits().velocity_rad_s / 200.0


def test_lerobot_record_writes_what_it_writes_of_its_own_class(arm: Any, tmp_path: Path) -> None:
    bus, robot = arm("so101", "gaploop_so101", "follower")
    _, teleop = arm("so101", "gaploop_so101", "leader")
    from lerobot.configs.dataset import DatasetRecordConfig

    dataset = record(
        RecordConfig(
            robot=robot,
            teleop=teleop,
            dataset=DatasetRecordConfig(
                repo_id="me/x", root=str(tmp_path / "ds"), single_task="wave", num_episodes=2,
                episode_time_s=0.5, reset_time_s=0.1, fps=30, push_to_hub=False,
            ),
            play_sounds=False,
        )
    )  # fmt: skip
    assert limp(bus)
    assert dataset.num_episodes == 2
    assert dataset.meta.robot_type == "so_follower"
    assert dataset.features["action"]["names"][0] == "shoulder_pan.pos"


def test_a_servo_that_fails_ends_lerobots_command_with_its_name(arm: Any) -> None:
    bus, config = arm("koch", "gaploop_koch", "follower")
    robot = make_robot_from_config(config)
    robot.connect()
    seen = robot.get_observation()
    robot.send_action({key: seen[key] for key in robot.action_features})
    bus.faults.add(Fault("vanish", id=3))
    with pytest.raises(DeviceError, match=r"stopped answering \(elbow_flex\)"):
        any(robot.get_observation() is None for _ in itertools.repeat(None))
    with pytest.raises(DeviceError, match="isn't confirmed by elbow_flex"):
        robot.disconnect()
    assert not robot.is_connected


def test_nothing_is_calibrated_by_a_prompt(arm: Any) -> None:
    _, config = arm("koch", "gaploop_koch", "follower")
    with pytest.raises(UnusableInputError, match=r"lerobot-calibrate --robot\.type=koch_follower"):
        make_robot_from_config(config).calibrate()
    _, config = arm("so101", "gaploop_so101", "leader")
    with pytest.raises(UnusableInputError, match=r"--teleop\.type=so10[01]_leader"):
        make_teleoperator_from_config(config).calibrate()


def test_gaploops_own_commands_drive_such_an_arm_once_and_not_twice(arm: Any) -> None:
    """A loop that drove a robot that has a loop of its own would filter everything twice."""
    _, config = arm("so101", "gaploop_so101", "follower")
    follower = make_follower(config)
    try:
        assert isinstance(follower, ServoFollower)
    finally:
        follower.close()


def test_help_names_the_types_of_plug_ins_without_importing_them() -> None:
    named = named_registries()
    assert named is not None
    for names, real in zip(named, registries(), strict=True):
        known = real.get_known_choices()
        ours = {n for n, c in known.items() if c.__module__.startswith("lerobot_")}
        assert ours <= set(names.get_known_choices())


def test_types_that_no_file_tells_are_imported_for_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lerobot_robot_odd.py").write_text("names = ['odd']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert named_registries() is None

"""`gaploop identify` on takes of the embedded cell (sim-to-sim), recorded without pictures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.journal import JournalWriter, Recorder
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.messages import Observation
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.twin import Twin, TwinParameter, load_twin
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.report.twin_lines import residual_lines
from gaploop.finetune.evaluate import MemoryTake
from gaploop.finetune.lerobot_gym import Demonstrations, evaluate_gym
from gaploop.scripts._identify import _seen, _untold
from gaploop.scripts.cli import main
from gaploop.sim.catalogue import arm_named
from gaploop.sim.cell import SimCell
from gaploop.sim.identification import drive_fit
from gaploop.sim.identification.drives import fit_drives
from gaploop.sim.lerobot_worlds import SceneEnvConfig, world_of
from gaploop.sim.world import WorldSpec


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scripted demonstrations of a station whose goals come late."""
    folder = tmp_path_factory.mktemp("late") / "journal"
    folder.mkdir()
    parameters = {"actuator_response.latency": {"latency_s": 0.06}}
    with_camera = embedded_rig(parameters=parameters)
    rig = replace(with_camera, cameras=(), tracker=None)
    rig.reset(0)
    leader = rig.scripted_leader(0)
    for seed in range(2):
        with JournalWriter(folder, rig.header(TakeInfo("", "Put the cube on the disc"))) as writer:
            run_take(rig, leader, seed=seed, max_s=2.5, writer=writer)
    rig.close()
    return folder


def test_a_station_becomes_a_twin_that_cells_take(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "twin"
    arguments = [str(journal), f"--output_dir={out}", "--pictures=false", "--json=true"]
    assert main(["identify", *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [p["name"] for p in said["differs"]] == ["actuator_response.latency.latency_s"]
    twin = load_twin(out / "station_twin.yaml")
    assert twin.values()["actuator_response.latency"]["latency_s"] == pytest.approx(0.06)
    assert twin.fit["open_loop_error_after"] < 0.1 * twin.fit["open_loop_error_before"]
    assert {p.joint for p in twin.parameters} >= {"elbow_flex", "wrist_roll"}
    with SimCell(parameters=twin.values(), image_size=32) as cell:
        cell.reset(0)
    assert (out / "held_out.png").read_bytes().startswith(b"\x89PNG")
    run = json.loads((out / "run.json").read_text())
    assert run["command"] == "identify"
    assert len(run["lineage"]["takes"]) == 2


def test_episodes_that_begin_nowhere_near_a_scene_still_tell_of_its_arms_drives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real robot's never begin as a simulation's do, and were refused without another way."""
    bench = Path(__file__).parents[2] / "examples/scene"
    said = re.sub(r"cameras:\n.*\n", "", (bench / "scene.yaml").read_text())
    (tmp_path / "bench.xml").write_text((bench / "bench.xml").read_text())
    (tmp_path / "mine.yaml").write_text(said)
    elsewhere = said.replace(
        "shoulder_pan: 30, shoulder_lift: -40", "shoulder_pan: -40, shoulder_lift: 0"
    )
    (tmp_path / "desk.yaml").write_text(elsewhere)
    late = WorldSpec(parameters={"actuator_response.latency": {"latency_s": 0.2}})
    with Demonstrations(tmp_path / "desk", failures=True) as shown:
        desk = SceneEnvConfig(scene=tmp_path / "desk.yaml", episode_length=100)
        evaluate_gym("demonstrator", desk, 1, spec=late, demonstrations=shown)
    monkeypatch.setattr(drive_fit, "MOST_STEPS", 200_000)
    scene, out = f"--env.scene={tmp_path / 'mine.yaml'}", tmp_path / "twin"
    arm = resources.files("so101_nexus") / "assets/SO101_menagerie/so101.xml"
    arguments = [str(tmp_path / "desk"), scene, f"--output_dir={out}"]
    assert main(["identify", *arguments, f"--robot.model={arm}"]) == 0
    assert f"--policy.path=POLICY {scene} --twin" in capsys.readouterr().out
    twin = load_twin(out / "station_twin.yaml")
    assert twin.values()["actuator_response.latency"]["latency_s"] == pytest.approx(0.2, abs=0.02)
    assert world_of(twin)[0].called == str((tmp_path / "mine.yaml").resolve())
    assert main(["identify", *arguments, "--robot.model=so101"]) == 2
    assert "it is the arm's MJCF file" in capsys.readouterr().err


def losing_goals(take: Take, joint: str, seed: int) -> Take:
    """Return a take of an arm of which one servo misses every other goal, by chance."""
    record, name = take.telemetry, f"follower.{joint}.position_rad"
    heard = np.random.default_rng(seed).random(len(record.t_s)) < 0.5
    last = np.maximum.accumulate(np.where(heard, np.arange(len(heard)), 0))
    then_s = record.t_s[last]
    late = np.interp(then_s, record.t_s, record.columns[name])
    return replace(take, telemetry=replace(record, columns={**record.columns, name: late}))


@pytest.mark.members(1)
@pytest.mark.parametrize("joint", ["", "wrist_flex"])
def test_a_servo_that_loses_goals_is_not_nothing(joint: str) -> None:
    """It passed as "nothing differs": one joint's error hid in the mean over all of them."""
    rig = replace(embedded_rig(), cameras=(), tracker=None)
    memory = MemoryTake(rig)
    rig.reset(0)
    leader = rig.scripted_leader(0)
    run_take(rig, leader, seed=0, max_s=4.0, sinks=(Recorder(memory, rig.follower),))
    rig.close()
    taken = memory.take(Outcome.SUCCESS)
    fitted = fit_drives([losing_goals(taken, joint, 0) if joint else taken], arm_named("so101"))
    assert set(fitted.fit["unlike"]) == ({joint} if joint else set())
    assert fitted.fit["explained"] is not bool(joint)
    said = residual_lines(Twin("bench", "so101", tuple(fitted.parameters), (), fitted.fit))
    assert bool(said) is bool(joint)
    assert not joint or (joint in said[0] and "lost goals" in said[0])


def test_what_explains_as_much_is_said_as_one_of_two() -> None:
    name = "actuator_response.backlash.backlash_rad"
    row = TwinParameter(name, "rad", 0.0, 0.05, (0.04, 0.06), True, "probe")
    fit = {"unlike": {}, "instead": ["actuator_response.weak.friction_nm"]}
    (line,) = residual_lines(Twin("bench", "so101", (row,), (), fit))
    assert line.startswith("one of these two")
    assert name in line
    assert "friction_nm" in line


def test_why_nothing_is_told_of_something_is_said() -> None:
    """A lens bent a station's pictures: "nothing differs"; why it isn't told stood in a file."""

    def row(name: str, source: str, excited: bool = False) -> TwinParameter:
        return TwinParameter(name, "1", 0.0, 0.0, (-1.0, 1.0), excited, source)

    unlike, motion = "the pictures don't resemble the simulation", "24 episodes, 146 s of motion"
    rows = (
        row("spatial_geometry.camera_pose.dx_m", unlike),
        row("spatial_geometry.camera_pose.dy_m", unlike),
        row("visual_domain.blur.defocus_fraction", unlike),
        row("visual_domain.flicker.depth", "pictures: 14 views", excited=True),
        row("visual_domain.flicker.bands", "no lamp flickers"),
        row("actuator_response.weak.gain_factor", motion),
    )
    twin = Twin("desk", "so101", rows, (), {"takes": 24})
    assert _untold(twin) == [f"  not told: camera pose, blur: {unlike}"]


def test_late_pictures_are_a_parameter_of_the_twin() -> None:
    """`calibrate latency` measured them once, and nothing else knew of them."""
    takes, nothing = list[Take](), Telemetry(np.empty(0), {}, {})
    rig = embedded_rig(parameters={"sensor_noise.camera_delay": {"delay_s": 0.1}})
    leader = rig.scripted_leader(0)
    for seed in range(5):
        seen = list[Observation]()
        run_take(rig, leader, seed=seed, max_s=4.0, on_frame=(seen.append,))
        names, fps = rig.follower.joint_names, rig.fps
        info = TakeInfo("", "", fps=fps, joint_names=names, units="deg")
        frames = replace(Frames.empty(6), state=np.array([o.state for o in seen]))
        shown = [o.images[rig.cameras[0].name] for o in seen]
        cameras = {"top": shown.__iter__}
        takes.append(Take(info, Outcome.SUCCESS, frames, nothing, cameras=cameras))
    rig.close()
    found, says, others = _seen(takes)
    assert (says, others) == ("", 0)
    assert found.differs
    assert found.estimate == pytest.approx(0.11, abs=0.02)  # at 25 pictures a second


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Which episodes?"),
        (["--robot.model=pr2"], "pr2"),
        (["--robot.model=nowhere.xml"], "No arm model nowhere.xml"),
        (["nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    journal: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(journal)] if arguments and arguments[0].startswith("--") else []
    assert main(["identify", *named, *arguments, "--pictures=false"]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert says in error[0]


@pytest.mark.parametrize("how", ["--measure", "--dry_run", "--json=true"])
def test_a_scene_files_arm_is_not_measured_as_the_cells(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It probed the embedded SO-101 for three minutes, and called that a ViperX's twin."""
    (scene := tmp_path / "my.yaml").touch()
    assert main(["identify", str(tmp_path), how, f"--robot.scene={scene}"]) == 2
    error = capsys.readouterr().err
    assert "--measure moves no arm of a scene file" in error
    assert f"then: gaploop identify DIR --env.scene={scene}" in error

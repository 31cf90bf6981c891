"""A scene as a file: what it says is what is built, reset, judged and demonstrated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.finetune import doctor
from gaploop.sim.demonstrators import Demonstration, Demonstrator, Part, Replayed, place_of, show
from gaploop.sim.gaps.mechanism import UnavailableError
from gaploop.sim.lerobot_worlds import GymAttempts
from gaploop.sim.predicates import Criterion
from gaploop.sim.roles import find_roles, survey
from gaploop.sim.scene_file import load_scene
from gaploop.sim.scene_world import SceneWorld
from gaploop.sim.world import GymWorld, WorldSpec

BENCH = """
<mujoco>
  <option timestep="0.004"/>
  <worldbody>
    <geom name="table" type="plane" size="1 1 .1"/>
    <body name="ball" pos="0.3 0 0.03"><freejoint/><geom size="0.03" mass="0.05"/></body>
    <body name="goal" pos="0.3 0.2 0.001"><geom type="cylinder" size=".05 .001" contype="0" conaffinity="0"/></body>
    <site name="zone" type="box" size="0.1 0.1 0.1" pos="0.3 0.2 0.05"/>
    <body name="rail" pos="0 0 0.15">
      <joint name="x" type="slide" axis="1 0 0" range="0 0.6" limited="true" damping="5"/>
      <geom size="0.02" mass="0.2" contype="0" conaffinity="0"/>
      <body name="arm"><joint name="y" type="slide" axis="0 1 0" range="-0.4 0.4" limited="true" damping="5"/>
        <geom size="0.02" mass="0.2" contype="0" conaffinity="0"/>
        <body name="hand"><joint name="z" type="slide" axis="0 0 1" range="-0.15 0.1" limited="true" damping="5"/>
          <geom size="0.02" mass="0.1"/>
          <site name="tip" quat="0 1 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="x" kp="200"/><position joint="y" kp="200"/><position joint="z" kp="200"/>
  </actuator>
</mujoco>
"""  # noqa: E501
SCENE = """
mjcf: bench.xml
tool: tip
home_deg: {x: 0.1, z: 0.05}
fps: 25
reset:
  ball: {x_m: [0.25, 0.35], y_m: -0.1}
instruction: Push the ball to the goal
success: {all: [{near: {object: ball, to: goal, within_m: 0.08}}, {not: {lifted: ball}}]}
demonstrator:
  - {to: ball, offset_m: [0, -0.09, 0.0]}
  - {to: goal, offset_m: [0, -0.02, 0.03], speed_m_s: 0.1}
max_s: 6
"""


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    (tmp_path / "bench.xml").write_text(BENCH)
    path = tmp_path / "scene.yaml"
    path.write_text(SCENE)
    return path


def said(path: Path, old: str, new: str) -> Path:
    path.write_text(SCENE.replace(old, new))
    return path


def test_things_start_where_the_file_says_and_equal_seeds_give_equal_scenes(scene: Path) -> None:
    world = SceneWorld(load_scene(scene))
    places = []
    for seed in (1, 2, 1):
        world.reset(seed=seed)
        places.append(world.data.body("ball").xpos.copy())
        assert world.angles() == pytest.approx([0.1, 0.0, 0.05])
    assert (places[0] == places[2]).all()
    assert places[0][0] != places[1][0]
    assert all(0.25 <= p[0] <= 0.35 and p[1] == pytest.approx(-0.1) for p in places)


def test_an_action_moves_the_arm_and_is_read_in_the_same_units(scene: Path) -> None:
    world = SceneWorld(load_scene(scene))
    world.reset(seed=0)
    for _ in range(25):
        observation, *_ = world.step(np.array([0.2, 0.1, 0.0], np.float32))
    assert observation["agent_pos"] == pytest.approx([0.2, 0.1, 0.0], abs=0.02)


def test_a_scene_without_cameras_shows_where_things_are(scene: Path) -> None:
    """Nothing but joints was shown: no policy could have learned a task there."""
    world = SceneWorld(load_scene(scene))
    observation, _ = world.reset(seed=0)
    ball = world.data.body("ball")
    assert observation["environment_state"] == pytest.approx([*ball.xpos, *ball.xquat])
    assert world.observation_space.contains(observation)
    said(scene, "fps: 25", "cameras: {front: {eye_m: [1, 0, 1], at_m: [0, 0, 0]}}")
    seen = SceneWorld(load_scene(scene))
    assert set(seen.observation_space) == {"agent_pos", "pixels"}  # type: ignore[call-overload]


def test_the_demonstrator_follows_its_waypoints_to_success(scene: Path) -> None:
    world = SceneWorld(load_scene(scene))
    observation, _ = world.reset(seed=0)
    driver = Demonstrator(world)
    tips = []
    for _ in range(180):
        observation, *_ = world.step(driver(observation))
        tips.append(world.data.site("tip").xpos.copy())
    assert driver.done
    beside = world.scene.reset[0]
    assert min(abs(t[1] - (beside.y_m[0] - 0.09)) for t in tips) < 0.02
    assert tips[-1][:2] == pytest.approx([0.3, 0.18], abs=0.03)


@pytest.mark.parametrize("damping", [5, 60, 120])
def test_the_demonstrator_waits_for_an_arm_that_is_slow(scene: Path, damping: int) -> None:
    """It went on by the clock: at a slow station no demonstration succeeded."""
    (scene.parent / "bench.xml").write_text(BENCH.replace('damping="5"', f'damping="{damping}"'))
    world = SceneWorld(load_scene(scene))
    observation, _ = world.reset(seed=0)
    driver = Demonstrator(world)
    for _ in range(400):
        observation, *_ = world.step(driver(observation))
    assert driver.done
    assert max(driver.off_m) < 0.015


@pytest.mark.parametrize(
    ("predicate", "holds"),
    [
        ("{near: {object: ball, to: goal, within_m: 0.25}}", False),
        ("{near: {object: ball, to: goal, within_m: 0.35}}", True),
        ("{inside: {object: ball, of: zone}}", False),
        ("{not: {inside: {object: ball, of: zone}}}", True),
        ("{lifted: {object: ball, by_m: 0.01}}", False),
        ("{upright: ball}", True),
        ("{open: {joint: x, beyond: 0.05}}", True),
        ("{open: {joint: x, beyond: 0.2}}", False),
        ("{still: ball}", True),
        ("{held: ball}", None),
        ("{on: {object: ball, of: goal}}", False),
        ("{on: {object: ball, of: goal, within_m: 0.003}}", True),
        ("{released: ball}", True),
        ("{any: [{lifted: ball}, {still: ball}]}", True),
        ("{all: [{lifted: ball}, {still: ball}]}", False),
    ],
)
def test_predicates(scene: Path, predicate: str, holds: bool | None) -> None:
    line = next(line for line in SCENE.splitlines() if line.startswith("success"))
    loaded = load_scene(said(scene, line, f"success: {predicate}"))
    if holds is None:
        with pytest.raises(UnusableInputError, match="no gripper was found"):
            SceneWorld(loaded)
        return
    world = SceneWorld(loaded)
    world.reset(seed=0)
    assert world.success() is holds


def test_a_station_may_judge_more_strictly(scene: Path) -> None:
    """Gaps in what counts as success act on `near`, in anybody's scene as in the embedded cell."""
    line = next(line for line in SCENE.splitlines() if line.startswith("success"))
    file = said(scene, line, "success: {near: {object: ball, to: goal, within_m: 0.35}}")
    world = SceneWorld(load_scene(file))
    world.reset(seed=0)
    assert world.success()
    for stricter in (
        Criterion(tolerance_factor=0.5), Criterion(goal_offset_m=(0.0, 0.2)),
        Criterion(deadline_s=-1.0), Criterion(clearance_m=0.4),
    ):  # fmt: skip
        world.criterion = stricter
        assert not world.success(), stricter
    world.data.qpos[3:7] = [np.cos(0.1), 0.0, 0.0, np.sin(0.1)]  # turned by 0.2 rad
    for tolerance_rad, holds in ((0.19, False), (0.21, True)):
        world.criterion = Criterion(yaw_tolerance_rad=tolerance_rad)
        assert world.success() is holds
    key = "task_specification.tolerance"
    assert GymWorld(lambda: SceneWorld(load_scene(file))).parameters()[key] == ""
    gapped = GymWorld(lambda: SceneWorld(load_scene(file)), WorldSpec(gaps={key: 1.0}))
    gapped.reset(seed=0)
    judged: Any = gapped.unwrapped
    assert judged.criterion.tolerance_factor < 0.3
    assert not judged.success()
    free = said(scene, line, "success: {lifted: ball}")
    assert "near" in GymWorld(lambda: SceneWorld(load_scene(free))).parameters()[key]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("mjcf: bench.xml", "mjcf: bank.xml", "there is no model"),
        ("mjcf: bench.xml", "mjcf: no_such_package:x.xml", "isn't installed"),
        ("  ball: {x_m", "  bal: {x_m", "Did you mean 'ball'"),
        ("to: goal, within_m: 0.08", "to: gaol, within_m: 0.08", "Did you mean 'goal'"),
        ("{lifted: ball}", "{raised: ball}", "Unknown predicate 'raised'"),
        ("home_deg: {x: 0.1", "home_deg: {xx: 0.1", "servo 'xx' .*Did you mean 'x'"),
        ("fps: 25", "fsp: 25", "Did you mean 'fps'"),
        ("fps: 25", "gripper: {joint: jaw}", "position servo 'jaw' .*gripper. One of: x, y, z"),
        ("to the goal", "to $goal", r"instruction: .* isn't under choices"),
        ("fps: 25", "choices: {end: goal}", "choices, end: give a list"),
        ("y_m: -0.1", "y_m: [0, 1, 2]", r"\[low, high\]"),
        ("within_m: 0.08", "within_m: -.08m", "must be a number"),
        ("tool: tip", "tool: {site: tip, out: w}", "Unknown axis 'w'"),
        ("tool: tip", "tool: {body: hnd}", "Did you mean 'hand'"),
        ("tool: tip", "tool: {at_m: [0, 0, 0]}", "give site, or body with at_m"),
    ],
)
def test_a_slip_in_the_file_is_named(scene: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(UnusableInputError, match=words):
        SceneWorld(load_scene(said(scene, old, new)))


def test_the_gripper_is_the_one_that_the_file_names(scene: Path) -> None:
    """Koch's `joint_6` wasn't taken for a jaw: "no gripper was found", though the file named it."""
    line = next(line for line in SCENE.splitlines() if line.startswith("success"))
    file = said(scene, line, "success: {held: ball}\ngripper: {joint: z, open: 0.1, closed: 0}")
    world = SceneWorld(load_scene(file))
    assert world.state.hands == [{world.model.body("hand").id, world.model.body("arm").id}]
    assert "gripper" not in find_roles(world.model, world.data, jaw=world.servos.jaw).doubts


@pytest.mark.parametrize(
    ("success", "which"),
    [
        ("{all: [{near: {object: ball, to: goal, within_m: 0.08}}, {released: ball}]}", "ball"),
        ("{any: [{lifted: {object: block, by_m: 0.1}}, {released: ball}]}", "block"),
        ("{all: [{on: {object: block, of: ball}}]}", "block"),
        ("{not: {still: block}}", "block"),
        ("{all: [{lifted: {object: block, by_m: 0.1}}, {lifted: {object: ball, by_m: 0.1}}]}", ""),
    ],
)
def test_the_object_is_the_one_that_success_is_about(scene: Path, success: str, which: str) -> None:
    """Incident: of somebody's two blocks both were in doubt; the file judged one of them."""
    block = '<body name="block" pos="0.5 0 0.03"><freejoint/><geom size="0.02"/></body>'
    (scene.parent / "bench.xml").write_text(
        BENCH.replace('<body name="goal"', block + '<body name="goal"')
    )
    line = next(line for line in SCENE.splitlines() if line.startswith("success"))
    known = survey(SceneWorld(load_scene(said(scene, line, f"success: {success}"))))
    assert known is not None
    assert known.roles.words(known.model)["object"] == (which or "one of ball, block")


FINGERS = """<site name="tip" quat="0 1 0 0"/>
<body><joint name="l" type="slide" axis="0 1 0" range="0 .04"/><geom size=".01"/></body>
<body><joint name="r" type="slide" axis="0 -1 0" range="0 .04"/><geom size=".01"/></body>
"""
PULLED = """<velocity joint="l" kv="1"/><general name="grip" tendon="both" ctrlrange="0 255"
  gainprm="0.0156862745" biastype="affine" biasprm="0 -100 -1"/></actuator><tendon>
  <fixed name="both"><joint joint="l" coef=".5"/><joint joint="r" coef=".5"/></fixed></tendon>"""


def test_a_gripper_that_a_tendon_pulls_is_told_its_length_and_a_motor_of_speeds_is_no_servo(
    scene: Path,
) -> None:
    """The usual Panda and Robotiq are sent 0 to 255: such a gripper couldn't be named."""
    bench = BENCH.replace('<site name="tip" quat="0 1 0 0"/>', FINGERS)
    (scene.parent / "bench.xml").write_text(bench.replace("</actuator>", PULLED))
    file = said(scene, "fps: 25", "gripper: {joint: grip, open: 0.04, closed: 0}")
    world = SceneWorld(load_scene(file))
    assert world.joint_names == ("x", "y", "z", "grip")
    np.testing.assert_allclose(world.limits[3], [0.0, 0.04], atol=1e-6)
    assert not find_roles(world.model, world.data, jaw=world.servos.jaw).doubts.keys() & {"gripper"}
    Demonstrator(world)
    world.reset(seed=0)
    for _ in range(25):
        seen, *_ = world.step(np.array([0.1, 0.0, 0.05, 0.03]))
    np.testing.assert_allclose(world.data.qpos[-2:].mean(), 0.03, atol=1e-3)
    np.testing.assert_allclose(seen["agent_pos"][[0, 1, 3]], [0.1, 0.0, 0.03], atol=2e-3)
    (scene.parent / "bench.xml").write_text(
        BENCH.replace("<position", "<velocity").replace("kp=", "kv=")
    )
    with pytest.raises(UnusableInputError, match="no joint has a position servo; its 3 actuators"):
        SceneWorld(load_scene(scene))


@pytest.mark.parametrize(
    ("actuator", "gripper", "lowest", "highest"),
    [
        ('<motor name="grip" joint="l" ctrlrange="-2 2"/>', "grip, open: 1, closed: -1", 0.0, 0.04),
        ('<adhesion name="grip" body="hand" ctrlrange="0 1"/>', "grip, open: 0, closed: 1", 0, 0),
        ('<position joint="l" kp="50"/><position joint="r" kp="50"/>',
         "[l, r], open: [0.03, 0.02], closed: [0, 0.005]", 0.005, 0.02),
    ],
)  # fmt: skip
def test_a_gripper_is_whatever_opens_and_closes(
    scene: Path, actuator: str, gripper: str, lowest: float, highest: float
) -> None:
    """Of two fingers with servos one stayed; a cup or a motor was never sent anything, unsaid."""
    bench = BENCH.replace('<site name="tip" quat="0 1 0 0"/>', FINGERS)
    bench = bench.replace('range="0 .04"/>', 'range="0 .04" damping="2"/>')
    bench = bench.replace('<geom size=".01"/>', '<geom size=".01" contype="0" mass=".1"/>')
    finger = "r" if "[" in gripper else "l"
    (scene.parent / "bench.xml").write_text(bench.replace("</actuator>", actuator + "</actuator>"))
    world = SceneWorld(
        load_scene(said(scene, "fps: 25", f"gripper: {{joint: {gripper}}}\nfps: 50"))
    )
    assert world.joint_names[:3] == ("x", "y", "z")
    assert len(world.joint_names) == 4
    Demonstrator(world)
    assert world.servos.others == []
    for asked, place_m in (("open", highest), ("closed", lowest)):
        world.reset(seed=0)
        sent = world.scene.gripper[asked]
        for _ in range(60):
            seen, *_ = world.step(np.array([0.1, 0.0, 0.05, sent]))
        assert world.data.joint(finger).qpos[0] == pytest.approx(place_m, abs=2e-3)
        assert seen["agent_pos"][3] == pytest.approx(sent, abs=2e-3)


@pytest.mark.parametrize(
    ("kind", "is_servo"),
    [("position kp='200' timeconst='.2'", True), ("intvelocity kp='200' actrange='-1 1'", False),
     ("velocity kv='20'", False), ("motor gear='20'", False)],
)  # fmt: skip
def test_only_what_goes_where_it_is_sent_is_a_servo(scene: Path, kind: str, is_servo: bool) -> None:
    """Speeds were taken for places; arms with filters began with a leap to zero."""
    other = BENCH.replace('position joint="x" kp="200"', f'{kind} name="pull" joint="x"')
    (scene.parent / "bench.xml").write_text(other)
    if not is_servo:
        with pytest.raises(UnusableInputError, match="home_deg: x has no position servo; pull, wh"):
            SceneWorld(load_scene(scene))
        world = SceneWorld(load_scene(said(scene, "x: 0.1, z: 0.05", "z: 0.05")))
        assert world.servos.others == ["pull"]
        assert world.joint_names == ("y", "z")
        return
    world = SceneWorld(load_scene(scene))
    world.reset(seed=0)
    for _ in range(10):
        seen, *_ = world.step(world.rest_action)
        assert seen["agent_pos"][0] == pytest.approx(0.1, abs=5e-3)


def test_joints_without_an_end_are_led(scene: Path) -> None:
    """A joint that turns round and round, as four of a Kinova's, ended its demonstrator."""
    bench = BENCH.replace('range="-0.4 0.4" limited="true" damp', "damp")
    (scene.parent / "bench.xml").write_text(bench)
    test_the_demonstrator_follows_its_waypoints_to_success(scene)
    sent = bench.replace('joint="y" kp="200"', 'joint="y" kp="200" ctrlrange="-7 7"')
    (scene.parent / "bench.xml").write_text(sent)
    assert list(SceneWorld(load_scene(scene)).limits[1]) == [-7.0, 7.0]


@pytest.mark.parametrize("fps", [1, 30, 60, 400])
def test_frames_take_the_time_that_they_say(scene: Path, fps: int) -> None:
    """At 30 fps and 4 ms a step a second had 0.96 s."""
    world = SceneWorld(load_scene(said(scene, "fps: 25", f"fps: {fps}")))
    for _ in range(2):
        world.reset(seed=0)
        for _ in range(2 * fps):
            world.step(world.rest_action)
        assert world.data.time == pytest.approx(2.0, abs=0.0021)


def test_an_arm_starts_in_its_home_keyframe_where_the_file_says_nothing(scene: Path) -> None:
    """Models of MuJoCo's Menagerie have one; their arms started stretched out."""
    key = '<keyframe><key name="home" qpos="0 0 1 1 0 0 0 .2 .3 -.1"/></keyframe></mujoco>'
    (scene.parent / "bench.xml").write_text(BENCH.replace("</mujoco>", key))
    for new, at_m in (("", [0.2, 0.3, -0.1]), ("home_deg: {x: 0.4}", [0.4, 0.0, 0.0])):
        world = SceneWorld(load_scene(said(scene, "home_deg: {x: 0.1, z: 0.05}", new)))
        np.testing.assert_allclose(world.home, at_m, atol=1e-9)


def test_a_simulation_that_falls_apart_is_no_attempt_that_goes_on(
    scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MuJoCo began anew in the midst of attempts; `doctor` named a joint that moved 10 000 %."""
    stiff = BENCH.replace('joint="y" kp="200"', 'joint="y" kp="2e9"')
    (scene.parent / "bench.xml").write_text(stiff)
    world = SceneWorld(load_scene(scene))
    world.reset(seed=0)
    ends = [world.step(np.array([0.1, 0.3, 0.05]))[2] for _ in range(10)]
    assert ends[-1]
    monkeypatch.setattr(doctor, "RESETS", 1)
    said_of = {r.found for r in doctor.check_world(scene, "", {}, None, None) if r.subject == "y"}
    assert said_of == {doctor.DIVERGED}


def test_a_model_in_millimetres_is_told(scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing said so, and no waypoint of its file could be reached."""
    assert SceneWorld(load_scene(scene)).units == ""  # metres: not the degrees of a hinge
    monkeypatch.setattr(doctor, "RESETS", 1)
    far = BENCH.replace('<body name="hand"', '<body name="hand" pos="0 150 0"')
    said_of = []
    for bench in (BENCH, far):
        (scene.parent / "bench.xml").write_text(bench)
        found = doctor.check_world(scene, "", {}, None, None)
        said_of.append([r.found for r in found if r.subject == "size"])
    assert said_of == [
        [],
        ["the arm's joints are 150 m apart: the model seems to be in millimetres"],
    ]


def test_a_tool_is_a_site_or_a_place_on_a_body_whose_axis_out_of_the_hand_is_named(
    scene: Path,
) -> None:
    """Others' sites point anywhere, and many models have none: their XML had to be edited."""
    turned = BENCH.replace('name="tip" quat="0 1 0 0"', 'name="tip"')
    worlds = [SceneWorld(load_scene(scene))]
    for bench, tool in (
        (turned, "{site: tip, out: -z}"),
        (BENCH.replace('<site name="tip" quat="0 1 0 0"/>', ""), "{body: hand, out: -z}"),
    ):
        (scene.parent / "bench.xml").write_text(bench)
        worlds.append(SceneWorld(load_scene(said(scene, "tool: tip", f"tool: {tool}"))))
    first, *others = [np.array(_driven(world)) for world in worlds]
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-4)
    for world in worlds:
        out = world.data.site(world.scene.tool.site).xmat.reshape(3, 3)[:, 2]
        np.testing.assert_allclose(out, [0.0, 0.0, -1.0], atol=1e-9)


def said_by_doctor(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what `doctor` says is to be mended of a scene's waypoints."""
    monkeypatch.setattr(doctor, "RESETS", 2)
    found = doctor.check_world(file, "", {}, None, None)
    return next(result.fix for result in found if result.check == "demonstrator")


def test_doctor_says_why_waypoints_fail(scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said to mend the waypoints, whatever the tool did; many tools lie on their side."""
    on_its_side = said(scene, "tool: tip", "tool: {body: hand, at_m: [0.1, 0, 0]}")
    axis = "x axis seems to point out of the hand, not z: write out: x."
    assert axis in said_by_doctor(on_its_side, monkeypatch)
    above = said_by_doctor(said(scene, "-0.09, 0.0]", "-0.09, 0.15]"), monkeypatch)
    assert "the arm never touches ball; at the end not so" in above
    (scene.parent / "bench.xml").write_text(BENCH.replace('kp="200"', 'kp="2"'))
    words = r"In 2 of 2 .*the tool stays \d+ mm off waypoint \d; at the end not so: .*Mend"
    assert re.match(words, said_by_doctor(said(scene, "", ""), monkeypatch))


GRIPPER = """<site name="tip" pos="0 0 -.06" quat="0 1 0 0"/>
<body pos="0 -.05 -.06"><joint name="l" type="slide" axis="0 1 0" range="0 .04" damping="5"/>
  <geom type="box" size=".02 .005 .02" mass=".05" friction="2" condim="4"/></body>
<body pos="0 .05 -.06"><joint name="r" type="slide" axis="0 -1 0" range="0 .04" damping="5"/>
  <geom type="box" size=".02 .005 .02" mass=".05" friction="2" condim="4"/></body>
"""
PICK = """
mjcf: bench.xml
tool: tip
gripper: {joint: l, open: 0, closed: 0.03}
home_deg: {x: 0.1, z: 0.05}
reset:
  ball: {x_m: [0.25, 0.35], y_m: -0.1}
instruction: Carry the ball to the goal
success: {all: [{near: {object: ball, to: goal, within_m: 0.05}}, {released: ball}]}
demonstrator:
  - {to: ball, offset_m: [0, 0, 0.09], gripper: open}
  - {to: ball}
  - {gripper: closed, pause_s: 0.6}
  - {to: ball, offset_m: [0, 0, 0.1]}
  - {to: goal, offset_m: [0, 0, 0.12]}
  - {to: goal, offset_m: [0, 0, 0.04]}
  - {gripper: open, pause_s: 0.5}
"""


def with_gripper(bench: str) -> str:
    bench = bench.replace('kp="200"', 'kp="2000"').replace('damping="5"', 'damping="50"')
    bench = bench.replace('<site name="tip" quat="0 1 0 0"/>', GRIPPER)
    bench = bench.replace("<option", '<option cone="elliptic" impratio="10"')
    drives = '<position joint="l" kp="200"/></actuator>'
    tied = '<equality><joint joint1="l" joint2="r"/></equality>'
    return bench.replace("</actuator>", drives + tied)


def test_jaws_that_met_above_a_thing_grip_nothing(
    scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block under closed jaws was "gripped at waypoint 3", and "lost on the way to 4"."""
    wide = with_gripper(BENCH).replace('size="0.03" mass="0.05"', 'type="box" size=".08 .08 .03"')
    strong = wide.replace('joint="l" kp="200"', 'joint="l" kp="20000"')
    (scene.parent / "bench.xml").write_text(strong)
    scene.write_text(PICK)
    words = r"waypoint 3 grips nothing: ball is \d\d mm from the tool, which is \d\d mm off it"
    seen = doctor._went_wrong(SceneWorld(load_scene(scene)), 0).values()
    assert re.search(words, "; ".join(seen))
    told = "the open hand would stand in ball, with body 6; open its jaws wider"
    assert told in said_by_doctor(scene, monkeypatch)


@pytest.mark.members(2)
@pytest.mark.parametrize("at", ["0 -.05 -.06", "0 .05 -.06", "0 0 0"])
@pytest.mark.parametrize("out", ["z", "x"])
def test_doctor_says_which_tool_is_between_the_jaws(
    scene: Path, monkeypatch: pytest.MonkeyPatch, at: str, out: str
) -> None:
    """Somebody's site lay on the fixed jaw, which came down on the block: it "grips nothing"."""
    tip, quat = '<site name="tip" pos="{}" quat="{}"/>', {"z": "0 1 0 0", "x": ".7 0 .7 0"}
    was, now = tip.format("0 0 -.06", quat["z"]), tip.format(at, quat[out])
    bench = with_gripper(BENCH).replace('size="0.03" mass="0.05"', 'type="box" size=".03 .03 .03"')
    (scene.parent / "bench.xml").write_text(bench.replace(was, now))
    scene.write_text(PICK.replace("tool: tip", f"tool: {{site: tip, out: {out}}}"))
    told = said_by_doctor(scene, monkeypatch)
    words = r"At waypoint 2 the open hand would stand in ball, with .*: write (tool: {.*}), which"
    found = re.match(words, told)
    assert found, told
    scene.write_text(PICK.replace("tool: tip", found[1]))
    assert "would stand in" not in said_by_doctor(scene, monkeypatch)
    world = SceneWorld(load_scene(scene))
    world.reset(seed=0)
    tool_m = world.data.site("tip").xpos - world.data.body("hand").xpos
    assert tool_m == pytest.approx([0.0, 0.0, -0.06], abs=0.03)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("", "", ""),
        ("{to: ball}", "{to: ball, offset_m: [0, 0, 0.07]}",
         r"waypoint 3 grips nothing: ball is \d\d mm from the tool; at the end not so"),
        ("closed: 0.03", "closed: 0.016",
         r"ball, gripped at waypoint 3, is lost on the way to 4, where the tool goes 8 mm a frame"),
        ("reset:", "max_s: 4\nreset:", r"max_s is over before waypoint \d of 7; at the end"),
        ("{to: goal, offset_m: [0, 0", "{to: goal, offset_m: [-0.2, 0",
         r"at the end not so: {near: {object: ball, to: goal, within_m: 0.05}}, \d+ mm apart"),
    ],
)  # fmt: skip
def test_doctor_says_at_which_waypoint_what_is_gripped_is_missed_or_lost(
    scene: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, words: str
) -> None:
    """A Panda at 12 frames a second threw what it holds at 25: it was "0 of 20", and not where."""
    (scene.parent / "bench.xml").write_text(with_gripper(BENCH))
    scene.write_text(PICK.replace(old, new))
    told = said_by_doctor(scene, monkeypatch)
    assert re.match("In 2 of 2 failures, such as scene 0, " + words, told) if words else told == ""


def _driven(world: SceneWorld) -> list[Any]:
    world.reset(seed=0)
    drives = Demonstrator(world)
    return [world.step(drives(None))[0]["agent_pos"] for _ in range(60)]


def test_doctor_says_what_blocks_a_joint(scene: Path) -> None:
    """xArm's first link overlaps its base, which MuJoCo lets collide: "see what blocks it"."""
    wall = (
        '<body name="wall"><geom type="box" size=".1 .01 .1" pos=".1 .03 .2"/></body></worldbody>'
    )
    (scene.parent / "bench.xml").write_text(BENCH.replace("</worldbody>", wall))
    found = list(doctor._joints(SceneWorld(load_scene(scene))))
    fixes = {result.subject: result.fix for result in found}
    assert 'write <exclude body1="hand" body2="wall"/> into <contact> of' in fixes["y"]
    assert not fixes["z"]


def test_doctor_says_that_servos_chatter_by_their_damping(scene: Path) -> None:
    """Light joints with kv moved by 15 % of what they were sent: "raise kp", it said."""
    kv = 'joint="z" kp="4000" kv="500" forcerange="-50 50"'
    light = BENCH.replace('joint="z" kp="200"', kv)
    (scene.parent / "bench.xml").write_text(light)
    fixes = {r.subject: r.fix for r in doctor._joints(SceneWorld(load_scene(scene)))}
    assert fixes["z"].startswith("z chatter by their kv")
    steady = light.replace("timestep=", 'integrator="implicitfast" timestep=')
    (scene.parent / "bench.xml").write_text(steady)
    assert not any(r.fix for r in doctor._joints(SceneWorld(load_scene(scene))))


@pytest.mark.parametrize("at", ["arm/urdf/arm.urdf", "arm.urdf", "clone/urdf/arm.urdf"])
def test_a_urdf_finds_the_meshes_of_its_ros_package(scene: Path, at: str) -> None:
    """xArm's ended in "Error opening file 'package:/…'", as any URDF of ROS would."""
    folder = scene.parent
    urdf, mesh = (
        folder / at,
        folder / ("clone" if at.startswith("clone") else "arm") / "meshes/x.obj",
    )
    for file in (urdf, mesh):
        file.parent.mkdir(parents=True, exist_ok=True)
    urdf.write_text("""<robot name="arm">
      <link name="base"/><link name="link"><inertial><mass value="1"/>
      <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial><collision><geometry>
      <mesh filename="package://arm/meshes/x.obj"/></geometry></collision></link>
      <joint name="j" type="revolute"><parent link="base"/><child link="link"/><axis xyz="0 0 1"/>
      <limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>""")
    corners = "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\n"
    mesh.write_text(corners + "f 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n")
    bench = BENCH.replace("<actuator>", '<actuator><position joint="j" kp="9"/>')
    (folder / "bench.xml").write_text(bench)
    file = said(scene, "fps: 25", f"arm: {at}")
    assert SceneWorld(load_scene(file)).model.nmesh == 1
    mesh.unlink()
    with pytest.raises(
        UnusableInputError, match=r"no folder above it has .*Put the ROS package arm"
    ):
        SceneWorld(load_scene(file))


@pytest.mark.parametrize("range_deg", ["-180 -4", "4 180"])
def test_joints_whose_range_hasnt_zero_in_it_are_read(scene: Path, range_deg: str) -> None:
    """`doctor` ended in "high - low < 0" at a Panda, whose fourth joint bends one way only."""
    hinge = f'<joint name="x" axis="0 0 1" range="{range_deg}" limited="true" damping="5"/>'
    slide = '<joint name="x" type="slide" axis="1 0 0" range="0 0.6" limited="true" damping="5"/>'
    (scene.parent / "bench.xml").write_text(BENCH.replace(slide, hinge))
    known = GymWorld(lambda: SceneWorld(load_scene(said(scene, "x: 0.1", "x: 90")))).surveyed()
    assert known
    assert known.servos


def test_a_gap_acts_in_a_scene_and_severity_zero_is_the_scene_to_the_bit(scene: Path) -> None:
    def states(spec: WorldSpec | None) -> list[Any]:
        loaded = load_scene(scene)
        world: Any = SceneWorld(loaded)
        if spec is not None:
            world = GymWorld(lambda: SceneWorld(loaded), spec)
        world.reset(seed=3)
        rng, found = np.random.default_rng(0), []
        for _ in range(20):
            observation, *_ = world.step(rng.uniform(0, 0.3, 3).astype(np.float32))
            found.append(observation["agent_pos"].tobytes())
        return found

    plain = states(None)
    assert states(WorldSpec()) == plain
    assert states(WorldSpec(gaps={"actuator_response.latency": 0.0})) == plain
    late = states(WorldSpec(gaps={"actuator_response.latency": 1.0}))
    assert late != plain
    waits = np.frombuffer(late[5], np.float32)  # until the first command arrives
    assert waits == pytest.approx([0.1, 0.0, 0.05], abs=0.01)


def test_the_instruction_decides_what_is_asked_judged_and_demonstrated(scene: Path) -> None:
    text = SCENE.replace("to: goal", "to: $end").replace("to the goal", "to $end")
    text = text.replace("instruction: Push", "choices: {end: [goal, rail]}\ninstruction: Push")
    scene.write_text(text)
    world = SceneWorld(load_scene(scene))
    attempts = GymAttempts(GymWorld(lambda: world), 10, raw=True)
    ends = set()
    for seed in (*range(8), 0):
        attempts.reset(seed=seed)
        end = world.asked.demonstrator[-1]["to"]
        assert attempts.task == attempts.task_description == f"Push the ball to {end}"
        assert world.scene.told(seed)[1] == attempts.task
        world.data.qpos[:2] = world.state.place_m(end)[:2]
        assert world.success()
        world.data.qpos[:2] = world.state.place_m("rail" if end == "goal" else "goal")[:2]
        assert not world.success()
        Demonstrator(world)
        ends.add(end)
    assert ends == {"goal", "rail"}
    worded = said(scene, "instruction: Push the ball to the goal", "instruction: [This, That]")
    scene_as_read = load_scene(worded)
    assert {scene_as_read.told(seed) for seed in range(9)} == {(0, "This"), (0, "That")}


def test_other_words_for_a_task_are_told_only_where_they_are_asked_for(scene: Path) -> None:
    text = SCENE.replace("to: goal", "to: $end").replace(
        "instruction: Push the ball to the goal",
        "choices: {end: [goal, rail]}\n"
        "instruction: {seen: [To $end, At $end], unseen: [Shove it, $end]}",
    )
    scene.write_text(text)

    def told(level: str) -> list[str]:
        spec = WorldSpec(conditions={"instruction": level})
        world = GymWorld(lambda: SceneWorld(load_scene(scene)), spec)
        found = []
        for seed in range(12):
            world.reset(seed=seed)
            found.append(world.instruction)
        return found

    seen, unseen = told("seen"), told("unseen")
    assert seen == [load_scene(scene).told(seed)[1] for seed in range(12)]
    assert set(seen) == {f"{how} {end}" for how in ("To", "At") for end in ("goal", "rail")}
    assert set(unseen) == {"Shove it", "goal", "rail"}
    for one, other in zip(seen, unseen, strict=True):  # the same is asked for
        assert other in ("Shove it", one.split()[1])
    with pytest.raises(UnavailableError, match="no paraphrased words"):
        told("paraphrased")
    with pytest.raises(UnusableInputError, match="unsaid"):
        load_scene(
            said(
                scene, "instruction: Push the ball to the goal", "instruction: {seen: A, unsaid: B}"
            )
        )


@pytest.mark.parametrize("name", ["sort", "press", "sort_and_press", "soft"])
def test_the_tasks_that_ship_are_read_and_not_begun(name: str) -> None:
    world = SceneWorld(load_scene(Path(__file__).parents[2] / f"examples/tasks/{name}.yaml"))
    world.draws = False
    world.reset(seed=0)
    assert not world.success()
    Demonstrator(world)
    levels = ("seen",) if name == "soft" else ("seen", "paraphrased", "unseen")
    said_of = {level: {world.scene.told(seed, level)[1] for seed in range(40)} for level in levels}
    assert sum(map(len, said_of.values())) == len(set().union(*said_of.values()))


def test_a_soft_thing_that_touches_is_no_other_body(scene: Path) -> None:
    """Its contacts have no geom; -1 was read as the last geom of the model, which is the arm's."""
    bench = BENCH.replace(
        'option timestep="0.004"', 'option timestep="0.002" integrator="discrete"'
    )
    cloth = """<flexcomp name="cloth" type="grid" count="4 4 1" spacing="0.02 0.02 0.02" dim="2"
      pos="0.3 0 0.065" radius="0.002" mass="0.01"><edge equality="true"/></flexcomp>"""
    (scene.parent / "bench.xml").write_text(
        bench.replace('<site name="zone"', cloth + '<site name="zone"')
    )
    world = SceneWorld(load_scene(said(scene, "y_m: -0.1", "y_m: 0")))
    world.reset(seed=0)
    for _ in range(8):
        world.step(world.rest_action)
    assert (world.data.contact.geom[: world.data.ncon] < 0).any()
    assert world.state.touching("ball") <= {0}
    assert not world.state.touching("hand")


def test_the_example_is_read_and_its_names_exist() -> None:
    world = SceneWorld(load_scene(Path(__file__).parents[2] / "examples/scene/scene.yaml"))
    world.draws = False
    world.reset(seed=0)
    assert world.joint_names[-1] == "gripper"
    assert not world.success()
    Demonstrator(world)


def demonstrated(scene: Path, seed: int) -> Demonstration:
    """Return what the waypoints do on one scene, as it would be recorded."""
    world = SceneWorld(load_scene(scene))
    world.reset(seed=seed)
    driver, goals = Demonstrator(world), list[Any]()
    while not driver.done:
        goals.append(world.joints_of(driver(None)))
        world.step(world.action_of(goals[-1]))
    return show(world, f"of {seed}", seed, np.array(goals))


def test_a_demonstration_is_replayed_as_it_was_sent_where_nothing_has_moved(scene: Path) -> None:
    shown = demonstrated(scene, 3)
    assert shown.succeeded
    world = SceneWorld(load_scene(scene))
    world.reset(seed=3)
    driver = Replayed(world, [shown])
    for goal in shown.goals:
        assert (driver(None) == world.action_of(goal)).all()
        world.step(world.action_of(goal))
    assert driver.done


@pytest.mark.members(2)
@pytest.mark.parametrize("seed", range(4, 10))
def test_a_demonstration_is_carried_over_to_where_things_are_now(scene: Path, seed: int) -> None:
    """It touches the thing where it was shown to, and ends where it was shown to end."""
    shown = demonstrated(scene, 3)
    world = SceneWorld(load_scene(scene))
    world.reset(seed=seed)
    began_m = world.state.place_m("ball").copy()
    driver, tools, won = Replayed(world, [shown]), list[Any](), False
    while not driver.done:
        world.step(driver(None))
        won = won or world.success()
        tools.append(world.data.site("tip").xpos.copy())
    touches, ends = shown.parts[0], shown.tool_m[-1]
    assert (touches.thing, touches.start) == (0, 0)
    wanted_m = shown.tool_m[touches.end - 1] - touches.at_m + began_m
    assert min(np.linalg.norm(t - wanted_m) for t in tools) < 0.01
    assert tools[-1] == pytest.approx(ends, abs=0.02)
    assert np.abs(np.diff(tools, axis=0)).max() < 0.02  # no leaps on the way
    assert won


def test_the_demonstration_whose_things_have_moved_least_is_taken(scene: Path) -> None:
    shown = [demonstrated(scene, seed) for seed in (3, 4, 5)]
    world = SceneWorld(load_scene(scene))
    places = [one.parts[0].at_m for one in shown]
    for seed in range(6, 16):
        world.reset(seed=seed)
        away_m = [np.linalg.norm(world.state.place_m("ball") - at_m) for at_m in places]
        assert Replayed(world, shown).shown is shown[int(np.argmin(away_m))]


@pytest.mark.parametrize(
    ("shape", "turn_deg", "least_deg"),
    [
        ('type="box" size=".02 .02 .05"', 80, -10),
        ('type="box" size=".02 .05 .02"', 170, -10),
        ('type="box" size=".02 .05 .02"', 80, 80),
        ('type="cylinder" size=".02 .05"', 80, 0),
        ('size=".03"', 170, 0),
    ],
)
def test_a_hand_turns_no_further_than_a_thing_s_shape_asks(
    scene: Path, shape: str, turn_deg: float, least_deg: float
) -> None:
    bench = scene.parent / "bench.xml"
    bench.write_text(
        BENCH.replace('<geom size="0.03" mass="0.05"/>', f'<geom {shape} mass=".05"/>')
    )
    world = SceneWorld(load_scene(scene))
    world.reset(seed=3)
    at_m, yaw_rad = place_of(world, "ball")
    part = Part(0, 1, 0, at_m, yaw_rad - np.radians(turn_deg))
    nothing = np.array([world.home])
    shown = Demonstration("", nothing, np.zeros((1, 3)), np.eye(3)[None], [part], succeeded=True)
    found = Replayed(world, [shown])._carried(part)
    assert found is not None
    assert np.degrees(found.turn_rad) == pytest.approx(least_deg, abs=1e-6)

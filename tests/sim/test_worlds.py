"""Worlds of others: what is found in them, gaps in them, and nothing of those left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.twin import Randomisation, Range
from gaploop.sim.gaps import MECHANISMS, MODULES
from gaploop.sim.lerobot_worlds import GymAttempts
from gaploop.sim.randomise import preset
from gaploop.sim.roles import find_model, find_roles, survey
from gaploop.sim.world import GymWorld, World, WorldSpec, shows_scenes_in_turn

MJCF = """
<mujoco>
  <option timestep="0.004" noslip_iterations="2"/>
  <worldbody>
    <light name="sun" pos="0 0 2" dir="0 0 -1"/>
    <camera name="side" pos="0.8 0 0.6" xyaxes="0 1 0 -0.6 0 0.8"/>
    <body name="bench"><geom type="box" size="0.5 0.5 0.02" pos="0 0 -0.02"/></body>
    <body name="brick" pos="0.3 0 0.02">
      <freejoint/>
      <geom type="box" size="0.02 0.02 0.02" mass="0.05" rgba="0.2 0.6 0.2 1"/>
    </body>
    <body name="post" pos="0 0 0.2">
      <joint name="turn" axis="0 0 1" range="-2 2" limited="true" damping="1"/>
      <geom type="capsule" size="0.02" fromto="0 0 0 0.15 0 0" mass="0.3"/>
      <body name="elbow" pos="0.15 0 0">
        <joint name="bend" axis="0 1 0" range="-2 2" limited="true" damping="1"/>
        <geom type="capsule" size="0.02" fromto="0.03 0 0 0.13 0 0" mass="0.2"/>
        <body name="left" pos="0.15 0.02 0">
          <joint name="left_finger" type="slide" axis="0 1 0" range="0 0.02" limited="true"/>
          <geom name="left_pad" type="box" size="0.02 0.005 0.01" mass="0.02"/>
        </body>
        <body name="right" pos="0.15 -0.02 0">
          <joint name="right_finger" type="slide" axis="0 -1 0" range="0 0.02" limited="true"/>
          <geom name="right_pad" type="box" size="0.02 0.005 0.01" mass="0.02"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="turn" kp="30"/><position joint="bend" kp="30"/>
    <position joint="left_finger" kp="50"/><position joint="right_finger" kp="50"/>
  </actuator>
</mujoco>
"""


class Bench(gym.Env[dict[str, Any], NDArray[Any]]):
    """An environment as others write them: servo goals in, joint angles and a picture out."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    camera_name = "side"
    motors = True

    def __init__(self) -> None:
        text = MJCF if self.motors else MJCF.replace("<position", "<motor").replace("kp=", "gear=")
        self.model = mujoco.MjModel.from_xml_string(text)
        self.data = mujoco.MjData(self.model)
        self.dt = 0.04
        self.render_mode = "rgb_array"
        self.action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.observation_space = gym.spaces.Dict({})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        del options
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:2] += self.np_random.uniform(-0.05, 0.05, 2)
        mujoco.mj_forward(self.model, self.data)
        return self._get_obs(), {}

    def step(self, action: NDArray[Any]) -> Any:
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, nstep=10)
        won = bool(self.data.body("brick").xpos[2] > 0.1)
        return self._get_obs(), 0.0, False, False, {"success": won}

    def _get_obs(self) -> dict[str, Any]:
        # What a camera shows of the model, without the time that drawing takes.
        model = self.model
        shown = np.concatenate([model.light_diffuse.ravel(), model.cam_pos.ravel()])
        picture = np.zeros((6, 8, 3), np.uint8)
        picture[:, :4] = 200
        picture[0, 0] = np.clip(shown[:3] * 255, 0, 255)
        picture[0, 1] = np.clip(np.abs(shown[-3:]) * 100, 0, 255)
        picture[0, 2, 0] = model.nbody
        joints = self.data.qpos[-4:].astype(np.float64)
        return {"state": np.concatenate([joints, self.data.qpos[:3]]), "pixels": picture}

    def render(self) -> Any:
        return self._get_obs()["pixels"]


class AnewBench(Bench):
    """As robosuite does: each episode has a model of its own."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.model = mujoco.MjModel.from_xml_string(MJCF)
        self.data = mujoco.MjData(self.model)
        return super().reset(seed=seed, options=options)


class Hidden(gym.Env[dict[str, Any], NDArray[Any]]):
    """Passes on to an environment that lies in a dictionary, two proxies deep."""

    metadata = Bench.metadata

    def __init__(self) -> None:
        inner = Proxy(Proxy(Bench()))
        self.parts = {"numbers": [1.0] * 5, "backend": [None, inner]}
        self.action_space, self.observation_space = inner.action_space, inner.observation_space
        self.reset, self.step, self.render = inner.reset, inner.step, inner.render


class Proxy:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_inner"), name)


class TorqueBench(Bench):
    motors = False


class ScaledBench(Bench):
    """As Adroit's hand: its servos are sent a share of where they go, from another zero."""

    def __init__(self) -> None:
        super().__init__()
        self.model.actuator_gainprm[:, 0] *= 2.5
        self.model.actuator_biasprm[:, 0] = -0.5

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen = super().reset(seed=seed, options=options)
        self.data.ctrl[:] = self._sent(np.zeros(4))
        return seen

    def step(self, action: NDArray[Any]) -> Any:
        return super().step(self._sent(action))

    def _sent(self, goal: NDArray[Any]) -> NDArray[Any]:
        gain, (at_0, stiff) = self.model.actuator_gainprm[:, 0], self.model.actuator_biasprm.T[:2]
        return np.asarray((-stiff * goal - at_0) / gain)


class Slides(Bench):
    """As a point in a maze: pushed along two slides, and nothing turns."""

    def __init__(self) -> None:
        super().__init__()
        self.model = mujoco.MjModel.from_xml_string(
            """<mujoco><worldbody><light/><body><joint name="x" type="slide" axis="1 0 0"/>
            <joint name="y" type="slide" axis="0 1 0"/><geom size=".1"/></body></worldbody>
            <actuator><motor joint="x"/><motor joint="y"/></actuator></mujoco>"""
        )
        self.data = mujoco.MjData(self.model)

    def step(self, action: NDArray[Any]) -> Any:
        self.data.ctrl[:] = action[:2]
        mujoco.mj_step(self.model, self.data, nstep=10)
        return self._get_obs(), 0.0, False, False, {"success": False}

    def _get_obs(self) -> dict[str, Any]:
        drawn = np.random.default_rng(0).integers(0, 255, (6, 8, 3)).astype(np.uint8)
        return {"state": self.data.qpos.copy(), "pixels": drawn}


class Gantry(Bench):
    """Two slides carry the arm; the second has no limits."""

    def __init__(self) -> None:
        super().__init__()
        slides = """<body name="rail"><joint name="x" type="slide" axis="1 0 0" range="0 1"
            limited="true" damping="20"/><geom size=".01" mass=".2" contype="0" conaffinity="0"/>
            <body name="lift"><joint name="z" type="slide" axis="0 0 1" damping="20"/>
            <geom size=".01" mass=".2" contype="0" conaffinity="0"/><body name="post" """
        text = MJCF.replace('<body name="post" ', slides).replace(
            "</worldbody>", "</body></body></worldbody>"
        )
        driven = '<actuator><position joint="x" kp="900"/><position joint="z" kp="900"/>'
        self.model = mujoco.MjModel.from_xml_string(text.replace("<actuator>", driven))
        self.data = mujoco.MjData(self.model)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (6,), np.float32)

    def _get_obs(self) -> dict[str, Any]:
        return {**super()._get_obs(), "state": self.data.qpos[-6:].copy()}


class NestedBench(Bench):
    """As metaworld does in places: what moves freely has its shape in a body of its own."""

    def __init__(self) -> None:
        super().__init__()
        spec = mujoco.MjSpec.from_string(MJCF)
        brick = spec.body("brick")
        spec.delete(brick.geoms[0])
        brick.add_body(name="inside").add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.02] * 3)
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)


def episode(env: gym.Env[Any, Any], seed: int = 3) -> list[bytes]:
    """Return all that an episode shows."""
    rng, seen = np.random.default_rng(1), []
    observation, _ = env.reset(seed=seed)
    for _ in range(15):
        seen.append(observation["state"].tobytes() + observation["pixels"].tobytes())
        action = rng.uniform(-1, 1, 4).astype(np.float32)
        observation, *_ = env.step(action)
    return seen


@pytest.fixture(scope="module")
def plain() -> list[bytes]:
    return episode(Bench())


@pytest.fixture(scope="module")
def can() -> dict[str, str]:
    return dict(GymWorld(Bench).parameters())


def test_a_model_is_found_however_deep_it_lies() -> None:
    env = Hidden()
    model, data = find_model(env)
    assert model is not None
    assert data is not None
    assert data.qpos.shape == (model.nq,)
    assert not GymWorld(Hidden).parameters()["actuator_response.latency"]


class Planned(Bench):
    """Keeps a second state, to plan with."""

    def __init__(self) -> None:
        super().__init__()
        state = self.__dict__.pop("data")
        self.planned, self.data = mujoco.MjData(self.model), state


def _as_tensors(seen: Any) -> Any:
    import torch

    return torch.as_tensor(seen["state"][None], dtype=torch.float64)


def _channels_first(seen: Any) -> Any:
    return {**seen, "pixels": seen["pixels"].transpose(2, 0, 1)}


def _rgba(seen: Any) -> Any:
    return {**seen, "pixels": np.dstack([seen["pixels"], np.full((6, 8, 1), 255, np.uint8)])}


def _numbers_apart(seen: Any) -> Any:
    """Single numbers of three kinds, rows, and what is neither."""
    state = seen["state"]
    single = {
        "turn": float(state[0]),
        "bend": np.float64(state[1]),
        "finger": state[2:3].reshape(()),
    }
    rest = {
        "places": [float(state[3]), state[4:][None].T],
        "task": "lift",
        "depth": np.ones((20, 16)),
    }
    return {**single, **rest, "pixels": seen["pixels"][..., 0]}


@dataclass(slots=True)
class Backend:
    model: Any
    data: Any
    __unset: Any = field(init=False)


class Slotted(Bench):
    """Keeps its model in an object without a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = Backend(vars(self).pop("model"), vars(self).pop("data"))

    def __getattr__(self, name: str) -> Any:
        if name in ("model", "data"):
            return getattr(vars(self)["backend"], name)
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (Bench, lambda seen: (seen["state"][:2], seen["state"][2:])),
        (Bench, _as_tensors),
        (Bench, _channels_first),
        (Bench, _rgba),
        (Bench, _numbers_apart),
        (Bench, lambda seen: {**seen, "pixels": seen["pixels"].mean(2).astype(np.uint8)[None]}),
        (Slotted, lambda seen: seen),
        (Planned, lambda seen: seen),
    ],
)
def test_what_others_show_is_read_however_they_show_it(kind: type[Bench], shown: Any) -> None:
    """Tuples and batches of one were datasets without a state; a plan's state was the arm's.

    Single numbers and rows were left out, and grey and RGBA pictures, all in silence.
    """

    class Shown(gym.ObservationWrapper[Any, Any, Any]):
        def observation(self, observation: Any) -> Any:
            return shown(observation)

    def make() -> Any:
        return Shown(kind())

    known = survey(make())
    assert known is not None
    assert {r.joint for r in known.readings} == {0, 1}
    drift = {"sensor_noise.encoder_drift": 0.8, "visual_domain.exposure": 1.0}
    plain, gapped = (GymAttempts(GymWorld(make, WorldSpec(gaps=g)), 20) for g in ({}, drift))
    seen, other = (attempts.reset(seed=0)[0] for attempts in (plain, gapped))
    if isinstance(seen["pixels"], dict):
        seen, other = ({**s, "pixels": next(iter(s["pixels"].values()))} for s in (seen, other))
    assert seen["agent_pos"].shape == (7,)
    assert seen["pixels"].shape == (6, 8, 3)
    for name in ("agent_pos", "pixels"):
        assert seen[name].shape == other[name].shape
        assert not np.array_equal(seen[name], other[name])


@pytest.mark.parametrize(
    ("action", "words"),
    [([np.nan] * 4, "The policy sent .*nan.* at step 1"), (None, "The policy sent .*nan")],
)
def test_what_is_no_action_is_refused(action: Any, words: str) -> None:
    """A policy of NaN was one that ran out of time, and MuJoCo's steps were blamed."""
    attempts = GymAttempts(GymWorld(Bench), 20, raw=True)
    attempts.reset(seed=0)
    with pytest.raises(UnusableInputError, match=words):
        attempts.step(action)


def test_actions_and_observations_that_are_no_vectors_are_refused() -> None:
    class Parts(Bench):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.Dict({"arm": self.action_space})  # type: ignore[assignment]

    with pytest.raises(UnusableInputError, match="not one vector"):
        GymAttempts(GymWorld(Parts), 20, raw=True)

    class Blind(Bench):
        render_mode = None

        def _get_obs(self) -> Any:
            return {"scene": np.zeros((20, 30)), "step": "3"}

        def render(self) -> Any:
            return None

    with pytest.raises(UnusableInputError, match="neither numbers nor pictures"):
        GymAttempts(GymWorld(Blind), 20)


@pytest.mark.parametrize(
    ("others", "state"),
    [
        ({"puck": np.arange(4.0)}, [0.0, 1.0, 2.0, 3.0]),
        ({"environment_state": np.ones(2), "more": {"puck": np.full(1, 5.0)}}, [1.0, 1.0, 5.0]),
        ({"wrist": np.zeros((6, 8, 3), np.uint8)}, None),
        ({"pixels": np.zeros((6, 8, 3), np.uint8), "puck": np.full(1, 5.0)}, [5.0]),
        ({}, [7.0, 8.0]),
    ],
)
def test_what_stands_beside_agent_pos_is_shown_too(
    others: dict[str, Any], state: list[float] | None
) -> None:
    """Of {agent_pos, puck} the puck was lost in silence, and demonstrations taught nothing."""

    class Beside(Bench):
        def __init__(self) -> None:
            super().__init__()
            self.render_mode: Any = None

        def _get_obs(self) -> Any:
            return {"agent_pos": np.array([7.0, 8.0]), **others}

    attempts = GymAttempts(GymWorld(Beside), 20)
    seen, _ = attempts.reset(seed=0)
    assert seen["agent_pos"].tolist() == [7.0, 8.0]
    assert seen.get("environment_state", np.zeros(0)).tolist() == (state or [])
    assert ("pixels" in seen) == bool({"pixels", "wrist"} & set(others))
    assert set(seen) == set(attempts.observation_space.spaces)  # type: ignore[attr-defined]
    assert attempts.step(np.zeros(4))[0].keys() == seen.keys()


def test_a_wrapped_environment_is_a_world() -> None:
    world = GymWorld(Bench)
    assert isinstance(world, World)
    world.reset(0)
    world.step(np.zeros(4))
    assert not world.success()


@pytest.mark.parametrize(("per_rad", "units"), [(1.0, "rad"), (180.0 / np.pi, "deg"), (3.0, "")])
def test_units_of_joints_are_found_by_moving_them(per_rad: float, units: str) -> None:
    class Shown(Bench):
        def _get_obs(self) -> dict[str, Any]:
            return {"agent_pos": self.data.qpos[-4:-2] * per_rad}

    assert GymWorld(Shown).units == units


def test_roles_are_found_without_a_file() -> None:
    env = Bench()
    env.reset(seed=0)
    words = find_roles(env.model, env.data).words(env.model)
    assert words == {
        "arm": "turn, bend",
        "gripper": "right_finger, left_finger",
        "object": "brick",
        "table": "bench",
        "cameras": "side",
    }


@pytest.mark.parametrize("wheels", ["velocity kv='9'", "motor", "position kp='9'"])
def test_a_base_on_wheels_is_no_part_of_the_arm_that_it_carries(wheels: str) -> None:
    """Its turning counted as the arm's first joint: "no position servos drive its arm"."""
    names = [f"j{k}" for k in range(4)]
    links = "".join(
        f'<body><joint name="{n}" axis="0 {k % 2} {1 - k % 2}"/><geom size=".02" pos="0 0 .1"/>'
        for k, n in enumerate(names)
    )
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><joint name="yaw" axis="0 0 1"/><geom size=".1"/>'
        f"{links}{'</body>' * 5}</worldbody><actuator><{wheels} joint='yaw'/>"
        + "".join(f'<position joint="{n}" kp="9"/>' for n in names)
        + "</actuator></mujoco>"
    )
    arm = find_roles(model, mujoco.MjData(model)).words(model)["arm"]
    assert arm == ", ".join(names if "kv" in wheels or wheels == "motor" else ["yaw", *names])


@pytest.mark.parametrize("apart", [True, False])
def test_two_arms_that_are_alike_are_both_the_arm(apart: bool) -> None:
    """ALOHA's right one alone was taken, and gaps acted on it alone."""
    bench = mujoco.MjSpec.from_string(MJCF)
    torso = bench.worldbody
    if not apart:
        bench.delete(bench.body("post"))
        torso = torso.add_body(name="torso")
    for side in ["far "] if apart else ["near ", "far "]:
        arm = mujoco.MjSpec.from_string(MJCF)
        torso.add_frame(pos=[0.0, 0.5, 0.0]).attach_body(arm.body("post"), side, "")
    model = bench.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    found = find_roles(model, data)
    assert len(found.arm) == len(found.gripper) == 4
    assert [len(hand) for hand in found.hands] == [2, 2]
    assert "arm" not in found.doubts
    jaw = model.joint(found.gripper[0]).name
    own = find_roles(model, data, jaw=jaw)  # a scene's file names the gripper of one
    assert own.arm == found.arm[:2]
    assert own.gripper == found.gripper[:2]


def test_a_picture_that_is_called_as_a_camera_is_that_cameras() -> None:
    class Shown(Bench):
        camera_name = ""

        def __init__(self) -> None:
            super().__init__()
            spec = mujoco.MjSpec.from_string(MJCF)
            spec.worldbody.add_camera(name="top")
            self.model = spec.compile()
            self.data = mujoco.MjData(self.model)
            picture = gym.spaces.Box(0, 255, (6, 8, 3), np.uint8)
            self.observation_space = gym.spaces.Dict({"pixels": gym.spaces.Dict({"top": picture})})

    known = survey(Shown())
    assert known is not None
    assert known.roles.words(known.model)["cameras"] == "top"


def test_roles_in_doubt_are_asked_for_and_taken_from_a_file(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(
        MJCF.replace("</worldbody>", "<body name='other' pos='0 .3 .02'><freejoint/>"
                     "<geom size='.02'/></body></worldbody>")
    )  # fmt: skip
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert find_roles(model, data).doubts["object"] == "one of brick, other"
    file = tmp_path / "roles.yaml"
    file.write_text("object: other\n")
    assert find_roles(model, data, file=file).words(model)["object"] == "other"
    file.write_text("object: bric\n")
    with pytest.raises(UnusableInputError, match="Did you mean 'brick'"):
        find_roles(model, data, file=file)


def test_what_a_file_says_is_in_no_doubt_and_what_there_is_can_be_named(tmp_path: Path) -> None:
    """A named arm stayed in doubt, a camera was to be named of a model that has none."""
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body name="door"><joint/><geom size=".1"/></body>
        <body><joint name="a" type="slide"/><geom size=".1"/></body></worldbody>
        <actuator><motor joint="a"/></actuator></mujoco>"""
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    doubts = find_roles(model, data, cameras=()).doubts
    assert doubts["cameras"] == "the model has none"
    assert doubts["object"] == "nothing in it moves freely: name a body, such as door"
    (file := tmp_path / "roles.yaml").write_text("arm: [a]\ngripper: []\n")
    found = find_roles(model, data, file=file)
    assert not found.doubts.keys() & {"arm", "gripper"}
    assert found.words(model)["gripper"] == "there is none"


def test_severity_zero_is_the_environment_to_the_bit(plain: list[bytes]) -> None:
    spec = WorldSpec(gaps={m.key: 0.0 for m in MECHANISMS})
    world = GymWorld(Bench, spec)
    assert episode(world) == plain
    world.parameters()  # looks inside, and moves the arm
    assert episode(world) == plain
    assert mujoco.get_mjcb_control() is None


@pytest.mark.members(12)
@pytest.mark.parametrize("key", [m.key for m in MECHANISMS])
def test_every_gap_acts_repeats_and_leaves_nothing_behind(
    key: str, plain: list[bytes], can: dict[str, str]
) -> None:
    """A gap that isn't possible here is refused with what is missing."""
    if can[key]:
        with pytest.raises(UnusableInputError, match="can't be set here"):
            GymWorld(Bench, WorldSpec(gaps={key: 1.0}))
        return
    world = GymWorld(Bench, WorldSpec(gaps={key: 1.0}, gap_seed=1))
    first = episode(world)
    assert episode(world) == first
    quiet = ("slippery", "soft", "sticky", "similar", "occluder")
    if not key.endswith(quiet):  # those need a touch, or a real picture, to show
        assert first != plain
    assert mujoco.get_mjcb_control() is None
    assert episode(Bench()) == plain


def test_a_gap_that_can_be_had_acts_where_hardly_anything_is_found() -> None:
    """Zeros of joints could be off where no joint was known, and nothing changed."""
    plain, can = episode(Slides()), GymWorld(Slides).parameters()
    for key in (key for key, why in can.items() if not why):
        assert episode(GymWorld(Slides, WorldSpec(gaps={key: 1.0}))) != plain, key


@pytest.mark.parametrize("name", ["latency", "backlash", "slow"])
def test_servos_that_are_sent_a_share_of_where_they_go_are_servos(name: str) -> None:
    """Of Adroit's, which are sent 0.4 of it, `doctor` said that no position servos drive it."""
    spec, states = WorldSpec(gaps={f"actuator_response.{name}": 0.7}), []
    for make in (Bench, ScaledBench):
        world = GymWorld(make, spec)
        world.reset(seed=3)
        rng = np.random.default_rng(0)
        free = np.array([0.3, 0.3, 0.02, 0.02])  # of contact, where a rounding would grow
        moves = [world.step(free * rng.uniform(0, 1, 4))[0]["state"] for _ in range(15)]
        states.append(moves)
    assert np.array(states[1])[:, :4] == pytest.approx(np.array(states[0])[:, :4], abs=1e-6)


def test_slides_of_an_arm_have_gaps_in_proportion_to_their_range() -> None:
    """They were no joints of an arm, so that a rail was never late, and its zero never off."""
    known = survey(Gantry())
    assert known is not None
    assert known.roles.words(known.model)["arm"] == "x, z, turn, bend"
    assert known.per_rad == pytest.approx([1 / np.pi, 0.2, 1, 1, 0.02 / np.pi, 0.02 / np.pi])
    assert {r.joint: r.per_rad for r in known.readings} == dict(enumerate(known.per_rad[:4]))

    def path(gaps: dict[str, float], parameters: Any = None) -> NDArray[Any]:
        world = GymWorld(Gantry, WorldSpec(gaps=gaps, parameters=parameters or {}))
        rows = [world.reset(seed=0)[0]["state"]]
        for k in range(15):
            rows.append(
                world.step(np.array([0.5, 0.1, 0.2, 0.2, 0.01, 0.01]) * (k < 8))[0]["state"]
            )
        return np.array(rows)

    plain = path({})
    for name in ("latency", "backlash", "slow", "weak"):
        moved = path({f"actuator_response.{name}": 0.8})
        assert np.abs(moved - plain)[:, :2].max(axis=0).min() > 0.002, name
    off = path({}, {"spatial_geometry.zero_offset": {"pan_rad": 0.1, "lift_rad": 0.1}})
    assert off[0, :2] == pytest.approx([0.1 / np.pi, 0.02])
    assert np.array_equal(off[0, 2:], plain[0, 2:])


def test_what_a_scene_lacks_is_said(can: dict[str, str]) -> None:
    ours = {mechanism.key for mechanism in MECHANISMS}  # another test may have added a module's
    assert {key for key, why in can.items() if why and key in ours} == {
        "actuator_response.heat",
        "actuator_response.lost_goals",  # of an arm with other joints than the cell's
        "contact_dynamics.sticky",
        "sensor_noise.camera_delay",
        "sensor_noise.force_drift",
        *(f"task_specification.{name}" for name in ("tolerance", "goal_offset", "alignment")),
        *(f"human_behavior.{name}" for name in ("nudge", "reach_in", "take")),
    }
    torque = GymWorld(TorqueBench).parameters()
    assert torque["actuator_response.backlash"] == "no position servos drive its arm"
    assert torque["actuator_response.latency"] == torque["actuator_response.weak"] == ""

    class Blind(Bench):
        def __init__(self) -> None:
            super().__init__()
            self.render_mode: Any = None

        def _get_obs(self) -> dict[str, Any]:
            return {"state": super()._get_obs()["state"]}

    blind = GymWorld(Blind).parameters()  # exposure could be had there, and changed nothing
    shown = {key for key in ours if blind[key] == "it shows no pictures"}
    assert shown == {f"visual_domain.{n}" for n in ("exposure", "colour_cast", "blur", "lens")} | {
        "sensor_noise.torn_frames"
    }
    nested = GymWorld(NestedBench).parameters()
    shapes = {nested[f"object_property.{name}"] for name in ("size", "elongated", "tall", "round")}
    assert shapes == {"its object's shape is that of a body inside it"}


def test_dead_time_is_a_share_of_the_period() -> None:
    """A command of the last period arrives in the next where the dead time is one period."""
    for make in (Bench, TorqueBench):
        world = GymWorld(make, WorldSpec(gaps={"actuator_response.latency": 1.0}))
        assert world.injected[0].parameters["latency_s"] == pytest.approx(0.52, rel=0.1)
        world.reset(seed=0)
        start = world.data.qpos[-4:-2].copy()
        moved = []
        for _ in range(20):
            world.step(np.array([1.0, 0.0, 0.0, 0.0], np.float32))
            moved.append(abs(world.data.qpos[-4] - start[0]))
        # 0.26 s of the cell, whose period is half as long: 13 periods.
        assert np.flatnonzero(np.array(moved) > 0.02)[0] in (12, 13, 14)


def test_what_is_measured_of_it_acts_as_the_gap_does() -> None:
    key = "actuator_response.latency"
    gapped = GymWorld(Bench, WorldSpec(gaps={key: 0.5}))
    twin = GymWorld(Bench, WorldSpec(parameters={key: gapped.injected[0].parameters}))
    gapped.reset(seed=3)
    twin.reset(seed=3)
    for action in np.random.default_rng(0).uniform(-1, 1, (15, 4)):
        assert gapped.step(action)[0]["state"] == pytest.approx(twin.step(action)[0]["state"])
    with pytest.raises(UnusableInputError, match="sticky can't be set here"):
        GymWorld(Bench, WorldSpec(parameters={"contact_dynamics.sticky": {"adhesion_n": 1.0}}))


def test_each_episode_is_drawn_anew_by_its_seed_and_from_what_the_scene_can_have(
    plain: list[bytes],
) -> None:
    world = GymWorld(Bench, WorldSpec(randomise=preset("all")))
    first, drawn = episode(world, 3), world.drawn
    assert "spatial_geometry.camera_pose" in drawn
    assert "visual_domain.table_top" not in drawn  # a texture of the embedded cell
    # In proportion to the scene: an object 1.6 times as large, a period twice as long.
    assert drawn["actuator_response.latency"]["latency_s"] <= 0.12
    assert episode(world, 4) != episode(Bench(), 4)
    assert world.drawn != drawn
    assert (episode(world, 3), world.drawn) == (first, drawn)
    assert episode(Bench()) == plain


class InTurn(Bench):
    """As metaworld does: whatever the seed, its scenes come in turn."""

    count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        del seed
        self.count += 1
        return super().reset(seed=self.count, options=options)


@pytest.mark.parametrize(
    "drawn",
    [
        Randomisation("late", (Range("actuator_response.latency.latency_s", 0.0, 0.1, "s"),)),
        Randomisation("full", (Range("environmental_complexity.clutter.count", 1.0, 3.0, "1"),)),
    ],
    ids=lambda ranges: str(ranges.name),
)
def test_scenes_that_come_in_turn_do_so_where_each_is_drawn_anew(drawn: Randomisation) -> None:
    """A twin in metaworld failed in 5 of 24, its gap in 15: all of its scenes were the first."""
    assert (shows_scenes_in_turn(InTurn), shows_scenes_in_turn(Bench)) == (True, False)
    asked = InTurn()
    scenes = [asked.reset(seed=k)[0]["state"][-3:] for k in range(4)]
    world = GymWorld(InTurn, WorldSpec(randomise=drawn))
    for k, scene in enumerate(scenes):
        np.testing.assert_array_equal(world.reset(seed=k)[0]["state"][-3:], scene)


@pytest.mark.parametrize("made", [Bench, AnewBench])
def test_every_picture_may_look_otherwise_and_nothing_else_does(
    made: type[Bench], plain: list[bytes]
) -> None:
    """The looks of a picture are undone before the next: else lamps dim from one to the other."""
    looks = replace(preset("LS+TX+OC+CP"), every="frame")
    world = GymWorld(made, WorldSpec(randomise=looks))
    first = episode(world)
    assert episode(world, 4) != first
    assert episode(world) == first
    picture = 6 * 8 * 3
    assert [s[:-picture] for s in first] == [s[:-picture] for s in plain]  # it moves the same
    assert len({s[-picture:] for s in first}) > 10
    seen, model = [], world.model
    for frame in (2, 7, 2):
        assert world._looks is not None
        world._looks.set(model, frame)
        texture = model.texture("gaploop_table")
        seen.append((model.light_pos.tobytes(), model.vis.headlight.ambient.tobytes(),
                     texture.data.tobytes(), model.cam_pos.tobytes()))  # fmt: skip
    assert seen[0] == seen[2]
    assert not any(a == b for a, b in zip(seen[0], seen[1], strict=True))
    world.close()
    assert episode(Bench()) == plain


def test_bodies_are_added_to_a_model_that_is_made_anew() -> None:
    world = GymWorld(AnewBench, WorldSpec(conditions={"distractors": 2}))
    assert episode(world) == episode(world)
    assert world.data.body("gaploop_box1").xpos[2] > 0.0


def test_a_larger_object_stands_on_the_table_and_is_touched() -> None:
    """The compiler's boxes about a body's geoms are stale after a change: touches were missed."""
    world = GymWorld(Bench, WorldSpec(conditions={"object": "huge_cube"}))
    world.reset(seed=0)
    for _ in range(10):
        world.step(np.zeros(4, np.float32))
    low, high = (0.0, 2 * 0.02 * 0.0195 / 0.0125)
    geom = world.model.body("brick").geomadr[0]
    centre = world.data.geom_xpos[geom][2]
    assert centre == pytest.approx((low + high) / 2, abs=1e-3)


def test_conditions_of_the_cell_alone_are_refused() -> None:
    with pytest.raises(UnusableInputError, match="background belongs to the embedded cell"):
        GymWorld(Bench, WorldSpec(conditions={"background": "grey"}))


CELL = ("arms", "cell", "expert", "recalibration", "scene", "tasks", "tracker")
WITHOUT = """
import importlib.util, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.removeprefix("gaploop.sim.") in sys.argv[1].split(","):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
spec = importlib.util.spec_from_file_location("worlds", sys.argv[2])
worlds = sys.modules["worlds"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worlds)
import gaploop.sim.scene_world
can = worlds.GymWorld(worlds.Bench).parameters()
gaps = {key: 0.5 for key, why in can.items() if not why}
worlds.episode(worlds.GymWorld(worlds.Bench, worlds.WorldSpec(gaps=gaps)))
print(len(gaps))
"""


def test_worlds_of_others_need_nothing_of_the_cell(can: dict[str, str]) -> None:
    """All gaps at once, with the cell's modules out of the way."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(CELL), __file__],
        env={**os.environ, MODULES: ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0)
    ours = {mechanism.key for mechanism in MECHANISMS}
    assert int(done.stdout) == sum(not why for key, why in can.items() if key in ours)


@pytest.fixture(autouse=True)
def no_callback_left() -> Iterator[None]:
    yield
    assert mujoco.get_mjcb_control() is None

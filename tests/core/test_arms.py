"""An arm is one file: what is written there is all that the others need."""

from __future__ import annotations

import time
from pathlib import Path

import mujoco
import numpy as np
import pytest
import serial

from gaploop.core import arms
from gaploop.core.arms import ARM_MODELS, ARMS, CELL_ARMS, DEFAULT, model_of
from gaploop.core.kinematics import ArmModel
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.servos import feetech
from gaploop.teleop.servos.calibration import turns_freely

MODEL = """
<mujoco><compiler angle='radian' autolimits='true'/><worldbody><body name='upper'>
<geom type='capsule' size='.01' fromto='0 0 0 .2 0 0'/>
<joint name='shoulder' axis='0 0 1' range='-1 1'/><body name='fore' pos='.2 0 0'>
<geom type='capsule' size='.01' fromto='0 0 0 .1 0 0'/>
<joint name='gripper' axis='0 0 1' range='0 1.5'/><site name='tcp' pos='.1 0 0'/>
</body></body></worldbody></mujoco>
"""
MODULE = """
from gaploop.core.arm import Arm, ArmSpec, GuardedPoint, ModelFile, ServoChain

CHAIN = ServoChain("feetech", ("sts3215", "sts3215"), first_id=4)
ARM = Arm(
    name="dinky",
    robot_types=("dinky_follower",),
    kinematics=ArmSpec(
        label="Dinky",
        model=ModelFile("dinky_models", "mjcf/dinky.xml", "pip install dinky-models"),
        points=(GuardedPoint("elbow", "fore"),),
        workspace_m=((0.0, 0.4), (-0.3, 0.3), (-0.1, 0.1)),
        gripper_percent_rad=(0.0, 1.5),
        half_range_rad={"shoulder": 1.5, "gripper": 0.75},
    ),
    stall_current_a=2.5,
    full_turn=frozenset({"shoulder"}),
    emulated={"follower": CHAIN, "leader": CHAIN},
)
"""


@pytest.fixture
def dinky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts one file among those of the arms, and takes it away again."""
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms" / "dinky.py").write_text(MODULE)
    model = tmp_path / "dinky_models" / "mjcf" / "dinky.xml"
    model.parent.mkdir(parents=True)
    (tmp_path / "dinky_models" / "__init__.py").touch()
    model.write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(arms, "__path__", [*arms.__path__, str(tmp_path / "arms")])
    monkeypatch.setitem(ARMS, "dinky", arms.find_arms()["dinky"])
    return model


def test_a_new_file_is_an_arm_with_kinematics(dinky: Path) -> None:
    assert ARM_MODELS["dinky"].mjcf == dinky
    assert model_of("dinky_follower") == model_of("dinky") == "dinky"
    assert ArmModel.load("dinky").joint_names == ("shoulder", "gripper")
    assert turns_freely("dinky_follower", "shoulder")
    assert not turns_freely("dinky_follower", "gripper")
    assert "dinky" not in CELL_ARMS


@pytest.mark.usefixtures("dinky")
def test_a_new_file_is_an_arm_that_is_emulated_and_driven() -> None:
    plan = arm_plan("dinky").calibrated()
    assert [(s.name, s.id) for s in plan.servos] == [("shoulder", 4), ("gripper", 5)]
    with (
        EmulatedBus(plan=plan, hand="none") as bus,
        serial.Serial(bus.port, 1_000_000, timeout=2) as port,
    ):
        goal = bus.servos[4].position_ticks + 300
        port.write(feetech.sync_write(42, 2, bytes((4,)) + goal.to_bytes(2, "little")))
        end_s = time.monotonic() + 120
        while abs(bus.servos[4].position_ticks - goal) > 5 and time.monotonic() < end_s:
            time.sleep(0.01)
        assert abs(bus.servos[4].position_ticks - goal) <= 5


def test_the_default_arm_comes_first_and_names_are_unique() -> None:
    assert next(iter(ARMS)) == next(iter(ARM_MODELS)) == next(iter(CELL_ARMS)) == DEFAULT
    types = [t for arm in ARMS.values() for t in arm.robot_types]
    assert len(set(types)) == len(types)


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if arm.emulated])
def test_servos_and_joints_of_an_emulated_arm_fit_together(name: str) -> None:
    joints = ArmModel.load(name).joint_names
    assert ARMS[name].emulated.keys() == {"follower", "leader"}
    for chain in ARMS[name].emulated.values():
        for values in (chain.models, chain.zero_ticks[: len(joints)]):
            assert len(values) == len(joints)
        assert chain.inverted <= set(joints)


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if arm.emulated])
def test_an_arm_s_weight_is_that_of_its_whole_model(name: str) -> None:
    """The kinematic model has no geometry; a body without inertia weighed a kilogram there."""
    arm = ArmModel.load(name)
    whole = mujoco.MjModel.from_xml_path(str(ARM_MODELS[name].mjcf))
    data, rng = mujoco.MjData(whole), np.random.default_rng(1)
    for _ in range(5):
        q = rng.uniform(*arm.joint_limits_rad.T)
        data.qpos[:], data.qvel[:] = arm.qpos(q), 0.0
        mujoco.mj_forward(whole, data)
        np.testing.assert_allclose(arm.weight_nm(q), -data.qfrc_bias[arm.dofs], atol=0.02)
        ways = [arm.points_m(q + d)[1] - arm.points_m(q - d)[1] for d in 1e-6 * np.eye(len(q))]
        np.testing.assert_allclose(arm.jacobian_m(q, 1), np.array(ways).T / 2e-6, atol=1e-6)

"""The cell as a gymnasium environment of LeRobot's: seeds, success, what lerobot-eval asks for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest

from gaploop.sim.catalogue import to_degrees
from gaploop.sim.expert import ScriptedLeader
from gaploop.sim.lerobot_env import GYM_ID, CellEnv, CellEnvConfig


@pytest.fixture(scope="module")
def env() -> Iterator[CellEnv]:
    made = gym.make(GYM_ID, disable_env_checker=True, max_steps=400)
    yield cast(CellEnv, made.unwrapped)
    made.close()


def test_equal_seeds_give_equal_scenes_and_none_the_next(env: CellEnv) -> None:
    first, _ = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    after, _ = env.reset()
    fourth, _ = env.reset(seed=4)
    picture = [seen["pixels"]["overhead"] for seen in (first, again, after, fourth)]
    assert np.array_equal(picture[0], picture[1])
    assert np.array_equal(picture[2], picture[3])
    assert not np.array_equal(picture[1], picture[2])
    assert env.observation_space.contains(first)


def test_an_attempt_that_succeeds_ends_in_success_and_one_that_stands_still_late(
    env: CellEnv,
) -> None:
    env.reset(seed=0)
    cell = env._cell
    expert = ScriptedLeader(cell, 0)
    expert.reset()
    ended: list[tuple[float, bool, bool, bool]] = []
    while not ended or not (ended[-1][1] or ended[-1][2]):
        goal = to_degrees(expert.read(cell.now_s).q_rad).astype(np.float32)
        _, reward, over, late, info = env.step(goal)
        ended.append((reward, over, late, info["is_success"]))
    assert ended[-1] == (1.0, True, False, True)
    assert not any(reward or success for reward, _, _, success in ended[:-1])
    seen, _ = env.reset(seed=1)
    for _ in range(400):
        _, _, over, late, info = env.step(seen["agent_pos"])
    assert (over, late, info["is_success"]) == (False, True, False)


def test_lerobot_makes_a_batch_of_it_by_its_name() -> None:
    from lerobot.envs.factory import make_env, make_env_config
    from lerobot.envs.utils import env_to_policy_features, preprocess_observation

    config = make_env_config("so101_cell", gaps={"object_property": 0.5}, image_size=96)
    assert isinstance(config, CellEnvConfig)
    assert set(env_to_policy_features(config)) == {
        "action", "observation.state", "observation.images.overhead"}  # fmt: skip
    (batch,) = make_env(config, n_envs=2)["so101_cell"].values()
    try:
        seen: Any = preprocess_observation(batch.reset(seed=[1, 2])[0])
        assert seen["observation.images.overhead"].shape == (2, 3, 96, 96)
        assert seen["observation.state"].shape == (2, 6)
        assert batch.call("_max_episode_steps") == (400, 400)
    finally:
        batch.close()


@pytest.mark.slow
def test_lerobot_eval_drives_the_packaged_base_in_it(tmp_path: Path) -> None:
    from gaploop.finetune.lerobot_policy import PACKAGED_BASE

    command = [
        str(Path(sys.executable).parent / "lerobot-eval"), f"--policy.path={PACKAGED_BASE}",
        "--env.discover_packages_path=gaploop.sim.lerobot_env", "--env.type=so101_cell",
        "--eval.n_episodes=2", "--eval.batch_size=1", "--policy.device=cpu",
        f"--output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=230)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "pc_success" in (tmp_path / "out" / "eval_info.json").read_text()

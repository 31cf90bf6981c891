"""A person's hand gives and takes: what it does is drawn by the seed, told, and can be met."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.rig import world_rig
from gaploop.core.errors import UnusableInputError
from gaploop.sim.demonstrators import Demonstrator
from gaploop.sim.scene_file import load_scene
from gaploop.sim.scene_world import SceneWorld

SCENES = Path(__file__).parents[2] / "examples" / "hand_over"


def world(name: str) -> SceneWorld:
    made = SceneWorld(load_scene(SCENES / f"{name}.yaml"))
    made.draws = False
    return made


def succeeds(made: SceneWorld, seed: int) -> bool:
    """Run the demonstrator; success has to hold for 0.3 s, as for an evaluation."""
    made.reset(seed=seed)
    drive, held = Demonstrator(made), 0
    for _ in range(made.max_steps):
        *_, info = made.step(drive(None))
        held = held + 1 if info["is_success"] else 0
        if held > 0.3 / made.period_s:
            return True
    return False


@pytest.mark.members(1)
@pytest.mark.parametrize("name", ["receive", "give"])
def test_one_after_the_other_has_the_block(name: str) -> None:
    assert succeeds(world(name), 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["receive", "give"])
def test_the_scripted_robot_manages_forty_of_fifty(name: str) -> None:
    made = world(name)
    assert sum(succeeds(made, seed) for seed in range(50)) >= 40


def test_equal_seeds_give_equal_hands_and_what_they_do_is_tagged() -> None:
    rig = world_rig(SCENES / "receive.yaml", gaps={}, conditions={})
    rig.scene.draws = False
    assert rig.conditions == {"human": "gives"}
    told = Counter(rig.drawn(seed)["hand"] for seed in range(40))
    assert set(told) == {"gives", "gives, hesitates", "gives, turns", "gives, hesitates, turns"}
    assert min(told.values()) >= 4

    def way(made: SceneWorld) -> np.ndarray:
        return np.array([
            [*made.data.mocap_pos[0], *made.data.mocap_quat[0]]
            for _ in range(150) if made.step(made.rest_action)
        ])  # fmt: skip

    alone, ways = world("receive"), {}
    for seed in (5, 6):
        rig.reset(seed)
        ways[seed] = way(rig.scene)
        alone.reset(seed=seed)
        assert np.array_equal(ways[seed], way(alone))
        turned = float(np.ptp(ways[seed][:, 6])) > 0.1
        assert turned == ("turns" in rig.drawn(seed)["hand"])
    assert not np.array_equal(ways[5], ways[6])
    rig.close()


def test_a_hand_keeps_a_block_that_nobody_takes() -> None:
    made = world("receive")
    made.reset(seed=1)
    for _ in range(200):
        made.step(made.rest_action)
    block, hand = made.data.body("block").xpos, made.data.mocap_pos[0]
    assert np.linalg.norm(block[:2] - hand[:2]) < 1e-3
    assert not made.success()


def test_a_partner_that_doesnt_fit_the_scene_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bench.xml").write_text((SCENES / "bench.xml").read_text())
    text = (SCENES / "receive.yaml").read_text()
    for old, new, fault in (
        ("gives: block", "gives: blok", "blok"),
        ("hand: hand", "hand: table", "mocap body"),
        ("gives: block", "gives: block\n  takes: block", "one of gives and takes"),
        ("z_m: [0.025, 0.05]", "z_m: [1, 2, 3]", "low, high"),
    ):
        assert old in text
        path = tmp_path / "scene.yaml"
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(UnusableInputError, match=fault):
            SceneWorld(load_scene(path))

"""The law of layered drawing: to the bit what the plain renderer draws, whatever moves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import mujoco
import numpy as np
import pytest
from tests.sim.test_worlds import Bench

from benchmarks import blind_gaps
from gaploop.sim import scene
from gaploop.sim.camera import LayeredCamera, set_offscreen
from gaploop.sim.catalogue import SO101
from gaploop.sim.cell import SimCell
from gaploop.sim.gaps import MECHANISMS, add_mechanisms
from gaploop.sim.gaps.mechanism import UnavailableError
from gaploop.sim.world import GymWorld, WorldSpec

add_mechanisms(blind_gaps.__name__)

SIZE_PX = 64
SEEN = ("spatial_geometry", "object_property", "visual_domain", "environmental_complexity",
        "human_behavior")  # fmt: skip
CELLS = [
    ("pick_place", {}), ("pick_lift", {}), ("stack_cube", {}),
    *(("pick_place", {f"{m.dimension.value}.{m.name}": 1.0})
      for m in (*MECHANISMS, *blind_gaps.MECHANISMS) if m.dimension.value in SEEN),
]  # fmt: skip


@pytest.mark.members(4)
@pytest.mark.parametrize(("task", "gaps"), CELLS, ids=lambda value: str(value))
def test_layers_draw_what_the_plain_renderer_draws(task: str, gaps: Mapping[str, float]) -> None:
    rng = np.random.default_rng(1)
    with SimCell(task, gaps=gaps, gap_seed=2, image_size=SIZE_PX) as cell:
        model, data = cell.model, cell.data
        layers = LayeredCamera(model, scene.CAMERA_NAME, SIZE_PX, SIZE_PX)
        set_offscreen(model, SIZE_PX, SIZE_PX)
        with mujoco.Renderer(model, SIZE_PX, SIZE_PX) as plain:
            cell.reset(0)
            layers.forget()
            for _ in range(3):
                cell.command(np.asarray(SO101.home_q_rad) + rng.normal(0.0, 0.5, 6))
                cell.advance(0.3)
                plain.update_scene(data, scene.CAMERA_NAME)
                expected = plain.render()
                assert np.array_equal(layers.draw(data), expected)
                assert np.array_equal(layers.draw_whole(data), expected)
        layers.close()


def test_what_stands_still_is_drawn_anew_after_a_change() -> None:
    with SimCell(image_size=SIZE_PX) as cell:
        cell.reset(0)
        layers = LayeredCamera(cell.model, scene.CAMERA_NAME, SIZE_PX, SIZE_PX)
        before = layers.draw(cell.data)
        cell.model.light("key").diffuse[:] *= 0.2
        assert np.array_equal(layers.draw(cell.data)[0, 0], before[0, 0])
        layers.forget()
        assert layers.draw(cell.data)[0, 0].sum() < before[0, 0].sum()
        cell.model.geom("object").rgba[3] = 0.5  # what is behind it is seen through it
        layers.forget()
        set_offscreen(cell.model, SIZE_PX, SIZE_PX)
        with mujoco.Renderer(cell.model, SIZE_PX, SIZE_PX) as plain:
            plain.update_scene(cell.data, scene.CAMERA_NAME)
            assert np.array_equal(layers.draw(cell.data), plain.render())
        layers.close()


LEFT_OPEN = """
import tempfile
folder = tempfile.TemporaryDirectory()
from gaploop.sim.cell import SimCell
cell = SimCell(image_size=16)
cell.frame()
"""


def test_a_cell_that_is_left_open_ends_in_silence() -> None:
    """What asked for its end before EGL did had the renderer freed after it: EGL_BAD_DISPLAY."""
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class SeenBench(Bench):
    """A wrapped environment whose picture is large enough to look at."""

    def render(self) -> Any:
        return np.zeros((SIZE_PX, SIZE_PX, 3), np.uint8)


class Blind(gym.Env[Any, Any]):
    """An environment without MuJoCo."""

    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        return np.zeros(2, np.float32), {}

    def step(self, _action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


def _photos(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Make two photos of rooms, smooth in lines, of different light; return name to RGB."""
    made = {}
    for name, channel in (("blue.png", 0), ("green.png", 1)):
        photo = np.full((SIZE_PX, 2 * SIZE_PX, 3), 40, np.uint8)
        photo[..., channel] = 200
        cv2.imwrite(str(folder / name), photo)
        made[name] = photo[0, 0, ::-1]
    return made


def test_the_cell_stands_before_a_photo_that_its_seed_draws(tmp_path: Path) -> None:
    made = _photos(tmp_path)
    with SimCell(image_size=SIZE_PX, conditions={"backdrop": str(tmp_path)}) as cell:
        names = set()
        for seed in range(8):
            cell.reset(seed)
            photo = cell.photo(seed)
            assert photo is not None
            names.add(photo.name)
            picture = cell.frame().image
            share = np.all(picture == made[photo.name], axis=-1).mean()
            assert 0.4 < share < 0.97  # the room, but arm and things
            assert (picture[..., 0] > 2 * picture[..., 1].clip(50)).any()  # the red cube
        assert names == set(made)


def test_a_wrapped_environment_stands_before_a_photo(tmp_path: Path) -> None:
    made = _photos(tmp_path)
    spec = WorldSpec(conditions={"backdrop": str(tmp_path / "blue.png")})
    world = GymWorld(SeenBench, spec)
    world.reset(seed=0)
    room = np.all(world.render() == made["blue.png"], axis=-1)
    assert 0.3 < room.mean() < 1.0
    world.close()


def test_a_world_without_a_model_says_so(tmp_path: Path) -> None:
    _photos(tmp_path)
    world = GymWorld(Blind, WorldSpec(conditions={"backdrop": str(tmp_path)}))
    with pytest.raises(UnavailableError, match="aren't drawn by MuJoCo"):
        world.reset(seed=0)

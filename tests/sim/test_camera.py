"""The law of layered drawing: to the bit what the plain renderer draws, whatever moves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import mujoco
import numpy as np
import pytest

from benchmarks import blind_gaps
from gaploop.sim import scene
from gaploop.sim.camera import LayeredCamera, set_offscreen
from gaploop.sim.cell import SimCell
from gaploop.sim.gaps import MECHANISMS, add_mechanisms

add_mechanisms(blind_gaps.__name__)

SIZE_PX = 64
SEEN = ("spatial_geometry", "object_property", "visual_domain", "environmental_complexity",
        "human_behavior")  # fmt: skip
CELLS = [
    ("pick_place", {}), ("pick_lift", {}), ("stack_cube", {}),
    *(("pick_place", {f"{m.dimension.value}.{m.name}": 1.0})
      for m in (*MECHANISMS, *blind_gaps.MECHANISMS) if m.dimension.value in SEEN),
]  # fmt: skip


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
                cell.command(np.asarray(scene.HOME_Q_RAD) + rng.normal(0.0, 0.5, 6))
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

"""Levels of pictures: the scene is the same at each, and what light does to it is more at each."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import mujoco
import numpy as np
import pytest
from tests.sim.test_worlds import Bench

from gaploop.core.errors import UnknownChoiceError, UnusableInputError
from gaploop.sim import traced
from gaploop.sim.camera import LayeredCamera, at_fidelity, fidelity_of
from gaploop.sim.cell import SimCell
from gaploop.sim.conditions import FIDELITIES
from gaploop.sim.world import GymWorld, WorldSpec

SIZE_PX = 64
needs_mitsuba = pytest.mark.skipif(
    importlib.util.find_spec("mitsuba") is None, reason="Mitsuba isn't installed"
)


def seen(fidelity: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a picture of a cell, and where everything is."""
    with SimCell(image_size=SIZE_PX, conditions={"fidelity": fidelity}) as cell:
        cell.reset(3)
        return cell.frame().image, cell.data.xpos.copy()


def test_shadows_darken_what_lamps_do_not_reach_and_move_nothing() -> None:
    (plain, there), (shadows, there_too) = seen("plain"), seen("shadows")
    assert np.array_equal(there, there_too)
    with SimCell(image_size=SIZE_PX) as cell:
        cell.reset(3)
        assert np.array_equal(plain, cell.frame().image)
        assert fidelity_of(cell.model) == "plain"
    darker = shadows.astype(int).sum(-1) < 0.8 * plain.astype(int).sum(-1)
    assert 0.01 < darker.mean() < 0.2


def test_a_level_is_known_by_its_name_and_needs_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UnknownChoiceError, match="plain"):
        SimCell(conditions={"fidelity": "photographed"})

    monkeypatch.setitem(sys.modules, "mitsuba", None)
    for cached in (traced.renderer, traced.announce):
        cached.cache_clear()
    with pytest.raises(UnusableInputError, match="pip install mitsuba"):
        SimCell(conditions={"fidelity": "traced"})


def test_an_environment_that_draws_itself_has_shadows_compiled_in() -> None:
    world = GymWorld(Bench, WorldSpec(conditions={"fidelity": "shadows"}))
    world.reset(seed=0)
    assert world.model.light_castshadow.all()
    assert fidelity_of(world.model) == "shadows"
    world.close()


EVERYTHING = """
<mujoco>
  <asset>
    <texture name="grid" type="2d" builtin="checker" rgb1="1 1 1" rgb2=".2 .2 .2" width="64" height="64"/>
    <material name="grid" texture="grid" texrepeat="6 6"/>
    <mesh name="wedge" vertex="0 0 0 .1 0 0 0 .1 0 0 0 .1"/>
  </asset>
  <worldbody>
    <light pos="0 0 3" castshadow="false" specular="0 0 0"/>
    <camera name="above" pos="0 -.05 1.5"/>
    <geom type="plane" size=".6 .6 .1" material="grid"/>
    <geom type="box" size=".08 .04 .03" pos=".3 .3 .03" rgba=".9 .1 .1 1"/>
    <geom type="sphere" size=".06" pos="-.3 .3 .06" rgba=".1 .9 .1 1"/>
    <geom type="capsule" size=".03 .08" pos="0 .3 .03" euler="90 0 30" rgba=".1 .1 .9 1"/>
    <geom type="cylinder" size=".06 .02" pos=".3 -.3 .02" rgba=".9 .9 .1 1"/>
    <geom type="ellipsoid" size=".08 .04 .03" pos="-.3 -.3 .03" rgba=".9 .1 .9 1"/>
    <geom type="mesh" mesh="wedge" pos="0 -.3 0" rgba=".1 .9 .9 1"/>
  </worldbody>
</mujoco>
"""  # noqa: E501


@needs_mitsuba
def test_every_shape_is_traced_where_mujoco_draws_it() -> None:
    pictures = {}
    for level in ("plain", "traced"):
        spec = mujoco.MjSpec.from_string(EVERYTHING)
        if level != "plain":
            at_fidelity(level)(spec)
        model = spec.compile()
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        camera = LayeredCamera(model, "above", 2 * SIZE_PX, 2 * SIZE_PX)
        pictures[level] = camera.draw(data).astype(int)
        camera.close()
    apart = np.abs(pictures["plain"] - pictures["traced"]).max(axis=-1)
    assert np.median(apart) < 20
    # Edges and shades apart, each thing and each tile of the floor is where it is.
    assert (apart > 90).mean() < 0.04


@needs_mitsuba
def test_a_traced_cell_is_the_same_scene_and_repeats() -> None:
    (plain, there), (one, there_too), (two, _) = seen("plain"), seen("traced"), seen("traced")
    assert np.array_equal(one, two)
    assert np.array_equal(there, there_too)
    assert np.abs(one.astype(int) - plain).mean() < 30
    assert FIDELITIES[-1] == "traced"

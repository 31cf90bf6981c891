"""Simulations that nobody here wrote; `make test-worlds` installs them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import mujoco
import pytest

from benchmarks import world_stations, worlds
from gaploop.sim.world import GymWorld, WorldSpec

NEEDS = {name: name.split()[0].replace("-", "_") for name in worlds.WORLDS} | {"pusht": "gym_pusht"}


@pytest.fixture(params=worlds.WORLDS)
def world(request: pytest.FixtureRequest) -> worlds.Foreign:
    name = str(request.param)
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{name} isn't installed: make test-worlds")
    return worlds.WORLDS[name]


def test_severity_zero_is_the_environment_to_the_bit(world: worlds.Foreign, tmp_path: Path) -> None:
    assert "identical" in worlds.COLUMNS["gaps at 0"](world, tmp_path, 1)


def test_late_commands_are_felt_and_leave_nothing_behind(world: worlds.Foreign) -> None:
    plain = worlds.made(world)
    plain.action_space.seed(0)
    actions: list[Any] = [plain.action_space.sample() for _ in range(worlds.STEPS)]
    before = worlds._numbers(plain, actions)
    late = GymWorld(lambda: worlds.made(world), WorldSpec(gaps=worlds.LATE))
    assert worlds._numbers(late, actions) != before
    assert mujoco.get_mjcb_control() is None
    assert worlds._numbers(worlds.made(world), actions) == before


def test_its_own_script_succeeds(world: worlds.Foreign) -> None:
    if not world.script:
        pytest.skip("it has none")
    assert worlds.evaluated(world, 2)["successes"] == 2


def test_a_station_is_judged_by_the_dimension_that_was_drawn() -> None:
    def of(injected: str, *named: str) -> str:
        return world_stations.judged({"injected": injected, "named": named})

    late = "actuator_response.latency"
    assert of(late, "actuator_response", "not_measured") == "right"
    assert (
        of(late, "actuator_response", "contact_dynamics") == of(late, "task_variation") == "wrong"
    )
    assert (of(late), of(late, "policy"), of("")) == ("nothing named",) * 2 + ("not run",)

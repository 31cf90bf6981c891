"""One dataset, one unit: refused before the take, found afterwards, never pooled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import damage
import numpy as np
import pytest

from gaploop.collect.session_options import go_on_with
from gaploop.core.errors import UnusableInputError
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import plainly_radians
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import read_takes
from gaploop.failure_analysis.views.joints import units_of
from gaploop.scripts import cli, record
from gaploop.scripts._arguments import parse
from gaploop.scripts.record import RecordConfig

type Write = Callable[..., str]
TASK = "Put the cube on the disc"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_take: Write) -> Path:
    root = tmp_path_factory.mktemp("units")
    write_take(root / "journal", 5, task=TASK)
    publish(root / "journal", root / "set", "me/x")
    return root


@pytest.mark.parametrize("units", ["m100_100", "rad"])
def test_takes_in_other_units_are_not_published_beside_them(
    store: Path, tmp_path: Path, write_take: Write, units: str
) -> None:
    write_take(tmp_path / "journal", 5, units=units)
    before = sorted((store / "set").rglob("*"))
    with pytest.raises(UnusableInputError, match=f"are in {units}, not deg"):
        publish(tmp_path / "journal", store / "set", "me/x")
    assert sorted((store / "set").rglob("*")) == before


def gone_on_with(store: Path, *words: str, **robot: Any) -> Any:
    made = cli.config_class_of(record, "record", words)
    config = parse(made, [f"--dataset.root={store}/set", *words], (), "gaploop record")
    if robot:
        config.robot = SimpleNamespace(**robot)
    go_on_with(config, store / "set", store / "journal")
    return config


def test_what_is_left_open_is_taken_from_the_dataset(store: Path) -> None:
    camera = SimpleNamespace(width=None, height=None)
    config = gone_on_with(store, use_degrees=False, cameras={"overhead": camera})
    assert (config.dataset.single_task, config.dataset.fps) == (TASK, 50.0)
    assert config.robot.use_degrees
    assert (camera.width, camera.height) == (64, 64)
    (store / "none").mkdir(exist_ok=True)
    config = parse(RecordConfig, [f"--dataset.root={store}/none"], (), "gaploop record")
    go_on_with(config, store / "none", store / "no_journal")
    assert (config.dataset.single_task, config.dataset.fps) == ("", None)


@pytest.mark.parametrize(
    "task", ["put the cube on the disc", f"{TASK}.", "Put the  cube on the disc "]
)
def test_a_task_that_only_looks_different_is_refused(store: Path, task: str) -> None:
    for more in ([], ["--dataset.new_task=true"]):
        with pytest.raises(UnusableInputError, match=f"Write '{TASK}'"):
            gone_on_with(store, f"--dataset.single_task={task}", *more)


def test_a_new_task_has_to_be_meant(store: Path) -> None:
    with pytest.raises(UnusableInputError, match="would be a new task"):
        gone_on_with(store, "--dataset.single_task=Stack the cubes")
    with pytest.raises(UnusableInputError, match="'stack cube' would be a new task"):
        gone_on_with(store, "--robot.task=stack_cube")
    meant = ("--dataset.single_task=Stack the cubes", "--dataset.new_task=true")
    assert gone_on_with(store, *meant).dataset.single_task == "Stack the cubes"
    assert gone_on_with(store, f"--dataset.single_task={TASK}").dataset.single_task == TASK


def test_radians_are_told_only_where_it_is_certain() -> None:
    draw = np.random.default_rng(0)
    high = draw.uniform(10, 60, (6, 6))
    low = -high
    rad = np.where(np.arange(6) > 3, np.pi / 180, 1.0)[:, None]
    assert plainly_radians(low * rad, high * rad) == [4, 5]
    idle = np.where(np.arange(6) > 3, 0.002, 1.0)[:, None]  # of an arm that rests at 0 degrees
    for scale in (1.0, np.pi / 180, idle, rad * idle):
        assert plainly_radians(low * scale, high * scale) == []
    for at in (0.0, 1.0, 40.0):  # an episode in which nothing moves, hid the others
        assert plainly_radians(
            *(np.vstack([x, np.full(6, at)]) for x in (low * rad, high * rad))
        ) == [4, 5]
    one = np.where(np.arange(6) == 2, 0.02, 1.0)  # only one of its joints moves as little
    assert plainly_radians(low * one, high * one) == []


def test_diagnosis_never_pools_over_unlike_units(tmp_path: Path) -> None:
    """Takes in radians, read as degrees, were called frozen."""
    takes = list(read_takes(damage.record(tmp_path / "set", 3, 30, radians=(2,))))
    with pytest.raises(UnusableInputError, match="Episodes 2 look like radians"):
        units_of(takes, "degrees")
    assert units_of(takes[:2], "degrees") == "deg"
    units = ("deg", "m100_100")
    told = [replace(t, info=replace(t.info, units=u)) for t, u in zip(takes, units, strict=False)]
    with pytest.raises(UnusableInputError, match="several units"):
        units_of(told)


def test_what_a_simulation_shows_isnt_asked_for_its_joints_units(store: Path) -> None:
    """A station of pick-place was refused by `diagnose`: what it shows had hardly moved."""
    take = next(iter(read_takes(store / "set")))
    info = replace(take.info, units="", robot_type="simulation", joint_names=("state_0", "state_1"))
    silent = replace(take, info=info, telemetry=Telemetry(np.empty(0), {}))
    for scale in (1.0, 40.0):  # what hardly moves near zero, and what may be pixels
        still = np.tile([0.1 * scale, 0.9 * scale], (len(take.frames), 1))
        frames = replace(take.frames, state=still, action=still)
        silent = replace(silent, frames=frames)
        assert units_of([silent]) == ""
    with pytest.raises(UnusableInputError, match="may be degrees"):
        units_of([replace(silent, info=replace(info, robot_type="some_arm"))])


@pytest.mark.parametrize("seed", range(3))
def test_the_steps_of_an_encoder_tell_degrees_from_shares_of_a_range(
    store: Path, seed: int
) -> None:
    """Incident: the first `diagnose` of a public SO-101 dataset ended in a question for units."""
    take = next(iter(read_takes(store / "set")))
    joints = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
    rng = np.random.default_rng(seed)
    low = rng.integers(600, 1000, 6)
    high = rng.integers(2900, 3600, 6)
    way = rng.normal(0, 40, (400, 6)).cumsum(axis=0) + (low + high) / 2
    ticks = np.round(np.clip(way, low + 99, high - 99))

    name = "so101_follower"

    def told(values: Any) -> str:
        info = replace(
            take.info,
            units="",
            robot_type=name,
            joint_names=tuple(f"{j}.pos" for j in joints),
        )
        frames = replace(take.frames, state=values, action=values)
        return units_of(
            [replace(take, info=info, frames=frames, telemetry=Telemetry(np.empty(0), {}))]
        )

    degrees = ((ticks - (low + high) / 2) * 360 / 4095).clip(-99, 99)
    shares = (ticks - low) / (high - low) * 200 - 100
    assert told(degrees.astype(np.float32)) == "deg"
    assert told(shares.astype(np.float32)) == "m100_100"
    name, joints = "bi_so101_follower", tuple(f"{s}_{j}" for s in ("left", "right") for j in joints)
    for values, units in ((degrees, "deg"), (shares, "m100_100")):  # one arm moves like the other
        both = np.concatenate([values, values[::-1]], axis=1)
        assert told(both.astype(np.float32)) == units
    name, joints = "so101_follower", joints[:6]
    for unclear in (
        np.round(degrees, 1),
        np.round(shares, 1),
        shares + rng.normal(0, 0.02, shares.shape),
    ):
        with pytest.raises(UnusableInputError, match="may be degrees"):
            told(unclear)

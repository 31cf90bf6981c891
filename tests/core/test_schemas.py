"""Plan, station and suite files: what is right comes back, what is wrong is said in one line."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import REMEDIES, Plan, PlanItem, load_plan, save_plan
from gaploop.core.station import SIM_STATION, Workspace, load_station
from gaploop.core.suite import load_suite
from gaploop.core.twin import Twin, TwinParameter, load_twin, save_twin
from gaploop.core.vocabulary import Domain, GapDimension

ITEM = {"id": "a", "dimension": "object_property", "takes": 5, "remedy": "collect"}
PLAN = {"schema": "gaploop.plan.v1", "id": "p", "items": [ITEM]}
STATION = {"name": "bench_1", "conditions": {"lighting": ["lamp"]}, "grid": [2, 3]}
BOX = {"x": [0.0, 0.4], "y": [-0.3, 0.3], "z": [0.0, 0.4]}
SUITE = {"name": "s", "tasks": [{"task": "pick_place", "conditions": {"lighting": "dim"}}]}


def boxed(**changes: object) -> dict[str, object]:
    return {**STATION, "workspace": {**BOX, **changes}}


def item(**changes: object) -> dict[str, object]:
    return {**PLAN, "items": [{**ITEM, **changes}]}


def task(**changes: object) -> dict[str, object]:
    return {"name": "s", "tasks": [{"task": "pick_place", **changes}]}


def write(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "file.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def test_a_plan_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    items = (
        PlanItem("a", GapDimension.OBJECT_PROPERTY, 8, "collect", "60 % °", "slow", share=0.6),
        PlanItem("b", GapDimension.ACTUATOR_RESPONSE, 0, "change_scene", "lag 80 ms"),
        PlanItem("c", GapDimension.SPATIAL_GEOMETRY, 2, "collect", "", conditions={"x": 1}),
    )
    plan = Plan("p", "d", items, minutes=4.0)
    save_plan(plan, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == plan
    assert plan.takes == 10


def test_a_station_comes_back_with_its_limits(tmp_path: Path) -> None:
    station = load_station(write(tmp_path, {**STATION, "safety": {"stall_s": 1}}))
    assert station.domain is Domain.REAL
    assert station.conditions == {"lighting": ("lamp",)}
    assert station.grid == (2, 3)
    assert station.safety.stall_s == 1.0
    assert station.safety.velocity_rad_s == SIM_STATION.safety.velocity_rad_s


def test_a_robot_whose_name_can_be_no_file_is_a_name(tmp_path: Path) -> None:
    """A name of thousands of letters ended in an OSError of the file system."""
    for name in ("a" * 5000, "a\0b"):
        assert load_station(write(tmp_path, {**STATION, "robot_model": name})).robot_model == name


def test_a_station_comes_back_with_its_robot(tmp_path: Path) -> None:
    robot = {"robot_model": "arm.xml", "workspace": BOX, "joint_limits_rad": {"elbow": [-1, 0.5]}}
    path = write(tmp_path, {**STATION, **robot})
    assert load_station(path).robot_model == "arm.xml"
    (tmp_path / "arm.xml").touch()
    station = load_station(path)
    assert station.robot_model == str(tmp_path / "arm.xml")
    assert station.workspace == Workspace((0.0, 0.4), (-0.3, 0.3), (0.0, 0.4))
    assert station.joint_limits_rad == {"elbow": (-1.0, 0.5)}
    own_rad = np.array([[-2.0, 2.0], [-1.0, 1.0]])
    narrowed = station.joint_limits(("pan", "elbow"), own_rad)
    np.testing.assert_array_equal(narrowed, [[-2.0, 2.0], [-1.0, 0.5]])


def test_a_slow_station_aligns_no_faster_than_it_moves(tmp_path: Path) -> None:
    station = load_station(write(tmp_path, {**STATION, "safety": {"velocity_rad_s": 0.2}}))
    assert station.safety.align_velocity_rad_s == 0.2


def test_a_suite_comes_back_with_its_defaults(tmp_path: Path) -> None:
    (only,) = load_suite(write(tmp_path, SUITE)).tasks
    assert (only.task, only.min_pass_rate) == ("pick_place", 0.85)
    assert only.conditions == {"lighting": "dim"}


BAD_PLANS = [
    ("[]", "mapping"),
    ("a: [", "can't be read"),
    ({**PLAN, "schema": "x"}, "gaploop.plan.v1"),
    ({**PLAN, "itmes": []}, "Did you mean 'items'"),
    ({"schema": "gaploop.plan.v1", "id": "p"}, "'items' is missing"),
    ({**PLAN, "items": 3}, "must be a list"),
    ({**PLAN, "items": [3]}, "item 1 must be a mapping"),
    (item(dimension="contact"), "contact_dynamics"),
    (item(remedy="pray"), ", ".join(sorted(REMEDIES))),
    (item(takes=-1), "takes must be a whole number"),
    (item(takes=True), "takes must be a whole number"),
    (item(takes="5"), "takes must be a whole number"),
    (item(share=2), "from 0 to 1"),
    (item(conditions=3), "conditions must be a mapping"),
    (item(conditions={"lighting": "disco"}), "bright, cold, dim, nominal, side, warm"),
    (item(conditions={"distractors": 2.5}), "from 0 to 20"),
    (item(conditions={"distractors": -1}), "from 0 to 20"),
    (item(conditions={"camera_pose": [1, 2]}), "[dx, dy, dz"),
    (item(conditions={"camera_pose": ["a"] * 6}), "must be a number"),
    (item(conditions={"table_height": 3}), "from -0.2 to 0.2"),
    (item(conditions={"grid_cell": [9, 0]}), "[row, column]"),
    (item(conditions={"free": [1]}), "text or a number"),
]


@pytest.mark.parametrize(("value", "says"), BAD_PLANS)
def test_a_bad_plan_is_one_line(tmp_path: Path, value: object, says: str) -> None:
    path = write(tmp_path, value)
    with pytest.raises(UnusableInputError) as caught:
        load_plan(path)
    one_line(caught.value, path, says)


BAD_STATIONS = [
    ({}, "'name' is missing"),
    ({**STATION, "domian": "sim"}, "Did you mean 'domain'"),
    ({**STATION, "domain": "moon"}, "real, sim, sim_target"),
    ({**STATION, "conditions": {"wind": ["x"]}}, "background, human, lighting, object"),
    ({**STATION, "conditions": {"lighting": "lamp"}}, "list of names"),
    ({**STATION, "grid": [0, 3]}, "[rows, columns]"),
    ({**STATION, "grid": 3}, "[rows, columns]"),
    ({**STATION, "safety": {"off": True}}, "velocity_rad_s"),
    ({**STATION, "safety": {"velocity_rad_s": 1e9}}, "from 0.01 to 20"),
    ({**STATION, "safety": {"stall_s": float("nan")}}, "from 0.02 to 10"),
    ({**STATION, "safety": {"stall_s": float("inf")}}, "from 0.02 to 10"),
    ({**STATION, "safety": {"stall_s": None}}, "from 0.02 to 10"),
    ({**STATION, "safety": {"stall_s": ".inf"}}, "from 0.02 to 10"),
    ({**STATION, "safety": False}, "safety must be a mapping"),
    ({**STATION, "safety": {"stall_load_pct": 100}}, "from 5 to 95"),
    ({**STATION, "safety": {"velocity_rad_s": 1, "align_velocity_rad_s": 2}}, "must not be above"),
    ({**STATION, "workspace": None}, "'x' is missing"),
    (boxed(z=None), "[lower, upper] in m"),
    (boxed(z=[0, None]), "from -2 to 2"),
    (boxed(z=[0, float("inf")]), "from -2 to 2"),
    (boxed(z=[float("nan"), 1]), "from -2 to 2"),
    (boxed(z=[0.4, 0.1]), "must be below"),
    (boxed(z=[0.1, 0.11]), "at least 0.05 m"),
    (boxed(w=[0, 1]), "x, y, z"),
    ({**STATION, "workspace": [0, 1]}, "workspace must be a mapping"),
    ({**STATION, "robot_model": 3}, "name of an arm model"),
    ({**STATION, "robot_model": ""}, "name of an arm model"),
    ({**STATION, "joint_limits_rad": [1]}, "mapping of joint"),
    ({**STATION, "joint_limits_rad": {"a": [0]}}, "[lower, upper] in rad"),
    ({**STATION, "joint_limits_rad": {"a": [0, 100]}}, "from -6.28319"),
    ({**STATION, "joint_limits_rad": {"a": [1, 0]}}, "must be below"),
    ({**STATION, "scene": {"colour": "red"}}, "camera, object, target"),
    ({**STATION, "scene": {"camera": 3}}, "camera must be text"),
    ({**STATION, "scene": {"object": "grey"}}, "blue, cyan, green"),
    ({**STATION, "scene": {"object": [0, 10, 20]}}, "of its hue in degrees"),
    ({**STATION, "scene": {"object": [0, 400]}}, "from 0 to 360"),
    ({**STATION, "scene": {"object": "blue"}}, "hues in common"),
    ({**STATION, "scene": {"object": [350, 210]}}, "hues in common"),
]


@pytest.mark.parametrize(("value", "says"), BAD_STATIONS)
def test_a_bad_station_is_one_line(tmp_path: Path, value: object, says: str) -> None:
    path = write(tmp_path, value)
    with pytest.raises(UnusableInputError) as caught:
        load_station(path)
    one_line(caught.value, path, says)


BAD_SUITES = [
    ({"name": "s", "tasks": []}, "at least one task"),
    ({"name": "s", "tasks": [1]}, "task 1 must be a mapping"),
    (task(success_check="hope"), "operator, reward_model, script"),
    (task(timeout_s=0), "from 0.1 to 3600"),
    (task(min_pass_rate=85), "from 0 to 1"),
    (task(conditions={"object": "anvil"}), "red_cube, small_cube"),
    (task(conditions=3), "conditions must be a mapping"),
    (task(timeout=3), "Did you mean 'timeout_s'"),
]


@pytest.mark.parametrize(("value", "says"), BAD_SUITES)
def test_a_bad_suite_is_one_line(tmp_path: Path, value: object, says: str) -> None:
    path = write(tmp_path, value)
    with pytest.raises(UnusableInputError) as caught:
        load_suite(path)
    one_line(caught.value, path, says)


@pytest.mark.parametrize("load", [load_plan, load_station, load_suite, load_twin])
def test_a_missing_file_is_one_line(tmp_path: Path, load: object) -> None:
    with pytest.raises(UnusableInputError, match=r"not found\. Check the path"):
        load(tmp_path / "none.yaml")  # type: ignore[operator]


def one_line(error: Exception, path: Path, says: str) -> None:
    assert says in str(error)
    assert str(path) in str(error)
    assert "\n" not in str(error)


LATENCY = TwinParameter(
    "actuator_response.latency.latency_s", "s", 0.0, 0.08, (0.07, 0.09), True, "probe"
)
TABLE = TwinParameter(
    "spatial_geometry.table_height.table_m", "m", 0.0, 0.0, (-math.inf, math.inf), False, "nothing"
)
TWIN = {"schema": "gaploop.twin.v1", "station": "s", "arm": "so101"}


def test_a_twin_comes_back_as_it_was_saved_and_says_what_differs(tmp_path: Path) -> None:
    twin = Twin("bench_1", "so101", (LATENCY, TABLE), ({"id": "j"},), {"held_out": 0.02})
    save_twin(twin, tmp_path / "twin.yaml")
    assert load_twin(tmp_path / "twin.yaml") == twin
    assert twin.values() == {"actuator_response.latency": {"latency_s": 0.08}}
    assert twin.values(["spatial_geometry.table_height"]) == {}


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path: Path) -> None:
    """YAML knew no np.float64, which is a float: identify ended with a traceback after its work."""
    found = dataclasses.replace(
        LATENCY, estimate=np.float64(0.08), interval=(np.float64(0.07), 0.1)
    )
    save_twin(Twin("s", "so101", (found,)), tmp_path / "twin.yaml")
    assert load_twin(tmp_path / "twin.yaml").parameters == (found,)


def test_what_a_twin_does_not_tell_from_nominal_changes_no_cell() -> None:
    sure_of_nothing = dataclasses.replace(LATENCY, interval=(-0.02, 0.18))
    assert Twin("s", "so101", (sure_of_nothing,)).values() == {}


def test_a_limit_that_no_drive_reached_is_not_put_into_a_cell() -> None:
    """One weak joint: its drives' speed limit, infinite, was no JSON, and `diagnose --twin` ended
    in a traceback."""
    weak = TwinParameter(
        "actuator_response.drives.gain_factor", "1", 1.0, 0.2, (0.1, 0.3), joint="elbow_flex"
    )
    limit = dataclasses.replace(
        weak, name="actuator_response.drives.speed_limit_rad_s", nominal=math.inf,
        estimate=math.inf, interval=(2.0, math.inf),
    )  # fmt: skip
    values = Twin("s", "so101", (weak, limit)).values()
    assert values == {"actuator_response.drives": {"elbow_flex.gain_factor": 0.2}}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"name": "latency"}, "dimension.mechanism.parameter"),
        ({"name": "actuator.latency.latency_s"}, "actuator_response"),
        ({"interval": [0.2, 0.1]}, "outside its interval"),
        ({"interval": 3}, "[low, high]"),
        ({"estimate": math.nan}, "must be a number"),
        ({"excited": "no"}, "true or false"),
        ({"gain": 2}, "gain"),
    ],
)
def test_a_wrong_twin_is_one_line(row: dict[str, object], said: str, tmp_path: Path) -> None:
    good = {
        "name": "actuator_response.latency.latency_s", "unit": "s", "nominal": 0.0,
        "estimate": 0.1, "interval": [0.1, 0.2],
    }  # fmt: skip
    with pytest.raises(UnusableInputError) as caught:
        load_twin(write(tmp_path, {**TWIN, "parameters": [{**good, **row}]}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)

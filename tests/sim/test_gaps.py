"""Laws of gap injection: nothing at severity 0, drawn by seed, the scene stays the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import blind_gaps
from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnknownChoiceError, UnusableInputError
from gaploop.core.vocabulary import GapDimension
from gaploop.sim import gaps as gaps_module
from gaploop.sim.cell import SimCell
from gaploop.sim.gaps import MECHANISMS, add_mechanisms, draw_gaps, mechanisms_of, put_into
from gaploop.sim.gaps.mechanism import Appliers, Mechanism, Parameter, Rng, Values
from gaploop.sim.scene import SceneOptions, cell_appliers

add_mechanisms(blind_gaps.__name__)
ALL = (*MECHANISMS, *blind_gaps.MECHANISMS)
KEYS = [m.key for m in ALL]


def test_severity_zero_is_the_nominal_cell_to_the_bit(
    nominal: SimCell, sweep: Any, same: Any
) -> None:
    expected = sweep(nominal, 4)
    with SimCell(gaps=dict.fromkeys(KEYS, 0.0), gap_seed=9) as cell:
        assert same(expected, sweep(cell, 4))


@pytest.mark.parametrize("dimension", [d.value for d in GapDimension])
def test_every_dimension_has_mechanisms_to_train_on_and_to_test_on(dimension: str) -> None:
    assert len(mechanisms_of(dimension)) >= 2
    assert mechanisms_of(dimension, "never")
    assert mechanisms_of(dimension, "only")
    assert mechanisms_of(dimension, "blind")


@pytest.mark.members(12)
@pytest.mark.parametrize("severity", [0.3, 1.0])
@pytest.mark.parametrize("key", KEYS)
def test_every_mechanism_builds_and_resets(key: str, severity: float) -> None:
    with SimCell(gaps={key: severity}, gap_seed=2, image_size=64) as cell:
        for seed in range(2):
            cell.reset(seed)
            cell.command(np.array([0.0, 0.0, 0.3, 1.2, 0.0, 0.5]))
            cell.advance(0.5)
            assert np.isfinite(cell.read().position_rad).all()
            assert cell.frame().image.shape == (64, 64, 3)


@pytest.mark.members(6)
@pytest.mark.parametrize("key", KEYS)
def test_equal_seeds_give_equal_takes_under_gaps(key: str, sweep: Any, same: Any) -> None:
    trajectories = []
    for _ in range(2):
        with SimCell(gaps={key: 0.8}, gap_seed=3, image_size=64) as cell:
            trajectories.append(sweep(cell, 4, ticks=20))
    assert same(*trajectories)


@pytest.mark.members(12)
@pytest.mark.parametrize("key", KEYS)
def test_gaps_leave_the_scene_of_a_seed_alone(key: str, nominal: SimCell) -> None:
    """Paired comparisons need the same object and target places with and without the gap."""
    nominal.reset(7)
    expected = nominal.truth()
    cell = SimCell(gaps={key: 1.0}, gap_seed=1, image_size=64)
    cell.reset(7)
    truth = cell.truth()
    for name in ("object_pos_m", "target_pos_m"):
        assert np.allclose(np.array(truth[name])[:2], np.array(expected[name])[:2])
    assert truth["object_yaw_rad"] == pytest.approx(expected["object_yaw_rad"])


@pytest.mark.parametrize("dimension", [d.value for d in GapDimension])
def test_mechanism_and_magnitude_vary_with_the_seed(dimension: str) -> None:
    drawn = [draw_gaps({dimension: 0.7}, seed)[0] for seed in range(30)]
    assert len({gap.mechanism for gap in drawn}) == len(mechanisms_of(dimension))
    assert len({str(gap.parameters) for gap in drawn}) > 10
    assert drawn == [draw_gaps({dimension: 0.7}, seed)[0] for seed in range(30)]


@pytest.mark.parametrize(
    ("key", "parameter"),
    [
        ("spatial_geometry.camera_pose", "dx_m"),
        ("spatial_geometry.table_height", "table_m"),
        ("task_specification.goal_offset", "goal_dy_m"),
        ("visual_domain.exposure", "log_gain"),
        ("object_property.size", "log_size"),
        ("human_behavior.nudge", "side_rad"),
    ],
)
def test_directions_vary_with_the_seed(key: str, parameter: str) -> None:
    values = []
    for seed in range(40):
        parameters = dict(draw_gaps({key: 0.8}, seed)[0].parameters)
        parameters["log_gain"] = float(np.log(parameters.get("gain", 1.0)))
        parameters["log_size"] = float(np.log(parameters.get("size_factor", 1.0)))
        values.append(parameters[parameter])
    assert min(values) < 0.0 < max(values)


def test_names_are_unique_within_a_dimension() -> None:
    assert len(set(KEYS)) == len(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_gap_grows_with_its_severity(key: str) -> None:
    """Whatever a severity changes, it changes in one direction, and it changes something."""
    severities = np.linspace(0.05, 1.0, 12)
    changed = False
    for seed in range(6):
        drawn = [draw_gaps({key: float(s)}, seed)[0].parameters for s in severities]
        for name in drawn[0]:
            steps = np.diff([parameters[name] for parameters in drawn])
            assert (steps >= -1e-12).all() or (steps <= 1e-12).all(), name
            changed = changed or bool(np.abs(steps).max() > 0.0)
    assert changed


def test_a_gap_is_drawn_the_same_beside_others() -> None:
    alone = draw_gaps({"object_property": 0.5}, 4)[0]
    both = draw_gaps({"contact_dynamics": 0.5, "object_property": 0.5}, 4)[1]
    assert alone == both


class Humid(Mechanism):
    """A mechanism that somebody adds."""

    dimension, name, says = GapDimension.ACTUATOR_RESPONSE, "humid", "wet plugs"
    parameters = (Parameter("humidity", "1", 0.0, 1.0),)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"humidity": severity * rng.random()}

    def apply(self, p: Values, on: Appliers) -> None:
        on.commands.latency_s = 0.1 * p["humidity"]


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_further_mechanism_moves_no_other_draw(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = {d.value: 0.5 for d in GapDimension} | dict.fromkeys(KEYS, 0.8)
    before = [draw_gaps(everything, seed) for seed in range(60)]
    more = (Humid(), *MECHANISMS) if place == "first" else (*MECHANISMS, Humid())
    monkeypatch.setattr(gaps_module, "MECHANISMS", more)
    after = [draw_gaps(everything, seed) for seed in range(60)]
    changed = [
        (old, new)
        for one, other in zip(before, after, strict=True)
        for old, new in zip(one, other, strict=True)
        if old != new
    ]
    assert changed
    assert all(new.mechanism == "humid" for _, new in changed)  # it won this seed; no other moved


GAPS = """
from gaploop.core.vocabulary import GapDimension
from gaploop.sim.gaps import Mechanism, Parameter
class Damp(Mechanism):
    dimension, name = GapDimension.ACTUATOR_RESPONSE, "damp"
    parameters = (Parameter("latency_s", "s", 0.0, 1.0, 0.0),)
    def draw(self, rng, severity):
        return {"latency_s": 0.1 * severity}
    def apply(self, p, on):
        on.commands.latency_s = p["latency_s"]
MECHANISMS = (Damp(),)
"""


def test_anybody_adds_gaps_from_a_module_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, in this process and in those that it starts."""
    monkeypatch.setenv(gaps_module.MODULES, os.environ.get(gaps_module.MODULES, ""))
    monkeypatch.setattr(gaps_module, "_ADDED", dict(gaps_module._ADDED))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "damp_gaps.py").write_text(GAPS)
    for name, content in (("broken", "1 / 0"), ("empty", ""), ("taken", GAPS + "Damp.name='slow'")):
        (tmp_path / f"{name}_gaps.py").write_text(content)
        with pytest.raises(UnusableInputError, match=f"gaps_module={name}_gaps"):
            add_mechanisms(f"{name}_gaps")
    add_mechanisms("damp_gaps")
    assert draw_gaps({"actuator_response.damp": 0.5}, 0)[0].parameters == {"latency_s": 0.05}
    with SimCell(parameters={"actuator_response.damp": {"latency_s": 0.3}}, image_size=64) as cell:
        cell.reset(0)
    code = "from gaploop.sim.gaps import all_mechanisms as m; print(len(m()))"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path), os.getcwd()])
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(told.stdout) == len(gaps_module.all_mechanisms())


@pytest.mark.parametrize("mechanism", ALL, ids=lambda m: m.name)
def test_draws_lie_in_range_and_name_known_parameters(mechanism: Mechanism) -> None:
    for seed in range(20):
        for severity in (0.01, 0.5, 1.0):
            drawn = draw_gaps({mechanism.key: severity}, seed)[0].parameters
            assert mechanism.complete(drawn).keys() == {p.name for p in mechanism.parameters}
            assert drawn.keys() <= mechanism.complete(drawn).keys()


def test_the_order_of_mechanisms_does_not_matter(sweep: Any, same: Any) -> None:
    keys = ["environmental_complexity.similar", "environmental_complexity.clutter",
            "visual_domain.exposure", "visual_domain.blur", "actuator_response.latency",
            "sensor_noise.encoder_drift", "sensor_noise.stale_reads"]  # fmt: skip
    found = []
    for order in (keys, keys[::-1]):
        with SimCell(gaps=dict.fromkeys(order, 0.4), gap_seed=3) as cell:
            found.append(sweep(cell, 4))
    assert same(*found)


@pytest.mark.members(6)
@pytest.mark.parametrize("mechanism", ALL, ids=lambda m: m.name)
def test_given_parameters_act_as_the_drawn_ones_do(
    mechanism: Mechanism, sweep: Any, same: Any
) -> None:
    """What a twin gives goes through the same code as what a severity draws."""
    drawn = draw_gaps({mechanism.key: 0.8}, 3)[0].parameters
    with SimCell(gaps={mechanism.key: 0.8}, gap_seed=3, image_size=64) as cell:
        expected, judged = sweep(cell, 4, ticks=20), cell.truth()["tolerance_factor"]
    with SimCell(parameters={mechanism.key: drawn}, gap_seed=3, image_size=64) as cell:
        assert same(expected, sweep(cell, 4, ticks=20))
        assert cell.truth()["tolerance_factor"] == judged
        assert cell.truth()["injected"] == []


def test_nominal_parameters_are_the_nominal_cell_to_the_bit(
    nominal: SimCell, sweep: Any, same: Any
) -> None:
    parameters = {m.key: {p.name: p.nominal for p in m.parameters} for m in ALL}
    with SimCell(parameters=parameters) as cell:
        assert same(sweep(nominal, 4), sweep(cell, 4))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"actuator_response.latency": {"latency_s": -0.1}}, "latency_s is -0.1: give 0 to 2"),
        ({"actuator_response.latency": {"latency_s": float("nan")}}, "is nan: give 0 to 2"),
        ({"actuator_response.latency": {"delay_s": 0.1}}, "delay_s"),
        ({"actuator_response.dust": {}}, "dust"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    parameters: dict[str, dict[str, float]], said: str
) -> None:
    with pytest.raises((UnknownChoiceError, UnusableInputError), match=said):
        SimCell(parameters=parameters)


def test_held_out_mechanisms_can_be_excluded() -> None:
    everything = {d.value: 0.5 for d in GapDimension}
    for seed in range(20):
        assert not any(gap.held_out for gap in draw_gaps(everything, seed, "never"))
        assert all(gap.held_out for gap in draw_gaps(everything, seed, "only"))


def test_blind_mechanisms_are_drawn_on_request_only() -> None:
    everything = {d.value: 0.5 for d in GapDimension}
    for seed in range(20):
        for held_out in ("any", "never", "only"):
            assert not any(gap.blind for gap in draw_gaps(everything, seed, held_out))
        assert all(gap.blind and gap.held_out for gap in draw_gaps(everything, seed, "blind"))
    assert draw_gaps({KEYS[-1]: 0.5}, 0)[0].blind


def test_truth_names_what_was_injected() -> None:
    cell = SimCell(gaps={"actuator_response": 0.6}, gap_seed=8, image_size=64)
    injected = cell.truth()["injected"]
    assert isinstance(injected, list)
    assert injected[0]["dimension"] == "actuator_response"
    assert injected[0]["severity"] == 0.6


def test_a_nudge_moves_the_object_and_a_hand_is_seen() -> None:
    with SimCell(gaps={"human_behavior.nudge": 1.0}, gap_seed=0) as cell:
        cell.reset(3)
        before = np.array(cell.truth()["object_pos_m"])
        pictures = []
        for _ in range(60):
            cell.advance(0.04)
            pictures.append(cell.frame().image.astype(float))
        moved_m = float(np.linalg.norm(np.array(cell.truth()["object_pos_m"]) - before))
        change = max(float(np.abs(p - pictures[0]).mean()) for p in pictures)
    assert moved_m > 0.02
    assert change > 5.0


def test_latency_delays_motion() -> None:
    reached = []
    for gaps in ({}, {"actuator_response.latency": 1.0}):
        cell = SimCell(gaps=gaps, image_size=64)
        cell.reset(0)
        start = cell.read().position_rad[0]
        goal = cell.read().position_rad.copy()
        goal[0] -= 0.5
        cell.command(goal)
        while abs(cell.read().position_rad[0] - start) < 0.1:
            cell.advance(0.01)
        reached.append(cell.now_s)
    assert reached[1] - reached[0] > 0.2


@pytest.mark.parametrize("latency_s", [0.002, 0.013])
def test_a_late_goal_does_not_look_like_a_stall(latency_s: float) -> None:
    """Read always just after goals jumped within a turn, the pan's current was over its limit in
    every reading of a swing: the safety filter ended half of the takes that `dynamics` drew."""
    with SimCell(
        parameters={"actuator_response.latency": {"latency_s": latency_s}}, image_size=32
    ) as cell:
        cell.reset(0)
        goal, over = cell.read().position_rad.copy(), []
        for _ in range(60):
            goal[0] -= 0.02
            cell.command(goal)
            cell.advance(0.01)
            over.append(abs(cell.read().current_a[0]) > 0.9 * cell.arm.servos.stalls_a)
            assert np.array_equal(cell.read().current_a, cell.read().current_a)
    assert not all(over[10:])


def test_a_session_warms_the_servos_and_makes_them_late() -> None:
    """Takes of one cell are a session: the first is the nominal one, later ones are hotter."""
    with SimCell(gaps={"actuator_response.heat": 1.0}, gap_seed=1, image_size=32) as cell:
        told = []
        for seed in (5, 6, 5):
            cell.reset(seed)
            goal = cell.read().position_rad + 0.3 * np.eye(6)[0]
            cell.command(goal)
            cell.advance(0.05)
            state = cell.read()
            told.append((float(state.temperature_c[0]), float(goal[0] - state.position_rad[0])))
            cell.advance(60.0)
    (cold_c, cold_rad), (warm_c, warm_rad), (hot_c, hot_rad) = told
    assert cold_c < warm_c < hot_c
    assert cold_rad < warm_rad <= hot_rad
    assert "heat" not in {m.name for m in mechanisms_of("actuator_response")}


@pytest.mark.parametrize(("arm", "columns"), [("so101", [2]), ("bi_so101", [2, 8])])
def test_one_joint_loses_its_share_of_goals_anew_in_each_take(arm: str, columns: list[int]) -> None:
    on = cell_appliers(SceneOptions(arm=CELL_ARMS[arm]))
    lost = {"elbow_flex.lost_fraction": 0.3, "elbow_flex.lost_s": 0.2}
    put_into(on, (), {"actuator_response.lost_goals": lost})
    (begin,) = on.commands.faults.values()
    rng, takes = np.random.default_rng(0), []
    for _ in range(20):
        lose = begin(rng)
        before, rows = np.zeros(6 * (1 + (arm != "so101"))), []
        for k in range(1, 1000):
            goal = np.full_like(before, k)
            lose(0.02 * k, goal, before)
            rows.append(goal != k)
            before = goal
        takes.append(np.array(rows))
    assert len({take.tobytes() for take in takes}) == len(takes)
    assert [int(k) for k in np.flatnonzero(np.any(takes, axis=(0, 1)))] == columns
    assert np.mean(takes, axis=(0, 1))[columns] == pytest.approx(0.3, abs=0.05)

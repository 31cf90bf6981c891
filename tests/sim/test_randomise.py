"""Laws of randomisation: a pure draw of [seed, take], between the ends, by each name alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gaploop.core.errors import UnusableInputError
from gaploop.core.twin import (
    Randomisation,
    Range,
    Twin,
    TwinParameter,
    as_yaml,
    load_randomisation,
    save_twin,
)
from gaploop.sim.cell import SimCell
from gaploop.sim.gaps import MECHANISMS, RANDOMISED, draw_gaps
from gaploop.sim.gaps.mechanism import Mechanism
from gaploop.sim.randomise import (
    EVERYTHING,
    PRESETS,
    draw,
    known_and_drawn,
    over,
    preset,
    without,
)

ALL = preset(EVERYTHING)
DELAY = "actuator_response.latency"


def flat(drawn: dict[str, dict[str, float]]) -> dict[str, float]:
    return {f"{m}.{k}": v for m, values in drawn.items() for k, v in values.items()}


def test_a_draw_is_of_seed_and_take_alone() -> None:
    assert draw(ALL, [0, 5]) == draw(ALL, [0, 5])
    assert draw(ALL, [0, 5]) != draw(ALL, [0, 6])
    assert draw(ALL, [0, 5]) != draw(ALL, [1, 5])


def test_a_range_that_is_left_out_moves_no_other() -> None:
    whole, part = flat(draw(ALL, [3, 4])), flat(draw(preset("CP+TH"), [3, 4]))
    assert part
    assert part == {name: whole[name] for name in part}


@pytest.mark.members(12)
@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_values_lie_between_the_ends_as_far_as_the_strength_goes(
    name: str, strength: float
) -> None:
    made = preset(name, strength)
    drawn = [flat(draw(made, [1, take])) for take in range(40)]
    for r in made.ranges:
        values = np.array([d[r.name] for d in drawn])
        assert (values >= r.low - 1e-9).all()
        assert (values <= r.high + 1e-9).all()
        ends = np.array([r.low, r.high])
        if r.distribution == "log_uniform":
            values, ends = np.log(values), np.log(ends)
        rounding = 0.5 if r.distribution == "integer" else 1e-9
        assert np.ptp(values) <= strength * np.ptp(ends) + rounding
        assert (np.ptp(values) > 0) == (strength > 0)
        if r.distribution == "integer":
            assert (values == np.round(values)).all()


def test_strength_zero_is_the_nominal_cell_to_the_bit(
    nominal: SimCell, sweep: Any, same: Any
) -> None:
    expected = sweep(nominal, 4)
    for every in ("episode", "frame"):
        nothing = replace(preset("dynamics+CP+TH+LT+BG+looks+CD", 0.0), every=every)
        with SimCell(randomise=nothing) as cell:
            assert same(expected, sweep(cell, 4))


def test_every_take_is_another_cell_and_the_same_one_again() -> None:
    with SimCell(randomise=ALL, image_size=64) as cell:
        seen = {}
        for seed in (1, 2, 1):
            cell.reset(seed)
            assert cell.drawn == cell.draw(seed)
            picture = cell.frame().image
            if seed in seen:
                np.testing.assert_array_equal(seen[seed], picture)
            seen[seed] = picture
        assert (seen[1] != seen[2]).any()
        drawn, friction = cell.drawn, cell.model.dof_frictionloss.copy()
    with SimCell(parameters=drawn, image_size=64) as again:  # what a take's lineage says
        again.reset(1)
        np.testing.assert_array_equal(again.frame().image, seen[1])
        np.testing.assert_array_equal(again.model.dof_frictionloss, friction)


@pytest.mark.members(5)
@pytest.mark.parametrize("mechanism", RANDOMISED, ids=lambda m: m.key)
def test_a_mechanism_for_training_acts_and_is_never_a_gap(
    mechanism: Mechanism, sweep: Any, same: Any
) -> None:
    assert mechanism.key not in {m.key for m in MECHANISMS}
    with pytest.raises(UnusableInputError):
        draw_gaps({mechanism.key: 0.5}, 0)
    far = {
        r.key: r.high if r.high != p.nominal else r.low
        for r in ALL.ranges
        for p in mechanism.parameters
        if r.mechanism == mechanism.key and r.key == p.name
    }
    assert set(far) == {p.name for p in mechanism.parameters}  # all of it is drawn by a preset
    with (
        SimCell(image_size=64) as plain,
        SimCell(parameters={mechanism.key: far}, image_size=64) as changed,
    ):
        alike = same(sweep(plain, 4, ticks=40), sweep(changed, 4, ticks=40))
        picture = (plain.frame().image == changed.frame().image).all()
        things = [
            np.r_[c.model.body_mass, c.model.body_ipos.ravel(), c.model.opt.gravity,
                  c.model.geom_solref.ravel()]
            for c in (plain, changed)
        ]  # fmt: skip
        assert not (alike and picture and np.array_equal(*things))


def test_a_file_comes_back_as_it_was_printed(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(as_yaml(replace(ALL, strength=0.5)))
    back = load_randomisation(path)
    assert (back.name, back.strength, back.every) == ("all", 0.5, "episode")
    assert [r.name for r in back.ranges] == [r.name for r in ALL.ranges]
    for ours, theirs in zip(back.ranges, ALL.ranges, strict=True):
        assert ours.low == pytest.approx(theirs.low, rel=1e-5)
        assert (ours.unit, ours.distribution) == (theirs.unit, theirs.distribution)
    assert known_and_drawn(None, f"{path}:0.5")[1] == replace(back, strength=0.25)


GOOD = {"low": 0.0, "high": 0.06, "unit": "s"}


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        (f"{DELAY}.latency_s", {"high": -1}, "no finite range"),
        (f"{DELAY}.latency_s", {"distribution": "gauss"}, "log_uniform"),
        (f"{DELAY}.latency_s", {"distribution": "log_uniform"}, "above 0"),
        (f"{DELAY}.latency_s", {"centre": 1.0}, "from 0 to 0.06"),
        (f"{DELAY}.latency_s", {"spread": 1.0}, "spread"),
        (f"{DELAY}.latency_s", {"unit": "ms"}, "its unit is s, not ms"),
        (f"{DELAY}.latency_s", {"high": 9.0}, "leaves 0 to 2"),
        (f"{DELAY}.latency", {}, "latency_s"),
        ("actuator_response.latnecy.latency_s", {}, "latency"),
        ("latency.latency_s", {}, "dimension.mechanism.parameter"),
        ("drives.latency.latency_s", {}, "actuator_response"),
    ],
)
def test_a_wrong_range_is_one_line(
    name: str, row: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.yaml"
    value = {"schema": "gaploop.randomisation.v1", "ranges": {name: {**GOOD, **row}}}
    path.write_text(yaml.safe_dump(value))
    with pytest.raises(UnusableInputError) as caught:
        known_and_drawn(None, str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def twin(path: Path) -> Path:
    measured = TwinParameter(f"{DELAY}.latency_s", "s", 0.0, 0.08, (0.07, 0.1), True, "probe")
    unknown = replace(
        measured, name="actuator_response.backlash.backlash_rad", excited=False,
        interval=(-np.inf, np.inf), estimate=0.0, unit="rad",
    )  # fmt: skip
    save_twin(Twin("bench", "so101", (measured, unknown)), path)
    return path


def test_around_a_twin_what_it_leaves_open_is_drawn(tmp_path: Path) -> None:
    known, ranges = known_and_drawn(twin(tmp_path / "twin.yaml"), "twin")
    assert ranges is not None
    values = [draw(ranges, [0, take])[DELAY]["latency_s"] for take in range(400)]
    assert np.mean([0.07 <= v <= 0.1 for v in values]) == pytest.approx(0.9, abs=0.05)
    assert np.median(values) == pytest.approx(0.08, abs=0.003)
    assert all(set(draw(ranges, [0, take])) == {DELAY} for take in range(3))
    assert over(known, draw(ranges, [0, 7]))[DELAY]["latency_s"] == values[7]


@pytest.mark.parametrize("friction", [0.2, 1.0])
def test_what_is_known_together_is_drawn_together(tmp_path: Path, friction: float) -> None:
    """A station let go of nothing; its twin, with an adhesion that wasn't told left at 0, did."""
    rows = [(0.2, 2.0), (0.5, 1.0), (0.9, 0.0)]
    factor, adhesion = (tuple(column) for column in zip(*rows, strict=True))
    at = "contact_dynamics.slippery.friction_factor", "contact_dynamics.sticky.adhesion_n"
    told = TwinParameter(
        at[0], "1", 1.0, friction, (0.2 * friction, friction), friction < 1, draws=factor
    )
    untold = TwinParameter(at[1], "N", 0.0, 0.0, (-np.inf, np.inf), False, draws=adhesion)
    save_twin(Twin("bench", "so101", (told, untold)), tmp_path / "twin.yaml")
    _, ranges = known_and_drawn(tmp_path / "twin.yaml", "twin")
    assert ranges is not None
    if friction == 1.0:  # nothing differs: a station that nothing is wrong with stays nominal
        assert ranges.ranges == ()
        return
    seen = {tuple(flat(draw(ranges, [0, take])).values()) for take in range(40)}
    assert seen == set(rows)
    (tmp_path / "ranges.yaml").write_text(as_yaml(ranges))
    assert load_randomisation(tmp_path / "ranges.yaml").ranges == ranges.ranges


def test_what_a_twin_has_measured_is_not_drawn_by_a_preset(tmp_path: Path) -> None:
    known, ranges = known_and_drawn(twin(tmp_path / "twin.yaml"), "dynamics")
    assert ranges is not None
    assert ranges == without(preset("dynamics"), known)
    assert DELAY not in {r.mechanism for r in ranges.ranges}
    assert len(ranges.ranges) == len(PRESETS["dynamics"]) - 1


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    for randomise, said in (
        ("twin", "--env.twin"),
        ("BG+XX", "all, dynamics"),
        ("a.yaml", "found"),
    ):
        with pytest.raises(UnusableInputError, match=said):
            known_and_drawn(None, randomise)
    with pytest.raises(UnusableInputError, match="0 to 2"):
        known_and_drawn(None, "all:3")
    with pytest.raises(UnusableInputError, match=r"--env\.robot=so101"):
        known_and_drawn(twin(tmp_path / "t.yaml"), "", "bi_so101", "--env.robot")


def test_two_ranges_of_one_mechanism_are_one_mechanism() -> None:
    pair = (Range("a.b.c", 0, 1, "1"), Range("a.b.joint.c", 0, 1, "1"))
    assert [(r.mechanism, r.key) for r in pair] == [("a.b", "c"), ("a.b", "joint.c")]
    assert Randomisation("x", pair).strength == 1.0

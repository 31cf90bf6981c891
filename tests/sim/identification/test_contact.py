"""Contact from a probe: what is felt, what intervals promise, and when nothing is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gaploop.collect.probe import parts_of, probe_cell
from gaploop.collect.rig import embedded_rig
from gaploop.core.journal_format import read_journal
from gaploop.core.take import Take
from gaploop.core.twin import Twin, TwinParameter
from gaploop.sim.catalogue import SO101
from gaploop.sim.cell import SimCell
from gaploop.sim.identification import contact as contact_module
from gaploop.sim.identification.contact import (
    EMPTY,
    FULL,
    MASS,
    PRIOR,
    STICKY,
    WANDERS,
    Simulated,
    _row,
    contact_script,
    ends,
    fit_contact,
    predict,
    probed,
    replay,
    simulate,
    summary,
)
from gaploop.sim.identification.wander import DRIFT

NOBODY = Twin("bench", "so101", ())


@pytest.fixture(scope="module")
def takes(tmp_path_factory: pytest.TempPathFactory) -> list[Take]:
    """The contact parts at a nominal station, by the probe itself."""
    folder = tmp_path_factory.mktemp("probe")
    parts = [p for p in parts_of(SO101.joint_names, (3, 3), SO101) if p.name in (FULL, EMPTY)]
    end = probe_cell(parts, folder, lambda set_up: embedded_rig(conditions=set_up), seed=3)
    assert [now.done for now in end.parts] == [True, True]
    return list(read_journal(folder))


def test_a_replay_feels_what_the_probe_felt(takes: list[Take]) -> None:
    """Or else the station differs from all that is simulated, and contact is put down to it."""
    there = probed(takes, SO101)
    assert there is not None
    rng = np.random.default_rng(0)
    here = tuple(replay(of, SO101, of is there[1], {}, rng) for of in there)
    first, end = contact_script(SO101).windows["up"]
    np.testing.assert_allclose(
        there[0].load_pct[first:end, 1:4].mean(0), here[0].load_pct[first:end, 1:4].mean(0), atol=1
    )
    assert np.nanmean(np.abs(there[0].q_rad - here[0].q_rad)[:, -1]) < 0.01


def test_each_kind_of_contact_is_felt(takes: list[Take]) -> None:
    probe = probed(takes, SO101)
    assert probe is not None
    windows = contact_script(SO101).windows

    def felt(**contact: dict[str, float]) -> dict[str, float]:
        cell = {key.replace("__", "."): values for key, values in contact.items()}
        now = replay(probe[0], SO101, False, cell, np.random.default_rng(1))
        load = {name: now.load_pct[slice(*rows), 1].mean() for name, rows in windows.items()}
        hard = now.q_rad[slice(*windows["squeeze 50"]), -1].mean()
        pushed = now.seen_m[windows["look 2"][1] - 1] - now.seen_m[windows["look 1"][1] - 1]
        return {
            "weight": -load["up"], "drag": load["slide 16"], "jaw_rad": hard,
            "pushed_m": float(np.linalg.norm(pushed)),
        }  # fmt: skip

    plain = felt()
    heavy = felt(object_property__mass={"mass_factor": 8.0})
    slippery = felt(contact_dynamics__slippery={"friction_factor": 0.05})
    soft = felt(contact_dynamics__soft={"time_constant_factor": 2.5})
    smooth = felt(contact_dynamics__table_friction={"friction_factor": 0.1})
    assert heavy["weight"] > plain["weight"] + 1.5  # 70 g at 16 cm are 2 to 4 % of the stall torque
    assert slippery["drag"] < plain["drag"] - 10.0
    assert soft["jaw_rad"] < plain["jaw_rad"] - 0.05
    assert smooth["pushed_m"] > plain["pushed_m"] + 0.02


def test_noise_of_the_station_is_in_each_simulated_probe(
    takes: list[Take], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings off by 2 degrees were taken for an object that sticks, by 2 N, and it was named."""
    probe = probed(takes, SO101)
    assert probe is not None
    name, rad = "sensor_noise.encoder_drift.noise_rad", 0.035
    noisy = {"sensor_noise.encoder_drift": {"noise_rad": rad}}
    bare = [replay(probe[1], SO101, True, noisy, np.random.default_rng(k)) for k in (0, 1)]
    apart = np.nanstd(bare[0].q_rad - bare[1].q_rad)
    assert apart == pytest.approx(2**0.5 * rad, rel=0.1)
    simulated = []
    monkeypatch.setattr(
        contact_module, "replay", lambda of, *given: simulated.append(given[2]) or of
    )
    measured = TwinParameter(name, "rad", 0.0, rad, (0.9 * rad, 1.1 * rad))
    simulate(probe, SO101, Twin("bench", "so101", (measured,)), 3)
    assert len(simulated) == 6
    for parameters in simulated:
        assert parameters["sensor_noise.encoder_drift"]["noise_rad"] == pytest.approx(rad, rel=0.3)


def made_up(n: int, rng: np.random.Generator) -> Simulated:
    """Probes in which the first of five quantities is never felt."""
    contact = rng.normal(size=(n, 5))
    mixed = contact[:, 1:] @ rng.normal(size=(4, 20)) + 0.2 * rng.normal(size=(n, 20))
    return Simulated(contact, np.arctan(mixed))


def test_ninety_of_a_hundred_contacts_lie_in_their_intervals() -> None:
    inside = []
    every = made_up(104, np.random.default_rng(0))
    simulated = Simulated(every.contact[:100], every.felt[:100])
    for contact, felt in zip(every.contact[100:], every.felt[100:], strict=True):
        here, errors = predict(simulated, felt)
        low, high = zip(*map(ends, here, errors.T), strict=True)
        inside.append((np.array(low) <= contact) & (contact <= np.array(high)))
        assert np.argmax(np.subtract(high, low)) == 0
    assert 0.8 <= np.mean(inside) <= 1.0


def test_what_feels_alike_is_not_excited_and_the_rest_is(takes: list[Take]) -> None:
    probe = probed(takes, SO101)
    assert probe is not None
    rng, here = np.random.default_rng(0), summary(*probe, SO101)
    contact = rng.normal(size=(200, 5))
    felt = here + 1e-3 * rng.normal(size=(200, len(here)))
    felt[:, 0] = here[0] + contact[:, list(PRIOR).index(MASS)]
    rows = {p.name: p for p in fit_contact(takes, SO101, NOBODY, Simulated(contact, felt))}
    assert [name for name, p in rows.items() if p.excited] == [MASS]
    assert not rows[MASS].differs
    assert all(p.estimate == p.nominal for p in rows.values())


@pytest.mark.parametrize(("at_n", "is_told"), [(2.6, True), (1.4, False)])
def test_what_sticks_however_much_is_told_as_wide_as_it_is(at_n: float, is_told: bool) -> None:
    """Of an object that sticks by 2.8 N, 1.5 to 4.5 N was said to "feel like too many"."""
    errors, known = np.linspace(-1.5, 1.5, 60), np.linspace(0.0, 4.5, 300)
    row = _row(STICKY, at_n, errors, known, "probe")
    assert row.excited == row.differs == is_told
    assert not is_told or row.interval[1] - row.interval[0] > 2.0


def cut_off(takes: list[Take], at_s: float) -> list[Take]:
    """Return a probe that a trip ended with the object in the jaws."""
    full = next(t for t in takes if t.info.conditions["probe"] == FULL)
    rows = full.telemetry.t_s < at_s
    columns = {name: values[rows] for name, values in full.telemetry.columns.items()}
    record = replace(full.telemetry, t_s=full.telemetry.t_s[rows], columns=columns)
    return [replace(full, telemetry=record), *(t for t in takes if t is not full)]


def test_what_was_felt_before_a_trip_counts(takes: list[Take]) -> None:
    """An object that slipped out of the jaws stalled the arm, and nothing was told of it."""
    whole, cut = probed(takes, SO101), probed(cut_off(takes, 17.0), SO101)
    assert whole is not None
    assert cut is not None
    before, here = summary(*whole, SO101), summary(*cut, SO101)
    left = np.isfinite(here)
    assert 0.4 < left.mean() < 0.9
    np.testing.assert_allclose(here[left], before[left], atol=0.2)
    rng = np.random.default_rng(0)
    contact, felt = rng.normal(size=(100, 5)), before + rng.normal(size=(100, len(before)))
    felt[:, 0] = before[0] + contact[:, list(PRIOR).index(MASS)]
    rows = fit_contact(cut_off(takes, 17.0), SO101, NOBODY, Simulated(contact, felt))
    assert MASS in {p.name for p in rows if p.excited}


def test_no_contact_is_told_without_its_parts_or_when_they_were_cut(takes: list[Take]) -> None:
    full = next(t for t in takes if t.info.conditions["probe"] == FULL)
    for some in ([], [full], cut_off(takes, 5.0)):
        told = fit_contact(some, SO101, NOBODY)
        assert not any(p.excited or p.differs for p in told)
        assert all("no contact part" in p.source for p in told)


def test_no_contact_is_told_of_an_arm_whose_readings_wander(takes: list[Take]) -> None:
    """Station 33's encoders drifted: where the arm swayed, the object was called slippery."""
    wanders = TwinParameter(DRIFT, "rad", 0.0, 0.04, (0.03, 0.05), joint="elbow_flex")
    rows = fit_contact(takes, SO101, replace(NOBODY, parameters=(wanders,)))
    assert {(row.excited, row.source) for row in rows} == {(False, WANDERS)}


def test_nothing_is_told_of_what_is_unlike_all_that_is_simulated(takes: list[Take]) -> None:
    """A drive that no parameter explains, or another object, was taken for friction or mass."""
    probe = probed(takes, SO101)
    assert probe is not None
    here = summary(*probe, SO101)
    rng = np.random.default_rng(0)
    contact = rng.normal(size=(100, 5))
    felt = here + rng.normal(size=(100, len(here)))
    felt[:, 0] = here[0] + contact[:, list(PRIOR).index(MASS)]
    near = Simulated(contact, felt)
    odd = replace(NOBODY, fit={"explained": False})
    for twin, shift in ((odd, 0.0), (NOBODY, 10.0)):
        told = fit_contact(takes, SO101, twin, replace(near, felt=felt + shift))
        assert not any(p.excited for p in told)
    assert any(p.excited for p in fit_contact(takes, SO101, NOBODY, near))


def test_drives_are_handed_on_with_what_is_unknown_of_them(takes: list[Take]) -> None:
    """With nominal drives assumed, two of five stations with a second fault were inside."""
    probe = probed(takes, SO101)
    assert probe is not None
    name = "actuator_response.weak.gain_factor"
    weak = TwinParameter(name, "1", 1.0, 0.1, (0.02, 0.3), True, "probe")
    nominal = simulate(probe, SO101, NOBODY, 2)
    handed_on = simulate(probe, SO101, replace(NOBODY, parameters=(weak,)), 2)
    np.testing.assert_array_equal(nominal.contact, handed_on.contact)
    assert np.abs(nominal.felt - handed_on.felt).max() > 1.0


def test_a_torque_limit_ends_with_the_take() -> None:
    with SimCell(image_size=32) as cell:
        gripper = cell.model.actuator("gripper")
        whole = gripper.forcerange.copy()
        cell.limit_gripper(6.0)
        np.testing.assert_allclose(gripper.forcerange, [-0.1764, 0.1764])
        cell.limit_gripper(100.0)
        np.testing.assert_array_equal(gripper.forcerange, whole)
        cell.limit_gripper(6.0)
        cell.reset(1)
        np.testing.assert_array_equal(gripper.forcerange, whole)

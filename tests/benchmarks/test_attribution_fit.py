"""Laws of fitting and calibrating the attribution model, on failures whose causes are known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.corpus import fit
from benchmarks.corpus.fit import LabelledFailures, targets
from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.attribution import (
    CAUSES,
    FIRST,
    SECOND,
    Pairs,
    candidates,
    doubted,
    named,
    softmax,
    together,
)


def labelled(
    rows: FloatArray,
    of: FloatArray,
    groups: tuple[frozenset[str], ...] = (),
    tasks: tuple[str, ...] = (),
) -> LabelledFailures:
    return LabelledFailures(rows, of, np.ones(len(rows)), np.ones(len(rows)), groups, tasks)


def test_left_out_predictions_never_saw_their_mechanism_or_task() -> None:
    groups = tuple(frozenset({g}) for g in "aabbccdd")
    tasks = ("x", "y") * 4
    data = labelled(np.arange(8.0)[:, None], np.full((8, 10), 0.1), groups, tasks)
    seen: list[LabelledFailures] = []

    def spy(train: LabelledFailures):  # type: ignore[no-untyped-def]
        seen.append(train)
        return lambda rows: np.full((len(rows), 10), train.rows.sum())

    logits = fit.left_out(data, spy)
    assert len(seen) == 8
    for n, (group, task) in enumerate(zip(groups, tasks, strict=True)):
        allowed = [k for k in range(8) if not groups[k] & group and tasks[k] != task]
        assert logits[n, 0] == sum(allowed)


def test_mixtures_stay_out_of_fits_for_either_of_their_mechanisms() -> None:
    groups = (frozenset("a"), frozenset("b"), frozenset("ab"), frozenset("c"))
    data = labelled(np.arange(4.0)[:, None], np.full((4, 10), 0.1), groups, ("x",) * 4)
    totals = fit.left_out(
        data, lambda train: lambda rows: np.full((len(rows), 10), train.rows.sum())
    )
    assert totals[0, 0] == 1.0 + 3.0
    assert totals[2, 0] == 3.0


def test_conformal_sets_cover_every_cause_as_stated() -> None:
    """Within each cause, fresh draws are covered as stated; a rare cause is in every set."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[FloatArray, LabelledFailures]:
        p = rng.dirichlet(np.full(10, 0.4), n)
        truth = [int(rng.choice(10, p=row)) for row in p]
        return p, labelled(np.empty((n, 0)), np.eye(10)[truth])

    p, data = draw(3000)
    cuts = fit.conformal_cuts(p, data)
    fresh, other = draw(4000)
    truth = other.targets.argmax(axis=1)
    inside = np.array([CAUSES[t] in candidates(s, cuts) for s, t in zip(fresh, truth, strict=True)])
    assert min(inside[truth == c].mean() for c in range(10)) >= 0.85
    few, rare = draw(3)
    assert set(candidates(fresh[0], fit.conformal_cuts(few, rare))) == set(CAUSES)


def drawn(logits: FloatArray, doubt: float = 0.0, seed: int = 1) -> LabelledFailures:
    """Causes drawn as often as these logits say."""
    rng = np.random.default_rng(seed)
    p = doubted(softmax(logits), (doubt,) * 10)
    of = np.eye(10)[[int(rng.choice(10, p=row)) for row in p]]
    return labelled(np.empty((len(logits), 0)), of)


def test_calibration_fixes_overconfidence() -> None:
    true = np.random.default_rng(2).normal(0.0, 2.0, (3000, 10))
    temperature, doubt = fit.calibration(3.0 * true, drawn(true))
    assert temperature == pytest.approx(3.0, rel=0.1)
    assert max(doubt) < 0.05


def test_doubt_is_found_where_sure_evidence_is_wrong_at_times() -> None:
    sure = np.random.default_rng(2).normal(0.0, 6.0, (4000, 10))
    _, doubt = fit.calibration(sure, drawn(sure, 0.2))
    assert doubt == pytest.approx((0.2,) * 10, abs=0.06)


def test_what_two_causes_are_worth_is_found_again() -> None:
    rng = np.random.default_rng(3)
    logits, true = rng.normal(0.0, 2.0, (4000, 10)), Pairs(0.7, 0.6, -1.5)
    placed = rng.exponential(3.0, 4000) * (rng.random(4000) < 0.3)
    sets = together(logits, placed, true)
    which = np.array([int(rng.choice(46, p=row)) for row in sets])
    of = np.zeros((4000, 10))
    for row, k in zip(of, which, strict=True):
        row[[k] if k < 10 else [FIRST[k - 10], SECOND[k - 10]]] = 1.0 if k < 10 else 0.5
    data = labelled(np.empty((4000, 0)), of)
    assert (fit.true_sets(of) == which).all()
    found = fit.fit_pairs(logits, placed, (0.0,) * 10, data)
    assert found.second == pytest.approx(true.second, abs=0.1)
    assert found.placed == pytest.approx(true.placed, abs=0.15)
    assert found.odds == pytest.approx(true.odds, abs=0.25)


def test_naming_less_where_a_wrong_name_costs_more() -> None:
    """Half of the takes have a second cause that nothing shows: one of two isn't worth naming."""
    sets = np.zeros((100, 46))
    sets[:, 0], sets[:, 10] = 0.6, 0.3
    of = targets([["contact_dynamics"]] * 50 + [["contact_dynamics", "visual_domain"]] * 50)
    limits = fit.thresholds(sets, (0.9,) * 10, labelled(np.empty((100, 0)), of))
    assert named(sets[0], limits) == ()

"""What came of plans is kept at their station, counted against what was expected, and built on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import EXPECTED_CONFIDENCE, Plan, PlanItem, load_plan, save_plan
from gaploop.core.statistics import Estimate, TrialCounts
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis, load_diagnosis, save_diagnosis
from gaploop.failure_analysis.planning.gains import Budget, expected_curves
from gaploop.failure_analysis.planning.ledger import (
    LEDGER,
    LedgerEntry,
    LedgerRemedy,
    brought_here,
    curves_here,
    ledger_lines,
    note_carried_out,
    read_ledger,
)
from gaploop.failure_analysis.planning.planner import PlanRequest, plan_for
from gaploop.failure_analysis.planning.remedies import fixed_by
from gaploop.scripts.cli import main

D = GapDimension
SIZE = LedgerRemedy("resimulate", D.OBJECT_PROPERTY, 0, 1.0)
ENTRY = LedgerEntry(
    "p",
    "d",
    "2026-11-27",
    Estimate(0.6, 0.4, 0.8),
    TrialCounts(2, 20),
    TrialCounts(15, 20),
    (SIZE,),
)


def after(won: int, lost: int, name: str = "later") -> Diagnosis:
    return Diagnosis(name, "", (), {"outcomes": {"success": won, "failure": lost}})


def a_plan(folder: Path, **changes: object) -> Path:
    gain = Estimate(60, 30, 90)
    item = PlanItem("p:1", D.OBJECT_PROPERTY, 0, "resimulate", share=0.9, gain_points=gain)
    words = PlanItem("p:2", D.VISUAL_DOMAIN, 0, "change_scene", share=0.1)
    made = Plan(
        "p", "d", (item, words), expected=Estimate(0.6, 0.4, 0.8), before=TrialCounts(2, 20)
    )
    save_plan(replace(made, **changes), folder / "plan.yaml")  # type: ignore[arg-type]
    return folder / "plan.yaml"


def test_what_came_of_a_plan_is_written_once_and_read_again(tmp_path: Path) -> None:
    plan, ledger = a_plan(tmp_path), tmp_path / LEDGER
    entry = note_carried_out(ledger, plan, after(15, 5))
    assert note_carried_out(ledger, plan, after(15, 5)) == entry
    assert read_ledger(ledger) == (entry,)
    assert entry.came.value == pytest.approx(0.65)
    assert [r.remedy for r in entry.remedies] == ["resimulate"]  # words promise nothing
    note_carried_out(ledger, plan, after(10, 10, "another"))
    assert len(read_ledger(ledger)) == 2


@pytest.mark.parametrize(
    ("changes", "found", "says"),
    [
        ({}, after(3, 3, "d"), "made from this diagnosis"),
        ({"before": None}, after(3, 3), "doesn't name the rollouts"),
        ({}, after(0, 0), "gaploop review"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, changes: Mapping[str, object], found: Diagnosis, says: str
) -> None:
    with pytest.raises(UnusableInputError, match=says):
        note_carried_out(tmp_path / LEDGER, a_plan(tmp_path, **changes), found)
    assert not (tmp_path / LEDGER).exists()


@pytest.mark.parametrize("line", ['{"plan": 1}', "[]", "{}"])
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / LEDGER).write_text(f"{line}\n{line}\n")
    with pytest.raises(UnusableInputError, match="line 1"):
        read_ledger(tmp_path / LEDGER)


def test_intervals_that_are_right_hold_as_often_as_they_say() -> None:
    """Gains drawn from the interval that was promised, counted by 20 rollouts before and after."""
    rng, inside, n = np.random.default_rng(0), 0, 400
    for _ in range(n):
        before = rng.uniform(0.0, 0.4)
        gain = rng.normal(0.4, 0.1 / 1.645)
        counts = [TrialCounts(int(rng.binomial(20, p)), 20) for p in (before, before + gain)]
        entry = replace(ENTRY, expected=Estimate(0.4, 0.3, 0.5), before=counts[0], after=counts[1])
        inside += entry.is_inside
    assert inside / n == pytest.approx(EXPECTED_CONFIDENCE, abs=0.06)
    assert not replace(ENTRY, after=TrialCounts(2, 20)).is_inside
    words = replace(ENTRY, expected=None)
    assert ledger_lines([words]) == [words.message]
    assert "nothing was promised" in words.message
    counted, *_ = ledger_lines([ENTRY, replace(ENTRY, after=TrialCounts(0, 20))])
    assert "1 of 2" in counted


def test_a_station_builds_on_what_helped_there() -> None:
    def expected(entries: tuple[LedgerEntry, ...]) -> float:
        found = fixed_by(
            "resimulate", D.OBJECT_PROPERTY, False,
            brought_here(entries, "resimulate", D.OBJECT_PROPERTY),
        )  # fmt: skip
        assert found is not None
        return float(found[0].mean())

    failed = replace(ENTRY, after=TrialCounts(2, 20))
    assert (
        expected((failed,)) < expected(()) < expected((replace(ENTRY, after=TrialCounts(20, 20)),))
    )
    assert not brought_here((ENTRY,), "resimulate", D.CONTACT_DYNAMICS)
    two = replace(ENTRY, remedies=(SIZE, LedgerRemedy("recalibrate", D.SPATIAL_GEOMETRY, 0, 0.3)))
    assert not brought_here((two,), "resimulate", D.OBJECT_PROPERTY)  # which of them it was is open

    taken = replace(failed, remedies=(LedgerRemedy("collect", D.OBJECT_PROPERTY, 20, 0.9),))
    curves = expected_curves()
    moved = curves_here(curves, [taken])
    assert moved[D.OBJECT_PROPERTY].responds < curves[D.OBJECT_PROPERTY].responds
    assert moved[D.VISUAL_DOMAIN] is curves[D.VISUAL_DOMAIN]


def test_plan_after_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of docs/diagnose/planning.md, on diagnoses of rollouts before and after."""
    first = load_diagnosis(_diagnosed(tmp_path / "before_diagnosis", 16, 4, "before"))
    assert main(["plan", str(tmp_path / "before_diagnosis"), f"--output_dir={tmp_path / 'p'}"]) == 0
    plan = load_plan(tmp_path / "p" / "plan.yaml")
    assert plan.takes
    assert plan.before == TrialCounts(4, 20)
    assert plan.diagnosis == first.id
    _diagnosed(tmp_path / "after_diagnosis", 4, 16, "after")
    done = f"--carried_out={tmp_path / 'p' / 'plan.yaml'}"
    assert main(["plan", str(tmp_path / "after_diagnosis"), done]) == 0
    said = capsys.readouterr().out
    assert "1 of 1 brought what was expected" in said
    assert "(4 of 20 rollouts before, 16 of 20 after)" in " ".join(said.split())
    page = (tmp_path / "after_diagnosis" / "plan.html").read_text()
    assert "brought what was expected" in page
    assert (tmp_path / LEDGER).read_text().count("\n") == 1


def test_where_nothing_failed_nothing_is_asked_for() -> None:
    """Incident: rollouts that all went well were told to have too few named causes."""
    summary = {"takes": 8, "diagnosed": 0, "outcomes": {"success": 8}}
    plan = plan_for(Diagnosis("d", "", (), summary), PlanRequest(Budget(takes=5)))
    assert plan.stop.startswith("Nothing failed")
    assert not any("Find out first" in note for note in plan.notes)


def _diagnosed(folder: Path, lost: int, won: int, name: str) -> Path:
    from tests.failure_analysis.test_plan_command import a_diagnosis

    path = a_diagnosis(folder, {"object_property": 0.9}, lost) / "diagnosis.json"
    found = load_diagnosis(path)
    outcomes = {"outcomes": {"failure": lost, "success": won}}
    save_diagnosis(replace(found, id=name, summary={**found.summary, **outcomes}), path)
    return path

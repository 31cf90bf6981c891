"""Reports are one self-contained page that says what was found; scoring counts what was right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from failure_analysis_makers import repeated, scene_picture, successes, take

from benchmarks.chromium import browser, open_tab
from benchmarks.corpus.scores import read_truth
from benchmarks.corpus.scoring import cross_table
from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import Plan
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis, diagnose, summarise
from gaploop.failure_analysis.factors import CohortStatistics, Trials, cohort_of_trials
from gaploop.failure_analysis.planning.document import plan_section
from gaploop.failure_analysis.planning.gains import Budget, expected_curves, flat_curve
from gaploop.failure_analysis.planning.planner import PlanRequest, plan_for
from gaploop.failure_analysis.reference import choose_reference
from gaploop.failure_analysis.report import page as html
from gaploop.failure_analysis.report.page import (
    Section,
    page,
    table,
)
from gaploop.failure_analysis.report.report import CARDS, cohort_page, diagnosis_report
from gaploop.failure_analysis.views.pictures import picture_png


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    bad = [
        take(uid=f"bad-{k}", seed=30 + k, lag_s=0.3, pictures=repeated(scene_picture()))
        for k in range(3)
    ]
    return diagnose([*successes(), *bad], source="a cell")


def instead_of_takes(diagnosis: Diagnosis) -> Plan:
    """A plan by somebody who believes that demonstrations don't fix drives."""
    curves = expected_curves() | {GapDimension.ACTUATOR_RESPONSE: flat_curve(0.9)}
    return plan_for(diagnosis, PlanRequest(Budget(takes=30), curves))


def test_a_report_holds_everything_in_one_file(diagnosis: Diagnosis) -> None:
    html = diagnosis_report(diagnosis, {"bad-0": (scene_picture(), scene_picture())})
    assert html.startswith("<!DOCTYPE html>")
    assert "data:image/png;base64," in html
    for outside in ("http://", "https://", "<script", "<link"):
        assert outside not in html
    assert "actuator response" in html
    assert "300 ms" in html


def test_a_report_of_no_failure_says_so() -> None:
    assert "No failure" in diagnosis_report(diagnose(list(successes())))


def test_what_is_put_into_a_page_is_escaped() -> None:
    html = page("<b>", [Section("<i>", table(["<u>"], [["<s>"]]))])
    for tag in ("<b>", "<i>", "<u>", "<s>"):
        assert tag not in html.split("<body>")[1]


@pytest.mark.skipif(browser() is None, reason="no Chromium is installed")
def test_no_name_makes_a_page_wider_than_a_phone_or_runs(tmp_path: Path) -> None:
    """A joint's long name in a heading ran out of the page, and in a legend it left the curves a
    third of the width."""
    name = "left_joint_of_the_whole_body_" * 4 + "<script>document.title = 1</script>"
    program = browser()
    assert program is not None
    blocks = [
        html.text(name), html.notice(name), html.facts([(name, name)]),
        html.answers([(name, name)]), html.take_card(name, [name], [name], [scene_picture()]),
        html.table([name, "n"], [[name, 1]]), html.heat([name], [name], {}), html.command(name),
        html.bars([html.BarRow(name, 0.5, 0.4, 0.6, name)], (0.0, 1.0)),
        html.legend([("red", name)] * 40), html.table("12345", [[*"1234", "word " * 100]]),
        html.figure(picture_png(scene_picture()), name, 2000),
    ]  # fmt: skip
    file = tmp_path / "page.html"
    made = page(name, [html.section(name, name, blocks)], subtitle=name, footer=name)
    file.write_text(made)
    with open_tab(program, 320, 800) as tab:
        tab.go(file.as_uri())
        tab.wait("document.readyState === 'complete'")
        assert tab.js("document.documentElement.scrollWidth") <= 320
        # A plan's reasons stood in a column of a word's width, a page below each other.
        rows = "[...document.querySelectorAll('tr')].map(row => row.offsetHeight)"
        assert tab.js(f"Math.max(...{rows})") < 800
        assert tab.js("document.title") == name
        assert not tab.log


def test_a_plan_is_shown_with_what_to_do_instead(diagnosis: Diagnosis) -> None:
    html = page("Plan", [plan_section(instead_of_takes(diagnosis))])
    assert "Don&#39;t collect" in html or "Don't collect" in html
    assert "change scene" in html


def test_scoring_counts_rows_and_columns(diagnosis: Diagnosis) -> None:
    truth = {
        f"bad-{k}": {
            "injected": [{"dimension": "actuator_response", "severity": 1.0}],
            "label": "x",
        }
        for k in range(3)
    }
    scored = cross_table(diagnosis, truth)
    assert (scored.right, scored.total) == (3, 3)
    assert "actuator_response" in scored.text()
    assert cross_table(diagnosis, {}).total == 0


def test_a_bad_truth_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    path.write_text('{"uid": "a"}\nnonsense\n')
    with pytest.raises(UnusableInputError, match="line 2"):
        read_truth(path)
    with pytest.raises(UnusableInputError, match=r"truth2\.jsonl"):
        read_truth(tmp_path / "truth2.jsonl")


def test_pictures_without_any_structure_do_not_crash() -> None:
    flat = repeated(np.full((192, 192, 3), 90, dtype=np.uint8))
    found = diagnose([*successes(), take(uid="bad", seed=40, pictures=flat)]).takes
    assert sum(found[0].dimensions.values()) + found[0].none == pytest.approx(1.0)


def cohort(level: str = "dim") -> CohortStatistics:
    return cohort_of_trials([
        Trials({"lighting": "nominal"}, 45, 50),
        Trials({"lighting": level}, 15, 50),
    ])  # fmt: skip


def test_the_first_section_answers_where_why_how_sure_and_what_to_do(diagnosis: Diagnosis) -> None:
    found = replace(diagnosis, cohort=cohort())
    html = diagnosis_report(found, {}, instead_of_takes(diagnosis))
    minute = html.split("<section>")[1]
    for question in ("Success", "Where", "Why", "How sure", "What to do"):
        assert f"<dt>{question}</dt>" in minute
    assert "lighting dim, -59 points" in minute  # -60 raw; the estimate is a bit more careful
    assert "Actuator response" in minute
    assert "rather than record" in minute


def test_a_cause_that_nothing_speaks_for_has_no_share(diagnosis: Diagnosis) -> None:
    """Three failures of a foreign arm had "contact dynamics 10%, visual domain 10%, …" each."""
    even = dict.fromkeys(diagnosis.takes[0].dimensions, 0.1)
    takes = tuple(replace(t, dimensions=even, abstained=True) for t in diagnosis.takes)
    html = diagnosis_report(replace(diagnosis, takes=takes))
    assert "cause not named" in html
    assert ">contact dynamics 10%<" not in html


def test_names_in_conditions_are_escaped() -> None:
    html = cohort_page(cohort("<script>"), "<b>")
    assert "<script>" not in html
    assert "<b>" not in html.split("<body>")[1].replace("<b>60%</b>", "").replace("<b>100</b>", "")


def test_a_report_of_thousands_of_failures_stays_short(diagnosis: Diagnosis) -> None:
    many = [replace(diagnosis.takes[0], uid=f"take-{k}", episode=k) for k in range(3000)]
    large = Diagnosis("id", "many", tuple(many), summarise(many, [], choose_reference([])))
    html = diagnosis_report(replace(large, cohort=cohort()))
    assert html.count('<div class="take">') == CARDS
    assert len(html) < 60_000

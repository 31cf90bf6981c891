"""Campaigns: the order is a permutation of the quotas, balanced, and goes on where it ended."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.collect.campaign import (
    BLOCK_TAKES,
    SETUP_EFFORT,
    Quota,
    campaign,
    campaign_progress,
    change_words,
    changed,
    held,
    in_blocks,
    plan_quotas,
    still_missing,
    words,
)
from gaploop.collect.journal import JournalWriter
from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import uuid7
from gaploop.core.journal_format import LABELS, TakeHeader
from gaploop.core.plan import Plan, PlanItem, load_plan, save_plan
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import GapDimension, Outcome, TakeKind

D = GapDimension
LIGHTS = ("nominal", "dim", "warm")


@st.composite
def quotas(draw: st.DrawFn) -> list[Quota]:
    """Set-ups of one or two items, each with a number of takes."""
    found = []
    for item in draw(st.sampled_from((("a",), ("a", "b")))):
        lights = draw(st.lists(st.sampled_from(LIGHTS), min_size=1, unique=True))
        levels = draw(st.lists(st.sampled_from((0, 2, 4, 8)), min_size=1, unique=True))
        for light, level in itertools.product(lights, levels):
            conditions = {"lighting": light, "distractors": level}
            found.append(Quota(draw(st.integers(1, 9)), item, {}, conditions))
    return found


def flat(order: list[Quota]) -> list[str]:
    return [quota.key for quota in order for _ in range(quota.takes)]


@given(quotas(), st.integers(0, 5))
def test_the_order_is_a_permutation_of_the_quotas(asked: list[Quota], seed: int) -> None:
    order = flat(in_blocks(asked, str(seed)))
    assert Counter(order) == Counter({quota.key: quota.takes for quota in asked})


@given(quotas(), st.integers(0, 5))
def test_no_setup_is_recorded_in_one_stretch_only(asked: list[Quota], seed: int) -> None:
    order = flat(in_blocks(asked, str(seed)))
    stretches = Counter(key for key, _ in itertools.groupby(order))
    for quota in asked:
        if quota.takes > 1 and len(asked) > 1:
            assert stretches[quota.key] > 1


@given(quotas(), st.integers(0, 5), st.data())
def test_what_is_left_after_any_number_of_takes_is_the_rest_of_the_order(
    asked: list[Quota], seed: int, data: st.DataObject
) -> None:
    order = in_blocks(asked, str(seed))
    takes = flat(order)
    done = data.draw(st.integers(0, len(takes)))
    lacking = still_missing(in_blocks(asked, str(seed)), Counter(takes[:done]))
    rest = [q.key for n, q in zip(lacking, order, strict=True) for _ in range(n)]
    assert rest == takes[done:]


@given(quotas(), st.dictionaries(st.integers(0, 30), st.integers(0, 20)))
def test_whatever_has_been_recorded_the_rest_is_what_is_missing(
    asked: list[Quota], extra: dict[int, int]
) -> None:
    have = Counter({q.key: extra.get(n, 0) for n, q in enumerate(asked)})
    order = in_blocks(asked, "x")
    left = Counter[str]()
    for n, quota in zip(still_missing(order, have), order, strict=True):
        left[quota.key] += n
    assert all(left[q.key] == max(0, q.takes - have[q.key]) for q in asked)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_every_value_of_every_condition_is_spread_over_the_blocks(seed: int) -> None:
    """A condition that is only recorded at five in the afternoon is the afternoon."""
    item = PlanItem("i", D.VISUAL_DOMAIN, 72, "collect", "", vary={
        "lighting": LIGHTS, "grid_cell": tuple([r, c] for r in range(3) for c in range(3)),
    })  # fmt: skip
    takes = [q for q in campaign(Plan("p", "", (item,)), seed) for _ in range(q.takes)]
    half = [dict(q.conditions) for q in takes[: len(takes) // 2]]
    for light in LIGHTS:
        assert 8 <= sum(c["lighting"] == light for c in half) <= 16  # 12 on average
    for cell in item.vary["grid_cell"]:
        assert 1 <= sum(c["grid_cell"] == cell for c in half) <= 7  # 4 on average


def test_within_a_block_little_is_changed_at_a_time() -> None:
    vary = {"lighting": LIGHTS, "grid_cell": tuple([r, c] for r in range(3) for c in range(3))}
    item = PlanItem("i", D.VISUAL_DOMAIN, 54, "collect", "", vary=vary)
    order = campaign(Plan("p", "", (item,)))
    lights = sum(
        "lighting" in changed(a.conditions, b.conditions) for a, b in itertools.pairwise(order)
    )
    shuffled = np.random.default_rng(0).permutation(len(order))
    at_random = sum(
        "lighting" in changed(order[a].conditions, order[b].conditions)
        for a, b in itertools.pairwise(shuffled)
    )
    blocks = 54 / BLOCK_TAKES
    assert lights <= len(LIGHTS) * (blocks + 2)
    assert lights < at_random / 2


def test_the_seed_draws_the_order_and_nothing_else_does() -> None:
    vary = {"distractors": (0, 2, 4, 8)}
    plan = Plan("p", "", (PlanItem("i", D.ENVIRONMENTAL_COMPLEXITY, 30, "collect", "", vary=vary),))
    assert campaign(plan, 1) == campaign(plan, 1)
    assert len({tuple(flat(campaign(plan, seed))) for seed in range(5)}) > 1


@given(st.integers(0, 40), st.integers(0, 3))
def test_takes_of_an_item_are_spread_evenly_over_its_setups(takes: int, seed: int) -> None:
    vary = {"distractors": (2, 4, 8), "lighting": ("dim", "warm")}
    item = PlanItem("i", D.VISUAL_DOMAIN, takes, "collect", "", vary=vary)
    found = plan_quotas(Plan("p", "", (item,)), seed)
    assert sum(q.takes for q in found) == takes
    share = [q.takes for q in found] + [0] * (6 - len(found))
    assert max(share) - min(share) <= 1


STATION = Station("bench", conditions={"lighting": ("day", "lamp")}, grid=(2, 3))


def test_vary_is_saved_and_read_back_and_all_means_all(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "schema: gaploop.plan.v1\nid: p\nitems:\n- {id: i, dimension: visual_domain, takes: 12,"
        " remedy: collect, vary: {lighting: all, grid_cell: all}}\n"
    )
    plan = load_plan(path, STATION)
    assert len(plan.items[0].setups()) == 12
    save_plan(plan, path)
    assert load_plan(path, STATION) == plan


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("{lighting: [moon]}", "day, lamp"),
        ("{lighting: day}", "list of values, or all"),
        ("{distractors: all}", "list of values"),
        ("{lighting: [day, day]}", "twice"),
        ("{table_height: [0.01]}", "already"),
        ("{grid_cell: [[2, 0]]}", "within"),
        ("[lighting]", "must be a mapping"),
    ],
)
def test_a_vary_that_makes_no_sense_is_refused(tmp_path: Path, vary: str, said: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "schema: gaploop.plan.v1\nid: p\nitems:\n- {id: i, dimension: visual_domain, takes: 2,"
        f" remedy: collect, conditions: {{table_height: 0.01}}, vary: {vary}}}\n"
    )
    with pytest.raises(UnusableInputError, match=said):
        load_plan(path, STATION)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({}, "the station as usual"),
        ({"distractors": 1, "lighting": "dim"}, "lighting: dim; 1 distractor"),
        ({"grid_cell": [0, 2]}, "object in grid cell row 0, column 2 (right, far)"),
        ({"grid_cell": (2, 1)}, "object in grid cell row 2, column 1 (left, halfway)"),
        ({"table_height": -0.012}, "table -12 mm"),
        ({"glove": "blue"}, "glove: blue"),
    ],
)
def test_setups_in_words(conditions: dict[str, object], said: str) -> None:
    assert words(conditions, (3, 3)) == said


def test_only_what_changes_is_said() -> None:
    before = {"lighting": "dim", "distractors": 2, "grid_cell": [0, 0]}
    after = {"lighting": "dim", "distractors": 4}
    assert change_words(before, after, (3, 3)) == "4 distractors; object anywhere"
    assert change_words(before, dict(before), (3, 3)) == "nothing to change"


def take(
    journal: Path,
    t0_s: float,
    conditions: dict[str, object],
    outcome: Outcome = Outcome.SUCCESS,
    session: str = "s",
) -> str:
    """Write a sealed take of two seconds without signals, as the campaign's log reads it."""
    info = TakeInfo(
        uuid7(), plan="i", fps=1.0, conditions=conditions, session=session, t0_ns=int(t0_s * 1e9)
    )
    with JournalWriter(journal, TakeHeader(info)) as writer:
        for t_s in (0.0, 1.0):
            writer.frame(_row(t_s))
        writer.seal(outcome)
    return info.uid


def _row(t_s: float):  # type: ignore[no-untyped-def]
    from gaploop.collect.journal import FrameRow

    none = np.empty(0)
    return FrameRow(t_s, none, none, none)


def test_progress_counts_labels_and_estimates_from_what_was_seen(tmp_path: Path) -> None:
    dim, warm = {"lighting": "dim"}, {"lighting": "warm"}
    order = [Quota(2, "i", {}, dim), Quota(2, "i", {}, warm), Quota(2, "i", {}, dim)]
    nothing = campaign_progress(tmp_path / "none", order)
    assert (nothing.have, nothing.wanted, nothing.measured) == (0, 6, 0)
    assert nothing.left_s == 6 * (15 + 30) + 2 * SETUP_EFFORT["lighting"] * 60
    take(tmp_path, 0, dim)
    relabelled = take(tmp_path, 10, dim)  # 8 s after the end of the one before
    take(tmp_path, 22, dim, Outcome.FAILURE)  # 10 s
    take(tmp_path, 54, warm)  # 30 s, a change of set-up
    take(tmp_path, 5000, {**warm, "distractors": 2}, session="after lunch")
    take(tmp_path, 5100, {"lighting": "nominal"}, session="after lunch")
    seen = campaign_progress(tmp_path, order)
    assert [(s.have, s.wanted) for s in seen.setups] == [(2, 4), (2, 2)]
    assert seen.left == (Quota(2, "i", {}, dim),)
    assert seen.left_s == pytest.approx(2 * 6 / 5 * (2 + 9))
    more = campaign_progress(tmp_path, [*order, Quota(1, "i", {}, warm)])
    assert more.left_s == pytest.approx(3 * 6 / 5 * (2 + 9) + (30 + 98) / 2 - 9)
    event = labels.LabelEvent(relabelled, "outcome", "failure", "ana", "engineer")
    labels.append(tmp_path / LABELS, event)
    assert campaign_progress(tmp_path, order).have == 3
    assert not any(held(tmp_path, TakeKind.ROLLOUT, order))


def test_a_campaign_that_moves_the_object_only_takes_as_long_as_its_plan_said(
    tmp_path: Path,
) -> None:
    """Incident: `plan` said 21 minutes, and `record --plan` 32 for the same 20 takes.

    A change of grid cell counted as much as a new lamp.
    """
    cells = [Quota(2, "i", {}, {"grid_cell": [row, 0]}) for row in range(3)]
    order = in_blocks(cells, "draw")
    changes = 60 * SETUP_EFFORT["grid_cell"] * (len(order) - 1)
    assert campaign_progress(tmp_path, order).left_s == pytest.approx(6 * 45 + changes)


def test_the_plan_in_the_docs_is_a_plan(tmp_path: Path) -> None:
    doc = (Path(__file__).resolve().parents[2] / "docs/teleoperate/campaigns.md").read_text()
    path = tmp_path / "plan.yaml"
    path.write_text(doc.partition("```yaml\n")[2].partition("```")[0])
    assert len(plan_quotas(load_plan(path))) == 24  # of 27 combinations

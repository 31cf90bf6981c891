"""Queries: they choose what they say, and where they can't be understood they say where."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.columns import EPISODE_COLUMNS, default_row
from gaploop.datasets.labels.query import FIELDS, Facts, matching, where
from gaploop.datasets.layout import EpisodeRow


def episode(index: int) -> EpisodeRow:
    failed = index % 2 == 1
    info = TakeInfo(
        f"u{index}",
        task="Put the cube on the disc",
        fps=50.0,
        session=f"2026-11-2{index % 3}",
        operator="ana" if index < 5 else "bo",
        dimensions={"contact_dynamics": index / 10} if failed else {},
        conditions={"lighting": "dim", "distractors": index, "my key": "x"} if index > 2 else {},
        t0_ns=1_700_000_000_000_000_000,
    )
    outcome = Outcome.FAILURE if failed else Outcome.SUCCESS
    mode, phase = ("slip", "transport") if failed else ("", "")
    return EpisodeRow(index, 10 * (index + 1), info, outcome, mode, phase, row={})


EPISODES = [episode(index) for index in range(10)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("outcome==failure and contact_dynamics>0.5", [7, 9]),
        ("failure==outcome", [1, 3, 5, 7, 9]),
        ("failure_mode in [slip, drift] and not episode > 4", [1, 3]),
        ("not failure_mode", [0, 2, 4, 6, 8]),
        ("phase == none", [0, 2, 4, 6, 8]),
        ("0.2 < contact_dynamics <= 0.7", [3, 5, 7]),
        ("contact_dynamics > visual_domain", [1, 3, 5, 7, 9]),
        ("contact_dynamics in dimensions", [1, 3, 5, 7, 9]),
        ("lighting == dim", [3, 4, 5, 6, 7, 8, 9]),
        ("lighting != dim", [0, 1, 2]),
        ("distractors >= 8 or operator == bo and outcome == failure", [5, 7, 8, 9]),
        ("conditions['my key'] == 'x' and episode < 4", [3]),
        ("session == '2026-11-20'", [0, 3, 6, 9]),
        ("'cube' in task and length == 20", [1]),
        ("duration_s > 1.9", [9]),
        ("date == '2023-11-14' and episode in (0, 9)", [0, 9]),
        ("human == contact_dynamics", []),
    ],
)
def test_a_query_chooses_what_it_says(query: str, expected: list[int]) -> None:
    assert where(query, EPISODES) == expected


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("outcome=failure", r"column 8, at «=failure»: .*Compare with =="),
        ("outcome==failure && length>3", r"column 19.*Write and"),
        ("outcome==failure & length>3", r"column 10, at «failure & length»: Write and"),
        ("outcome==failure and", "The query ends too early"),
        ("outcome==failure and contact>0.5", r"'contact' in --where, column 22.*contact_dynamics"),
        ("outcome==fail", r"outcome 'fail' in --where, column 10.*Did you mean 'failure'"),
        ("failure_mode in [slip, drifts]", r"Did you mean 'drift'.*One of: collision"),
        ("length==long", "Unknown name 'long'"),
        ("contact_dynamics>'much'", "is a number"),
        ("session==5", "quote it, as in '5'"),
        ("session==2026-11-22", "'2026-11-22'"),
        ("lighting>3", "'dim' and 3 can't be ordered"),
        ("outcome>failure", "has no order"),
        ("outcome", "compare it"),
        ("length==[5]", "write in"),
        ("dimensions==contact_dynamics", "Ask with in"),
        ("é==1", r"'é' in --where, column 1, at «é»"),
        ("", "is empty"),
        ("not " * 990 + "lighting", "nested too deeply"),
        ("(" * 300, "too many nested parentheses"),
        ("x" * 5000, "5000 characters"),
        ("\0", "null bytes"),
    ],
)
def test_an_error_points_at_its_place(query: str, said: str) -> None:
    with pytest.raises(UnusableInputError, match=said) as caught:
        where(query, EPISODES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "__import__('os').system('true')",
        "().__class__",
        "[x for x in (1,)]",
        "(lambda: 1)()",
        "outcome.upper() == 'FAILURE'",
        "conditions.__class__.mro",
        "length ** 9 ** 9 > 1",
        "f'{length}' == 1",
        "(length := 3)",
        "length if length else 1",
    ],
)
def test_nothing_but_the_language_is_evaluated(query: str) -> None:
    with pytest.raises(UnusableInputError):
        where(query, EPISODES)


ATOMS = st.sampled_from(
    [
        ("outcome == failure", lambda e: e.outcome == "failure"),
        ("contact_dynamics > 0.4", lambda e: e.info.dimensions.get("contact_dynamics", 0) > 0.4),
        ("lighting == dim", lambda e: e.info.conditions.get("lighting") == "dim"),
        ("session in ['2026-11-20']", lambda e: e.info.session == "2026-11-20"),
        ("length < 55", lambda e: e.length < 55),
        ("failure_mode", lambda e: bool(e.failure_mode)),
    ]
)
QUERIES = st.recursive(
    ATOMS,
    lambda inner: (
        inner.map(lambda q: (f"not ({q[0]})", lambda e: not q[1](e)))
        | st.tuples(inner, inner).map(
            lambda p: (f"({p[0][0]}) and ({p[1][0]})", lambda e: p[0][1](e) and p[1][1](e))
        )
        | st.tuples(inner, inner).map(
            lambda p: (f"({p[0][0]}) or ({p[1][0]})", lambda e: p[0][1](e) or p[1][1](e))
        )
    ),
    max_leaves=6,
)


def as_table() -> pa.Table:
    rows = []
    for e in EPISODES:
        row = default_row(e.info, e.outcome)
        row |= {"gap_failure_mode": e.failure_mode, "gap_phase": e.phase}
        rows.append({"episode_index": e.index, "length": e.length, "tasks": [e.info.task], **row})
    table = pa.Table.from_pylist(rows)
    assert set(EPISODE_COLUMNS) <= set(table.column_names)
    return table


@given(QUERIES)
def test_and_or_not_mean_what_they_say_in_memory_and_in_the_table(query: tuple) -> None:
    text, holds = query
    expected = [bool(holds(e)) for e in EPISODES]
    assert matching(text, Facts.of_episodes(EPISODES)) == expected
    assert matching(text, Facts.of_table(as_table(), fps=50.0)) == expected


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_reads_the_same_from_memory_and_from_the_table(name: str) -> None:
    told, stored = Facts.of_episodes(EPISODES), Facts.of_table(as_table(), fps=50.0)
    assert list(told.column(name)) == list(stored.column(name))
    assert json.dumps(list(told.conditions())) == json.dumps(list(stored.conditions()))

"""Queries: they choose what they say, and where they can't be understood they say what would be."""

from __future__ import annotations

import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.labels import queried_values, where
from gaploop.datasets.layout import EpisodeRow


def episode(index: int) -> EpisodeRow:
    failed = index % 2 == 1
    info = TakeInfo(
        f"u{index}",
        task="Put the cube, then rest",
        fps=50.0,
        session=f"2026-11-2{index % 3} a",
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
        ("outcome=failure", [1, 3, 5, 7, 9]),
        ("outcome!=failure", [0, 2, 4, 6, 8]),
        ("failure_mode=slip,drift operator=ana", [1, 3]),
        ("failure_mode = slip, drift  operator = ana", [1, 3]),
        ("phase=none", [0, 2, 4, 6, 8]),
        ("dimensions=contact_dynamics distractors!=3", [1, 5, 7, 9]),
        ("lighting=dim", [3, 4, 5, 6, 7, 8, 9]),
        ("lighting=none", [0, 1, 2]),
        ("'my key'=x episode=2,3", [3]),
        ("session='2026-11-20 a'", [0, 3, 6, 9]),
        ('task="Put the cube, then rest" episode=1', [1]),
        ("date=2023-11-14 distractors=8,9", [8, 9]),
    ],
)
def test_a_query_chooses_what_it_says(query: str, expected: list[int]) -> None:
    assert where(query, EPISODES) == expected


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("outcome==failure", r"at 'outcome==failure': write field=value.*Fields: .*lighting"),
        ("outcome=failure and lighting=dim", "at 'and lighting=dim'"),
        ("distractors>3", "at 'distractors>3'"),
        ("outcome", "write field=value"),
        ("outcome=", "write field=value"),
        ("lightning=dim", "Unknown field 'lightning' in --where. Did you mean 'lighting'"),
        ("outcome=fail", "Unknown outcome 'fail' in --where. Did you mean 'failure'"),
        ("failure_mode=slip,drifts", "Did you mean 'drift'"),
        ("operator='ana", "at 'operator='ana'"),
        ("", "write field=value"),
        ("(" * 5000, "write field=value"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(query: str, said: str) -> None:
    with pytest.raises(UnusableInputError, match=said) as caught:
        where(query, EPISODES)
    assert "\n" not in str(caught.value)


def test_a_query_can_be_asked_what_there_is() -> None:
    found = queried_values("lighting=dark outcome=failure", EPISODES)
    assert found == {"lighting": {"dim": 7, "none": 3}, "outcome": {"failure": 5, "success": 5}}

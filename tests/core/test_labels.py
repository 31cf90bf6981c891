"""Which label stands: the newest event of the highest source, in whatever order they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core import labels
from gaploop.core.errors import UnknownChoiceError, UnusableInputError
from gaploop.core.labels import LabelEvent

MODES = ("slip", "frozen", "drift", "timeout")

# Distinct times: of two events of one source at one instant, the later in the file stands.
EVENTS = st.lists(
    st.builds(
        LabelEvent,
        uid=st.sampled_from(["u1", "u2"]),
        field=st.just("failure_mode"),
        value=st.sampled_from(MODES),
        author=st.just("ana"),
        source=st.sampled_from(labels.SOURCES),
        at=st.integers(0, 10**6).map(lambda n: f"2026-01-01T00:00:00.{n:06d}+00:00"),
    ),
    max_size=12,
    unique_by=lambda event: event.at,
)


@given(EVENTS, st.randoms())
def test_order_of_reading_does_not_matter(events: list[LabelEvent], random: object) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert labels.current(events) == labels.current(shuffled)


@given(EVENTS)
def test_highest_source_stands_and_of_it_the_newest(events: list[LabelEvent]) -> None:
    now = labels.current(events)
    assert set(now) == {event.uid for event in events}
    for uid, said in now.items():
        own = [e for e in events if e.uid == uid]
        highest = max(labels.SOURCES.index(e.source) for e in own)
        heard = [e for e in own if labels.SOURCES.index(e.source) == highest]
        assert said == {"failure_mode": max(heard, key=lambda e: e.at).value}


@given(EVENTS)
def test_an_automatic_word_never_changes_what_a_person_said(events: list[LabelEvent]) -> None:
    said = LabelEvent("u1", "failure_mode", "slip", "ana", "engineer", at="2025")
    late = LabelEvent("u1", "failure_mode", "drift", "bot", "auto", at="2099")
    people = [e for e in events if e.source == "auto" or e.uid != "u1"]
    assert labels.current([*people, said, late])["u1"]["failure_mode"] == "slip"


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    assert list(labels.read(path)) == []
    events = [
        LabelEvent("u1", "outcome", "failure", "ana", "operator"),
        LabelEvent("u1", "dimensions", {"contact_dynamics": 0.8}, "bo", "engineer", note="°C"),
    ]
    for event in events:
        labels.append(path, event)
    assert list(labels.read(path)) == events


def test_a_torn_last_line_is_passed_over_and_any_other_is_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    event = LabelEvent("u1", "outcome", "failure", "ana", "operator")
    labels.append(path, event)
    whole = path.read_text()
    for length in range(len(whole)):
        path.write_text(whole + whole[:length].rstrip("\n"))
        assert next(iter(labels.read(path))) == event
    path.write_text("{}\n" + whole)
    with pytest.raises(UnusableInputError, match="line 1"):
        list(labels.read(path))


@pytest.mark.parametrize(
    ("field", "value", "source", "hint"),
    [
        ("outcome", "sucess", "operator", "success"),
        ("failure_mode", "slipped", "operator", "slip"),
        ("phase", "grasping", "operator", "grasp"),
        ("dimensions", {"contact": 0.5}, "operator", "contact_dynamics"),
        ("outcom", "success", "operator", "outcome"),
        ("outcome", "success", "enginer", "engineer"),
    ],
)
def test_a_wrong_word_is_refused_with_the_right_ones(
    field: str, value: object, source: str, hint: str
) -> None:
    with pytest.raises(UnknownChoiceError, match=f"Did you mean '{hint}'.*One of: ") as caught:
        LabelEvent("u1", field, value, "ana", source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [{"contact_dynamics": 1.5}, {"contact_dynamics": "much"}, "all"])
def test_a_weight_outside_its_range_is_refused(value: object) -> None:
    with pytest.raises(UnusableInputError, match=r"dimensions must|must be in"):
        LabelEvent("u1", "dimensions", value, "ana", "engineer")

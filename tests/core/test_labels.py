"""Which label stands: the newest event of the highest source; and that none is lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core import labels
from gaploop.core.errors import UnknownChoiceError, UnusableInputError
from gaploop.core.labels import LabelEvent

MODES = ("slip", "frozen", "drift", "timeout")


def at(n: int) -> str:
    return f"2026-01-01T00:00:00.{n:06d}+00:00"


def events(times: st.SearchStrategy[int]) -> st.SearchStrategy[LabelEvent]:
    return st.builds(
        LabelEvent,
        uid=st.sampled_from(["u1", "u2"]),
        field=st.just("failure_mode"),
        value=st.sampled_from(MODES),
        author=st.sampled_from(["ana", "bo"]),
        source=st.sampled_from(labels.SOURCES),
        at=times.map(at),
    )


# Times as a clock that steps back may give them: `at` says nothing about the place in the file.
EVENTS = st.lists(events(st.integers(0, 10**6 - 1)), max_size=12, unique_by=lambda e: e.at)


@given(EVENTS)
def test_highest_source_stands_and_of_it_the_last_in_the_file(events: list[LabelEvent]) -> None:
    """An operator's clock stepped back an hour, and his correction lost against his slip."""
    now = labels.current(events)
    assert set(now) == {event.uid for event in events}
    for uid, said in now.items():
        own = [e for e in events if e.uid == uid]
        highest = max(e.rank for e in own)
        assert said == {"failure_mode": [e for e in own if e.rank == highest][-1].value}


@st.composite
def files(draw: st.DrawFn) -> list[list[LabelEvent]]:
    """Three files that share no instant, each in an order of its own."""
    said = draw(EVENTS)
    owner = draw(st.lists(st.integers(0, 2), min_size=len(said), max_size=len(said)))
    return [[e for e, o in zip(said, owner, strict=True) if o == n] for n in range(3)]


@given(files())
def test_merging_is_associative_keeps_every_event_and_the_order_about_a_take(
    parts: list[list[LabelEvent]],
) -> None:
    a, b, c = parts
    merged = labels.merge(a, b, c)
    assert labels.merge(labels.merge(a, b), c) == merged == labels.merge(a, labels.merge(b, c))
    assert sorted(e.at for e in merged) == sorted(e.at for e in [*a, *b, *c])
    for part, uid in product(parts, ("u1", "u2")):
        own = [e for e in part if e.uid == uid]
        assert [e for e in merged if e in own] == own
    for part in parts:
        assert labels.merge(merged, part) == merged, "what is there already comes once"


@given(files())
def test_files_whose_clocks_went_on_merge_by_time(parts: list[list[LabelEvent]]) -> None:
    ordered = [sorted(part, key=lambda e: e.at) for part in parts]
    assert labels.merge(*ordered) == sorted(
        (e for part in ordered for e in part), key=lambda e: e.at
    )
    assert labels.current(labels.merge(*ordered)) == labels.current(labels.merge(*ordered[::-1]))


@given(EVENTS)
def test_an_automatic_word_never_changes_what_a_person_said(events: list[LabelEvent]) -> None:
    said = LabelEvent("u1", "failure_mode", "slip", "ana", "engineer", at=at(0))
    late = LabelEvent("u1", "failure_mode", "drift", "bot", "auto", at=at(1))
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
    path.write_text(whole + '{"uid": "ü'.encode()[:-1].decode(errors="replace"))
    assert list(labels.read(path)) == [event]
    path.write_bytes(whole.encode() + '{"uid": "ü'.encode()[:-1])
    assert list(labels.read(path)) == [event]
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


@given(EVENTS, st.data())
def test_taking_back_is_as_if_it_had_never_been_said(
    events: list[LabelEvent], data: st.DataObject
) -> None:
    authors = sorted({e.author for e in events})
    if not authors:
        return
    author = data.draw(st.sampled_from(authors))
    undone = list(events)
    while act := labels.last_act(undone, author):
        spared = [e for e in undone if e not in act]
        undone += [labels.retraction(e, at(data.draw(st.integers(0, 10**6 - 1)))) for e in act]
        assert labels.current(undone) == labels.current(spared)
    others = [e for e in events if e.author != author]
    assert labels.current(undone) == labels.current(others)
    assert labels.emptied(undone) == {e.key for e in events} - {e.key for e in others}


def test_what_was_said_in_one_act_is_taken_back_together() -> None:
    first = LabelEvent("u1", "outcome", "success", "ana", "engineer", at=at(1))
    act = [
        LabelEvent("u1", "outcome", "failure", "ana", "engineer", at=at(2)),
        LabelEvent("u1", "failure_mode", "slip", "ana", "engineer", at=at(2)),
    ]
    assert labels.last_act([first, *act], "ana") == act
    assert labels.last_act([first, *act], "bo") == []


@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan"), "much", None])
def test_a_confidence_outside_its_range_is_refused(wrong: object) -> None:
    with pytest.raises(UnusableInputError, match="Confidence"):
        LabelEvent("u1", "outcome", "success", "ana", "auto", confidence=wrong)  # type: ignore[arg-type]


def test_a_wrong_word_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    event = LabelEvent("u1", "outcome", "failure", "ana", "operator")
    path.write_text(event.to_line() + "\n" + event.to_line().replace("failure", "fail") + "\n")
    with pytest.raises(UnusableInputError, match=r"line 2: Unknown outcome 'fail'.*'failure'"):
        list(labels.read(path))


def test_a_last_line_without_its_line_break_is_not_lost(tmp_path: Path) -> None:
    """A file written with "\\n".join lost its last label at the next one: it looked torn."""
    path = tmp_path / "labels.jsonl"
    first = LabelEvent("u1", "outcome", "failure", "ana", "operator")
    path.write_text(first.to_line())
    second = replace(first, uid="u2")
    labels.append(path, second)
    assert list(labels.read(path)) == [first, second]


APPENDER = """
import sys
from pathlib import Path
from gaploop.core.labels import LabelEvent, append
path, author, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for n in range(count):
    said = LabelEvent(f"{author}-{n}", "phase", "grasp", author, "operator")
    append(path, *[said] * (1 + n % 3))
    print(n, flush=True)
"""


def test_processes_that_append_at_once_lose_nothing_and_tear_nothing(tmp_path: Path) -> None:
    path, count, people = tmp_path / "labels.jsonl", 40, "abcd"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(path), who, str(count)], stdout=subprocess.DEVNULL
        )
        for who in people
    ]
    assert [writer.wait() for writer in writers] == [0] * len(people)
    said = [e.uid for e in labels.read(path)]
    for who in people:
        own = [uid for uid in said if uid.startswith(who)]
        assert own == [f"{who}-{n}" for n in range(count) for _ in range(1 + n % 3)]


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_loses_no_label_that_was_given(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "labels.jsonl"
    arguments = [sys.executable, "-c", APPENDER, str(path), "a", "100000"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(random.Random(seed).randrange(1, 30)):
            given = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    events = [e.uid for e in labels.read(path)]
    assert [f"a-{n}" for n in range(given + 1)] == list(dict.fromkeys(events))[: given + 1]
    assert all(events.count(f"a-{n}") == 1 + n % 3 for n in {int(e[2:]) for e in events})


SHORT_OF_ROOM = """
import resource, sys
from pathlib import Path
from gaploop.core.labels import LabelEvent, append
path = Path(sys.argv[1])
event = LabelEvent("u2", "outcome", "failure", "ana", "operator", note="x" * 3000)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 1000,) * 2)
for act in ([event], [event, event]):
    try:
        append(path, *act)
    except OSError:
        print("refused")
"""


def test_a_label_that_finds_no_room_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """A full disk took the first half of a label; nobody was told, the next one erased it."""
    path = tmp_path / "labels.jsonl"
    labels.append(path, LabelEvent("u1", "outcome", "failure", "ana", "operator"))
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_ROOM, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["refused", "refused"]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["labels.jsonl"]
    assert json.loads(before)["uid"] == "u1"

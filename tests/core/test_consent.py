"""Consent: what is refused, what the register keeps, and that nothing gets lost in it."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core import consent
from gaploop.core.consent import Consent, ConsentRegister, Place, Use
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_line, remove_lines
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, TakeKind

DAY = date(2026, 6, 30)
ALL = frozenset(Use)
ANA = "c-aaaaaaaaaa"


def register(**changes: object) -> ConsentRegister:
    fields: dict[str, object] = {"expires": DAY, "scope": ALL, "at": "2026-01-01", **changes}
    return ConsentRegister({ANA: Consent(ANA, **fields)}, {}, "consents.jsonl")  # type: ignore[arg-type]


def info(**fields: object) -> TakeInfo:
    return TakeInfo("u", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (info(), ""),
        (info(conditions={"human": "none"}), ""),
        (info(conditions={"human": "handover"}), "human: handover"),
        (info(conditions={"human": "handover"}, domain=Domain.SIM), ""),
        (info(conditions={"human": "reach_in"}, domain=Domain.SIM_TARGET), ""),
        (info(dimensions={"human_behavior": 1.0}), "human_behavior"),
        (info(dimensions={"human_behavior": 0.7}, kind=TakeKind.ROLLOUT), ""),
        (info(conditions={"human": "handover"}, consent=ANA), ""),
        (info(consent="c-bbbbbbbbbb"), "not in consents.jsonl"),
        (info(consent=f"{ANA},c-bbbbbbbbbb"), "not in consents.jsonl"),
        (info(consent="c-bbbbbbbbbb", domain=Domain.SIM), "not in consents.jsonl"),
    ],
)
def test_which_takes_are_refused(take: TakeInfo, said: str) -> None:
    reason = register().refusal(take, Use.RECORD, DAY)
    assert said in reason
    assert bool(said) == bool(reason)


@given(st.sets(st.sampled_from(list(Use))), st.integers(-400, 400), st.booleans())
def test_a_consent_allows_only_what_it_covers_until_it_expires_or_is_withdrawn(
    scope: set[Use], days: int, withdrawn: bool
) -> None:
    known = register(scope=frozenset(scope), withdrawn="2026-02-02" if withdrawn else "")
    for use in Use:
        allowed = not known.refusal(info(consent=ANA), use, DAY + timedelta(days=days))
        assert allowed == (use in scope and days <= 0 and not withdrawn)


@pytest.mark.parametrize("text", ["Ana", "ana@lab.org", "c-ANA", "c-short", "c-aaaaaaaaaa1", "P01"])
def test_a_name_is_never_taken_for_an_id(text: str) -> None:
    with pytest.raises(UnusableInputError, match="never a name"):
        consent.consent_ids(text)


@pytest.mark.parametrize(
    ("scope", "said"),
    [([], "One or more of"), (["film"], "One of"), (["push"], "also needs record, publish")],
)
def test_a_scope_that_makes_no_sense_is_refused(scope: list[str], said: str) -> None:
    with pytest.raises(UnusableInputError, match=said):
        consent.check_scope(scope)


def test_no_register_means_that_nobody_agreed(tmp_path: Path) -> None:
    empty = consent.load_register(tmp_path / "none.jsonl")
    with pytest.raises(UnusableInputError, match="gaploop consent add"):
        consent.require_consent(empty, [info(consent=ANA)], Use.RECORD, "This episode")


def test_the_register_keeps_what_was_said_and_withdrawal_is_final(tmp_path: Path) -> None:
    path = tmp_path / "safe/consents.jsonl"
    id_ = consent.new_id()
    consent.add(path, id_, DAY, frozenset({Use.RECORD}))
    consent.add(path, id_, DAY + timedelta(days=1), ALL)
    for _ in range(2):
        consent.add_place(path, id_, Place("journal", "/data/journal"))
    known = consent.load_register(path)
    assert known.consents[id_].scope == ALL
    assert known.consents[id_].expires == DAY + timedelta(days=1)
    assert known.places[id_] == (Place("journal", "/data/journal"),)
    assert len(path.read_text().splitlines()) == 3
    first = consent.withdraw(path, id_)
    assert consent.withdraw(path, id_) == first
    with pytest.raises(UnusableInputError, match="final"):
        consent.add(path, id_, DAY, ALL)
    with pytest.raises(UnusableInputError, match="Unknown consent"):
        consent.withdraw(path, ANA)
    path.write_text(path.read_text() + '{"event": "add", "id"')  # a kill tore the last line
    assert consent.load_register(path).consents[id_].withdrawn == first.withdrawn


def test_a_place_is_remembered_before_anything_is_put_there(tmp_path: Path) -> None:
    path, place = tmp_path / "consents.jsonl", Place("dataset", "/data/cube")
    take = info(consent=f"{ANA},c-bbbbbbbbbb")
    consent.add(path, ANA, date(2999, 1, 1), frozenset({Use.RECORD, Use.PUBLISH}))
    assert "not in" in consent.refusal_at(path, take, Use.PUBLISH, place)
    assert consent.load_register(path).places == {ANA: (place,)}
    assert not consent.refusal_at(path, info(consent=ANA), Use.PUBLISH, place)
    assert "doesn't cover 'push'" in consent.refusal_at(path, info(consent=ANA), Use.PUSH, place)


def test_takes_without_people_never_look_at_the_register(tmp_path: Path) -> None:
    broken = tmp_path / "consents.jsonl"
    broken.write_text("nonsense\n")
    place = Place("journal", "/j")
    assert not consent.refusal_at(broken, info(), Use.RECORD, place)
    human = info(conditions={"human": "handover"})
    assert "names no consent" in consent.refusal_at(broken, human, Use.RECORD, place)


def test_names_are_readable_by_their_owner_only_and_stand_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "safe/consents.jsonl"
    id_ = consent.new_id()
    consent.add(path, id_, DAY, ALL)
    consent.set_name(path, id_, "Ana Pérez")
    names = path.parent / consent.NAMES
    assert stat.S_IMODE(names.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert consent.read_names(path) == {id_: "Ana Pérez"}
    assert "Ana" not in path.read_text()
    consent.set_name(path, id_, None)
    assert consent.read_names(path) == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"event": "sell", "id": "c-aaaaaaaaaa", "at": "x"}', "One of"),
        ('{"event": "add", "id": "ana", "at": "x"}', "not a consent id"),
        ('{"event": "add", "id": "c-aaaaaaaaaa", "at": "x", "scope": ["record"]}', "line 1"),
        ("nonsense", "line 1"),
    ],
)
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "consents.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(UnusableInputError, match=said):
        consent.load_register(path)


WRITER = """
import sys
from datetime import date
from pathlib import Path
from gaploop.core import consent
from gaploop.core.consent import Use, new_id
path = Path(sys.argv[1])
for n in range(20):
    id_ = new_id()
    consent.add(path, id_, date(2030, 1, 1), frozenset({Use.RECORD}))
    if n % 2:
        consent.withdraw(path, id_)
    consent.set_name(path, id_, f"{sys.argv[2]}-{n}")
"""


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "consents.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, str(n)]) for n in range(3)]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    known = consent.load_register(path)
    assert len(known.consents) == 60
    assert sum(bool(c.withdrawn) for c in known.consents.values()) == 30
    assert len(set(consent.read_names(path).values())) == 60


APPENDER = """
import sys
from pathlib import Path
from gaploop.core.files import append_line
for n in range(100):
    append_line(Path(sys.argv[1]), f"keep {n}")
"""


def test_removing_lines_loses_none_that_is_appended_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text("drop\n")
    appender = subprocess.Popen([sys.executable, "-c", APPENDER, path])
    removed = 0
    while appender.poll() is None:
        append_line(path, "drop")
        removed += remove_lines(path, lambda line: line == b"drop")
    assert appender.returncode == 0
    removed += remove_lines(path, lambda line: line == b"drop")
    assert path.read_text().splitlines() == [f"keep {n}" for n in range(100)]
    assert removed > 1


def test_register_lines_are_json_without_anything_but_ids(tmp_path: Path) -> None:
    path = tmp_path / "consents.jsonl"
    consent.add(path, ANA, DAY, ALL)
    (line,) = path.read_text().splitlines()
    said = json.loads(line)
    assert {k: said[k] for k in ("event", "id", "expires", "scope")} == {
        "event": "add", "id": ANA, "expires": "2026-06-30", "scope": ["record", "publish", "push"],
    }  # fmt: skip


def test_the_events_in_the_docs_are_events(tmp_path: Path) -> None:
    doc = (Path(__file__).resolve().parents[2] / "docs/teleoperate/consent.md").read_text()
    path = tmp_path / "consents.jsonl"
    path.write_text(doc.partition("```json\n")[2].partition("```")[0])
    (known,) = consent.load_register(path).consents.values()
    assert known.withdrawn
    assert len(consent.load_register(path).places[known.id]) == 1

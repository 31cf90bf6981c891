"""No take with people in it is published or passed on without consent that holds on the day."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaploop.core import consent as consents
from gaploop.core.consent import Place, Use, new_id, today
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.datasets.edit.compose import require_dataset_consent
from gaploop.datasets.lerobot_publish import publish_takes
from gaploop.datasets.lerobot_read import read_takes

Write = Callable[..., str]
PUBLISH = frozenset({Use.RECORD, Use.PUBLISH})
LATER = today() + timedelta(days=30)
HUMAN = {"conditions": {"human": "handover"}}


def consent(register: Path, expires: date = LATER, scope: frozenset[Use] = PUBLISH) -> str:
    return consents.add(register, new_id(), expires, scope).id


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(tmp_path / "r.jsonl"))
    return tmp_path / "r.jsonl"


def test_publish_takes_only_what_people_agree_to(
    register: Path, tmp_path: Path, write_take: Write
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    good = consent(register)
    expired = consent(register, today() - timedelta(days=1))
    narrow = consent(register, scope=frozenset({Use.RECORD}))
    withdrawn = consent(register)
    consents.withdraw(register, withdrawn)
    allowed = [
        write_take(journal),
        write_take(journal, consent=good, **HUMAN),
        write_take(journal, domain=Domain.SIM, **HUMAN),
    ]
    refused = [write_take(journal, **HUMAN)]
    for id_ in (expired, narrow, withdrawn, f"{good},{expired}", new_id()):
        refused.append(write_take(journal, consent=id_, **HUMAN))
    report = publish_takes(journal, root, "me/x")
    assert list(report.published) == allowed
    assert list(report.withheld) == refused
    assert report.skipped == {"no_consent": 6}
    assert [take.info.uid for take in read_takes(root)] == allowed
    assert [take.info.consent for take in read_takes(root)] == ["", good, ""]
    assert Place("dataset", str(root)) in consents.load_register(register).places[good]
    again = publish_takes(journal, root, "me/x")
    assert (again.published, again.present, len(again.withheld)) == ((), 3, 6)


@pytest.mark.usefixtures("register")
def test_a_journal_that_nobody_agreed_to_makes_no_dataset(
    tmp_path: Path, write_take: Write
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    write_take(journal, **HUMAN)
    report = publish_takes(journal, root, "me/x")
    assert len(report.withheld) == 1
    assert not root.exists()


@pytest.mark.usefixtures("register")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(days=st.integers(-3, 3), uses=st.integers(1, 3), gone=st.booleans())
def test_expiry_counts_on_the_day_of_publishing(
    tmp_path_factory: pytest.TempPathFactory,
    write_take: Write,
    days: int,
    uses: int,
    gone: bool,
) -> None:
    folder = tmp_path_factory.mktemp("law")
    register = folder / "r.jsonl"
    os.environ["GAPLOOP_CONSENTS"] = str(register)  # the fixture puts it back
    id_ = consent(register, today() + timedelta(days=days), frozenset(list(Use)[:uses]))
    write_take(folder / "journal", frames=2, cameras=(), consent=id_)
    if gone:
        consents.withdraw(register, id_)
    holds = days >= 0 and uses >= 2 and not gone
    report = publish_takes(folder / "journal", folder / "set", "me/x")
    assert bool(report.published) == holds
    assert bool(report.withheld) != holds
    assert (folder / "set").exists() == holds


def test_a_dataset_is_passed_on_only_with_consent_to_that(
    register: Path, tmp_path: Path, write_take: Write
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    id_ = consent(register)
    uid = write_take(journal, consent=id_)
    publish_takes(journal, root, "me/x")
    require_dataset_consent(root, Use.PUBLISH)
    with pytest.raises(UnusableInputError, match=f"episode {uid}.*doesn't cover 'push'"):
        require_dataset_consent(root, Use.PUSH)
    consents.add(register, id_, LATER, frozenset(Use))
    require_dataset_consent(root, Use.PUSH)
    with pytest.raises(UnusableInputError, match="expired"):
        require_dataset_consent(root, Use.PUSH, LATER + timedelta(days=1))

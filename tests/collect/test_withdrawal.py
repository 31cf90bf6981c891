"""Withdrawn consent: afterwards the person's takes are nowhere, and everybody else's still are."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.collect.withdrawal import WithdrawalReport, withdraw
from gaploop.core import consent as consents
from gaploop.core import journal_format, labels
from gaploop.core.consent import Place, Use, new_id, today
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader, append_truth, take_folders
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.check.dataset import check
from gaploop.datasets.lerobot_publish import publish_takes
from gaploop.datasets.lerobot_read import read_takes
from gaploop.scripts.cli import main

LATER = today() + timedelta(days=30)


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(tmp_path / "safe/consents.jsonl"))
    return tmp_path / "safe/consents.jsonl"


def consent(register: Path) -> str:
    return consents.add(register, new_id(), LATER, frozenset(Use)).id


def uids_of(report: WithdrawalReport) -> set[str]:
    return {uid for place in report.found for uid in place.uids}


def header(consent_ids: str) -> TakeHeader:
    conditions = {"human": "handover"} if consent_ids else {}
    info = TakeInfo(
        uuid7(), fps=50.0, joint_names=("pan",), conditions=conditions, consent=consent_ids
    )
    return TakeHeader(info, channels={"wrist.fx_n": "N"})


def write_take(journal: Path, consent_ids: str = "") -> str:
    one = np.ones(1)
    with JournalWriter(journal, header(consent_ids)) as writer:
        for k in range(4):
            writer.frame(FrameRow(k / 50, one, one, one))
            writer.telemetry(k, one)
        writer.seal(Outcome.SUCCESS)
    uid = writer.header.info.uid
    event = labels.LabelEvent(uid, "outcome", "success", "ana", "operator")
    labels.append(journal / journal_format.LABELS, event)
    append_truth(journal, uid, {"gap": 1})
    return uid


def everything(folder: Path) -> bytes:
    return b"\0".join(p.read_bytes() + str(p).encode() for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def recorded(tmp_path: Path, register: Path) -> tuple[str, str, dict[str, list[str]]]:
    """Two journals with takes of two people and of nobody, both published to one dataset."""
    ana, ben = consent(register), consent(register)
    consents.set_name(register, ana, "Ana")
    takes: dict[str, list[str]] = {"ana": [], "ben": [], "both": [], "nobody": []}
    for journal in (tmp_path / "one", tmp_path / "two"):
        for who, ids in (("ana", ana), ("nobody", ""), ("both", f"{ana},{ben}"), ("ben", ben)):
            takes[who].append(write_take(journal, ids))
        for id_ in (ana, ben):
            consents.add_place(register, id_, Place("journal", str(journal)))
        publish_takes(journal, tmp_path / "set", "me/x")
    return ana, ben, takes


def test_a_dry_run_says_what_would_go_and_changes_nothing(
    tmp_path: Path, register: Path, recorded: tuple[str, str, dict[str, list[str]]]
) -> None:
    ana, _, takes = recorded
    before = everything(tmp_path)
    report = withdraw(register, ana)
    assert everything(tmp_path) == before
    assert (report.done, report.withdrawn) == (False, "")
    assert uids_of(report) == {*takes["ana"], *takes["both"]}
    assert [(f.what, len(f.uids)) for f in report.found] == [
        ("journal", 2), ("dataset", 4), ("journal", 2),
    ]  # fmt: skip


def test_withdrawn_takes_are_nowhere_and_all_others_still_are(
    tmp_path: Path, register: Path, recorded: tuple[str, str, dict[str, list[str]]]
) -> None:
    ana, ben, takes = recorded
    report = withdraw(register, ana, remove=True)
    gone, kept = [*takes["ana"], *takes["both"]], {*takes["ben"], *takes["nobody"]}
    assert uids_of(report) == set(gone)
    assert report.unreached == ()
    for place in ("one", "two", "set"):
        held = everything(tmp_path / place)
        assert not [uid for uid in (*gone, ana) if uid.encode() in held]
    journals = [f.name for j in ("one", "two") for f in take_folders(tmp_path / j)]
    assert set(journals) == kept
    assert {take.info.uid for take in read_takes(tmp_path / "set")} == kept
    assert [f for f in check(tmp_path / "set") if f.severity == "error"] == []
    said = {e.uid for j in ("one", "two") for e in labels.read(tmp_path / j / "labels.jsonl")}
    assert said == kept
    assert consents.read_names(register) == {}
    kept_report = register.parent / f"withdrawal_{ana}.json"
    assert stat.S_IMODE(kept_report.stat().st_mode) == 0o600
    assert json.loads(kept_report.read_text())["finished"]
    again = publish_takes(tmp_path / "one", tmp_path / "set", "me/x")
    assert again.published == ()
    assert withdraw(register, ana, remove=True).found == ()
    assert not consents.load_register(register).consents[ben].withdrawn


class Killed(BaseException):
    pass


@pytest.mark.members(3)
@pytest.mark.parametrize("step", range(0, 60, 7))
def test_killed_anywhere_running_it_again_removes_the_rest(
    tmp_path: Path,
    register: Path,
    recorded: tuple[str, str, dict[str, list[str]]],
    step: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed at the n-th file it deletes or moves, as a kill would: nothing is cleaned up."""
    ana, _, takes = recorded
    calls = iter(range(10_000))

    def counted(do: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if next(calls) == step:
                raise Killed
            return do(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", counted(Path.unlink))
        patch.setattr("os.replace", counted(os.replace))
        patch.setattr("os.link", counted(os.link))
        with contextlib.suppress(Killed):
            withdraw(register, ana, remove=True)
    report = withdraw(register, ana, remove=True)
    assert report.unreached == ()
    for place in ("one", "two", "set"):
        held = everything(tmp_path / place)
        assert not [u for u in (*takes["ana"], *takes["both"]) if u.encode() in held]
    assert len(list(read_takes(tmp_path / "set"))) == 4
    noted = json.loads((register.parent / f"withdrawal_{ana}.json").read_text())
    assert set(noted["uids"]) == {*takes["ana"], *takes["both"]}


def test_what_cannot_be_reached_is_said(tmp_path: Path, register: Path) -> None:
    ana = consent(register)
    consents.add_place(register, ana, Place("hub", "me/cube"))
    consents.add_place(register, ana, Place("dataset", str(tmp_path / "moved")))
    report = withdraw(register, ana, remove=True)
    assert [(u.where, u.why.split(":")[0]) for u in report.unreached] == [
        ("me/cube", "a copy on the Hub"),
        (str(tmp_path / "moved"), "not there any more"),
    ]
    assert report.out_of_reach


def test_a_take_that_is_being_recorded_is_left_until_it_ends(
    tmp_path: Path, register: Path
) -> None:
    ana, journal = consent(register), tmp_path / "journal"
    consents.add_place(register, ana, Place("journal", str(journal)))
    with JournalWriter(journal, header(ana)) as writer:
        report = withdraw(register, ana, remove=True)
        assert "being recorded" in report.unreached[0].why
        assert writer.folder.exists()
    assert withdraw(register, ana, remove=True).unreached == ()
    assert take_folders(journal) == []


def test_a_take_that_does_not_say_whose_it_is_is_named(tmp_path: Path, register: Path) -> None:
    """A kill right after a take began leaves frames without a header."""
    ana, journal = consent(register), tmp_path / "journal"
    consents.add_place(register, ana, Place("journal", str(journal)))
    write_take(journal, ana)
    orphan = journal / write_take(journal)
    (orphan / journal_format.HEADER).unlink()
    report = withdraw(register, ana, remove=True)
    assert [u.where for u in report.unreached] == [str(orphan)]
    assert "no take.json" in report.unreached[0].why
    assert len(uids_of(report)) == 1


def test_models_that_learned_from_the_takes_are_named(
    tmp_path: Path, register: Path, recorded: tuple[str, str, dict[str, list[str]]]
) -> None:
    ana, _, takes = recorded
    root = str(tmp_path / "set")
    inputs = {
        "trained": [{"root": root, "uids": [takes["ana"][0], takes["both"][1]]}],
        "other_takes": [{"root": root, "uids": takes["ben"]}],
        "by_folder": [{"root": root}],
        "elsewhere": [{"root": "/data/other"}],
        "nonsense": "x",
    }
    for name, entries in inputs.items():
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        run = {"id": name, "command": "finetune", "inputs": entries}
        (folder / "run.json").write_text(json.dumps(run))
    report = withdraw(register, ana)
    assert [(t.id, t.takes) for t in report.trained] == [("by_folder", 1), ("trained", 2)]
    withdraw(register, ana, remove=True)
    again = withdraw(register, ana, remove=True)
    assert [t.id for t in again.trained] == ["by_folder", "trained"]


def test_what_others_left_beside_the_takes_stops_no_withdrawal(
    tmp_path: Path, register: Path
) -> None:
    """A `run.json` of brackets, or a line of truth.jsonl that is no text or has a list as its uid,
    ended `consent withdraw` in a traceback, half done; a pipe of that name was waited for."""
    ana = consent(register)
    journal = tmp_path / "journal"
    theirs, other = write_take(journal, ana), write_take(journal)
    consents.add_place(register, ana, Place("journal", str(journal)))
    broken = {"deep": "[" * 100_000, "list": "[]", "words": '{"inputs": [1], "result": "x"}',
              "odd": '{"inputs": [{"uids": 7}]}', "bytes": "\udcff"}  # fmt: skip
    for name, text in broken.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text, errors="surrogateescape")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    truth = journal / journal_format.TRUTH
    strange = (
        b'\xff\xfe\n{"uid": ["a"]}\n[]\n{"uid": "x", "note": "a\xe2\x80\xa8b"}\n' + b"[" * 9999
    )
    truth.write_bytes(truth.read_bytes() + strange)
    report = withdraw(register, ana, remove=True)
    assert uids_of(report) == {theirs}
    assert report.unreached == ()
    assert [f.name for f in take_folders(journal)] == [other]
    assert truth.read_bytes().endswith(strange + b"\n")
    assert theirs.encode() not in truth.read_bytes()


def test_what_is_named_must_be_a_journal_or_a_dataset(tmp_path: Path, register: Path) -> None:
    ana = consent(register)
    with pytest.raises(UnusableInputError, match="no dataset"):
        withdraw(register, ana, places=[Place("dataset", str(tmp_path))], remove=True)
    assert not consents.load_register(register).consents[ana].withdrawn


def test_the_command_from_adding_to_withdrawing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register, journal = tmp_path / "safe/consents.jsonl", tmp_path / "journal"
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    add = ["consent", "add", f"--expires={LATER}", "--scope=[record, publish]", "--name=form 12"]
    assert main([*add, "--json"]) == 0
    id_ = json.loads(capsys.readouterr().out)["id"]
    write_take(journal, id_)
    assert main(["consent", "withdraw", id_, f"--places=[{journal}]"]) == 0
    said = capsys.readouterr().out
    assert "1 episode would be removed" in said
    assert "--yes" in said
    assert len(take_folders(journal)) == 1
    assert main(["consent", "withdraw", id_, f"--places=[{journal}]", "--yes"]) == 0
    assert "1 episode removed" in capsys.readouterr().out
    assert take_folders(journal) == []
    assert main(["consent", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["consents"]
    assert (row["id"], row["state"]) == (id_, "withdrawn")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "One of: add, withdraw, list"),
        (["remove"], "One of: add, list, withdraw"),
        (["add"], "--expires=YYYY-MM-DD"),
        (["add", "--expires=soon", "--scope=[record]"], "YYYY-MM-DD"),
        (["add", "--expires=2001-01-01", "--scope=[record]"], "past"),
        (["add", "--expires=2999-01-01"], "One or more of: record, publish, push"),
        (["add", "--expires=2999-01-01", "--scope=[publish]"], "also needs record"),
        (["add", "ana", "--expires=2999-01-01", "--scope=[record]"], "never a name"),
        (["withdraw"], "consent list"),
        (["withdraw", "c-aaaaaaaaaa"], "Unknown consent"),
        (["withdraw", "c-aaaaaaaaaa", "--places=[nowhere]"], "nowhere"),
    ],
)
def test_unusable_input_is_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(tmp_path / "r.jsonl"))
    assert main(["consent", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert list(tmp_path.iterdir()) == []

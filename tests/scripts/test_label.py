"""`gaploop label` on a journal: what a user types, what is said back, what is in the file then."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path

import pytest

from gaploop.core import journal_format, labels
from gaploop.core.files import uuid7, write_json
from gaploop.core.journal_format import TakeEnd, TakeHeader
from gaploop.core.labels import LabelEvent
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.scripts.cli import main
from gaploop.scripts.options import jsonable

OUTCOMES = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.UNLABELLED, Outcome.FAILURE)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Four takes without frames."""
    root = tmp_path / "journal"
    for n, outcome in enumerate(OUTCOMES):
        info = TakeInfo(uuid7(), conditions={"lighting": "dim" if n % 2 else "bright"})
        folder = root / info.uid
        folder.mkdir(parents=True)
        write_json(folder / journal_format.HEADER, TakeHeader(info).to_json())
        write_json(folder / journal_format.END, jsonable(TakeEnd(outcome, frames=10 * n)))
    return root


class Label:
    """Runs the command."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys

    def __call__(self, *options: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert main(["label", str(self.root), *options]) == code
        out = self._capsys.readouterr()
        if code == 2:
            assert out.out == ""
            assert out.err.count("\n") == 1, "one line"
        return out.out + out.err

    def json(self, *options: str, code: int = 0) -> dict:
        return json.loads(self(*options, "--json", code=code))

    def now(self, name: str, *options: str) -> list:
        return [take[name] for take in self.json(*options)["takes"]]


@pytest.fixture
def label(journal: Path, capsys: pytest.CaptureFixture[str]) -> Label:
    return Label(journal, capsys)


def test_the_first_example_of_the_help(label: Label) -> None:
    answer = label.json(
        "--episodes=3",
        "--outcome=failure",
        "--failure_mode=slip",
        '--dimensions={"contact_dynamics": 0.8}',
        "--author=ana",
        "--note=pads",
    )
    assert (answer["episodes"], answer["events"], answer["author"]) == ([3], 3, "ana")
    [take] = label.json("--where=failure_mode=slip dimensions=contact_dynamics")["takes"]
    assert (take["take"], take["phase"]) == (3, "")
    assert take["dimensions"] == {"contact_dynamics": 0.8}
    said = take["labels"]["failure_mode"]
    assert {**said, "at": ""} == {
        "author": "ana", "source": "engineer", "at": "", "confidence": 1.0, "note": "pads",
    }  # fmt: skip


def test_many_are_labelled_where_a_query_says(label: Label) -> None:
    label("--where=lighting=dim", "--phase=grasp", "--author=ana")
    assert label.now("phase") == ["", "grasp", "", "grasp"]
    again = label.json("--where=lighting=dim", "--phase=grasp", "--author=ana")
    assert (again["events"], again["unchanged"]) == (0, 2)
    assert label.json("--where=lighting=dark", "--phase=grasp", "--author=ana", code=1)


def test_takes_are_named_in_every_way(label: Label) -> None:
    uids = label.now("uid")
    beginning = next(
        uids[2][:n] for n in range(1, 37) if sum(u[:n] == uids[2][:n] for u in uids) == 1
    )
    assert label.now("take", f"--episodes={uids[0]}") == [0]
    assert label.now("take", f"--episodes={beginning}") == [2]
    assert label.now("take", f"--episodes=[0, {uids[2]}]") == [0, 2]
    assert label.now("take", "--episodes=1:3") == [1, 2]
    assert label.now("take", "--episodes=[3, 0]") == [0, 3]
    assert label.now("take", "--episodes=[1, 3, 0]", "--where=lighting=dim") == [1, 3]


def test_an_engineer_overrules_an_operator_and_undo_takes_it_back(label: Label) -> None:
    uid = label.now("uid", "--episodes=0")[0]
    by_bo = partial(LabelEvent, uid, "outcome", author="bo", source="operator")
    file = label.root / "labels.jsonl"
    labels.append(file, by_bo(value="failure"))
    label("--episodes=0", "--outcome=discarded", "--note=cable", "--author=ana")
    labels.append(file, by_bo(value="success"))
    assert label.now("outcome", "--episodes=0") == ["discarded"]
    [take] = label.json("--episodes=0", "--history")["takes"]
    assert [e["counts"] for e in take["events"]] == [False, True, True, False]
    assert "ana (engineer) overrides an operator's label" in take["events"][3]["why"]
    answer = label.json("--undo", "--author=ana")
    assert answer["events"] == 2, "all of one command"
    assert label.now("outcome", "--episodes=0") == ["success"]
    assert label.now("discard_reason", "--episodes=0") == [""]
    label("--undo", "--author=bo")
    label("--undo", "--author=bo")
    assert label.now("outcome") == [o.value for o in OUTCOMES], "as it was sealed"
    assert "ana, bo" in label("--undo", "--author=bo", code=2)
    lines = label("--episodes=0", "--history")
    assert "taken back at" in lines
    assert "takes back what bo said" in lines


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--outcome=success"], "Which takes?"),
        (["--episodes=4", "--outcome=success"], "name episodes 0 to 3"),
        (["--episodes=0", "--outcome=sucess"], "Did you mean 'success'"),
        (["--episodes=0", "--failure_mode=slipp"], "Did you mean 'slip'"),
        (["--episodes=0", "--phase=grab"], "One of: approach"),
        (["--episodes=0", '--dimensions={"contact": 1}'], "Did you mean 'contact_dynamics'"),
        (["--episodes=0", '--dimensions={"contact_dynamics": 2}'], "[0, 1]"),
        (["--episodes=0", "--outcome=success", "--source=operator"], "Unknown option --source"),
        (["--episodes=0", "--outcome=success", "--undo"], "one at a time"),
        (["--episodes=0", "--note=torn pad"], "goes with a label to set"),
        (["--episodes=0", "--outcome=success", "--history"], "one at a time"),
        (["--episodes=zzz"], "no such uid"),
        (["--where=outcome==success"], "write field=value"),
        (["--where=light=dim"], "Did you mean 'lighting'"),
        (["--undo", "--author=zoe"], "nobody has labelled it yet"),
        (["--import=absent.csv"], "not found"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(
    label: Label, options: list[str], said: str
) -> None:
    assert said in label(*options, code=2)
    assert not (label.root / "labels.jsonl").exists()


def test_no_match_says_what_there_is(label: Label) -> None:
    text = label("--where=lighting=dark outcome=failure", code=1)
    assert "lighting is: bright (2), dim (2)" in text
    assert "outcome is: failure (2), success (1), unlabelled (1)" in text


def test_a_contradiction_is_pointed_out(label: Label) -> None:
    assert "success with a failure mode" in label("--episodes=0", "--failure_mode=slip")
    assert "success" not in label("--episodes=0", "--failure_mode=none")


def fill(label: Label) -> None:
    label("--episodes=0:3", "--outcome=failure", "--failure_mode=slip", "--author=ana")
    why = '--dimensions={"contact_dynamics": 0.8, "sensor_noise": 0.1}'
    label("--episodes=1", why, "--author=ana")
    label("--episodes=2", "--failure_mode=none", "--author=ana")
    label("--episodes=3", "--phase=place", "--author=bö", '--note=a, "b"\nc')


def state(label: Label) -> list:
    names = ("uid", "outcome", "failure_mode", "phase", "dimensions", "discard_reason")
    return [{name: take[name] for name in names} for take in label.json()["takes"]]


@pytest.mark.parametrize("history", [[], ["--history"]])
def test_csv_there_and_back(label: Label, tmp_path: Path, history: list[str]) -> None:
    fill(label)
    before, events = state(label), list(labels.read(label.root / "labels.jsonl"))
    file = tmp_path / "labels.csv"
    label(f"--export={file}", *history)
    assert label.json(f"--import={file}")["events"] == 0
    (label.root / "labels.jsonl").unlink()
    label(f"--import={file}", "--author=cy")
    assert state(label) == before
    if history:
        assert list(labels.read(label.root / "labels.jsonl")) == events


def test_an_edited_csv_changes_what_was_edited(label: Label, tmp_path: Path) -> None:
    fill(label)
    file = tmp_path / "labels.csv"
    label(f"--export={file}")
    rows = list(csv.DictReader(file.open()))
    rows[0] |= {"failure_mode": "drift", "dimensions": "sensor_noise: 0.5, visual_domain"}
    save(file, rows, ";", "utf-8-sig")
    answer = label.json(f"--import={file}", "--author=cy")
    assert (answer["episodes"], answer["events"]) == ([0], 2)
    assert label.now("dimensions", "--episodes=0") == [{"sensor_noise": 0.5, "visual_domain": 1.0}]
    assert "cy" in label("--undo", "--author=cy"), "an import is one act"
    assert label.now("failure_mode", "--episodes=0") == ["slip"]


def test_an_edited_csv_is_not_overwritten(label: Label, tmp_path: Path) -> None:
    """An hour of somebody's work in a spreadsheet was gone after a second --export."""
    fill(label)
    file = tmp_path / "labels.csv"
    label(f"--export={file}")
    file.write_text(file.read_text() + "typed by hand")
    for history in ([], ["--history"]):
        assert f"--import={file}" in label(f"--export={file}", *history, code=2)
    assert file.read_text().endswith("typed by hand")


def save(file: Path, rows: list[dict], delimiter: str = ",", encoding: str = "utf-8") -> None:
    with file.open("w", newline="", encoding=encoding) as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def test_what_was_changed_since_the_export_is_not_overwritten(label: Label, tmp_path: Path) -> None:
    fill(label)
    file = tmp_path / "labels.csv"
    label(f"--export={file}")
    rows = list(csv.DictReader(file.open()))
    rows[0]["failure_mode"] = "drift"
    save(file, rows)
    label("--episodes=0", "--failure_mode=timeout", "--author=bo")
    text = label(f"--import={file}", "--author=cy", code=2)
    assert "Line 2: failure_mode is 'drift' here, but bo said 'timeout'" in text
    rows[0]["events"] = ""
    save(file, rows)
    label(f"--import={file}", "--author=cy")
    assert label.now("failure_mode", "--episodes=0") == ["drift"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("uid,outcome\nnobody,success\n", "Line 2: "),
        ("take,outcome\n0,success\n7,success\n", "no take '7'"),
        ("take,outcome\n0,success\n1,sucess\n", "Line 3: Unknown outcome 'sucess'"),
        ("take,outcome\n0,success\n0,failure\n", "Line 3: outcome differs from line 2"),
        ("take,dimensions\n0,contact_dynamics=much\n", "'much' of contact_dynamics"),
        ("take,outcome,confidence\n0,success,high\n", "Line 2"),
        ("take,colour\n0,red\n", "columns take, colour"),
        ("take,outcome,outcome\n0,success,failure\n", "twice"),
        ("", "columns"),
        ("uid,field,value\nnobody,outcome,success\n", "no take 'nobody'"),
    ],
)
def test_a_wrong_csv_is_refused_whole(label: Label, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(text)
    assert said in label(f"--import={file}", "--author=cy", code=2)
    assert not (label.root / "labels.jsonl").exists()


def test_two_peoples_spreadsheets_are_two_opinions(label: Label, tmp_path: Path) -> None:
    file = tmp_path / "opinions.csv"
    for who, words in (
        ("ana", "success failure failure failure"),
        ("bo", "success failure success failure"),
    ):
        lines = [f"{n},{word}" for n, word in enumerate(words.split())]
        file.write_text("\n".join(["Take,Outcome", *lines]))
        assert label.json(f"--import={file}", f"--author={who}")["events"] == 4
    [found] = label.json("--history")["agreement"]
    assert (found["authors"], found["takes"], found["raw"]) == (["ana", "bo"], 4, 0.75)
    assert found["kappa"] == pytest.approx(0.5)
    assert "Cohen's kappa 0.50" in label("--history")
    assert label.json("--history", "--episodes=0")["agreement"][0]["kappa"] is None

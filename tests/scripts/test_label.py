"""`gaploop label` on a journal: what a user types, what is said back, what is in the file then."""

from __future__ import annotations

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
        (["--outcome=success"], "Which episodes?"),
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

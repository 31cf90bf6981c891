"""Tags said again: columns follow, history stays, taking back gives what was recorded."""

from __future__ import annotations

import getpass
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Domain, TakeKind
from gaploop.datasets import layout, staging
from gaploop.datasets.check.dataset import check
from gaploop.datasets.edit.actions import tag_events
from gaploop.datasets.edit.compose import read_run
from gaploop.datasets.lerobot_publish import publish
from gaploop.scripts.cli import main

Write = Callable[..., str]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, write_take: Write) -> Path:
    folder = tmp_path_factory.mktemp("retag")
    for n in range(3):
        write_take(
            folder / "journal",
            code=n,
            cameras=(),
            station="bench_1",
            session=f"s{n}",
            domain=Domain.SIM if n == 2 else Domain.REAL,
            conditions={"lighting": "day"},
        )
    publish(folder / "journal", folder / "set", "me/x")
    return folder / "set"


@pytest.fixture
def dataset(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "set"))


def retag(root: Path, values: dict[str, Any], *options: str) -> int:
    return main(["edit", "retag", str(root), f"--set={json.dumps(values)}", *options])


def column(root: Path, name: str) -> list[Any]:
    return [row[f"gap_{name}"] for row in layout.episode_rows(root)]


def test_tags_follow_and_the_history_says_who(dataset: Path) -> None:
    values = {"station": "bench_3", "conditions": {"lighting": "lamp", "object": "mug"}}
    options = ("--episodes=[0, 2]", "--yes")
    assert retag(dataset, values, *options) == 0
    assert column(dataset, "station") == ["bench_3", "bench_1", "bench_3"]
    assert [json.loads(c) for c in column(dataset, "conditions")] == [
        {"lighting": "lamp", "object": "mug"},
        {"lighting": "day"},
        {"lighting": "lamp", "object": "mug"},
    ]
    said = [e for e in labels.read(dataset / layout.LABELS) if e.field == "station"]
    mine = [(e.author, e.value) for e in said if e.source == "engineer"]
    assert mine == [(getpass.getuser(), "bench_3")] * 2
    assert [e.value for e in said if e.source == "auto"] == ["bench_1"] * 2  # what was before
    assert [f.code for f in check(dataset) if f.severity == "error"] == []
    assert main(["edit", "keep", str(dataset), "--where=station=bench_3", "--yes"]) == 0
    assert column(dataset, "station") == ["bench_3"] * 2
    assert main(["label", str(dataset), "--undo"]) == 0
    assert column(dataset, "station") == ["bench_1"] * 2
    assert json.loads(column(dataset, "conditions")[0]) == {"lighting": "day"}


def test_a_condition_is_removed_with_null(dataset: Path) -> None:
    assert retag(dataset, {"conditions": {"lighting": None}}, "--episodes=0:3", "--yes") == 0
    assert column(dataset, "conditions") == ["{}"] * 3


def test_a_new_dataset_has_the_tags_and_the_old_one_doesnt(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert retag(dataset, {"operator": "bo"}, "--episodes=[1]", f"--output_dir={out}") == 0
    assert column(out, "operator") == ["", "bo", ""]
    assert column(dataset, "operator") == ["", "", ""]
    run = read_run(out)
    assert (run["command"], run["config"]["set"]) == ("edit retag", {"operator": "bo"})
    assert [f.code for f in check(out) if f.severity == "error"] == []


def test_a_busy_dataset_takes_the_tag_and_says_that_its_columns_follow(
    dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents promised that sentence; the tag was written and nothing was said."""
    assert retag(dataset, {"station": "bench_2"}, "--episodes=[0]", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["columns"] is True
    monkeypatch.setattr(staging, "LOCK_WAIT_S", 0.05)
    with staging.locked(dataset):
        assert retag(dataset, {"station": "bench_3"}, "--episodes=[0]", "--yes") == 0
        assert "its columns show them after the next label" in capsys.readouterr().out
        assert retag(dataset, {"operator": "bo"}, "--episodes=[0]", "--yes", "--json") == 0
        answer = json.loads(capsys.readouterr().out)
    assert (answer["changed"], answer["columns"]) == (True, False)
    assert column(dataset, "station")[0] == "bench_2"
    assert retag(dataset, {"session": "s9"}, "--episodes=[0]", "--yes") == 0
    assert [column(dataset, n)[0] for n in ("station", "operator")] == ["bench_3", "bo"]


def test_what_is_there_already_is_not_said_again(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retag(dataset, {"station": "bench_1"}, "--episodes=0:3", "--yes") == 0
    assert "have these tags already" in capsys.readouterr().out
    assert list(labels.read(dataset / layout.LABELS)) == []


@pytest.mark.members(4)
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "Which tags"),
        ({"statoin": "x"}, "Did you mean 'station'"),
        ({"outcome": "success"}, "gaploop label"),
        ({"gap_consent": "c-aaaaaaaaaa"}, "gaploop consent"),
        ({"uid": "x"}, "never changes"),
        ({"kind": "demo"}, "Did you mean 'demonstration'"),
        ({"conditions": "dim"}, "conditions must map names to values"),
        ({"domain": "real"}, "episode 2 is tagged as simulated"),
    ],
)
def test_what_is_refused_changes_nothing(
    dataset: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any], says: str
) -> None:
    before = layout.episode_rows(dataset)
    assert retag(dataset, values, "--episodes=0:3", "--yes") == 2
    assert says in capsys.readouterr().err
    assert retag(dataset, {"station": "x"}, "--episodes=[0]") == 2
    assert "Nothing was changed" in capsys.readouterr().err
    assert retag(dataset, {"station": "x"}, "--episodes=[0]", "--dry_run") == 0
    assert layout.episode_rows(dataset) == before


def test_a_simulated_take_never_becomes_a_real_one(original: Path) -> None:
    """Not by way of its kind either, and whatever else is said."""
    episodes = layout.read_episodes(layout.read_info(original))
    kinds = st.sampled_from([k.value for k in TakeKind])

    @given(kinds, st.text(max_size=5))
    @settings(max_examples=20)
    def law(kind: str, station: str) -> None:
        values = {"kind": kind, "station": station, "domain": "real"}
        with pytest.raises(UnusableInputError, match="simulated"):
            tag_events(episodes, values, "ana")
        assert tag_events(episodes[:2], {"domain": "sim"}, "ana")[0].value == "sim"

    law()


def test_labels_and_tags_of_one_take_are_told_apart(dataset: Path) -> None:
    uid = column(dataset, "uid")[0]
    assert retag(dataset, {"station": "bench_3"}, "--episodes=[0]", "--yes") == 0
    labels.append(dataset / layout.LABELS, LabelEvent(uid, "phase", "grasp", "ana", "operator"))
    assert retag(dataset, {"plan": "p-1"}, "--episodes=[0]", "--yes") == 0
    row = layout.episode_rows(dataset)[0]
    assert (row["gap_station"], row["gap_plan"], row["gap_phase"]) == ("bench_3", "p-1", "grasp")

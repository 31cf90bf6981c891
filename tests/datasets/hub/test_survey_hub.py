"""Metadata on a Hub: read by ranges where the server has them, tried again where it stumbles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from loopback_hub import LoopbackHub

from benchmarks.metadata import simulate
from gaploop.datasets.hub.upload import Pushed
from gaploop.datasets.survey import sources
from gaploop.datasets.survey.check import overviews
from gaploop.datasets.survey.sources import HubMetadata, find_datasets
from gaploop.datasets.survey.stream import find
from gaploop.scripts.cli import main

QUERY = "outcome=failure distractors!=1"


@pytest.fixture
def online(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """Two datasets of 40 and 20 episodes, on disk and on the Hub."""
    monkeypatch.setattr("benchmarks.metadata.PER_DATASET", 40)
    simulate(tmp_path / "sets", 60, seed=2)
    api = HfApi(endpoint=hub.url, token="hf_test")
    for root in sorted((tmp_path / "sets").iterdir()):
        api.create_repo(f"me/{root.name}", repo_type="dataset")
        tree = {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
        hub.repo(f"me/{root.name}").commit(tree, "a dataset")
    hub.log.clear()
    return hub


@pytest.mark.parametrize("ranges", [True, False])
def test_a_hub_gives_the_answers_of_the_disk(
    online: LoopbackHub, tmp_path: Path, ranges: bool
) -> None:
    online.ranges = ranges
    names = ["hf://datasets/me/set_0000", "me/set_0001"]
    there, here = find_datasets(names), find_datasets([str(tmp_path / "sets")])
    for a, b in zip(find(QUERY, there), find(QUERY, here), strict=True):
        assert a.skipped == ""
        assert (a.episodes.tolist(), a.frames, a.scanned) == (
            b.episodes.tolist(),
            b.frames,
            b.scanned,
        )
    for one, two in zip(overviews(there), overviews(here), strict=True):
        assert (one.counts, one.findings, one.frames) == (two.counts, (), two.frames)
    assert not any("file-000.mp4" in line or "/data/" in line for line in online.log)


def test_a_server_error_is_tried_again_and_a_missing_repository_is_named(
    online: LoopbackHub,
) -> None:
    online.fault(503, "file-000.parquet")
    good, bad = find(QUERY, [HubMetadata("me/set_0001"), HubMetadata("me/nothing")])
    assert (good.skipped, good.scanned) == ("", 20)
    assert "404" in bad.skipped


def test_long_lists_of_files_come_in_pages_and_each_is_tried_again(online: LoopbackHub) -> None:
    online.page_size = 2
    expected = set(online.files("me/set_0001"))
    online.log.clear()
    online.fault(503, "/tree/", times=1)
    assert HubMetadata("me/set_0001").files == expected
    assert sum("/tree/" in line for line in online.log) == 1 + -(-len(expected) // 2)


@pytest.mark.parametrize("kind", ["drop", "hang", "html", 503])
@pytest.mark.parametrize("path", ["/tree/", "/resolve/"])
def test_a_hub_out_of_reach_is_a_finding_and_the_survey_goes_on(
    online: LoopbackHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    kind: str | int,
) -> None:
    """httpx's errors are not OSErrors: a traceback ended the whole survey."""
    monkeypatch.setattr(sources, "RETRIES", 0)
    monkeypatch.setattr(sources, "TIMEOUT_S", 0.1)
    online.fault(kind, path, times=99, seconds=0.3)
    here = tmp_path / "sets/set_0001"
    bad, good = find(QUERY, find_datasets(["hf://datasets/me/set_0001", str(here)]))
    assert (bool(bad.skipped), good.skipped, good.scanned) == (True, "", 20)
    bad_one, good_one = overviews(find_datasets(["hf://datasets/me/set_0001", str(here)]))
    assert (bad_one.ok, good_one.ok) == (False, True)


@pytest.mark.usefixtures("hub")
def test_no_server_at_all_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "RETRIES", 0)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (found,) = find(QUERY, [HubMetadata("me/set_0001")])
    assert "http://127.0.0.1:9/api/datasets/me/set_0001" in found.skipped


def test_one_dataset_on_a_hub_shows_what_it_shows_here(
    push: Callable[..., Pushed], hub: LoopbackHub, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tables are fetched, and of its videos the parts that are decoded, by ranges."""
    push(dataset, "me/pick")
    hub.log.clear()
    assert main(["check", "me/pick", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    main(["check", str(dataset), "--json"])
    here = json.loads(capsys.readouterr().out)
    for part in ("good", "untested"):
        assert there[part] == here[part]
    assert [s["kind"] for s in there["sentences"]] == [s["kind"] for s in here["sentences"]]
    assert any(".mp4" in line for line in hub.log)
    assert main(["check", "me/nothing"]) == 2
    assert "me/nothing is no folder here" in capsys.readouterr().err

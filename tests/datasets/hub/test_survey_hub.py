"""Metadata on a Hub: read by ranges where the server has them, tried again where it stumbles."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi
from loopback_hub import LoopbackHub

from gaploop.datasets.survey.check import overviews
from gaploop.datasets.survey.sources import HubMetadata, find_datasets
from gaploop.datasets.survey.stream import find
from gaploop.scripts._bench_metadata import simulate

QUERY = "outcome==failure and distractors > 3"


@pytest.fixture
def online(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """Two datasets of 40 and 20 episodes, on disk and on the Hub."""
    monkeypatch.setattr("gaploop.scripts._bench_metadata.PER_DATASET", 40)
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

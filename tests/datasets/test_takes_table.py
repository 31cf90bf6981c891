"""Laws of the takes table: what takes say, from journal and dataset alike, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import IterableDataset

import gaploop
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.lerobot_publish import publish


@pytest.mark.parametrize("kind", ["journal", "dataset"])
def test_a_table_says_what_the_takes_say(
    tmp_path: Path, write_take: Callable[..., str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who analyses in pandas had to write a loop over takes, and lists into rows, by themselves."""
    cache = tmp_path / "cache"
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache)
    folder = tmp_path / "journal"
    folder.mkdir()
    conditions = {"lighting": "dim", "grid_cell": [0, 2], "shift": "late"}
    uids = [
        write_take(folder, 5, Outcome.FAILURE, code=1, conditions=conditions),
        write_take(folder, 7, code=2, dimensions={"visual_domain": 0.75}),
    ]
    if kind == "dataset":
        publish(folder, tmp_path / "set", "me/set")
        folder = tmp_path / "set"
    takes = list(gaploop.load_takes(folder))
    table = gaploop.takes_dataset(folder).to_pandas()
    assert list(table.uid) == [t.info.uid for t in takes] == uids
    assert list(table.outcome) == ["failure", "success"]
    assert list(table.frames) == [5, 7]
    assert list(table.visual_domain) == [0.0, 0.75]
    assert (table.lighting[0], table.grid_cell[0], table.lighting[1]) == ("dim", "[0, 2]", None)
    assert json.loads(table.conditions[0]) == conditions
    frames = gaploop.takes_dataset(folder, rows="frames")
    assert len(frames) == 12
    second = [row for row in frames if row["uid"] == uids[1]]
    for name in ("state", "action", "sent", "t_s"):
        assert [row[name] for row in second] == getattr(takes[1].frames, name).tolist()
    for rows, whole in (("takes", gaploop.takes_dataset(folder)), ("frames", frames)):
        streamed = gaploop.takes_dataset(folder, rows=rows, streaming=True)
        assert isinstance(streamed, IterableDataset)
        for _ in range(2):  # an iterable is read anew each time
            assert list(streamed) == list(whole)
    kept = [p for p in cache.rglob("*") if p.is_file() and p.stat().st_size]
    assert not kept, "copies of takes that a withdrawal wouldn't find"


def test_what_is_no_table_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="is empty"):
        gaploop.takes_dataset(tmp_path, streaming=True)
    (tmp_path / "meta").mkdir()
    with pytest.raises(UnusableInputError, match="frames, takes"):
        gaploop.takes_dataset(tmp_path, rows="pictures")

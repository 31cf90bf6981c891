"""A dataset on a Hub is checked from its tables, and the parts of its videos that are looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback_hub import LoopbackHub

from gaploop.datasets.hub.upload import Pushed
from gaploop.scripts.cli import main


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
    assert there["good"] == here["good"]
    by_packets = "frozen pictures of overhead in 3 episodes"  # which aren't fetched for that
    assert there["untested"] == {**here["untested"], by_packets: "only some are decoded"}
    assert [s["kind"] for s in there["sentences"]] == [s["kind"] for s in here["sentences"]]
    codes = [[f["code"] for f in one["findings"]] for one in (there, here)]
    assert codes[0] == codes[1]
    assert any(".mp4" in line for line in hub.log)
    assert main(["check", "me/nothing"]) == 2
    assert "me/nothing is no folder here" in capsys.readouterr().err
    hub.repo("me/pick").tags.clear()  # LeRobot loads it by that alone
    assert main(["check", "me/pick", "--json"]) == 1
    found = {f["code"]: f["mend"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["missing_tag"] == "hf repos tag create me/pick v3.0 --repo-type=dataset"
    hub.repo("me/pick").commit({"notes.txt": b"nothing"}, "emptied")
    assert main(["check", "me/pick"]) == 2
    assert "me/pick is no LeRobot dataset" in capsys.readouterr().err

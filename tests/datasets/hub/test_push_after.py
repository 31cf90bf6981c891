"""`--dataset.push_to_hub` of the commands that write datasets: a Hub that is down ends nothing."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path

import pytest
from loopback_hub import LoopbackHub

from gaploop.datasets.hub import upload
from gaploop.scripts.cli import main
from gaploop.scripts.options import PublishedDataset
from gaploop.scripts.push import push_after

type Capture = pytest.CaptureFixture[str]


def test_takes_recorded_while_the_hub_is_down_are_pushed_later(
    hub: LoopbackHub, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "Patience", partial(upload.Patience, wait_s=0.01))
    hub.fault("drop", times=10**6)
    root = tmp_path / "takes"
    command = ["record", "--dataset.repo_id=me/takes", f"--dataset.root={root}", "--json"]
    command += ["--dataset.push_to_hub=true", "--dataset.private"]
    assert main([*command, "--dataset.num_episodes=1"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["published"], said["push"]["state"]) == (said["takes"], "unreached")
    hub.faults.clear()
    assert main(shlex.split(said["push"]["command"])[1:]) == 0
    repo = hub.repo("me/takes")
    assert repo.private
    assert repo.tags == {"v3.0": repo.branches["main"]}


def test_a_session_that_is_stopped_says_how_to_push_later(dataset: Path, hub: LoopbackHub) -> None:
    asked = PublishedDataset(dataset, "me/cube", push_to_hub=True)
    said = push_after(asked, dataset, stopped=[15])
    assert said is not None
    assert said["state"] == "unreached"
    assert hub.log == []
    assert main(shlex.split(said["command"])[1:]) == 0
    assert hub.repo("me/cube").tags


def test_what_must_not_be_pushed_is_pushed_once_it_is_repaired(
    dataset: Path, hub: LoopbackHub
) -> None:
    (dataset / "meta" / "notes.md").write_text("hf_" + "aB3" * 11)
    asked = PublishedDataset(dataset, "me/cube", push_to_hub=True)
    said = push_after(asked, dataset)
    assert said is not None
    assert said["state"] == "refused"
    (dataset / "meta" / "notes.md").unlink()
    assert main(shlex.split(said["command"])[1:]) == 0
    assert hub.repo("me/cube").tags


@pytest.mark.parametrize("command", ["record", "rollout", "publish"])
def test_a_push_to_nowhere_is_refused_before_anything_happens(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    options = [f"--dataset.root={tmp_path / 'x'}", "--dataset.push_to_hub=true"]
    assert main([command, *options]) == 2
    assert "--dataset.repo_id=local/gaploop" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

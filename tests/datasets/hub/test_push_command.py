"""`gaploop push` as its user meets it: killed, without a network, with a queue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quick_imports
from loopback_hub import LoopbackHub

from gaploop.datasets.hub import queue as push_queue
from gaploop.scripts.cli import main

NAME = "me/cube"
type Capture = pytest.CaptureFixture[str]


def test_a_kill_in_the_middle_of_an_upload_costs_no_byte_twice(
    dataset: Path, hub: LoopbackHub, capsys: Capture, lerobot_loads: Callable[..., dict[str, Any]]
) -> None:
    """SIGKILL after three files: the next `gaploop push`, without a word, goes on there."""
    puts: list[str] = []
    process: list[subprocess.Popen[bytes]] = []

    def kill(method: str, path: str) -> None:
        if method == "PUT":
            puts.append(path)
            if len(puts) == 4:
                os.kill(process[0].pid, signal.SIGKILL)
                hub.fault("drop", times=10**6)  # what is on its way still doesn't arrive

    hub.watch = kill
    program = f"{quick_imports.FIRST}from gaploop.scripts import cli\ncli.main()"
    command = [sys.executable, "-c", program, "push", str(dataset)]
    with hub.lock:  # the Hub answers nothing before the test knows whom to kill
        process.append(subprocess.Popen([*command, f"--repo_id={NAME}"], stderr=subprocess.PIPE))
    assert process[0].wait() == -signal.SIGKILL
    assert process[0].stderr is not None
    process[0].stderr.close()
    assert hub.repo(NAME).tags == {}
    end_s = time.monotonic() + 300
    while len(hub.blobs) < 3 and time.monotonic() < end_s:
        time.sleep(0.01)
    there = set(hub.blobs)
    assert len(there) >= 3
    hub.faults.clear()
    hub.watch = lambda _method, _path: None
    hub.log.clear()
    assert main(["push", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["pushed"]) == 1
    sent = {call.rpartition("/")[2] for call in hub.log if call.startswith("PUT")}
    assert sent
    assert not sent & there
    assert lerobot_loads()["frames"] == 18
    assert push_queue.waiting() == []


def test_without_a_network_a_push_waits_and_the_next_one_sends_it(
    dataset: Path, hub: LoopbackHub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.fault("drop", times=10**6)
    assert main(["push", str(dataset), f"--repo_id={NAME}", "--retries=0"]) == 1
    assert "is queued" in capsys.readouterr().out
    assert main(["push", "--waiting", "--json"]) == 0
    (waiting,) = json.loads(capsys.readouterr().out)["waiting"]
    assert (waiting["folder"], waiting["endpoint"]) == (str(dataset), hub.url)
    hub.faults.clear()
    with monkeypatch.context() as elsewhere:  # what is meant for one Hub never goes to another
        elsewhere.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        assert main(["push"]) == 0
        assert "Nothing waits" in capsys.readouterr().out
    assert hub.repos == {}
    assert main(["push"]) == 0
    assert hub.repo(NAME).tags
    assert main(["push"]) == 0
    assert "Nothing waits" in capsys.readouterr().out


def test_offline_mode_is_no_reason_to_wait(
    dataset: Path, hub: LoopbackHub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["push", str(dataset), f"--repo_id={NAME}", "--retries=99"]) == 1
    assert "offline mode" in capsys.readouterr().out
    assert hub.log == []


def test_a_push_can_be_forgotten(hub: LoopbackHub, capsys: Capture) -> None:
    push_queue.put(push_queue.QueuedPush("gone", NAME, "dataset", hub.url))
    assert main(["push", "--forget=me/cubes"]) == 2
    assert f"Did you mean '{NAME}'" in capsys.readouterr().err
    assert main(["push"]) == 2  # the folder is gone: it is said, and waits on
    assert "not found" in capsys.readouterr().out
    assert main(["push", f"--forget={NAME}"]) == 0
    assert push_queue.waiting() == []


def test_a_file_that_goes_while_the_queue_is_read_was_sent_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(push_queue.ENVIRONMENT, str(tmp_path))
    (tmp_path / "sent.json").symlink_to(tmp_path / "gone")  # listed, and not there to be read
    push = push_queue.QueuedPush("cube", NAME, "dataset", "http://127.0.0.1:9")
    push_queue.put(push)
    assert push_queue.waiting() == [push]


def test_a_bad_file_in_the_queue_is_said_before_anything_is_sent(
    dataset: Path, hub: LoopbackHub, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "bad.json").write_text("{")
    assert main(["push", str(dataset), f"--repo_id={NAME}"]) == 2
    assert "bad.json" in capsys.readouterr().err
    assert hub.log == []


def test_a_dry_run_writes_the_card_and_asks_no_hub(
    dataset: Path, hub: LoopbackHub, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "card"
    command = ["push", str(dataset), f"--repo_id={NAME}", "--dry_run", f"--output_dir={out}"]
    assert main([*command, "--private", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["card"] == (out / "README.md").read_text()
    assert said["files"]["meta/info.json"] == (dataset / "meta/info.json").stat().st_size
    assert (out / "assets/sample.jpg").stat().st_size > 0
    assert hub.log == []
    assert push_queue.waiting() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing", "--repo_id=me/x"], "not found"),
        (["EMPTY", "--repo_id=me/x"], "neither a dataset"),
        (["DATASET"], "--repo_id=me/name"),
        (["DATASET", "--repo_id=cube"], "owner and name"),
        (["DATASET", "--repo_id=local/cube"], "owner and name"),
        (["DATASET", "--repo_id=me/a/b"], "owner and name"),
        (["--repo_id=me/x"], "Which folder?"),
        (["JOURNAL", "--repo_id=me/x"], "Publish it first"),
        (["DATASET", "--repo_id=me/x", "--retries=-1"], "0 or more"),
        (["DATASET", "--repo_id=me/x", "--licence=mit"], "license"),
    ],
)
def test_unusable_input_is_one_line(
    arguments: list[str],
    said: str,
    dataset: Path,
    hub: LoopbackHub,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "take_journal" / "a").mkdir(parents=True)
    (tmp_path / "take_journal" / "a" / "take.json").write_text("{}")
    names = {"DATASET": dataset, "EMPTY": tmp_path / "empty", "JOURNAL": tmp_path / "take_journal"}
    assert main(["push", *(str(names.get(a, a)) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert hub.log == []
    assert push_queue.waiting() == []

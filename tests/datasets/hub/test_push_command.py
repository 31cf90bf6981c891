"""`gaploop push` as its user meets it: killed, and without a network."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import filelock
import pytest
import quick_imports
from loopback_hub import LoopbackHub

from gaploop.datasets import staging
from gaploop.datasets.hub import upload
from gaploop.scripts.cli import main

NAME = "me/cube"
KINDS = (".parquet", ".mp4", ".zip")
type Capture = pytest.CaptureFixture[str]


def test_a_kill_in_the_middle_of_an_upload_costs_no_byte_twice(
    dataset: Path, hub: LoopbackHub, capsys: Capture
) -> None:
    """SIGKILL after three files: the same command goes on there."""
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
    assert main(["push", str(dataset), f"--repo_id={NAME}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "pushed"
    sent = {call.rpartition("/")[2] for call in hub.log if call.startswith("PUT")}
    assert sent
    assert not sent & there
    held = hub.files(NAME)
    ours = [path for path in dataset.rglob("*") if path.is_file() and path.suffix in KINDS]
    assert ours
    for path in ours:  # what plain LeRobot loads: test_push_dataset
        assert held[path.relative_to(dataset).as_posix()] == path.read_bytes()


def test_without_a_network_it_says_how_to_go_on(
    dataset: Path, hub: LoopbackHub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "Patience", partial(upload.Patience, wait_s=0.01))
    hub.fault("drop", times=10**6)
    told = ["push", str(dataset), f"--repo_id={NAME}", "--private", "--license=cc-by-4.0"]
    assert main(told) == 1
    _, _, command = capsys.readouterr().out.strip().partition(". Go on with: ")
    hub.faults.clear()
    assert main(shlex.split(command)[1:]) == 0
    assert hub.repo(NAME).private
    assert "license: cc-by-4.0" in hub.files(NAME)["README.md"].decode()


def test_two_pushes_of_one_folder_at_once_do_not_undo_each_other(
    dataset: Path, hub: LoopbackHub, capsys: Capture
) -> None:
    with filelock.FileLock(staging.sibling(dataset, "push")):
        assert main(["push", str(dataset), f"--repo_id={NAME}"]) == 2
    assert "another process is pushing it" in capsys.readouterr().err
    assert hub.log == []


def test_what_only_the_user_can_change_is_no_reason_to_wait(
    dataset: Path, hub: LoopbackHub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["push", str(dataset), f"--repo_id={NAME}"]) == 1
    assert "HF_HUB_OFFLINE is set; unset it" in capsys.readouterr().out
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name, value, says in (
        ("HF_ENDPOINT", "hub.example.org", "such as https://hub.example.org"),
        ("HF_ENDPOINT", hub.url.replace("http:", "https:"), "http:// where that Hub has no TLS"),
        ("ALL_PROXY", "odd://10.0.0.1", "Correct the proxy"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            close_session()
            assert main(["push", str(dataset), f"--repo_id={NAME}"]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("gaploop push: ")
        assert says in said
    assert hub.log == []


def test_a_dry_run_shows_the_card_and_asks_no_hub(
    dataset: Path, hub: LoopbackHub, capsys: Capture
) -> None:
    command = ["push", str(dataset), f"--repo_id={NAME}", "--dry_run"]
    assert main([*command, "--private", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["card"].startswith("---")
    assert said["files"]["meta/info.json"] == (dataset / "meta/info.json").stat().st_size
    assert hub.log == []


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

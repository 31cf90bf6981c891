"""`gaploop serve` as its user has it: a policy lent to a robot elsewhere."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from pathlib import Path

import pytest

from gaploop.collect import remote_policy
from gaploop.scripts import _serve as serve
from gaploop.scripts.cli import main
from gaploop.scripts.options import PolicyOptions
from gaploop.scripts.serve import ServeConfig
from gaploop.teleop import link


def said_at_the_robot(line: str, name: str) -> list[str]:
    """Return the options that the line tells to use."""
    found = re.findall(rf"--{name}\.\w+=\S+", line)
    assert found, line
    return found


def test_a_policy_drives_the_embedded_cell_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = link.new_token()
    monkeypatch.setenv("GAPLOOP_LINK_TOKEN", token)
    config = ServeConfig(policy=PolicyOptions("base"))
    with contextlib.ExitStack() as stack:
        talk, words = serve.served(config)
        port = stack.enter_context(
            link.listening(
                remote_policy.KIND,
                token,
                talk,
                host="127.0.0.1",
                port=0,
                max_bytes=remote_policy.MOST_BYTES,
            )
        )
        told = said_at_the_robot(words(f"127.0.0.1:{port}", ""), "policy")
        cell = ["--robot.type=so101_sim", "--take_over=never", f"--dataset.root={tmp_path / 'r'}"]
        few = ["--dataset.num_episodes=1", "--dataset.episode_time_s=0.4", "--json"]
        assert main(["rollout", *told, *cell, *few]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["takes"] == 1
    assert not summary["faults"]
    assert summary["policy"]["link_p50_ms"] > 0


def test_a_policy_elsewhere_is_timed_over_the_link_before_it_drives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doctor knew local policies only, so that the one that needs a GPU was never checked."""
    token = link.new_token()
    monkeypatch.setenv("GAPLOOP_LINK_TOKEN", token)
    config = ServeConfig(policy=PolicyOptions("base", device="cpu", format="bf16"))
    with contextlib.ExitStack() as stack:
        talk, _ = serve.served(config)
        port = stack.enter_context(
            link.listening(
                remote_policy.KIND,
                token,
                talk,
                host="127.0.0.1",
                port=0,
                max_bytes=remote_policy.MOST_BYTES,
            )
        )
        path, cell = f"--policy.path=remote://127.0.0.1:{port}", "--robot.type=so101_sim"
        command = ["doctor", path, cell, "--move=false", f"--journal={tmp_path}", "--json"]
        assert main(command) == 1  # nothing was moved
        answer = json.loads(capsys.readouterr().out)
    found = {item["area"]: item for item in answer["findings"]}
    assert answer["runs"] == f"127.0.0.1:{port} (cpu, bf16, 1 thread)"
    assert found["latency"]["found"].startswith(answer["runs"])
    assert "on another machine" in found["features"]["found"]
    assert main(["doctor", path]) == 2
    assert "--robot.type" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["arm"], "Unknown thing to serve"),
        (["policy"], "--policy.path"),
        (["policy", "--policy.path=nowhere"], "nowhere not found"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["serve", "policy", "--policy.path=base", f"--port={port}", "--host=127.0.0.1"]
        assert main(words) == 2
    assert "Name another with --port" in capsys.readouterr().err

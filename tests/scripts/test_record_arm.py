"""`gaploop record` on arms: what it refuses, which keys and which display it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gaploop.collect.operator.keys import KeyDecoder
from gaploop.collect.session import chosen_interface
from gaploop.scripts.cli import main


def test_an_arm_that_does_not_answer_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ["--robot.type=so101_follower", "--robot.port=/dev/none", "--teleop.type=so101_leader"]
    command = ["record", *arms, "--teleop.port=/dev/none2", f"--dataset.root={tmp_path / 'd'}"]
    assert main([*command, "--display=none"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_keys_of_a_terminal_have_the_names_that_are_on_them() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b[C\x1b[Ds\r\x1b") == ["right", "left", "s", "return"]
    assert decoder.feed(b"\x1bOA S5\x1b[15~") == ["up", "space", "s", "5"]
    assert decoder.feed(b"") == []


def test_the_display_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_interface("terminal", "keyboard") == "terminal"
    assert chosen_interface("auto", "keyboard") == "window"
    monkeypatch.setenv("DISPLAY", ":0")
    assert chosen_interface("auto", "so101_leader") == "window"

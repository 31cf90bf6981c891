"""`gaploop record` on emulated arms: takes are spans of one running loop, and torque goes off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gaploop.core.journal_format import read_journal
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.layout import episode_rows
from gaploop.scripts._keys import key_names
from gaploop.scripts._record_screen import chosen_display
from gaploop.scripts.cli import main
from gaploop.teleop.emulator import EmulatedBus, arm_plan


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[EmulatedBus, list[str]]]:
    """Yield an emulated follower, and the options that name it and its leader."""
    options, buses = [], {}
    with ExitStack() as stack:
        for role, group in (("follower", "robot"), ("leader", "teleop")):
            plan = arm_plan("so101", role).calibrated()
            (tmp_path / f"{role}.json").write_text(json.dumps(plan.calibration()))
            link = tmp_path / role
            hand = "wave" if role == "leader" else "none"
            buses[role] = stack.enter_context(EmulatedBus.start(plan=plan, hand=hand, link=link))
            options += [f"--{group}.type=so101_{role}", f"--{group}.port={link}"]
            options += [f"--{group}.id={role}", f"--{group}.calibration_dir={tmp_path}"]
        yield buses["follower"], options


def test_takes_of_an_arm_are_recorded_published_and_marked_as_emulated(
    pair: tuple[EmulatedBus, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follower, options = pair
    root = tmp_path / "data"
    short = ["--dataset.episode_time_s=0.6", "--dataset.reset_time_s=0.1"]
    command = ["record", *options, *short, "--dataset.num_episodes=2", f"--dataset.root={root}"]
    assert main([*command, "--display=none", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["counted"], said["published"], said["evidence"]) == (2, 2, "emulated")
    takes = list(read_journal(Path(said["journal"])))
    assert {take.outcome for take in takes} == {Outcome.UNLABELLED}
    for take in takes:
        assert take.info.domain is Domain.SIM_TARGET
        assert take.info.fps == 30.0
        assert 10 <= len(take.frames) <= 18
        assert len(take.telemetry) > 4 * len(take.frames)
        assert take.telemetry.arms() == ("follower", "leader")
    assert len(list(episode_rows(root))) == 2
    with follower.lock:
        assert not any(servo.torque for servo in follower.all_servos)


def test_an_arm_that_does_not_answer_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ["--robot.type=so101_follower", "--robot.port=/dev/none", "--teleop.type=so101_leader"]
    command = ["record", *arms, "--teleop.port=/dev/none2", f"--dataset.root={tmp_path / 'd'}"]
    assert main([*command, "--display=none"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_keys_of_a_terminal_have_the_names_that_are_on_them() -> None:
    assert key_names(b"\x1b[C\x1b[Ds\r\x1b") == ["right", "left", "s", "return", "escape"]
    assert key_names(b"\x1bOA S5\x1b[15~") == ["up", "space", "s", "5", "f5"]
    assert key_names(b"") == []


def test_the_display_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_display("terminal", has_window=True) == "terminal"
    assert chosen_display("auto", has_window=True) == "window"
    monkeypatch.setenv("DISPLAY", ":0")
    assert chosen_display("auto", has_window=False) == "window"

"""`gaploop rollout` as its user meets it, on the embedded cell."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gaploop.collect.campaign import Quota
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import record_takes
from gaploop.core.journal_format import read_end, read_journal, take_folders
from gaploop.core.take import TakeInfo
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.check.dataset import check
from gaploop.datasets.lerobot_read import load_takes
from gaploop.finetune.batches import load_source
from gaploop.finetune.lerobot_policy import load_policy, policy_id
from gaploop.scripts.cli import main

STALLS = [
    "--robot.type=so101_sim",
    '--robot.gaps={"object_property.size": 0.8}',
    "--robot.gap_seed=1",
]
"""A cube too large for the base policy's grip; scene 1 stalls without a trip."""
BASE = ["rollout", "--policy.path=base"]


def spans(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the stretches of frames in which the person drove, as [first, last + 1)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(int), [0]))))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy.path=missing"], "not found"),
        (["--display=mirror"], "One of: auto, none, terminal"),
        (["--take_over=shout"], "One of: auto, key, never"),
        (["--speed_scale=0"], "above 0 and up to 1"),
        (["--dataset.num_episodes=0"], "above 0"),
        (["--dataset.fps=25"], "trained at 50 fps"),
        (["--journal=DIR/data/j"], "inside each other"),
    ],
)
def test_unusable_input_is_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--dataset.root={tmp_path / 'data'}"]
    arguments += [option.replace("DIR", str(tmp_path)) for option in options]
    assert main([*BASE, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_an_intervention_is_recorded_with_what_led_up_to_it_and_can_be_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    command = [*BASE, *STALLS, "--take_over=auto", "--robot.seed=1", f"--dataset.root={root}"]
    command += ["--dataset.num_episodes=1", "--json"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["helped"], said["published"], said["evidence"]) == (1, 1, "sim-to-sim")
    (take,) = read_journal(Path(said["journal"]))
    assert (take.info.kind, take.info.domain) == (TakeKind.ROLLOUT, Domain.SIM_TARGET)
    assert take.info.policy == policy_id("base")
    assert take.outcome is Outcome.SUCCESS
    ((first, last),) = spans(take.frames.intervention)
    assert first >= 1.5 * take.info.fps, "the policy's own attempt is in the episode"
    assert last == len(take.frames.intervention), "the person drove to the end"
    assert check(root) == []
    (episode,) = load_source(root).episodes
    np.testing.assert_array_equal(episode.usable, take.frames.intervention)


def test_in_a_twin_it_is_sim_to_sim_and_the_camera_is_as_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its evidence was called sim, and the options of the cell's camera did nothing."""
    delay = TwinParameter(
        "actuator_response.latency.latency_s", "s", 0.0, 0.04, (0.03, 0.05), True, "test"
    )
    save_twin(Twin("bench", "so101", (delay,)), tmp_path / "twin.yaml")
    code = main(
        [
            *BASE, "--take_over=never", "--dataset.num_episodes=1", "--dataset.episode_time_s=1",
            f"--dataset.root={tmp_path / 'runs'}", "--json", "--robot.type=so101_sim",
            f"--robot.twin={tmp_path / 'twin.yaml'}", "--robot.image_size=96",
            "--robot.camera_hz=10",
        ]
    )  # fmt: skip
    assert code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["evidence"] == "sim-to-sim"
    (take,) = load_takes(Path(said["journal"]))
    assert take.info.domain is Domain.SIM_TARGET
    ((name, pictures),) = take.cameras.items()
    assert next(iter(pictures())).shape == (96, 96, 3)
    ages_s = take.frames.camera_age_s[name][10:]  # the first picture is there at once
    assert -1e-6 <= ages_s.min() < ages_s.max() <= 0.1 + 1e-6


def test_a_fast_policy_alone_drives_as_without_a_shared_leader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rolling out through the shared leader changes nothing as long as nobody takes over."""
    root, policy = tmp_path / "rollout", load_policy("base")
    record_takes(
        tmp_path / "plain",
        TakeInfo("", "pick place", kind=TakeKind.ROLLOUT),
        [Quota(1)],
        lambda _conditions: embedded_rig(fps=policy.fps),
        lambda rig, _seed: PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz),
        max_s=2.5,
    )
    options = [f"--dataset.root={root}", "--dataset.num_episodes=1", "--json"]
    options += ["--dataset.episode_time_s=2.5"]
    assert main(["rollout", "--policy.path=base", *options]) == 0
    (shared,) = read_journal(Path(json.loads(capsys.readouterr().out)["journal"]))
    (plain,) = read_journal(tmp_path / "plain")
    assert len(plain.frames.action) == len(shared.frames.action)
    np.testing.assert_allclose(plain.frames.action, shared.frames.action, atol=1e-4)
    assert not shared.frames.intervention.any()


def test_a_new_policy_starts_slowly_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*BASE, "--take_over=never", "--speed_scale=0.3", "--dataset.num_episodes=1"]
    command += [f"--dataset.root={tmp_path / 'data'}", "--json", "--dataset.episode_time_s=8"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["outcomes"], said["speed_scale"]) == ({"success": 1}, [0.3])
    (take,) = read_journal(Path(said["journal"]))
    assert len(take.frames.action) > 2 * 3.0 * take.info.fps, "three times as long as at full speed"


def test_sigterm_marks_the_open_take_and_keeps_the_others(
    tmp_path: Path, signal_after_a_take: Callable[[Path, signal.Signals], None]
) -> None:
    root, journal = tmp_path / "data", tmp_path / "journal"
    command = [*BASE, "--dataset.num_episodes=50", f"--dataset.root={root}"]
    command += ["--dataset.episode_time_s=0.5"]
    signal_after_a_take(journal, signal.SIGTERM)
    assert main([*command, f"--journal={journal}"]) == 128 + signal.SIGTERM
    outcomes = [take.outcome for take in read_journal(journal)]
    assert Outcome.FAILURE in outcomes
    assert outcomes.count(Outcome.INTERRUPTED) <= 1
    assert all(read_end(folder) for folder in take_folders(journal))


def test_factors_are_rolled_out_in_blocks_go_on_and_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    command = [*BASE, "--robot.type=so101_sim", "--take_over=never", f"--dataset.root={root}"]
    command += ["--dataset.episode_time_s=0.4", "--factors=[distractors]", "--json"]
    assert main([*command, "--dataset.num_episodes=1"]) == 0
    assert json.loads(capsys.readouterr().out)["takes"] == 4
    assert main([*command, "--dataset.num_episodes=2"]) == 0
    assert json.loads(capsys.readouterr().out)["takes"] == 4, "the first four count"
    counted = ["evaluate", f"--rollouts={root}", f"--output_dir={tmp_path / 'counted'}", "--json"]
    assert main(counted) == 0
    assert len((tmp_path / "counted" / "rollouts.csv").read_text().splitlines()) == 1 + 8
    said = json.loads(capsys.readouterr().out)
    assert {c: r["trials"] for c, r in said["by_condition"].items()} == {
        "nominal": 2, "distractors=2": 2, "distractors=4": 2, "distractors=8": 2,
    }  # fmt: skip
    assert main([*command, "--factors=[shape]"]) == 2
    assert "Unknown factor" in capsys.readouterr().err

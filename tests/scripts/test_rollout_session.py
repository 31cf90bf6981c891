"""A session of rollouts watched: what ships is used where it holds, and alarms are told of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.failure_analysis import live
from gaploop.failure_analysis.live import ALARM
from gaploop.failure_analysis.live_signals import STREAMED
from gaploop.finetune.lerobot_policy import policy_id
from gaploop.scripts import cli


def test_what_ships_is_for_the_packaged_base_in_the_cell_only() -> None:
    base = policy_id("base")
    assert live.session_watch("auto", base, True).score is not None
    assert live.session_watch("auto", "sha256:other", True).score is None
    assert live.session_watch("auto", base, False).score is None
    assert live.session_watch("never", base, True).score is None


def test_a_folder_with_too_few_takes_is_refused_before_anything_moves(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError):
        live.session_watch(str(tmp_path), "", True)


def test_an_alarm_is_in_the_takes_events_and_in_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any arm that trails its command alarms under this score; a usual one in the cell doesn't."""
    shipped = live.shipped_score()
    weights = np.zeros_like(shipped.weights)
    weights[STREAMED.index("tracking_rms_rad")] = 1.0
    monkeypatch.setattr(live, "shipped_score", lambda: replace(shipped, weights=weights))
    code = cli.main(
        [
            "rollout", "--policy.path=base", "--take_over=never", "--dataset.num_episodes=1",
            f"--dataset.root={tmp_path / 'runs'}", "--dataset.episode_time_s=2", "--json",
            "--robot.type=so101_sim", '--robot.gaps={"actuator_response.latency": 1.0}',
        ]
    )  # fmt: skip
    assert code == 0
    summary = json.loads(capsys.readouterr().out)
    (uid,) = summary["uids"]
    assert "miss their command" in summary["alarms"][uid]["why"]
    events = (tmp_path / "runs_journal" / uid / "events.jsonl").read_text().splitlines()
    (alarm,) = [e for e in map(json.loads, events) if e["event"] == ALARM]
    assert alarm["t_s"] == pytest.approx(summary["alarms"][uid]["t_s"])

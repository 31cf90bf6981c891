"""A rollout relies on a preflight of the same policy and arm, that passed, not long ago."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gaploop.collect.preflight import FILE, Checked, check_speed, missing, write_record
from gaploop.collect.rollout import SpeedRamp
from gaploop.core.vocabulary import Domain
from gaploop.teleop.checks.result import Level

NOW = Checked("sha256:p", "so101_follower white")


def test_what_was_checked_counts_for_that_policy_on_that_arm(tmp_path: Path) -> None:
    assert "never checked" in missing(tmp_path, NOW)
    write_record(tmp_path / "journal", NOW, True, {"items": []})
    assert missing(tmp_path / "journal", NOW) == ""
    other = Checked("sha256:q", NOW.robot)
    assert "another policy" in missing(tmp_path / "journal", other)
    write_record(tmp_path / "journal", NOW, False, {"items": []})
    assert "has to be fixed" in missing(tmp_path / "journal", NOW)


def test_an_old_or_damaged_record_doesnt_count(tmp_path: Path) -> None:
    file = write_record(tmp_path, NOW, True, {"items": []})
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "at": "2020-01-01T00:00:00+00:00"}))
    assert "hours old" in missing(tmp_path, NOW)
    for damaged in ("{", "[]", json.dumps({**said, "at": "yesterday"})):
        (tmp_path / FILE).write_text(damaged)
        assert missing(tmp_path, NOW)


@pytest.mark.parametrize(
    ("fixed", "domain", "level"),
    [(None, Domain.REAL, Level.OK), (0.3, Domain.REAL, Level.OK),
     (1.0, Domain.REAL, Level.FAIL), (1.0, Domain.SIM, Level.OK)],
)  # fmt: skip
def test_full_speed_from_the_first_attempt_is_refused_on_an_arm(
    tmp_path: Path, fixed: float | None, domain: Domain, level: Level
) -> None:
    assert check_speed(SpeedRamp(tmp_path, "p", fixed), domain).level is level

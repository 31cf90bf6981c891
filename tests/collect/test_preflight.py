"""A rollout relies on a preflight of the same policy and arm, that passed, not long ago."""

from __future__ import annotations

import json
from pathlib import Path

from gaploop.collect.preflight import FILE, Checked, check_speed, missing, write_record
from gaploop.collect.rollout import SpeedRamp
from gaploop.core.vocabulary import Domain
from gaploop.teleop.checks import Level

NOW = Checked("sha256:p", "so101_follower white")


def test_what_was_checked_counts_for_that_policy_on_that_arm(tmp_path: Path) -> None:
    assert "never checked" in missing(tmp_path, NOW)
    write_record(tmp_path / "journal", NOW, True, {"items": []})
    assert missing(tmp_path / "journal", NOW) == ""
    other = Checked("sha256:q", NOW.robot)
    assert "another policy" in missing(tmp_path / "journal", other)
    faster = Checked(NOW.policy, NOW.robot, "cuda, int4, 1 thread")
    assert "another machine" in missing(tmp_path / "journal", faster)
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


def test_a_policy_begins_slowly_on_an_arm(tmp_path: Path) -> None:
    found = check_speed(SpeedRamp(tmp_path, "p", None), Domain.REAL)
    assert (found.level, found.data["speed_scale"]) == (Level.OK, 0.1)
    assert "soft object" in found.found

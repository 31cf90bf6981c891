"""What the machine itself offers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_system import one

from gaploop.teleop.checks import Level, all_usable
from gaploop.teleop.checks.machine import (
    check_disk,
    check_encoder,
    check_governor,
    check_lerobot,
    check_memory,
    check_python,
    check_real_time,
)


def test_governor_and_disk(tmp_path: Path) -> None:
    assert check_governor(tmp_path) == []
    file = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    file.parent.mkdir(parents=True)
    file.write_text("powersave\n")
    assert "cpupower" in one(check_governor(tmp_path)).fix
    file.write_text("performance\n")
    assert one(check_governor(tmp_path)).level is Level.OK
    assert "free" in check_disk(tmp_path / "not/there/yet").found


def test_what_fails_has_a_fix_and_an_encoder_that_does_not_exist_fails() -> None:
    assert check_encoder("h264").level is Level.OK
    bad = check_encoder("h999")
    assert not all_usable([bad])
    assert bad.fix
    assert check_python().level is Level.OK
    assert check_lerobot().level is Level.OK
    assert check_real_time().level in (Level.OK, Level.WARN)


@pytest.mark.parametrize(
    ("free_kb", "result"), [(8e6, Level.OK), (1e6, Level.WARN), (1e5, Level.FAIL)]
)
def test_memory_that_is_left_decides(tmp_path: Path, free_kb: float, result: Level) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(
        f"MemTotal: 16000000 kB\nMemAvailable: {free_kb:.0f} kB\n"
    )
    assert check_memory(tmp_path).level is result

"""A joint that changes as it warms is named, with its temperatures; one that does not is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_arms import NAMES, recording

from gaploop.core.telemetry import Telemetry
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.joint_fits import examine_heat
from gaploop.datasets.telemetry_zarr import telemetry_path, write_telemetry

RATE_HZ = 200.0
EPISODES = 16


def session(
    root: Path,
    seed: int,
    *,
    late_ms: float = 0.0,
    off_deg: float = 0.0,
    load_pct: float = 0.0,
    hottest_c: float = 55.0,
) -> AbsoluteReport:
    """Report on a session of 24 minutes; what joints 2, 1 and 3 do more at its end is given."""
    rng = np.random.default_rng(seed)
    t_s = np.arange(0.0, 8.0, 1.0 / RATE_HZ)
    rows = []
    for e in range(EPISODES):
        warmth = (e / (EPISODES - 1)) ** 0.7
        columns = {}
        for k, joint in enumerate(NAMES):
            knots = np.cumsum(rng.normal(0.0, 0.3, 9))
            sent = np.interp(t_s, np.linspace(0.0, 7.0, 9), knots)  # and rests for a second
            extra_s = 1e-3 * late_ms * warmth if k == 2 else 0.0
            delay_s = 0.06 + extra_s + rng.normal(0.0, 0.002)
            read = np.interp(t_s - delay_s, t_s, sent) + rng.normal(0.0, 0.001, len(t_s))
            read += np.radians(off_deg * warmth if k == 1 else 0.0) + rng.normal(0.0, 0.003)
            warm_c = 30.0 + (hottest_c - 30.0) * warmth + rng.normal(0.0, 0.7)
            load = 15.0 + (load_pct * warmth if k == 3 else 0.0) + rng.normal(0.0, 2.0)
            columns |= {
                f"follower.{joint}.load_pct": load * np.sin(t_s),
                f"follower.{joint}.sent_rad": sent,
                f"follower.{joint}.position_rad": read,
                f"follower.{joint}.temperature_c": np.full(len(t_s), np.round(warm_c)),
                f"leader.{joint}.position_rad": sent,
            }
        write_telemetry(telemetry_path(root, f"take-{e}"), Telemetry(t_s, columns))
        rows.append({"episode_index": e, "gap_uid": f"take-{e}", "gap_t0_ns": int(e * 96e9)})
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    known = recording(seed, episodes=2)
    report = AbsoluteReport(root)
    examine_heat(replace(known, info=replace(known.info, root=root)), report)
    return report


@pytest.mark.members(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_joint_that_is_later_when_warm_is_named_with_its_temperatures(
    seed: int, tmp_path: Path
) -> None:
    (found,) = session(tmp_path, seed, late_ms=20.0).findings
    assert (found.kind, found.about, found.unit) == ("heat", NAMES[2], "ms")
    assert found.estimate.low < 20.0 < found.estimate.high
    assert " °C (after 24 min), it follows later, by" in found.sentence
    assert found.episodes[-1] == EPISODES - 1
    assert 0 not in found.episodes


def test_a_joint_that_sags_when_warm_is_named(tmp_path: Path) -> None:
    (found,) = session(tmp_path, 3, off_deg=3.0).findings
    assert (found.about, found.unit) == (NAMES[1], "°")
    assert found.estimate.value == pytest.approx(3.0, abs=0.6)


def test_a_joint_that_pulls_harder_when_warm_is_named(tmp_path: Path) -> None:
    (found,) = session(tmp_path, 9, load_pct=25.0).findings
    assert (found.about, found.unit) == (NAMES[3], "% of its stall load")
    assert "harder task" in found.not_told_apart


@pytest.mark.members(1)
@pytest.mark.parametrize("seed", range(4, 8))
def test_warmth_alone_is_good(seed: int, tmp_path: Path) -> None:
    report = session(tmp_path, seed)
    assert not report.findings
    assert report.good["heat"].startswith("joints do the same from ")


def test_where_nothing_warms_nothing_is_said(tmp_path: Path) -> None:
    report = session(tmp_path, 8, late_ms=20.0, hottest_c=31.0)
    assert not report.findings
    assert "heat" not in report.good

"""Which link of the chain a station's row blames, and what the rows count as."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import diagnosis_tiers
from benchmarks.bench import BenchConfig
from benchmarks.diagnosis_tiers import NOMINAL, ORDER, PAIR, SINGLE, lost_at, scores, table
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.station import POLICY, UNMEASURED

GAP = "spatial_geometry.camera_pose"
DX = f"{GAP}.dx_m"


def row(kind: str, *named: str, gaps: tuple[str, ...] = (GAP,), **other: Any) -> dict[str, Any]:
    """Return a station's row; its twin has measured `GAP`, and its plan has commands."""
    leading = named[0] if named else UNMEASURED
    made = {
        "station": 0, "kind": kind, "gaps": dict.fromkeys(gaps, 0.8), "policy": "base",
        "failed": 8, "of": 12, "stopped": "", "injected": {GAP: {"dx_m": 0.018}},
        "differs": [[DX, "", 0.017, 0.015, 0.019]], "measured": [GAP],
        "verdict": {"named": list(named), "leading": leading, "posterior": {leading: 0.9}},
        "plan": [["spatial_geometry", "recalibrate", 0, True]],
        "processor_s": {"plan": 3.0},
    }  # fmt: skip
    made |= other
    return made | {"lost_at": lost_at(made)}


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ("", row(SINGLE, "spatial_geometry")),
        ("", row(POLICY, POLICY, gaps=())),
        ("", row(NOMINAL, gaps=(), plan=[])),
        ("diagnose", row(SINGLE, "contact_dynamics")),
        ("diagnose", row(SINGLE, "spatial_geometry", "contact_dynamics")),
        ("diagnose", row(NOMINAL, "spatial_geometry", gaps=())),
        ("diagnose", row(SINGLE, UNMEASURED)),
        ("diagnose", row(POLICY, gaps=())),
        ("identify", row(SINGLE, differs=[])),
        ("identify", row(SINGLE, UNMEASURED, measured=[])),
        ("identify", row(PAIR, "spatial_geometry", gaps=(GAP, "object_property.tall"))),
        ("plan", row(SINGLE, "spatial_geometry", plan=[["spatial_geometry", "collect", 9, False]])),
        ("rollout", row(SINGLE, stopped="rollout ended with 2: no")),
    ],
)
def test_the_link_that_lost_it(link: str, told: dict[str, Any]) -> None:
    assert lost_at(told).partition(":")[0].partition(" ")[0] == link


def test_every_kind_is_counted_by_its_own_figures() -> None:
    rows = [
        row(SINGLE, "spatial_geometry"), row(SINGLE, "contact_dynamics"), row(SINGLE, POLICY),
        row(PAIR, "spatial_geometry", gaps=(GAP, "object_property.tall")),
        row(POLICY, "spatial_geometry", gaps=()), row(NOMINAL, gaps=(), failed=0),
        row(SINGLE, failed=0),
    ]  # fmt: skip
    found = scores(rows)
    assert found["figures"] == {
        "single_right": [1, 3], "single_dimension": [1, 3], "single_named": [2, 3],
        "named_right": [1, 2], "gap_on_policy": [1, 4], "policy_on_gap": [1, 1],
        "policy_named": [0, 1], "pair_both": [0, 1], "pair_likeliest": [1, 1],
        "nominal_named": [0, 1],
    }  # fmt: skip
    page = table({"stations": rows, **found})
    assert f"`{GAP}` 0.8" in page
    assert "0.017 [0.015, 0.019] (0.018)" in page


def test_the_order_spreads_every_kind_from_the_start() -> None:
    """A run that is cut short has some of each."""
    assert Counter(ORDER) == {SINGLE: 40, PAIR: 12, POLICY: 8, NOMINAL: 6}
    half = Counter(ORDER[: len(ORDER) // 2])
    assert all(abs(2 * half[kind] - n) <= 2 for kind, n in Counter(ORDER).items())
    assert Counter(ORDER[:18])[SINGLE] >= len(GapDimension)


def test_a_run_may_begin_anywhere_in_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the first 27 rows was lost, and the other 39 could only run after them."""
    ran: list[int] = []

    def station(k: int, *_: object) -> dict[str, Any]:
        ran.append(k)
        return row(SINGLE, station=k)

    monkeypatch.setattr(diagnosis_tiers, "_station", station)
    for n in (1, 3):  # the second run goes on where the first stopped
        config = BenchConfig("diagnosis_tiers", first=27, n=n)
        told = diagnosis_tiers.measure(config, tmp_path)
    assert ran == [27, 28, 29]
    assert [r["station"] for r in told["stations"]] == ran

"""The loader benchmark compares fairly: each loader with its better number of workers."""

from __future__ import annotations

import pytest

from benchmarks import loader as bench


def test_ratios_are_taken_turn_by_turn_against_lerobots_better_number_of_workers() -> None:
    rates = {
        ("lerobot", 0): [10.0, 10.0, 10.0],
        ("lerobot", 2): [20.0, 40.0, 20.0],
        ("raw_native", 0): [400.0, 400.0, 100.0],
        ("raw_native", 2): [90.0, 90.0, 500.0],
    }
    built = {"raw_native": {"build_s": 9.5}}
    found = bench._figures("raw_native", rates, built)
    assert found["ratio"] == {"median": 10.0, "min": 5.0, "max": 20.0}
    assert found["reached"] is True
    # A sample costs 1/20 s with LeRobot's loader and 1/400 s from the cache.
    assert found["build_pays_after_samples"] == pytest.approx(9.5 / (1 / 20 - 1 / 400), abs=1)
    assert bench._figures("lerobot", rates, built)["ratio"]["median"] == 1.0


def test_a_loader_that_cannot_be_used_stands_in_the_table() -> None:
    spread = {"median": 1.0, "min": 1.0, "max": 1.0}
    result = {
        "takes": 1,
        "frames": 2,
        "videos_mb": 3.0,
        "decoder": "pyav",
        "fidelity": {"raw_native_identical": True},
        "loaders": {
            "lerobot": {"samples_per_s": {"workers_0": spread}, "ratio": spread, "memory_mb": 1.0},
            "lerobot_streaming": {"unusable": "no decoder"},
        },
    }
    text = bench.table(result)
    assert "lerobot_streaming can't be used here: no decoder" in text

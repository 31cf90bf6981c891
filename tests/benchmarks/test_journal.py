"""Kills at random instants of recording, sealing, publishing and encoding."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks import journal as bench
from benchmarks.cameras import barcode, read_barcode, texture


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, 100])
def test_kills_lose_no_sealed_take_half_a_second_of_an_open_one_and_no_dataset(
    tmp_path: Path, kills: int
) -> None:
    seed = int.from_bytes(os.urandom(4))
    tally = bench.kill_gaploop(bench._context(), tmp_path, kills, np.random.default_rng(seed))
    found = bench.figures(tally)
    assert sum(found["kills"].values()) == kills
    assert found["sealed_takes"] >= kills // 5, seed
    assert found["sealed_takes_lost"] == 0, seed
    assert found["torn_takes"] == 0, seed
    assert found["datasets_lerobot_cannot_load"] == 0, seed
    if not found["dropped_pictures_reported"]:  # else the machine is too busy to say
        assert found["open_lost_s_max"] <= 0.5, seed


def test_the_bench_would_notice_a_picture_that_shifted() -> None:
    scene = texture(1)
    numbers = [0, 1, 2, 77, 4095, 2**20 - 1]
    assert [read_barcode(barcode(number, scene)) for number in numbers] == numbers

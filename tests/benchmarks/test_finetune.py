"""The figures and the picture of `benchmarks finetune`, from cells whose truth is known."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import finetune as bench
from benchmarks.finetune_picture import picture


def rate(value: float) -> dict[str, Any]:
    return {"rate": value, "interval": [value - 0.1, value + 0.1], "n": 40}


def points(value: float, n: int = 40) -> dict[str, Any]:
    return {"points": value, "interval": [value - 9, value + 9], "n": n}


def cell(task: str, seed: int, gain: float) -> dict[str, Any]:
    return {
        "task": task, "seed": seed, "before": rate(0.1), "full": rate(0.8),
        "sweep": {"0.25": rate(0.7), "0.5": rate(0.8)},
        "nominal_before": rate(0.99), "nominal_lora": rate(0.98),
        "gain": points(gain), "lora_minus_full": points(-1.0), "retention": points(-1.0, 80),
    }  # fmt: skip


CELLS = [
    cell("pick_place", 0, 60.0),
    cell("pick_place", 1, 80.0),
    cell("pick_lift", 0, 70.0),
]


def test_figures_are_means_over_seeds_of_each_task_and_over_all_cells() -> None:
    over = bench._over(CELLS, list(bench.TASKS))
    assert over["pick_place"]["gain"]["points"] == pytest.approx(70.0)
    low, high = over["pick_place"]["gain"]["interval"]
    assert low < 60.0
    assert high > 80.0  # two seeds tell little, and the interval says so
    assert over["pick_lift"]["gain"]["interval"] == [None, None]
    assert over["all"]["gain"]["cells"] == 3
    assert over["all"]["retention"]["pairs"] == 240


def test_the_table_names_every_cell_and_the_picture_is_one() -> None:
    result = {
        "takes": 10, "rollouts": 40, "retention_rollouts": 80, "steps_part": 1.0, "cells": CELLS,
        "over_cells": bench._over(CELLS, list(bench.TASKS)), "speed": {"kinds": {}, "ratios": {}},
    }  # fmt: skip
    said = bench.table(result)
    assert "pick_place 0: base 10%" in said
    assert "aim ≥ +60" in said
    assert picture(CELLS).startswith(b"\x89PNG")

"""docs/teleoperate/leaders.md says what the keys do."""

from __future__ import annotations

from pathlib import Path

from gaploop.teleop.leaders.options import SCRIPTS
from gaploop.teleop.leaders.panel import KEYS, SPEED_KEYS
from gaploop.teleop.leaders.sdl import pygame

PAGE = Path(__file__).parents[3] / "docs" / "teleoperate" / "leaders.md"

NAMES = {"Return": "Enter", "Escape": "Esc"}


def test_every_key_is_in_the_table() -> None:
    table = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = {word.strip(",") for cell in table for word in cell.split()}
    keys = {name.removeprefix("KSCAN_").title(): code
            for name, code in vars(pygame).items() if name.startswith("KSCAN_")}  # fmt: skip
    signs = {"Minus": "-", "Equals": "="}
    by_code = {code: name for name, code in keys.items()}
    for code in (*KEYS, *SPEED_KEYS):
        name = by_code[code]
        assert NAMES.get(name, signs.get(name, name)) in named, f"{name} is missing in {PAGE.name}"


def test_the_page_names_every_script() -> None:
    text = PAGE.read_text()
    assert all(f"`{script}`" in text for script in SCRIPTS)

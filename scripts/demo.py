"""`gaploop demo`: the whole loop on the embedded cell, from failures to verdict."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, writable_folder, write_json
from gaploop.scripts import options

EXAMPLE: Final = """\
gaploop demo --output_dir=outputs/demo
gaploop demo --seed=random --output_dir=outputs/drawn # two cells drawn from all nine dimensions
"""
SPENT: Final = "spent.json"
"""In the demo's folder: how long it took, all runs of it together."""
DRAWN: Final = (
    "Of 20 cells drawn so, 7 got better; in 11 no cause was named, and nothing was done. "
    "Success went from 18 % to 40 % on average."
)
"""How cells end that a seed draws (seeds 1 to 5 and 12 to 16, 2026-11-27; 60 rollouts each)."""


@dataclass
class DemoConfig:
    """Find out why a policy fails, carry out the remedy that the plan chose, and prove the fix.

    All on the embedded cell, so sim-to-sim. One cell is probed, its arm is late; the other isn't
    probed, and needs demonstrations; with --seed two gaps of different dimensions are drawn.
    Probe, diagnosis and plan don't know which. Episodes are simulated in the cell's twin or
    collected, the policy is adapted or recalibrated. Exit code 0, whatever the verdict. After
    Ctrl-C the same command continues where it stopped.
    """

    output_dir: Path = Path("outputs/demo")
    """Run folder; report.html and the figures go there."""
    seed: str = ""
    """A number that draws the gaps of both cells, or random; always the same two unless given."""
    quick: bool = False
    """Fewer rollouts and steps (about three minutes): shows the way, proves little."""
    json: bool = False
    """Print one JSON object."""


def run(config: DemoConfig) -> int:
    """Run the demo; return 0."""
    from gaploop.finetune.demo import COLUMNS, run_demo, write_report
    from gaploop.finetune.lerobot_policy import policy_id

    if config.seed not in ("", "random") and not config.seed.isdecimal():
        raise UnusableInputError(
            f"--seed={config.seed}: give a number from 0 on, or random; leave it out for the two "
            "cells that are always the same."
        )
    folder = writable_folder(config.output_dir)
    path, stored = folder / "settings.json", None
    if path.exists():  # the demo that the folder holds goes on
        stored = read_json(path)
    seed = int(config.seed) if config.seed.isdecimal() else None
    if config.seed == "random":
        seed = stored.get("seed") if stored else secrets.randbelow(1000)
    wanted = {"quick": config.quick, "policy": policy_id("base"), "seed": seed}
    if stored not in (None, wanted):  # mixing two demos would lie
        held = ", ".join(f"{name} {value}" for name, value in stored.items())
        raise UnusableInputError(
            f"{folder} holds a demo with other settings ({held}). Name another --output_dir."
        )
    write_json(path, wanted)
    of = "" if seed is None else f", seed {seed}"
    print(f"Sim-to-sim demo{of}, in {folder}", file=sys.stderr)
    if seed is not None:
        print(DRAWN, file=sys.stderr)
    # A bar for each stage on stderr; lines where stderr isn't a terminal.
    stderr, tasks = options.console(stderr=True), dict[str, TaskID]()
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=stderr, disable=not stderr.is_terminal)

    def say(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total)
            if not stderr.is_terminal:
                stderr.print(stage, highlight=False)
        bar.update(tasks[stage], completed=done, total=total)
        if done >= total:
            bar.stop_task(tasks[stage])

    with _timed(folder), bar:
        result = run_demo(folder, seed, base="base", quick=config.quick, say=say)
    minutes = float(read_json(folder / SPENT)["seconds"]) / 60
    report = write_report(result, folder, minutes)
    options.emit(config.json, result.to_json() | {"report": report, "minutes": minutes})
    if not config.json:
        table = Table(title=f"Sim-to-sim{of}, {minutes:.1f} min", show_lines=True)
        table.add_column("")
        for name in "AB":
            table.add_column(f"cell {name}")
        for head, *cells in zip(COLUMNS, *(cell.words() for cell in result.cells), strict=True):
            table.add_row(head, *cells)
        console = options.console()
        console.print(table)
        console.print(f"{result.message()} Report: {report}", soft_wrap=True, highlight=False)
    return 0


@contextmanager
def _timed(folder: Path) -> Iterator[None]:
    """Add the time that this run takes to that of the demo's earlier ones, however it ends."""
    path, start_s = folder / SPENT, time.monotonic()
    before_s = float(read_json(path)["seconds"]) if path.exists() else 0.0
    try:
        yield
    finally:
        write_json(path, {"seconds": before_s + time.monotonic() - start_s})

"""The command `gaploop mix`: what a mixture draws."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.mixing.sources import REPORT, open_mixture, report
from gaploop.datasets.mixing.spec import load_mixture
from gaploop.scripts import options
from gaploop.scripts.options import emit

POSITIONAL: Final = "mixture"
EXAMPLE: Final = """
gaploop mix mixture.yaml --steps=20000 --batch_size=64
gaploop mix mixture.yaml --steps=20000 --json | jq '.sources[].samples'
"""


@dataclass
class MixConfig:
    """Show what a mixture of datasets would draw in a training, without training.

    Opens the datasets that a mixture.yaml names, checks that they can be trained on together,
    and prints for each source its takes, its frames and how many samples of it a run reads, in
    all and per stage. docs/mixing.md describes the file. Train with: gaploop train.
    """

    mixture: Path | None = None
    """The mixture (`gaploop mix FILE.yaml` is short for it)."""
    steps: int = 10_000
    """Training steps of the run."""
    batch_size: int = 64
    """Samples per step and rank."""
    ranks: int = 1
    """Processes that train together."""
    output_dir: Path | None = None
    """Write the answer to mixture.json in this folder, too."""
    json: bool = False
    """Print {"sources": [{"name", "takes", "frames", "samples", "share", …}], "stages": […]}."""


def run(config: MixConfig) -> int:
    """Open the mixture and print what it draws."""
    ask = "Which mixture? Name its file: gaploop mix FILE.yaml"
    file = options.required(config.mixture, ask)
    if config.steps < 1:
        raise UnusableInputError(f"--steps={config.steps} must be at least 1.")
    spec = load_mixture(file)
    with options.progress("Reading datasets"):
        opened = open_mixture(spec)
    mixture = opened.mixture(config.batch_size, config.ranks)
    answer = report(opened, mixture, config.steps)
    stages: list[dict[str, Any]] = []
    first = 0
    for number, planned in enumerate(spec.stages, 1):
        last = number == len(spec.stages)
        stop = config.steps
        if not last and planned.steps is not None:
            stop = min(stop, first + planned.steps)
        if stop <= first:
            break  # the run doesn't get there
        drawn = mixture.counts(stop) - mixture.counts(first)
        samples = dict(zip(mixture.names, drawn.tolist(), strict=True))
        name = planned.name or f"stage {number}"
        stages.append(
            {"name": name, "first_step": first, "steps": stop - first, "samples": samples}
        )
        first = stop
    answer["stages"] = stages
    options.keep(config.output_dir, REPORT, answer)
    emit(config.json, answer)
    if not config.json:
        table = Table("source", "domain", title="What a run draws", title_justify="left")
        for column in ("takes", "frames", "samples", "share", "times each frame"):
            table.add_column(column, justify="right")
        for s in answer["sources"]:
            counts = [f"{s[name]:,}" for name in ("takes", "frames", "samples")]
            shares = f"{s['share']:.1%}", f"{s['epochs']:.1f}"
            table.add_row(s["name"], ", ".join(s["domains"]), *counts, *shares)
        console = options.console()
        console.print(table)
        if any("sim_target" in s["domains"] for s in answer["sources"]):
            console.print("sim_target: takes of a simulated target cell; all of it is sim-to-sim.")
        for stage in stages:
            total = max(1, sum(stage["samples"].values()))
            parts = ", ".join(f"{n} {k / total:.1%}" for n, k in stage["samples"].items() if k)
            end = stage["first_step"] + stage["steps"] - 1
            console.print(f"{stage['name']}, steps {stage['first_step']} to {end}: {parts}")
    return 0

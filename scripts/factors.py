"""`gaploop factors`: which condition costs success, over many takes or counted trials."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import writable_folder, write_atomically, write_json
from gaploop.core.run_record import write_run
from gaploop.datasets.labels.store import open_labelled
from gaploop.failure_analysis.cohort.trials import (
    Columns,
    Trials,
    attempted,
    read_trials,
    trials_of,
)
from gaploop.failure_analysis.lineage import file_input
from gaploop.scripts import options

EXAMPLE: Final = """
gaploop factors ./rollouts
gaploop factors ./rollouts --sim=./rollouts_in_sim --output_dir=./factors
gaploop factors --trials=trials.csv --columns.factors='[task, lighting]' --columns.cluster=task \\
    --reference='{"lighting": "ceiling"}' --only='{"robot": "left"}' --json
"""
INCONCLUSIVE: Final = 3


@dataclass
class FactorsConfig:
    """Show which condition costs success, in percentage points with intervals, all else equal.

    Reads conditions and outcomes of a dataset or journal, or a CSV file of counts. Also: the gap
    between simulation and the real cell on equal conditions; whether success changed over time or
    from one policy version to the next. Writes factors.json, factors.html, .png and run.json.
    Exit code 3 where nothing varies or nothing is known to have ended, so nothing can be compared.
    """

    dataset: options.DatasetFolder = field(default_factory=options.DatasetFolder)
    sim: Path | None = None
    """Takes in simulation, for the gap: a dataset or journal."""
    trials: Path | None = None
    """A CSV file of trials, instead of takes."""
    columns: Columns = field(default_factory=Columns)
    reference: dict[str, str] = field(default_factory=dict)
    """Factor to the level to compare with, such as '{"operator": "ana"}'; else nominal, or the
    level with most trials."""
    only: dict[str, str] = field(default_factory=dict)
    """Only trials with these levels, such as '{"policy": "v3"}'."""
    json: bool = False
    """Print one JSON object."""
    output_dir: Path | None = None
    """Where to write; <DIR>_factors by default."""


def run(config: FactorsConfig) -> int:
    """Compare; 0, or 3 where there is nothing to compare."""
    from gaploop.failure_analysis.cohort.cohort import cohort_lines, cohort_of_trials
    from gaploop.failure_analysis.report.cohort_page import cohort_page

    rows: Sequence[Trials]
    if config.trials is not None:
        if config.dataset.root is not None or config.sim is not None:
            raise UnusableInputError("Give either a folder of takes or --trials=FILE, not both.")
        columns = config.columns
        if named := columns.factors:
            columns = replace(columns, factors=(*named, *(set(config.only) - set(named))))
        source, counted, inputs = config.trials, "trials", [file_input(config.trials)]
        rows = read_trials(source, columns)
    else:
        source = config.dataset.folder()
        folders = [source, *([config.sim] if config.sim else [])]
        attempts, inputs = [], []
        with options.progress("Reading outcomes", len(folders)) as advance:
            for folder in folders:
                episodes = list(open_labelled(folder).episodes)
                attempts += episodes
                ended = "".join(f"{e.info.uid} {e.outcome}\n" for e in episodes)
                digest = hashlib.sha256(ended.encode()).hexdigest()
                inputs.append({"root": str(folder), "takes": len(episodes), "hash": digest})
                advance()
        judged, counted = attempted(attempts)
        rows = trials_of(judged)
    for factor, level in config.only.items():
        known = {row.levels[factor] for row in rows if factor in row.levels}
        if not known:
            factors = {name for row in rows for name in row.levels}
            raise unknown_choice("factor", factor, factors, "--only")
        if level not in known:
            raise unknown_choice("level", level, known, f"--only, factor {factor}")
        rows = [row for row in rows if row.levels.get(factor) == level]
    found = cohort_of_trials(rows, counted, config.reference)
    folder = writable_folder(
        config.output_dir or source.parent / f"{source.resolve().stem}_factors"
    )
    result = {"source": source.name, **found.to_json()}
    write_json(folder / "factors.json", options.jsonable(result))
    html, pictures = cohort_page(found, source.name)
    for name, png in pictures.items():
        write_atomically(folder / name, png)
    write_atomically(folder / "factors.html", html)
    summary = {"trials": len(rows), "effects": len(found.table.effects) if found.table else 0}
    write_run(folder, "factors", options.jsonable(config), inputs, summary)
    lines = [f"{counted} of {source.name}", *cohort_lines(found), str(folder / "factors.html")]
    options.emit(config.json, result, "\n".join(lines))
    compared = (found.table and found.table.effects) or found.gaps or found.change is not None
    return 0 if compared else INCONCLUSIVE

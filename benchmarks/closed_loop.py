"""`benchmarks closed_loop`: targeted demonstrations against uniform ones.

Runs the study of docs/figures/closed_loop_protocol.md, or a part of it; sim-to-sim. Rows are kept
as they come, so the same command goes on; figures come from the rows alone: --data=FILE.parquet
makes them from stored ones without running anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.files import write_atomically
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.proof.design import Part
    from benchmarks.proof.rows import StudyRow

ROWS: Final = "closed_loop.parquet"
SUCCESS: Final = "closed_loop.png"
CURVES: Final = "closed_loop_takes.png"
SAVED: Final = "closed_loop_saved.png"


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run the cells that have no row yet, or read rows from --data; return the figures."""
    from benchmarks.proof.figures import losses
    from benchmarks.proof.lessons import taught, trials
    from benchmarks.proof.pictures import curves_picture, saved_picture, success_picture
    from benchmarks.proof.report import summary
    from benchmarks.proof.rows import load_rows

    rows = load_rows(config.data) if config.data else _run(config, folder)
    shown = [*rows, *taught(rows)]
    found = summary(shown)
    drawings = {
        SUCCESS: success_picture(shown),
        CURVES: curves_picture(shown),
        SAVED: saved_picture(found),
    }
    pictures = {name: drawn for name, drawn in drawings.items() if drawn}
    for name, drawn in pictures.items():
        write_atomically(folder / name, drawn)
    return {
        "evidence": "sim-to-sim",
        "rows": len(rows),
        "rollouts": sorted({len(row.after) for row in rows}),
        "code": sorted({row.code for row in rows}),
        "figures": found,
        "losses": [asdict(loss) for loss in losses(rows)],
        "trials": trials(rows),
        "pictures": [str(folder / name) for name in pictures],
    }


def _run(config: BenchConfig, folder: Path) -> list[StudyRow]:
    from benchmarks.proof.rows import load_rows, save_rows
    from benchmarks.proof.site import SiteJob, run_site
    from benchmarks.starts import start_for
    from gaploop.finetune.workers import run_jobs

    part, code = _part(config), _code()
    folder = folder / "quick" if config.quick else folder  # its rows aren't results
    folder.mkdir(exist_ok=True)
    path = folder / ROWS
    rows = {row.key: row for row in (load_rows(path) if path.exists() else [])}
    starts = {task: start_for(task, folder, robot=part.robot) for task in part.tasks}
    usual = {t: _reference(start.base, t, part.robot, folder) for t, start in starts.items()}
    jobs = [
        SiteJob(site, part, starts[site.task], folder / site.name, code, usual[site.task])
        for site in part.sites()
    ]
    with options.progress("Sites", total=len(jobs)) as advance:
        for done in run_jobs(run_site, jobs, config.workers, config.ray.address):
            rows |= {row.key: row for row in done}
            save_rows(rows.values(), path)
            advance()
    return list(rows.values())


def _reference(base: str, task: str, robot: str, folder: Path) -> Path | None:
    """Return the file that says what is usual for the arm, made if need be; None if one ships."""
    from benchmarks.reference import record_reference
    from gaploop.finetune.demonstrations import TargetCell
    from gaploop.sim.catalogue import SO101

    if robot == SO101.name:
        return None
    path = folder / f"reference_{task}_{robot}.json"
    if not path.exists():
        record_reference(base, path, TargetCell({}, 0, task, robot))
    return path


def _part(config: BenchConfig) -> Part:
    from benchmarks.proof.design import QUICK, Part, StudyArm

    given: dict[str, Any] = {
        "tasks": tuple(config.tasks),
        "gaps": tuple(config.gaps),
        "budgets": tuple(config.budgets),
        "arms": tuple(StudyArm(a) if a in list(StudyArm) else a for a in config.arms),
        "seeds": tuple(range(config.seed, config.seed + config.seeds)),
        "rollouts": config.n,
        "robot": config.robot,
    }
    base = QUICK if config.quick else Part()
    return replace(base, **{name: value for name, value in given.items() if value})


def _code() -> str:
    """Return a hash of the program: every module's path and text, behind links, too."""
    import gaploop

    digest = hashlib.sha256()
    for root in (Path(gaploop.__file__).parent, Path(__file__).parent):
        walked = (Path(at) / n for at, _, names in root.walk(follow_symlinks=True) for n in names)
        for path in sorted(path for path in walked if path.suffix == ".py"):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    from benchmarks.proof.report import losses
    from benchmarks.proof.report import table as figures

    rollouts = ", ".join(map(str, result["rollouts"]))
    head = f"Sim-to-sim, {result['rows']} cells, {rollouts} paired rollouts a policy."
    head += f" Pictures: {', '.join(result['pictures'])}"
    return "\n\n".join((head, figures(result["figures"]), losses(result["losses"])))

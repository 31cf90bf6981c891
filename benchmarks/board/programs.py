"""Attribution programs: read failed takes, print what caused each; scored by what was injected.

A program is run as `python run.py TAKES`, in namespaces or not at all, and prints one line of JSON
for each take: `{"id": uid, "dimensions": {…}, "none": 0.1, "named": […], "candidates": […]}`.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.board.entries import PROGRAM
from benchmarks.board.sandbox import EndedError, Limits, Sandbox
from benchmarks.corpus.scores import (
    Case,
    Prediction,
    read_predictions,
    read_truth,
    score,
)
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.journal_format import TRUTH, read_end, read_header, take_folders
from gaploop.core.vocabulary import Outcome, dimension
from gaploop.failure_analysis.attribution import CAUSES
from gaploop.finetune.evaluation import Rollout

log = logging.getLogger(__name__)

POSTERIORS: Final = "posteriors.jsonl"
STATIONS: Final = "stations"


@dataclass(frozen=True)
class Known:
    """A failed take whose cause is known.

    Attributes:
        station: number of the journal that it is in; takes of one aren't independent.
        causes: injected dimensions; empty for none.
    """

    uid: str
    station: int
    causes: frozenset[str]
    folder: Path


def known_failures(takes: Path) -> list[Known]:
    """Return the failed takes of all journals below a folder that have a `truth.jsonl`.

    Raises:
        UnusableInputError: there is none, or a file can't be read.
    """
    found = []
    for station, path in enumerate(sorted(takes.rglob(TRUTH))):
        truth = read_truth(path)
        for folder in take_folders(path.parent):
            end, uid = read_end(folder), read_header(folder).info.uid
            if end is None or end.outcome is not Outcome.FAILURE or uid not in truth:
                continue
            injected = truth[uid].get("injected") or ()
            acting = {str(g["dimension"]) for g in injected if float(g["severity"]) > 0}
            causes = frozenset(dimension(name, str(path)).value for name in acting)
            found.append(Known(uid, station, causes, folder))
    if not found:
        raise UnusableInputError(
            f"--takes={takes} holds no failed takes whose cause is known. Record some with gaploop "
            "record --robot.gaps=…, or use the corpus of python -m benchmarks attribution."
        )
    return found


def shown(known: Sequence[Known], folder: Path) -> Path:
    """Copy takes, without what was injected or said of them, to where programs may read them."""
    for take in known:
        target = folder / take.uid
        if not target.exists():
            shutil.rmtree(part := folder / f".{take.uid}", ignore_errors=True)
            shutil.copytree(take.folder, part)
            part.rename(target)
    return folder


def run_program(program: Path, takes: Path, limits: Limits, target: Path) -> Path:
    """Run a program on takes, keep what it prints, and return that file; once only.

    Raises:
        EndedError: it fails, takes too long, or prints too much.
    """
    path = target / POSTERIORS
    if not path.exists():
        argv = [sys.executable, str(program / PROGRAM), str(takes)]
        with Sandbox(argv, [program, takes], limits) as box:
            box.allow(limits.program_s)
            printed = box.output()
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(path, printed)
    return path


def scored(path: Path, known: Sequence[Known]) -> tuple[dict[str, Any], list[Rollout]]:
    """Return a program's figures, and for each station whether it was right of most of its takes.

    What isn't answered counts as abstained.

    Raises:
        EndedError: what it printed can't be read.
    """
    try:
        said = read_predictions(path)
    except UnusableInputError as error:
        log.info("%s", error)  # may quote takes, so it isn't published
        raise EndedError("prints something that is no prediction") from None
    silent = Prediction(np.full(len(CAUSES), 1 / len(CAUSES)), frozenset())
    cases = [Case(k.uid, str(k.station), k.causes, said.get(k.uid, silent)) for k in known]
    right: dict[int, list[bool]] = {}
    for take, case in zip(known, cases, strict=True):
        hit = case.said.top in (take.causes or {case.truth}) and take.uid in said
        right.setdefault(take.station, []).append(hit)
    figures: Mapping[str, Any] = {name: asdict(figure) for name, figure in score(cases).items()}
    rows = [Rollout(s, STATIONS, 2 * sum(hits) > len(hits)) for s, hits in right.items()]
    return {**figures, "answered": sum(k.uid in said for k in known), "takes": len(known)}, rows

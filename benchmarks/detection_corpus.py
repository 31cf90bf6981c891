"""Recorded takes of a corpus as rollouts for `benchmarks detection --data=CORPUS`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.detection_rollouts import NOMINAL, DetectionTrial, Rolled
from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options

SCHEMA: Final = "gaploop.corpus.v2"
FIT: Final = "reference"
"""The part of a corpus that says what is usual: a detector may learn from its successes."""


def recorded(folder: Path) -> dict[str, list[Rolled]]:
    """Return a corpus's takes by task and controller, replayed as they would be watched.

    Raises:
        UnusableInputError: it isn't a corpus.
    """
    from gaploop.core.files import read_json
    from gaploop.core.journal_format import read_journal
    from gaploop.failure_analysis.live import track_of

    corpus = read_json(folder / "corpus.json")
    if not isinstance(corpus, dict) or corpus.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{folder} is not a corpus ({SCHEMA}). Record one: python -m benchmarks attribution"
        )
    stations = [s for s in corpus["stations"] if (folder / "stations" / s["key"]).is_dir()]
    done: dict[str, list[Rolled]] = {}
    with options.progress("Replaying", total=len(stations)) as advance:
        for station in stations:
            name = f"{station['task']}, {station['controller']}"
            for take in read_journal(folder / "stations" / station["key"]):
                rolled = Rolled(_trial(station), track_of(take), np.empty((0, 0)))
                if len(rolled.track.t_s):
                    done.setdefault(name, []).append(rolled)
            advance(1)
    return done


def _trial(station: Mapping[str, Any]) -> DetectionTrial:
    gaps = {key.partition(".")[0]: value for key, value in station["gaps"].items()}
    part = "fit" if station["part"] == FIT else "test"
    erring = station["part"].endswith("_none")
    place = "errs" if erring else " + ".join(sorted(gaps)) or NOMINAL
    return DetectionTrial(0, place, max(gaps.values(), default=0.0), int(station["gap_seed"]), part)

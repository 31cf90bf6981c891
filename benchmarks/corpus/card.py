"""The card of a corpus: what is in it, how it was made, what may be trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.corpus.design import (
    CONTROLLERS,
    TEST_SEVERITIES,
    TEST_TASK,
    TRAIN_SEVERITIES,
    TRAIN_TASKS,
    DrawnStation,
    mechanism_names,
)
from benchmarks.corpus.errant import ERRORS, HELD_OUT_ERRORS
from benchmarks.corpus.signals import MeasuredTake

PARTS_IN_WORDS: Final[Mapping[str, str]] = {
    "reference": "nominal takes that say what is usual; for everybody",
    "twin": "nominal takes of the scenes that gaps are tried on; for scoring",
    "train": "one gap; for training",
    "train_mixed": "two gaps of different dimensions; for training",
    "train_none": "no gap, a controller that errs; for training",
    "held_task": "training's severities and mechanisms on the held-out task; scored",
    "held_severity": "training's tasks and mechanisms at held-out severities; scored",
    "held_mechanism": "training's tasks and severities by held-out mechanisms; scored",
    "test": "task, severity and mechanism held out at once; scored",
    "test_mixed": "the same, two gaps of different dimensions; scored",
    "test_none": "no gap, held-out errors on the held-out task; scored",
    "shifted": "cells that differ from the reference for good; for recalibration by labels",
    "blind": "mechanisms that nobody who built the model had seen; scored once",
}


def card(
    stations: Sequence[DrawnStation],
    takes: Sequence[MeasuredTake],
    failures: Mapping[str, int],
    seed: int,
) -> str:
    """Return the card as Markdown.

    Args:
        stations: of the corpus.
        takes: as recorded.
        failures: part to how many failures of it count.
        seed: that it was drawn with.
    """
    recorded, failed = Counter(t.part for t in takes), Counter(t.part for t in takes if t.failed)
    rows = [
        f"| `{part}` | {recorded[part]} | {failed[part]} | {failures.get(part, '–')} | {words} |"
        for part, words in PARTS_IN_WORDS.items()
        if recorded[part]
    ]
    return "\n".join([*_head(len(stations), len(takes), seed), *rows, *_tail(), ""])


def _head(stations: int, takes: int, seed: int) -> list[str]:
    return [
        "---",
        "license: apache-2.0",
        "task_categories: [robotics]",
        "tags: [gaploop, failure-analysis, sim-to-sim]",
        "---",
        "# Labelled failures of a simulated SO-101 cell",
        "",
        f"{takes} takes of {stations} drawn cells, recorded with seed {seed} by `python -m "
        "benchmarks attribution`. **Simulation only**: the gaps between the nominal cell and the "
        "others are injected, and results on it are sim-to-sim, no evidence about a real robot.",
        "",
        "Each folder of `stations/` is a journal: control-rate telemetry, the overhead camera's "
        "pictures, the tracked scene, the outcome. Its name doesn't tell what is in it. "
        "`truth.jsonl` says what was injected (mechanism, severity, direction) and what happened, "
        "from the simulator's state: for scoring and for the parts marked for training only. "
        "`signals.parquet` holds the measured signals, `references/` what is usual for each task "
        "and controller, `corpus.json` how every cell was drawn.",
        "",
        "| part | takes | failed | count | what it is |",
        "|---|---|---|---|---|",
    ]


def _tail() -> list[str]:
    drivers = "; ".join(f"{task}: {', '.join(who)}" for task, who in CONTROLLERS.items())
    return [
        "",
        "A failure under a gap counts where the same controller does well on the same scene "
        "without it.",
        "",
        f"- Tasks: training {', '.join(TRAIN_TASKS)}; held out {TEST_TASK}. Controllers: "
        f"{drivers} (`policy` is the shipped ACT, `script` is driven by the camera tracker).",
        f"- Severities: training {_numbers(TRAIN_SEVERITIES)}; held out "
        f"{_numbers(TEST_SEVERITIES)}.",
        f"- Mechanisms of training: {', '.join(mechanism_names('train'))}.",
        f"- Mechanisms held out: {', '.join(mechanism_names('test'))}.",
        f"- Errors of a controller without a gap: training {', '.join(ERRORS)}; held out "
        f"{', '.join(HELD_OUT_ERRORS)}.",
        "",
        "Entering: docs/figures/attribution_benchmark.md of gaploop has the protocol. Takes are "
        "named `<station>/<scene>`, the same whoever records the corpus.",
    ]


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)

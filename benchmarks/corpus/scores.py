"""Scores attributions against what was injected. The same code scores ours and anybody's.

Takes of one station
aren't independent, so intervals come from drawing whole stations anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import parse_json, read_text
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension, dimension
from gaploop.failure_analysis.attribution import CAUSES, NONE

REDRAWN: Final = 1000
BINS: Final = 10


@dataclass(frozen=True)
class Prediction:
    """What somebody says about one failed take: shares, shape (10,), in the order of `CAUSES`.

    Nothing is named when abstaining; `candidates` are the set that is said to hold the cause.
    """

    shares: FloatArray
    named: frozenset[str]
    candidates: frozenset[str] = frozenset()

    @property
    def top(self) -> str:
        """The likeliest cause, whether or not it is named."""
        return CAUSES[int(np.argmax(self.shares))]


@dataclass(frozen=True)
class Case:
    """One failed take of the benchmark, "<station>/<scene>", and what was injected, if anything."""

    id: str
    station: str
    causes: frozenset[str]
    said: Prediction

    @property
    def truth(self) -> str:
        """The only cause, or "none"."""
        return next(iter(self.causes), NONE)


@dataclass(frozen=True)
class Figure:
    """A number over `n` takes, if any, with its 95 % interval, by drawing stations anew."""

    value: float | None
    interval: tuple[float, float] | None
    n: int

    def __str__(self) -> str:
        if self.value is None or self.interval is None:
            return "–"
        return f"{self.value:.1%} [{self.interval[0]:.1%}, {self.interval[1]:.1%}] (n={self.n})"


def score(cases: Sequence[Case], seed: int = 0) -> dict[str, Figure]:
    """Return every figure of one part of the benchmark."""
    single = [c for c in cases if len(c.causes) == 1]
    mixed = [c for c in cases if len(c.causes) > 1]
    none = [c for c in cases if not c.causes]
    told = [c for c in single if c.said.named]
    certain = [*single, *none]
    sets = [c for c in certain if c.said.candidates]
    right = np.array([c.said.top == c.truth for c in single])
    truth = np.array([CAUSES.index(c.truth) for c in single])

    def mean_over_dimensions(drawn: NDArray[np.int64]) -> float:
        counts = np.bincount(truth[drawn], minlength=len(CAUSES))
        hits = np.bincount(truth[drawn], weights=right[drawn], minlength=len(CAUSES))
        return float(np.mean(hits[counts > 0] / counts[counts > 0]))

    sure = np.array([c.said.shares.max() for c in certain])
    true = np.array([c.said.top == c.truth for c in certain])
    by_chance = Figure(None, None, 0)
    if certain:  # what a perfectly calibrated posterior of these shares would score by counting
        rng = np.random.default_rng(0)
        tries = [
            expected_calibration_error(sure, rng.random(len(sure)) < sure) for _ in range(REDRAWN)
        ]
        low, high = np.percentile(tries, (2.5, 97.5))
        by_chance = Figure(float(np.mean(tries)), (float(low), float(high)), len(certain))
    return {
        "top1": _mean(single, lambda c: c.said.top == c.truth, seed),
        "top1_by_dimension": _resampled(single, mean_over_dimensions, seed),
        "named": _mean(single, lambda c: bool(c.said.named), seed),
        "right_of_named": _mean(told, lambda c: c.said.named == c.causes, seed),
        "right_of_all": _mean(single, lambda c: c.said.named == c.causes, seed),
        "ece": _resampled(certain, lambda n: expected_calibration_error(sure[n], true[n]), seed),
        "ece_if_calibrated": by_chance,
        "mixed_safe": _mean(mixed, lambda c: not c.said.named or c.said.named == c.causes, seed),
        "mixed_both_named": _mean(mixed, lambda c: c.said.named == c.causes, seed),
        "mixed_top_is_one": _mean(mixed, lambda c: c.said.top in c.causes, seed),
        "false_cause": _mean(none, lambda c: bool(c.said.named), seed),
        "coverage": _mean(sets, lambda c: c.truth in c.said.candidates, seed),
        "set_size": _mean(sets, lambda c: len(c.said.candidates), seed),
    }


type Measure = Callable[[NDArray[np.int64]], float]


def _mean(cases: Sequence[Case], value: Callable[[Case], float], seed: int) -> Figure:
    values = np.array([float(value(c)) for c in cases])
    return _resampled(cases, lambda drawn: float(values[drawn].mean()), seed)


def _resampled(cases: Sequence[Case], measure: Measure, seed: int) -> Figure:
    """Return a figure with the interval of a bootstrap over stations."""
    if not cases:
        return Figure(None, None, 0)
    stations: dict[str, list[int]] = {}
    for n, case in enumerate(cases):
        stations.setdefault(case.station, []).append(n)
    groups = [np.array(rows) for rows in stations.values()]
    rng = np.random.default_rng([seed, 17])
    values = []
    for _ in range(REDRAWN):
        drawn = rng.integers(len(groups), size=len(groups))
        values.append(measure(np.concatenate([groups[int(n)] for n in drawn])))
    low, high = np.percentile(values, (2.5, 97.5))
    return Figure(measure(np.arange(len(cases))), (float(low), float(high)), len(cases))


def expected_calibration_error(sure: FloatArray, right: NDArray[np.bool_]) -> float:
    """Mean distance of certainty and accuracy, shape (m,) each, over `BINS` bins of equal count."""
    order = np.argsort(sure, kind="stable")
    parts = [p for p in np.array_split(order, BINS) if len(p)]
    gaps = [len(p) * abs(float(sure[p].mean()) - float(right[p].mean())) for p in parts]
    return float(sum(gaps) / len(sure))


def read_predictions(path: Path) -> dict[str, Prediction]:
    """Read somebody's predictions, a JSON object a line.

    Each holds `id`, `dimensions` (dimension to share), `none`, `named` (a list, empty when
    abstaining) and, where the entry gives sets, `candidates`.

    Raises:
        UnusableInputError: the file is missing, or a line can't be used.
    """
    found = {}
    for line, where in _lines(path):
        try:
            value = parse_json(line)
            shares = {dimension(k, where).value: float(v) for k, v in value["dimensions"].items()}
            named = frozenset(dimension(k, where).value for k in value["named"])
            every = [*(shares.get(d.value, 0.0) for d in GapDimension), float(value["none"])]
            candidates = frozenset(str(c) for c in value.get("candidates", ()))
            key = str(value["id"])
        except DAMAGE as error:
            raise UnusableInputError(
                f"{where}: not a prediction ({error}). It needs id, dimensions, none and named."
            ) from None
        if not 0.99 <= sum(every) <= 1.01 or min(every) < 0:
            raise UnusableInputError(
                f"{where}: shares sum to {sum(every):.3f}. Dimensions and none must sum to 1."
            )
        found[key] = Prediction(np.array(every) / sum(every), named, candidates)
    return found


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            yield line, f"{path}, line {number}"


def read_truth(path: Path) -> dict[str, dict[str, Any]]:
    """Read a `truth.jsonl`: uid to what was injected or labelled.

    Raises:
        UnusableInputError: it is missing or a line of it can't be read.
    """
    truth: dict[str, dict[str, Any]] = {}
    for line, where in _lines(path):
        try:
            value = parse_json(line)
            truth[str(value["uid"])] = value
        except DAMAGE as error:
            raise UnusableInputError(
                f"{where}: not a truth record ({error}). Remove or fix that line."
            ) from None
    return truth

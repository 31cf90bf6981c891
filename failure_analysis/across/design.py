"""From trials to the design of a regression: which factors can be told apart, and their columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.types import FloatArray
from gaploop.failure_analysis.across.trials import NOMINAL, Trials

USUAL: Final = (NOMINAL, "base", "baseline", "clean", "default", "none", "0")
"""Words for a factor's reference level, best first; else it is the level with most trials."""
TRIALS_PER_LEVEL: Final = 3
"""Fewer trials a coefficient than this, and factors are set aside, the last ones first."""


@dataclass(frozen=True)
class DesignMatrix:
    """Rows of equal circumstances, and the coefficients that tell them apart.

    Attributes:
        levels: each row's levels by factor.
        clusters: each row's cluster.
        matrix: intercept and one column a level but the reference, shape (n, p).
        successes: shape (n,).
        trials: shape (n,).
        columns: (factor, level) to its column.
        references: factor to its reference level, for the factors that are in.
        aside: factor that varies but isn't in, to why.
    """

    levels: tuple[Mapping[str, str], ...]
    clusters: tuple[str, ...]
    matrix: FloatArray
    successes: FloatArray
    trials: FloatArray
    columns: Mapping[tuple[str, str], int]
    references: Mapping[str, str]
    aside: Mapping[str, str]

    def is_at(self, factor: str, level: str) -> NDArray[np.bool_]:
        """Return which rows were tried at a level, shape (n,)."""
        return np.array([levels[factor] == level for levels in self.levels])

    def at(self, factor: str, level: str) -> FloatArray:
        """Return the matrix as it would be, were `factor` at `level` in every row."""
        changed = self.matrix.copy()
        changed[:, [c for (name, _), c in self.columns.items() if name == factor]] = 0.0
        if level != self.references[factor]:
            changed[:, self.columns[factor, level]] = 1.0
        return changed


def make_design(
    rows: Sequence[Trials], references: Mapping[str, str] | None = None
) -> DesignMatrix:
    """Return the design of some trials; their order doesn't matter.

    Args:
        rows: trials, all with the same factors.
        references: factor to the level that others are compared with, where not the usual one.

    Raises:
        UnusableInputError: no trials, or a reference that isn't there.
    """
    merged = _merged(rows)
    if not merged:
        raise UnusableInputError("No trial ended in success or failure: nothing to compare.")
    counts = _counts(merged)
    usual = {f: _reference(f, n, (references or {}).get(f, "")) for f, n in counts.items()}
    _check_factors(references or {}, counts)
    varied = [f for f, n in counts.items() if len(n) > 1]
    blocks = {f: _block(merged, f, sorted(set(counts[f]) - {usual[f]})) for f in varied}
    trials = np.array([r.trials for r in merged], dtype=np.float64)
    kept, aside = _told_apart(blocks, float(trials.sum()))
    columns: dict[tuple[str, str], int] = {}
    for factor in kept:
        for level in sorted(set(counts[factor]) - {usual[factor]}):
            columns[factor, level] = 1 + len(columns)
    return DesignMatrix(
        tuple(r.levels for r in merged),
        tuple(r.cluster for r in merged),
        np.column_stack([np.ones(len(merged)), *(blocks[f] for f in kept)]),
        np.array([r.successes for r in merged], dtype=np.float64),
        trials,
        columns,
        {f: usual[f] for f in kept},
        aside,
    )


def _merged(rows: Sequence[Trials]) -> list[Trials]:
    """Return one row for each combination of levels and cluster, in an order of their own."""
    sums: dict[tuple[tuple[str, ...], str], list[int]] = {}
    names = list(rows[0].levels) if rows else []
    for row in rows:
        held = sums.setdefault((tuple(row.levels[n] for n in names), row.cluster), [0, 0])
        held[0] += row.successes
        held[1] += row.trials
    return [
        Trials(dict(zip(names, levels, strict=True)), successes, trials, cluster)
        for (levels, cluster), (successes, trials) in sorted(sums.items())
        if trials
    ]


def _counts(rows: Sequence[Trials]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for factor, level in row.levels.items():
            counts.setdefault(factor, Counter())[level] += row.trials
    return counts


def _reference(factor: str, counts: Counter[str], asked: str) -> str:
    if asked:
        if asked not in counts:
            raise unknown_choice("level", asked, counts, f"--reference, factor {factor}")
        return asked
    by_word = {level.lower(): level for level in sorted(counts)}
    found = [by_word[word] for word in USUAL if word in by_word]
    return found[0] if found else min(counts, key=lambda level: (-counts[level], level))


def _check_factors(references: Mapping[str, str], counts: Mapping[str, Counter[str]]) -> None:
    for factor in references:
        if factor not in counts:
            raise unknown_choice("factor", factor, counts, "--reference")


def _block(rows: Sequence[Trials], factor: str, levels: Sequence[str]) -> FloatArray:
    return np.array([[float(r.levels[factor] == level) for level in levels] for r in rows])


def _told_apart(
    blocks: Mapping[str, FloatArray], trials: float
) -> tuple[list[str], dict[str, str]]:
    """Return the factors that can be told apart, first come first, and why the others can't."""
    kept: list[str] = []
    aside: dict[str, str] = {}
    for factor, block in blocks.items():
        base = np.column_stack([np.ones(len(block)), *(blocks[f] for f in kept)])
        both = np.column_stack([base, block])
        if both.shape[1] * TRIALS_PER_LEVEL > trials:
            aside[factor] = "too few trials to allow for it as well"
        elif np.linalg.matrix_rank(both) < both.shape[1]:
            aside[factor] = f"changed together with {_partner(factor, kept, blocks)}"
        else:
            kept.append(factor)
    return kept, aside


def _partner(factor: str, kept: Sequence[str], blocks: Mapping[str, FloatArray]) -> str:
    ones = np.ones(len(blocks[factor]))
    for other in kept:
        both = np.column_stack([ones, blocks[other], blocks[factor]])
        if np.linalg.matrix_rank(both) < both.shape[1]:
            return f"{other}: what one costs can't be told from what the other does"
    return f"{', '.join(kept)} taken together: it can't be told from them"

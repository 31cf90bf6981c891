"""Sets a diagnosis against what was injected or labelled, as `truth.jsonl` has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gaploop.failure_analysis.diagnosis import Diagnosis

ABSTAINED: Final = "(abstained)"


@dataclass(frozen=True)
class CrossTable:
    """Counts of truth against diagnosis.

    Attributes:
        truth: row names.
        diagnosed: column names.
        counts: (row, column) to number of takes.
    """

    truth: tuple[str, ...]
    diagnosed: tuple[str, ...]
    counts: Mapping[tuple[str, str], int]

    @property
    def right(self) -> int:
        """Takes on the diagonal."""
        return sum(n for (row, column), n in self.counts.items() if row == column)

    @property
    def decided(self) -> int:
        """Takes for which the diagnosis didn't abstain."""
        return sum(n for (_, column), n in self.counts.items() if column != ABSTAINED)

    @property
    def total(self) -> int:
        """All takes."""
        return sum(self.counts.values())

    def text(self) -> str:
        """Return the table as aligned text, truth down, diagnosis across."""
        width = max((len(name) for name in (*self.truth, "truth")), default=5) + 2
        heads = [f"{name:>{max(len(name), 5) + 2}}" for name in self.diagnosed]
        lines = [f"{'truth':<{width}}" + "".join(heads)]
        for row in self.truth:
            cells = [
                f"{self.counts.get((row, column), 0) or '.':>{len(head)}}"
                for column, head in zip(self.diagnosed, heads, strict=True)
            ]
            lines.append(f"{row:<{width}}" + "".join(cells))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return rows, columns and counts as nested mappings."""
        rows = {
            row: {c: n for c in self.diagnosed if (n := self.counts.get((row, c), 0))}
            for row in self.truth
        }
        return {"rows": rows, "right": self.right, "decided": self.decided, "total": self.total}


def cross_table(diagnosis: Diagnosis, truth: Mapping[str, Mapping[str, Any]]) -> CrossTable:
    """Set diagnosed dimensions against injected ones.

    Args:
        diagnosis: what was found.
        truth: from `read_truth`; takes with several injected gaps count for the severest.
    """
    pairs = []
    for take in diagnosis.takes:
        injected = truth.get(take.uid, {}).get("injected", [])
        if injected:
            worst = max(injected, key=lambda gap: float(gap["severity"]))
            pairs.append((str(worst["dimension"]), take.top or ABSTAINED))
    return count_pairs(pairs)


def count_pairs(pairs: Iterable[tuple[str, str]]) -> CrossTable:
    """Return how often each truth was told as what."""
    counts = Counter(pairs)
    rows = sorted({row for row, _ in counts})
    columns = sorted({column for _, column in counts}, key=lambda name: (name == ABSTAINED, name))
    return CrossTable(tuple(rows), tuple(columns), dict(counts))

"""In which order a plan's takes are recorded: blocked and randomised, and resumable.

Whatever drifts through a day (light, wear, the operator) must not coincide with a condition, so
the takes are split into blocks that each hold a fair share of every condition, and only within
a block takes of one set-up follow each other, in an order that changes little at a time.

Takes are dealt to blocks by minimisation (Pocock and Simon, Biometrics 31, 1975): each goes to
the block that has least of its set-up and of its conditions so far. The order is a pure
function of plan, seed and quotas. What has been recorded is struck off its front, so that a
session that goes on gets the rest of the same order.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from gaploop.core.plan import Plan

BLOCK_TAKES: Final = 12
"""Aimed-at length of a block: about ten minutes at 45 s a take."""

SETUP_EFFORT: Final[Mapping[str, float]] = {
    "camera_pose": 5.0,
    "table_height": 5.0,
    "background": 3.0,
    "lighting": 2.0,
    "grid_cell": 0.2,
}
"""Effort of changing a condition, relative to any other (1): assumed. The object is put back
before every take anyway, so that another grid cell costs next to nothing."""


@dataclass(frozen=True)
class Quota:
    """How many takes to record under which conditions.

    Attributes:
        takes: takes that count; failed demonstrations don't.
        plan: id of the plan item, or "".
        dimensions: purpose of the takes, dimension to weight.
        conditions: what to set up.
    """

    takes: int
    plan: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Plan item and conditions as text: the same for quotas of one set-up."""
        return json.dumps([self.plan, dict(self.conditions)], sort_keys=True, default=str)


def plan_quotas(plan: Plan, seed: int = 0) -> list[Quota]:
    """Return what a plan asks to be recorded, set-up by set-up; other remedies are done instead.

    Takes of an item are spread evenly over its set-ups; which of them get one more is drawn.
    """
    quotas = []
    for item in plan.items:
        setups = item.setups()
        share, more = divmod(item.takes, len(setups))
        lucky = set(_draw(f"{plan.id} {item.id} {seed}").permutation(len(setups))[:more].tolist())
        for number, conditions in enumerate(setups):
            takes = share + (number in lucky)
            if takes:
                quotas.append(Quota(takes, item.id, {item.dimension.value: 1.0}, conditions))
    return quotas


def campaign(plan: Plan, seed: int = 0) -> list[Quota]:
    """Return a plan's takes in the order to record them, one quota for each stretch of takes."""
    return in_blocks(plan_quotas(plan, seed), f"{plan.id} {seed}")


def in_blocks(quotas: Sequence[Quota], draw: str) -> list[Quota]:
    """Order the takes of `quotas`, and return a quota for each stretch of takes of one set-up.

    No set-up with two or more takes is recorded in a single stretch, unless it is the only one.

    Args:
        quotas: set-ups, each once.
        draw: text that the random numbers come from.
    """
    rng = _draw(draw)
    order: list[int] = []
    for block in _deal(quotas, rng):
        order += _order_within(block, quotas, order[-1] if order else None, rng)
    return _stretches(_split_stretches(order), quotas)


def effort(before: Mapping[str, object] | None, after: Mapping[str, object]) -> float:
    """Return how much there is to change between two set-ups; 0 where nothing differs."""
    if before is None:
        return 0.0
    return sum(SETUP_EFFORT.get(name, 1.0) for name in changed(before, after))


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """Return the conditions that differ between two set-ups."""
    names = dict.fromkeys((*before, *after))
    return tuple(n for n in names if _plain(before.get(n)) != _plain(after.get(n)))


def _plain(value: object) -> str:
    return json.dumps(value, default=str)  # (0, 2) and [0, 2] are the same cell


def _draw(text: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def _deal(quotas: Sequence[Quota], rng: np.random.Generator) -> list[list[int]]:
    """Deal takes, as indices of quotas, to blocks."""
    total = sum(quota.takes for quota in quotas)
    n_blocks = min(total, max(2, math.ceil(total / BLOCK_TAKES)))
    blocks: list[list[int]] = [[] for _ in range(n_blocks)]
    counts: list[Counter[Any]] = [Counter() for _ in range(n_blocks)]
    factors = [[(n, _plain(v)) for n, v in quota.conditions.items()] for quota in quotas]
    takes = np.repeat(np.arange(len(quotas)), [quota.takes for quota in quotas])
    for setup in rng.permutation(takes).tolist():
        ties = rng.random(n_blocks)

        def load(
            b: int, setup: int = setup, ties: Any = ties
        ) -> tuple[int, int, float]:  # bound now: this is a loop
            had = sum(counts[b][factor] for factor in factors[setup])
            return counts[b][setup], had + len(blocks[b]), float(ties[b])

        chosen = min(range(n_blocks), key=load)
        blocks[chosen].append(setup)
        counts[chosen].update([setup, *factors[setup]])
    return [blocks[b] for b in rng.permutation(n_blocks)]


def _order_within(
    block: Sequence[int], quotas: Sequence[Quota], last: int | None, rng: np.random.Generator
) -> list[int]:
    """Order a block: begin far from where the last one ended, then change as little as possible."""
    counts = Counter(block)
    waiting = [int(s) for s in rng.permutation(sorted(counts))]
    ordered: list[int] = []
    if last is not None:
        before = quotas[last].conditions
        at = max(waiting, key=lambda s: (s != last, effort(before, quotas[s].conditions)))
        waiting.insert(0, waiting.pop(waiting.index(at)))
    at = waiting.pop(0)
    while True:
        ordered += [at] * counts[at]
        if not waiting:
            return ordered
        here = quotas[at].conditions
        at = min(waiting, key=lambda s: effort(here, quotas[s].conditions))
        waiting.remove(at)


def _split_stretches(order: list[int]) -> list[int]:
    """Move one take of every set-up that stands in a single stretch to the far end.

    What the take leaves behind still stands between its neighbours, so nothing else is joined.
    """
    for setup in sorted(set(order)):
        places = [n for n, other in enumerate(order) if other == setup]
        first, last = places[0], places[-1]
        if len(places) == len(order) or len(places) == 1 or last - first + 1 != len(places):
            continue
        if last < len(order) - 1:
            order.append(order.pop(last))
        else:
            order.insert(0, order.pop(first))
    return order


def _stretches(order: Sequence[int], quotas: Sequence[Quota]) -> list[Quota]:
    return [replace(quotas[setup], takes=len(list(run))) for setup, run in itertools.groupby(order)]

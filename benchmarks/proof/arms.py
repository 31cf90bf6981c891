"""What each arm records: so many takes for each dimension."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.proof.design import STAGED, Site, StudyArm
from gaploop.core.plan import Plan
from gaploop.core.vocabulary import GapDimension

type Takes = Mapping[GapDimension, int]
"""How many takes for which dimension."""


def takes_of(arm: StudyArm, site: Site, budget: int, plan: Plan | None) -> Takes:
    """Return what an arm records with a budget of takes; nothing where it says not to.

    Args:
        arm: one that has a budget.
        site: the oracle knows its gaps; the others only draw from its seed.
        budget: takes.
        plan: of the diagnosis, for `targeted`.
    """
    if arm is StudyArm.TARGETED:
        assert plan is not None
        return planned(plan)
    if arm is StudyArm.ORACLE:
        return evenly(budget, site.dimensions, site.seed)
    uniform = evenly(budget, STAGED, site.seed)
    if arm is StudyArm.HIDDEN_PART:
        return {d: n for d, n in uniform.items() if d in site.dimensions}
    if arm is StudyArm.OTHER_PART:
        return {d: n for d, n in uniform.items() if d not in site.dimensions}
    return uniform


def planned(plan: Plan) -> Takes:
    """Return the takes of a plan by dimension."""
    found: dict[GapDimension, int] = {}
    for item in plan.items:
        if item.takes:
            found[item.dimension] = found.get(item.dimension, 0) + item.takes
    return found


def evenly(budget: int, dimensions: tuple[GapDimension, ...], seed: int) -> Takes:
    """Return the budget in equal parts; what is left over goes to dimensions drawn from `seed`."""
    share, more = divmod(budget, len(dimensions))
    lucky = set(np.random.default_rng([seed, 8]).permutation(len(dimensions))[:more].tolist())
    shares = {d: share + (i in lucky) for i, d in enumerate(dimensions)}
    return {d: n for d, n in shares.items() if n}

"""How often takes of each gap dimension are drawn, from what the plan expects of them."""

from __future__ import annotations

from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import Plan

LEAST, MOST = 0.25, 4.0
"""No dimension that is collected for is left out or drowns the others."""
DEMONSTRATE: Final = "demonstrate"


def weights_of(plan: Plan) -> dict[str, float]:
    """Return gap dimension to weight, 1 on average over what the plan collects.

    A dimension's weight goes by the points of success that the plan expects of its takes; by
    its share of the failures where the plan doesn't say. What isn't collected counts 1.

    Raises:
        UnusableInputError: the plan collects nothing.
    """
    items = [i for i in plan.items if i.remedy == DEMONSTRATE and i.takes + i.may_follow > 0]
    if not items:
        raise UnusableInputError(
            f"Plan {plan.id} collects no takes, so it says nothing about their weights. Leave "
            "--plan out."
        )
    has_gains = all(i.gain_points is not None for i in items)
    values: dict[str, float] = {}
    for item in items:
        gain = item.gain_points.mean if has_gains and item.gain_points else item.share
        name = item.dimension.value
        values[name] = values.get(name, 0.0) + max(0.0, gain)
    mean = sum(values.values()) / len(values)
    if mean <= 0:
        return dict.fromkeys(values, 1.0)
    return {name: min(MOST, max(LEAST, value / mean)) for name, value in values.items()}

"""Injected gaps: what makes the embedded "real" cell differ from the nominal one.

`mechanism` says what a mechanism is and where it may act, `mechanisms` has them, `blind` has those
that nobody who diagnoses was told of, and `catalog` draws them.
"""

from gaploop.sim.gaps.blind import BLIND_MECHANISMS
from gaploop.sim.gaps.catalog import InjectedGap, draw_gaps, mechanisms_of
from gaploop.sim.gaps.mechanism import Mechanism, Parameter
from gaploop.sim.gaps.mechanisms import MECHANISMS

__all__ = [
    "BLIND_MECHANISMS",
    "MECHANISMS",
    "InjectedGap",
    "Mechanism",
    "Parameter",
    "draw_gaps",
    "mechanisms_of",
]

"""Injected gaps: what makes the embedded "real" cell differ from the nominal one.

`mechanisms` says what there is, `blind` what there is that nobody who diagnoses was told of,
`catalog` draws it; the other modules apply it where it acts.
"""

from gaploop.sim.gaps.blind import BLIND_MECHANISMS
from gaploop.sim.gaps.catalog import InjectedGap, draw_gaps, mechanisms_of
from gaploop.sim.gaps.mechanisms import MECHANISMS, Mechanism

__all__ = [
    "BLIND_MECHANISMS",
    "MECHANISMS",
    "InjectedGap",
    "Mechanism",
    "draw_gaps",
    "mechanisms_of",
]

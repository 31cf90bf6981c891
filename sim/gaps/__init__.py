"""Injected gaps: what makes the embedded "real" cell differ from the nominal one.

`catalog` says what there is and draws it; the other modules apply it where it acts.
"""

from gaploop.sim.gaps.catalog import MECHANISMS, InjectedGap, Mechanism, draw_gaps, mechanisms_of

__all__ = ["MECHANISMS", "InjectedGap", "Mechanism", "draw_gaps", "mechanisms_of"]

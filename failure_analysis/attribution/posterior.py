"""Why a take failed: a posterior over the nine gap dimensions and "none of these".

The learned model gives it where the take has the channels that the model was made for and the
station a reference; the rules alone give it elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.attribution.features import features
from gaploop.failure_analysis.attribution.model import Attribution, EvidenceModel
from gaploop.failure_analysis.attribution.rules import SHOWN, RuleEvidence, rule_evidence
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.signals.registry import TakeSignals

NONE_SCORE: Final = 1.2
"""What unexplained failures score: as much as a signal some 5 spreads from usual."""
ABSTAIN_SCORE: Final = 1.0
ABSTAIN_MARGIN: Final = 0.15
NEEDED: Final = ("motion", "scene", "images")
"""Sources without any of which the model would judge by what it lacks."""


def attribute(
    measured: TakeSignals,
    reference: Reference,
    mode: FailureMode | None,
    model: EvidenceModel | None = None,
) -> Attribution:
    """Return the posterior over gap dimensions for one failed take; without model by the rules."""
    why = "no model"
    if model is not None:
        lacking = [measured.unseen[s] for s in NEEDED if s in measured.unseen]
        blind = len(lacking) > 1 or "motion" in measured.unseen
        why = ", ".join(lacking) if blind else ""
        why = why if reference.takes else "no take that went well says what is usual"
    if why or model is None:
        return by_rules(rule_evidence(measured, reference, mode), why)
    row, rules = features(measured, reference, mode)
    judged = model.judge(row)
    order = {d: n for n, d in enumerate(sorted(GapDimension, key=lambda d: -judged.dimensions[d]))}
    ranked = sorted(rules.evidence, key=lambda pair: order[pair[0]])
    firsts = dict(reversed(ranked))  # the strongest of each dimension
    rest = [e for d, e in ranked if e is not firsts[d]]
    shown = [*(firsts[d] for d in order if d in firsts), *rest][:SHOWN]
    return replace(judged, evidence=tuple(shown))


def by_rules(rules: RuleEvidence, why: str = "") -> Attribution:
    """Return the posterior by the rules alone; `why` says why no model judged."""
    weights = {name: math.exp(score) - 1.0 for name, score in rules.left.items()}
    total = sum(weights.values()) + math.exp(NONE_SCORE)
    shares = {name: weight / total for name, weight in weights.items()}
    first, second = sorted(shares, key=lambda d: -shares[d])[:2]
    close = shares[first] - shares[second] < ABSTAIN_MARGIN
    none = math.exp(NONE_SCORE) / total
    abstained = max(rules.left.values()) < ABSTAIN_SCORE or close or none > shares[first]
    evidence = tuple(e for _, e in rules.evidence[:SHOWN])
    named = () if abstained else (first,)
    by = f"rules: {why}" if why else "rules"
    return Attribution(shares, 1.0 - sum(shares.values()), named, (), evidence, by)

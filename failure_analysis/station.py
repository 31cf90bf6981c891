"""The station's verdict: one posterior over causes for all of its failures, and what it is worth.

Takes of one station share its gaps, and the errors of a diagnosis too: their evidence is pooled as
a product of likelihoods (logarithmic opinion pool, Genest and Zidek 1986, Statistical Science
1:114) whose exponent counts n takes that err together as n / (1 + (n - 1) rho).

How often the likeliest cause is the right one hangs on what was recorded, and on where the takes
come from that say what is usual: those of the station that failed hold its gaps as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate, percent
from gaploop.core.take import Take
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Domain, GapDimension, TakeKind
from gaploop.failure_analysis.reference import OWN_TAKES, Ground, Reference, ground_of

D = GapDimension

NONE: Final = "none"
POLICY: Final = "policy"
UNMEASURED: Final = "not_measured"
SAYS: Final[Mapping[str, str]] = {
    NONE: "nothing that these episodes show",
    POLICY: "the policy itself",
    UNMEASURED: "something that was not measured",
}
"""What people read for a cause that is no dimension."""
NAMED_FROM: Final = 0.8
"""A wrong name costs four times what a right one is worth: from here on naming pays."""
SHARED_ERRORS: Final = 0.5
"""Of what a diagnosis is unsure of, the part that goes wrong on all episodes of a station
together."""
FLOOR: Final = 0.02
"""Least share of a cause in an episode: no episode alone rules a cause out."""
TOLD_FROM: Final = 0.2
"""Twice an even share: what leads with less doesn't lead."""
LIKELY: Final = 0.5
"""What is likelier than all else together is told beside "not measured"."""
RUNNERS_UP: Final = 0.5
"""Causes with at least this part of the leading one's share are told beside it."""


@dataclass(frozen=True)
class StationVerdict:
    """What the failures of one station say together, in words and as causes.

    Attributes:
        posterior: cause to share: dimensions, and "none", or "policy" and "not_measured" where
            failures were reproduced; sums to 1; empty without failures.
        named: the causes that are named, likeliest first.
        leading: the likeliest cause, named or not; "" without failures.
    """

    posterior: Mapping[str, float]
    named: tuple[str, ...]
    takes: int
    message: str
    leading: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return `summary.station` of a diagnosis."""
        return {
            "posterior": {c: round(p, 6) for c, p in self.posterior.items()},
            "leading": self.leading,
            "named": list(self.named),
            "takes": self.takes,
            "says": self.message,
        }


def words(name: str) -> str:
    """Return a name of the vocabulary as people read it: a dimension, a colon, its mechanism."""
    return name.replace("_", " ").replace(".", ": ")


def cause_words(cause: str) -> str:
    """Return a cause as people read it."""
    return SAYS.get(cause, words(cause))


def pooled(takes: Sequence[tuple[Mapping[str, float], float]]) -> FloatArray:
    """Return the posterior of a station over the nine dimensions and "none", shape (10,).

    From each failure's shares of the dimensions, and of "none".
    """
    rows = np.array([[*(shares[d.value] for d in GapDimension), none] for shares, none in takes])
    n = len(rows)
    logs = np.log(np.maximum(rows, FLOOR)).sum(axis=0) / (1.0 + (n - 1) * SHARED_ERRORS)
    grown = np.exp(logs - logs.max())
    return np.asarray(grown / grown.sum())


def verdict(
    posterior: Mapping[str, float],
    takes: int,
    also: Mapping[str, float] | None = None,
    *,
    may_name: bool = True,
    hidden: bool = False,
) -> StationVerdict:
    """Return a posterior with what is named, and in words.

    Args:
        also: causes that are named whatever their share, because they were measured, to how
            likely each acts.
        may_name: nothing is named without.
        hidden: not everything could be seen: that nothing was is then no answer.
    """
    if not takes:
        return StationVerdict({}, (), 0, "Nothing failed: nothing to explain.")
    ranked = sorted(posterior, key=lambda c: (hidden and c == NONE, -posterior[c]))
    sure = [c for c in ranked if posterior[c] >= NAMED_FROM and c != NONE]
    acts = also or {}
    named = tuple(c for c in ranked if c in {*sure, *acts}) if may_name else ()
    top = posterior[ranked[0]]
    seen = [c for c in ranked if not (hidden and c == NONE)]
    told = named or [c for c in seen if posterior[c] >= RUNNERS_UP * top][:3]
    causes = ", ".join(f"{cause_words(c)} {max(acts.get(c, 0), posterior[c]):.0%}" for c in told)
    if top < TOLD_FROM:
        message = "Station: nothing in these episodes tells the causes apart."
    elif named:
        # What was not measured may have a likely name, too.
        open_one = named == (UNMEASURED,) and ranked[0] != UNMEASURED and top >= LIKELY
        likeliest = f", likeliest {cause_words(ranked[0])} {top:.0%}" if open_one else ""
        message = f"Station: {causes}{likeliest}."
    else:
        why = f" (from {NAMED_FROM:.0%})" if may_name else " by this evidence"
        message = f"Station: leans to {causes}; too unsure to name{why}."
    return StationVerdict(dict(posterior), named, takes, message, ranked[0])


def hedged(
    shares: Mapping[str, float], none: float, hidden: Sequence[str], trust: float
) -> tuple[dict[str, float], float]:
    """Return a take's shares and "none" where what is usual holds the station's own gaps.

    Half of "nothing seen" goes to the causes that such a reference hides, and all of it is worth as
    much as it was right when that was tried: the share `trust`.
    """
    moved = 0.5 * none / len(hidden) if hidden else 0.0
    even = (1.0 - trust) / (len(shares) + 1)
    found = {d: trust * (s + moved * (d in hidden)) + even for d, s in shares.items()}
    return found, max(0.0, 1.0 - math.fsum(found.values()))


class Tier(StrEnum):
    """What was recorded, each with all of those before it."""

    LEROBOT = "lerobot"
    """`observation.state`, `action`, pictures."""
    TELEMETRY = "telemetry"
    """Commands, readings and currents at control rate."""
    SCENE = "scene"
    """Tracked object and target."""
    TWIN = "twin"
    """Failures reproduced in the station's twin."""


class ReferenceKind(StrEnum):
    """Where the takes come from that say what is usual."""

    GAP_FREE = "gap_free"
    """Another station, on which the policy does well."""
    SIMULATED = "simulated"
    """The simulation that the policy comes from."""
    STATION = "station"
    """The very station that failed: what never changes there looks usual."""
    NONE = "none"
    """No episode that went well."""


@dataclass(frozen=True)
class TierAccuracy:
    """How often the likeliest cause was the right one, of what was counted.

    The interval is as wide as the scale where none was published.
    """

    top1: Estimate
    of: str

    def __str__(self) -> str:
        known = self.top1.high - self.top1.low < 1.0
        share = percent(self.top1) if known else f"{self.top1.value:.0%}"
        return f"{share} of {self.of} (sim-to-sim; {_NOTE})"


_TRIED: Final = "181 failures of 63 blind stations"
_STATIONS: Final = "14 blind stations with LeRobot's columns"
_NOTE: Final = "2026-11, docs/diagnose/diagnosis.md"
"""Where they stand."""
ACCURACY: Final[Mapping[tuple[Tier, ReferenceKind], TierAccuracy]] = {
    (Tier.LEROBOT, ReferenceKind.GAP_FREE): TierAccuracy(Estimate(0.64, 0.0, 1.0), _TRIED),
    (Tier.LEROBOT, ReferenceKind.STATION): TierAccuracy(Estimate(0.12, 0.07, 0.21), _TRIED),
    (Tier.SCENE, ReferenceKind.GAP_FREE): TierAccuracy(Estimate(0.75, 0.68, 0.81), _TRIED),
    (Tier.TWIN, ReferenceKind.GAP_FREE): TierAccuracy(Estimate(0.79, 0.52, 0.92), _STATIONS),
    (Tier.TWIN, ReferenceKind.STATION): TierAccuracy(Estimate(0.43, 0.21, 0.67), _STATIONS),
}
"""Measured in the embedded cell, whose nominal episodes are gap-free and simulated alike."""

STATIC: Final = (
    D.VISUAL_DOMAIN, D.OBJECT_PROPERTY, D.ACTUATOR_RESPONSE, D.SPATIAL_GEOMETRY,
)  # fmt: skip
"""Dimensions whose gaps are there in every episode of a station, those that went well too."""
_NEEDS: Final[Mapping[str, tuple[GapDimension, ...]]] = {
    "motion": (D.CONTACT_DYNAMICS, D.SENSOR_NOISE, D.ACTUATOR_RESPONSE),
    "images": (
        D.VISUAL_DOMAIN, D.OBJECT_PROPERTY, D.ENVIRONMENTAL_COMPLEXITY, D.HUMAN_BEHAVIOR,
        D.SPATIAL_GEOMETRY,
    ),
}  # fmt: skip
"""Source of signals to what nothing can be said of without it."""
_HAD: Final = {
    "motion": "joints", "images": "pictures", "currents": "motor currents",
    "scene": "tracked scene", "force": "forces", "touch": "touch",
}  # fmt: skip


@dataclass(frozen=True)
class EvidenceBase:
    """What a diagnosis had, what that is worth, and what would bring more.

    Attributes:
        tier: the highest that all diagnosed takes reach.
        had: channels, in words.
        blind_to: dimensions that can't be ruled out, whatever the takes look like.
        other_driver: a person or a script drove what went well, the policy what failed.
        figures: outside the embedded cell, how many of each take were set against successes.
        elsewhere: takes or twin are of no cell, where all that is known of such evidence was
            measured.
        known: where else it was measured, in words.
    """

    tier: Tier
    reference: ReferenceKind
    had: tuple[str, ...]
    blind_to: tuple[GapDimension, ...]
    other_driver: bool = False
    figures: int | None = None
    elsewhere: bool = False
    known: str = "in others' simulations: docs/figures/blind_stations.md"

    @property
    def accuracy(self) -> TierAccuracy | None:
        """What a benchmark measured for this tier and reference, if it did."""
        if self.elsewhere:
            return None
        kind = self.reference
        if kind is ReferenceKind.SIMULATED:
            kind = ReferenceKind.GAP_FREE
        if self.tier is Tier.TWIN:
            known = ReferenceKind.GAP_FREE, ReferenceKind.STATION
            return ACCURACY[self.tier, kind if kind in known else ReferenceKind.STATION]
        own = kind is ReferenceKind.STATION and not self.other_driver  # tried with demonstrations
        return None if own else ACCURACY.get((self.tier, kind))

    @property
    def trust(self) -> float:
        """How often the takes' evidence is right at all, the nearest figure where none is."""
        hides = self.misleads or self.reference is ReferenceKind.NONE
        kind = ReferenceKind.STATION if hides else ReferenceKind.GAP_FREE
        found = self.accuracy or ACCURACY[Tier.LEROBOT, kind]
        return found.top1.value

    @property
    def misleads(self) -> bool:
        """Whether names aren't worth giving: right in about as many cases as guessing would be."""
        return self.reference is ReferenceKind.STATION and self.other_driver

    def lines(self) -> list[str]:
        """Return what people read of it."""
        if self.figures is not None:
            return [
                f"Evidence: {self.figures} figures of each episode, set against successes. Nominal "
                "values of gaploop's own cell don't hold here."
            ]
        reference = {
            ReferenceKind.GAP_FREE: "episodes of another station",
            ReferenceKind.SIMULATED: "simulated episodes",
            ReferenceKind.STATION: "episodes of this very station",
            ReferenceKind.NONE: "no episode that went well",
        }[self.reference]
        found = [f"Evidence: {self.tier} ({', '.join(self.had)}), against {reference}."]
        unknown = "How often that is right hasn't been measured"
        unknown += f"; {self.known}." if self.elsewhere else "."
        right = f"The likeliest cause is right in {self.accuracy}."
        found.append(right if self.accuracy else unknown)
        if self.reference is ReferenceKind.STATION:
            found.append(
                "Warning: what is usual was recorded on the station that failed. Gaps that are "
                "always there look usual, too."
            )
        if self.blind_to:
            blind = ", ".join(words(d.value) for d in self.blind_to)
            found.append(f"Can't be ruled out: {blind}.")
        # The commands that would bring better evidence, cheapest first.
        if self.reference in (ReferenceKind.STATION, ReferenceKind.NONE) and self.blind_to:
            command = "rollout --robot.type=so101_sim --policy.path=POLICY."
            command = "evaluate --dataset.root=DIR in yours." if self.elsewhere else command
            found.append(
                "More: --reference=DIR of episodes that the policy does well in, in simulation: "
                f"gaploop {command}"
            )
        if self.tier is not Tier.TWIN:
            found.append(
                "More: measure the station in three minutes (gaploop identify --measure) "
                "and diagnose with --twin=station_twin.yaml --policy.path=POLICY."
            )
        return found

    def with_twin(self, measured: Collection[str], *, owners: bool = False) -> EvidenceBase:
        """Return it with failures reproduced in a twin in which these dimensions were measured.

        `owners`: the twin is of somebody's own simulation, no cell.
        """
        blind = tuple(d for d in self.blind_to if d.value not in measured)
        had, elsewhere = (*self.had, "station twin"), self.elsewhere or owners
        page = "at blind stations of the embedded cell: docs/figures/blind_stations.md"
        return replace(
            self, tier=Tier.TWIN, had=had, blind_to=blind, figures=None, elsewhere=elsewhere,
            known=self.known if owners else page,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return `summary.evidence` of a diagnosis."""
        found = self.accuracy
        return {
            "reference": self.reference.value,
            "had": list(self.had),
            "accuracy": None if found is None else {
                "top1": found.top1.value,
                "interval": [found.top1.low, found.top1.high],
                "of": found.of,
                "source": _NOTE,
            },
            "cannot_rule_out": [d.value for d in self.blind_to],
            "says": self.lines(),
        }  # fmt: skip


def without_telemetry(take: Take) -> Take:
    """Return a take with what LeRobot's columns hold of it, and the tracked scene."""
    return replace(take, telemetry=Telemetry(np.empty(0), {}))


def limited_to_tier(take: Take, tier: str) -> Take:
    """Return a take with no more than a tier has of it."""
    frames = take.frames
    if tier in (Tier.LEROBOT, Tier.TELEMETRY):
        frames = replace(frames, environment_state=np.empty((len(frames), 0)))
    if tier == Tier.LEROBOT:  # plain columns don't say what the filter sent, nor that it tripped
        frames = replace(
            frames, sent=frames.action, safety=np.zeros_like(frames.safety), camera_age_s={}
        )
        take = without_telemetry(take)
    return replace(take, frames=frames)


def evidence_base(
    failed: Sequence[Take], unseen: Iterable[Collection[str]], reference: Reference
) -> EvidenceBase:
    """Return what a diagnosis of failed takes rests on; `unseen`: the sources that each lacks."""
    lacking = set[str]().union(*unseen)
    tier = Tier.LEROBOT
    if failed and all(t.telemetry.arms() for t in failed):
        tier = Tier.TELEMETRY if "scene" in lacking else Tier.SCENE
    # Where what is usual comes from. Takes that name no station, as those of plain datasets, are
    # taken to be of the same one: a robot's own demonstrations are what there is.
    here, origins = {t.info.station for t in failed}, reference.origins
    kind = ReferenceKind.GAP_FREE
    if not reference.takes:
        kind = ReferenceKind.NONE
    elif origins and all(o.domain is Domain.SIM for o in origins):
        kind = ReferenceKind.SIMULATED
    elif not origins or any(o.domain is not Domain.SIM and o.station in here for o in origins):
        kind = ReferenceKind.STATION
    blind = {d for source, needs in _NEEDS.items() if source in lacking for d in needs}
    if kind in (ReferenceKind.STATION, ReferenceKind.NONE):
        blind |= set(STATIC)
    return EvidenceBase(
        tier,
        kind,
        tuple(said for source, said in _HAD.items() if source not in lacking) if failed else (),
        tuple(d for d in D if d in blind) if failed else (),
        bool(origins)
        and reference.name != OWN_TAKES
        and all(o.kind is not TakeKind.ROLLOUT for o in origins)
        and all(t.info.kind is not TakeKind.DEMONSTRATION for t in failed),
        elsewhere=ground_of(failed, reference) is not Ground.CELL,
    )

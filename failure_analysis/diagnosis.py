"""A diagnosis: what went wrong in each take, when, and why, with the evidence; `diagnosis.json`.

A failed take becomes a view (`views`), the view signals (`signals`), the signals a failure mode
(`modes`) and evidence, the evidence a posterior over causes (`attribution`), and that a diagnosis.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, uuid7, write_json
from gaploop.core.labels import LabelEvent
from gaploop.core.messages import Image
from gaploop.core.station import Interval
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain, FailureMode, GapDimension, Outcome, Phase, dimension
from gaploop.datasets.absolute.findings import BELONGS, MISTAKES, AbsoluteReport
from gaploop.failure_analysis.attribution import (
    LEAST_LABELS,
    Attribution,
    EvidenceModel,
    attribute,
    features,
    recalibrated,
    shipped_model,
    weighted_targets,
)
from gaploop.failure_analysis.cameras.camera_check import CameraReport, check_takes
from gaploop.failure_analysis.comparison import CHANCE, Comparison, compare, many, take_evidence
from gaploop.failure_analysis.episode_figures import (
    TakeFigures,
    figure_of,
    figures_of,
    with_pictures,
)
from gaploop.failure_analysis.factors import CohortStatistics, cohort_of_takes
from gaploop.failure_analysis.modes import ModeCall, failure_mode
from gaploop.failure_analysis.reference import Ground, Reference, choose_reference, ground_of
from gaploop.failure_analysis.signals.registry import Evidence, TakeSignals, measure
from gaploop.failure_analysis.station import (
    NONE,
    EvidenceBase,
    ReferenceKind,
    StationVerdict,
    evidence_base,
    hedged,
    pooled,
    verdict,
)
from gaploop.failure_analysis.views.handled import marked
from gaploop.failure_analysis.views.view import TakeView

SCHEMA: Final = "gaploop.diagnosis.v1"
NO_MODE: Final = "none"
"""Mode of an episode in which no failure was seen."""
UNKNOWN_MODE: Final = "unknown"
"""Mode of an episode that failed, of which nothing sets it apart from those that went well."""
LABELLED_SHARE: Final = 0.05
"""Dimensions below this share are left out of suggested labels."""


@dataclass(frozen=True)
class TakeDiagnosis:
    """What went wrong in one take; but for the mode as `Attribution` has it.

    Attributes:
        mode: a failure mode, or "none" where no failure was seen.
        phase: a phase, or "" where it can't be told.
        abstained: the evidence is too weak or too close to name a dimension.
        unseen: what this take has no channel for, in words.
    """

    uid: str
    episode: int | None
    mode: str
    phase: str
    dimensions: Mapping[str, float]
    none: float
    abstained: bool
    evidence: tuple[Evidence, ...]
    unseen: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    by: str = ""

    @property
    def top(self) -> str:
        """The dimension with the largest share, or "" when abstaining."""
        return "" if self.abstained else max(self.dimensions, key=lambda d: self.dimensions[d])

    @property
    def failed(self) -> bool:
        """Whether a failure was seen, or somebody said that it failed."""
        return self.mode != NO_MODE or any(self.dimensions.values())

    @property
    def leaning(self) -> str:
        """The likeliest dimension, named or not; "" where nothing speaks for one above others."""
        *others, (share, likeliest) = sorted((v, k) for k, v in self.dimensions.items())
        return likeliest if share > max([0.0, *(v for v, _ in others)]) + 1e-6 else ""

    def to_json(self) -> dict[str, Any]:
        """Return its entry in `diagnosis.json`."""
        evidence = [
            {
                "signal": e.signal, "value": None if math.isnan(e.value) else e.value,
                "unit": e.unit, "says": e.message,
            }
            for e in self.evidence
        ]  # fmt: skip
        return asdict(self) | {
            "dimensions": {k: round(v, 6) for k, v in self.dimensions.items()},
            "none": round(self.none, 6),
            "evidence": evidence,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> TakeDiagnosis:
        """Read what `to_json` returned; `where` names the place in errors."""
        shares = {dimension(k, where).value: float(v) for k, v in value["dimensions"].items()}
        mode = value["mode"]
        return cls(
            uid=str(value["uid"]),
            episode=value["episode"],
            mode=mode if mode in (NO_MODE, UNKNOWN_MODE) else FailureMode(mode).value,
            phase=Phase(value["phase"]).value if value["phase"] else "",
            dimensions={d.value: shares.get(d.value, 0.0) for d in GapDimension},
            none=float(value.get("none", 0.0)),
            abstained=bool(value["abstained"]),
            evidence=tuple(
                Evidence(e["signal"], float(number), e["unit"], e["says"])
                for e in value["evidence"]
                for number in [math.nan if e["value"] is None else e["value"]]
            ),
            unseen=tuple(value.get("unseen", ())),
            named=tuple(value.get("named", ())),
            candidates=tuple(value.get("candidates", ())),
            by=str(value.get("by", "")),
        )


@dataclass(frozen=True)
class Diagnosis:
    """What went wrong in a set of takes.

    Attributes:
        takes: one entry for each take that failed.
        summary: counts and mean shares; see `summarise`.
        cohort: what all takes say together, where `diagnose` was asked for it.
        base: what it rests on, where it was just made.
        camera_check: what has changed about them, where it was just made.
        spots: by uid, fixed cameras before and after, with where the gripper closed and opened.
    """

    id: str
    source: str
    takes: tuple[TakeDiagnosis, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)
    cohort: CohortStatistics | None = None
    base: EvidenceBase | None = None
    camera_check: CameraReport | None = None
    spots: Mapping[str, Image] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what `diagnosis.json` holds."""
        return {
            "schema": SCHEMA,
            "id": self.id,
            "source": self.source,
            "takes": [take.to_json() for take in self.takes],
            "summary": dict(self.summary),
        }


def deployment(report: AbsoluteReport, found: Diagnosis) -> list[dict[str, Any]]:
    """Return how policy, arm and cameras were put together wrongly, and what failed so.

    Each entry has the failures that the fault is in, their modes, what is wrong, and its fix.
    """
    made = []
    for finding in report.findings:
        if finding.kind not in MISTAKES:
            continue
        whole = len(finding.episodes) >= finding.of
        hit = [t for t in found.takes if whole or t.episode in (None, *finding.episodes)]
        modes = Counter(f"{t.mode}{f' in {t.phase}' if t.phase else ''}" for t in hit)
        if hit:
            made.append({
                "kind": finding.kind, "failures": len(hit), "modes": dict(modes.most_common()),
                "what": finding.line(), "fix": finding.command,
            })  # fmt: skip
    return made


def shown_alone(
    report: AbsoluteReport, outcomes: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """Return what at least half of the episodes show and has to be mended, dearest first.

    How policy, arm and cameras were put together isn't among it: see `deployment`. Where every
    outcome that counts, by name, is a success, nothing has to be.
    """
    if {name for name, count in (outcomes or {}).items() if count} == {Outcome.SUCCESS}:
        return []
    return [
        {"kind": f.kind, "belongs_to": BELONGS[f.kind], "what": f.line(), "fix": f.command}
        for f in report.findings
        if f.to_mend and f.kind not in MISTAKES and 2 * len(f.episodes) >= f.of
    ]


def suggested_labels(take: TakeDiagnosis) -> tuple[LabelEvent, ...]:
    """Return what a diagnosis suggests as labels, of the lowest source: a person's word wins.

    No mode where none was seen, no phase where it can't be told, no dimensions when abstaining.
    """

    def event(field_name: str, value: Any, confidence: float) -> LabelEvent:
        return LabelEvent(take.uid, field_name, value, "gaploop", "auto", confidence=confidence)

    events = []
    if take.mode not in (NO_MODE, UNKNOWN_MODE):
        events.append(event("failure_mode", take.mode, 1.0))
    if take.phase:
        events.append(event("phase", take.phase, 1.0))
    if not take.abstained:
        shares = {d: round(s, 3) for d, s in take.dimensions.items() if s >= LABELLED_SHARE}
        events.append(event("dimensions", shares, round(max(take.dimensions.values()), 3)))
    return tuple(events)


def save_diagnosis(diagnosis: Diagnosis, path: Path) -> None:
    """Write `diagnosis.json`, atomically."""
    write_json(path, diagnosis.to_json())


def load_diagnosis(path: Path) -> Diagnosis:
    """Read a `diagnosis.json`.

    Raises:
        UnusableInputError: it is missing, of another kind, or damaged.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{path} is not a diagnosis (schema {SCHEMA}). Make one with gaploop diagnose DIR."
        )
    try:
        takes = tuple(
            TakeDiagnosis.from_json(take, f"{path}: take {n}")
            for n, take in enumerate(value["takes"], 1)
        )
        return Diagnosis(str(value["id"]), str(value["source"]), takes, dict(value["summary"]))
    except DAMAGE as error:
        raise UnusableInputError(
            f"{path} is damaged ({error}). Make it again with gaploop diagnose DIR."
        ) from None


NAMES_FROM_TRUST: Final = 0.7
"""Evidence that was right less often names nothing of a station, however well its episodes
agree."""
_NOTHING: Final = Attribution(dict.fromkeys(GapDimension, 0.0), 1.0, (), (), by="")
LEARNED: Final = "those that the policy learned from"
COMPARISON: Final = "comparison"
"""Who judged an episode outside the embedded cell."""


@dataclass(frozen=True)
class _MeasuredFailure:
    take: Take
    measured: TakeSignals
    call: ModeCall

    @classmethod
    def of(cls, view: TakeView) -> _MeasuredFailure:
        measured = measure(view)
        return cls(view.take, measured, failure_mode(view, measured))

    @property
    def failed(self) -> bool:
        return self.call.mode is not None or self.take.outcome == Outcome.FAILURE


def diagnose(
    takes: Iterable[Take],
    reference: Reference | None = None,
    *,
    source: str = "",
    images: bool = True,
    on_take: Callable[[Take], None] | None = None,
    seen_before: Sequence[Take] = (),
    seen_where: str = LEARNED,
    model: EvidenceModel | None = None,
    causes: Mapping[str, Mapping[str, float]] | None = None,
    cohort: bool = False,
    object_hue_deg: Interval | None = None,
) -> Diagnosis:
    """Diagnose every failed take; neither injected truth nor simulator state is looked at.

    Args:
        takes: takes of one station; successful ones serve as reference where none is given.
        reference: what is usual; chosen by `choose_reference` if None.
        images: look at pictures too (one decode per take).
        on_take: called with each take that was measured, for progress.
        seen_before: takes that the cameras are set against, such as the policy's training; the
            set's own successes unless given, or where these are simulated and the failures aren't.
            `seen_where` says in words which they are.
        model: weighs the evidence; the one that ships unless given.
        causes: what engineers say of some of these takes, uid to dimension to weight (see
            `engineer_labels`); from `LEAST_LABELS` failures on, the model learns from them.
        cohort: also compare the takes with each other: what each condition costs, changes over
            time.
        object_hue_deg: the object's hue in these pictures, from and to, where it is stated.
    """
    every = list(takes)
    usual = choose_reference(every, reference)
    ground = ground_of(every, usual)
    failures = []
    for take in every:
        if take.outcome == Outcome.FAILURE:  # what has no outcome isn't accused of one
            # A real bench looks unlike the simulated one, whether that matters or not.
            view = prepared(take, usual, images and ground is Ground.CELL)
            failures.append(_MeasuredFailure.of(view))
            if on_take is not None:
                on_take(take)
    compared, spots = None, dict[str, Image]()
    judge, labels = model or shipped_model(), 0
    if ground is Ground.ELSEWHERE:
        usual, compared, found, spots = _set_apart(every, failures, usual, images, object_hue_deg)
    labelled = [(f, causes[f.take.info.uid]) for f in failures
                if f.failed and causes and f.take.info.uid in causes]  # fmt: skip
    if compared is None and usual.takes and len(labelled) >= LEAST_LABELS:
        rows = [features(f.measured, usual, f.call.mode)[0] for f, _ in labelled]
        targets = weighted_targets([cause for _, cause in labelled])
        judge, labels = recalibrated(judge, np.array(rows), targets), len(labelled)
    base = evidence_base([f.take for f in failures], [f.measured.unseen for f in failures], usual)
    if compared is None:
        found = tuple(_conclude(failure, usual, judge, base) for failure in failures)
        verdict_here = passive_verdict(found, base)
        if base.elsewhere:  # an episode's line says no more than its station's
            among = [tuple(c for c in t.named if c in verdict_here.named) for t in found]
            found = tuple(
                replace(t, named=named, abstained=not named)
                for t, named in zip(found, among, strict=True)
            )
    else:
        base = replace(base, figures=compared.tried)
        verdict_here = _verdict_of(compared)
    summary = summarise(found, every, usual)
    summary |= {"ground": ground.value, "tier": base.tier.value, "evidence": base.to_json()}
    summary["reference"]["kind"] = base.reference.value
    summary["station"] = verdict_here.to_json()
    summary["unseen"] = dict(Counter(why for take in found for why in take.unseen))
    summary["labels_learned_from"] = labels
    report = None
    if images and failures:
        before = () if only_drawn(seen_before, [f.take for f in failures]) else seen_before
        well = [take for take in every if take.outcome is Outcome.SUCCESS]
        name = seen_where if before else "this set's successes"
        report = check_takes(before or well, [f.take for f in failures], name)
    if report is not None:
        summary["camera_check"] = report.to_json()
    statistics = cohort_of_takes(every) if cohort else None
    if statistics is not None:
        summary["across"] = statistics.to_json()
    return Diagnosis(uuid7(), source, found, summary, statistics, base, report, spots)


def only_drawn(seen_before: Sequence[Take], takes: Sequence[Take]) -> bool:
    """Say whether real pictures would be set against simulated ones."""
    real = any(take.info.domain is Domain.REAL for take in takes)
    return real and all(take.info.domain is Domain.SIM for take in seen_before)


def _set_apart(
    every: Sequence[Take],
    failures: Sequence[_MeasuredFailure],
    usual: Reference,
    images: bool,
    object_hue_deg: Interval | None,
) -> tuple[Reference, Comparison, tuple[TakeDiagnosis, ...], dict[str, Image]]:
    """Set failures against successes of their own set and those of a reference.

    Returns:
        What they were set against, what came of it, each failure's diagnosis, and by uid where
        fixed cameras show the gripper close and open.
    """
    judged = [t for t in every if t.outcome in (Outcome.SUCCESS, Outcome.FAILURE)]
    rows = with_pictures([figures_of(take, images, object_hue_deg) for take in judged])
    named = [TakeFigures(values, {}, ModeCall(None, None)) for values in usual.figures]
    failed = np.array([t.outcome is Outcome.FAILURE for t in judged] + [False] * len(named))
    drove = [
        {t.info.kind for t in judged if t.outcome is outcome}
        for outcome in (Outcome.FAILURE, Outcome.SUCCESS)
    ]
    drove[1] |= {o.kind for o in usual.origins} if named else set()
    compared = compare(
        [*rows, *named], failed.tolist(), other_driver=drove[0].isdisjoint(drove[1]),
        in_order=not named,
    )  # fmt: skip
    ours = compared.successes - len(named)
    against = [f"the {many(ours, 'success')} of this set"] if ours else []
    against += [usual.name] if named else []
    usual = replace(
        usual, name=" and ".join(against) or "no episode that went well", takes=compared.successes
    )
    found = []
    row_of = {take.info.uid: row for row, take in enumerate(judged)}
    for failure in failures:
        row = row_of[failure.take.info.uid]
        cause, call, evidence = take_evidence(
            compared, row, rows[row], failed, failure.take.info.fps
        )
        found.append(_unknown(failure.take, failure.measured, cause, call, evidence))
    spots = {
        f.uid: np.vstack([marked(shown.handled[name], *at) for name, at in shown.places.items()])
        for f in found
        if f.evidence and (shown := rows[row_of[f.uid]]).places
    }
    return usual, compared, tuple(found), spots


def _unknown(
    take: Take,
    measured: TakeSignals,
    cause: GapDimension | None = None,
    call: ModeCall | None = None,
    evidence: tuple[Evidence, ...] = (),
) -> TakeDiagnosis:
    """Return a failure whose causes are all alike but for what sets it apart, if anything does."""
    even = 1.0 / (len(GapDimension) + 1)
    rest = CHANCE / len(GapDimension)
    shares = {d.value: even if cause is None else rest for d in GapDimension}
    if cause is not None:
        shares[cause.value] = 1.0 - CHANCE
    lacks = {source: why for source, why in measured.unseen.items() if source == "motion"}
    return TakeDiagnosis(
        uid=take.info.uid,
        episode=take.episode,
        mode=call.mode.value if call and call.mode else UNKNOWN_MODE,
        phase=call.phase.value if call and call.phase else "",
        dimensions=shares,
        none=even if cause is None else rest,
        abstained=cause is None,
        evidence=evidence,
        unseen=tuple(sorted(lacks.values())),
        named=() if cause is None else (cause.value,),
        by=COMPARISON,
    )


def _verdict_of(compared: Comparison) -> StationVerdict:
    cause = compared.cause
    dimension = figure_of(cause.name).dimension if cause else None
    said = compared.failures, compared.message()
    if cause is None or dimension is None:
        return StationVerdict({}, (), *said)
    shares = {dimension.value: 1.0 - cause.p, NONE: cause.p}
    return StationVerdict(shares, (dimension.value,), *said, dimension.value)


def prepared(take: Take, usual: Reference, images: bool = True) -> TakeView:
    """Return what the signals look at, set against what is usual at the station."""
    return TakeView(take, usual.background, images, usual.start_pose_rad)


def diagnose_take(
    view: TakeView, reference: Reference, model: EvidenceModel | None = None
) -> TakeDiagnosis:
    """Diagnose one take; the model that ships weighs the evidence unless another is given."""
    failure = _MeasuredFailure.of(view)
    if ground_of([view.take], reference) is Ground.ELSEWHERE:  # one take has nothing beside it
        return _unknown(view.take, failure.measured)
    base = evidence_base([view.take], [failure.measured.unseen], reference)
    return _conclude(failure, reference, model or shipped_model(), base)


def passive_verdict(takes: Sequence[TakeDiagnosis], base: EvidenceBase) -> StationVerdict:
    """Return what the failures among diagnosed takes say together of their station."""
    failures = sum(t.failed for t in takes)
    if not failures:
        return verdict({}, 0)
    shares, may_name = pooled_shares(takes), not base.misleads
    if base.trust < NAMES_FROM_TRUST:  # takes that agree may still all err
        even, may_name = (1.0 - base.trust) / len(shares), False
        shares = {c: base.trust * p + even for c, p in shares.items()}
    return verdict(shares, failures, may_name=may_name, hidden=bool(base.blind_to))


def pooled_shares(takes: Sequence[TakeDiagnosis]) -> dict[str, float]:
    """Return the pooled posterior over dimensions and "none" of the failures among takes."""
    rows = [(t.dimensions, t.none) for t in takes if t.failed]
    causes = (*(d.value for d in GapDimension), NONE)
    if not rows:  # labelled as failures, and nothing in them shows one
        return dict.fromkeys(causes, 1.0 / len(causes))
    return {c: float(p) for c, p in zip(causes, pooled(rows), strict=True)}


def _conclude(
    failure: _MeasuredFailure, reference: Reference, model: EvidenceModel, base: EvidenceBase
) -> TakeDiagnosis:
    take, measured, call = failure.take, failure.measured, failure.call
    why = _NOTHING
    if failure.failed:
        why = attribute(measured, reference, call.mode, model, base.blind_to)
    shares, none = {d.value: s for d, s in why.dimensions.items()}, why.none
    named = () if base.misleads else tuple(d.value for d in why.named)
    if failure.failed and base.reference is ReferenceKind.STATION:
        trust = base.trust if base.misleads else 1.0
        shares, none = hedged(shares, none, [d.value for d in base.blind_to], trust)
    if failure.failed and not call.mode and not any(shares.values()):
        return _unknown(take, measured)  # somebody says that it failed, and nothing in it shows how
    return TakeDiagnosis(
        uid=take.info.uid,
        episode=take.episode,
        mode=call.mode.value if call.mode else NO_MODE,
        phase=call.phase.value if call.phase else "",
        dimensions=shares,
        none=none,
        abstained=not named,
        evidence=(*call.evidence, *why.evidence),
        unseen=tuple(sorted(measured.unseen.values())),
        named=named,
        candidates=why.candidates,
        by=why.by,
    )


def summarise(
    diagnosed: Iterable[TakeDiagnosis], takes: Iterable[Take], reference: Reference
) -> dict[str, Any]:
    """Return counts by outcome, mode and phase, and the mean share of each dimension."""
    found, every = list(diagnosed), list(takes)
    domains = sorted({t.info.domain.value for t in every})
    return {
        "takes": len(every),
        "diagnosed": len(found),
        "outcomes": dict(Counter(t.outcome.value for t in every)),
        "modes": dict(Counter(t.mode for t in found)),
        "phases": dict(Counter(t.phase for t in found if t.phase)),
        **summarise_causes(found),
        "reference": {"name": reference.name, "takes": reference.takes},
        "domains": domains,
        "task": Counter(t.info.task for t in every).most_common(1)[0][0] if every else "",
        "sim_to_sim": Domain.SIM_TARGET.value in domains,
    }


def summarise_causes(found: Sequence[TakeDiagnosis]) -> dict[str, Any]:
    """Return what a summary says of causes: mean shares, and counts of what was named."""
    return {
        "abstained": sum(t.abstained for t in found),
        "dimensions": {
            d.value: sum(t.dimensions[d.value] for t in found) / max(len(found), 1)
            for d in GapDimension
        },
        "none": sum(t.none for t in found) / max(len(found), 1),
        "top": dict(Counter(t.top for t in found if t.top)),
        "attributed_by": dict(Counter(t.by for t in found if t.by)),
    }

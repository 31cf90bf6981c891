"""Laws of evidence: what a diagnosis had is named, and what it couldn't see is never ruled out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from failure_analysis_makers import make_plan, repeated, scene_picture, successes, take

from gaploop.core.take import TRACKED_SCENE, Take
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Domain, GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.diagnosis import Diagnosis, diagnose, load_diagnosis, save_diagnosis
from gaploop.failure_analysis.reference import (
    OWN_TAKES,
    SHIPPED_FOR,
    Reference,
    TakesOrigin,
    build_reference,
    choose_reference,
    load_reference,
    save_reference,
)
from gaploop.failure_analysis.report.report import diagnosis_report
from gaploop.failure_analysis.station import (
    ACCURACY,
    NONE,
    STATIC,
    ReferenceKind,
    Tier,
    pooled,
    verdict,
    without_telemetry,
)
from gaploop.failure_analysis.views.view import TakeView

DIMENSIONS = [d.value for d in GapDimension]


def at(takes: Sequence[Take], **info: object) -> list[Take]:
    return [replace(t, info=replace(t.info, **info)) for t in takes]  # type: ignore[arg-type]


def usual(**info: object) -> Reference:
    built = build_reference(at(list(successes()), **info), "usual")
    assert built is not None
    return built


def failures(**info: object) -> list[Take]:
    bad = [take(uid=f"bad-{k}", seed=30 + k, pictures=repeated(scene_picture())) for k in range(4)]
    return at(bad, **info)


@pytest.mark.parametrize(
    ("origin", "kind"),
    [
        ({"domain": Domain.SIM, "station": "mine"}, ReferenceKind.SIMULATED),
        ({"domain": Domain.REAL, "station": "mine"}, ReferenceKind.STATION),
        ({"domain": Domain.SIM_TARGET, "station": "mine"}, ReferenceKind.STATION),
        ({"domain": Domain.REAL, "station": "other"}, ReferenceKind.GAP_FREE),
    ],
)
def test_reference_takes_are_told_apart(
    origin: dict[str, object], kind: ReferenceKind, tmp_path: Path
) -> None:
    save_reference(usual(**origin), tmp_path / "usual.json")
    found = diagnose(failures(station="mine"), load_reference(tmp_path / "usual.json"))
    assert found.summary["evidence"]["reference"] == kind
    warned = any("Warning" in line for line in found.summary["evidence"]["says"])
    assert warned == (kind is ReferenceKind.STATION)


def by_the_station_itself() -> Diagnosis:
    reference = usual(station="mine", kind=TakeKind.DEMONSTRATION)
    return diagnose(failures(station="mine"), reference)


def test_what_a_stations_own_demonstrations_hide_is_never_ruled_out() -> None:
    """Blind stations were called gap-free because their own takes looked like their own takes."""
    found = by_the_station_itself()
    hidden = set(found.summary["evidence"]["cannot_rule_out"])
    assert hidden >= {d.value for d in STATIC}
    for each in found.takes:
        assert sum(each.dimensions.values()) + each.none == pytest.approx(1.0)
        assert each.abstained
        assert min(each.dimensions[d] for d in hidden) > 0.05
    assert found.summary["station"]["named"] == []
    assert "nothing in these episodes tells the causes apart" in found.summary["station"]["says"]
    stop = make_plan(found, 50).stop
    assert "Don't collect" not in stop


def test_a_plan_says_what_to_measure_where_nothing_was_seen() -> None:
    found = by_the_station_itself()
    blank = replace(found.takes[0], dimensions=dict.fromkeys(DIMENSIONS, 0.0), none=1.0)
    nothing = replace(found, takes=(blank,) * 4)
    assert "gaploop identify --measure" in make_plan(nothing, 50).stop
    free = {**found.summary["evidence"], "cannot_rule_out": []}
    seen = replace(nothing, summary={**found.summary, "evidence": free})
    assert "nothing to put right or to collect for yet" in make_plan(seen, 50).stop


def test_every_tier_is_named_in_json_and_report(tmp_path: Path) -> None:
    scene = np.tile([0.3, 0.2, 0.0, 0.5, 0.2, 1.0, 0.0], (300, 1))
    seen = {"environment_state": scene, "environment_names": TRACKED_SCENE}
    full = [replace(t, frames=replace(t.frames, **seen)) for t in failures()]
    columns = [replace(t, telemetry=Telemetry(np.empty(0), {})) for t in failures()]
    other = usual(station="other")
    for takes, tier in ((columns, Tier.LEROBOT), (failures(), Tier.TELEMETRY), (full, Tier.SCENE)):
        found = diagnose(takes, other)
        save_diagnosis(found, tmp_path / "diagnosis.json")
        assert load_diagnosis(tmp_path / "diagnosis.json").summary["tier"] == tier
        accuracy = ACCURACY.get((tier, ReferenceKind.GAP_FREE))
        said = str(accuracy) if accuracy else "hasn't been measured"
        assert said in " ".join(found.summary["evidence"]["says"])
        page = diagnosis_report(found)
        assert f"Evidence: {tier.value}" in page
        assert found.summary["station"]["says"].split(";")[0] in page


def test_takes_without_pictures_dont_rule_out_what_only_pictures_show() -> None:
    blind = [replace(t, cameras={}) for t in failures()]
    found = diagnose(blind, usual(station="other"))
    assert {"human_behavior", "visual_domain"} <= set(found.summary["evidence"]["cannot_rule_out"])


def shares(**said: float) -> tuple[dict[str, float], float]:
    rest = (1.0 - sum(said.values())) / (10 - len(said))
    return {d: said.get(d, rest) for d in DIMENSIONS}, said.get(NONE, rest)


def test_takes_that_agree_say_more_together_than_one() -> None:
    one = pooled([shares(visual_domain=0.4)])
    many = pooled([shares(visual_domain=0.4)] * 6)
    assert one.sum() == pytest.approx(1.0)
    assert many[1] > one[1]
    # Takes of one station err together: a hundred are not a proof.
    assert pooled([shares(visual_domain=0.4)] * 100)[1] < 0.95
    # The order of takes and a take that says nothing change nothing.
    mixed = [shares(visual_domain=0.5), shares(sensor_noise=0.6), shares(visual_domain=0.7)]
    assert pooled(mixed) == pytest.approx(pooled(mixed[::-1]))


def test_no_cause_disappears_at_a_threshold() -> None:
    """At 79 % and at 81 % the same cause leads; only whether it is named differs."""
    for share in (0.79, 0.81):
        rest = dict.fromkeys(DIMENSIONS[2:], (1.0 - share) / 8)
        found = verdict({"visual_domain": share, **rest, NONE: (1.0 - share) / 8}, 5)
        assert found.leading == "visual_domain"
        assert "visual domain" in found.message
        assert found.named == (("visual_domain",) if share > 0.8 else ())


def test_nothing_is_named_without_failures() -> None:
    found = diagnose([*successes(), take(uid="stopped", outcome=Outcome.DISCARDED)])
    assert found.summary["station"]["named"] == []
    assert found.summary["station"]["leading"] == ""
    assert "Nothing failed" in found.summary["station"]["says"]


def test_frames_alone_are_not_set_against_control_rate_records() -> None:
    """Twelve takes of the cell without telemetry were called noisy at 99 %: 50 Hz against 100."""
    ours = at(list(successes(6)), robot_type=SHIPPED_FOR)
    assert choose_reference(ours).origins[0].domain is Domain.SIM
    alone = [without_telemetry(t) for t in ours]
    assert choose_reference(alone).name == OWN_TAKES


def test_weak_evidence_leads_and_names_nothing() -> None:
    """Ten takes by LeRobot's columns agreed on noise at 99 %, and it was dead time."""
    late = [take(uid=f"bad-{k}", seed=30 + k, lag_s=0.3) for k in range(5)]
    columns = [without_telemetry(t) for t in late]
    reference = build_reference([without_telemetry(t) for t in successes()], "other")
    assert reference is not None
    other = replace(reference, origins=(TakesOrigin(Domain.REAL, "other", TakeKind.ROLLOUT),))
    found = diagnose(columns, other).summary
    assert found["evidence"]["reference"] == ReferenceKind.GAP_FREE
    assert found["station"]["named"] == []
    leading = found["station"]["leading"]
    assert leading == "actuator_response"
    assert found["station"]["posterior"][leading] < 0.7


def test_seven_numbers_are_no_tracked_scene() -> None:
    """A 7-joint arm's state, copied by import, was taken for one: "lies 119283 mm from the target",
    25 of 35 takes misplaced."""
    scene = np.tile([0.3, 0.2, 0.0, 0.5, 0.2, 1.0, 0.0], (300, 1))
    [take, *_] = failures()
    for names, tracks in ((TRACKED_SCENE, True), (TRACKED_SCENE[::-1], False), ((), False)):
        frames = replace(take.frames, environment_state=scene, environment_names=names)
        assert (TakeView(replace(take, frames=frames), images=False).scene is not None) == tracks

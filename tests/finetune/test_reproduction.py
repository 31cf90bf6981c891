"""Laws of diagnosis by reproduction: costs add up, and nothing is blamed that isn't shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.journal import JournalWriter
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, SafetyReason
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.twin import Twin, TwinParameter, around_twin, save_twin
from gaploop.core.vocabulary import GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.diagnosis import TakeDiagnosis, diagnose
from gaploop.failure_analysis.station import NONE, POLICY, UNMEASURED
from gaploop.finetune.evaluate import EVALUATION_SEEDS, LONGEST_S, MAX_S, attempt_s, category
from gaploop.finetune.evaluation import Rollout
from gaploop.finetune.lerobot_policy import load_policy
from gaploop.finetune.reproduction import (
    Reproduction,
    StationFailures,
    combined,
    in_twin,
    reproduce,
    reproduced,
    reweighed,
    subsets,
)
from gaploop.scripts.cli import main

BACKLASH, CAMERA = "actuator_response.backlash", "spatial_geometry.camera_pose"
EVEN = {**{d.value: 0.1 for d in GapDimension}, NONE: 0.1}


def parameter(name: str, unit: str, value: float) -> TwinParameter:
    return TwinParameter(name, unit, 0.0, value, (0.9 * value, 1.1 * value), True, "by hand")


def twin(*mechanisms: str) -> Twin:
    return Twin("lab", "so101", tuple(parameter(f"{m}.x", "1", 1.0) for m in mechanisms))


def two_gaps() -> Twin:
    return Twin(
        "lab",
        "so101",
        (
            parameter(f"{BACKLASH}.backlash_rad", "rad", 0.09),
            parameter(f"{CAMERA}.dx_m", "m", 0.02),
        ),
    )


def cell(
    costs: Mapping[str, float], nominal: float = 0.0, n: int = 40, mode: str = "slip", seed: int = 0
) -> Callable[[tuple[str, ...]], Sequence[Rollout]]:
    """Return rollouts that fail by chance, on the same scenes: costs add up until all fail."""
    hard = np.random.default_rng(seed).permutation(n) / n

    def roll_out(mechanisms: tuple[str, ...]) -> list[Rollout]:
        failing = nominal + sum(costs[m] for m in mechanisms)
        return [
            Rollout(s, "nominal", bool(hard[s] >= failing - 1e-9), failure_mode=mode)
            for s in range(n)
        ]

    return roll_out


def station(failed: int, succeeded: int, mode: str = "slip") -> StationFailures:
    return StationFailures(failed, succeeded, (mode,) * failed, rate_known=True)


def costs(found: Reproduction) -> dict[str, float]:
    return {c.name: c.cost.value for c in found.costs}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_costs_add_up_to_the_stations_failures(count: int) -> None:
    """Exactly, whatever the cells do: saturation is shared out too."""
    rng = np.random.default_rng(3)
    names = tuple(f"{d.value}.{k}" for k, d in enumerate(GapDimension))[:count]

    def anyhow(_mechanisms: tuple[str, ...]) -> list[Rollout]:
        return [Rollout(s, "nominal", bool(rng.random() < 0.5)) for s in range(20)]

    found = reproduce(station(11, 9), twin(*names), anyhow)
    assert len(found.cells) == 2 ** len(names)
    assert sum(costs(found).values()) == pytest.approx(11 / 20)
    assert found.together == pytest.approx(0.0)
    assert all(c.cost.low <= c.cost.value <= c.cost.high for c in found.costs)


def test_of_many_mechanisms_what_is_left_over_is_told() -> None:
    names = tuple(f"actuator_response.{k}" for k in "abcdef")
    assert len(subsets(names)) == 2 + 2 * len(names)
    found = reproduce(station(20, 20), twin(*names), cell(dict.fromkeys(names, 0.08), nominal=0.02))
    assert sum(costs(found).values()) + found.together == pytest.approx(0.5)
    assert "left out" in found.how
    redundant = reproduce(
        station(38, 2), twin(*names), cell(dict.fromkeys(names, 0.5), nominal=0.0)
    )
    assert redundant.together != 0.0
    assert any("Together" in line for line in redundant.lines())


def test_a_gap_that_brings_the_failures_is_named() -> None:
    found = reproduce(station(24, 16), two_gaps(), cell({BACKLASH: 0.6, CAMERA: 0.0}))
    assert found.reproduces
    told = combined(found, EVEN, 0.5, 24)
    assert told.named == ("actuator_response",)
    assert sum(told.posterior.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("failed", "succeeded", "costs_there", "is_named"),
    [(4, 8, 0.2, True), (3, 9, 0.3, True), (10, 2, 0.2, False), (12, 0, 0.1, False)],
)
def test_few_failures_are_of_what_was_measured_if_that_brings_as_many(
    failed: int, succeeded: int, costs_there: float, is_named: bool
) -> None:
    """A moved base was measured to the millimetre, failed in 4 of 12 and in 7 of 40 in its twin,
    and wasn't named: a second gap, of which nothing was seen, had half of the probability."""
    found = reproduce(station(failed, succeeded), twin(CAMERA), cell({CAMERA: costs_there}))
    assert (combined(found, EVEN, 0.5, failed).named == ("spatial_geometry",)) == is_named


def test_both_of_a_pair_are_named() -> None:
    found = reproduce(station(30, 10), two_gaps(), cell({BACKLASH: 0.4, CAMERA: 0.35}))
    told = combined(found, EVEN, 0.5, 30)
    assert set(told.named) == {"actuator_response", "spatial_geometry"}


def test_a_policy_that_fails_in_simulation_is_its_own_cause() -> None:
    """Bad policies without any gap were blamed on the drives."""
    blame = {**dict.fromkeys(EVEN, 0.02), "actuator_response": 0.82}
    found = reproduce(station(26, 14), two_gaps(), cell({BACKLASH: 0.0, CAMERA: 0.05}, nominal=0.6))
    told = combined(found, blame, 0.75, 26)
    assert told.named == (POLICY,)
    assert costs(found)[POLICY] == pytest.approx(0.6)


def test_what_the_twin_lacks_was_not_measured() -> None:
    person = {**dict.fromkeys(EVEN, 0.05), "human_behavior": 0.55}
    found = reproduce(station(36, 4), two_gaps(), cell({BACKLASH: 0.05, CAMERA: 0.0}))
    assert found.reproduces is False
    assert "not measured" in " ".join(found.lines())
    told = combined(found, person, 0.75, 36)
    assert told.leading == "human_behavior"
    assert "actuator_response" not in told.named
    nothing_known = combined(found, EVEN, 0.0, 36)
    assert nothing_known.named == (UNMEASURED,)


def test_a_push_while_the_station_was_measured_speaks_for_people() -> None:
    """Bumps of 47° in 7 parts of a station's check, and the drives took a quarter of the blame."""
    leans = {**dict.fromkeys(EVEN, 0.05), "human_behavior": 0.3, "actuator_response": 0.2}

    def told(episodes: int) -> float:
        measured = replace(two_gaps(), fit={"others": episodes})
        found = reproduce(station(12, 0), measured, cell({BACKLASH: 0.0, CAMERA: 0.0}))
        assert any("moved beside it" in line for line in found.lines()) == (episodes > 1)
        return combined(found, leans, 0.75, 12).posterior["human_behavior"]

    assert told(0) == told(1) < 0.6  # one may be an accident
    assert told(2) == told(7) > told(0) + 0.2


def test_a_twin_that_fails_more_often_than_its_station_lacks_nothing() -> None:
    """ "Something that was not measured costs -37 points", of an object that stuck less."""
    found = reproduce(station(12, 18), two_gaps(), cell({BACKLASH: 0.98, CAMERA: 0.0}))
    assert found.reproduces is False
    said = " ".join(found.lines())
    assert "fails less often than the twin" in said
    assert "acts less there" in said
    assert "not measured" not in said


def test_a_twin_that_follows_the_failures_row_for_row_leaves_nothing_unmeasured_in_them() -> None:
    """A bus that was found in the rows wasn't named: in 8 rollouts it failed less than in 8."""
    seldom = cell({BACKLASH: 0.25}, n=8)
    by_rollouts = reproduce(station(6, 2), twin(BACKLASH), seldom)
    assert not combined(by_rollouts, EVEN, 0.5, 6).named
    followed = replace(station(6, 2), replayed=3, followed=3)
    found = reproduce(followed, twin(BACKLASH), seldom)
    assert combined(found, EVEN, 0.5, 6).named == ("actuator_response",)
    assert sum(costs(found).values()) == pytest.approx(6 / 8)
    assert "row for row" in " ".join(found.lines())
    left = reproduce(replace(followed, followed=0), twin(BACKLASH), seldom)
    assert left.leads[UNMEASURED] > by_rollouts.leads[UNMEASURED]  # something else acts in them
    never = reproduce(followed, twin(BACKLASH), cell({BACKLASH: 0.0}, n=40))
    assert never.reproduces is False
    assert never.replays == (0, 0)
    # One episode says little, and what fails by itself is still the policy's.
    once = reproduce(replace(followed, replayed=1, followed=1), twin(BACKLASH), seldom)
    assert once.leads[UNMEASURED] > found.leads[UNMEASURED]
    bad = reproduce(
        replace(followed, failed=7, succeeded=1), twin(BACKLASH), cell({BACKLASH: 0.0}, 0.75)
    )
    assert combined(bad, EVEN, 0.5, 7).named == (POLICY,)


@pytest.mark.parametrize(("failed", "succeeded"), [(2, 6), (3, 5), (4, 8)])
def test_of_failures_that_were_all_followed_nothing_is_left_to_guess(
    failed: int, succeeded: int
) -> None:
    """Both failures of a late arm were followed, and it was only leaned to, 77 %: eight rollouts
    didn't fail at all, and of two out of two a quarter was taken to be open."""
    never = cell({BACKLASH: 0.0}, n=8)
    whole = replace(station(failed, succeeded), replayed=failed, followed=failed)
    found = reproduce(whole, twin(BACKLASH), never)
    assert combined(found, EVEN, 0.5, failed).named == ("actuator_response",)
    assert found.leads[UNMEASURED] < 0.05
    # One that it doesn't follow, or that nobody replayed, may be of something else.
    for part in (
        replace(whole, followed=failed - 1),
        replace(whole, replayed=failed - 1, followed=failed - 1),
    ):
        assert reproduce(part, twin(BACKLASH), never).leads[UNMEASURED] > found.leads[UNMEASURED]
    # Without the gap it fails as often: the policy's, whatever follows.
    policy = reproduce(whole, twin(BACKLASH), cell({BACKLASH: 0.0}, failed / (failed + succeeded)))
    assert "actuator_response" not in combined(policy, EVEN, 0.5, failed).named


def test_what_nobody_measured_is_one_unknown() -> None:
    """A blur that brought most failures was outweighed by five dimensions that nobody measured."""
    found = reproduce(station(30, 10), two_gaps(), cell({BACKLASH: 0.4, CAMERA: 0.0}))
    told = combined(found, EVEN, 0.0, 30)
    unknown = sum(p for c, p in told.posterior.items() if c not in found.leads or c == UNMEASURED)
    odds = found.leads["actuator_response"] / found.leads[UNMEASURED]
    assert told.posterior["actuator_response"] / unknown >= odds


def test_a_dimension_may_hide_more_than_was_measured_of_it() -> None:
    """A round object was measured as a larger one that costs nothing: that ruled out its kind."""
    drives = {**dict.fromkeys(EVEN, 0.02), "actuator_response": 0.82}
    found = reproduce(station(36, 4), two_gaps(), cell({BACKLASH: 0.0, CAMERA: 0.0}))
    told = combined(found, drives, 0.75, 36)
    assert told.leading == "actuator_response"
    assert told.named == (UNMEASURED,)
    assert told.posterior["spatial_geometry"] < 0.05


def test_a_twin_has_nothing_that_need_not_be_there(tmp_path: Path) -> None:
    """Slipperier objects, drawn beside a right adhesion, failed in 38 of 40 scenes, not 8 of 12."""
    rng = np.random.default_rng(0)
    friction = rng.lognormal(-0.3, 0.3, 60)
    adhesion_n = 1.5 + friction + 0.05 * rng.normal(size=60)  # the probe feels their difference

    def row(name: str, nominal: float, draws: FloatArray) -> TwinParameter:
        low, middle, high = (float(q) for q in np.quantile(draws, (0.0, 0.5, 1.0)))
        ends = (min(low, nominal if nominal else low), high)
        return TwinParameter(name, "1", nominal, middle, ends, True, "probe", draws=(*draws,))

    sticky, slippery = "contact_dynamics.sticky", "contact_dynamics.slippery"
    twin = Twin("desk", "so101", (
        row(f"{sticky}.adhesion_n", 0.0, adhesion_n),
        row(f"{slippery}.friction_factor", 1.0, friction),
    ))  # fmt: skip
    assert twin.mechanisms == (sticky,)
    parameters, left_open, _ = in_twin(tmp_path, twin, twin.mechanisms, ["base", "pick_place"])
    assert parameters.keys() == {sticky}
    assert left_open is not None
    (drawn,) = left_open.ranges
    assert 1.8 < drawn.low < 2.5 < drawn.high  # what goes with the nominal friction
    assert len(around_twin(twin).ranges) == 2  # who trains for a station wants all that it may be


def test_failures_of_another_kind_are_not_reproduced() -> None:
    """As often as at the station, but for other reasons."""
    rolls = cell({BACKLASH: 0.5, CAMERA: 0.0}, mode="slip")
    same = reproduce(station(20, 20, "slip"), two_gaps(), rolls)
    other = reproduce(station(20, 20, "timeout"), two_gaps(), rolls)
    assert same.reproduces
    assert other.reproduces is False
    assert other.rate_p == same.rate_p
    assert combined(other, EVEN, 0.5, 20).posterior["actuator_response"] < 0.5


def test_what_would_fail_far_more_often_than_the_station_is_not_its_cause() -> None:
    """A person had pushed what the probe gripped: "slippery" was named where 9 of 12 went well."""
    rolls = cell({BACKLASH: 0.95, CAMERA: 0.0})
    wrong = combined(reproduce(station(3, 9), two_gaps(), rolls), EVEN, 0.5, 3)
    assert "actuator_response" not in wrong.named
    assert UNMEASURED in wrong.named
    assert combined(reproduce(station(10, 2), two_gaps(), rolls), EVEN, 0.5, 10).named == (
        "actuator_response",
    )


def test_a_right_twin_is_seldom_said_not_to_reproduce() -> None:
    """Both tests together err in about 5 %."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(50):
        n = 20
        failed = int(rng.binomial(n, 0.5))
        if not failed:
            continue
        modes = tuple(rng.choice(["slip", "timeout"], failed))
        there = StationFailures(failed, n - failed, modes, True)
        won, mode = rng.random(40) < 0.5, rng.choice(["slip", "timeout"], 40)
        rollouts = [
            Rollout(s, "nominal", bool(won[s]), failure_mode=str(mode[s])) for s in range(40)
        ]
        found = reproduce(there, twin(), lambda _cell, rolls=rollouts: rolls)  # type: ignore[misc]
        wrong += found.reproduces is False
    assert wrong <= 6


def test_without_a_rate_only_modes_are_compared() -> None:
    """Who recorded only failures doesn't know how often it fails."""
    only = StationFailures(12, 0, ("slip",) * 12, rate_known=False)
    found = reproduce(only, two_gaps(), cell({BACKLASH: 0.5, CAMERA: 0.0}))
    assert found.rate_p is None
    assert found.station is None
    assert found.reproduces
    assert UNMEASURED not in costs(found)
    assert "isn't known" in " ".join(found.lines())
    assert combined(found, EVEN, 0.5, 12).named == ("actuator_response",)


PUSHED = {**dict.fromkeys(EVEN, 0.02), "human_behavior": 0.82}


@pytest.mark.members(18)
@pytest.mark.parametrize("kind", list(TakeKind))
@pytest.mark.parametrize("passive", [EVEN, PUSHED], ids=["even", "people"])
@pytest.mark.parametrize("mechanisms", [(), (BACKLASH,), (BACKLASH, CAMERA)], ids=len)
@pytest.mark.parametrize("n", [1, 12, 40])
def test_a_policy_that_does_well_in_simulation_is_never_blamed(
    kind: TakeKind, passive: Mapping[str, float], mechanisms: tuple[str, ...], n: int
) -> None:
    """0 of 10 of takes of unknown kind read "the policy itself 100 %", beside 0 of 12 nominal.

    With kind=rollout the same takes read "not measured 100 %".
    """
    failed = Outcome.FAILURE
    takes = [plain_take(str(uid), kind, failed) for uid in range(10)]
    there = StationFailures.of(takes, "so101", "lerobot")
    if kind is TakeKind.DEMONSTRATION:
        assert not there.failed
        return
    assert (there.failed, there.succeeded) == (10, 0)
    assert there.rate_known is (kind is TakeKind.ROLLOUT)
    rolls = cell(dict.fromkeys(mechanisms, 0.0), n=n, mode=there.modes[0])
    found = reproduce(there, twin(*mechanisms), rolls)
    told = combined(found, passive, 0.75, 10)
    assert POLICY not in told.named
    assert told.leading != POLICY
    assert told.posterior[POLICY] < passive[NONE]
    assert found.leads[UNMEASURED] > 0.5
    assert found.shares[UNMEASURED] > 0.5
    if passive is PUSHED:
        assert told.leading == "human_behavior"
    bad = reproduce(there, twin(*mechanisms), cell(dict.fromkeys(mechanisms, 0.0), 1.0, n=40))
    assert combined(bad, EVEN, 0.5, 10).leading == POLICY


def plain_take(uid: str, kind: TakeKind, outcome: Outcome) -> Take:
    n = 20
    info = TakeInfo(uid, kind=kind, fps=10, joint_names=("a",), robot_type="so101_follower")
    nothing = np.zeros((n, 6))
    t_s = np.arange(n) / 10
    frames = replace(Frames.empty(), t_s=t_s, state=nothing, action=nothing, sent=nothing)
    return Take(info, outcome, frames, Telemetry(np.empty(0), {}))


def test_a_failure_that_shows_nothing_takes_its_stations_cause() -> None:
    """Of another simulation: "10 of 10 have no named cause" under a station that was named."""
    takes = [plain_take(str(uid), TakeKind.ROLLOUT, Outcome.FAILURE) for uid in range(10)]
    alone = diagnose(takes)
    assert all(take.failed and take.abstained for take in alone.takes)
    there = StationFailures.of(takes, "", "lerobot")
    found = reproduce(there, twin(BACKLASH), cell({BACKLASH: 1.0}))
    told = reweighed(alone.takes, found, combined(found, EVEN, 0.75, 10))
    assert {take.named for take in told} == {("actuator_response",)}


def test_what_cannot_be_reproduced_says_so() -> None:
    """Rollouts of the nominal simulation that aren't there, and failures that aren't rollouts."""
    takes = [plain_take(str(uid), TakeKind.DEMONSTRATION, Outcome.FAILURE) for uid in range(6)]
    found = diagnose(takes)
    with pytest.raises(UnusableInputError, match="--n=0"):
        reproduced(found, takes, twin(), "base", Path("unused"), n=0, workers=1)
    same = reproduced(found, takes, twin(), "base", Path("unused"), n=1, workers=1)
    assert "kind" in same.summary["not_reproduced"]
    won = [replace(take, outcome=Outcome.SUCCESS) for take in takes]
    nothing = reproduced(diagnose(won), won, twin(), "base", Path("unused"), n=1, workers=1)
    assert "not_reproduced" not in nothing.summary
    assert not nothing.summary["station"]["named"]


def test_few_failures_test_nothing_and_none_reproduce_nothing() -> None:
    few = reproduce(StationFailures(2, 0, ("slip",) * 2, False), twin(), cell({}, nominal=0.5))
    assert few.reproduces is None
    with pytest.raises(UnusableInputError, match="Nothing failed"):
        reproduce(station(0, 10), two_gaps(), cell({}))


def told(uid: str, none: float, **shares: float) -> TakeDiagnosis:
    even = (1.0 - none - sum(shares.values())) / (9 - len(shares))
    every = {d.value: shares.get(d.value, even) for d in GapDimension}
    return TakeDiagnosis(uid, None, "slip", "transport", every, none, True, ())


def test_takes_get_the_stations_causes_and_keep_what_they_show() -> None:
    """Plans go by takes: by the station's own columns those showed nothing."""
    found = reproduce(station(30, 10), two_gaps(), cell({BACKLASH: 0.6, CAMERA: 0.15}))
    verdict = combined(found, EVEN, 0.5, 30)
    blank, camera = told("blank", 0.1), told("camera", 0.02, spatial_geometry=0.9)
    first, second = reweighed([blank, camera], found, verdict)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    for take in (first, second):
        assert sum(take.dimensions.values()) + take.none == pytest.approx(1.0)
    assert first.top == "actuator_response"
    assert second.leaning == "spatial_geometry"
    bad = reproduce(station(30, 10), two_gaps(), cell({BACKLASH: 0.0, CAMERA: 0.0}, nominal=0.75))
    (itself,) = reweighed([blank], bad, combined(bad, EVEN, 0.5, 30))
    assert itself.abstained
    assert itself.none > 0.5


def test_where_the_policy_fails_as_often_of_itself_no_episode_has_a_clear_cause() -> None:
    """A policy failed in half of the nominal scenes: 12 of 12 episodes were blamed on the drive."""
    weak = reproduce(station(12, 0), twin(BACKLASH), cell({BACKLASH: 0.45}, nominal=0.5))
    verdict = combined(weak, EVEN, 0.5, 12)
    assert set(verdict.named) == {POLICY, "actuator_response"}
    takes = reweighed([told(str(uid), 0.1) for uid in range(12)], weak, verdict)
    assert all(take.abstained and take.leaning == "actuator_response" for take in takes)


def test_what_nobody_can_measure_keeps_what_all_takes_lean_to() -> None:
    """A plan was empty where people had pushed in every take: nine causes had a tenth each."""
    take = told("pushed", 0.05, human_behavior=0.7)
    passive = {**take.dimensions, NONE: take.none}
    found = reproduce(station(30, 10), twin(), cell({}))
    (again,) = reweighed([take], found, combined(found, passive, 0.75, 30))
    assert again.leaning == GapDimension.HUMAN_BEHAVIOR.value
    assert again.dimensions[GapDimension.HUMAN_BEHAVIOR.value] > 0.3


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six rollouts of the shipped base on a cell with a strong dead time."""
    folder = tmp_path_factory.mktemp("station") / "journal"
    folder.mkdir()
    rig = embedded_rig(parameters={"actuator_response.latency": {"latency_s": 0.3}})
    leader = PolicyLeader(load_policy("base"), rig.follower, rig.fps, rig.control_hz)
    for seed in range(6):
        rig.reset(EVALUATION_SEEDS + seed)
        header = rig.header(TakeInfo("", "Put the cube on the disc", kind=TakeKind.ROLLOUT))
        with JournalWriter(folder, header) as writer:
            run_take(rig, leader, seed=EVALUATION_SEEDS + seed, max_s=MAX_S, writer=writer)
    rig.close()
    return folder


@pytest.mark.slow
def test_from_takes_and_a_twin_to_a_verdict(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """End to end, and what was rolled out isn't rolled out again."""
    path, out = tmp_path / "station_twin.yaml", tmp_path / "out"
    measured = parameter("actuator_response.latency.latency_s", "s", 0.3)
    save_twin(Twin("lab", "so101", (measured,)), path)
    command = ["diagnose", str(journal), f"--twin={path}", "--pictures=false", "--n=6"]
    command += ["--workers=1", f"--output_dir={out}", "--json"]
    assert main(command) == 2
    assert "--policy.path" in capsys.readouterr().err
    assert main([*command, "--policy.path=base"]) == 0
    first = json.loads(capsys.readouterr().out)["summary"]
    assert first["tier"] == "twin"
    assert first["station"]["named"] == ["actuator_response"]
    assert first["reproduction"]["reproduces"] is not False
    assert "Reproduced in the station" in (out / "report.html").read_text()
    (cells := list((out / "reproduction").iterdir())).sort()
    written = {c: (c / "rollouts.csv").stat().st_mtime_ns for c in cells}
    assert main([*command, "--policy.path=base"]) == 0
    again = json.loads(capsys.readouterr().out)["summary"]
    assert again["reproduction"] == first["reproduction"]
    assert written == {c: (c / "rollouts.csv").stat().st_mtime_ns for c in cells}


def test_modes_are_told_by_no_more_than_the_station_has() -> None:
    from gaploop.collect.journal import Recorder
    from gaploop.finetune.evaluate import MemoryTake

    rig = embedded_rig()
    memory = MemoryTake(rig)
    recorder = Recorder(memory, rig.follower)
    run_take(rig, rig.scripted_leader(0), seed=0, max_s=1.0, sinks=(recorder,))
    take = memory.take(Outcome.FAILURE)
    rig.close()
    for sees in ("lerobot", "telemetry", "scene"):
        mode, phase = category(take, sees)
        assert mode
        assert isinstance(phase, str)
    stopped = np.full(len(take.frames), int(SafetyReason.TRIPPED))
    tripped = replace(take, frames=replace(take.frames, safety=stopped))
    rows = replace(take.frames, sent=take.frames.action, safety=0 * stopped, camera_age_s={})
    plain = replace(take, frames=rows, telemetry=Telemetry(np.empty(0), {}))
    # Incident: a trip was told of rollouts in the twin and, of the station's plain columns, wasn't.
    assert category(tripped, "lerobot") == category(plain, "lerobot")
    assert category(tripped, "telemetry")[0] == "operator_stop"


def test_a_policy_tries_in_the_twin_for_as_long_as_at_the_station() -> None:
    def lasting(duration_s: float, kind: TakeKind = TakeKind.ROLLOUT) -> Take:
        take = plain_take("a", kind, Outcome.FAILURE)
        frames = replace(take.frames, t_s=np.linspace(0.0, duration_s, len(take.frames)))
        return replace(take, frames=frames)

    assert attempt_s([lasting(3.0), lasting(9.98)], "so101") == 10.0
    assert attempt_s([lasting(3.0), lasting(20.0, TakeKind.DEMONSTRATION)], "so101") == MAX_S
    assert attempt_s([lasting(300.0)], "so101") == LONGEST_S

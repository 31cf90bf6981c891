"""Parts of an evaluation: factors, what is kept, what is compared, what went wrong."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.collect.campaign import Quota
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import Rig, embedded_rig
from gaploop.collect.take import record_takes
from gaploop.core import labels
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.journal_format import LABELS, read_journal
from gaploop.core.labels import LabelEvent
from gaploop.core.station import SIM_STATION, Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import INSTRUCTION, SEEN, Domain, Outcome, TakeKind
from gaploop.failure_analysis.diagnosis import diagnose
from gaploop.finetune.evaluate import (
    EVALUATION_SEEDS,
    TAKEN_OVER,
    condition_name,
    evaluate,
    recorded,
    roll_out,
)
from gaploop.finetune.evaluation import ROLLOUTS, SETTINGS, Rollout, RolloutLog, drops, summarise
from gaploop.finetune.factors import (
    FACTORS,
    factor_of,
    grid_cell,
    levels,
    positions_png,
    settings,
    success_png,
    words,
)
from gaploop.finetune.lerobot_policy import load_policy, policy_id
from gaploop.finetune.workers import run_jobs
from gaploop.sim.catalogue import INSTRUCTIONS, wording
from gaploop.sim.conditions import parse_conditions

SHORT_S = 0.2
PNG = b"\x89PNG"


# -- factors ------------------------------------------------------------------------------------


def test_every_level_of_every_factor_can_be_set_up_in_the_cell_and_has_a_name() -> None:
    tried = settings(["all"], reads=True)
    assert tried[0] == {}
    assert {next(iter(s)) for s in tried[1:]} == set(FACTORS)
    for setting in tried:
        if INSTRUCTION in setting:
            continue
        SIM_STATION.check_conditions(setting, "--factors")
        parse_conditions(setting)
    names = [condition_name(s) for s in tried]
    assert len({words(n) for n in names}) == len(set(names)) == len(tried)
    assert [factor_of(n, "nominal") for n in names[1:]] == [next(iter(s)) for s in tried[1:]]


def test_how_the_task_is_worded_is_a_factor_of_policies_that_read() -> None:
    assert INSTRUCTION not in {name for setting in settings(["all"]) for name in setting}
    for asked in (INSTRUCTION, {INSTRUCTION: "unseen"}):
        with pytest.raises(UnusableInputError, match="read none"):
            settings([asked])
    own = {INSTRUCTION: "unseen", "distractors": 2}
    assert settings([own], {"lighting": "dim"}, reads=True)[1:] == [{"lighting": "dim", **own}]
    for task, told in INSTRUCTIONS.items():
        assert wording(task, SEEN, 3) == told
        known = set(told.lower().split()) - {"the", "on", "one"}
        for seed in range(9):
            assert known & set(wording(task, "paraphrased", seed).lower().split())
            assert not known & set(wording(task, "unseen", seed).lower().split())


def test_a_factor_is_varied_from_the_base() -> None:
    base = {"lighting": "dim", "distractors": 2}
    tried = settings(["distractors"], base)
    assert tried == [base, *({**base, "distractors": n} for n in (2, 4, 8))]
    name, usual = condition_name(tried[2]), condition_name(base)
    assert (factor_of(name, usual), words(name, usual)) == ("distractors", "4 distractors")
    assert grid_cell("grid_cell=[0, 2], lighting=dim", "lighting=dim") == (0, 2)


def test_a_station_is_varied_over_what_it_defines() -> None:
    lab = Station("lab", conditions={"lighting": ("ceiling", "window")}, grid=(2, 2))
    assert levels("lighting", lab) == ("window",)
    assert len(levels("grid_cell", lab)) == 4
    with pytest.raises(UnusableInputError, match="defines no background but the usual one"):
        settings(["background"], station=lab)
    with pytest.raises(GaploopError, match="Did you mean 'lighting'"):
        settings(["lightning"], station=lab)
    tried = {k for s in settings(["all"], station=lab) for k in s}
    assert tried == {"lighting", "distractors", "camera_pose", "table_height", "grid_cell"}


# -- what each setting costs --------------------------------------------------------------------


def rollouts(condition: str, won: list[bool]) -> list[Rollout]:
    return [Rollout(seed, condition, w) for seed, w in enumerate(won)]


outcomes = st.lists(st.booleans(), min_size=1, max_size=40)


@hypothesis.settings(max_examples=15, deadline=None)
@given(base=outcomes, other=outcomes, paired=st.booleans())
def test_a_drop_lies_in_its_interval_and_turns_round_with_its_sides(
    base: list[bool], other: list[bool], paired: bool
) -> None:
    there = summarise(rollouts("nominal", base) + rollouts("x=1", other), paired=paired)
    back = summarise(there.outcomes, base="x=1", paired=paired)
    (one,), (two,) = drops(there), drops(back)
    assert -1 <= one.difference.low <= one.difference.value <= one.difference.high <= 1
    assert one.difference.value == pytest.approx(-two.difference.value)
    assert one.p == pytest.approx(two.p)
    assert one.p_family >= one.p - 1e-12
    assert one.pairs == (min(len(base), len(other)) if paired else 0)


def test_many_settings_that_change_nothing_cost_nothing() -> None:
    """One setting of many looks costly by chance: alone it would be called so."""
    lucky = [True] * 14 + [False] * 6
    same = [r for n in range(20) for r in rollouts(f"x={n}", [True] * 20)]
    every = [*rollouts("nominal", [True] * 20), *rollouts("y=1", lucky), *same]
    found = {d.condition: d for d in drops(summarise(every))}
    assert found["y=1"].p < 0.05
    assert {d.verdict for d in found.values()} == {"not shown"}
    worse = [*rollouts("nominal", [True] * 20), *rollouts("y=1", [False] * 20), *same]
    (first, *rest) = drops(summarise(worse))
    assert (first.condition, first.verdict, first.lost) == ("y=1", "costs", 20)
    assert {d.verdict for d in rest} == {"not shown"}


def test_without_a_base_nothing_is_compared() -> None:
    assert drops(summarise(rollouts("x=1", [True]))) == ()


# -- what is kept -------------------------------------------------------------------------------


def test_an_evaluation_that_was_stopped_goes_on(tmp_path: Path) -> None:
    given_: dict[str, Any] = {"workers": 1, "max_s": SHORT_S}
    given_ |= {"conditions": [{}, {"distractors": 2}]}
    whole = evaluate("base", 6, **given_)

    def stop(done: object) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate("base", 6, folder=tmp_path, on_rollouts=stop, **given_)
    kept = len((tmp_path / ROLLOUTS).read_text().splitlines()) - 1
    assert 0 < kept < 12
    with (tmp_path / ROLLOUTS).open("a") as stream:
        stream.write("5,nominal,Tr")  # what a kill may leave
    told = list[int]()
    given_ |= {"folder": tmp_path, "on_rollouts": lambda done: told.append(len(done))}
    assert evaluate("base", 6, **given_) == whole
    assert told[0] == kept
    assert sum(told) == 12
    told.clear()
    assert evaluate("base", 6, **given_) == whole
    assert told == [12], "nothing is rolled out twice"


def test_a_folder_holds_one_policy_in_one_cell(tmp_path: Path) -> None:
    RolloutLog(tmp_path, {"policy": "a", "gaps": {}}).add([Rollout(0, "nominal", True)])
    with pytest.raises(UnusableInputError, match="with policy a; now it is policy b"):
        RolloutLog(tmp_path, {"policy": "b", "gaps": {}})
    (tmp_path / SETTINGS).unlink()
    with pytest.raises(UnusableInputError, match="nobody knows what was rolled out"):
        RolloutLog(tmp_path, {"policy": "a", "gaps": {}})


any_text = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=20)


@hypothesis.settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    condition=any_text,
    success=st.booleans(),
    duration_s=st.floats(0, 1e6),
    reason=any_text,
)
def test_what_is_written_down_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    condition: str,
    success: bool,
    duration_s: float,
    reason: str,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    said = Rollout(seed, " ".join(condition.split()), success, duration_s, " ".join(reason.split()))
    RolloutLog(folder, {}).add([said])
    RolloutLog(folder, {}).add([Rollout(seed + 1, "x", False)])
    assert list(RolloutLog(folder, {}).held.values()) == [said, Rollout(seed + 1, "x", False)]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    RolloutLog(tmp_path, {}).add([Rollout(0, "nominal", True)])
    with (tmp_path / ROLLOUTS).open("a") as stream:
        stream.write("5,nominal\n")
    with pytest.raises(UnusableInputError, match="line 3: not a rollout"):
        RolloutLog(tmp_path, {})


# -- what went wrong ----------------------------------------------------------------------------

BLIND = {"visual_domain.exposure": 1.0}
DARK = 1
"""The seed draws darkness: the tracker finds nothing, and the policy fails in every scene."""


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rollouts of the base that fail, recorded; the second by a person's word went well."""
    folder = tmp_path_factory.mktemp("recorded") / "journal"
    policy = load_policy("base")

    def leader(rig: Rig, seed: int) -> PolicyLeader:
        del seed
        return PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)

    quotas = [Quota(2, conditions={"lighting": "dim"}), Quota(1)]
    record_takes(
        folder,
        TakeInfo("", "cube", kind=TakeKind.ROLLOUT, policy=policy_id("base")),
        quotas,
        lambda c: embedded_rig(gaps=BLIND, gap_seed=DARK, conditions=c),
        leader,
        max_s=2.0,
        seed=EVALUATION_SEEDS,
    )
    second = list(read_journal(folder))[1].info.uid
    labels.append(folder / LABELS, LabelEvent(second, "outcome", "success", "ana", "operator"))
    return folder


def test_a_rollout_fails_by_the_name_that_diagnosis_gives_the_recorded_one(journal: Path) -> None:
    policy = load_policy("base")
    with contextlib.closing(
        embedded_rig(gaps=BLIND, gap_seed=DARK, conditions={"lighting": "dim"})
    ) as rig:
        (rolled,) = roll_out(rig, policy, [0], "lighting=dim", 2.0)
    take = next(iter(read_journal(journal)))
    (found,) = diagnose([take], images=False).takes
    assert not rolled.success
    assert (rolled.failure_mode, rolled.phase) == (found.mode, found.phase)
    assert rolled.duration_s == pytest.approx(take.duration_s, abs=0.03)
    assert rolled.category


def test_recorded_rollouts_are_counted_by_what_was_set_up(journal: Path) -> None:
    found = recorded(journal)[0]
    assert {c: (r.successes, r.trials) for c, r in found.by_condition.items()} == {
        "nominal": (0, 1),
        "lighting=dim": (1, 2),
    }
    assert (found.domain, found.policy) == (Domain.SIM_TARGET, policy_id("base"))
    assert not found.paired
    assert [d.pairs for d in drops(found)] == [0]
    failed = [r for r in found.outcomes if not r.success]
    assert all(r.uid and r.failure_mode for r in failed)
    with pytest.raises(UnusableInputError, match="3 of another policy"):
        recorded(journal, "sha256:0123456789abcdef")


def test_what_a_person_finished_is_no_success(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = list(read_journal(journal))
    assert takes[1].outcome is Outcome.SUCCESS
    takes[1].frames.intervention[-5:] = True
    monkeypatch.setattr("gaploop.finetune.evaluate.load_takes", lambda _folder: iter(takes))
    found = recorded(journal)[0]
    assert found.successes == 0
    assert TAKEN_OVER in {r.reason for r in found.outcomes}


# -- pictures, Ray ------------------------------------------------------------------------------


def test_pictures_are_drawn_of_what_was_varied() -> None:
    names = [condition_name(s) for s in settings(["all"])]
    found = summarise([r for n in names for r in rollouts(n, [True, False])])
    assert success_png(found, drops(found)).startswith(PNG)
    assert (positions_png(found) or b"").startswith(PNG)
    plain = summarise(rollouts("nominal", [True]))
    assert success_png(plain, ()).startswith(PNG)
    assert positions_png(plain) is None


def test_without_ray_its_option_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it isn't installed
    with pytest.raises(UnusableInputError, match=r"pip install 'gaploop\[ray\]'"):
        list(run_jobs(str, [1], 1, "auto"))


class TaskError(Exception):
    """As Ray has it: what a task raised, with its cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("task failed")
        self.cause = cause


class Cluster:
    """The part of Ray that is used, in this process; the last job is done first."""

    exceptions = types.SimpleNamespace(RayTaskError=TaskError, RayError=TaskError)

    def __init__(self) -> None:
        self.up = False

    def init(self, address: str, **_options: object) -> None:
        if address == "auto":
            raise ConnectionError("no cluster\nat all")
        self.up = True

    def remote(self, **_options: object) -> Callable[..., Any]:
        return lambda work: types.SimpleNamespace(remote=lambda job: (work, job))

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def wait(self, waiting: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return waiting[-num_returns:], waiting[:-num_returns]

    def get(self, task: tuple[Callable[[Any], Any], Any]) -> Any:
        try:
            return task[0](task[1])
        except Exception as error:
            raise TaskError(error) from error

    def shutdown(self) -> None:
        self.up = False


def refuse(_job: object) -> None:
    raise UnusableInputError("no such task")


def test_a_cluster_is_given_every_job_and_left_whatever_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    assert sorted(run_jobs(str, [3, 1, 2], 1, "local")) == ["1", "2", "3"]
    assert not cluster.up
    with pytest.raises(UnusableInputError, match="no such task"):
        list(run_jobs(refuse, [1], 1, "local"))
    with pytest.raises(GaploopError, match="division by zero"):
        list(run_jobs(lambda n: 1 / n, [0], 1, "local"))
    assert not cluster.up
    with pytest.raises(UnusableInputError, match=r"no Ray cluster there \(no cluster at all\)"):
        list(run_jobs(str, [1], 1, "auto"))


@pytest.mark.slow
def test_a_cluster_gives_what_one_process_gives() -> None:
    pytest.importorskip("ray")
    here = evaluate("base", 6, workers=1, max_s=SHORT_S)
    assert evaluate("base", 6, max_s=SHORT_S, ray="local") == here
    with pytest.raises(GaploopError, match="no Ray cluster there"):
        evaluate("base", 1, ray="auto")

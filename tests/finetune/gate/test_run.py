"""The gate as a whole, with made-up attempts: it stops, goes on, keeps secrets, and decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.suite import Rules, Suite, SuiteTask
from gaploop.core.vocabulary import Phase
from gaploop.finetune.evaluation import evidence
from gaploop.finetune.gate.attempts import StationAttempts
from gaploop.finetune.gate.evidence import make_design
from gaploop.finetune.gate.folder import (
    BLOCK,
    OPENED,
    OUTCOMES,
    SEALED,
    SIDES,
    AttemptResult,
    Contest,
    GateAttempt,
    GateFolder,
    attempts,
    only_gate,
    seal,
)
from gaploop.finetune.gate.judge import (
    HARDWARE,
    Answer,
    Outcomes,
    judge_hardware,
    judge_sim,
    promotions,
)
from gaploop.finetune.gate.judge import StageAnswer as Stage
from gaploop.finetune.gate.run import Gate, plan, run_gate

CONTEST = Contest("sha256:a", "sha256:b", "s")
TWO = (
    SuiteTask("reach", dimension="visual_domain", min_pass_rate=0.5),
    SuiteTask("push", dimension="contact_dynamics", min_pass_rate=0.5),
)
SUITE = Suite("s", TWO, Rules(max_pairs=400, gain=0.2))

type Made = Callable[[str, GateAttempt], AttemptResult]


def made(baseline: Sequence[float], candidate: Sequence[float], until: int = 10**9) -> Made:
    """Return attempts that succeed at given rates, task by task; Ctrl-C comes at `until`."""
    rates = {"baseline": baseline, "candidate": candidate}

    def attempt(stage: str, turn: GateAttempt) -> AttemptResult:
        if turn.number == until:
            raise KeyboardInterrupt
        lot = np.random.default_rng([turn.scene, turn.number]).random()
        return AttemptResult(stage, turn.number, bool(lot < rates[turn.side][turn.task]))

    return attempt


def decide(path: Path, attempts: Made, suite: Suite = SUITE, **changes: object):  # type: ignore[no-untyped-def]
    path.mkdir(exist_ok=True)
    folder = GateFolder(path, CONTEST, 4, suite.rules.fixes_phase)
    gate = replace(Gate(suite, {}, station=attempts), **changes)  # type: ignore[arg-type]
    return run_gate(gate, folder, make_design(suite.rules, len(suite.tasks)))


def test_a_better_candidate_is_promoted_and_a_worse_one_is_not(tmp_path: Path) -> None:
    good = decide(tmp_path / "good", made((0.5, 0.5), (0.95, 0.95)))
    assert (good.verdict, good.verdict.exit_code) == (Answer.PROMOTE, 0)
    bad = decide(tmp_path / "bad", made((0.8, 0.8), (0.4, 0.4)))
    assert (bad.verdict, bad.verdict.exit_code) == (Answer.REJECT, 1)
    assert good.not_run == {
        "sim": "the suite names no sim_tasks",
        "canary": "no --reports of a fleet",
        "full": "no --reports of a fleet",
    }
    assert bad.not_run["canary"] == "hardware didn't pass"


def test_a_candidate_of_one_station_isnt_judged_in_nominal_simulation(tmp_path: Path) -> None:
    """Incident: each candidate that a plan had recalibrated was rejected before its station."""
    suite = replace(SUITE, sim_tasks=("pick_place",))
    better = made((0.5, 0.5), (0.95, 0.95))
    result = decide(tmp_path / "gate", better, suite, of_station=True)
    assert result.verdict is Answer.PROMOTE
    assert "recalibrated" in result.not_run["sim"]
    with pytest.raises(UnusableInputError, match="no stage is left"):
        decide(tmp_path / "sim", better, suite, of_station=True, last="sim")


def test_running_out_of_pairs_is_no_answer(tmp_path: Path) -> None:
    short = replace(SUITE, rules=replace(SUITE.rules, max_pairs=6))
    result = decide(tmp_path / "short", made((0.5, 0.5), (0.5, 0.5)), short)
    assert (result.verdict, result.verdict.exit_code) == (Answer.INCONCLUSIVE, 3)
    assert not (tmp_path / "short" / OPENED).exists()


@pytest.mark.parametrize("until", [1, 7, 30])
def test_a_gate_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path: Path, until: int) -> None:
    rates = (0.5, 0.5), (0.9, 0.9)
    whole = decide(tmp_path / "whole", made(*rates))
    with pytest.raises(KeyboardInterrupt):
        decide(tmp_path / "cut", made(*rates, until=until))
    kept = (tmp_path / "cut" / OUTCOMES).read_text().splitlines()
    assert len(kept) == until
    again = decide(tmp_path / "cut", made(*rates))
    assert again.to_json() == whole.to_json()
    after = (tmp_path / "cut" / OUTCOMES).read_text().splitlines()
    assert after[:until] == kept


def test_slips_that_were_taken_back_change_nothing_but_their_count(tmp_path: Path) -> None:
    """Also when read from the disk: what the attempt before was is kept with the next one."""
    honest, meant = made((0.5, 0.5), (0.9, 0.9)), [""]

    def slips(stage: str, turn: GateAttempt) -> AttemptResult:
        said = honest(stage, turn)
        if turn.number % 7 == 0:
            meant.append("y" if said.success else "n")
            return replace(said, success=not said.success)
        return replace(said, before=meant[-1] if turn.number % 7 == 1 else "")

    (clean,) = decide(tmp_path / "clean", honest).stages
    result = decide(tmp_path / "slips", slips)
    (stage,) = result.stages
    assert sum(stage.taken_back.values()) == len(range(0, 2 * stage.pairs, 7))
    assert replace(stage, taken_back=clean.taken_back) == clean
    assert not any(clean.taken_back.values())
    assert decide(tmp_path / "slips", made((0.5,), (0.5,), until=0)).to_json() == result.to_json()


def test_deciding_again_makes_no_attempt(tmp_path: Path) -> None:
    """Nobody gets another verdict by trying once more."""
    first = decide(tmp_path / "g", made((0.5, 0.5), (0.95, 0.95)))
    again = decide(tmp_path / "g", made((0.5, 0.5), (0.0, 0.0), until=0))
    assert again.to_json() == first.to_json()


def test_a_folder_holds_one_gate(tmp_path: Path) -> None:
    GateFolder(tmp_path, CONTEST, seed=4)
    with pytest.raises(UnusableInputError, match="another candidate"):
        GateFolder(tmp_path, replace(CONTEST, candidate="sha256:c"))
    with pytest.raises(UnusableInputError, match="another --seed"):
        GateFolder(tmp_path, CONTEST, seed=5)
    assert GateFolder(tmp_path, CONTEST).seed == 4


def test_a_declared_fix_that_is_not_shown_ends_early_and_taken_out_the_gate_goes_on(
    tmp_path: Path,
) -> None:
    honest = made((0.5, 0.5), (0.5, 0.5))

    def attempt(stage: str, turn: GateAttempt) -> AttemptResult:
        said = honest(stage, turn)
        return replace(said, phase="" if said.success else "grasp")

    declared = replace(SUITE, rules=replace(SUITE.rules, fixes_phase="approach"))
    whole = decide(tmp_path / "whole", attempt)
    early = decide(tmp_path / "g", attempt, declared)
    assert early.verdict is Answer.INCONCLUSIVE
    assert early.stages[0].answer is Stage.UNDECIDED
    assert "declared fix not shown" in early.message
    assert early.stages[0].pairs < whole.stages[0].pairs
    assert not (tmp_path / "g" / OPENED).exists()
    assert decide(tmp_path / "g", made((0,), (0,), until=0), declared).to_json() == early.to_json()
    assert decide(tmp_path / "g", attempt).to_json() == whole.to_json()
    for phase in ("approach", "place"):  # what wasn't declared from the start to the end
        with pytest.raises(UnusableInputError, match="wasn't declared before the first attempt"):
            GateFolder(tmp_path / "g", CONTEST, fixes_phase=phase)


def test_a_declaration_only_ever_ends_a_gate_earlier() -> None:
    """Whatever the phases: it never promotes, nor rejects, what would not have been."""
    rng = np.random.default_rng(3)
    rates = rng.random((300, 1, 2, 2))  # any two policies
    success = rng.random((300, 200, 2, 2)) < rates
    phase = np.where(success, 5.0, rng.integers(0, 5, success.shape))
    seen = Outcomes(success, np.zeros_like(success), phase)
    declared = replace(SUITE, rules=replace(SUITE.rules, fixes_phase="grasp"))
    design = plan(SUITE)
    (one, before), (other, after) = (promotions(seen, s, design.margin) for s in (SUITE, declared))
    assert (other <= one).all()
    assert (after <= before).all()
    assert ((other == one) | (after < before)).all()
    assert (after < before).any()
    for n in np.flatnonzero(after < before)[:8]:
        each = Outcomes(success[n], seen.safety[n], phase[n])
        assert judge_hardware(each, declared, design).answer is Stage.UNDECIDED


def test_a_phase_that_nobody_knows_speaks_for_the_candidate() -> None:
    seen = drawn((0.6, 0.6), (0.6, 0.6))
    known = np.where(seen.success, 5.0, 1.0)
    unknown = np.random.default_rng(1).random(known.shape) < 0.5
    masked = replace(seen, phase=np.where(unknown & ~seen.success, np.nan, known))
    for phase in Phase:
        told = replace(seen, phase=known).got_past(phase)
        assert (masked.got_past(phase) >= told).all()
    assert (replace(seen, phase=known).got_past("grasp") == seen.differences()).all()


def test_two_gates_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    """Each made the other's attempts too, and the folder could not be gone on with."""
    with only_gate(tmp_path), pytest.raises(UnusableInputError, match="Another gate is running"):
        only_gate(tmp_path).__enter__()
    with only_gate(tmp_path):
        pass


def test_an_exchanged_key_is_noticed(tmp_path: Path) -> None:
    """Another order would turn the outcomes of one policy into the other's."""
    GateFolder(tmp_path, CONTEST, seed=4)
    seal(tmp_path, 5)
    with pytest.raises(UnusableInputError, match="isn't the key that this gate began with"):
        GateFolder(tmp_path, CONTEST)
    (tmp_path / SEALED).unlink()
    with pytest.raises(UnusableInputError, match=r"Restore it"):
        GateFolder(tmp_path, CONTEST)


def test_a_lost_outcome_is_noticed(tmp_path: Path) -> None:
    decide(tmp_path / "g", made((0.5, 0.5), (0.95, 0.95)))
    path = tmp_path / "g" / OUTCOMES
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], *lines[3:], ""]))
    with pytest.raises(UnusableInputError, match="attempts of stage hardware are missing"):
        decide(tmp_path / "g", made((0.5, 0.5), (0.95, 0.95)))


def test_the_order_is_balanced_and_pairs_share_their_scene() -> None:
    turns = attempts(7, HARDWARE, 2)
    pairs = [(next(turns), next(turns)) for _ in range(2 * 40)]
    for first, second in pairs:
        assert (first.task, first.scene, first.round) == (second.task, second.scene, second.round)
        assert {first.side, second.side} == set(SIDES)
    assert len({first.scene for first, _ in pairs}) == len(pairs)
    for task in (0, 1):
        leads = [first.side for first, _ in pairs if first.task == task]
        assert len(leads) == 40
        for n in range(0, 40, BLOCK):
            assert leads[n : n + BLOCK].count("baseline") == BLOCK // 2
    again = [turn for _, turn in zip(range(20), attempts(7, HARDWARE, 2), strict=False)]
    assert again == [turn for pair in pairs for turn in pair][:20]
    assert [t.side for t in again] != [
        t.side for _, t in zip(range(20), attempts(8, HARDWARE, 2), strict=False)
    ]


def test_the_operator_is_never_told_which_policy_drives(tmp_path: Path) -> None:
    """Whoever knows judges otherwise; neither question, link nor file says it."""
    policies = {}
    for side in SIDES:
        policies[side] = tmp_path / f"policy_of_{side}"
        policies[side].mkdir()
    asked: list[str] = []
    answers = iter(["", "maybe", "again", "", "y", "", "safety"] + ["", "n"] * 10)

    def ask(question: str) -> str:
        asked.append(question)
        return next(answers)

    tasks = [replace(TWO[0], reset="Put the cube back.")]
    station = StationAttempts(tmp_path / "gate", policies, tasks, "", ask)
    (tmp_path / "gate").mkdir()
    turns = attempts(1, HARDWARE, 1)
    first, second = station(HARDWARE, next(turns)), station(HARDWARE, next(turns))
    assert (first.success, first.safety) == (True, False)
    assert (second.success, second.safety) == (False, True)
    said = " ".join(asked) + json.dumps([vars(first), vars(second)])
    assert "baseline" not in said
    assert "candidate" not in said
    assert "Put the cube back." in asked[0]
    assert "Please answer one of these" in asked[2]
    held = [p.name for p in (tmp_path / "gate").rglob("*")]
    assert not any(side in name for name in held for side in SIDES)


def test_a_command_is_given_the_policy_under_a_neutral_name(tmp_path: Path) -> None:
    policies = {side: tmp_path / side for side in SIDES}
    for folder in policies.values():
        folder.mkdir()
        (folder / "who.txt").write_text(folder.name)
    (tmp_path / "gate").mkdir()
    check = replace(TWO[0], success_check="script", check="os.path:isdir", reset="builtins:abs")
    station = StationAttempts(tmp_path / "gate", policies, [TWO[0]], "cat {policy}/who.txt", _yes)
    turn = next(attempts(1, HARDWARE, 1))
    station(HARDWARE, turn)
    log = tmp_path / "gate" / "attempts" / "hardware_00000" / "log.txt"
    assert log.read_text() == turn.side
    with pytest.raises(UnusableInputError, match="isn't a placeholder"):
        StationAttempts(tmp_path, policies, [TWO[0]], "run {polcy}", _yes)
    with pytest.raises(UnusableInputError, match="nobody tells it the robot"):
        StationAttempts(tmp_path, policies, [replace(TWO[0], candidate_speed=0.5)], "run", _yes)
    with pytest.raises(UnusableInputError, match="can't be imported"):
        StationAttempts(tmp_path, policies, [replace(check, check="os:nothing")], "", _yes)
    with pytest.raises(UnusableInputError, match="has no check"):
        StationAttempts(tmp_path, policies, [replace(check, check="")], "", _yes)


def _yes(_question: str) -> str:
    return "y"


def drawn(old: Sequence[float], new: Sequence[float], rounds: int = 300, seed: int = 0) -> Outcomes:
    rng = np.random.default_rng(seed)
    rates = np.stack([np.array(old), np.array(new)], axis=-1)
    success = rng.random((rounds, *rates.shape)) < rates
    return Outcomes(success, np.zeros_like(success))


def test_a_loss_in_one_dimension_is_not_excused_by_a_gain_in_another() -> None:
    suite = replace(SUITE, rules=replace(SUITE.rules, max_pairs=600))
    result = judge_hardware(drawn((0.2, 0.95), (1.0, 0.6)), suite, plan(suite))
    assert result.answer is Stage.FAILED
    assert "loses more than 15% in contact_dynamics" in result.message


def test_a_candidate_that_is_better_but_not_good_enough_is_not_promoted() -> None:
    tasks = tuple(replace(task, min_pass_rate=0.9) for task in TWO)
    suite = replace(SUITE, tasks=tasks)
    result = judge_hardware(drawn((0.2, 0.2), (0.6, 0.6)), suite, plan(suite))
    assert result.answer is Stage.FAILED
    assert "succeeds in under 90%" in result.message


def test_a_candidate_that_trips_the_safety_filter_is_rejected() -> None:
    seen = drawn((0.5, 0.5), (0.9, 0.9))
    safety = np.zeros_like(seen.success)
    safety[..., 1] = np.random.default_rng(1).random(safety.shape[:2]) < 0.5
    result = judge_hardware(Outcomes(seen.success, safety), SUITE, plan(SUITE))
    assert result.answer is Stage.FAILED
    assert "trips the safety filter more often" in result.message


def test_the_power_that_is_printed_counts_every_rule() -> None:
    """With min_pass_rate as given by default, 80 % were promised and 15 % promoted."""
    rules = Rules(retrain_sd=0.0, gain=0.2, baseline_rate=0.6)
    promised = {}
    for least in (0.0, 0.85):
        suite = Suite("s", (SuiteTask("t", min_pass_rate=least),), rules)
        curve = plan(suite).curve
        promised[least] = next(p.promoted for p in curve if p.difference == rules.gain)
    assert promised[0.0] > 0.75
    assert promised[0.85] < 0.4


def test_many_comparisons_end_as_each_by_itself() -> None:
    """The power curve and the gate's verdict come from the same rules."""
    suite = replace(SUITE, tasks=tuple(replace(t, min_pass_rate=0.7) for t in TWO))
    design = plan(suite)
    rounds = design.max_pairs // 2
    each = [drawn((0.55, 0.55), (0.7, 0.75), rounds, seed) for seed in range(12)]
    both = Outcomes(np.stack([e.success for e in each]), np.stack([e.safety for e in each]))
    passed, after = promotions(both, suite, design.margin)
    alone = [judge_hardware(one, suite, design) for one in each]
    assert [bool(p) for p in passed] == [one.answer is Stage.PASSED for one in alone]
    assert [2 * n for n in after] == [one.pairs for one in alone]
    assert 0 < passed.sum() < len(each)


def test_a_stage_decides_on_what_it_had_seen_by_then() -> None:
    """More outcomes can't change a verdict that was reached before them."""
    seen, design = drawn((0.5, 0.5), (0.9, 0.9)), plan(SUITE)
    whole = judge_hardware(seen, SUITE, design)
    rounds = whole.pairs // len(TWO)
    assert rounds < seen.rounds
    assert judge_hardware(seen.first(rounds), SUITE, design) == whole
    assert judge_hardware(seen.first(rounds - 1), SUITE, design).answer is Stage.OPEN


@pytest.mark.parametrize(("new", "answer"), [(0.97, Stage.PASSED), (0.6, Stage.FAILED)])
def test_what_is_forgotten_in_simulation_ends_the_gate(new: float, answer: Stage) -> None:
    result = judge_sim(drawn((0.97,), (new,)), SUITE, ["pick_place"])
    assert result.answer is answer
    assert result.pairs < 200


def test_what_was_tried_in_ones_own_simulation_is_no_evidence_about_the_cell() -> None:
    """A gate in another engine ended with "Evidence: simulation (nominal cell)"."""
    own = SuiteTask("pick", env={"gym": "mine:Pick-v0", "kwargs": {"delay_s": 0.2}})
    said = []
    for task in (own, replace(own, gaps={"visual_domain": 1.0}), SuiteTask("pick_place")):
        gate = Gate(Suite("s", (task,), Rules()), {})
        assert gate.domain is not None
        said.append(evidence(gate.domain, gate.where))
    assert said[0] == "simulation (mine:Pick-v0)"
    assert said[1].startswith("sim-to-sim (mine:Pick-v0 with injected gaps")
    assert said[2] == "simulation (nominal cell)"

"""What keys make of a label, and which events say it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core import labels
from gaploop.core.vocabulary import FailureMode, GapDimension, Outcome, Phase
from gaploop.failure_analysis.diagnosis import TakeDiagnosis
from gaploop.failure_analysis.review import statement
from gaploop.failure_analysis.review.keys import KEYS, PLAYER
from gaploop.failure_analysis.review.statement import WEIGHTS, TakeStatement

ANY = st.builds(
    TakeStatement,
    st.sampled_from([o.value for o in Outcome]),
    st.sampled_from(["", *(m.value for m in FailureMode)]),
    st.sampled_from(["", *(p.value for p in Phase)]),
    st.dictionaries(st.sampled_from([d.value for d in GapDimension]), st.sampled_from(WEIGHTS)),
    st.sampled_from(["", "finger pads"]),
)


def current(events: list[labels.LabelEvent]) -> TakeStatement:
    said = labels.current(events).get("take", {})
    return statement.of_values(said, next((e.note for e in events[::-1]), ""))


@given(st.lists(ANY, min_size=1, max_size=4))
def test_what_was_said_last_stands_and_saying_it_again_says_nothing(
    said: list[TakeStatement],
) -> None:
    log: list[labels.LabelEvent] = []
    for one in said:
        own = {field: e for (_, field), e in labels.standing(log).items()}
        log += statement.events("take", one, "ana", own)
    assert current(log).values() == said[-1].values()
    own = {field: e for (_, field), e in labels.standing(log).items()}
    assert statement.events("take", said[-1], "ana", own) == ()


@given(ANY)
def test_one_act_shares_its_time_so_that_it_is_taken_back_whole(said: TakeStatement) -> None:
    log = list(statement.events("take", said, "ana", {}))
    assert labels.last_act(log, "ana") == log


@given(ANY, st.sampled_from([d.value for d in GapDimension]))
def test_a_dimension_goes_through_every_weight_and_comes_round(
    said: TakeStatement, name: str
) -> None:
    bare = replace(said, dimensions={k: v for k, v in said.dimensions.items() if k != name})
    now = bare
    for weight in WEIGHTS:
        now = now.with_dimension(name)
        assert now.dimensions[name] == weight
    assert now.with_dimension(name) == bare


@given(ANY, st.sampled_from(["success", "discarded"]))
def test_only_a_failure_has_a_mode_and_causes(said: TakeStatement, outcome: str) -> None:
    other = said.with_outcome(outcome)
    assert (other.failure_mode, other.phase, dict(other.dimensions)) == ("", "", {})
    assert other.with_mode("slip").outcome == "failure"


def test_weights_stay_above_nothing_and_at_most_one() -> None:
    said = TakeStatement().with_dimension("sensor_noise")
    assert said.heavier("sensor_noise", 0.1).dimensions == {"sensor_noise": 1.0}
    for _ in range(20):
        said = said.heavier("sensor_noise", -0.1)
    assert said.dimensions == {"sensor_noise": 0.05}
    assert said.heavier("visual_domain", 0.1) == said


def diagnosis(mode: str = "slip", *, abstained: bool = False) -> TakeDiagnosis:
    shares = dict.fromkeys((d.value for d in GapDimension), 0.0) | {"contact_dynamics": 0.9}
    return TakeDiagnosis("take", 0, mode, "transport", shares, 0.1, abstained, ())


def test_a_suggestion_fills_what_nobody_has_said() -> None:
    said = statement.suggested(TakeStatement("failure"), diagnosis())
    assert said == TakeStatement("failure", "slip", "transport", {"contact_dynamics": 0.9})
    unsure = statement.suggested(TakeStatement("failure"), diagnosis(abstained=True))
    assert unsure.dimensions == {}


@pytest.mark.parametrize("before", [TakeStatement("success"), TakeStatement("failure", "drift")])
def test_a_suggestion_never_stands_over_a_word_or_a_success(before: TakeStatement) -> None:
    assert statement.suggested(before, diagnosis()) == before


def test_no_key_does_two_things_and_every_word_has_one() -> None:
    names = [key.key for key in KEYS]
    assert len(names) == len(set(names))
    for action, words in (
        ("mode", FailureMode),
        ("phase", Phase),
        ("dimension", GapDimension),
    ):
        assert {k.value for k in KEYS if k.action == action} == {w.value for w in words}
    assert all(k.value for k in KEYS if k.action == PLAYER)

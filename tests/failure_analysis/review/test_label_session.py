"""One labeller, or two, at work on real files, without a page; what keys make of a label."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import FailureMode, GapDimension, Outcome, Phase
from gaploop.datasets.labels import LabelStore, open_labelled
from gaploop.failure_analysis.diagnosis import TakeDiagnosis
from gaploop.failure_analysis.review.label_session import (
    WEIGHTS,
    LabelSession,
    TakeStatement,
    append_command,
    rescue,
)
from gaploop.failure_analysis.review.page import KEYS, PLAYER
from gaploop.failure_analysis.review.takes import Filter, Who

SLIP = TakeStatement("failure", "slip", "transport", {"contact_dynamics": 1.0})
DRIFT = TakeStatement("failure", "drift", "approach", {"sensor_noise": 0.5})


@contextmanager
def session_of(root: Path, author: str = "ana", **more: object) -> Iterator[LabelSession]:
    session = LabelSession(open_labelled(root), author, **more)  # type: ignore[arg-type]
    try:
        yield session
    finally:
        session.close()


def uids(session: LabelSession) -> list[str]:
    return [e.info.uid for e in session.store.episodes]


def test_what_is_said_is_on_disk_and_in_the_columns_once_the_session_closes(
    store: LabelStore,
) -> None:
    session = LabelSession(store, "ana")
    uid = store.episodes[0].info.uid
    assert session.say(uid, SLIP)
    assert not session.say(uid, SLIP)
    assert session.take(uid).done
    assert session.close() == []
    assert session.saver.saved == 1
    again = open_labelled(store.root).episodes[0]
    assert (again.failure_mode, again.phase) == ("slip", "transport")
    if not store.journal:
        assert again.row["gap_failure_mode"] == "slip"


def test_undo_and_redo_only_ever_add_events(store: LabelStore) -> None:
    """Undo in the page must not rewrite the log: others read it, and history is its point."""
    session = LabelSession(store, "ana")
    first, second = (store.episodes[k].info.uid for k in (0, 1))
    before = session.take(first).episode
    logs = [[e.to_line() for e in session.store.events]]
    for act in (
        lambda: session.say(first, SLIP),
        lambda: session.say(second, DRIFT),
        session.undo,
        session.undo,
        session.redo,
        session.redo,
        session.undo,
    ):
        act()
        logs.append([e.to_line() for e in session.store.events])
        assert logs[-1][: len(logs[-2])] == logs[-2]
    assert session.take(first).episode.failure_mode == "slip"
    assert session.take(second).episode.failure_mode == ""
    session.undo()
    assert session.take(first).episode == before
    assert session.undo() == ""
    session.close()
    said = labels.current(labels.read(store.file))
    assert not said.get(first, {}).get("failure_mode")


def test_a_new_word_ends_what_can_be_said_again(store: LabelStore) -> None:
    session = LabelSession(store, "ana")
    uid = store.episodes[0].info.uid
    session.say(uid, SLIP)
    session.undo()
    session.say(uid, DRIFT)
    assert session.redo() == ""
    session.close()


def test_undo_leaves_what_others_said(store: LabelStore, say: Callable[..., None]) -> None:
    say(store.root, 0, "bo", failure_mode="drift")
    with session_of(store.root) as session:
        assert session.undo() == ""


def test_anothers_word_is_hidden_until_one_has_given_ones_own(
    store: LabelStore, say: Callable[..., None]
) -> None:
    say(
        store.root,
        0,
        "bo",
        outcome="failure",
        failure_mode="drift",
        dimensions={"sensor_noise": 1},
    )
    with session_of(store.root) as session:
        uid = uids(session)[0]
        assert session.take(uid).episode.failure_mode == ""
        assert session.take(uid).episode.info.dimensions == {}
        assert session.view.others(uid) == {}
        assert session.starting_point(uid).failure_mode == ""
        assert session.choose(Filter(mode="drift")) == []
        session.say(uid, SLIP)
        assert session.view.others(uid)["bo"]["failure_mode"].value == "drift"
        assert session.view.differ(uid) == ("failure_mode", "dimensions")
        assert session.choose(Filter(who=Who.DISAGREEMENT)) == [uid]
        assert session.take(uid).episode.failure_mode == "slip"


def test_the_operators_outcome_is_seen_and_the_operators_reasons_are_not(
    store: LabelStore, say: Callable[..., None]
) -> None:
    say(store.root, 2, "op", "operator", outcome="failure", failure_mode="slip")
    with session_of(store.root) as session:
        take = session.take(uids(session)[2])
        assert take.episode.outcome == "failure"
        assert take.episode.failure_mode == ""
        assert take.needs


def test_two_sessions_on_one_folder_see_each_others_words(store: LabelStore) -> None:
    with session_of(store.root, "ana") as ana, session_of(store.root, "bo") as bo:
        uid = uids(ana)[0]
        ana.say(uid, SLIP)
        ana.close()
        bo.say(uid, DRIFT)
        assert bo.refresh() >= {uid}
        assert bo.view.differ(uid) == ("failure_mode", "dimensions")
        bo.close()  # what it says itself is on disk
        bo.refresh()
        assert bo.refresh() == set()


def test_a_vanished_folder_costs_no_label(dataset: Path) -> None:
    """The disk was unplugged in the midst of labelling: what was said waits and is written."""
    with session_of(dataset) as session:
        uid = uids(session)[0]
        away = dataset.rename(dataset.with_name("away"))
        told: list[str] = []
        session.saver.on_change = lambda: told.append(session.saver.trouble)
        session.say(uid, SLIP)
        while not told:
            pass
        assert "gone" in told[0] or "No such file" in told[0]
        assert session.saver.waiting == 1
        assert not dataset.exists(), "a folder must not be made anew where one has vanished"
        away.rename(dataset)
    assert open_labelled(dataset).episodes[0].failure_mode == "slip"


def test_what_could_not_be_written_at_all_is_handed_back(dataset: Path, tmp_path: Path) -> None:
    session = LabelSession(open_labelled(dataset), "ana")
    uid = uids(session)[0]
    away = dataset.rename(tmp_path / "away from here")
    session.say(uid, SLIP)
    lost = session.close()
    assert {e.field: e.value for e in lost} == SLIP.values()
    kept = [json.loads(line) for line in rescue(lost, tmp_path).read_text().splitlines()]
    assert [line["uid"] for line in kept] == [uid] * 4
    # The command that is printed appends them, though no label was ever there.
    shutil.rmtree(away / "meta" / "gap", ignore_errors=True)
    store = open_labelled(away)
    command = append_command(tmp_path / "gaploop_unsaved_labels.jsonl", store)
    subprocess.run(command, shell=True, check=True)
    assert open_labelled(away).episodes[0].failure_mode == "slip"


def test_a_dataset_recorded_elsewhere_gets_its_columns_with_the_first_label(
    dataset: Path,
) -> None:
    import pyarrow.parquet as pq

    path = next((dataset / "meta" / "episodes").glob("*/*.parquet"))
    rows = pq.read_table(path)
    pq.write_table(rows.drop([n for n in rows.column_names if n.startswith("gap_")]), path)
    with session_of(dataset) as session:
        session.say(uids(session)[1], SLIP)
    again = open_labelled(dataset)
    assert [e.failure_mode for e in again.episodes][:3] == ["", "slip", ""]


def test_progress_counts_what_needs_the_labeller_and_its_rate_leaves_out_pauses(
    store: LabelStore,
) -> None:
    now = [0.0]
    session = LabelSession(store, "ana", clock=lambda: now[0])
    listed = session.choose(Filter())
    needs = [u for u in listed if session.take(u).needs]
    assert session.progress(listed).total == len(needs) == 4
    for uid, pause in zip(needs[:3], (0.0, 5.0, 5.0), strict=True):
        now[0] += pause
        session.say(uid, SLIP)
    found = session.progress(listed)
    assert (found.done, found.total) == (3, 4)
    assert found.rate_per_min == pytest.approx(12.0)
    assert found.left_s == pytest.approx(5.0)
    now[0] += 3600.0
    session.say(needs[3], SLIP)
    assert session.progress(listed).rate_per_min == pytest.approx(12.0)
    session.close()


def found(uid: str, share: float, *, abstained: bool = False) -> TakeDiagnosis:
    shares = dict.fromkeys((d.value for d in GapDimension), 0.0) | {"contact_dynamics": share}
    return TakeDiagnosis(uid, None, "slip", "transport", shares, 1 - share, abstained, ())


def test_what_needs_a_person_most_comes_first(dataset: Path, say: Callable[..., None]) -> None:
    say(dataset, 1, "bo", failure_mode="drift")
    with session_of(dataset) as session:
        a, b, ok, c, d, fine = uids(session)
        session.say(b, SLIP)  # bo says otherwise
        session.diagnosed(found(a, 0.9))
        session.diagnosed(found(c, 0.6))
        session.diagnosed(found(d, 0.3, abstained=True))
        assert session.choose(Filter()) == [b, d, c, a, ok, fine]
        assert session.choose(Filter(who=Who.UNSURE)) == [d]
        assert session.choose(Filter(who=Who.NEEDS_YOU)) == [d, c, a]
        assert session.choose(Filter(dimension="contact_dynamics")) == [b, c, a]
        assert session.choose(Filter(mode="slip")) == [b, d, c, a]


def test_filters_and_search(dataset: Path) -> None:
    with session_of(dataset) as session:
        every = uids(session)
        assert set(session.choose(Filter(outcome="success"))) == {every[2], every[5]}
        assert set(session.choose(Filter(condition="lighting=dim"))) == set(every[1::2])
        assert set(session.choose(Filter(session="session 1"))) == {every[5]}
        assert session.choose(Filter(policy="other")) == []
        assert session.choose(Filter(text="CUBE #3")) == [every[3]]
        assert set(session.choose(Filter(text="lighting=dim distractors!=none,0"))) == {
            every[1], every[5]
        }  # fmt: skip
        with pytest.raises(UnusableInputError, match="in Search"):
            session.choose(Filter(text="lightning=dim"))


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
    known = {name: said.get(name, labels.NOTHING_SAID[name]) for name in TakeStatement().values()}
    return TakeStatement(**known, note=next((e.note for e in events[::-1]), ""))


@given(st.lists(ANY, min_size=1, max_size=4))
def test_what_was_said_last_stands_and_saying_it_again_says_nothing(
    said: list[TakeStatement],
) -> None:
    log: list[labels.LabelEvent] = []
    for one in said:
        own = {field: e for (_, field), e in labels.standing(log).items()}
        log += one.events("take", "ana", own)
    assert current(log).values() == said[-1].values()
    own = {field: e for (_, field), e in labels.standing(log).items()}
    assert said[-1].events("take", "ana", own) == ()


@given(ANY)
def test_one_act_shares_its_time_so_that_it_is_taken_back_whole(said: TakeStatement) -> None:
    log = list(said.events("take", "ana", {}))
    assert labels.last_act(log, "ana") == log


@given(ANY, st.sampled_from([d.value for d in GapDimension]))
def test_a_dimension_goes_through_every_weight_and_comes_round(
    said: TakeStatement, name: str
) -> None:
    now = said.with_dimension(name)
    for weight in (*WEIGHTS, *WEIGHTS[:1]):
        assert now.dimensions[name] == weight
        now = now.lighter(name)


@given(ANY, st.sampled_from(list(FailureMode)), st.sampled_from(list(Phase)))
def test_a_key_sets_what_it_names_however_often_it_is_pressed(
    said: TakeStatement, mode: FailureMode, phase: Phase
) -> None:
    """Incident: `m` on a suggested "missed grasp" removed it, and Enter saved no mode at all."""
    suggested = said.with_mode(mode).with_phase(phase)
    assert (suggested.outcome, suggested.failure_mode, suggested.phase) == ("failure", mode, phase)
    assert suggested.with_mode(mode).with_phase(phase) == suggested
    gone = suggested.cleared()
    assert (gone.outcome, gone.failure_mode, gone.phase, gone.dimensions) == ("failure", "", "", {})


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


def test_enter_on_an_abstention_keeps_its_leading_cause_as_a_suggestion(
    store: LabelStore,
) -> None:
    """Incident: after Enter the row of an abstention showed no cause any more, not even a likely
    one; and whoever saves without naming a cause has not named one."""
    with session_of(store.root) as session:
        uid = next(t.uid for t in session.takes() if t.needs)
        session.diagnosed(replace(diagnosis(abstained=True), uid=uid))
        assert session.take(uid).maybe == "contact_dynamics"
        session.say(uid, session.starting_point(uid))
        take = session.take(uid)
        assert (take.done, take.why, take.maybe) == (True, "", "contact_dynamics")
        assert "dimensions" not in session.view.own(uid)
        session.say(uid, session.starting_point(uid).with_dimension("visual_domain"))
        assert (session.take(uid).why, session.take(uid).maybe) == ("visual_domain", "")


def test_equal_shares_suggest_nothing() -> None:
    """Each of 43 public episodes was "perhaps contact dynamics", at 10 % like nine others."""
    even = dict.fromkeys((d.value for d in GapDimension), 0.1)
    assert replace(diagnosis(abstained=True), dimensions=even, none=0.1).leaning == ""
    assert diagnosis(abstained=True).leaning == "contact_dynamics"


def test_a_suggestion_fills_what_nobody_has_said() -> None:
    said = TakeStatement("failure").suggested(diagnosis())
    assert said == TakeStatement("failure", "slip", "transport", {"contact_dynamics": 0.9})
    unsure = TakeStatement("failure").suggested(diagnosis(abstained=True))
    assert unsure.dimensions == {}


@pytest.mark.parametrize("before", [TakeStatement("success"), TakeStatement("failure", "drift")])
def test_a_suggestion_never_stands_over_a_word_or_a_success(before: TakeStatement) -> None:
    assert before.suggested(diagnosis()) == before


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

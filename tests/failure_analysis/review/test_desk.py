"""One labeller, or two, at work on real files, without a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import GapDimension
from gaploop.datasets.labels.labelled import FolderLabels, open_labelled
from gaploop.failure_analysis.diagnosis import TakeDiagnosis
from gaploop.failure_analysis.review.choice import Filter, Who
from gaploop.failure_analysis.review.label_session import LabelSession
from gaploop.failure_analysis.review.saver import rescue
from gaploop.failure_analysis.review.statement import TakeStatement

SLIP = TakeStatement("failure", "slip", "transport", {"contact_dynamics": 1.0})
DRIFT = TakeStatement("failure", "drift", "approach", {"sensor_noise": 0.5})


@contextmanager
def desk_of(root: Path, author: str = "ana", **more: object) -> Iterator[LabelSession]:
    desk = LabelSession(open_labelled(root), author, **more)  # type: ignore[arg-type]
    try:
        yield desk
    finally:
        desk.close()


def uids(desk: LabelSession) -> list[str]:
    return [e.info.uid for e in desk.folder.episodes]


def test_what_is_said_is_on_disk_and_in_the_columns_once_the_desk_closes(
    folder: FolderLabels,
) -> None:
    desk = LabelSession(folder, "ana")
    uid = folder.episodes[0].info.uid
    assert desk.say(uid, SLIP)
    assert not desk.say(uid, SLIP)
    assert desk.take(uid).done
    assert desk.close() == []
    assert desk.saver.saved == 1
    again = open_labelled(folder.root).episodes[0]
    assert (again.failure_mode, again.phase) == ("slip", "transport")
    if not folder.journal:
        assert again.row["gap_failure_mode"] == "slip"


def test_undo_and_redo_only_ever_add_events(folder: FolderLabels) -> None:
    """Undo in the page must not rewrite the log: others read it, and history is its point."""
    desk = LabelSession(folder, "ana")
    first, second = (folder.episodes[k].info.uid for k in (0, 1))
    before = desk.take(first).episode
    logs = [[e.to_line() for e in desk.book.events]]
    for act in (
        lambda: desk.say(first, SLIP),
        lambda: desk.say(second, DRIFT),
        desk.undo,
        desk.undo,
        desk.redo,
        desk.redo,
        desk.undo,
    ):
        act()
        logs.append([e.to_line() for e in desk.book.events])
        assert logs[-1][: len(logs[-2])] == logs[-2]
    assert desk.take(first).episode.failure_mode == "slip"
    assert desk.take(second).episode.failure_mode == ""
    desk.undo()
    assert desk.take(first).episode == before
    assert desk.undo() == ""
    desk.close()
    said = labels.current(labels.read(folder.file))
    assert not said.get(first, {}).get("failure_mode")


def test_a_new_word_ends_what_can_be_said_again(folder: FolderLabels) -> None:
    desk = LabelSession(folder, "ana")
    uid = folder.episodes[0].info.uid
    desk.say(uid, SLIP)
    desk.undo()
    desk.say(uid, DRIFT)
    assert desk.redo() == ""
    desk.close()


def test_undo_leaves_what_others_said(folder: FolderLabels, say: Callable[..., None]) -> None:
    say(folder.root, 0, "bo", failure_mode="drift")
    with desk_of(folder.root) as desk:
        assert desk.undo() == ""


def test_anothers_word_is_hidden_until_one_has_given_ones_own(
    folder: FolderLabels, say: Callable[..., None]
) -> None:
    say(
        folder.root,
        0,
        "bo",
        outcome="failure",
        failure_mode="drift",
        dimensions={"sensor_noise": 1},
    )
    with desk_of(folder.root) as desk:
        uid = uids(desk)[0]
        assert desk.take(uid).episode.failure_mode == ""
        assert desk.take(uid).episode.info.dimensions == {}
        assert desk.book.others(uid) == {}
        assert desk.starting_point(uid).failure_mode == ""
        assert desk.choose(Filter(mode="drift")) == []
        desk.say(uid, SLIP)
        assert desk.book.others(uid)["bo"]["failure_mode"].value == "drift"
        assert desk.book.differ(uid) == ("failure_mode", "dimensions")
        assert desk.choose(Filter(who=Who.DISAGREEMENT)) == [uid]
        assert desk.take(uid).episode.failure_mode == "slip"
    with desk_of(folder.root, "carl", show_others=True) as desk:
        assert set(desk.book.others(uid)) == {"ana", "bo"}


def test_the_operators_outcome_is_seen_and_the_operators_reasons_are_not(
    folder: FolderLabels, say: Callable[..., None]
) -> None:
    say(folder.root, 2, "op", "operator", outcome="failure", failure_mode="slip")
    with desk_of(folder.root) as desk:
        take = desk.take(uids(desk)[2])
        assert take.episode.outcome == "failure"
        assert take.episode.failure_mode == ""
        assert take.needs


def test_two_desks_on_one_folder_see_each_others_words(folder: FolderLabels) -> None:
    with desk_of(folder.root, "ana") as ana, desk_of(folder.root, "bo") as bo:
        uid = uids(ana)[0]
        ana.say(uid, SLIP)
        ana.close()
        bo.say(uid, DRIFT)
        assert bo.refresh() >= {uid}
        assert bo.book.differ(uid) == ("failure_mode", "dimensions")
        assert bo.refresh() == set() or bo.saver.waiting == 0
        both = [a for a in bo.agreement() if a.takes]
        assert {a.authors for a in both} == {("ana", "bo")}
        raw = {a.field: a.raw for a in both}
        assert raw["outcome"] == 1.0
        assert raw["failure_mode"] == 0.0


def test_a_vanished_folder_costs_no_label(dataset: Path) -> None:
    """The disk was unplugged in the midst of labelling: what was said waits and is written."""
    with desk_of(dataset) as desk:
        uid = uids(desk)[0]
        away = dataset.rename(dataset.with_name("away"))
        told: list[str] = []
        desk.saver.on_change = lambda: told.append(desk.saver.trouble)
        desk.say(uid, SLIP)
        while not told:
            pass
        assert "gone" in told[0] or "No such file" in told[0]
        assert desk.saver.waiting == 1
        assert not dataset.exists(), "a folder must not be made anew where one has vanished"
        away.rename(dataset)
    assert open_labelled(dataset).episodes[0].failure_mode == "slip"


def test_what_could_not_be_written_at_all_is_handed_back(dataset: Path, tmp_path: Path) -> None:
    desk = LabelSession(open_labelled(dataset), "ana")
    uid = uids(desk)[0]
    shutil.rmtree(dataset)
    desk.say(uid, SLIP)
    lost = desk.close()
    assert {e.field: e.value for e in lost} == SLIP.values()
    kept = [json.loads(line) for line in rescue(lost, tmp_path).read_text().splitlines()]
    assert [line["uid"] for line in kept] == [uid] * 4


def test_a_dataset_recorded_elsewhere_gets_its_columns_with_the_first_label(
    dataset: Path,
) -> None:
    import pyarrow.parquet as pq

    path = next((dataset / "meta" / "episodes").glob("*/*.parquet"))
    rows = pq.read_table(path)
    pq.write_table(rows.drop([n for n in rows.column_names if n.startswith("gap_")]), path)
    with desk_of(dataset) as desk:
        desk.say(uids(desk)[1], SLIP)
    again = open_labelled(dataset)
    assert [e.failure_mode for e in again.episodes][:3] == ["", "slip", ""]


def test_progress_counts_what_needs_the_labeller_and_its_rate_leaves_out_pauses(
    folder: FolderLabels,
) -> None:
    now = [0.0]
    desk = LabelSession(folder, "ana", clock=lambda: now[0])
    listed = desk.choose(Filter())
    needs = [u for u in listed if desk.take(u).needs]
    assert desk.progress(listed).total == len(needs) == 4
    for uid, pause in zip(needs[:3], (0.0, 5.0, 5.0), strict=True):
        now[0] += pause
        desk.say(uid, SLIP)
    found = desk.progress(listed)
    assert (found.done, found.total) == (3, 4)
    assert found.rate_per_min == pytest.approx(12.0)
    assert found.left_s == pytest.approx(5.0)
    now[0] += 3600.0
    desk.say(needs[3], SLIP)
    assert desk.progress(listed).rate_per_min == pytest.approx(12.0)
    desk.close()


def found(uid: str, share: float, *, abstained: bool = False) -> TakeDiagnosis:
    shares = dict.fromkeys((d.value for d in GapDimension), 0.0) | {"contact_dynamics": share}
    return TakeDiagnosis(uid, None, "slip", "transport", shares, 1 - share, abstained, ())


def test_what_needs_a_person_most_comes_first(dataset: Path, say: Callable[..., None]) -> None:
    say(dataset, 1, "bo", failure_mode="drift")
    with desk_of(dataset) as desk:
        a, b, ok, c, d, fine = uids(desk)
        desk.say(b, SLIP)  # bo says otherwise
        desk.diagnosed(found(a, 0.9))
        desk.diagnosed(found(c, 0.6))
        desk.diagnosed(found(d, 0.3, abstained=True))
        assert desk.choose(Filter()) == [b, d, c, a, ok, fine]
        assert desk.choose(Filter(who=Who.UNSURE)) == [d]
        assert desk.choose(Filter(who=Who.NEEDS_YOU)) == [d, c, a]
        assert desk.choose(Filter(dimension="contact_dynamics")) == [b, c, a]
        assert desk.choose(Filter(mode="slip")) == [b, d, c, a]


def test_filters_and_search(dataset: Path) -> None:
    with desk_of(dataset) as desk:
        every = uids(desk)
        assert set(desk.choose(Filter(outcome="success"))) == {every[2], every[5]}
        assert set(desk.choose(Filter(condition="lighting=dim"))) == set(every[1::2])
        assert set(desk.choose(Filter(session="session 1"))) == {every[5]}
        assert desk.choose(Filter(policy="other")) == []
        assert desk.choose(Filter(text="CUBE #3")) == [every[3]]
        assert set(desk.choose(Filter(text="lighting==dim and distractors>=1"))) == {
            every[1], every[5]
        }  # fmt: skip
        with pytest.raises(UnusableInputError, match="Search, column"):
            desk.choose(Filter(text="lightning==dim"))

"""The page without a browser: NiceGUI's own user, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from nicegui.testing.user_simulation import user_simulation

from gaploop.core import labels
from gaploop.core.statistics import Estimate
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.absolute.findings import AbsoluteFinding, AbsoluteReport
from gaploop.datasets.labels import LabelStore, open_labelled
from gaploop.failure_analysis.review.label_session import LabelSession
from gaploop.failure_analysis.review.page import ReviewPage, row
from gaploop.failure_analysis.review.server import ReviewSite
from gaploop.failure_analysis.review.takes import Filter, Who


@contextmanager
def site_of(
    root: Path, tmp_path: Path, author: str = "ana", locked: str = ""
) -> Iterator[ReviewSite]:
    desk = LabelSession(open_labelled(root), author, use_suggestions=False, locked=locked)
    try:
        yield ReviewSite(desk, tmp_path, None)
    finally:
        desk.close()


def visit(site: ReviewSite, work: Callable[[ReviewPage], None]) -> None:
    """Open the page in a simulated browser and do something on it."""
    pages: list[ReviewPage] = []

    async def run() -> None:
        async with user_simulation(lambda: pages.append(ReviewPage(site, "project"))) as user:
            await user.open("/")
            work(pages[0])
            await asyncio.sleep(0.05)  # what the page reads ahead may begin, and is let go

    asyncio.run(run())


def test_keys_end_up_as_labels_and_the_next_take_opens(store: LabelStore, tmp_path: Path) -> None:
    with site_of(store.root, tmp_path) as site:

        def work(page: ReviewPage) -> None:
            first = next(iter(site.ahead()))
            for key in ("m", "G", "1", "1", "Enter"):
                page.press(key)
            assert next(iter(site.ahead())) != first
            page.press("u")
            assert next(iter(site.ahead())) == first
            page.press("U")
            page.press("q")  # no key of ours

        visit(site, work)
        uid = store.episodes[0].info.uid
    said = labels.current(labels.read(store.file))[uid]
    assert said == {
        "outcome": "failure",
        "failure_mode": "missed_grasp",
        "phase": "grasp",
        "dimensions": {"contact_dynamics": 0.5},
    }


def test_a_word_written_meanwhile_keeps_what_one_is_about_to_say(
    dataset: Path, tmp_path: Path, say: Callable[..., None]
) -> None:
    """A colleague's label arrived and the half-made label on the screen was gone."""
    with site_of(dataset, tmp_path) as site:

        def work(page: ReviewPage) -> None:
            page.press("m")
            say(dataset, 0, "bo", failure_mode="drift")
            site.tell(site.session.refresh())
            page.press("Enter")

        visit(site, work)
    mine = [e for e in open_labelled(dataset).events if e.author == "ana"]
    assert {e.field: e.value for e in mine}["failure_mode"] == "missed_grasp"


def test_an_empty_search_result_and_a_bad_query_leave_the_page_usable(
    dataset: Path, tmp_path: Path
) -> None:
    with site_of(dataset, tmp_path) as site:

        def work(page: ReviewPage) -> None:
            page._search.set_value("nothing like it")
            assert list(site.ahead()) == []
            for key in ("Enter", "n", "j", "m", "u"):
                page.press(key)
            page._search.set_value("lightning==dim")
            assert page._search.error is not None
            assert "lighting" in page._search.error
            page._search.set_value("")
            assert page._search.error is None
            assert len(list(site.ahead())) == len(site.session.store.episodes)

        visit(site, work)
    assert open_labelled(dataset).events == []


def test_what_an_episode_shows_by_itself_stands_beside_it(dataset: Path, tmp_path: Path) -> None:
    with site_of(dataset, tmp_path) as site:
        assert site.shows(0) == []
        size = Estimate(3.0, 2.9, 3.1)
        found = AbsoluteFinding(
            "offset", "elbow", "At rest elbow stands off its command, by", size, "°", (0, 2), 6, 2,
            "", "", 3.0,
        )  # fmt: skip
        site.report = AbsoluteReport(dataset, [found])
        assert site.shows(1) == []
        take = next(t for t in site.session.takes() if t.episode.index == 2)
        told = row(take, site.shows(2))
        assert told["says"].endswith("At rest elbow stands off its command, by 3° [2.9, 3.1]; 2 of "
                                     "6 episodes, most in episode 2.")  # fmt: skip


def test_where_labels_cannot_be_saved_episodes_are_looked_at_alone(
    dataset: Path, tmp_path: Path, say: Callable[..., None]
) -> None:
    """A set on a read-only disk was refused, though looking at it writes nothing."""
    say(dataset, 0, "ana", failure_mode="slip")
    before = open_labelled(dataset).events
    with site_of(dataset, tmp_path, locked="Labels can't be saved here.") as site:

        def work(page: ReviewPage) -> None:
            first = next(iter(site.ahead()))
            for key in ("m", "Enter", "s", "Enter", "u", "U"):
                page.press(key)
                assert page._status.text == "Labels can't be saved here."
            assert next(iter(site.ahead())) == first
            page.press("j")
            assert next(iter(site.ahead())) != first

        visit(site, work)
        assert site.session.saver.waiting == site.session.saver.saved == 0
    assert open_labelled(dataset).events == before


def test_what_the_recorder_said_of_an_episode_stands_beside_it_and_enter_takes_it(
    dataset: Path, tmp_path: Path
) -> None:
    """Incident: `next.success` of every episode, and the page showed nothing but "unlabelled";
    then it showed it, and Enter asked all the same."""
    path = next((dataset / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    ended = [e % 2 == 0 for e in table["episode_index"].to_pylist()]
    pq.write_table(table.append_column("next.success", [ended]), path)
    info = json.loads((dataset / "meta" / "info.json").read_text())
    info["features"]["next.success"] = {"dtype": "bool", "shape": [1], "names": None}
    (dataset / "meta" / "info.json").write_text(json.dumps(info))
    found = open_labelled(dataset)
    unsaid = tuple(replace(e, outcome=Outcome.UNLABELLED) for e in found.recorded)
    desk = LabelSession(LabelStore(dataset, False, unsaid, []), "ana", use_suggestions=False)
    try:
        assert (desk.column, desk.ended) == ("next.success", {n: n % 2 == 0 for n in range(6)})
        words = [desk.starting_point(e.info.uid).outcome for e in unsaid]
        assert words == ["success", "failure"] * 3
        assert desk.choose(Filter(who=Who.NEEDS_YOU)) == [e.info.uid for e in unsaid]

        def work(page: ReviewPage) -> None:
            page.press("Enter")  # went well
            page.press("Enter")  # failed: what was seen?
            page.press("m")
            page.press("Enter")

        visit(ReviewSite(desk, tmp_path, None), work)
    finally:
        desk.close()
    said = labels.current(labels.read(found.file))
    assert [said[e.info.uid]["outcome"] for e in unsaid[:2]] == ["success", "failure"]
    assert len(said) == 2

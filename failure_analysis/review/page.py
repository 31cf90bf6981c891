"""The review page: list, player with signals, label; every key ends up here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Final

from nicegui import background_tasks, run, ui
from nicegui.elements.mixins.text_element import TextElement

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.review import dialogs
from gaploop.failure_analysis.review.choice import Filter, Who
from gaploop.failure_analysis.review.keys import BY_KEY, Key
from gaploop.failure_analysis.review.panel import Open, TakePanel
from gaploop.failure_analysis.review.site import ReviewSite
from gaploop.failure_analysis.review.statement import STEP, TakeStatement
from gaploop.failure_analysis.review.widgets import TakeList, TakePlayer
from gaploop.failure_analysis.review.wording import filter_choices, progress_text, row, saving_text

AHEAD: Final = 2
"""Takes that are read ahead."""


class ReviewPage:
    """One open page.

    Args:
        site: what it shares with the others.
    """

    def __init__(self, site: ReviewSite) -> None:
        self._site = site
        self._desk = site.desk
        self._filter = Filter()
        self._refused: str | None = None  # why a search can't be understood
        self._uids: list[str] = []
        self._place: dict[str, int] = {}
        self._uid = ""
        self._draft = TakeStatement()
        self._touched = False
        self._last_dimension = ""
        self._client = ui.context.client
        self._build()
        self._choose(Filter())
        site.pages.append(self._changed)
        site.ahead = self._ahead
        self._client.on_delete(lambda: site.pages.remove(self._changed))

    # What the page is made of

    def _build(self) -> None:
        with ui.element("div").classes("page"):
            with ui.element("header"):
                folder = self._desk.folder
                TextElement(tag="b", text=folder.root.name).props["title"] = str(folder.root)
                TextElement(tag="span", text=f"labelled by {self._desk.author}").classes("quiet")
                with ui.element("div").classes("progress"):
                    self._bar = ui.element("i")
                self._progress = TextElement(tag="span", text="").classes("count")
                self._status = TextElement(tag="span", text="").classes("status")
                with ui.element("div").classes("help").props("role=button") as button:
                    TextElement(tag="kbd", text="?")
                    TextElement(tag="span", text="keys")
                button.on("click", lambda: self.press("?"))
            with ui.element("nav"):
                self._filters()
                self._list = TakeList(lambda n: row(self._desk.take(self._uids[n])), self.open)
            with ui.element("main"):
                self._player = TakePlayer(self.press)
            self._panel = TakePanel(self._do, self._noted)
            self._help = dialogs.KeyHelp()
            self._agreement = dialogs.AgreementTable(self._desk)

    def _filters(self) -> None:
        offered = self._site.offered
        with ui.element("div").classes("filters"):
            self._search = ui.input(
                placeholder="Search, or lighting==dim  (/)", validation=lambda _: self._refused
            )
            self._search.props("dense outlined clearable debounce=250").classes("search")
            self._search.on_value_change(lambda e: self._by(text=e.value or ""))
            self._selects = {
                name: self._select(name, label, values)
                for name, label, values in filter_choices(offered)
            }

    def _select(self, name: str, label: str, values: Mapping[str, str]) -> ui.select:
        def chosen(value: str | None) -> None:
            ui.run_javascript("document.activeElement?.blur()")  # the keys are the page's again
            self._by(**{name: value or ""})

        select = ui.select(dict(values), label=label, clearable=True)
        select.props("dense outlined options-dense").classes("filter")
        select.on_value_change(lambda event: chosen(event.value))
        return select

    # Which takes, and which of them

    def _by(self, **changes: str) -> None:
        self._choose(replace(self._filter, **changes))

    def _choose(self, by: Filter) -> None:
        try:
            self._uids = self._desk.choose(by)
        except UnusableInputError as error:
            self._refused = str(error)
            return
        self._refused = None
        self._filter = by
        self._place = {uid: n for n, uid in enumerate(self._uids)}
        if self._uid in self._place:
            self._list_again()
        elif self._uids:
            self.open(self._uids[0])
        else:
            self._list_again()
        self._say_progress()

    def _list_again(self) -> None:
        nothing = "No take matches." if any(_asked(self._filter)) else "No takes here."
        self._list.show(len(self._uids), self._uid, self._place.get(self._uid, 0), nothing)

    def open(self, uid: str) -> None:
        """Open a take."""
        self._uid = uid
        self._start_over()
        self._list_again()
        background_tasks.create(self._load(uid))

    def _start_over(self) -> None:
        self._draft, self._touched = self._desk.starting_point(self._uid), False
        self._last_dimension = next(iter(self._draft.dimensions), "")
        self._show_panel()

    async def _load(self, uid: str) -> None:
        episode = self._desk.take(uid).episode
        prepared = await run.io_bound(self._site.preparer.take, episode)
        if prepared is None or uid != self._uid or self._client.is_deleted:
            return  # None: the page is closing
        self._player.show(uid, prepared)
        for later in [u for u in self._ahead()[1:] if self._desk.take(u).needs][:AHEAD]:
            await run.io_bound(self._site.preparer.ahead, self._desk.take(later).episode)
            if uid != self._uid:
                return

    def _ahead(self) -> list[str]:
        """Return the listed takes from the open one on, and then from the first one."""
        place = self._place.get(self._uid, 0)
        return self._uids[place:] + self._uids[:place]

    # Keys

    def press(self, name: str) -> None:
        """Do what a key does.

        Args:
            name: as browsers name it, such as "m" or "Enter".
        """
        dialog = self._help.box if self._help.box.value else self._agreement.box
        if dialog.value:
            dialog.close()
        elif name in BY_KEY:
            self._do(BY_KEY[name])

    def _do(self, key: Key) -> None:
        if key.action in _DRAFTS:
            if self._uid:
                self._edit(key)
            return
        page_wide: Mapping[str, Callable[[], object]] = {
            "save": self._save,
            "reset": self._start_over,
            "undo": lambda: self._taken_back(self._desk.undo(), "Nothing of yours is left."),
            "redo": lambda: self._taken_back(self._desk.redo(), "Nothing was taken back."),
            "next": self._next,
            "move": lambda: self._move(int(key.value)),
            "note": lambda: self._panel.note.run_method("focus"),
            "search": lambda: self._search.run_method("focus"),
            "disagreements": self._toggle_disagreements,
            "agreement": self._agreement.open,
            "help": self._help.open,
        }
        if self._uid or key.action in ("search", "help", "disagreements", "agreement", "undo"):
            page_wide[key.action]()

    def _edit(self, key: Key) -> None:
        if key.action == "weight":
            by = STEP if key.value == "+" else -STEP
            self._draft = self._draft.heavier(self._last_dimension, by)
        else:
            self._draft = _DRAFTS[key.action](self._draft, key.value)
        if key.action == "dimension":
            self._last_dimension = key.value
        self._touched = True
        self._show_panel()

    def _noted(self, note: str) -> None:
        if note != self._draft.note:
            self._draft, self._touched = replace(self._draft, note=note), True
            self._show_panel()

    def _save(self) -> None:
        if not self._touched and not _says_something(self._draft):
            self._notify("What was seen? Press a key of a mode, s for success, or n to skip.")
            return
        self._desk.say(self._uid, self._draft)
        self._say_progress()
        self._next()

    def _next(self) -> None:
        following = (u for u in self._ahead()[1:] if self._desk.take(u).needs)
        uid = next(following, "")
        if uid:
            self.open(uid)
            return
        self._start_over()
        self._list_again()
        self._notify("No other take in this list needs you.")

    def _move(self, step: int) -> None:
        place = self._place.get(self._uid, 0) + step
        if 0 <= place < len(self._uids):
            self.open(self._uids[place])

    def _taken_back(self, uid: str, nothing: str) -> None:
        if not uid:
            self._notify(nothing)
            return
        if uid not in self._place:
            self._notify("That take isn't in this list; it is changed all the same.")
            self._list_again()
        else:
            self.open(uid)
        self._say_progress()

    def _toggle_disagreements(self) -> None:
        on = self._filter.who == Who.DISAGREEMENT
        self._selects["who"].set_value(None if on else Who.DISAGREEMENT.value)

    # What has changed

    def _changed(self, uids: set[str]) -> None:
        """Show what has changed about some takes; the order of the list stays."""
        if self._client.is_deleted:
            return
        with self._client:
            if self._uid in uids and not self._touched:
                self._start_over()
            elif self._uid in uids:
                self._show_panel()
            if uids:
                self._list.refresh(self._uid)
            self._say_progress()

    def _show_panel(self) -> None:
        take, book = self._desk.take(self._uid), self._desk.book
        self._panel.show(
            Open(
                take=take,
                draft=self._draft,
                touched=self._touched,
                own=book.own(self._uid),
                others=book.others(self._uid),
                differ=book.differ(self._uid),
                waiting=self._site.waits_for(self._uid),
                suggestions=self._desk.use_suggestions,
            )
        )

    def _say_progress(self) -> None:
        now = self._desk.progress(self._uids)
        self._progress.set_text(progress_text(now, len(self._uids)))
        self._bar.style(f"width: {100 * now.done / max(now.total, 1):.1f}%")
        text, bad = saving_text(self._desk.saver, self._site.trouble)
        self._status.set_text(text)
        self._status.classes(add="bad" if bad else "", remove="" if bad else "bad")
        self._status.props["data-saved"] = self._desk.saver.saved

    def _notify(self, text: str) -> None:
        with self._client:
            ui.notify(text, position="top", timeout=2500, color="grey-9")


_DRAFTS: Final[Mapping[str, Callable[[TakeStatement, str], TakeStatement]]] = {
    "outcome": TakeStatement.with_outcome,
    "mode": TakeStatement.with_mode,
    "phase": TakeStatement.with_phase,
    "dimension": TakeStatement.with_dimension,
    "weight": lambda said, _: said,
}


def _says_something(said: TakeStatement) -> bool:
    if said.outcome == Outcome.FAILURE:
        return bool(said.failure_mode)
    return said.outcome in (Outcome.SUCCESS, Outcome.DISCARDED)


def _asked(by: Filter) -> list[str]:
    return [getattr(by, field.name) for field in fields(by)]

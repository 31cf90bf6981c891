"""The review page: list, player with signals, label; every key ends up here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import nicegui.elements.echart  # noqa: F401  (player.js imports ECharts by the name it gets here)
from nicegui import background_tasks, run, ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import DIMENSIONS, FailureMode, GapDimension, Outcome, Phase, set_up
from gaploop.failure_analysis.diagnosis import NO_MODE
from gaploop.failure_analysis.review.label_session import STEP, Said, TakeStatement
from gaploop.failure_analysis.review.site import ROLES, ReviewSite
from gaploop.failure_analysis.review.takes import Filter, Listed, Prepared, Who
from gaploop.failure_analysis.station import words

WINDOW: Final = 80
"""Rows that the browser holds at once."""


class TakeList(Element, component="take_list.js"):
    """A list of any length, of which only the rows around what can be seen are sent.

    `row` tells what a place's row shows; `on_pick` is called with the uid of one that is clicked.
    """

    def __init__(
        self, row: Callable[[int], Mapping[str, str]], on_pick: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._row = row
        self._total = 0
        self._first = 0
        self.props.update(total=0, first=0, rows="[]", selected="", nothing="")
        self.on("pick", lambda event: on_pick(str(event.args)))
        self.on("window", lambda event: self._move(int(event.args)))

    def show(self, total: int, selected: str, place: int, nothing: str = "") -> None:
        """Show a list anew, scrolled to the uid `selected` at its place, or what says `nothing`."""
        self._total = total
        if not self._first <= place < self._first + WINDOW - WINDOW // 4:
            self._first = max(0, min(place - WINDOW // 3, total - WINDOW))
        self.props.update(total=total, selected=selected, nothing=nothing)
        self._send()
        self.run_method("reveal", place)

    def refresh(self, selected: str) -> None:
        """Show the rows anew, without moving."""
        self.props.update(selected=selected)
        self._send()

    def _move(self, top: int) -> None:
        self._first = max(0, min(top - WINDOW // 3, self._total - WINDOW))
        self._send()

    def _send(self) -> None:
        last = min(self._first + WINDOW, self._total)
        rows = [dict(self._row(place)) for place in range(self._first, last)]
        # As text: NiceGUI would watch every one of its values for changes.
        self.props.update(first=self._first, rows=json.dumps(rows))


class TakePlayer(Element, component="player.js"):
    """The videos of a take with its signals below, and every key of the page but the player's."""

    def __init__(self, on_key: Callable[[str], None], on_mark: Callable[..., None]) -> None:
        super().__init__()
        keys = {name: key.value if key.action == PLAYER else "" for name, key in BY_KEY.items()}
        self.props.update(keys=keys, roles=list(ROLES))
        self.show("", Prepared({}, (), 1.0))
        self.on("key", lambda event: on_key(str(event.args)))
        self.on("mark", lambda event: on_mark(*event.args))

    def show(self, uid: str, shown: Prepared) -> None:
        """Show a take from its first frame on."""
        cameras: list[dict[str, Any]] = [{"name": n, "src": a} for n, a in shown.cameras.items()]
        self.props.update(
            uid=uid,
            cameras=cameras,
            frame_t_s=[round(float(t), 4) for t in shown.frame_t_s],
            fps=shown.fps,
            signals=shown.signals,
            marks=[list(mark) for mark in shown.marks],
            message=shown.message,
            outline={},
        )

    def show_outline(self, camera: str, frame: int, outline: str) -> None:
        """Draw over a camera's picture, as long as that frame is shown."""
        self.props.update(outline={"camera": camera, "frame": frame, "src": outline})


def show_keys(box: ui.dialog) -> None:
    """Show every key, made when it is first asked for."""
    if not box.default_slot.children:
        with box, ui.card().classes("sheet keys"):
            for group in GROUPS:
                with ui.element("section"):
                    TextElement(tag="h3", text=group)
                    for key in (k for k in KEYS if k.group == group):
                        with ui.element("div").classes("key"):
                            TextElement(tag="kbd", text=key.cap)
                            TextElement(tag="span", text=key.label)
    box.open()


LEAST_SHARE: Final = 0.05
"""Shares below this aren't drawn."""
MOST_EVIDENCE: Final = 4
MOST_LETTERS: Final = 22
"""Of a policy's or session's name."""


class Chip:
    """A word that can be said, with its key; lit while it is said."""

    def __init__(self, key: Key, press: Callable[[Key], None]) -> None:
        self.key = key
        self._box = ui.element("div").classes("chip").props("role=button")
        self._box.on("click", lambda: press(key))
        with self._box:
            TextElement(tag="kbd", text=key.cap)
            TextElement(tag="span", text=key.label)
            self._weight = TextElement(tag="b", text="")
        if key.action == "dimension":
            self._box.props["title"] = DIMENSIONS[GapDimension(key.value)].definition

    def show(self, on: bool, weight: str = "", maybe: bool = False) -> None:
        """Light it or not; `maybe` outlines it as a suggestion that nobody has taken."""
        for name, wanted in (("on", on), ("maybe", maybe)):
            self._box.classes(add=name if wanted else "", remove="" if wanted else name)
        self._weight.set_text(weight)


class TakePanel:
    """Shows what is open; says which chip was clicked, and the note while it is written."""

    def __init__(
        self, site: ReviewSite, press: Callable[[Key], None], on_note: Callable[[str], None]
    ) -> None:
        self._site = site
        self._shown: tuple[Listed, bool, object] | None = None
        self._chips: list[Chip] = []
        note, save = (next(k for k in KEYS if k.action == name) for name in ("note", "save"))
        with ui.element("div").classes("panel"):
            self._head = ui.element("div").classes("head")
            self._suggestion = ui.element("div").classes("suggestion")
            with ui.element("div").classes("label"):
                self._title = TextElement(tag="h3", text="Your label")
                for action in ("outcome", "mode", "phase", "dimension"):
                    with ui.element("div").classes(f"chips {action}"):
                        self._chips += [Chip(key, press) for key in KEYS if key.action == action]
                self.note = ui.input(placeholder=f"Note ({note.cap})")
                self.note.props("dense outlined debounce=150").classes("note")
                self.note.on_value_change(lambda event: on_note(event.value or ""))
                self._save = ui.element("div").classes("save").props("role=button")
                self._save.on("click", lambda: press(save))
                with self._save:
                    TextElement(tag="kbd", text="Enter")
                    self._save_text = TextElement(tag="span", text="")
            self._others = ui.element("div").classes("others")

    def show(self, uid: str, draft: TakeStatement, touched: bool) -> None:
        """Show a take, what is said about it, and what Enter would save, changed or not."""
        session, view = self._site.session, self._site.session.view
        take, own = session.take(uid), view.own(uid)
        shown = (take, self._site.waits_for(uid), self._site.report)
        if shown != self._shown:
            self._shown = shown
            shows = self._site.shows(take.episode.index)
            ended, recorded = session.ended.get(take.episode.index), ""
            if ended is not None and take.episode.outcome == Outcome.UNLABELLED:
                recorded = f"{session.column} says {'success' if ended else 'failure'}"
            _refill(self._head, lambda: _head(take, shows, recorded))
            if session.use_suggestions:
                _refill(self._suggestion, lambda: _suggestion(take, shown[1]))
        _refill(self._others, lambda: _others(view.others(uid), view.differ(uid)))
        for chip in self._chips:
            value = chip.key.value
            weight = draft.dimensions.get(value) if chip.key.action == "dimension" else None
            said = (draft.outcome, draft.failure_mode, draft.phase)
            chip.show(
                weight is not None or (chip.key.action != "dimension" and value in said),
                "" if weight is None else f"{weight:.2g}",
                not draft.dimensions and value == take.maybe != "",
            )
        by_recorder = draft.outcome != take.episode.outcome and not draft.failure_mode
        title = "Your label (as recorded)" if by_recorder else "Your label"
        title = "Your label (as suggested)" if draft.failure_mode else title
        if touched:
            title = "Your label (changed, not saved)"
        elif own:
            title = "Your label (saved)"
        self._title.set_text(title)
        self._save_text.set_text("save again, next" if own else "save, next")
        if self.note.value != draft.note:
            self.note.set_value(draft.note)


def _refill(box: ui.element, fill: Callable[[], None]) -> None:
    box.clear()
    with box:
        fill()


def _text(words_: str, kind: str = "", tag: str = "div") -> None:
    TextElement(tag=tag, text=words_).classes(kind)


def _head(take: Listed, shows: Sequence[str], recorded: str) -> None:
    episode, info = take.episode, take.episode.info
    title = TextElement(tag="h2", text=f"#{episode.index} · {episode.outcome.value}")
    title.props["title"] = info.uid
    _text(info.task or "no task", "task")
    seconds = f"{episode.length / info.fps:.1f} s" if episode.length and info.fps else ""
    facts = [
        info.kind.value,
        info.domain.value.replace("_", "-"),
        seconds,
        info.robot_type,
        recorded,
    ]
    named = {"policy": info.policy, "session": info.session, "operator": info.operator}
    for what, name in named.items():
        if name:  # without the end of a hash or uid in it
            short = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
            facts.append(f"{what} {short}")
    _text(" · ".join(fact for fact in facts if fact), "facts")
    if set_up(info.conditions):
        _text(", ".join(f"{words(k)} {v}" for k, v in set_up(info.conditions).items()), "facts")
    for sentence in shows:
        _text(sentence, "shows")


def _suggestion(take: Listed, waiting: bool) -> None:
    found = take.found
    _text("Suggested", tag="h3")
    if found is None:
        missing = "diagnosing …" if waiting else "nothing: this episode isn't diagnosed"
        _text(missing, "quiet")
        return
    mode = "no failure seen" if found.mode == NO_MODE else words(found.mode)
    when = f" in {found.phase}" if found.phase else ""
    why = "no clear cause" if found.abstained else words(found.top)
    if take.maybe:
        why += f", perhaps {words(take.maybe)}"
    _text(f"{mode}{when}: {why}", "verdict")
    shares = sorted(found.dimensions.items(), key=lambda pair: -pair[1])
    shown = [(words(n), share) for n, share in shares if share >= LEAST_SHARE][:4]
    for name, share in [*shown, ("none of these", found.none)] if found.leaning else ():
        with ui.element("div").classes("bar"):
            _text(name, "name", "span")
            with ui.element("span").classes("track"):
                ui.element("i").style(f"width: {share:.0%}")
            _text(f"{share:.0%}", "share", "span")
    for seen in found.evidence[:MOST_EVIDENCE]:
        _text(seen.message, "evidence")
    if found.unseen:
        _text(f"Not seen: {', '.join(found.unseen)}", "quiet")


def _others(others: Mapping[str, Said], differ: Collection[str]) -> None:
    for author, said in others.items():
        _text(f"{author} says", tag="h3")
        for name, event in said.items():
            if isinstance(event.value, Mapping):
                value = ", ".join(f"{words(n)} {weight:.2g}" for n, weight in event.value.items())
            else:
                value = str(event.value)
                value = words(value) if value in set(FailureMode) else value
            if value:
                kind = "differs" if name in differ else "same"
                _text(f"{words(name)}: {value}", kind)
        note = next((event.note for event in said.values() if event.note), "")
        if note:
            _text(f"“{note}”", "quiet")


def row(take: Listed, shows: Sequence[str]) -> dict[str, str]:
    """Return what a take's row in the list shows; `shows`: what it shows by itself."""
    outcome = take.episode.outcome
    mark, state, says = "", "", ""
    if take.differ:
        mark, state, says = "≠", "differ", "people disagree"
    elif take.done:
        mark, state, says = "✓", "done", "labelled by you"
    elif take.needs:
        mark, state, says = "●", "needs", "needs you"
    return {
        "uid": take.uid,
        "number": f"#{take.episode.index}",
        "mark": mark,
        "state": f"{state} {outcome.value} {'' if take.episode.failure_mode else 'guess'}",
        "what": words(take.mode or outcome.value),
        "why": words(take.why)
        or (f"perhaps {words(take.maybe)}" if take.maybe else "")
        or ("⚑" if shows else ""),
        "says": "; ".join(filter(None, [says, *shows])),
    }


AHEAD: Final = 2
"""Takes that are read ahead."""


class ReviewPage:
    """One open page; `project` names the folder that the other tab shows."""

    def __init__(self, site: ReviewSite, project: str) -> None:
        self._site = site
        self._session = site.session
        self._filter = Filter()
        self._refused: str | None = None  # why a search can't be understood
        self._uids: list[str] = []
        self._place: dict[str, int] = {}
        self._uid = ""
        self._draft = TakeStatement()
        self._touched = False
        self._last_dimension = ""
        self._last_key: Key | None = None
        self._client = ui.context.client
        # What the page is made of.
        with ui.element("div").classes("page"):
            with ui.element("header"):
                folder = self._session.store
                TextElement(tag="b", text=folder.root.name).props["title"] = str(folder.root)
                TextElement(tag="span", text="Episodes")
                ui.link("Project", "project").classes("tab").tooltip(project)
                TextElement(tag="span", text=f"labelled by {self._session.author}").classes("quiet")
                with ui.element("div").classes("progress"):
                    self._bar = ui.element("i")
                self._progress = TextElement(tag="span", text="").classes("count")
                self._status = TextElement(tag="span", text="").classes("status")
                with ui.element("div").classes("help").props("role=button") as button:
                    TextElement(tag="kbd", text="?")
                    TextElement(tag="span", text="keys")
                button.on("click", lambda: self.press("?"))
            with ui.element("nav"):
                with ui.element("div").classes("filters"):
                    self._search = ui.input(
                        placeholder="Search, or lighting=dim  (/)",
                        validation=lambda _: self._refused,
                    )
                    self._search.props("dense outlined clearable debounce=250").classes("search")
                    self._search.on_value_change(lambda e: self._by(text=e.value or ""))
                    choices = {"who": [who.value for who in Who], **self._site.offered}
                    self._selects = {
                        name: self._select(name, found) for name, found in choices.items()
                    }
                self._list = TakeList(self._row, self.open)
            with ui.element("main"):
                self._player = TakePlayer(self.press, self._mark)
            self._panel = TakePanel(self._site, self._do, self._noted)
            self._help = ui.dialog()
        self._choose(Filter())
        site.pages.append(self._changed)
        site.ahead = self._ahead
        self._client.on_delete(lambda: site.pages.remove(self._changed))

    def _select(self, name: str, values: Sequence[str]) -> ui.select:
        def chosen(value: str | None) -> None:
            ui.run_javascript("document.activeElement?.blur()")  # the keys are the page's again
            self._by(**{name: value or ""})

        # Names that people gave are shown as they are.
        given = name in ("condition", "session", "policy")
        shown = {value: value if given else words(value) for value in values}
        select = ui.select(shown, label="show" if name == "who" else name, clearable=True)
        select.props("dense outlined options-dense").classes("filter")
        select.on_value_change(lambda event: chosen(event.value))
        return select

    # Which takes, and which of them

    def _by(self, **changes: str) -> None:
        self._choose(replace(self._filter, **changes))

    def _choose(self, by: Filter) -> None:
        try:
            self._uids = self._session.choose(by)
        except UnusableInputError as error:
            self._refused = str(error)
            return
        self._refused = None
        self._filter = by
        self._place = {uid: n for n, uid in enumerate(self._uids)}
        if self._uids and self._uid not in self._place:
            self.open(self._uids[0])
        else:
            self._list_again()
        self._say_progress()

    def _row(self, place: int) -> dict[str, str]:
        take = self._session.take(self._uids[place])
        return row(take, self._site.shows(take.episode.index))

    def _list_again(self) -> None:
        nothing = "No episodes here." if self._filter == Filter() else "No episode matches."
        self._list.show(len(self._uids), self._uid, self._place.get(self._uid, 0), nothing)

    def open(self, uid: str) -> None:
        """Open a take."""
        self._uid = uid
        self._start_over()
        self._list_again()
        background_tasks.create(self._load(uid))

    def _start_over(self) -> None:
        self._draft, self._touched = self._session.starting_point(self._uid), False
        self._last_dimension = next(iter(self._draft.dimensions), "")
        self._last_key = None
        self._show_panel()

    async def _load(self, uid: str) -> None:
        episode = self._session.take(uid).episode
        prepared = await run.io_bound(self._site.preparer.take, episode)
        if prepared is None or uid != self._uid or self._client.is_deleted:
            return  # None: the page is closing
        self._player.show(uid, prepared)
        for later in [u for u in self._ahead()[1:] if self._session.take(u).needs][:AHEAD]:
            await run.io_bound(self._site.preparer.ahead, self._session.take(later).episode)
            if uid != self._uid:
                return

    def _mark(self, role: str, camera: str, frame: int, right: float, down: float) -> None:
        """Take the colour of what was clicked on for the station's object or target."""

        async def mark(uid: str) -> None:
            try:
                told = await run.io_bound(self._site.mark, uid, role, camera, frame, right, down)
            except (UnusableInputError, OSError) as error:
                told = "", str(error)
            if told is None or uid != self._uid or self._client.is_deleted:
                return  # None: the page is closing
            self._player.show_outline(camera, frame, told[0])
            with self._client:
                ui.notify(told[1], multi_line=True, timeout=12_000, close_button="Close")

        background_tasks.create(mark(self._uid))

    def _ahead(self) -> list[str]:
        """Return the listed takes from the open one on, and then from the first one."""
        place = self._place.get(self._uid, 0)
        return self._uids[place:] + self._uids[:place]

    # Keys

    def press(self, name: str) -> None:
        """Do what a key does, named as browsers name it, such as "m" or "Enter"."""
        if self._help.value:
            self._help.close()
        elif name in BY_KEY:
            self._do(BY_KEY[name])

    def _do(self, key: Key) -> None:
        if key.action in _DRAFTS:
            if self._uid:
                if key.action == "weight":
                    by = STEP if key.value == "+" else -STEP
                    self._draft = self._draft.heavier(self._last_dimension, by)
                elif key.action == "dimension" and key == self._last_key:
                    self._draft = self._draft.lighter(key.value)
                else:
                    self._draft = _DRAFTS[key.action](self._draft, key.value)
                if key.action == "dimension":
                    self._last_dimension = key.value
                self._last_key = key
                self._touched = True
                self._show_panel()
            return
        page_wide: Mapping[str, Callable[[], object]] = {
            "save": self._save,
            "reset": self._start_over,
            "undo": lambda: self._retracted(self._session.undo(), "Nothing of yours is left."),
            "redo": lambda: self._retracted(self._session.redo(), "Nothing was taken back."),
            "next": self._next,
            "move": lambda: self._move(int(key.value)),
            "note": lambda: self._panel.note.run_method("focus"),
            "search": lambda: self._search.run_method("focus"),
            "disagreements": self._toggle_disagreements,
            "help": lambda: show_keys(self._help),
        }
        if self._session.locked and key.action in ("save", "undo", "redo"):
            self._notify(self._session.locked)
        elif self._uid or key.action in ("search", "help", "disagreements", "undo"):
            page_wide[key.action]()

    def _noted(self, note: str) -> None:
        if note != self._draft.note:
            self._draft, self._touched = replace(self._draft, note=note), True
            self._show_panel()

    def _save(self) -> None:
        draft = self._draft
        says = draft.outcome in (Outcome.SUCCESS, Outcome.DISCARDED) or (
            draft.outcome == Outcome.FAILURE and draft.failure_mode
        )
        if not self._touched and not says:
            self._notify("What was seen? Press a key of a mode, s for success, or n to skip.")
            return
        self._session.say(self._uid, draft)
        self._say_progress()
        self._next()

    def _next(self) -> None:
        following = (u for u in self._ahead()[1:] if self._session.take(u).needs)
        uid = next(following, "")
        if uid:
            self.open(uid)
            return
        self._start_over()
        self._list_again()
        self._notify("No other episode in this list needs you.")

    def _move(self, step: int) -> None:
        place = self._place.get(self._uid, 0) + step
        if 0 <= place < len(self._uids):
            self.open(self._uids[place])

    def _retracted(self, uid: str, nothing: str) -> None:
        if not uid:
            self._notify(nothing)
            return
        if uid not in self._place:
            self._notify("That episode isn't in this list; it is changed all the same.")
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
        self._panel.show(self._uid, self._draft, self._touched)

    def _say_progress(self) -> None:
        now, saver = self._session.progress(self._uids), self._session.saver
        parts = [f"{now.done} of {now.total} labelled", f"{len(self._uids)} listed"]
        if now.rate_per_min:
            parts.append(f"{now.rate_per_min:.1f} a minute")
            if now.left_s is not None and now.done < now.total:
                parts.append(f"{max(1, math.ceil(now.left_s / 60))} min left")
        self._progress.set_text(" · ".join(parts))
        self._bar.style(f"width: {100 * now.done / max(now.total, 1):.1f}%")
        wrong = saver.trouble or self._site.trouble or self._session.locked
        waiting = saver.waiting
        text = f"saved {saver.saved}" if saver.saved else ""
        if wrong:
            more = f" {waiting} not saved yet, kept here."
            text = f"{wrong.removesuffix('.')}.{more}" if waiting else wrong
        elif waiting:
            text = "saving …"
        self._status.set_text(text)
        self._status.classes(add="bad" if wrong else "", remove="" if wrong else "bad")
        self._status.props["data-saved"] = saver.saved

    def _notify(self, text: str) -> None:
        with self._client:
            ui.notify(text, position="top", timeout=2500, color="grey-9")


_DRAFTS: Final[Mapping[str, Callable[[TakeStatement, str], TakeStatement]]] = {
    "outcome": TakeStatement.with_outcome,
    "mode": TakeStatement.with_mode,
    "phase": TakeStatement.with_phase,
    "dimension": TakeStatement.with_dimension,
    "weight": lambda said, _: said,
    "clear": lambda said, _: said.cleared(),
}


# -- Every key: one table for the page, its help and the documentation


@dataclass(frozen=True)
class Key:
    """One key, as browsers name it (KeyboardEvent.key), `Shift+` before names of several letters.

    What it does, with which value; actions of `PLAYER` are done by the browser itself.
    """

    key: str
    action: str
    value: str
    label: str
    group: str

    @property
    def cap(self) -> str:
        """What is printed on the key."""
        shifted = len(self.key) == 1 and self.key.isupper()
        return f"⇧{self.key}" if shifted else _CAPS.get(self.key, self.key)


PLAYER: Final = "player"
_CAPS: Final = {
    " ": "Space",
    "ArrowLeft": "←",
    "ArrowRight": "→",
    "ArrowUp": "↑",
    "ArrowDown": "↓",
    "Shift+ArrowLeft": "⇧←",
    "Shift+ArrowRight": "⇧→",
    "Backspace": "⌫",
    "Escape": "Esc",
}

_MODES: Final = {
    FailureMode.FROZEN: "f",
    FailureMode.OSCILLATION: "o",
    FailureMode.DRIFT: "d",
    FailureMode.COLLISION: "c",
    FailureMode.OBSTRUCTION: "b",
    FailureMode.MISSED_GRASP: "m",
    FailureMode.SLIP: "l",
    FailureMode.MISPLACEMENT: "p",
    FailureMode.TIMEOUT: "t",
    FailureMode.OPERATOR_STOP: "x",
}
_PHASES: Final = {
    Phase.APPROACH: "A",
    Phase.GRASP: "G",
    Phase.TRANSPORT: "T",
    Phase.PLACE: "P",
    Phase.RETREAT: "R",
}
_OUTCOMES: Final = {Outcome.SUCCESS: "s", Outcome.FAILURE: "F", Outcome.DISCARDED: "D"}


def _of[T: str](table: dict[T, str], action: str, group: str) -> tuple[Key, ...]:
    return tuple(Key(key, action, str(value), words(value), group) for value, key in table.items())


_GO: Final = "Save and move"
_SEE: Final = "Video"
_LOOK: Final = "Page"

KEYS: Final[tuple[Key, ...]] = (
    Key("Enter", "save", "", "save what the label shows, go to the next that needs you", _GO),
    Key("0", "clear", "", "no mode, no phase, no cause", _GO),
    Key("Backspace", "reset", "", "back to what is suggested", _GO),
    Key("u", "undo", "", "take back what you said last", _GO),
    Key("U", "redo", "", "say it again", _GO),
    Key("n", "next", "", "next episode that needs you, saving nothing", _GO),
    Key("j", "move", "1", "next episode", _GO),
    Key("k", "move", "-1", "episode before", _GO),
    Key("ArrowDown", "move", "1", "next episode", _GO),
    Key("ArrowUp", "move", "-1", "episode before", _GO),
    *_of(_OUTCOMES, "outcome", "How it ended"),
    *_of(_MODES, "mode", "What was seen"),
    *_of(_PHASES, "phase", "When"),
    *_of({d: str(n) for n, d in enumerate(GapDimension, 1)}, "dimension", "Why"),
    Key("+", "weight", "+", "more weight on the dimension pressed last", "Why"),
    Key("-", "weight", "-", "less weight on it", "Why"),
    Key(" ", PLAYER, "toggle", "play, pause", _SEE),
    Key("ArrowLeft", PLAYER, "-1", "one frame back", _SEE),
    Key("ArrowRight", PLAYER, "1", "one frame on", _SEE),
    Key("Shift+ArrowLeft", PLAYER, "-10", "ten frames back", _SEE),
    Key("Shift+ArrowRight", PLAYER, "10", "ten frames on", _SEE),
    Key("Home", PLAYER, "start", "first frame", _SEE),
    Key("End", PLAYER, "end", "last frame", _SEE),
    Key(",", PLAYER, "slower", "slower", _SEE),
    Key(".", PLAYER, "faster", "faster", _SEE),
    Key("e", "note", "", "write a note; Esc or Enter leaves it", _LOOK),
    Key("/", "search", "", "search; Esc leaves it", _LOOK),
    Key("v", "disagreements", "", "only episodes on which people disagree, or all again", _LOOK),
    Key("?", "help", "", "this help", _LOOK),
)

GROUPS: Final = tuple(dict.fromkeys(k.group for k in KEYS))
BY_KEY: Final = {k.key: k for k in KEYS} | {"=": next(k for k in KEYS if k.key == "+")}
"""`=` is `+` without Shift on an American keyboard."""

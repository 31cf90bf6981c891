"""The right side of the page: what is known about a take, what is suggested, what one says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import DIMENSIONS, FailureMode, GapDimension
from gaploop.failure_analysis.diagnosis import NO_MODE, TakeDiagnosis
from gaploop.failure_analysis.review.choice import Listed
from gaploop.failure_analysis.review.keys import KEYS, Key, cap_of, words
from gaploop.failure_analysis.review.label_store import Said
from gaploop.failure_analysis.review.statement import TakeStatement

LEAST_SHARE: Final = 0.05
"""Shares below this aren't drawn."""
MOST_EVIDENCE: Final = 4
MOST_LETTERS: Final = 22
"""Of a policy's or session's name."""


@dataclass(frozen=True)
class Open:
    """What is open in the page.

    Attributes:
        take: as the labeller sees it.
        draft: what Enter would save.
        touched: the draft was changed by hand.
        own: what the labeller has said.
        others: what others say, by author, as far as it may be seen.
        differ: fields on which people differ.
        waiting: the take is about to be diagnosed.
        suggestions: suggestions are shown at all.
    """

    take: Listed
    draft: TakeStatement
    touched: bool
    own: Said
    others: Mapping[str, Said]
    differ: tuple[str, ...]
    waiting: bool
    suggestions: bool


class Chip:
    """A word that can be said, with its key; lit while it is said."""

    def __init__(self, key: Key, press: Callable[[Key], None]) -> None:
        self.key = key
        self._box = ui.element("div").classes("chip").props("role=button")
        self._box.on("click", lambda: press(key))
        with self._box:
            TextElement(tag="kbd", text=key.cap)
            TextElement(tag="span", text=key.says)
            self._weight = TextElement(tag="b", text="")
        tip = _tip(key)
        if tip:
            self._box.props["title"] = tip

    def show(self, on: bool, weight: str = "") -> None:
        """Light it or not."""
        self._box.classes(add="on" if on else "", remove="" if on else "on")
        self._weight.set_text(weight)


def _tip(key: Key) -> str:
    if key.action == "dimension":
        return DIMENSIONS[GapDimension(key.value)].definition
    return ""


class TakePanel:
    """Shows what is open; says which key was clicked.

    Args:
        press: called with the key of a chip that was clicked.
        on_note: called with the note while it is written.
    """

    def __init__(self, press: Callable[[Key], None], on_note: Callable[[str], None]) -> None:
        self._shown: tuple[object, ...] = ()
        self._press = press
        with ui.element("div").classes("panel"):
            self._head = ui.element("div").classes("head")
            self._suggestion = ui.element("div").classes("suggestion")
            with ui.element("div").classes("label"):
                self._title = TextElement(tag="h3", text="Your label")
                self._chips = [
                    chip
                    for action in ("outcome", "mode", "phase", "dimension")
                    for chip in self._group(action)
                ]
                self.note = ui.input(placeholder=f"Note ({cap_of('note', '')})")
                self.note.props("dense outlined debounce=150").classes("note")
                self.note.on_value_change(lambda event: on_note(event.value or ""))
                self._save = ui.element("div").classes("save").props("role=button")
                self._save.on("click", lambda: press(_key("save")))
                with self._save:
                    TextElement(tag="kbd", text="Enter")
                    self._save_text = TextElement(tag="span", text="")
            self._others = ui.element("div").classes("others")

    def _group(self, action: str) -> list[Chip]:
        with ui.element("div").classes(f"chips {action}"):
            return [Chip(key, self._press) for key in KEYS if key.action == action]

    def show(self, now: Open) -> None:
        """Show a take and what is said about it."""
        shown = (now.take, now.waiting)
        if shown != self._shown:
            self._shown = shown
            _refill(self._head, lambda: _head(now))
            _refill(self._suggestion, lambda: _suggestion(now))
        _refill(self._others, lambda: _others(now))
        draft = now.draft
        for chip in self._chips:
            value = chip.key.value
            weight = draft.dimensions.get(value) if chip.key.action == "dimension" else None
            said = (draft.outcome, draft.failure_mode, draft.phase)
            chip.show(
                weight is not None or (chip.key.action != "dimension" and value in said),
                "" if weight is None else f"{weight:.2g}",
            )
        self._title.set_text(_title(now))
        self._save_text.set_text("save again, next" if now.own else "save, next")
        if self.note.value != draft.note:
            self.note.set_value(draft.note)


def _key(action: str) -> Key:
    return next(key for key in KEYS if key.action == action)


def _refill(box: ui.element, fill: Callable[[], None]) -> None:
    box.clear()
    with box:
        fill()


def _text(words_: str, kind: str = "", tag: str = "div") -> None:
    TextElement(tag=tag, text=words_).classes(kind)


def _title(now: Open) -> str:
    if now.own and not now.touched:
        return "Your label (saved)"
    if now.touched:
        return "Your label (changed, not saved)"
    return "Your label (as suggested)" if now.draft.failure_mode else "Your label"


def _head(now: Open) -> None:
    episode, info = now.take.episode, now.take.episode.info
    title = TextElement(tag="h2", text=f"#{episode.index} · {episode.outcome.value}")
    title.props["title"] = info.uid
    _text(info.task or "no task", "task")
    seconds = f"{episode.length / info.fps:.1f} s" if episode.length and info.fps else ""
    facts = [info.kind.value, info.domain.value.replace("_", "-"), seconds, info.robot_type]
    named = {"policy": info.policy, "session": info.session, "operator": info.operator}
    facts += [f"{name} {_short(value)}" for name, value in named.items() if value]
    _text(" · ".join(fact for fact in facts if fact), "facts")
    if info.conditions:
        _text(", ".join(f"{words(k)} {v}" for k, v in info.conditions.items()), "facts")


def _short(name: str) -> str:
    """Return a name without the end of a hash or uid in it."""
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


def _suggestion(now: Open) -> None:
    found = now.take.found
    if not now.suggestions:
        return
    _text("Suggested", tag="h3")
    if found is None:
        missing = "looking at it …" if now.waiting else "nothing: this take isn't diagnosed"
        _text(missing, "quiet")
        return
    mode = "no failure seen" if found.mode == NO_MODE else words(found.mode)
    when = f" in {found.phase}" if found.phase else ""
    why = "no clear cause" if found.abstained else words(found.top)
    _text(f"{mode}{when}: {why}", "verdict")
    _bars(found)
    for seen in found.evidence[:MOST_EVIDENCE]:
        _text(seen.message, "evidence")
    if found.unseen:
        _text(f"Not seen: {', '.join(found.unseen)}", "quiet")


def _bars(found: TakeDiagnosis) -> None:
    shares = sorted(found.dimensions.items(), key=lambda pair: -pair[1])
    shown = [(words(n), share) for n, share in shares if share >= LEAST_SHARE][:4]
    for name, share in [*shown, ("none of these", found.none)]:
        with ui.element("div").classes("bar"):
            _text(name, "name", "span")
            with ui.element("span").classes("track"):
                ui.element("i").style(f"width: {share:.0%}")
            _text(f"{share:.0%}", "share", "span")


def _others(now: Open) -> None:
    for author, said in now.others.items():
        _text(f"{author} says", tag="h3")
        for name, event in said.items():
            if value := _value(event):
                kind = "differs" if name in now.differ else "same"
                _text(f"{words(name)}: {value}", kind)
        note = next((event.note for event in said.values() if event.note), "")
        if note:
            _text(f"“{note}”", "quiet")


def _value(event: LabelEvent) -> str:
    if isinstance(event.value, Mapping):
        return ", ".join(f"{words(name)} {weight:.2g}" for name, weight in event.value.items())
    value = str(event.value)
    return words(value) if value in set(FailureMode) else value

"""What the operator sees where there is no window: the same, in letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gaploop.collect.operator.view import Shown, Tone
from gaploop.collect.setup_words import sketch_text

if TYPE_CHECKING:
    from rich.console import RenderableType

_TONES: Final = {
    Tone.RECORD: "bold white on red",
    Tone.GO: "bold white on green",
    Tone.ASK: "bold white on blue",
    Tone.WAIT: "bold black on yellow",
    Tone.ALARM: "bold white on red",
    Tone.PERSON: "bold white on magenta",
    Tone.IDLE: "bold black on white",
}
_BAR: Final = 24


def render(shown: Shown, wide: int = 80) -> RenderableType:
    """Return the view for Rich.

    Args:
        shown: what to show.
        wide: columns of the terminal.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    head = f"{shown.word}   {shown.clock}".rstrip()
    parts: list[RenderableType] = [
        Padding(Text(head.center(wide - 2)), (1, 1), style=_TONES[shown.tone]),
        Text(shown.below, style="bold"),
    ]
    parts += [Text(words, style=style) for words, style in _lines(shown)]
    return Group(*parts)


def _lines(shown: Shown) -> Iterator[tuple[str, str]]:
    if shown.share == shown.share:
        yield _bar(shown.share), ""
    yield f"{shown.count}   {shown.loop}", "yellow" if shown.trouble else ""
    if shown.driving:
        yield shown.driving, ""
    if shown.choices:
        yield "", ""
        yield shown.question, "bold"
    for choice in shown.choices:
        mark = ">" if choice.marked else " "
        words = f" {mark} {choice.key:>6}  {choice.words}"
        words += "  (suggested)" if choice.suggested else ""
        yield words, "reverse" if choice.marked else ""
    if shown.setup.words:
        yield f"set-up: {shown.setup.words}", ""
        if sketch := sketch_text(shown.setup.conditions, shown.setup.grid):
            yield sketch, "dim"
    for bar in shown.bars:
        share = bar.have / bar.wanted if bar.wanted else 1.0
        yield f"{_bar(share)} {bar.have}/{bar.wanted} {bar.name}", "green" if share >= 1 else ""
    for row in shown.rows:
        yield f"{'>' if row.pointed else ' '} {row.number:>3}  {row.words}", ""
    if shown.note:
        yield shown.note, "bold yellow"
    yield " · ".join(f"{hint.key}: {hint.does}" for hint in shown.hints), "dim"


def _bar(share: float) -> str:
    done = round(_BAR * min(1.0, max(0.0, share)))
    return "█" * done + "░" * (_BAR - done)


def line(shown: Shown) -> str:
    """Return the view as one line, for logs."""
    parts = (
        *(shown.word.lower(), shown.clock, shown.below, shown.count),
        *(shown.loop, shown.driving, shown.note),
    )
    return " · ".join(part for part in parts if part)

"""What opens over the page: the keys, and how far people agree."""

from __future__ import annotations

import math

from nicegui import background_tasks, run, ui
from nicegui.elements.mixins.text_element import TextElement

from gaploop.datasets.labels.agreement import Agreement
from gaploop.failure_analysis.review.keys import GROUPS, KEYS, words
from gaploop.failure_analysis.review.label_session import LabelSession


class KeyHelp:
    """Every key, made when it is first asked for."""

    def __init__(self) -> None:
        self.box = ui.dialog()
        self._made = False

    def open(self) -> None:
        """Show it."""
        if not self._made:
            self._made = True
            with self.box, ui.card().classes("sheet keys"):
                for group in GROUPS:
                    with ui.element("section"):
                        TextElement(tag="h3", text=group)
                        for key in (k for k in KEYS if k.group == group):
                            with ui.element("div").classes("key"):
                                TextElement(tag="kbd", text=key.cap)
                                TextElement(tag="span", text=key.says)
        self.box.open()


class AgreementTable:
    """Kappa and raw agreement, over the takes whose labels the labeller may see."""

    def __init__(self, desk: LabelSession) -> None:
        self._desk = desk
        self.box = ui.dialog()
        with self.box:
            self._card = ui.card().classes("sheet")

    def open(self) -> None:
        """Compute it and show it."""
        self.box.open()
        background_tasks.create(self._fill())

    async def _fill(self) -> None:
        found = await run.io_bound(self._desk.agreement)
        self._card.clear()
        with self._card:
            TextElement(tag="h3", text="How far people agree")
            if not found:
                TextElement(tag="p", text="Nobody to compare: it takes two people's labels.")
                return
            rows = [_row(a) for a in found if a.takes]
            ui.table(columns=_COLUMNS, rows=rows, row_key="id").props("flat dense")
            TextElement(
                tag="p",
                text="In brackets 95 % intervals. Kappa: 1 is full agreement, 0 is chance. Only "
                "takes that you have labelled count, unless others' labels are shown.",
            ).classes("quiet")


_COLUMNS = [
    {"name": name, "label": label, "field": name, "align": "left"}
    for name, label in (
        ("field", ""),
        ("people", "people"),
        ("takes", "takes"),
        ("raw", "agree"),
        ("kappa", "kappa"),
    )
]


def _row(found: Agreement) -> dict[str, str]:
    low, high = found.raw_interval
    below, above = found.kappa_interval
    kappa = f"{found.kappa:.2f} [{below:.2f}, {above:.2f}]"
    return {
        "id": f"{found.field} {found.authors}",
        "field": words(found.field),
        "people": ", ".join(found.authors),
        "takes": str(found.takes),
        "raw": f"{found.raw:.0%} [{low:.0%}, {high:.0%}]",
        "kappa": "always one word" if math.isnan(found.kappa) else kappa,
    }

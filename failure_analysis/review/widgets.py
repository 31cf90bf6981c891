"""The two parts of the page that the browser runs by itself: the list and the player."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import nicegui.elements.echart  # noqa: F401  (player.js imports ECharts by the name it gets here)
from nicegui.element import Element

from gaploop.failure_analysis.review.keys import BY_KEY, PLAYER
from gaploop.failure_analysis.review.prepare import Prepared

WINDOW: Final = 80
"""Rows that the browser holds at once."""


class TakeList(Element, component="take_list.js"):
    """A list of any length, of which only the rows around what can be seen are sent.

    Args:
        row: from a place in the list to what its row shows.
        on_pick: called with the uid of a row that is clicked.
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
        """Show a list anew.

        Args:
            total: how many rows it has.
            selected: uid of the one that is open.
            place: where that one stands; scrolled to.
            nothing: said where there is no row.
        """
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
    """The videos of a take with its signals below, and every key of the page.

    Args:
        on_key: called with the name of every key that isn't the player's own.
    """

    def __init__(self, on_key: Callable[[str], None]) -> None:
        super().__init__()
        keys = {name: key.value if key.action == PLAYER else "" for name, key in BY_KEY.items()}
        self.props.update(keys=keys)
        self.show("", Prepared({}, (), 1.0))
        self.on("key", lambda event: on_key(str(event.args)))

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
        )

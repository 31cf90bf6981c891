"""Building blocks of reports: one self-contained page, with figures as embedded PNG.

page("Demo", [section("Success", "Before and after.", [figure(png, "…"), table(…)])])
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import jinja2
import numpy as np
from markupsafe import Markup, escape

from gaploop.core.files import write_atomically
from gaploop.core.types import Image

_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("gaploop.failure_analysis.report", "."),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
)


FONTS: Final = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
}
"""The page's own, so that figures look like part of it."""


@dataclass(frozen=True)
class Section:
    """A headed part of a page.

    Attributes:
        title: its heading.
        body: HTML; build it with the functions of this module, which escape what they are given.
    """

    title: str
    body: str


def section(title: str, lead: str = "", blocks: Iterable[Markup] = ()) -> Section:
    """Return a section of blocks, with one sentence first that says what to take from it."""
    first = Markup('<p class="lead">{}</p>').format(lead) if lead else Markup("")
    return Section(title, Markup("\n").join([first, *blocks]))


def page(title: str, sections: Iterable[Section], *, subtitle: str = "", footer: str = "") -> str:
    """Return one self-contained HTML page."""
    template = _ENVIRONMENT.get_template("page.html")
    return template.render(
        title=title, subtitle=subtitle, sections=list(sections), footer=footer or "Made by gaploop."
    )


def figure_png(fig: Any, dpi: int = 144) -> bytes:
    """Return a matplotlib figure as PNG."""
    import matplotlib as mpl  # here: reports only

    with io.BytesIO() as stream, mpl.rc_context(FONTS):
        fig.savefig(stream, format="png", dpi=dpi, bbox_inches="tight", facecolor="white")
        return stream.getvalue()


def save_figure(fig: Any, path: Path, caption: str = "") -> Markup:
    """Write a matplotlib figure as PNG to `path` and return it as an embedded figure."""
    png = figure_png(fig)
    write_atomically(path, png)
    return figure(png, caption)


def picture_png(picture: Image) -> bytes:
    """Return an RGB picture, shape (height, width, 3), as PNG."""
    done, data = cv2.imencode(".png", cv2.cvtColor(np.asarray(picture), cv2.COLOR_RGB2BGR))
    return data.tobytes() if done else b""


def _source(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def figure(png: bytes, caption: str = "", width_px: int | None = None) -> Markup:
    """Return a figure with a caption."""
    style = Markup(' style="width:{}px"').format(width_px) if width_px else Markup("")
    return Markup('<figure><img src="{}" alt="{}"{}><figcaption>{}</figcaption></figure>').format(
        _source(png), caption, style, caption
    )


def text(words: str) -> Markup:
    """Return a paragraph."""
    return Markup("<p>{}</p>").format(words)


def notice(words: str, kind: str = "") -> Markup:
    """Return a marked paragraph; `kind` is "", "good" or "bad"."""
    return Markup('<p class="notice {}">{}</p>').format(kind, words)


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return a row of large numbers: (value, what it is)."""
    cells = (Markup("<div class=fact><b>{}</b><span>{}</span></div>").format(*p) for p in pairs)
    return Markup("<div class=facts>{}</div>").format(Markup("").join(cells))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Sequence[int] = (),
    hits: Iterable[tuple[int, int]] = (),
) -> Markup:
    """Return a table.

    Args:
        head: column names.
        rows: cells, row by row.
        numbers: columns that hold numbers and stand to the right.
        hits: (row, column) of cells to mark.
    """
    marked = set(hits)

    def cell(tag: str, column: int, value: object, hit: bool = False) -> Markup:
        kind = " ".join([*(["n"] if column in numbers else []), *(["hit"] if hit else [])])
        return Markup('<{} class="{}">{}</{}>').format(Markup(tag), kind, value, Markup(tag))

    heads = Markup("").join(cell("th", c, name) for c, name in enumerate(head))
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(cell("td", c, v, (r, c) in marked) for c, v in enumerate(row))
        )
        for r, row in enumerate(rows)
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(heads, body)


def take_card(
    title: str, tags: Sequence[str], lines: Sequence[str], pictures: Sequence[Image] = ()
) -> Markup:
    """Return a card about one take: tags, evidence lines, a few pictures beside them."""
    marks = Markup("").join(
        Markup('<span class="tag{}">{}</span>').format(" quiet" if n else "", tag)
        for n, tag in enumerate(tags)
    )
    items = Markup("").join(Markup("<li>{}</li>").format(line) for line in lines)
    frames = Markup("").join(
        Markup('<img src="{}" alt="{}">').format(_source(picture_png(p)), f"frame of {title}")
        for p in pictures
    )
    return Markup(
        '<div class="take"><div><h3>{}</h3><div>{}</div><ul>{}</ul></div>'
        '<div class="frames">{}</div></div>'
    ).format(escape(title), marks, items, frames)

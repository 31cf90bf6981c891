"""Building blocks of reports: one self-contained page, with figures as embedded PNG.

page("Demo", [section("Success", "Before and after.", [figure(png, "…"), table(…)])])
"""

import base64
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import jinja2
from markupsafe import Markup, escape

from gaploop.core.messages import Image
from gaploop.failure_analysis.station import words
from gaploop.failure_analysis.views.pictures import picture_png

_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("gaploop.failure_analysis.report", "."),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
)
INK: Final = "#1c2430"
SOFT: Final = "#5d6875"
ACCENT: Final = "#1f5fa8"
PALE: Final = "#c9d6e6"
VERDICT: Final = {"costs": "#b3402e", "helps": "#2c7a4b", "not shown": "#8a95a1"}
"""Colours of effects by what is shown of them."""
STYLE: Final = {
    "font.family": "sans-serif",
    "font.sans-serif": [
        "Inter",
        "Helvetica Neue",
        "Arial",
        "Liberation Sans",
        "DejaVu Sans",
        "Noto Sans CJK SC",
        "Microsoft YaHei",
        "Hiragino Sans",  # where names have their letters
    ],
    "text.parse_math": False,  # a name with two dollars is no formula
    "font.size": 10,
    "axes.edgecolor": "#aab3bd",
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": SOFT,
    "ytick.color": INK,
    "text.color": INK,
}
"""Of figures: the page's own, so that they look like part of it."""


@dataclass(frozen=True)
class Section:
    """A headed part of a page: HTML of this module's functions, which escape what they get."""

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


@contextmanager
def new_figure(width_in: float, height_in: float, **subplots: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes, drawn in the report's style, without a display.

    One pair of axes, or as many as `subplots` says, as of matplotlib's `Figure.subplots`.
    """
    import matplotlib as mpl  # here: reports only
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(width_in, height_in), layout="constrained")
        yield drawn, drawn.subplots(**subplots)


def figure_png(fig: Any) -> bytes:
    """Return a matplotlib figure as PNG."""
    import matplotlib as mpl  # here: reports only

    with io.BytesIO() as stream, mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # of a name, on a machine without its letters
        fig.savefig(stream, format="png", dpi=144, bbox_inches="tight", facecolor="white")
        return stream.getvalue()


def _source(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def figure(png: bytes, caption: str = "", width_px: int | None = None) -> Markup:
    """Return a figure with a caption."""
    style = Markup(' style="width:{}px"').format(width_px) if width_px else Markup("")
    return Markup('<figure><img src="{}" alt="{}"{}><figcaption>{}</figcaption></figure>').format(
        _source(png), caption, style, caption
    )


def legend(lines: Iterable[tuple[str, str]]) -> Markup:
    """Return what the lines of a figure are: (colour, name).

    Beside the figure, and not in it: names are long, or in letters that its font lacks.
    """
    return Markup('<p class="legend">{}</p>').format(
        _each('<span><i style="background:{}"></i>{}</span> ', lines)
    )


def video(webm: bytes, caption: str) -> Markup:
    """Return a video that plays by itself, again and again."""
    source = "data:video/webm;base64," + base64.b64encode(webm).decode()
    return Markup(
        '<figure><video src="{}" autoplay loop muted playsinline controls></video>'
        "<figcaption>{}</figcaption></figure>"
    ).format(source, caption)


def text(words: str) -> Markup:
    """Return a paragraph."""
    return Markup("<p>{}</p>").format(words)


def notice(words: str, kind: str = "") -> Markup:
    """Return a marked paragraph; `kind` is "", "good" or "bad"."""
    return Markup('<p class="notice {}">{}</p>').format(kind, words)


def _each(template: str, rows: Iterable[Sequence[object]]) -> Markup:
    """Return a template filled in with each row, one after the other."""
    return Markup("").join(Markup(template).format(*row) for row in rows)


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return a row of large numbers: (value, what it is)."""
    cells = _each("<div class=fact><b>{}</b><span>{}</span></div>", pairs)
    return Markup("<div class=facts>{}</div>").format(cells)


def answers(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return questions with their answers: (a word, a sentence)."""
    rows = _each("<dt>{}</dt><dd>{}</dd>", pairs)
    return Markup('<dl class="answers">{}</dl>').format(rows)


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()
) -> Markup:
    """Return a table; the columns `numbers` stand to the right."""

    def cells(tag: str, values: Sequence[object]) -> Markup:
        kinds = ("n" if column in numbers else "" for column in range(len(values)))
        return _each(f'<{tag} class="{{}}">{{}}</{tag}>', zip(kinds, values, strict=True))

    heads = cells("th", head)
    body = _each("<tr>{}</tr>", ([cells("td", row)] for row in rows))
    return Markup(
        '<div class="wide"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(heads, body)


@dataclass(frozen=True)
class BarRow:
    """One row of `bars`: a mark with its interval, said in words; "", "good", "bad" or "quiet"."""

    name: str
    value: float
    low: float
    high: float
    said: str
    kind: str = ""


def bars(rows: Sequence[BarRow], span: tuple[float, float], *, filled: bool = True) -> Markup:
    """Return rows of bars with their intervals, which stay readable on a phone.

    From the value at the left edge to that at the right. Unless `filled` there is only the mark and
    the interval, beside a line at zero.
    """
    left, right = span

    def place(value: float) -> float:
        return 100 * (min(max(value, left), right) - left) / (right - left)

    def drawn(kind: str, begin: float, end: float | None = None) -> Markup:
        width = "" if end is None else f";width:{end - begin:.2f}%"
        return Markup('<i class="{}" style="left:{:.2f}%{}"></i>').format(kind, begin, width)

    def row(bar: BarRow) -> Markup:
        zero, value = place(0.0), place(bar.value)
        low, high = min(zero, value), max(zero, value)
        body = drawn("bar", low, high) if filled else drawn("line", zero)
        reach = drawn("reach", place(bar.low), place(bar.high))
        return Markup(
            '<div class="row {}"><span class="name">{}</span><span class="track">{}{}{}</span>'
            '<span class="said">{}</span></div>'
        ).format(bar.kind, bar.name, body, reach, drawn("mark", value), bar.said)

    return Markup('<div class="bars">{}</div>').format(Markup("").join(row(b) for b in rows))


def heat(
    rows: Sequence[str], columns: Sequence[str], counts: Mapping[tuple[str, str], int]
) -> Markup:
    """Return a table of counts by (row, column), darker where there are more."""
    most = max(counts.values(), default=0) or 1

    def cells(row: str) -> Markup:
        found = [counts.get((row, column), 0) for column in columns]
        shares = ((70 * count / most, count or "") for count in found)
        return _each('<td class="heat" style="--share:{:.0f}%">{}</td>', shares)

    head = _each("<th>{}</th>", ([words(c)] for c in columns))
    body = _each("<tr><th>{}</th>{}</tr>", ((words(r), cells(r)) for r in rows))
    return Markup(
        '<div class="wide"><table class="heats"><thead><tr><th></th>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>"
    ).format(head, body)


def command(line: str) -> Markup:
    """Return a command that people copy."""
    return Markup("<pre><code>{}</code></pre>").format(line)


def more(title: str, blocks: Iterable[Markup]) -> Markup:
    """Return blocks that are folded until asked for."""
    return Markup("<details><summary>{}</summary>{}</details>").format(
        title, Markup("").join(blocks)
    )


def take_card(
    title: str, tags: Sequence[str], lines: Sequence[str], pictures: Sequence[Image] = ()
) -> Markup:
    """Return a card about one take: tags, evidence lines, a few pictures beside them."""
    kinds = (" quiet" if n else "" for n in range(len(tags)))
    marks = _each('<span class="tag{}">{}</span>', zip(kinds, tags, strict=True))
    items = _each("<li>{}</li>", ([line] for line in lines))
    sources = ((_source(picture_png(p)), f"frame of {title}") for p in pictures)
    frames = _each('<img src="{}" alt="{}">', sources)
    return Markup(
        '<div class="take"><div><h3>{}</h3><div>{}</div><ul>{}</ul></div>'
        '<div class="frames">{}</div></div>'
    ).format(escape(title), marks, items, frames)

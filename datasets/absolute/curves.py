"""A page with each sentence and its curve: command and reading, or pictures of two episodes."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.datasets import layout
from gaploop.datasets.absolute.findings import SHOWN, AbsoluteFinding, AbsoluteReport
from gaploop.datasets.absolute.recording import MotionRecording, read_recording
from gaploop.datasets.lerobot_read import pictures_at

WIDTH: Final = 640
HEIGHT: Final = 170
PICTURE: Final = (320, 240)
POINTS: Final = 600
"""Of a longer curve so many are drawn."""
COLOURS: Final = ("#9ca3af", "#b45309", "#1d4ed8", "#047857", "#7c3aed", "#be123c", "#0e7490")
STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:52em;margin:2em auto;padding:0 1em}"
    "code{font-size:13px;overflow-wrap:anywhere}figure{margin:.6em 0 2em}"
    "figcaption{color:#6b7280;font-size:13px}img{width:300px;margin-right:8px}"
)


def curves_page(report: AbsoluteReport) -> str:
    """Return what a dataset shows by itself as a page, each sentence with a curve or pictures.

    Raises:
        UnusableInputError: the dataset can't be read any more.
    """
    recording = read_recording(report.root)
    parts = list[str]()
    for finding in report.findings[:SHOWN]:
        parts.append(f"<h3>{html.escape(finding.line())}</h3>")
        parts.append(f"<code>{html.escape(finding.command)}</code>{_figure(recording, finding)}")
    for what, texts in (
        ("Tested and good", report.good.values()),
        ("Could not be tested", [f"{a} ({b})" for a, b in report.untested.items()]),
    ):
        parts.append(f"<h3>{what}</h3><p>{html.escape('; '.join(texts) or 'nothing')}.</p>")
    title = html.escape(report.root.name)
    head = f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"{head}<h1>{title}</h1>{''.join(parts)}"


def _figure(recording: MotionRecording, finding: AbsoluteFinding) -> str:
    shown = {e.index: e for e in recording.episodes}
    worst = finding.worst if finding.worst is not None else next(iter(finding.episodes), None)
    cameras = {key.removeprefix("observation.images."): key for key in recording.info.video_keys}
    if about := [cameras[name] for name in finding.about.split(", ") if name in cameras]:
        other = next((e for e in sorted(recording.lengths) if e not in finding.episodes), None)
        pair = [e for e in dict.fromkeys((other, worst)) if e is not None]
        images = "".join(_picture(recording, key, e) for key in about for e in pair)
        named = " and ".join(f"episode {e}" for e in pair)
        return f"<figure>{images}<figcaption>First pictures: {named}</figcaption></figure>"
    if worst not in shown:
        return ""
    episode, names = shown[worst], [j.name for j in recording.joints]
    own = [names.index(name) for name in finding.about.split(", ") if name in names]
    if own:
        both = (("command", episode.command), ("reading", episode.reading))
        lines = [(f"{names[k]} {what}", x[:, k]) for k in own for what, x in both]
    else:
        lines = [(names[k], episode.reading[:, k]) for k in recording.arm]
    return (
        f"<figure>{chart(lines, recording.info.fps)}<figcaption>Episode {worst}, "
        f"{recording.unit or 'units'} over seconds</figcaption></figure>"
    )


def _picture(recording: MotionRecording, key: str, episode: int) -> str:
    try:
        (one,) = layout.read_episodes(recording.info, [episode])
        picture = cv2.resize(pictures_at(recording.info, one, key, [0])[0], PICTURE)
    except (UnusableInputError, OSError, KeyError, TypeError, ValueError):
        return ""
    png = cv2.imencode(".png", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))[1].tobytes()
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def chart(lines: Sequence[tuple[str, FloatArray]], fps: float) -> str:
    """Return curves over time as SVG: name and values, shape (n,), each."""
    low, high = (float(f([f(v) for _, v in lines])) for f in (np.min, np.max))
    span, n = max(high - low, 1e-6), max(len(v) for _, v in lines)
    parts = list[str]()
    for k, (name, values) in enumerate(lines):
        rows = np.unique(np.linspace(0, len(values) - 1, POINTS).astype(int))
        points = " ".join(
            f"{40 + (WIDTH - 50) * i / max(n - 1, 1):.1f},"
            f"{HEIGHT - 25 - (HEIGHT - 45) * (values[i] - low) / span:.1f}" for i in rows
        )  # fmt: skip
        colour = COLOURS[k % len(COLOURS)]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'
        )
        parts.append(f'<text x="{40 + 150 * (k % 4)}" y="{11 + 11 * (k // 4)}" fill="{colour}">'
                     f"{html.escape(name)}</text>")  # fmt: skip
    for value, y in ((high, 24), (low, HEIGHT - 22)):
        parts.append(f'<text x="2" y="{y}">{value:.3g}</text>')
    parts.append(f'<text x="{WIDTH - 44}" y="{HEIGHT - 6}">{n / fps:.1f} s</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-size="11" '
        f'font-family="sans-serif">{"".join(parts)}</svg>'
    )

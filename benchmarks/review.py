"""The review page in headless Chromium: first paint, key to saved label, 50 takes by keyboard."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.chromium import CPU_S, Tab, browser, open_tab
from benchmarks.review_dataset import write_dataset
from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.datasets.layout import LABELS
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

EPISODES: Final = 10_000
LEAST: Final = 150
VISITS: Final = 7
"""Page loads; the first, with an empty browser cache, is told apart."""
LABELLED: Final = 50
START_S: Final = 180.0
MODES: Final = "fodcbmlptx"
PHASES: Final = "AGTPR"
PAINTED: Final = "document.querySelectorAll('.take').length > 0"
SHOWN: Final = (
    "[...document.querySelectorAll('video')].length > 0 &&"
    " [...document.querySelectorAll('video')].every(v => v.readyState >= 2 && !v.seeking)"
)
SAVED: Final = "Number(document.querySelector('.status').dataset.saved || 0)"
WATCH: Final = """
new PerformanceObserver(() => {}).observe({type: 'paint', buffered: true});
new MutationObserver((_, me) => {
  if (window.painted === undefined && document.querySelector('.take')) {
    requestAnimationFrame(() => { window.painted ??= performance.now(); });
    me.disconnect();
  }
}).observe(document, {childList: true, subtree: true});
"""
"""Notes when rows of the list are first on the screen [ms since the navigation began]."""


@contextlib.contextmanager
def serving(root: Path, *more: str) -> Iterator[str]:
    """Run `gaploop review` on a folder; yield the page's address; end it as Ctrl-C does.

    Raises:
        UnusableInputError: it doesn't start, or doesn't end well.
    """
    program = [sys.executable, "-m", "gaploop.scripts.cli", "review", str(root)]
    program += ["--port=0", *more]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=said, text=True)
        try:
            yield _address(process, said)
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=60)
        if code:
            said.seek(0)
            raise UnusableInputError(f"gaploop review ended with {code}: {said.read()[-800:]}")


def _address(process: subprocess.Popen[str], said: Any) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        said.seek(0)
        words = [word for word in said.read().split() if word.startswith("http://")]
        if words:
            return str(words[0])
        time.sleep(0.05)
    said.seek(0)
    raise UnusableInputError(f"gaploop review doesn't start: {said.read()[-800:]}")


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Write a dataset, open the page, press keys; return the figures."""
    program = browser()
    if program is None:
        raise UnusableInputError(
            "No Chromium is installed. Install it (Debian: apt-get install chromium)."
        )
    episodes = config.n or EPISODES
    if episodes < LEAST:
        raise UnusableInputError(f"--n={episodes} takes are too few to label: at least {LEAST}.")
    root = folder / "review_data"
    with options.progress("Reviewing", total=4) as advance:
        _remove(root)
        write_dataset(root, episodes, config.seed)
        advance()
        before = time.perf_counter()
        with serving(root, "--author=bench", "--suggestions=false") as address:
            started_s = time.perf_counter() - before
            with open_tab(program, cpu_s=10 * CPU_S) as tab:
                paints = _first_paints(tab, address)
                advance()
                saved = _key_to_saved(tab)
                advance()
                run = _fifty(tab, folder)
                advance()
        run["events"] = _check(root, LABELLED + len(saved))
        _remove(root)
    return {
        "episodes": episodes,
        "fingers": "a script pressed the keys and waited for nothing but the page",
        "start_s": started_s,
        "first_visit_s": paints[0],
        "first_paint_s": _spread(paints[1:]),
        "key_to_saved_s": _spread(saved),
        "labelling": run,
    }


def _remove(root: Path) -> None:
    for path in (root, root.with_name(f"{root.name}_journal")):
        shutil.rmtree(path, ignore_errors=True)


def _first_paints(tab: Tab, address: str) -> list[float]:
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    found = []
    for _ in range(VISITS):
        tab.go(address)
        tab.wait(f"window.painted !== undefined && {PAINTED}")
        found.append(float(tab.js("window.painted")) / 1000)
        tab.wait(SHOWN)
    return found


def _key_to_saved(tab: Tab, count: int = 20) -> list[float]:
    """Return how long after Enter the page says that the label is on disk [s]."""
    found = []
    for n in range(count):
        before = tab.js(SAVED)
        tab.key(MODES[n % len(MODES)])
        tab.wait("document.querySelector('.chips.mode .chip.on') !== null")
        began = time.perf_counter()
        tab.key("Enter")
        tab.wait(f"{SAVED} > {before}")
        found.append(time.perf_counter() - began)
    return found


def _fifty(tab: Tab, folder: Path) -> dict[str, Any]:
    """Label takes one after the other: mode, phase, two dimensions with weights, save."""
    each = []
    for n in range(LABELLED):
        began = time.perf_counter()
        uid = tab.wait(f"({SHOWN}) && document.querySelector('.take.on').dataset.uid")
        first, second = str(n % 9 + 1), str((n + 3) % 9 + 1)
        for key in (MODES[n % 10], PHASES[n % 5], first, second, second, "Enter"):
            tab.key(key)
        tab.wait(f"document.querySelector('.take.on').dataset.uid !== '{uid}'")
        each.append(time.perf_counter() - began)
    tab.wait("document.querySelector('.status').textContent.startsWith('saved')")
    tab.picture(folder / "review.png")
    return {"takes": LABELLED, "total_s": sum(each), "per_take_s": _spread(each), "log": tab.log}


def _check(root: Path, takes: int) -> int:
    """Return how many events there are, once it is sure that every take's label is among them."""
    events = list(labels.read(root / LABELS))
    said = labels.current(e for e in events if e.author == "bench")
    if len(said) != takes or not all(fields.get("failure_mode") for fields in said.values()):
        raise UnusableInputError(f"{root}: {len(said)} of {takes} labels arrived.")
    return len(events)


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "p90": float(np.percentile(values, 90)),
        "max": max(values),
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the figures in words."""
    paint, key, run = result["first_paint_s"], result["key_to_saved_s"], result["labelling"]
    each = run["per_take_s"]
    return "\n".join(
        [
            f"{result['episodes']} takes; the command is ready after {result['start_s']:.1f} s",
            f"first paint, list included: median {paint['median']:.2f} s, max {paint['max']:.2f} s"
            f" ({result['first_visit_s']:.2f} s with an empty browser cache)",
            f"Enter to label on disk: median {key['median'] * 1000:.0f} ms, "
            f"p90 {key['p90'] * 1000:.0f} ms",
            f"{run['takes']} takes labelled by a script's key presses (mode, phase, two weighted "
            f"dimensions) in {run['total_s']:.0f} s: median {each['median']:.2f} s a take, "
            f"max {each['max']:.2f} s, waiting for every video",
        ]
    )

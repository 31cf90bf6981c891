"""The page in headless Chromium: what is pressed is saved, what is shown is that frame."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.chromium import Tab, browser, open_tab
from benchmarks.review import SAVED, SHOWN, serving
from benchmarks.review_dataset import BITS, BLOCK_PX, FRAMES
from gaploop.core import labels
from gaploop.core.station import load_station
from gaploop.core.vocabulary import GapDimension
from gaploop.datasets.labels import open_labelled
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis, save_diagnosis

PROGRAM = browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")

FRAME = "Number(/frame (\\d+)/.exec(document.querySelector('.clock').textContent)[1])"
READ = f"""
(() => [...document.querySelectorAll('video')].map(video => {{
  const canvas = document.createElement('canvas');
  canvas.width = video.videoWidth; canvas.height = video.videoHeight;
  const context = canvas.getContext('2d');
  context.drawImage(video, 0, 0);
  let number = 0;
  for (let bit = 0; bit < {BITS}; bit++) {{
    const x = bit * {BLOCK_PX} + {BLOCK_PX // 2};
    if (context.getImageData(x, {BLOCK_PX // 2}, 1, 1).data[0] > 128) number |= 1 << bit;
  }}
  return number;
}}))()
"""
"""The number that each camera's picture says."""
STEPS = (
    (["ArrowRight"] * 3, 3),
    (["ArrowLeft"], 2),
    (["Shift+ArrowRight"], 12),
    (["End"], FRAMES - 1),
    (["ArrowRight"], FRAMES - 1),
    (["Home"], 0),
)
OPEN = "document.querySelector('.take.on').dataset.uid"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    assert PROGRAM is not None
    with open_tab(PROGRAM) as found:
        yield found


def visit(tab: Tab, address: str) -> None:
    tab.go(address)
    tab.wait(f"document.querySelector('.take.on') && ({SHOWN})")


def settles(tab: Tab, frame: int) -> None:
    """Wait until every camera shows that frame; a slow compositor is a few pictures behind."""
    tab.wait(SHOWN)
    tab.wait(f"({READ.strip()}).join() === '{frame},{frame}'")


def lit(tab: Tab) -> list[str]:
    found: list[str] = tab.js(
        "[...document.querySelectorAll('.chip.on')].map(c => c.innerText.split('\\n').slice(1)"
        ".join(' ').trim())"
    )
    return found


def test_a_failure_is_labelled_by_keys_alone_and_taken_back(
    dataset: Path, tmp_path: Path, tab: Tab
) -> None:
    station = tmp_path / "station.yaml"
    station.write_text("name: bench\n")
    options = ("--author=ana", "--suggestions=false", f"--station={station}")
    with serving(dataset, *options) as address:
        visit(tab, address)
        first = tab.js(OPEN)
        for key in "lT17+--":
            tab.key(key)
        tab.wait(
            "[...document.querySelectorAll('.chip.on')].some(c => c.innerText.includes('0.8'))"
        )
        assert lit(tab) == [
            "failure", "slip", "transport", "contact dynamics 1", "actuator response 0.8"
        ]  # fmt: skip
        tab.key("Enter")
        tab.wait(f"{OPEN} !== '{first}' && {SAVED} === 1")
        tab.key("u")
        tab.wait(f"{OPEN} === '{first}' && {SAVED} === 2")
        tab.key("U")
        tab.wait(f"{SAVED} === 3")
        tab.wait("document.querySelector('.take.on .state').textContent === '✓'")
        # A click on the red block, and its colour is the object's.
        tab.key("Home")
        settles(tab, 0)
        tab.click(*tab.js("(r => [r.x + 4, r.y + 4])"
                          "(document.querySelector('.role').getBoundingClientRect())"))  # fmt: skip
        tab.wait("document.querySelector('video.marking') !== null")
        tab.click(
            *tab.js("""((v, r) => {
            const scale = Math.min(r.width / v.videoWidth, r.height / v.videoHeight);
            return [r.x + r.width / 2 + scale * (20 - v.videoWidth / 2),
                    r.y + r.height / 2 + scale * (80 - v.videoHeight / 2)];
        })(document.querySelector('video'), document.querySelector('video').getBoundingClientRect())
        """)
        )
        tab.wait("document.querySelector('img.outline') !== null")
        assert not tab.log
    low, high = load_station(station).scene.object_hue_deg
    assert low > 330 or low < 6 < high < 30
    folder = open_labelled(dataset)
    said = labels.current(e for e in folder.events if e.author == "ana")
    assert said == {
        first: {
            "outcome": "failure",
            "failure_mode": "slip",
            "phase": "transport",
            "dimensions": {"contact_dynamics": 1.0, "actuator_response": 0.8},
        }
    }
    take = next(e for e in folder.episodes if e.info.uid == first)
    assert take.row["gap_failure_mode"] == "slip"


def test_seeking_shows_exactly_that_frame_in_every_camera(journal: Path, tab: Tab) -> None:
    """Off by one frame, a slip is seen where the jaws still hold: seeks must be exact."""
    with serving(journal, "--author=ana", "--suggestions=false") as address:
        visit(tab, address)
        settles(tab, 0)
        for keys, frame in STEPS:
            for key in keys:
                tab.key(key)
            tab.wait(f"{FRAME} === {frame}")
            settles(tab, frame)
        tab.wait("document.querySelector('.cursor') !== null")
        box = tab.js("(r => [r.x, r.y, r.width, r.height])"
                     "(document.querySelector('.chart').getBoundingClientRect())")  # fmt: skip
        tab.click(box[0] + 42 + (box[2] - 60) / 2, box[1] + box[3] / 2)
        tab.wait(f"Math.abs({FRAME} - {FRAMES // 2}) <= 2")
        frame = tab.js(FRAME)
        settles(tab, frame)
        cursor = tab.js("parseFloat(document.querySelector('.cursor').style.left)")
        assert abs(cursor - 42 - (box[2] - 60) / 2) < 8
        tab.key(" ")
        tab.wait(f"{FRAME} > {frame + 5}")
        tab.key(" ")
        tab.wait("document.querySelector('.play').textContent.trim() === '▶'")
        tab.wait(SHOWN)
        # Where a busy machine stops it, the clock may go on by a frame: what it says is shown.
        tab.wait(f"({READ.strip()}).join() === [{FRAME}, {FRAME}].join()")


@pytest.mark.slow
def test_a_suggestion_is_accepted_with_one_key(dataset: Path, tmp_path: Path, tab: Tab) -> None:
    """The first is read from a diagnosis, the next one is made while the page is open."""
    uid = open_labelled(dataset).episodes[3].info.uid
    shares = dict.fromkeys(GapDimension, 0.0) | {GapDimension.CONTACT_DYNAMICS: 0.8}
    found = TakeDiagnosis(uid, 3, "slip", "transport", shares, 0.2, False, ())
    save_diagnosis(Diagnosis("id", "data", (found,)), tmp_path / "diagnosis.json")
    with serving(dataset, "--author=ana", f"--diagnosis={tmp_path / 'diagnosis.json'}") as address:
        visit(tab, address)
        tab.click(
            *tab.js(f"""(r => [r.x + 90, r.y + 9])(document.querySelector(
            '.take[data-uid="{uid}"]').getBoundingClientRect())""")
        )
        tab.wait(f"{OPEN} === '{uid}'")
        assert lit(tab) == ["failure", "slip", "transport", "contact dynamics 0.8"]
        tab.key("Enter")
        tab.wait(f"{OPEN} !== '{uid}' && {SAVED} === 1")
        tab.wait("document.querySelector('.verdict') !== null", 90)
    events = [e for e in open_labelled(dataset).events if e.author == "ana"]
    assert {e.uid for e in events} == {uid}
    assert {e.field: e.value for e in events} == {
        "outcome": "failure",
        "failure_mode": "slip",
        "phase": "transport",
        "dimensions": {"contact_dynamics": 0.8},
    }
    assert {e.source for e in events} == {"engineer"}


@pytest.mark.slow
def test_nothing_is_saved_where_nothing_was_said(dataset: Path, tab: Tab) -> None:
    with serving(dataset, "--author=ana", "--suggestions=false") as address:
        visit(tab, address)
        tab.key("Enter")
        tab.wait("document.body.innerText.includes('What was seen?')")
        tab.key("?")
        tab.wait("document.querySelector('.sheet.keys') !== null")
        tab.key("l")  # closes the help, labels nothing
        tab.wait("document.querySelector('.sheet.keys') === null")
        assert lit(tab) == ["failure"]
        tab.key("e")
        tab.wait("document.activeElement.tagName === 'INPUT'")
        for letter in "slips":
            tab.key(letter)
        tab.key("Escape")
        tab.wait("document.activeElement.tagName !== 'INPUT'")
        assert lit(tab) == ["failure"]
    assert not open_labelled(dataset).events


@pytest.mark.slow
def test_filters_and_search_narrow_the_list(dataset: Path, tab: Tab) -> None:
    with serving(dataset, "--author=ana", "--suggestions=false") as address:
        visit(tab, address)
        assert tab.js("document.querySelectorAll('.take').length") == 6
        tab.key("/")
        tab.wait("document.activeElement.tagName === 'INPUT'")
        for letter in "lighting=dim":
            tab.key(letter)
        tab.key("Enter")
        tab.wait("document.querySelectorAll('.take').length === 3")
        tab.key("v")
        tab.wait("document.querySelectorAll('.take').length === 0")
        assert "No episode matches." in tab.js("document.body.innerText")


def test_another_program_on_this_machine_is_told_nothing(dataset: Path, tab: Tab) -> None:
    """The token was in a cookie, and browsers send those to every port of a host."""
    heard: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(f"{self.path} {self.headers}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>other</title>")

        def log_message(self, *_: object) -> None: ...

    with (
        serving(dataset, "--author=ana", "--suggestions=false") as address,
        HTTPServer(("127.0.0.1", 0), Other) as other,
    ):
        threading.Thread(target=other.serve_forever, daemon=True).start()
        token = urlsplit(address).path.strip("/")
        visit(tab, address)
        there = f"http://127.0.0.1:{other.server_port}"
        tab.js(
            f"fetch('{there}/fetched', {{mode: 'no-cors', credentials: 'include'}}).then(a => 1)"
        )
        tab.js(f"void (location.href = '{there}/linked')")
        tab.wait("document.title === 'other'")
        other.shutdown()
    assert [line.split()[0] for line in heard if "icon" not in line] == ["/fetched", "/linked"]
    assert not any(token in line or "ookie" in line for line in heard)


def test_the_page_asks_nobody_but_this_machine(dataset: Path, tab: Tab) -> None:
    """Robots stand in halls without a network; a font from a CDN would hold up the page there."""
    with serving(dataset, "--author=ana", "--suggestions=false") as address:
        visit(tab, address)
        asked = tab.js("performance.getEntriesByType('resource').map(e => e.name)")
        assert asked
        assert all(name.startswith("http://127.0.0.1:") for name in asked)
        status = tab.js("fetch('media/..%2F..%2Fetc%2Fpasswd/overhead').then(a => a.status)")
        assert status == 404

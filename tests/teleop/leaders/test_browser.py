"""A page in somebody's hand: what it says, what it can't, and what it looks like in Chromium."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.chromium import Tab, open_tab
from benchmarks.chromium import browser as chromium
from gaploop.collect import lerobot_types
from gaploop.collect.devices import lost_after_trip
from gaploop.collect.lerobot_factory import ArmConnection
from gaploop.collect.session_options import DriveOptions
from gaploop.core.errors import DeviceError, LostError
from gaploop.core.messages import SafetyReason
from gaploop.sim.lerobot_devices import So101SimConfig
from gaploop.teleop import link
from gaploop.teleop.leaders import browser
from gaploop.teleop.leaders.browser import Browser, PageQuestion, PageTouch
from gaploop.teleop.leaders.controls import Intent
from gaploop.teleop.lerobot_leaders import BrowserConfig
from gaploop.teleop.loop import Rates

SCENE = Path(__file__).parents[3] / "examples" / "scene" / "scene.yaml"
UP = PageTouch(0, False, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, False, 2, "base", 0, 0)
DOWN = {"held": True, "forward": 0.5, "step": 3}


def until(true: Callable[[], Any]) -> Any:
    """Wait for what another thread does; return what it says then."""
    while not (value := true()):
        time.sleep(0.002)
    return value


class Phone:
    """Answers every question with what is pressed."""

    def __init__(self, port: int, **pressed: Any) -> None:
        self.connection = link.connect(
            browser.KIND, "127.0.0.1", port, browser.own_token(), 1 << 16
        )
        self.pressed, self.trip, self.answers = msgspec.structs.replace(UP, **pressed), "", True
        self.closed = ""
        self.questions = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            while True:
                asked = link.hear(self.connection, PageQuestion)
                assert asked is not None
                self.trip, self.questions = asked.trip, self.questions + 1
                if self.answers:
                    touch = msgspec.structs.replace(self.pressed, number=asked.number)
                    link.say(self.connection, touch)
        except LostError as error:
            self.closed = str(error)

    def press(self, **what: Any) -> None:
        self.pressed = msgspec.structs.replace(self.pressed, **what)


class Desk:
    """A page that is open, and what the robot's side was told."""

    def __init__(self, port: int, found: list[Browser]) -> None:
        self.port, self.found, self.told = port, found, list[str]()
        self.phone = Phone(port)
        self.page = until(lambda: found and found[0])
        self.page.listen(lambda: self.told.append("e-stop"), lambda: self.told.append("clear"))

    def intent(self, **wanted: Any) -> Intent:
        """Wait until it is as wanted."""
        until(lambda: all(getattr(self.page.latest().intent, k) == v for k, v in wanted.items()))
        return self.page.latest().intent


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def is_up(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextlib.contextmanager
def serving(port: int) -> Iterator[list[Browser]]:
    """Serve the page; it is in the list once somebody has opened it."""
    found: list[Browser] = []
    make = threading.Thread(target=lambda: found.append(Browser("arm", "127.0.0.1", port)))
    make.start()

    until(lambda: is_up(port))
    try:
        yield found
    finally:
        make.join()
        found[0].close()


@pytest.fixture
def desk(port: int) -> Iterator[Desk]:
    with serving(port) as found:
        yield Desk(port, found)


def test_what_is_pressed_is_asked_for_and_released(desk: Desk) -> None:
    assert not desk.page.latest().intent.drives
    desk.phone.press(**DOWN)
    intent = desk.intent(held=True)
    assert intent.drives
    assert (intent.forward, intent.step) == (0.5, 3)
    desk.phone.press(held=False)
    assert not desk.intent(held=False).drives
    assert desk.page.latest().age_s == 0.0  # who holds nothing is never old


def test_silence_while_held_grows_old_and_is_nothing_while_released(desk: Desk) -> None:
    desk.phone.press(**DOWN)
    desk.intent(held=True)
    desk.phone.answers = False
    until(lambda: desk.page.latest().age_s > 0.2)
    assert desk.page.latest().intent.held


def test_a_page_that_is_gone_while_held_grows_old_and_must_press_anew(desk: Desk) -> None:
    desk.phone.press(**DOWN)
    desk.intent(held=True)
    desk.phone.connection.close()
    until(lambda: desk.page.latest().age_s > 0.2)
    again = until(lambda: reopened(desk, **DOWN))  # pressed all the time: it must be up first
    desk.intent(held=False)
    until(lambda: again.questions > 5)
    assert not desk.page.latest().intent.held
    again.press(held=False)
    until(lambda: again.questions > 10)
    again.press(held=True)
    assert desk.intent(held=True).drives


def reopened(desk: Desk, **pressed: Any) -> Phone | None:
    phone = Phone(desk.port, **pressed)
    until(lambda: phone.closed or phone.questions > 1)
    return None if phone.closed else phone


def test_the_stop_is_told_at_once_and_clear_in_pump(desk: Desk) -> None:
    desk.phone.press(**DOWN)
    desk.intent(held=True)
    desk.phone.press(stops=1)
    until(lambda: desk.told)
    assert desk.told == ["e-stop"]
    desk.intent(held=False)  # the button must be pressed anew
    desk.page.pump("e-stop")
    until(lambda: desk.phone.trip == "e-stop")
    for count in (1, 2):
        desk.phone.press(clears=count)
        until(lambda: desk.page._clears)
        desk.page.pump("e-stop")
    assert desk.told == ["e-stop", "clear", "clear"]


def test_one_page_at_a_time(desk: Desk) -> None:
    second = Phone(desk.port)
    until(lambda: second.closed)
    assert "Another page drives" in second.closed
    desk.phone.press(**DOWN)
    assert desk.intent(held=True).drives


def test_a_page_that_says_nothing_gives_way(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "GONE_S", 0.05)
    desk.phone.answers = False
    until(lambda: desk.phone.closed)
    desk.phone = until(lambda: reopened(desk))
    desk.phone.press(**DOWN)
    assert desk.intent(held=True).drives


GOOD = msgspec.json.encode(UP).decode()
HOSTILE = (
    GOOD.replace('"forward":0.0', '"forward":1.5'),
    GOOD.replace('"forward":0.0', '"forward":NaN'),
    GOOD.replace('"forward":0.0', '"forward":1e999'),
    GOOD.replace('"step":2', '"step":9'),
    GOOD.replace('"step":2', '"step":"2"'),
    GOOD.replace('"hand":null', '"hand":[0,0,0]'),
    GOOD.replace('"hand":null', '"hand":[0,0,0,0,1e9]'),
    GOOD[:-1] + ',"__class__":"os.system"}',
    "[" * 2000,
    "{" + " " * 3000 + "}",
    "",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_page_cannot_say_closes_it(text: str, desk: Desk) -> None:
    desk.phone.press(**DOWN)
    desk.intent(held=True)
    desk.phone.answers = False
    desk.phone.connection.send(text)
    until(lambda: desk.phone.closed)
    until(lambda: desk.page.latest().age_s > 0.1)
    assert desk.page.latest().intent.forward == 0.5


def test_answers_to_old_questions_move_nothing(desk: Desk) -> None:
    until(lambda: desk.phone.questions > 3)
    desk.phone.answers = False
    replayed = msgspec.structs.replace(UP, held=True, number=0)
    for _ in range(3):
        link.say(desk.phone.connection, replayed)
    before = desk.phone.questions
    until(lambda: desk.phone.questions > before + 3)
    assert not desk.page.latest().intent.held


@pytest.mark.parametrize("scene", [None, SCENE], ids=["cell", "scene"])
def test_it_moves_a_simulated_arm_as_the_keyboard_does(port: int, scene: Path | None) -> None:
    config, cell = BrowserConfig(host="127.0.0.1", port=port), So101SimConfig(scene=scene)
    phones: list[Phone] = []

    def open_it() -> None:
        until(lambda: is_up(port))
        phones.append(Phone(port))

    threading.Thread(target=open_it).start()
    connection = ArmConnection(
        DriveOptions(robot=cell, teleop=config),
        lerobot_types.station_for(cell, None),
        Rates.near(30.0),
        records=False,
    )
    leader: Any = connection.connect()[1]
    try:
        assert not leader.has_window
        assert not lost_after_trip(leader) & SafetyReason.STALE_LEADER
        leader.reset()
        before = leader.read(0.0).q_rad
        phone = until(lambda: phones and phones[0])  # its thread may still be on its way here
        phone.press(held=True, left=1.0, step=4)
        turns = itertools.count(1)
        until(lambda: np.abs(leader.read(next(turns) * 0.005).q_rad - before).max() > 0.05)
        phone.press(held=False)
        until(lambda: not leader._source.latest().intent.held)
        rest = leader.read(next(turns) * 0.005).q_rad
        np.testing.assert_array_equal(leader.read(next(turns) * 0.005).q_rad, rest)
        phone.press(held=True)
        until(lambda: leader._source.latest().intent.held)
        phone.answers = False
        until(lambda: (t := next(turns) * 0.005) - leader.read(t).t_s > 0.2)  # it trips
    finally:
        connection.close()


def test_where_nobody_opens_the_page_it_is_one_line(port: int) -> None:
    with pytest.raises(DeviceError, match="Nobody has opened the page"):
        Browser("arm", "127.0.0.1", port, wait_s=0.0)


# -- in Chromium -----------------------------------------------------------------------------------

PROGRAM = chromium()
in_chromium = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")
FAKE_XR = """
window.at = {position: {x: 0, y: 0, z: 0}, orientation: {x: 0, y: 0, z: 0, w: 1}, emulated: false};
class Session extends EventTarget {
  updateRenderState() {}
  requestReferenceSpace() { return Promise.resolve({}); }
  requestAnimationFrame(f) {
    const pose = () => ({transform: at, emulatedPosition: at.emulated});
    setTimeout(() => f(0, {getViewerPose: pose}), 10);
  }
  end() { this.dispatchEvent(new Event("end")); }
}
window.XRWebGLLayer = class {};
Object.defineProperty(navigator, "xr", {value: {
  isSessionSupported: () => Promise.resolve(true),
  requestSession: () => Promise.resolve(new Session()),
}});
"""
"""A phone with WebXR, as far as the page uses it; `at` is its pose."""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    assert PROGRAM is not None
    with open_tab(PROGRAM, 412, 860) as found:
        found.call("Security.setIgnoreCertificateErrors", ignore=True)
        found.call("Page.addScriptToEvaluateOnNewDocument", source=FAKE_XR)
        yield found


def middle(tab: Tab, what: str) -> dict[str, float]:
    box = f"document.querySelector('{what}').getBoundingClientRect()"
    x, y = tab.js(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({box})")
    return {"x": x, "y": y}


def touch(tab: Tab, *points: dict[str, float], kind: str = "") -> None:
    told = [{**point, "id": n} for n, point in enumerate(points)]
    kind = kind or ("touchStart" if points else "touchEnd")
    tab.call("Input.dispatchTouchEvent", type=kind, touchPoints=told)


@in_chromium
def test_the_page_in_a_browser(port: int, tab: Tab, tmp_path: Path) -> None:
    with serving(port) as found:
        tab.go(f"https://127.0.0.1:{port}/#{browser.own_token()}")
        tab.wait("document.querySelector('#word')?.textContent === 'HOLDING'")
        page = until(lambda: found and found[0])
        hold, pad = middle(tab, "#hold"), middle(tab, "[data-x=left]")
        touch(tab, hold)
        until(lambda: page.latest().intent.held)
        # A second finger moves the pad up and to the left.
        touch(tab, hold, pad)
        touch(tab, hold, {"x": pad["x"] - 60, "y": pad["y"] - 60}, kind="touchMove")
        intent = until(lambda: page.latest().intent if page.latest().intent.forward > 0.2 else None)
        assert intent.left > 0.2
        assert tab.js("document.querySelector('#word').textContent") == "MOVING"
        tab.picture(tmp_path / "moving.png")
        touch(tab)
        until(lambda: not page.latest().intent.held and page.latest().intent.forward == 0.0)

        # A page that is hidden lets go, whatever finger is where.
        touch(tab, hold)
        until(lambda: page.latest().intent.held)
        tab.js("dispatchEvent(new Event('blur'))")
        until(lambda: not page.latest().intent.held)
        touch(tab)

        # The phone's own motion counts from where it was as the button was pressed: it faced +x.
        tab.js("at.orientation = {x: 0, y: -Math.SQRT1_2, z: 0, w: Math.SQRT1_2}")
        touch(tab, middle(tab, "#phone"))
        touch(tab)
        tab.wait("document.querySelector('#phone').classList.contains('on')")
        touch(tab, hold)
        until(lambda: page.latest().intent.hand)
        tab.js("at.position = {x: 0.1, y: 0.05, z: -0.02}")
        hand = until(lambda: (h := page.latest().intent.hand) and abs(h[0]) > 0.01 and h)
        assert hand == pytest.approx((0.1, 0.02, 0.05, 0.0, 0.0), abs=1e-6)
        # Tips up by 0.2 rad: a turn about what is to the right then, +z.
        tab.js(
            "(([s, c]) => at.orientation = {x: s, y: -c, z: s, w: c})"
            "([Math.sin(.1), Math.cos(.1)].map(v => v * Math.SQRT1_2))"
        )
        hand = until(lambda: (h := page.latest().intent.hand) and abs(h[4]) > 0.01 and h)
        assert hand[4] == pytest.approx(0.2, abs=1e-6)
        assert hand[3] == pytest.approx(0.0, abs=1e-6)
        tab.js("at.emulated = true")  # it has lost itself
        until(lambda: not page.latest().intent.held)
        touch(tab)

        told: list[str] = []
        page.listen(lambda: told.append("e-stop"), lambda: told.append("clear"))
        touch(tab, middle(tab, "#stop"))
        until(lambda: told)
        touch(tab)
        page.pump("emergency stop. To go on: look around; then press Clear twice on the page.")
        tab.wait("document.querySelector('#word').textContent === 'TRIPPED'")
        tab.picture(tmp_path / "tripped.png")
        touch(tab, middle(tab, "#clear"))
        touch(tab)
        until(lambda: page._clears)
        page.pump("")
        assert told == ["e-stop", "clear"]
        tab.size(860, 412)
        tab.wait("document.querySelector('#word').textContent === 'HOLDING'")
        tab.picture(tmp_path / "landscape.png")
        assert not tab.log


@in_chromium
def test_a_link_that_falls_silent_is_said_and_opened_anew_and_a_stop_arrives_then(
    port: int, tab: Tab
) -> None:
    """A network that goes closes nothing: the page said MOVING for as long, never came back, and a
    STOP pressed meanwhile was forgotten."""
    with serving(port) as found:
        tab.go("about:blank")
        tab.size(320, 480)
        tab.go(f"https://127.0.0.1:{port}/#{browser.own_token()}")
        tab.wait("document.querySelector('#word')?.textContent === 'HOLDING'")
        page, told = until(lambda: found and found[0]), list[str]()
        page.listen(lambda: told.append("e-stop"), lambda: told.append("clear"))
        touch(tab, middle(tab, "#hold"))
        tab.wait("document.querySelector('#word').textContent === 'MOVING'")
        tab.js("window.lost = socket; socket.onmessage = socket.onclose = null")
        tab.wait("document.querySelector('#word').textContent === 'NO LINK'")
        touch(tab)
        touch(tab, middle(tab, "#stop"))
        touch(tab)
        assert not told
        until(lambda: told)
        assert tab.js("socket !== lost && !state.held")
        # However long the reason is, the buttons stay on a small screen.
        page.pump("The servo of the elbow doesn't answer any more: look at its plug. " * 9)
        tab.wait("document.querySelector('#word').textContent === 'TRIPPED'")
        for button in ("#stop", "#clear", "#hold", "#faster"):
            assert (
                tab.js(f"document.querySelector('{button}').getBoundingClientRect().bottom") < 480
            )
        assert told == ["e-stop"]


@in_chromium
def test_an_old_code_is_refused_in_words(port: int, tab: Tab) -> None:
    with serving(port) as found:
        tab.go("about:blank")
        tab.go(f"https://127.0.0.1:{port}/#{link.new_token()}")
        tab.wait("document.querySelector('#word')?.textContent === 'REFUSED'")
        assert "scan" in tab.js("document.querySelector('#below').textContent")
        assert not found
        Phone(port)  # whoever has the token

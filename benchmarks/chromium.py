"""Drives a headless Chromium over its DevTools protocol: for the benchmark and the tests.

https://chromedevtools.github.io/devtools-protocol/ ; no driver program of a matching version is
needed, only the browser.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S: Final = 60.0
CPU_S: Final = 120
"""Of the processor, for each of a browser's processes; the kernel ends one that spins [s]."""
LIFE_S: Final = 1200
"""A browser that outlives whoever started it ends itself then, as late as a hanging test [s]."""
LIMITED: Final = """\
ulimit -t "$1"
(sleep "$2"; kill -KILL -$$) &
shift 2
exec "$@"
"""
"""Both hold without this process too: once a killed one's browser span for eight minutes."""
MOST_BYTES: Final = 256 * 1024 * 1024  # of one answer: a screenshot is one
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root, where the sandbox refuses to start
    "--disable-gpu",
    "--disable-software-rasterizer",  # no GL in software either
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--mute-audio",
    "--force-device-scale-factor=1",
    "--remote-debugging-port=0",
)
_NAMED: Final = {"Enter": 13, "Backspace": 8, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39,
                 "ArrowUp": 38, "ArrowDown": 40, "Home": 36, "End": 35}  # fmt: skip


def browser() -> str | None:
    """Return the program, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page of a browser that `open_tab` started."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.log: list[str] = []
        """What the page complained about."""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result.

        Raises:
            RuntimeError: the browser refuses, or the page has ended.
        """
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                found: dict[str, Any] = answer["result"]
                return found
            if answer.get("method") == "Inspector.targetCrashed":
                raise RuntimeError(f"{method}: the page has ended.")
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.log.append(json.dumps(event["params"]["exceptionDetails"])[:1000])
        if event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] == "error":
                self.log.append(f"{entry['text']} {entry.get('url', '')}")

    def js(self, expression: str) -> Any:
        """Evaluate JavaScript, awaited; return its value as JSON types.

        Raises:
            RuntimeError: it throws.
        """
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def _js_if_loaded(self, expression: str) -> Any:
        """Return its value, or None while the tab goes from one page to another."""
        try:
            return self.js(expression)
        except RuntimeError as error:
            if "navigated" not in str(error):
                raise
            return None

    def wait(self, expression: str, timeout_s: float = 60.0) -> Any:
        """Wait until an expression is true; return its value.

        Raises:
            TimeoutError: it doesn't become true.
        """
        end = time.monotonic() + timeout_s
        while not (value := self._js_if_loaded(expression)):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} stays {value!r} ({self.log})")
            time.sleep(0.01)
        return value

    def go(self, address: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=address)

    def size(self, width: int, height: int) -> None:
        """Set the window's size [pixels]."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def key(self, name: str) -> None:
        """Press and release a key, named as in KeyboardEvent.key, with `Shift+` before it."""
        shifted = name.startswith("Shift+") or (len(name) == 1 and name.isupper())
        key = name.removeprefix("Shift+")
        common: dict[str, Any] = {"key": key, "modifiers": 8 if shifted else 0}
        common["windowsVirtualKeyCode"] = _NAMED.get(key, ord(key[0].upper()))
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **common, **down)
        self.call("Input.dispatchKeyEvent", **common, type="keyUp")

    def click(self, x: float, y: float) -> None:
        """Click at a place [pixels]."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        """Write what can be seen to a PNG file."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def open_tab(
    program: str, width: int = 1440, height: int = 900, cpu_s: int = CPU_S
) -> Iterator[Tab]:
    """Start a browser of its own with an empty page; end it, and all it started, with the block.

    Args:
        program: the browser.
        width: of its window [pixels].
        height: of its window [pixels].
        cpu_s: what each of its processes may use of the processor [s].

    Raises:
        TimeoutError: it doesn't start.
    """
    with tempfile.TemporaryDirectory(prefix="gaploop_browser_", ignore_cleanup_errors=True) as home:
        limits = ["/bin/sh", "-c", LIMITED, "limited", str(cpu_s), str(LIFE_S)]
        process = subprocess.Popen(
            [*limits, program, *FLAGS, f"--user-data-dir={home}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": home},
            start_new_session=True,
        )
        try:
            # No pings: a browser that is slow on a busy machine isn't gone.
            with connect(
                _address(Path(home), process), max_size=MOST_BYTES, ping_interval=None
            ) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log", "Inspector"):
                    tab.call(f"{domain}.enable")
                tab.size(width, height)
                yield tab
        finally:
            # All of it at once: a browser that hangs doesn't end for being asked to.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _address(home: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address of the page's socket, once the browser has written down its port."""
    import httpx

    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, IndexError, httpx.HTTPError, ValueError):
            port = (home / "DevToolsActivePort").read_text().splitlines()[0]
            pages = httpx.get(f"http://127.0.0.1:{port}/json", timeout=5).json()
            for page in pages:
                if page["type"] == "page":
                    return str(page["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise TimeoutError("The browser doesn't start.")

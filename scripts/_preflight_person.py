"""Whoever sits at the terminal, asked by `gaploop preflight`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gaploop.collect.operator.keys import Keys, keys

LOOK_S: Final = 0.1
"""How often it is looked whether Ctrl-C was pressed [s]."""


class Terminal:
    """Asks on stderr and hears keys; nobody is there if standard input is no terminal.

    Args:
        yes: answer "y" where that is a choice and no safety hangs on it.
        gone: says that no answer is waited for any more.
    """

    def __init__(self, yes: bool = False, gone: Callable[[], bool] = lambda: False) -> None:
        self._yes, self.gone = yes, gone
        self._keys = Keys()
        self._typed: list[str] = []
        self.stopped = False
        """The emergency stop was pressed, or the terminal was closed."""

    @property
    def is_there(self) -> bool:
        """Whether somebody can answer."""
        return sys.stdin is not None and sys.stdin.isatty()

    @contextlib.contextmanager
    def listening(self, estop: Callable[[], None]) -> Iterator[None]:
        """Hear the space bar while the block runs, asked or not: it stops the arm."""

        def stop() -> None:
            self.stopped = True
            estop()

        with keys() as self._keys:
            self._keys.listen(stop)
            yield
        self._keys = Keys()

    def asked(self, question: str, choices: Mapping[str, str], *, safety: bool) -> str | None:
        """Ask until one of the choices is typed; None where nobody is there."""
        if self._yes and not safety and "y" in choices:
            return "y"
        if not self.is_there:
            return None
        menu = ", ".join(f"{key} {meaning}" for key, meaning in choices.items())
        with contextlib.ExitStack() as held:
            heard = self._keys if self._keys.works else held.enter_context(keys())
            while not self.gone() and not self.stopped:
                print(f"\n{question}\n  {menu}: ", end="", file=sys.stderr, flush=True)
                typed = self._line(heard)
                if typed is None or typed in choices:
                    return typed
        return None

    def told(self, what: str) -> bool:
        """Ask for something to be done."""
        if self.is_there:
            print(f"\n{what}", file=sys.stderr, flush=True)
        return self.is_there

    def _line(self, heard: Keys) -> str | None:
        """Return what is typed up to Enter, shown as it is typed; None where nobody does."""
        line = ""
        while heard.works and not self.gone() and not self.stopped:
            self._typed += [] if self._typed else heard.presses(LOOK_S)
            name = self._typed.pop(0) if self._typed else ""
            if name == "return":
                print(file=sys.stderr, flush=True)
                return line
            if name == "backspace" and line:
                line = line[:-1]
                print("\b \b", end="", file=sys.stderr, flush=True)
            elif len(name) == 1:
                line += name
                print(name, end="", file=sys.stderr, flush=True)
        return None

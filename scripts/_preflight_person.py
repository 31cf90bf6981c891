"""Whoever sits at the terminal, asked by `gaploop preflight`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final

from gaploop.core import platform_calls

LOOK_S: Final = 0.1
"""How often it is looked whether Ctrl-C was pressed [s]."""


class Terminal:
    """Asks on stderr and reads lines from standard input; nobody is there if that is no terminal.

    Args:
        yes: answer "y" where that is a choice and no safety hangs on it.
        gone: says that no answer is waited for any more.
    """

    def __init__(self, yes: bool = False, gone: Callable[[], bool] = lambda: False) -> None:
        self._yes, self.gone = yes, gone

    @property
    def is_there(self) -> bool:
        """Whether somebody can answer."""
        return sys.stdin is not None and sys.stdin.isatty()

    def asked(self, question: str, choices: Mapping[str, str], *, safety: bool) -> str | None:
        """Ask until one of the choices is typed; None where nobody is there."""
        if self._yes and not safety and "y" in choices:
            return "y"
        if not self.is_there:
            return None
        menu = ", ".join(f"{key} {meaning}" for key, meaning in choices.items())
        while not self.gone():
            print(f"\n{question}\n  {menu}: ", end="", file=sys.stderr, flush=True)
            typed = self._line()
            if typed is None or typed in choices:
                return typed
        return None

    def told(self, what: str) -> bool:
        """Ask for something to be done."""
        if self.is_there:
            print(f"\n{what}", file=sys.stderr, flush=True)
        return self.is_there

    def _line(self) -> str | None:
        while not self.gone():
            if platform_calls.has_input(sys.stdin, LOOK_S):
                line = sys.stdin.readline()
                return line.strip().lower() if line else None
        return None

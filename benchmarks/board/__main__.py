"""`python -m benchmarks.board serve|submit|show BOARD`, from the root of a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.board import command
from gaploop.scripts.cli import guard, run_module

PROGRAM: Final = "python -m benchmarks.board"


def main(argv: Sequence[str] | None = None) -> int:
    """Run with `argv`, or the process's own arguments, and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guard(PROGRAM, lambda: run_module(command, "board", arguments, PROGRAM))


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks NAME`, from the root of a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from benchmarks import bench
from gaploop.scripts.cli import guard, run_module

PROGRAM: Final = "python -m benchmarks"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark with `argv`, or the process's own arguments, and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guard(PROGRAM, lambda: run_module(bench, "bench", arguments, PROGRAM))


if __name__ == "__main__":
    sys.exit(main())

"""Starts a program that isn't trusted: `python -m gaploop.core.confined SPEC program …`.

SPEC is JSON: `memory_mb`, `file_mb`, `processes`, and `root` with `reads` where the program goes
into namespaces of its own. Exit code 125: the system doesn't permit those, and nothing was run.
"""

import json
import os
import sys
from pathlib import Path
from typing import Final

from gaploop.core import platform_calls

REFUSED: Final = 125
MB: Final = 1 << 20


def main() -> None:
    """Give up what the program shall not have, then become it."""
    spec, program = json.loads(sys.argv[1]), sys.argv[2:]
    platform_calls.end_with_parent()
    if spec["root"]:
        reads = [Path(place) for place in spec["reads"]]
        try:
            platform_calls.confine(Path(spec["root"]), reads, spec["file_mb"] * MB)
        except OSError as error:
            sys.stderr.write(f"No namespaces: {error}\n")
            sys.stderr.flush()
            os._exit(REFUSED)
    processes = spec["processes"] if spec["root"] else 0  # else the user's others count, too
    platform_calls.limit_process(spec["memory_mb"] * MB, spec["file_mb"] * MB, processes)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()

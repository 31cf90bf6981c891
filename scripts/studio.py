"""The command `gaploop studio`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options

EXAMPLE: Final = """
gaploop studio
gaploop studio my_project --port=8500 --browser=false
gaploop studio my_project --json
"""

POSITIONAL: Final = "project"


@dataclass
class StudioConfig:
    """Show a project folder on one page: what is there, and the command that comes next.

    Stations, sessions, campaigns with their quotas, takes to review, diagnoses, plans, runs and
    gates that lie below the folder. It reads what the commands have written and changes nothing;
    you copy the commands and run them yourself. The page is served to this machine only, at an
    address that it prints and opens; Ctrl-C ends it.
    """

    project: Path = Path()
    """The project's folder; this one unless given."""
    port: int = 8322
    """The first port to try; 0 for any that is free."""
    browser: bool = True
    """Open the page in the browser."""
    json: bool = False
    """Print what the page shows as one JSON object, and serve nothing."""


def run(config: StudioConfig) -> int:
    """Serve the page until Ctrl-C; exit code 0."""
    from gaploop.scripts._project import read_project

    if not 0 <= config.port <= 65535:
        raise UnusableInputError(f"--port={config.port}: ports are numbers from 0 to 65535.")
    with options.progress("Looking around"):
        found = read_project(config.project)
    if config.json:
        options.emit(True, found, "")
        return 0
    from gaploop.failure_analysis.review.server import serve
    from gaploop.scripts._studio_page import build

    def say(address: str) -> None:
        print(f"Open {address}\nCtrl-C ends it.", file=sys.stderr, flush=True)

    serve(partial(build, found.root), config.port, say, browser=config.browser)
    return 0

"""The command `gaploop review`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RARE: Final = ("suggestions", "station", "port", "units")
EXAMPLE: Final = """
gaploop review rollouts --author=ana
gaploop review rollouts --author=bo --diagnosis=rollouts_diagnosis/diagnosis.json
gaploop review my_project
gaploop review my_project --json
"""


@dataclass
class ReviewFolder:
    """What is looked at."""

    root: Path = Path()
    """Folder of the dataset or journal, or of a project; this one unless given."""


@dataclass
class ReviewConfig:
    """Look at episodes and label them in a browser, by keyboard: ? on the page shows the keys.

    Each episode's video is shown with its signals and what the diagnosis suggests; Enter accepts
    it. Labels are saved as label events of --author, as gaploop label writes them. Two people may
    review the same folder, one after the other or at once: each sees the other's labels of an
    episode once they have labelled it themselves. Another tab shows the project, the folder around
    the episodes: stations, sessions, campaigns, episodes to review, diagnoses, plans, runs and
    gates, each with the command that comes next. Name a project's folder to see that tab alone. The
    page is served to this machine only, at an address that it prints, and opens from a terminal;
    Ctrl-C ends it.
    """

    dataset: ReviewFolder = field(default_factory=ReviewFolder)
    author: str = ""
    """Who labels; your login name unless given."""
    diagnosis: Path | None = None
    """A diagnosis.json of gaploop diagnose; episodes that aren't in it are diagnosed meanwhile."""
    suggestions: bool = True
    """Show what the diagnosis suggests; with false, nobody is influenced by it."""
    station: Path | None = None
    """station.yaml that names the camera of the scene and the colours in it."""
    units: str = ""
    """Units of joints, for episodes without; as of gaploop diagnose."""
    port: int = 8321
    """The first port to try; 0 for any that is free."""
    json: bool = False
    """Print one JSON object: of episodes at the end, of a project what its page shows, without
    it."""

"""What `gaploop review` does: serves the page, and keeps what was labelled."""

import os
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder
from gaploop.core.journal_format import is_journal
from gaploop.core.paths import refuse_link
from gaploop.core.station import StationScene, load_station
from gaploop.datasets import staging
from gaploop.datasets.labels import LabelStore, open_labelled
from gaploop.datasets.layout import is_dataset
from gaploop.failure_analysis.diagnosis import load_diagnosis
from gaploop.failure_analysis.review.label_session import LabelSession, append_command, rescue
from gaploop.failure_analysis.review.project import read_project
from gaploop.failure_analysis.review.server import build, serve
from gaploop.failure_analysis.review.site import ReviewSite, ReviewSuggester
from gaploop.failure_analysis.review.takes import TakeSource
from gaploop.failure_analysis.views.joints import remember_units
from gaploop.scripts import options
from gaploop.scripts.label import named_author
from gaploop.scripts.review import ReviewConfig


def run(config: ReviewConfig) -> int:
    """Serve the page until Ctrl-C; exit code 0."""
    root = config.dataset.root
    if not 0 <= config.port <= 65535:
        raise UnusableInputError(f"--port={config.port}: ports are numbers from 0 to 65535.")
    if not (is_dataset(root) or is_journal(root)) and root.is_dir():
        return _show_project(config)
    author = named_author(config.author)
    with options.progress("Reading episodes"):
        store = open_labelled(root)
    if not store.episodes:
        raise UnusableInputError(f"{store.root} holds no episodes. Record some first.")
    if locked := _locked(store, root):
        print(locked, file=sys.stderr)
    found = load_diagnosis(config.diagnosis).takes if config.diagnosis is not None else ()
    scene = load_station(config.station).scene if config.station else StationScene()
    try:
        units = TakeSource(store, scene=scene).units(config.units)
    except UnusableInputError as doubt:
        if config.units or config.station:
            raise
        units = "unknown"  # labels need none
        print(f"{doubt} Until then curves and suggestions have no angles.", file=sys.stderr)
    if config.units and not locked:
        remember_units(store.root, config.units)
        store = open_labelled(root)

    session = LabelSession(store, author, found, use_suggestions=config.suggestions, locked=locked)
    with tempfile.TemporaryDirectory(prefix="gaploop_review_") as name:
        media = Path(name)
        suggester = ReviewSuggester(store.root, units, scene) if config.suggestions else None
        site = ReviewSite(session, media, suggester, units, scene, config.station)
        try:
            episodes = options.counted(len(store.episodes), "episode")
            _serve(config, site, store.root.resolve().parent, f"{episodes}. ")
        finally:
            if suggester is not None:
                suggester.close()
            lost = session.close()
    saved = session.saver.saved
    left = rescue(lost, Path(tempfile.mkdtemp(prefix="gaploop_labels_"))) if lost else None
    text = f"{options.counted(saved, 'label')} saved by {author}."
    options.emit(config.json, {"dataset": store.root, "author": author, "saved": saved}, text)
    if left:
        raise UnusableInputError(
            f"{len(lost)} label events could not be written to {store.file}; they are in {left}. "
            f"Once it can be written: {append_command(left, store)}"
        )
    return 0


def _locked(store: LabelStore, root: Path) -> str:
    """Return why labels can't be saved in the end, which is said before anybody makes some."""
    if store.file.exists() and not os.access(store.file, os.W_OK):
        return f"Labels can't be saved here. {store.file} can't be written. Change its permissions."
    copy = f"DIR, a copy: cp -rL {shlex.quote(str(root))} COPY"
    try:
        if not store.journal:
            staging.require_writable(store.root, copy)
        refuse_link(store.file)
        place = store.root if store.journal else store.root / "meta"
        writable_folder(place, "The folder for labels", copy)
    except UnusableInputError as refusal:
        return f"Labels can't be saved here. {refusal}"
    return ""


def _show_project(config: ReviewConfig) -> int:
    """Serve the project's page alone, or print what it shows."""
    with options.progress("Looking around"):
        found = read_project(config.dataset.root)
    if not (any(found.entries.values()) or found.damaged):
        raise UnusableInputError(
            f"{config.dataset.root} holds no episodes, nor anything else of a project. Name a "
            "dataset, a journal or a project's folder."
        )
    if config.json:
        options.emit(True, found)
        return 0
    _serve(config, None, found.root)
    return 0


def _serve(config: ReviewConfig, site: ReviewSite | None, folder: Path, what: str = "") -> None:
    """Serve the page until Ctrl-C; say where, behind `what`."""

    def say(address: str) -> None:
        print(f"{what}Open {address}\nCtrl-C ends it.", file=sys.stderr, flush=True)

    serve(partial(build, site, folder), config.port, say, browser=sys.stdout.isatty())

"""What a project folder holds, by what its files say, each thing with the command that comes next.

Only files that docs/data/files.md describes are read, by the readers that the commands use. Nothing
is written. What can't be read is one line, and everything else is shown.
"""

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gaploop.collect.campaign import campaign, campaign_progress
from gaploop.core.errors import DAMAGE, GaploopError, UnusableInputError
from gaploop.core.files import existing_folder, printable, read_json, read_text
from gaploop.core.journal_format import HEADER, is_journal
from gaploop.core.plan import SCHEMA as PLAN_SCHEMA
from gaploop.core.plan import Plan, load_plan
from gaploop.core.run_record import RUN, read_run
from gaploop.core.station import SIM_STATION, Station, load_station
from gaploop.core.twin import SCHEMA as TWIN_SCHEMA
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.labels import LabelStore, open_labelled
from gaploop.datasets.layout import EpisodeRow, is_dataset
from gaploop.failure_analysis.diagnosis import load_diagnosis
from gaploop.failure_analysis.review.takes import SETTLED
from gaploop.failure_analysis.station import words

SECTIONS: Final = (
    "Stations", "Sessions", "Campaigns", "Episodes to review", "Diagnoses", "Plans", "Runs",
    "Gates",
)  # fmt: skip
MOST_FOLDERS: Final = 20_000
"""A folder with more below it than this is no project."""
MOST_BYTES: Final = 1 << 20
"""A larger YAML file is neither a station nor a plan."""
SKIPPED: Final = ("node_modules", "__pycache__", "checkpoints", "site-packages")
DIAGNOSIS: Final = "diagnosis.json"
# What gaploop evaluate and gate write: the layer above this one, so its names stand here again.
EVALUATION: Final = "evaluation.json"
GATE_SCHEMA: Final = "gaploop.gate.v1"
SETUP, OUTCOMES, RESULT = "setup.json", "outcomes.jsonl", "gate.json"


@dataclass(frozen=True)
class ProjectEntry:
    """One thing of a project.

    Attributes:
        where: its file or folder, relative to the project.
        bars: what is had and wanted, by name.
        next: the command that comes next, as it is typed in the project's folder; or "".
    """

    title: str
    where: str
    facts: str
    bars: tuple[tuple[str, int, int], ...] = ()
    next: str = ""


@dataclass
class Project:
    """What a folder holds, for each of `SECTIONS`, and a line for each thing that can't be read."""

    root: Path
    entries: dict[str, list[ProjectEntry]] = field(
        default_factory=lambda: {name: [] for name in SECTIONS}
    )
    damaged: list[str] = field(default_factory=list)

    def add(self, section: str, title: str, path: Path, facts: str, **more: Any) -> None:
        """Add an entry; whoever wrote its words can't hide anything in them."""
        where = printable(self.at(path))
        said = printable(" ".join(title.split())), where, printable(facts)
        self.entries[section].append(ProjectEntry(*said, **more))

    def at(self, path: Path) -> str:
        """Return a path as it is typed in the project's folder."""
        return str(path.relative_to(self.root))


def read_project(root: Path) -> Project:
    """Read everything below a folder that gaploop has written, or was given.

    Raises:
        UnusableInputError: it isn't a folder, or has too much below it.
    """
    found, stores = Project(existing_folder(root, "Project folder").resolve()), list[LabelStore]()
    stations, plans = [SIM_STATION], list[Path]()
    for count, (here, below, files) in enumerate(os.walk(found.root)):
        if count >= MOST_FOLDERS:
            raise UnusableInputError(
                f"{found.root} has more than {MOST_FOLDERS} folders below it. Name a project's "
                "folder."
            )
        below[:] = sorted(  # what is inside of takes is left out
            name
            for name in below
            if name not in SKIPPED and name[0] != "." and not Path(here, name, HEADER).exists()
        )
        folder, names = Path(here), set(files)
        if is_dataset(folder) or is_journal(folder):
            with _reporting_damage(found):
                stores.append(open_labelled(folder))
        for path in (folder / name for name in sorted(names)):
            with _reporting_damage(found):
                if path.name == DIAGNOSIS:
                    made = load_diagnosis(path)
                    causes = Counter(words(take.top) or "no clear cause" for take in made.takes)
                    count = len(made.takes)
                    facts = f"{count} failure{'s' * (count != 1)}: {_counted(causes)}"
                    more = f"--diagnosis={found.at(path)}", "--budget.takes=50"
                    command = _command("plan", *more)
                    found.add("Diagnoses", path.parent.name, path, facts, next=command)
                elif path.name == RUN and not {DIAGNOSIS, "plan.yaml"} & names:
                    _add_run(found, path)
                elif path.name == SETUP:
                    _add_gate(found, path)
                elif path.suffix in (".yaml", ".yml") and path.stat().st_size < MOST_BYTES:
                    text = read_text(path)
                    if f"schema: {PLAN_SCHEMA}" in text:
                        plans.append(path)
                    elif "station" in path.stem and f"schema: {TWIN_SCHEMA}" not in text:
                        station = load_station(path)
                        stations.append(station)
                        said = (f"{n}: {', '.join(v)}" for n, v in station.conditions.items())
                        facts = "; ".join([station.domain.value, *said])
                        command = _command("doctor", f"--station={found.at(path)}")
                        found.add("Stations", station.name, path, facts, next=command)
    _add_takes(found, stores)
    for path in plans:
        with _reporting_damage(found):
            _add_plan(found, path, stations, [s for s in stores if s.journal])
    return found


@contextlib.contextmanager
def _reporting_damage(project: Project) -> Iterator[None]:
    """Note what can't be read, as a line, and go on."""
    try:
        yield
    except (GaploopError, OSError) as error:
        line = printable(" ".join(str(error).split()))
        project.damaged.append(line.replace(f"{project.root}/", ""))


def _command(*given: str) -> str:
    return shlex.join(["gaploop", *given])


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in names.most_common())


def _dataset_of(journal: Path) -> Path:
    """Return where `gaploop record` publishes a journal's takes."""
    name = journal.name.removesuffix("_journal")
    return journal.with_name(name if name != journal.name else f"{name}_dataset")


def _add_takes(project: Project, stores: Sequence[LabelStore]) -> None:
    """Add sessions, and what is to be reviewed. A take that was published counts in one of both."""
    published = {e.info.uid for s in stores if not s.journal for e in s.episodes}
    recorded = {e.info.uid for s in stores if s.journal for e in s.episodes}
    for store in stores:
        root, sessions = store.root, dict[str, list[EpisodeRow]]()
        waits = unpublished = 0
        for episode in store.episodes:
            uid, ended = episode.info.uid, episode.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
            if not (store.journal and uid in published):
                said = any(event.source == "engineer" for event in store.about(uid))
                waits += not said and episode.outcome not in SETTLED
                unpublished += store.journal and ended
            if store.journal or uid not in recorded:
                sessions.setdefault(episode.info.session, []).append(episode)
        for session, episodes in sorted(sessions.items()):
            outcomes = _counted(Counter(str(e.outcome) for e in episodes))
            people = sorted({e.info.operator for e in episodes} - {""})
            began = min(e.info.t0_ns for e in episodes)
            day = f"{datetime.fromtimestamp(began / 1e9, UTC):%Y-%m-%d %H:%M}" if began else ""
            facts = " · ".join(
                filter(None, [day, *people, f"{len(episodes)} episodes: {outcomes}"])
            )
            failed = any(e.outcome == Outcome.FAILURE and e.info.policy for e in episodes)
            command = _command("diagnose" if failed else "check", project.at(root))
            if unpublished:
                target = f"--dataset.root={project.at(_dataset_of(root))}"
                command = _command("publish", f"--journal={project.at(root)}", target)
            title = episodes[0].info.task or session or root.name
            project.add("Sessions", title, root, facts, next=command)
        if waits:
            facts = f"{waits} of {len(store.episodes)} episodes that nobody has reviewed"
            review = _command("review", project.at(root))
            project.add("Episodes to review", root.name, root, facts, next=review)


def _add_plan(
    project: Project, path: Path, stations: Sequence[Station], journals: Sequence[LabelStore]
) -> None:
    plan: Plan | None = None
    for station in stations[1:]:  # it names none, so it is checked against each of the project's
        with contextlib.suppress(UnusableInputError):
            plan = load_plan(path, station)
            break
    if plan is None:
        plan = load_plan(path, stations[0])
    items, rig = {item.id for item in plan.items}, "--config_path=rig.yaml"
    remedies = (f"{words(item.dimension.value)}: {item.remedy}" for item in plan.items)
    title, facts = path.parent.name, "; ".join([f"{plan.takes} episodes to record", *remedies])
    command = _command("record", rig, f"--plan={project.at(path)}", "--dataset.root=takes")
    typed = [line for item in plan.items for line in item.commands]
    if not plan.takes:
        command = typed[0] if typed else ""
    project.add("Plans", title, path, facts, next=" ".join(command.split()))
    for journal in journals:
        if not any(episode.info.plan in items for episode in journal.episodes):
            continue
        now = campaign_progress(journal.root, campaign(plan))
        bars = tuple(
            (words(name), sum(min(s.have, s.wanted) for s in setups), sum(s.wanted for s in setups))
            for name, setups in now.by_dimension().items()
        )
        left = f"about {now.left_s / 60:.0f} min left" if now.left else "filled"
        target = project.at(_dataset_of(journal.root))
        command = _command("record", rig, f"--plan={project.at(path)}", f"--dataset.root={target}")
        if not now.left:
            command = _command("finetune", "--policy.path=base", f"--real=[{target}]")
        facts = f"{now.have} of {now.wanted} episodes, {left}"
        project.add("Campaigns", title, journal.root, facts, bars=bars, next=command)


def _add_run(project: Project, path: Path) -> None:
    run, folder, command = read_run(path), path.parent, ""
    made = str(run.get("command", ""))
    facts = [made, str(run.get("at", ""))[:16].replace("T", " ")]
    if (folder / EVALUATION).exists():
        try:
            seen = read_json(folder / EVALUATION)
            low, high = seen["interval"]
            rate = f"{seen['rate']:.0%} [{low:.0%}, {high:.0%}] of {seen['trials']}"
            facts.append(f"{rate}; {seen['evidence']}")
        except DAMAGE:
            raise UnusableInputError(f"{folder / EVALUATION} is no evaluation.") from None
    for name in ("adapter", "policy"):
        if (folder / name).is_dir():
            base, policy = str(run["config"].get("base") or ""), project.at(folder / name)
            command = _command("evaluate", f"--policy.path={policy}")
            if base and made == "finetune":
                command = _command("gate", f"--baseline={base}", f"--candidate={policy}")
            break
    project.add("Runs", folder.name, folder, " · ".join(filter(None, facts)), next=command)


def _add_gate(project: Project, setup: Path) -> None:
    begun, folder = read_json(setup), setup.parent
    if not isinstance(begun, dict) or begun.get("schema") != GATE_SCHEMA:
        return  # another program's
    result = folder / RESULT
    if result.exists():
        try:
            value = read_json(result)
            facts = f"{value['verdict']}: {value['message']} ({value['evidence']})"
        except DAMAGE:
            raise UnusableInputError(f"{result} is no result of a gate. Restore it.") from None
    else:
        tried = folder / OUTCOMES
        done = read_text(tried).count("\n") if tried.exists() else 0
        facts = f"in progress: {done} attempts. The command that began it continues it."
    project.add("Gates", folder.name, folder, facts)

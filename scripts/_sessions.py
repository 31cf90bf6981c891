"""A session of `gaploop record` or `gaploop rollout`: what it is to do, and the cell by itself.

With an operator, see `_attended`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect import lerobot_factory
from gaploop.collect.campaign import Quota
from gaploop.collect.publisher import STOPPING, Publisher
from gaploop.collect.rig import EmbeddedRig, Rig, embedded_rig, scripted_leader
from gaploop.collect.session import MakeRig, SessionSpec, record_takes
from gaploop.collect.take import Attendant, TakeResult
from gaploop.core import journal_format
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import writable_folder
from gaploop.core.protocols import Leader
from gaploop.core.station import Station
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import layout
from gaploop.datasets.check.tasks import read_tasks
from gaploop.datasets.columns import IMAGES
from gaploop.datasets.differences import Profile, known_units, profile, require_same
from gaploop.scripts import options
from gaploop.scripts._campaign import Campaign, telling_set_ups
from gaploop.scripts._pushing import push_after
from gaploop.teleop.checks.cameras import MORE_PICTURES
from gaploop.teleop.leaders.options import ForceOptions
from gaploop.teleop.sensors import check_sensors
from gaploop.teleop.stopping import stoppable

if TYPE_CHECKING:
    from gaploop.collect.devices import SharedDriver
    from gaploop.collect.rollout import RolloutDriver
    from gaploop.collect.session import SessionEnd
    from gaploop.datasets.lerobot_publish import PublishReport

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionJob:
    """What a session is to do.

    Attributes:
        quotas: what to record, in this order.
        driver: the policy that drives and is taken over from, if any.
        shared: who drives, where that isn't just the leader.
    """

    config: Any
    station: Station
    root: Path
    journal: Path
    quotas: tuple[Quota, ...]
    spec: SessionSpec
    campaign: Campaign | None = None
    driver: RolloutDriver | None = None
    shared: SharedDriver | None = None

    @property
    def fps(self) -> float | None:
        """Frames a second that are asked for, else the policy's; None: the robot's own rate."""
        policy = self.driver.policy if self.driver is not None else None
        return self.config.dataset.fps or (policy.fps if policy is not None else None)

    @property
    def leads(self) -> str:
        """The type of leader by which a person drives; "" where nobody does."""
        teleop = self.config.teleop
        by_nobody = self.driver is not None and not self.driver.has_person
        return (
            ""
            if by_nobody or not hasattr(teleop, "get_known_choices")
            else lerobot_factory.kind(teleop)
        )

    @property
    def leader_inputs(self) -> lerobot_factory.LeaderInputs | None:
        """Speeds and forces of a leader."""
        if not hasattr(self.config, "cartesian"):
            return None
        return lerobot_factory.LeaderInputs(
            self.config.cartesian, getattr(self.config, "force", ForceOptions())
        )


DISPLAYS: Final = ("auto", "window", "terminal", "none")


def check_session(config: Any, *above_0: str) -> None:
    """Refuse options that no session can have; numbers `above_0` are this command's own."""
    if config.display not in DISPLAYS:
        raise unknown_choice("display", config.display, DISPLAYS, "--display")
    if config.sensors and config.robot.type == lerobot_factory.EMBEDDED:
        raise UnusableInputError(
            "--sensors go with an arm; the embedded cell has none. Leave it out, or choose an arm "
            "with --robot.type."
        )
    check_sensors(config.sensors)
    if config.publish_every < 1:
        raise UnusableInputError(f"--publish_every must be 1 or more, got {config.publish_every}.")
    for name in ("dataset.num_episodes", "dataset.episode_time_s", *above_0):
        value = attrgetter(name)(config)
        if value is not None and not value > 0:
            raise UnusableInputError(f"--{name} must be above 0, got {value:g}.")
    for name in ("dataset.reset_time_s", "reconnect_s"):
        value = attrgetter(name)(config)
        if not value >= 0:
            raise UnusableInputError(f"--{name} must be 0 or more, got {value:g}.")


def check_targets(make_rig: MakeRig, quotas: Sequence[Quota], root: Path, journal: Path) -> None:
    """Refuse what could not be published before anything is recorded or made."""
    if journal.is_relative_to(root) or root.is_relative_to(journal):
        raise UnusableInputError(
            f"Journal {journal} and dataset {root} lie inside each other. Keep them side by side."
        )
    if root.exists() and not layout.is_dataset(root) and any(root.iterdir()):
        raise UnusableInputError(
            f"{root} exists and is not a LeRobot dataset. Name another with --dataset.root."
        )
    for quota in {quota.key: quota for quota in quotas}.values():
        with contextlib.closing(make_rig(quota.conditions)) as rig:
            new = replace(Profile.of_take(rig.header("")), where="the robot as set up here")
        if layout.is_dataset(root):
            info = layout.read_info(root)
            have = profile(info, layout.read_episodes(info))
            require_same(have, new, "Record to another folder with --dataset.root.")
        for folder in journal_format.take_folders(journal)[:1]:
            have = Profile.of_take(journal_format.read_header(folder))
            require_same(have, new, "Record to another folder with --journal.")
    writable_folder(root.parent, "Folder", "--dataset.root")
    writable_folder(journal.parent, "Folder", "--journal")


def go_on_with(config: Any, root: Path, journal: Path) -> None:
    """Take from the dataset that takes are added to what the options leave open.

    Those are the rate, the units, the sizes of pictures and the task; `check_targets` refuses what
    differs. A journal without a dataset stands for one.

    Raises:
        UnusableInputError: a task that the dataset doesn't hold, unless it is meant to be new.
    """
    sizes: dict[str, tuple[int, int]] = {}  # width, height
    if layout.is_dataset(root):
        info = layout.read_info(root)
        fps, units = info.fps, known_units(layout.read_episodes(info), info)
        tasks = read_tasks(root / layout.TASKS) if (root / layout.TASKS).is_file() else []
        for key in info.picture_keys:
            height, width, *_ = info.features[key]["shape"]
            sizes[key.removeprefix(IMAGES)] = (width, height)
    elif folders := journal_format.take_folders(journal):
        headers = [journal_format.read_header(folder) for folder in folders]
        known, cameras = headers[-1].info, headers[-1].cameras
        fps, units, tasks = known.fps, known.units, [h.info.task for h in headers]
        sizes = {name: (spec["width"], spec["height"]) for name, spec in cameras.items()}
    else:
        return
    if config.dataset.fps is None and not config.policy.path:
        config.dataset.fps = fps
    for group in ("robot", "teleop"):
        device = getattr(config, group)
        is_open = not options.is_given(config, f"{group}.use_degrees")
        if is_open and hasattr(device, "use_degrees") and units in ("deg", "m100_100"):
            device.use_degrees = units == "deg"
    for name, camera in (getattr(config.robot, "cameras", None) or {}).items():
        if name in sizes and getattr(camera, "width", 0) is None and camera.height is None:
            camera.width, camera.height = sizes[name]
    _choose_task(config, list(dict.fromkeys(tasks)), root)


def _choose_task(config: Any, tasks: Sequence[str], root: Path) -> None:
    """Take the one task that is held where none is given; refuse one that isn't held."""
    wanted, shown = config.dataset.single_task, ", ".join(f"'{task}'" for task in tasks[:5])
    if not wanted and options.is_given(config, "robot.task"):
        wanted = config.robot.task.replace("_", " ")
    if not tasks or wanted in tasks:
        return
    if not wanted and len(tasks) > 1:
        raise UnusableInputError(
            f"{root} holds several tasks: {shown}. Name one with --dataset.single_task, or a new "
            "one with --dataset.new_task=true beside it."
        )
    if not wanted:
        config.dataset.single_task = tasks[0]
        return
    for task in tasks:
        if _letters(task) == _letters(wanted):
            raise UnusableInputError(
                f"--dataset.single_task='{wanted}' differs from '{task}', which {root} holds, only "
                f"in case, spaces or punctuation; a policy would learn two tasks. Write '{task}'."
            )
    if not config.dataset.new_task:
        raise UnusableInputError(
            f"{root} holds {shown}; '{wanted}' would be a new task. Name one of those with "
            "--dataset.single_task, or say that it is meant: --dataset.new_task=true"
        )


def _letters(task: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKC", task).casefold() if c.isalnum())


type Recorded = tuple[SessionEnd, list[PublishReport], list[int]]
"""How a session went, every publication, and the signals that came."""


def spec_of(
    config: Any, journal: Path, kind: TakeKind, policy: str, *, resume: bool
) -> SessionSpec:
    """Return what the takes of a session share, by its options; `policy` is an id, or ""."""
    return SessionSpec(
        journal,
        config.dataset.single_task or getattr(config.robot, "task", kind.value).replace("_", " "),
        kind,
        max_s=config.dataset.episode_time_s,
        seed=config.seed,
        operator=config.operator,
        policy=policy,
        resume=resume,
        publish_every=config.publish_every,
        consent=config.consent,
        consents=config.consents,
    )


def session_figures(
    job: SessionJob, end: SessionEnd, reports: Iterable[PublishReport], stopped: Sequence[int]
) -> dict[str, Any]:
    """Return what every session says of itself, as of `RecordResult`, after pushing if asked to."""
    outcomes = {o.value: sum(take.outcome is o for take in end.takes) for o in Outcome}
    return {
        "journal": job.journal,
        "root": job.root,
        "takes": len(end.takes),
        "outcomes": {name: count for name, count in outcomes.items() if count},
        "published": sum(len(report.published) for report in reports),
        "recovered": end.recovered,
        "reconnected": end.reconnected,
        "trip": end.trip,
        "uids": [take.uid for take in end.takes],
        "video": video_figures(end.takes),
        "push": push_after(job.config.dataset, job.root, job.config.consents, stopped),
    }


def record_alone(job: SessionJob, attendant: Attendant, what: str) -> Recorded:
    """Record in the embedded cell as fast as it goes, with nobody who watches."""
    make_rig = functools.partial(embedded, job.config.robot, job.fps)
    check_targets(make_rig, job.quotas, job.root, job.journal)
    publisher = Publisher(job.journal, job.root, job.config.dataset.repo_id, job.config.consents)
    wanted, set_up = job.config.dataset.num_episodes, lambda _quota, _before: True
    if job.driver is None:
        wanted = sum(quota.takes for quota in job.quotas)
        set_up = telling_set_ups(job.station.grid)
    with stoppable(STOPPING) as stopped, publisher, options.progress(what, wanted) as advance:

        def make_leader(rig: Rig, seed: int) -> Leader:
            expert = scripted_leader(rig, seed)
            if job.shared is None:
                return expert
            return job.shared(rig.follower, rig.rates, lambda: rig.safety.sent_rad, expert)

        end = record_takes(
            job.spec,
            job.quotas,
            make_rig,
            make_leader,
            set_up=set_up,
            stop=lambda: bool(stopped),
            on_take=lambda _take, counts: advance(int(counts)),
            publish=publisher.behind,
            attendant=attendant,
        )
    return end, publisher.reports, stopped


def embedded(robot: Any, fps: float | None, conditions: Mapping[str, object]) -> EmbeddedRig:
    """Build the embedded cell that `--robot.*` describes, with something set up."""
    there = {**robot.conditions, **conditions}
    return embedded_rig(**lerobot_factory.robot_arguments(robot), conditions=there, fps=fps)


def video_figures(takes: Iterable[TakeResult]) -> dict[str, Any]:
    """Return, and warn of, what cameras and the encoder couldn't do in time.

    Returns:
        `dropped`: pictures; `most_behind_s`: the longest time whose pictures waited [s];
        `doubts`: lines about cameras that were slow or frozen.
    """
    takes = tuple(takes)
    doubts = [words for take in takes for words in take.doubts]
    if doubts:
        log.warning(
            "In %d of %d takes a camera was slow or frozen: rows repeat the picture before. %s",
            sum(bool(take.doubts) for take in takes),
            len(takes),
            MORE_PICTURES,
        )
    dropped = sum(take.dropped for take in takes)
    behind_s = max((take.behind_s for take in takes), default=0.0)
    if dropped:
        log.warning(
            "The encoder couldn't keep up: %d pictures were dropped; those rows repeat the "
            "picture before. Close other programs, or use fewer or smaller pictures.",
            dropped,
        )
    elif behind_s:
        log.warning(
            "The encoder was up to %.1f s behind and encoded coarsely; nothing was dropped. Close "
            "other programs, or use fewer or smaller pictures.",
            behind_s,
        )
    doubts = list(dict.fromkeys(doubts))
    return {"dropped": dropped, "most_behind_s": round(behind_s, 2), "doubts": doubts}

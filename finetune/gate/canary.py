"""The canary: a candidate gets a share of a fleet, and loses it at the first breach.

The controller is a fold over what robots report. It hands out leases: a robot that nobody heard
of for longer than its lease goes back to the baseline by itself, whatever happens here. So after
a roll-back no episode of the candidate begins later than one lease.

While it is a canary the candidate is compared on the same robot: of each block of a robot's
episodes it drives one, drawn at random, the baseline the others. Robots that are better or worse
than others therefore don't matter. On the whole fleet it is compared with what the baseline did
before, less the margin: that isn't measured at the same time.

A robot's side is `AssignedPolicy`: it reads the controller's `assignment.json` before each episode.
Where it can't be read, is too old or isn't for these policies, the baseline drives.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.errors import DAMAGE, GaploopError, UnusableInputError, unknown_choice
from gaploop.core.files import json_lines, read_json, write_json
from gaploop.core.paths import plain_name
from gaploop.core.suite import CanaryRules, Suite
from gaploop.core.vocabulary import Outcome
from gaploop.finetune.gate.evidence import Wealth, log_evidence, rate_evidence
from gaploop.finetune.gate.folder import GateFolder
from gaploop.finetune.gate.judge import CANARY, StageAnswer, StageResult

if TYPE_CHECKING:
    from gaploop.collect.rollout import Attempts
    from gaploop.core.messages import FloatArray, Observation
    from gaploop.finetune.lerobot_policy import ActPolicy

SAFETY_TARGET: Final = 0.05
"""Rate of safety events that the stake on "unsafe" is best for, per episode."""
MOST: Final = 5
"""A canary ends undecided after this many times the episodes that it needs at least."""
LOSS: Final = 0.25
"""Loss of success that the stake on "worse" is best for at first."""
SPREAD: Final = 0.4
"""How often just one of two episodes of a robot is expected to succeed."""
ASSIGNMENT: Final = "assignment.json"


class CanaryPhase(StrEnum):
    """Where a roll-out stands."""

    CANARY = "canary"
    FULL = "full"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Report:
    """What a robot says of one episode.

    Attributes:
        episode: number of the robot's episode, from 0; a second report of it is ignored.
        safety: a safety event ended it.
    """

    robot: str
    episode: int
    candidate: bool
    success: bool
    safety: bool = False


@dataclass(frozen=True)
class Lease:
    """What a robot may do until `until_s` [s]; afterwards it may only run the baseline.

    Attributes:
        share: of its episodes, the share that the candidate drives.
    """

    share: float
    until_s: float


@dataclass(eq=False)
class Canary:
    """Decides who runs the candidate.

    Attributes:
        seed: draws the robots that try it first, and their episodes.
    """

    rules: CanaryRules
    robots: tuple[str, ...]
    seed: int = 0
    phase: CanaryPhase = CanaryPhase.CANARY
    message: str = ""
    evidence: list[tuple[int, float, float]] = field(default_factory=list)
    """After every report: episodes of the candidate so far, log evidence of a loss, of danger."""

    def __post_init__(self) -> None:
        rules, margin = self.rules, self.rules.success_margin
        drawn = np.random.default_rng([self.seed, 11]).permutation(sorted(self.robots))
        count = max(1, math.ceil(rules.robots * len(self.robots) - 1e-9))
        self.tries = frozenset(str(name) for name in drawn[:count])
        """The robots that the candidate is tried on first."""
        self.episodes = 0
        """Episodes of the candidate that were reported."""
        self._seen: set[tuple[str, int]] = set()
        self._blocks: dict[tuple[str, int], list[Report]] = {}
        self._baseline = [0, 0]  # successes, episodes
        self._unsafe = self._full = 0
        self.widened = ""
        """Why the whole fleet got it; "" until it does."""
        target, spread = max(SAFETY_TARGET, 3 * rules.max_safety_rate), SPREAD + margin**2
        self._danger = Wealth(lambda x: rate_evidence(x, rules.max_safety_rate, target))
        self._worse = Wealth(lambda x: log_evidence(x[:, None], 0.0, LOSS, SPREAD))
        self._kept = Wealth(lambda x: log_evidence(x[:, None], -margin, 0.0, spread))

    def lease(self, robot: str, now_s: float) -> Lease:
        """Return what a robot that is being heard of now may do."""
        share = 0.0
        if self.phase in (CanaryPhase.FULL, CanaryPhase.PROMOTED):
            share = 1.0
        elif self.phase is CanaryPhase.CANARY and robot in self.tries:
            share = self.rules.share
        return Lease(share, now_s + self.rules.lease_s)

    def observe(self, report: Report) -> None:
        """Take a report in, however late; a second one of the same episode is ignored."""
        key = report.robot, report.episode
        if key in self._seen or report.robot not in self.robots:
            return
        self._seen.add(key)
        if self.phase not in (CanaryPhase.CANARY, CanaryPhase.FULL):
            return
        if report.candidate:
            self.episodes += 1
            self._unsafe += report.safety
            self._danger.add(report.safety)
        if self.phase is CanaryPhase.CANARY and report.robot in self.tries:
            # Candidate minus mean of the baseline counts once a robot's block is complete.
            if not report.candidate:
                self._baseline[0] += report.success
                self._baseline[1] += 1
            length = block_length(self.rules.share)
            block = self._blocks.setdefault((report.robot, report.episode // length), [])
            block.append(report)
            new = [r.success for r in block if r.candidate]
            if len(block) == length and len(new) == 1:  # a lease that ran out leaves it none
                x = new[0] - sum(r.success for r in block if not r.candidate) / (length - 1)
                self._worse.add(-x)
                self._kept.add(x)
        elif self.phase is CanaryPhase.FULL and report.candidate:
            self._full += 1
            self._worse.add(not report.success)
        self.evidence.append((self.episodes, self._worse.log_e, self._danger.log_e))
        rules, bound = self.rules, math.log(3 / self.rules.alpha)  # three ways to roll back
        if self._danger.log_e >= bound:
            self._end(
                CanaryPhase.ROLLED_BACK,
                f"{self._unsafe} safety events in {self.episodes} episodes, more than the "
                f"{rules.max_safety_rate:.1%} tolerated",
            )
        elif self._worse.log_e >= bound:
            than = "worse than the baseline's"
            if self.phase is CanaryPhase.FULL:
                than = f"more than {rules.success_margin:.0%} below what the baseline's was"
            self._end(CanaryPhase.ROLLED_BACK, f"success is {than}, {self.episodes} episodes")
        elif self.phase is CanaryPhase.FULL and self._full >= rules.full_episodes:
            self._end(CanaryPhase.PROMOTED, f"no breach in {self.episodes} episodes")
        elif self.phase is CanaryPhase.CANARY and self.episodes >= rules.episodes:
            if self._kept.peak >= math.log(1 / rules.alpha):
                # The whole fleet is the candidate's; it is held to what the baseline did.
                won, tried = self._baseline
                lost = 1 - max(won / max(tried, 1) - self.rules.success_margin, 0.01)
                target = min(lost + 0.15, (1 + lost) / 2)
                self._worse = Wealth(lambda x: rate_evidence(x, lost, target))
                self.widened = f"no breach in {self.episodes} episodes on {len(self.tries)} robots"
                self._end(CanaryPhase.FULL, self.widened)
            elif self.episodes >= MOST * rules.episodes:
                margin = rules.success_margin
                self._end(CanaryPhase.UNDECIDED, f"not shown to lose less than {margin:.0%}")

    def _end(self, phase: CanaryPhase, message: str) -> None:
        self.phase, self.message = phase, message


def drives(seed: int, lease: Lease, robot: str, episode: int, now_s: float) -> bool:
    """Say whether the candidate drives an episode that begins now, by the canary's seed."""
    if now_s >= lease.until_s or lease.share == 0:
        return False
    if lease.share == 1:
        return True
    block, place = divmod(episode, block_length(lease.share))
    name = int.from_bytes(hashlib.sha256(robot.encode()).digest()[:4], "big")
    drawn = np.random.default_rng([seed, name, block])
    return bool(place == drawn.integers(block_length(lease.share)))


def block_length(share: float) -> int:
    """Return how many episodes of a robot hold one of the candidate's."""
    return max(2, round(1 / share))


def replay(canary: Canary, reports: Iterable[Report]) -> Canary:
    """Let a controller take in reports; return it."""
    for report in reports:
        canary.observe(report)
    return canary


def reported(suite: Suite, reports: Path, folder: GateFolder, candidate: str = "") -> Canary:
    """Let a fleet's canary take in its reports, and write `assignment.json` for the robots.

    Args:
        reports: a file of lines, or a folder of such files.
        candidate: folder or name by which robots load it.

    Raises:
        UnusableInputError: the suite names no robots, or a report can't be read.
    """
    rules = suite.canary
    if not rules.fleet:
        raise UnusableInputError(
            f"{suite.where}: canary: --reports needs the robots' names, such as "
            "fleet: [arm_1, arm_2]."
        )
    canary = replay(Canary(rules, rules.fleet, folder.seed), _read(reports, rules.fleet))
    now = datetime.now(UTC)
    write_json(
        folder.path / ASSIGNMENT,
        {
            "phase": canary.phase.value,
            "seed": canary.seed,
            "baseline": folder.contest.baseline,
            "candidate": folder.contest.candidate,
            "candidate_path": candidate,
            "at": now.isoformat(timespec="seconds"),
            # A robot that reads an old file has heard of nobody: by itself it goes back.
            "until": (now + timedelta(seconds=rules.lease_s)).isoformat(timespec="seconds"),
            "lease_s": rules.lease_s,
            "share": {robot: canary.lease(robot, 0.0).share for robot in canary.robots},
        },
    )
    return canary


def _read(path: Path, names: Sequence[str]) -> list[Report]:
    if not path.exists():
        raise UnusableInputError(f"{path} not found. Check --reports, or make it an empty file.")

    def read(value: Any, where: str) -> Report:
        report = Report(**value)
        if report.robot not in names:
            raise unknown_choice("robot", str(report.robot), names, where)
        if type(report.episode) is not int or report.episode < 0:
            raise TypeError(f"episode must be a number from 0, got {report.episode!r}")
        for name in ("candidate", "success", "safety"):
            said = getattr(report, name)
            if type(said) is not bool:
                raise TypeError(f"{name} must be true or false, got {said!r}")
        return report

    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    return [report for file in files for report in json_lines(file, "a robot's report", read)]


def fleet_stage(canary: Canary, stage: str) -> StageResult:
    """Return how the canary stands, or, after it, the whole fleet."""
    if stage == CANARY and canary.widened:
        return StageResult(stage, StageAnswer.PASSED, canary.widened, canary.episodes)
    answer = {
        CanaryPhase.PROMOTED: StageAnswer.PASSED,
        CanaryPhase.ROLLED_BACK: StageAnswer.FAILED,
        CanaryPhase.UNDECIDED: StageAnswer.UNDECIDED,
    }.get(canary.phase, StageAnswer.OPEN)
    message = canary.message
    if answer is StageAnswer.OPEN:
        message = f"{canary.episodes} episodes so far; run the gate again as reports come in"
    elif answer is StageAnswer.FAILED:
        message = f"rolled back: {message}"
    return StageResult(stage, answer, message, canary.episodes)


log = logging.getLogger(__name__)

REPORTS: Final = "reports"
"""Folder beside `assignment.json` with a file of report lines for each robot."""
TRIP: Final = "safety trip"
AGAIN_S: Final = 5.0
"""A URL that doesn't answer within this time counts as unreadable [s]."""
MOST_BYTES: Final = 1 << 20

type Loaded = tuple[ActPolicy, str]
"""A policy and its id."""


class AssignedPolicy:
    """The baseline, or the candidate in the episodes that the fleet's controller gives it.

    Args:
        source: file or http(s) address of `assignment.json`.
        baseline: what drives unless told otherwise.
        load: loads a candidate by the name that the assignment has for it.
        journal: takes report lines where `source` is no file; else they go beside it.

    Raises:
        UnusableInputError: a name that can't be one, or reports from before that can't be read.
    """

    def __init__(
        self,
        source: str,
        robot: str,
        baseline: Loaded,
        load: Callable[[str], Loaded],
        journal: Path,
    ) -> None:
        self._source, self._robot, self._load = source, robot, load
        self._is_url = source.startswith(("http://", "https://"))
        folder = journal if self._is_url else Path(source).absolute().parent / REPORTS
        self._file = folder / f"{plain_name(robot, '--robot.id', source)}.jsonl"
        known = []
        if self._file.exists():
            known = list(json_lines(self._file, "a report", lambda said, _where: Report(**said)))
        self.episode = max((r.episode for r in known), default=-1)
        """Number of the robot's episode that is on, or was last."""
        self._baseline, self._candidate = baseline, dict[str, Loaded | None]()
        self._now, self.id = baseline
        self._begun = dict[str, tuple[int, bool]]()
        """Take to episode, and whether the candidate drove; until it is reported."""
        self._reported = set[str]()
        self._share = 0.0
        base = baseline[0]
        self.fps, self.robot_type = base.fps, base.robot_type
        self.delay_s, self.camera_delay_s, self.runs = base.delay_s, base.camera_delay_s, base.runs
        self.needs_scene = base.needs_scene
        if not self.needs_scene and (there := self._other(self._read())) is not None:
            self.needs_scene = there[0].needs_scene

    @property
    def execute(self) -> int:
        """Steps of a plan that whoever drives is meant to execute."""
        return self._now.execute

    def reset(self) -> None:
        """Forget the episode before."""
        self._now.reset()

    def act(self, observation: Observation) -> FloatArray:
        """Return the next joint target, as of whoever drives."""
        return self._now.act(observation)

    def plan(self, observation: Observation) -> FloatArray:
        """Return the next joint targets, as of whoever drives."""
        return self._now.plan(observation)

    def choose(self, attempts: Attempts, now_s: Callable[[], float] = time.time) -> str:
        """Report what is known of episodes before; return the id of who drives the next one."""
        self.report(attempts)
        self.episode += 1
        said = self._read()
        other = self._other(said)
        lease = Lease(0.0, 0.0)
        if other is not None:
            until_s = datetime.fromisoformat(str(said["until"])).timestamp()
            lease = Lease(float(said["share"].get(self._robot, 0.0)), until_s)
        share = lease.share if now_s() < lease.until_s else 0.0
        if share != self._share:  # from this episode on it may drive more or fewer
            what = f"{share:.0%} of episodes" if share else "no more: the baseline drives"
            log.warning("Episode %d: the candidate drives %s.", self.episode, what)
        self._share = share
        is_turn = drives(int(said.get("seed", 0)), lease, self._robot, self.episode, now_s())
        self._now, self.id = other if other is not None and is_turn else self._baseline
        return self.id

    def report(self, attempts: Attempts) -> None:
        """Append a line for each take whose outcome is known; one that a person helped failed."""
        for uid in attempts.notes.keys() - self._begun.keys() - self._reported:
            self._begun[uid] = self.episode, self.id != self._baseline[1]
        for uid, (episode, is_candidate) in list(self._begun.items()):
            outcome, note = attempts.outcomes.get(uid), attempts.notes[uid]
            if outcome not in (Outcome.SUCCESS, Outcome.FAILURE):
                continue
            won, unsafe = outcome is Outcome.SUCCESS, note.reason.startswith(TRIP)
            won = won and not note.interventions
            line = asdict(Report(self._robot, episode, is_candidate, won, unsafe))
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            del self._begun[uid]
            self._reported.add(uid)

    def _read(self) -> Mapping[str, Any]:
        try:
            if self._is_url:
                with urllib.request.urlopen(self._source, timeout=AGAIN_S) as answer:
                    said = json.loads(answer.read(MOST_BYTES))
            else:
                said = read_json(Path(self._source))
            if said["baseline"] != self._baseline[1]:
                raise UnusableInputError(f"it is for baseline {said['baseline']}")
            _ = datetime.fromisoformat(str(said["until"])), int(said["seed"]), dict(said["share"])
            return dict(said)
        except (GaploopError, *DAMAGE) as error:
            log.warning("%s: %s. The baseline drives.", self._source, error)
            return {}

    def _other(self, said: Mapping[str, Any]) -> Loaded | None:
        """Return the candidate, loaded once; None where there is none that can drive here."""
        id_ = str(said.get("candidate", ""))
        if id_ and id_ not in self._candidate:
            self._candidate[id_] = None
            try:
                found, found_id = self._load(str(said.get("candidate_path", "")))
                base = self._baseline[0]
                if found_id != id_:
                    raise UnusableInputError(f"it is {found_id} here")
                if (found.fps, found.delay_s, found.camera_delay_s) != (
                    base.fps, base.delay_s, base.camera_delay_s
                ):  # fmt: skip
                    raise UnusableInputError("its rate or its delays aren't the baseline's")
                self._candidate[id_] = found, found_id
            except GaploopError as error:
                log.warning("Candidate %s: %s. The baseline drives.", id_, error)
        return self._candidate.get(id_)

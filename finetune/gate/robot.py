"""A robot's side of a fleet: who drives its next episode, and what came of the last one.

The controller is `gaploop gate --reports`, which writes `assignment.json`. A robot reads it before
each episode. Where it can't be read, is too old or isn't for these policies, the baseline drives.
"""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gaploop.collect.rollout import Attempts
from gaploop.core.errors import DAMAGE, GaploopError, UnusableInputError
from gaploop.core.files import json_lines, read_json
from gaploop.core.messages import FloatArray, Observation
from gaploop.core.paths import plain_name
from gaploop.core.vocabulary import Outcome
from gaploop.finetune.gate.canary import Lease, Report, drives
from gaploop.finetune.lerobot_policy import ActPolicy

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
        robot: this robot's name in the fleet.
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

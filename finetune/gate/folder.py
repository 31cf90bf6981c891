"""The gate's folder: who is tried when, sealed; what came of each attempt; the promotion record.

The order is drawn by a seed, balanced, and kept from whoever judges the attempts. Every outcome is
appended as it comes, so that a gate can stop and go on. The record names by hash what was promoted
on which evidence.
"""

import base64
import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import filelock
import numpy as np

from gaploop.core import files
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, sha256, write_json
from gaploop.core.run_record import read_run, versions
from gaploop.finetune.gate.judge import Outcomes, place_of
from gaploop.finetune.runs import run_files

SIDES: Final = ("baseline", "candidate")
BLOCK: Final = 4
"""In so many pairs of a task each policy goes first equally often."""
SCENES: Final = 2_000_000
"""Scenes of gates begin here: none was trained, demonstrated or evaluated on."""
SCENES_PER_GATE: Final = 20_000
SEALED: Final = "key.sealed"
OPENED: Final = "key.json"
SCHEMA: Final = "gaploop.gate.v1"
SETUP: Final = "setup.json"
OUTCOMES: Final = "outcomes.jsonl"
RESULT: Final = "gate.json"
LOCK: Final = ".lock"


@dataclass(frozen=True)
class GateAttempt:
    """One attempt of a stage.

    Attributes:
        number: from 0, in the order in which they are made.
        round: every task is tried once by both policies in a round.
        task: index of the suite's task.
        side: `baseline` or `candidate`.
        scene: seed of the scene; both attempts of a pair have the same, and no other pair has it.
    """

    number: int
    round: int
    task: int
    side: str
    scene: int


def attempts(seed: int, stage: str, tasks: int) -> Iterator[GateAttempt]:
    """Yield the attempts of a stage, without end; equal seeds give equal orders.

    Every pair has a scene of its own, those of one round too: tasks that shared one would succeed
    and fail together, and evidence that takes them for independent would count it twice.
    """
    number, salt = 0, int.from_bytes(hashlib.sha256(stage.encode()).digest()[:4], "big")
    first_scene = SCENES + SCENES_PER_GATE * (int(seed) % 50_000)
    first_scene += (salt % 2) * SCENES_PER_GATE // 2
    turn = 0
    while True:
        for task in np.random.default_rng([seed, salt, 0, turn]).permutation(tasks):
            block = np.arange(BLOCK) < BLOCK // 2  # in which the baseline goes first
            drawn = np.random.default_rng([seed, salt, 1, int(task), turn // BLOCK])
            sides = SIDES if drawn.permutation(block)[turn % BLOCK] else SIDES[::-1]
            for side in sides:
                yield GateAttempt(number, turn, int(task), side, first_scene + number // 2)
                number += 1
        turn += 1


def seal(folder: Path, seed: int) -> str:
    """Write the key to the order, not to be read by chance; return what commits to it."""
    key = {"seed": seed, "nonce": secrets.token_hex(16)}
    files.write_atomically(folder / SEALED, base64.b64encode(json.dumps(key).encode()), 0o600)
    return commitment(key)


def commitment(key: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a key, which can be shown before the key is."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def read_key(folder: Path, committed: str) -> int:
    """Return the seed of the order.

    Raises:
        UnusableInputError: the key is gone, or isn't the one that the gate began with.
    """
    try:
        key = files.parse_json(base64.b64decode((folder / SEALED).read_bytes()))
        seed = int(key["seed"])
    except DAMAGE:
        raise UnusableInputError(
            f"{folder / SEALED} can't be read: without it nobody knows which attempt was whose. "
            "Restore it, or begin a new gate in another --output_dir."
        ) from None
    if commitment(key) != committed:
        raise UnusableInputError(
            f"{folder / SEALED} isn't the key that this gate began with. Restore it, or begin a "
            "new gate in another --output_dir."
        )
    return seed


def unseal(folder: Path) -> dict[str, Any]:
    """Open the key once the verdict is there; return it."""
    key: dict[str, Any] = json.loads(base64.b64decode((folder / SEALED).read_bytes()))
    files.write_atomically(folder / OPENED, json.dumps(key) + "\n")
    return key


@dataclass(frozen=True)
class AttemptResult:
    """What came of one attempt; whose it was is known to the key alone.

    Attributes:
        stage: `sim` or `hardware`.
        attempt: its number in the stage's order.
        safety: a safety event ended it.
        repeats: tries before it that the operator said didn't count.
        before: what the operator said by now of the attempt before, "y", "n" or "safety"; "" where
            what was said then stands.
        phase: in which it failed; "" of a success, where nobody said and where the suite declares
            no phase to fix.
    """

    stage: str
    attempt: int
    success: bool
    safety: bool = False
    duration_s: float = 0.0
    reason: str = ""
    repeats: int = 0
    before: str = ""
    phase: str = ""
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True)
class Contest:
    """What a gate is about, a folder holds only one: ids of both policies, the suite's SHA-256."""

    baseline: str
    candidate: str
    suite: str


@contextlib.contextmanager
def only_gate(path: Path) -> Iterator[None]:
    """Hold a gate's folder: two gates at once would each make the attempts of both.

    Raises:
        UnusableInputError: another gate runs there.
    """
    try:
        held = filelock.FileLock(path / LOCK, timeout=0).acquire()
    except filelock.Timeout:
        raise UnusableInputError(
            f"Another gate is running in {path}. Wait for it, or stop it: the same command then "
            "goes on where it was."
        ) from None
    with held:
        yield


class GateFolder:
    """Opens a gate's folder, new or begun earlier.

    Args:
        seed: of the order, for a new one; drawn unless given.
        fixes_phase: the declared phase, of `Rules`; a gate may go on without it, never with another
            or one that is declared later.

    Raises:
        UnusableInputError: the folder holds another gate, or its key is gone.
    """

    def __init__(
        self, path: Path, contest: Contest, seed: int | None = None, fixes_phase: str = ""
    ) -> None:
        self.path, self.contest = path, contest
        setup = path / SETUP
        self.resumed = setup.exists()
        if not self.resumed:
            drawn = secrets.randbits(48) if seed is None else seed
            sealed = seal(path, drawn)
            begun = {"schema": SCHEMA, "order_sha256": sealed, **asdict(contest)}
            files.write_json(setup, begun | ({"fixes_phase": fixes_phase} if fixes_phase else {}))
        known = files.read_json(setup)
        for name, value in asdict(contest).items():
            if known.get(name) != value:
                raise UnusableInputError(
                    f"{path} holds a gate with another {name} ({known.get(name)}, now {value}). "
                    "Name another folder with --output_dir, or give what it began with."
                )
        declared = known.get("fixes_phase", "")
        if fixes_phase not in ("", declared):
            raise UnusableInputError(
                f"{path}: fixes_phase {fixes_phase} wasn't declared before the first attempt "
                f"({declared or 'none'} is). Take it out of the suite, or begin a new gate in "
                "another --output_dir."
            )
        self.commitment = str(known["order_sha256"])
        self.seed = read_key(path, self.commitment)
        if seed is not None and seed != self.seed:
            raise UnusableInputError(
                f"{path} began with another --seed. Leave it out to go on, or name another "
                "folder with --output_dir."
            )
        if declared and not fixes_phase:
            files.write_json(setup, known | {"fixes_phase": "", "went_on_without": declared})

    def add(self, tried: AttemptResult) -> None:
        """Append an outcome; it is on the disk when this returns."""
        files.append_line(self.path / OUTCOMES, json.dumps(asdict(tried)))

    def tried(self, stage: str) -> list[AttemptResult]:
        """Return the outcomes of a stage, in order.

        Raises:
            UnusableInputError: a line can't be read, or attempts are missing.
        """
        path = self.path / OUTCOMES
        lines = files.json_lines(
            path, "an attempt's outcome", lambda value, _where: AttemptResult(**value)
        )
        found = [line for line in lines if line.stage == stage]
        numbers = [line.attempt for line in found]
        if numbers != list(range(len(found))):
            raise UnusableInputError(
                f"{path}: attempts of stage {stage} are missing, or stand there twice. Restore the "
                "file, or begin a new gate in another --output_dir."
            )
        return found


def outcomes(done: Sequence[tuple[GateAttempt, AttemptResult]], tasks: int) -> Outcomes:
    """Return the complete rounds of a stage, told apart by the key, as the operator says by now."""
    rounds = len(done) // (2 * tasks)
    arrays = np.zeros((2, rounds, tasks, 2), dtype=bool)
    phase = np.full((rounds, tasks, 2), np.nan)
    later = [*(tried.before for _, tried in done[1:]), ""]
    for (attempt, tried), said in list(zip(done, later, strict=False))[: 2 * tasks * rounds]:
        place = attempt.round, attempt.task, SIDES.index(attempt.side)
        success, safety = (said == "y", said == "safety") if said else (tried.success, tried.safety)
        arrays[(0, *place)], arrays[(1, *place)] = success, safety
        phase[place] = place_of(success, tried.phase)
    return Outcomes(arrays[0], arrays[1], phase)


PROMOTION_SCHEMA: Final = "gaploop.promotion.v1"
PROMOTION: Final = "promotion.json"
WITHDRAWN: Final = "promotion.withdrawn.json"
SUITE: Final = "suite.json"
KEPT: Final = (RESULT, SETUP, OUTCOMES, SUITE, OPENED)
"""Files of the gate's folder that the record names by hash, where they are there."""


def write_promotion(
    folder: Path, policies: Mapping[str, Path], suite: Path | None, recorded: Path | None
) -> Path:
    """Write `promotion.json` beside the gate's result, once all its files are final.

    Args:
        recorded: the outcomes' file, where they were recorded elsewhere.
    """
    result = read_json(folder / RESULT)
    record = {
        "schema": PROMOTION_SCHEMA,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": result["verdict"],
        "message": result["message"],
        "evidence": result["evidence"],
        "stages": {stage["stage"]: stage["answer"] for stage in result["stages"]},
        "not_run": result["not_run"],
        "policies": {side: _policy(path) for side, path in policies.items()},
        "files": {name: sha256(folder / name) for name in KEPT if (folder / name).exists()},
        "sources": {str(path.absolute()): sha256(path) for path in (suite, recorded) if path},
        "versions": versions(),
    }
    record["sha256"] = commitment(record)
    write_json(folder / PROMOTION, record)
    return folder / PROMOTION


def withdraw(folder: Path) -> Path | None:
    """Rename the record of a promotion by an earlier stage that doesn't hold any more.

    Returns:
        what it is called now; None where there was none.
    """
    record = folder / PROMOTION
    if not record.exists():
        return None
    return record.replace(folder / WITHDRAWN)


def _policy(path: Path) -> dict[str, Any]:
    """Return how a record names a policy, with the training that it came from, if known."""
    from gaploop.finetune.lerobot_policy import policy_id  # here: torch

    found = {"path": str(path.absolute()), "id": policy_id(path), "sha256": sha256(path)}
    return found | {"run": _run_of(path, found["id"])}


def _run_of(path: Path, identity: str) -> dict[str, Any] | None:
    """Return what a policy was trained on; one from a Hub has that beside it as lineage."""
    from gaploop.finetune.hub_policy import LINEAGE

    for file in (*run_files(path), path / LINEAGE):
        if not file.exists():
            continue
        held = read_run(file)
        result = held["result"]
        named = {result.get("policy", ""), result.get("merged", ""), *result["policies"]}
        named = {*named, str(held.get("policy") or "")} - {""}
        if named and identity not in named:
            continue  # of another policy
        kept = {name: held.get(name) for name in ("id", "seed", "command")}
        shipped = {name: held.get(name) for name in ("base", "datasets")}
        kept["lineage"] = shipped if file.name == LINEAGE else held["lineage"]
        return {"path": str(file.absolute()), "sha256": sha256(file), **kept}
    return None

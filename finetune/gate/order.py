"""Who is tried when: drawn by a seed, balanced, and kept from whoever judges the attempts."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import parse_json, write_atomically

SIDES: Final = ("baseline", "candidate")
BLOCK: Final = 4
"""In so many pairs of a task each policy goes first equally often."""
SCENES: Final = 2_000_000
"""Scenes of gates begin here: none was trained, demonstrated or evaluated on."""
SCENES_PER_GATE: Final = 20_000
SEALED: Final = "key.sealed"
OPENED: Final = "key.json"


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
            sides = SIDES if _baseline_first(seed, salt, int(task), turn) else SIDES[::-1]
            for side in sides:
                yield GateAttempt(number, turn, int(task), side, first_scene + number // 2)
                number += 1
        turn += 1


def _baseline_first(seed: int, salt: int, task: int, turn: int) -> bool:
    block = np.arange(BLOCK) < BLOCK // 2
    drawn = np.random.default_rng([seed, salt, 1, task, turn // BLOCK]).permutation(block)
    return bool(drawn[turn % BLOCK])


def seal(folder: Path, seed: int) -> str:
    """Write the key to the order, not to be read by chance; return what commits to it."""
    key = {"seed": seed, "nonce": secrets.token_hex(16)}
    write_atomically(folder / SEALED, base64.b64encode(json.dumps(key).encode()), 0o600)
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
        key = parse_json(base64.b64decode((folder / SEALED).read_bytes()))
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
    write_atomically(folder / OPENED, json.dumps(key) + "\n")
    return key

"""Records what is usual in the nominal cell: the reference that diagnosis measures against.

The one that ships, the SO-101's, is made by `python -m benchmarks reference`; another arm's is
made by the same code where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from gaploop.collect.journal import JournalWriter
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, Rig
from gaploop.collect.session import run_take
from gaploop.core.errors import GaploopError
from gaploop.core.files import writable_folder
from gaploop.core.journal_format import read_journal
from gaploop.core.protocols import Leader
from gaploop.core.vocabulary import TakeKind
from gaploop.failure_analysis.reference import Reference, build_reference, save_reference
from gaploop.finetune.lerobot_policy import load_policy
from gaploop.sim.expert import ScriptedLeader

TAKES: Final = 30
"""Rollouts of the policy, and as many takes of the scripted leader that sees by the tracker."""
MAX_S: Final = 8.0
SCENES: Final = 2_000_000
"""First scene: neither the training's nor the evaluation's."""


class NominalCell(Protocol):
    """A nominal cell; `closed_loop.TargetCell` is one."""

    @property
    def instruction(self) -> str:
        """What an operator is told to do."""
        ...

    def rig(self, conditions: dict[str, object]) -> Rig:
        """Build it."""
        ...


def record_reference(
    policy: str | Path,
    path: Path,
    cell: NominalCell,
    count: int = TAKES,
    first: int = SCENES,
    on_take: Callable[[], None] = lambda: None,
) -> Reference:
    """Record nominal takes beside `path` and write what is usual in them to `path`.

    A third of the rollouts go on after success: a policy that isn't judged successful goes on too.

    Args:
        policy: as for `load_policy`.
        path: the reference file; the takes' journal is the folder of its name with `_journal`.
        cell: the nominal cell.
        count: rollouts of the policy, and as many takes of the scripted leader.
        first: first scene.
        on_take: called after each take.

    Raises:
        GaploopError: too few takes went well.
    """
    driver = load_policy(policy)

    def rollout(rig: EmbeddedRig, _seed: int) -> Leader:
        return PolicyLeader(driver, rig.follower, rig.fps, rig.control_hz)

    def script(rig: EmbeddedRig, seed: int) -> Leader:
        return ScriptedLeader(rig.cell, seed, sees="tracker")

    journal = writable_folder(path.with_name(f"{path.stem}_journal"))
    _record(journal, rollout, range(first, first + count), cell, on_take)
    _record(journal, script, range(first + count, first + 2 * count), cell, on_take)
    built = build_reference(read_journal(journal), "nominal takes of the embedded cell")
    if built is None:
        raise GaploopError(f"Too few of {2 * count} nominal takes went well to say what is usual.")
    save_reference(built, path)
    return built


def _record(
    journal: Path,
    make_leader: Callable[[EmbeddedRig, int], Leader],
    seeds: range,
    cell: NominalCell,
    on_take: Callable[[], None],
) -> None:
    rig = cell.rig({})
    assert isinstance(rig, EmbeddedRig)
    for number, seed in enumerate(seeds):
        rig.reset(seed)
        leader = make_leader(rig, seed)
        header = rig.header(cell.instruction, kind=TakeKind.ROLLOUT)
        until_success = None if number % 3 else False
        with JournalWriter(journal, header) as writer:
            run_take(
                rig, leader, seed=seed, max_s=MAX_S, writer=writer, until_success=until_success
            )
        on_take()
    rig.close()

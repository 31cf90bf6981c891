"""What is usual in the nominal cell: the reference that diagnosis ships with (simulation only).

Of the task in --tasks, with a base of that task as --policy.path. Copy the file that it writes to
failure_analysis/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.sight import by_tracker
from gaploop.core.errors import GaploopError
from gaploop.core.take import TakeInfo
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.collect.rig import EmbeddedRig
    from gaploop.core.protocols import Leader
    from gaploop.failure_analysis.reference import Reference
    from gaploop.finetune.demonstrations import TargetCell

REFERENCE_TAKES: Final = 30
"""Rollouts of the policy, and as many takes of the scripted leader that sees by the tracker."""
REFERENCE_SCENES: Final = 2_000_000
"""First scene of a reference's takes: neither the training's nor the evaluation's."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record nominal takes and write `reference_so101_cell_<task>.json` to `folder`."""
    from gaploop.failure_analysis.reference import SHIPPED
    from gaploop.finetune.demonstrations import TargetCell

    count, first = config.n or REFERENCE_TAKES, REFERENCE_SCENES + config.seed * 1000
    task = config.tasks[0] if config.tasks else "pick_place"
    nominal, path = TargetCell({}, 0, task), folder / SHIPPED.format(task=task)
    with options.progress("Recording", total=2 * count) as advance:
        try:
            built = record_reference(config.policy.required(), path, nominal, count, first, advance)
        except GaploopError:
            return {"takes": 0, "signals": {}}
    signals = {name: [n.mean, n.std] for name, n in built.signals.items()}
    return {"takes": built.takes, "file": str(path), "signals": signals}


def record_reference(
    policy: str | Path,
    path: Path,
    cell: TargetCell,
    count: int = REFERENCE_TAKES,
    first: int = REFERENCE_SCENES,
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
    from gaploop.collect.journal import JournalWriter
    from gaploop.collect.policy_leader import PolicyLeader
    from gaploop.collect.take import run_take
    from gaploop.core.files import writable_folder
    from gaploop.core.journal_format import read_journal
    from gaploop.core.vocabulary import TakeKind
    from gaploop.failure_analysis.reference import build_reference, save_reference
    from gaploop.finetune.evaluate import MAX_S
    from gaploop.finetune.lerobot_policy import load_policy

    driver = load_policy(policy)

    def rollout(rig: EmbeddedRig, _seed: int) -> Leader:
        return PolicyLeader(driver, rig.follower, rig.fps, rig.control_hz)

    def script(rig: EmbeddedRig, seed: int) -> Leader:
        return by_tracker(rig.cell, seed)

    journal = writable_folder(path.with_name(f"{path.stem}_journal"))
    for make_leader, seeds in (
        (rollout, range(first, first + count)),
        (script, range(first + count, first + 2 * count)),
    ):
        rig = cell.rig({})
        for number, seed in enumerate(seeds):
            rig.reset(seed)
            with JournalWriter(
                journal, rig.header(TakeInfo("", cell.instruction, kind=TakeKind.ROLLOUT))
            ) as to:
                run_take(
                    rig,
                    make_leader(rig, seed),
                    seed=seed,
                    max_s=MAX_S,
                    writer=to,
                    until_success=None if number % 3 else False,
                )
            on_take()
        rig.close()
    built = build_reference(read_journal(journal), "nominal episodes of the embedded cell")
    if built is None:
        raise GaploopError(f"Too few of {2 * count} nominal takes went well to say what is usual.")
    save_reference(built, path)
    return built


def table(result: Mapping[str, Any]) -> str:
    """Return the usual values as lines."""
    lines = [f"{result['takes']} nominal takes that went well"]
    lines += [f"  {name}: {m:.5g} ± {s:.3g}" for name, (m, s) in result["signals"].items()]
    return "\n".join([*lines, str(result.get("file", "too few takes went well"))])

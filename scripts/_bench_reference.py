"""What is usual in the nominal cell: the reference that diagnosis ships with (simulation only).

Copy the file it writes to failure_analysis/reference_so101_cell.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    from gaploop.collect.rig import EmbeddedRig
    from gaploop.core.protocols import Leader
    from gaploop.scripts.bench import BenchConfig

TAKES: Final = 30
"""Rollouts of the policy, and as many takes of the scripted leader that sees by the tracker."""
MAX_S: Final = 8.0
SCENES: Final = 2_000_000
"""First scene: neither the training's nor the evaluation's."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record nominal takes and write `reference_so101_cell.json` to `folder`.

    A third of the rollouts go on after success: a policy that isn't judged successful goes on too.
    """
    from gaploop.collect.policy_leader import PolicyLeader
    from gaploop.core.journal_format import read_journal
    from gaploop.failure_analysis.reference import SHIPPED, build_reference, save_reference
    from gaploop.finetune.lerobot_policy import load_policy
    from gaploop.sim.expert import ScriptedLeader

    policy, count = load_policy(config.policy.required()), config.n or TAKES

    def rollout(rig: EmbeddedRig, _seed: int) -> Leader:
        return PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)

    def script(rig: EmbeddedRig, seed: int) -> Leader:
        return ScriptedLeader(rig.cell, seed, sees="tracker")

    journal = folder / "journal"
    journal.mkdir(exist_ok=True)
    with options.progress("Recording", total=2 * count) as advance:
        first = SCENES + config.seed * 1000
        _record(journal, rollout, range(first, first + count), advance)
        _record(journal, script, range(first + count, first + 2 * count), advance)
    built = build_reference(read_journal(journal), "nominal takes of the embedded cell")
    if built is None:
        return {"takes": 0, "signals": {}}
    save_reference(built, folder / SHIPPED)
    signals = {name: [n.mean, n.std] for name, n in built.signals.items()}
    return {"takes": built.takes, "file": str(folder / SHIPPED), "signals": signals}


def _record(
    journal: Path,
    make_leader: Callable[[EmbeddedRig, int], Leader],
    seeds: range,
    advance: Callable[[], None],
) -> None:
    from gaploop.collect.journal import JournalWriter
    from gaploop.collect.rig import embedded_rig
    from gaploop.collect.session import run_take
    from gaploop.core.vocabulary import TakeKind

    rig = embedded_rig()
    for number, seed in enumerate(seeds):
        rig.reset(seed)
        leader = make_leader(rig, seed)
        header = rig.header("Put the cube on the disc", kind=TakeKind.ROLLOUT)
        until_success = None if number % 3 else False
        with JournalWriter(journal, header) as writer:
            run_take(
                rig, leader, seed=seed, max_s=MAX_S, writer=writer, until_success=until_success
            )
        advance()
    rig.close()


def table(result: Mapping[str, Any]) -> str:
    """Return the usual values as lines."""
    lines = [f"{result['takes']} nominal takes that went well"]
    lines += [f"  {name}: {m:.5g} ± {s:.3g}" for name, (m, s) in result["signals"].items()]
    return "\n".join([*lines, str(result.get("file", "too few takes went well"))])

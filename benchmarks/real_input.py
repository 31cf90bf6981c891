"""Foreign recordings: modes, check, import, LoRA: the figures of docs/figures/real_input.md.

The recordings aren't part of the project. Named by their source: UCI robot execution failures
(doi 10.24432/C5M89N) as `uci_robot_execution_failures/lp*.data`, UR3 CobotOps
(doi 10.24432/C5J891) as `ur3_cobotops/*.csv`, and a leader-follower dataset whose videos are
missing as `so101_to_piper_teleop`. What isn't there is left out and said so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.recorded.csv_log import LabelledTake

TRAIN: Final = range(30)
"""Episodes that the base is pretrained on."""
ADAPT: Final = range(30, 45)
"""Episodes that it is adapted on."""
HELD_OUT: Final = range(45, 55)
"""Episodes that the action error is measured on."""
MAPPING: Final = Path(__file__).parent / "recorded" / "ur3_cobotops.yaml"
STEPS: Final = {"pretrain": 3000, "lora": 400}


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run every part whose recordings are there."""
    from benchmarks.recorded.csv_log import load_mapping, read_csv_takes
    from benchmarks.recorded.uci_failures import read_uci_failures

    if config.data is None:
        raise UnusableInputError("Which recordings? Name their folder with --data=DIR.")
    data = existing_folder(config.data, "Folder of recordings")
    logs: dict[str, Any] = {}
    for file in sorted(data.glob("uci_robot_execution_failures/lp*.data")):
        logs[file.stem] = _modes(read_uci_failures(file), [])
    for file in sorted(data.glob("ur3_cobotops/*.csv")):
        logs["ur3"] = _modes(*read_csv_takes(file, load_mapping(MAPPING)))
    teleop = data / "so101_to_piper_teleop"
    adapted = _adapted(teleop, folder, config.seed) if teleop.is_dir() else None
    if not logs and adapted is None:
        raise UnusableInputError(
            f"{data} has none of: uci_robot_execution_failures/lp*.data, ur3_cobotops/*.csv, "
            "so101_to_piper_teleop. Put one there."
        )
    return {"evidence": "real recordings", "logs": logs, "teleop": adapted}


def _modes(takes: Sequence[LabelledTake], notes: list[str]) -> dict[str, Any]:
    """Tell each take's mode from forces or currents, and set it against the source's label."""
    from benchmarks.corpus.scoring import count_pairs
    from benchmarks.recorded.foreign_modes import current_mode, current_set, force_mode, force_set
    from gaploop.failure_analysis.views.view import TakeView

    forces = force_set(one.take for one in takes)
    currents = current_set(one.take for one in takes)
    pairs = []
    for one in takes:
        view = TakeView(one.take, images=False)
        has_force = view.wrench is not None
        mode = force_mode(view, forces) if has_force else current_mode(view, currents)
        pairs.append((one.label, mode or "none"))
    crossed = count_pairs(pairs)
    return {"takes": len(takes), "notes": notes, "table": crossed.text(), **crossed.to_json()}


def _adapted(teleop: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Check, import without pictures, pretrain, adapt, and measure on held-out takes."""
    from benchmarks.heldout import action_error
    from gaploop.core.vocabulary import Outcome, TakeKind
    from gaploop.datasets.check.dataset import check
    from gaploop.datasets.lerobot_import import ImportOptions, import_dataset
    from gaploop.finetune.adapt import adapt
    from gaploop.finetune.config import FinetuneConfig, StartPolicy
    from gaploop.finetune.pretrain import pretrain

    findings = [f"{f.severity} {f.code}: {f.message}" for f in check(teleop)]
    root = folder / "teleop_joints"
    if not root.exists():
        wanted = ImportOptions(None, True, TakeKind.DEMONSTRATION, None, Outcome.SUCCESS)
        import_dataset(teleop, root, wanted)
    steps = sum(STEPS.values())
    with options.progress("Training", total=steps) as advance:

        def step(_done: int, _of: int, _loss: float) -> None:
            advance()

        base = pretrain(
            FinetuneConfig(
                StartPolicy(type="act"),
                sim=(root,),
                where=f"episode={','.join(map(str, TRAIN))}",
                steps=STEPS["pretrain"],
                seed=seed,
                output_dir=folder / "teleop_base",
            ),
            step,
        )
        adapted = adapt(
            FinetuneConfig(
                StartPolicy(str(base.folder)),
                real=(root,),
                where=f"episode={','.join(map(str, ADAPT))}",
                steps=STEPS["lora"],
                seed=seed,
                output_dir=folder / "teleop_adapted",
            ),
            step,
        )
    before, after = (
        action_error(p, root, HELD_OUT, seed=seed) for p in (base.folder, adapted.folder)
    )
    return {
        "check": findings,
        "split": {"train": len(TRAIN), "adapt": len(ADAPT), "held_out": len(HELD_OUT)},
        "steps": STEPS,
        "before": before.to_json(),
        "after": after.to_json(),
    }


def table(result: Mapping[str, Any]) -> str:
    """Return cross-tables and action errors as Markdown."""
    lines: list[str] = []
    for name, log in result["logs"].items():
        lines += [f"{name}: {log['takes']} takes; labels down, diagnosed modes across", ""]
        lines += [*log["notes"], "```", log["table"], "```", ""]
    teleop = result["teleop"]
    if teleop:
        lines += ["gaploop check on the teleoperation:", *(f"- {f}" for f in teleop["check"]), ""]
        lines += ["| action error on held-out takes | mean | 95 % interval |", "|---|---|---|"]
        for name in ("before", "after"):
            error = teleop[name]
            low, high = error["interval"]
            lines.append(f"| {name} | {error['value']:.3f} | {low:.3f} to {high:.3f} |")
        lines.append(f"| best constant | {teleop['before']['constant']:.3f} | |")
    return "\n".join(lines)

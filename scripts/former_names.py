"""Commands and options that have another name now: what they run, with one line that says so.

They answer for one release; `python -m benchmarks house` counts none of them as a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FORMER: Final[Mapping[str, tuple[str, ...]]] = {
    "export": ("convert",),
    "factors": ("diagnose", "--factors"),
    "harmonise": ("edit", "harmonise"),
    "import": ("convert",),
    "latency": ("doctor", "--policy.path=base"),
    "merge": ("edit", "merge"),
    "mix": ("finetune", "--dry_run"),
    "preflight": ("doctor", "--robot.type=so101_sim"),
    "pretrain": ("finetune", "--policy.type=act"),
    "probe": ("identify", "--measure"),
    "reinforce": ("finetune", "--method=reinforce"),
    "repair": ("check", "--fix", "--dry_run"),
    "ros2": ("rollout", "--robot.type=ros2", "--take_over=never"),
    "studio": ("review",),
    "survey": ("check",),
    "train": ("finetune", "--method=lerobot"),
}
"""Former command → the words that run it now, before the arguments that were given."""
FORMER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "diagnose": {"--images": "--pictures"},
    "doctor": {"--device": "--policy.device"},
    "edit": {"--by": "--splits"},
    "emulate": {"--factory_new": "--servos=factory_new"},
    "export": {"--format": "--to", "--output": "--output_dir"},
    "finetune": {"--held_out_share": "--held_out"},
    "label": {
        "--episode": "--episodes",
        "--uid": "--episodes",
        "--agreement": "--history",
        "--discard_reason": "--note",
        "--dataset.root": "--root",
        "--roots": "--root",
    },
    "pretrain": {"--takes": "--sim_takes", "--dataset.root": "--sim"},
    "record": {"--seed": "--robot.seed"},
    "rollout": {"--seed": "--robot.seed", "--smoothing.exponential_s": "--smoothing_s"},
    "serve": {"--device": "--policy.device"},
    "reinforce": {"--rounds": "--steps", "--workers": "--num_workers"},
    "probe": {"--journal": "--roots"},
    "repair": {"--yes": "--dry_run=false"},
    "ros2": {"--topics": "--robot.topics", "--dry_run": "--robot.dry_run"},
}
"""Former or present command → its options that are written otherwise now."""
DROPPED: Final[Mapping[str, str]] = {
    "browser": "A page opens only where the output is a terminal.",
    "check rename_map": "gaploop edit harmonise DIR --rename_map=… renames features.",
    "demo policy.path": "The demo's policy is base.",
    "arm_name": "It is follower, which recording asks about.",
    "calibrate images": "20 pictures are taken.",
    "display_data": "A session in a window shows cameras and joints: gaploop record; for Rerun's, "
    "lerobot-teleoperate.",
    "doctor n": "Actions in each format are compared with those as trained.",
    "doctor measure_damping": "Name a file: --measure=arm.json measures that, and more.",
    "doctor formats": "All are timed, or fp32 and one: --policy.format=int8.",
    "doctor cameras": "Every camera is looked at.",
    "edit author": "The login name sets the tags.",
    "edit margin_s": "0.2 s of idle time stay at each end.",
    "edit seed": "The same shares draw the same episodes.",
    "force.enabled": "Leader arms don't push back any more.",
    "evaluate units": "They are noted in the episodes: gaploop diagnose --units notes them.",
    "output_dir": "Write it with --json > FILE.",
    "label confidence": "It is 1.",
    "label export": "gaploop label DIR --json > labels.json has all of it.",
    "label import": "Label them by --episodes or --where.",
    "diagnose labels": "Labels are those of the folder.",
    "least_gain": "An episode must be expected to bring 0.1 points.",
    "diagnose only": "Leave the other rows out of the table.",
    "policy_sees": "It is read from the policy.",
    "precision": "The preset says it; --method=help lists them.",
    "show_others": "Others' labels show once you have labelled the episode.",
    **dict.fromkeys(
        ("plan curves", "plan results", "plan runs"),
        "A plan starts from what was tried so far: compare what came with what it expected.",
    ),
    "label source": "Who labels by command is an engineer.",
    "vision": "From a clone: python -m benchmarks base_vision.",
    "smoothing.temporal_ensemble_coeff": "Where the arm shakes: --smoothing_s=0.1.",
    "simulated": "Pairs of attempts are judged by themselves.",
    "label dry_run": "See which takes there are without a label to set; --undo takes one back.",
    "label uid": "Name it among --episodes='[…]'.",
    "cache.dir": "Caches lie in $XDG_CACHE_HOME/gaploop.",
    "cache.mode": "Pictures are kept as fits; --cache.size=off keeps none.",
    **dict.fromkeys(
        ("dataset.tags", "push tags"), "Name them in the card: README.md of the dataset or policy."
    ),
    "cartesian.speed_m_s": "1 to 4 set the speed while you drive.",
    "hand_back_s": "t hands back.",
    "trackers": "Figures lie in metrics.jsonl; or: --method=lerobot … -- --wandb.enable=true.",
    "finetune episodes": "Say --where='episode=0,3'.",
    "finetune station": "Say --where='station=NAME'.",
    "duplicates": "An episode that several datasets hold is taken once, with the labels of all.",
    "robot.fps": "Give --dataset.fps.",
    "teleop.sees": "The script sees the scene.",
    "teleop.retries": "The script tries up to five times.",
    **dict.fromkeys(
        ("from", "convert units", "swap_red_blue", "import format"),
        "Only LeRobot's own layouts are read: port others with their authors' scripts first.",
    ),
    **dict.fromkeys(
        (f"board.{n}" for n in ("kind", "columns", "rows", "square_mm", "marker_mm", "dictionary")),
        "Describe the board in one: --board=8x6:28 (columns x rows, mm).",
    ),
    "calibration": "It lies beside the station file: --station=lab.yaml has lab.calibration.json.",
    "shared_sessions": """Name episodes: --splits='{"train": "0:40", "test": "40:"}'.""",
    "evaluate conditions": "Put settings of your own into --factors='[{distractors: 3}]'.",
    "env.randomise_strength": "It follows the ranges: --env.randomise=all:0.5.",
    "ray.address": "Name the cluster with --workers=ray.",
    "robot.randomise_strength": "It follows the ranges: --robot.randomise=all:0.5.",
    "budget.money": "Give --budget.hours; hours cost the rate_per_hour of the station file.",
    **dict.fromkeys(
        (f"cost.{n}" for n in ("take_s", "reset_s", "setup_s", "rate_per_hour", "currency")),
        "State costs in the station file: --station=station.yaml (docs/data/files.md).",
    ),
    "record keys": "Let a pedal send one of the keys that the screen shows.",
    "policy.token": "Set GAPLOOP_LINK_TOKEN before gaploop: others can't see it there.",
    "patience": "The best of ten steps is kept; fewer are --steps.",
    "retention": "gaploop gate --stage=sim compares both in simulation.",
    "plan task": "It is the diagnosed episodes'.",
    "rollout keys": "Let a pedal send one of the keys that the screen shows.",
    "consents": "The register is the file that $GAPLOOP_CONSENTS names.",
}
"""Option that is gone, after its command where others may have one, → what does it now."""


def current(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return the arguments as they are typed now, and the line to say if that is a change."""
    if not arguments:
        return arguments, None
    command, renamed = arguments[0], FORMER_OPTIONS.get(arguments[0], {})
    names = {argument.partition("=")[0] for argument in arguments}
    given, now = [], []
    for argument in arguments[1:]:
        name, equals, value = argument.partition("=")
        if name in renamed and renamed[name] not in names:  # else the parser refuses it
            names.add(renamed[name])
            now.append(f"{name} is now {renamed[name]}")
            value = value if "=" not in renamed[name] else ""
            name, equals = renamed[name], equals if value else ""
        given.append(f"{name}{equals}{value}")
    words = FORMER.get(command, (command,))
    if command in FORMER:
        now = [f"is now: gaploop {' '.join(words)}"]
    says = f"{'; '.join(now)}. The former name ends with 0.2." if now else None
    return [*words, *given], says

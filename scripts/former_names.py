"""Commands and options that have another name now, or another one in LeRobot.

Former names run what they are now for one release, with one line that says so; LeRobot's options
are told what does the same here. `python -m benchmarks house` counts none of them as a command.
"""

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

GONE: Final[Mapping[tuple[str, str], str]] = {
    ("calibrate", "drift"): "doctor --robot.type=… --station=FILE says each day what moved",
    ("check", "--people"): "see docs/teleoperate/consent.md#people-in-pictures",
    ("demo", "--seed"): "type the commands of commands.txt, which the demo writes, with other gaps",
    ("evaluate", "--env.robot=vx300s"): "--env.scene=FILE takes any arm as MJCF",
    ("finetune", "--env.robot=vx300s"): "--sim=FOLDER takes episodes of any arm's scene file",
    ("publish", "--blur_people"): "see docs/teleoperate/consent.md#people-in-pictures",
    ("push", "--blur_people"): "see docs/teleoperate/consent.md#people-in-pictures",
    ("record", "--robot.model=vx300s"): "--robot.scene=FILE takes any arm as MJCF",
}
"""Present command, and its option or action that is gone → what is there instead."""

_WINDOW: Final = "--display: gaploop's own window or terminal"
_DRIVES: Final = {
    "display_data": "--display=window",
    **dict.fromkeys(
        ("display_mode", "display_ip", "display_port", "display_compressed_images"), _WINDOW
    ),
    "play_sounds": "leave it out, nothing is spoken",
}
_ENCODES: Final = "leave it out, a process of its own encodes all pictures"
_RECORDS: Final = {
    **_DRIVES,
    **{
        f"dataset.{name}": _ENCODES
        for name in (
            "video", "streaming_encoding", "encoder_threads", "encoder_queue_maxsize",
            "num_image_writer_processes", "num_image_writer_threads_per_camera",
            "video_encoding_batch_size", "rgb_encoder", "depth_encoder",
        )
    },
    "dataset.tags": "leave it out, the dataset's card on the Hub has tags",
    "dataset.no_stamp": "leave it out, names stay as they are given",
}  # fmt: skip
_LOOKS_AT: Final = dict.fromkeys(
    ("env.type", "env.task"),
    "--env.gym=package:ID with --env.kwargs, such as gym_aloha:gym_aloha/AlohaInsertion-v0",
)
_TRAINS: Final = "gaploop finetune --method=lerobot … -- takes lerobot-train's options"
OF_LEROBOT: Final[Mapping[str, Mapping[str, str]]] = {
    "teleoperate": _DRIVES,
    "record": {**_RECORDS, "policy": "gaploop rollout --policy.path"},
    "rollout": {
        **_RECORDS,
        "task": "--dataset.single_task",
        "duration": "--dataset.episode_time_s",
        "fps": "--dataset.fps, or --policy.fps",
        "device": "--policy.device",
        "resume": "leave it out, the same command adds to its journal",
        "strategy": "--take_over; each attempt is recorded",
        "inference": "leave it out, the next plan is made while the arm moves",
        "return_to_initial_position": "leave it out, the arm is lowered at the end",
        **dict.fromkeys(
            ("use_torch_compile", "torch_compile_backend", "torch_compile_mode",
             "compile_warmup_inferences"),
            "--policy.format=compile",
        ),
        "rename_map": "name the robot's cameras as the policy does, in --robot.cameras",
        "interpolation_multiplier": "leave it out, targets are interpolated to the arm's own rate",
    },
    "finetune": {
        "dataset.root": "--real='[FOLDER]'",
        "dataset.repo_id": "--real='[FOLDER]', fetched with hf download",
        "dataset.episodes": "--where='episode=0,3'",
        "dataset.eval_split": "--held_out",
        "policy.device": "--device",
        "policy.pretrained_path": "--policy.path",
        "policy.push_to_hub": "gaploop push, afterwards",
        "policy.repo_id": "gaploop push, afterwards",
        "peft.r": "--lora.r",
        "peft.target_modules": "--lora.target_modules",
        "optimizer.lr": "--lr",
        **dict.fromkeys(
            ("accelerator", "checkpoint_format", "checkpoint_path", "cudnn_deterministic",
             "dataloader_multiprocessing_context", "dataset", "ema", "env", "env_eval_freq",
             "eval", "eval_steps", "job", "job_name", "log_freq", "max_eval_samples", "optimizer",
             "parallelism", "peft", "persistent_workers", "policy", "prefetch_factor",
             "reward_model", "sample_weighting", "save_checkpoint", "save_checkpoint_to_hub",
             "save_freq", "scheduler", "tolerance_s", "use_policy_training_preset", "wandb"),
            _TRAINS,
        ),
    },
    "evaluate": {
        "eval.n_episodes": "--n",
        "eval.batch_size": "--workers",
        "eval.use_async_envs": "--workers",
        "eval": "gaploop rollout, which records",
        "job_name": "--output_dir",
        "rename_map": "name the cameras as the policy does, in --env.cameras",
        "policy": "--policy.path, --policy.device, --policy.format",
        "trust_remote_code": "leave it out, no code of a policy's own is run",
    },
    "doctor": _LOOKS_AT,
    "identify": _LOOKS_AT,
}  # fmt: skip
"""Command → options of LeRobot's command that it hasn't, with all below them → what does it here.
"""

LEROBOT_COMMANDS: Final[Mapping[str, str]] = {
    "annotate": "lerobot-annotate",
    "dataset-viz": "gaploop review",
    "edit-dataset": "gaploop edit",
    "eval": "gaploop evaluate",
    "find-cameras": "gaploop doctor",
    "find-joint-limits": "lerobot-find-joint-limits",
    "find-port": "gaploop doctor",
    "imgtransform-viz": "lerobot-imgtransform-viz",
    "info": "gaploop doctor",
    "replay": "lerobot-replay",
    "setup-can": "lerobot-setup-can",
    "setup-motors": "lerobot-setup-motors",
    "train-tokenizer": "lerobot-train-tokenizer",
}
"""Without lerobot-: commands of LeRobot's that gaploop hasn't → what does that."""


def of_lerobot(command: str, name: str) -> str:
    """Return what does here what an option of LeRobot's does there; "" for any other name."""
    known, path = OF_LEROBOT.get(command, {}), name.split(".")
    tried = (".".join(path[:n]) for n in range(len(path), 0, -1))
    return next((known[part] for part in tried if part in known), "")


def refusal(arguments: list[str]) -> str | None:
    """Return the line for an option or action that is gone, with what does the same now."""
    for argument in arguments[1:]:
        for word in (argument, argument.partition("=")[0]):
            if instead := GONE.get((arguments[0], word)):
                return f"{word} is gone: {instead}"
    return None


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

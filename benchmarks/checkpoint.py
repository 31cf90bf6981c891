"""Deployment mistakes put in between a checkpoint and a dataset: which does `gaploop check` name?

A made arm of five joints and a gripper, which isn't the cell's, goes to a red square that one
camera sees from above (a blue one beside it is of no use), closes, and goes where a second camera
shows a bar, left or right of it as the task says. Tiny policies of LeRobot learn it from 40 plain
episodes, then `gaploop check SET --policy.path=CHECKPOINT` looks at other episodes of the same
station, as they are and with one mistake put into set or checkpoint. What a policy's kind can't
have isn't tried. Each draw is another arm at another pace, and its own policy, tuned from one of
its kind. Draws of --seed=0 were looked at while rules were made; --seed=41 is for figures.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import BenchConfig
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import FloatArray, Image
from gaploop.core.statistics import percent, rate
from gaploop.datasets.absolute.open_loop import statistics
from gaploop.datasets.formats.new_dataset import NewDataset
from gaploop.datasets.video import ENCODERS, encode

JOINTS: Final = ("base", "shoulder", "elbow", "wrist", "roll", "gripper")
CAMERAS: Final = ("top", "side")
TASKS: Final = ("Move left", "Move right")
FPS: Final = 20.0
PX: Final = 64
CHUNK: Final = 16
TRAINED: Final = 40
LOOKED_AT: Final = 8


@dataclass(frozen=True)
class MadeArm:
    """How far five joints go for what is seen and said [degrees].

    Attributes:
        top: for where the square lies, of -1 to 1 in two axes, shape (5, 2).
        side: for where the bar stands, of -1 to 1.
        turn: for what the task says about where to put it, -1 or 1.
        pace: times as long for everything; `late_s`: readings behind commands [s].
        table: how light the background is, of 255 levels.
    """

    top: FloatArray
    side: FloatArray
    home: FloatArray
    turn: FloatArray
    pace: float = 1.0
    late_s: float = 0.08
    table: int = 150


ARM: Final = MadeArm(
    np.array([[55, 0], [10, 40], [-15, 35], [8, -25], [12, 10]], dtype=np.float64),
    np.array([-35.0, 12.0, -20.0, 30.0, 25.0]), np.array([0.0, -40.0, 60.0, 20.0, 0.0]),
    np.array([40.0, 0.0, 0.0, 0.0, -20.0]),
)  # fmt: skip


def other_arm(*seed: int) -> MadeArm:
    """Return an arm whose joints do others' work, some the other way, by other amounts."""
    rng = np.random.default_rng((*seed, 9))
    order, sign = rng.permutation(5), rng.choice([-1.0, 1.0], 5) * rng.uniform(0.6, 1.3, 5)
    top, side, turn = (x[order] for x in (ARM.top, ARM.side, ARM.turn))
    return MadeArm(
        sign[:, None] * top, sign * side, rng.uniform(-60, 60, 5), sign * turn,
        rng.uniform(0.8, 1.3), rng.uniform(0.04, 0.15), int(rng.integers(110, 190)),
    )  # fmt: skip


@dataclass(frozen=True)
class MadeEpisode:
    """Commands and readings [degrees; gripper %], shape (n, joints), pictures, and the task."""

    command: FloatArray
    reading: FloatArray
    pictures: Mapping[str, Image]
    task: str


def episode(rng: np.random.Generator, fps: float = FPS, arm: MadeArm = ARM) -> MadeEpisode:
    """Make one demonstration."""
    where, bar = rng.uniform(-1, 1, 2), float(rng.uniform(-1, 1))
    decoy, side = rng.uniform(-1, 1, 2), int(rng.integers(2))
    start = arm.home + rng.normal(0, 4.0, 5)
    pick = arm.home + arm.top @ where
    place = arm.home + np.array([0.0, 20.0, -30.0, 0.0, 0.0]) + arm.side * bar
    place += arm.turn * (2 * side - 1)
    knots = np.array([0.0, 0.2, 1.5, 1.9, 3.2, 3.6, 3.9]) * rng.uniform(0.9, 1.15) * arm.pace
    poses = np.array([start, start, pick, pick, place, place, place])
    grips = np.array([80.0, 80.0, 80.0, 15.0, 15.0, 80.0, 80.0])
    t = np.arange(0.0, knots[-1], 1 / fps)
    stage = np.clip(np.searchsorted(knots, t, side="right") - 1, 0, len(knots) - 2)
    share = (t - knots[stage]) / (knots[stage + 1] - knots[stage])
    share = (10 - 15 * share + 6 * share**2) * share**3
    both = np.column_stack([poses, grips])
    command = both[stage] + share[:, None] * (both[stage + 1] - both[stage])
    late = np.interp(t - arm.late_s, t, np.arange(len(t)))
    low: NDArray[np.int64] = late.astype(np.int64)
    high = np.minimum(low + 1, len(t) - 1)
    reading = command[low] + (late - low)[:, None] * (command[high] - command[low])
    reading = np.round((reading + rng.normal(0, 0.05, reading.shape)) / 0.088) * 0.088
    held = (stage >= 3) & (stage <= 4)
    pictures = {
        "top": np.stack(
            [_top(where, decoy, q, h, arm.table) for q, h in zip(reading, held, strict=True)]
        ),
        "side": np.stack([_side(bar, q) for q in reading]),
    }
    return MadeEpisode(command, reading, pictures, TASKS[side])


def _top(where: FloatArray, decoy: FloatArray, q: FloatArray, held: bool, table: int) -> Image:
    shown: Image = np.full((PX, PX, 3), (table, table, table - 10), np.uint8)
    for at, colour in ((decoy, (30, 40, 200)), (where, (210, 30, 30))):
        x, y = (PX / 2 + at * 22).astype(int).tolist()
        if colour[0] < 100 or not held:
            cv2.rectangle(shown, (x - 6, y - 6), (x + 6, y + 6), colour, -1)
    tip = int(PX / 2 + 0.3 * q[0]), int(58 - 0.2 * (q[1] + 60))
    cv2.line(shown, (PX // 2, PX - 1), tip, (40, 40, 40), 3)
    return shown


def _side(bar: float, q: FloatArray) -> Image:
    shown: Image = np.full((PX, PX, 3), (90, 110, 90), np.uint8)
    x = int(PX / 2 + 24 * bar)
    cv2.rectangle(shown, (x - 4, 8), (x + 4, 44), (230, 200, 40), -1)
    cv2.line(shown, (6, PX - 4), (int(20 + 0.3 * q[2]), int(50 + 0.2 * q[1])), (30, 30, 30), 3)
    return shown


def write(root: Path, episodes: Sequence[MadeEpisode], fps: float = FPS) -> Path:
    """Write episodes as a plain LeRobot dataset."""
    names = [f"{name}.pos" for name in JOINTS]
    vector = {"dtype": "float32", "shape": [len(names)], "names": names}
    features: dict[str, Any] = {"action": vector, "observation.state": vector}
    for name, shown in episodes[0].pictures.items():
        axes = {"shape": list(shown.shape[1:]), "names": ["height", "width", "channels"]}
        features[f"observation.images.{name}"] = {"dtype": "video", **axes}
    made = NewDataset(root, fps, "made_arm", features)
    for n, one in enumerate(episodes):
        files = {}
        for name, shown in one.pictures.items():
            file = root.parent / f"{root.name}_{n}_{name}.mp4"
            frames = (av.VideoFrame.from_ndarray(p, format="rgb24") for p in shown)
            encode(frames, file, fps, ENCODERS["h264"])
            files[f"observation.images.{name}"] = file
        columns = {"action": one.command, "observation.state": one.reading}
        made.append(one.task, {k: v.astype(np.float32) for k, v in columns.items()}, files)
        for file in files.values():
            file.unlink()
    made.finish()
    return root


def add_thin_backbone() -> None:
    """Give torchvision a backbone that two shared cores train in minutes."""
    import torch
    import torchvision  # type: ignore[import-untyped]

    def thin(**_options: Any) -> torch.nn.Module:
        parts, width = dict[str, torch.nn.Module](), 3
        for n, wide in enumerate((16, 32, 48, 64), 1):
            parts[f"layer{n}"] = torch.nn.Sequential(
                torch.nn.Conv2d(width, wide, 3, 2 if n < 4 else 1, 1),
                torch.nn.GroupNorm(4, wide),
                torch.nn.ReLU(),
            )
            width = wide
        parts["avgpool"] = torch.nn.AdaptiveAvgPool2d(1)
        net = torch.nn.Sequential(OrderedDict(parts))
        net.fc = torch.nn.Linear(width, 1)  # LeRobot reads how wide it is
        return net

    setattr(torchvision.models, BACKBONE, thin)


BACKBONE: Final = "resnet_thin"
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "act": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "dim_model": 64, "n_heads": 4,
        "dim_feedforward": 128, "n_encoder_layers": 2, "n_vae_encoder_layers": 1, "use_vae": False,
        "pretrained_backbone_weights": None, "dropout": 0.0, "vision_backbone": BACKBONE,
    },
    "diffusion": {
        "horizon": CHUNK, "n_action_steps": 8, "n_obs_steps": 2, "down_dims": (64, 128),
        "diffusion_step_embed_dim": 32, "spatial_softmax_num_keypoints": 16, "crop_shape": None,
        "noise_scheduler_type": "DDIM", "num_train_timesteps": 50, "num_inference_steps": 10,
        "resize_shape": None, "pretrained_backbone_weights": None, "use_group_norm": False,
        "vision_backbone": BACKBONE,
    },
    "smolvla": {
        "chunk_size": CHUNK, "n_action_steps": CHUNK, "num_vlm_layers": 2,
        "self_attn_every_n_layers": 2, "resize_imgs_with_padding": (64, 64), "max_state_dim": 8,
        "max_action_dim": 8, "tokenizer_max_length": 8, "num_steps": 5,
        "freeze_vision_encoder": False, "train_expert_only": False,
    },
}  # fmt: skip
STEPS: Final = {"act": 1500, "diffusion": 6000, "smolvla": 2500}
TUNED: Final = {"act": 150, "diffusion": 800, "smolvla": 300}
"""Steps from a policy of one arm to one of another, which takes a core seconds."""
BATCH: Final = 8


def train(
    kind: str, root: Path, episodes: Sequence[MadeEpisode], folder: Path, seed: int, steps: int,
    base: Path | None = None,
) -> Path:  # fmt: skip
    """Train a tiny policy with LeRobot's own loss; write it as lerobot-train does.

    Args:
        base: a policy of the same kind, of another arm, to begin with its weights.
    """
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata
    from lerobot.policies.factory import (
        get_policy_class,
        make_policy_config,
        make_pre_post_processors,
    )

    stats = LeRobotDatasetMetadata(f"me/{root.name}", root=root).stats
    named = {"vlm_model_name": str(folder.parent / "vlm")} if kind == "smolvla" else {}
    first = episodes[0]
    cameras, joints = list(first.pictures), first.command.shape[1]
    config = make_policy_config(
        kind, device="cpu", push_to_hub=False,
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (first.reading.shape[1],)),
            **{
                f"observation.images.{name}": PolicyFeature(
                    FeatureType.VISUAL, (3, *first.pictures[name].shape[1:3])
                )
                for name in cameras
            },
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (joints,))},
        **OPTIONS[kind], **named,
    )  # fmt: skip
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    of_kind = get_policy_class(kind)
    policy = of_kind(config) if base is None else of_kind.from_pretrained(base, config=config)
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    back = int(config.n_obs_steps)
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    rng = np.random.default_rng(seed)
    began = time.monotonic()
    for step in range(steps):
        rows = []
        for e in (episodes[int(k)] for k in rng.integers(len(episodes), size=BATCH)):
            t = int(rng.integers(len(e.command)))
            seen = np.maximum(t + np.arange(1 - back, 1), 0)
            begins = t + 1 - back if kind == "diffusion" else t
            ahead = np.clip(np.arange(begins, begins + CHUNK), 0, len(e.command) - 1)
            pad = np.arange(begins, begins + CHUNK) >= len(e.command)
            rows.append((e, seen, ahead, pad))
        batch: dict[str, Any] = {
            "observation.state": np.stack([e.reading[s] for e, s, _, _ in rows]),
            "action": np.stack([e.command[a] for e, _, a, _ in rows]),
        }
        for name in cameras:
            shown = np.stack([e.pictures[name][s] for e, s, _, _ in rows])
            batch[f"observation.images.{name}"] = shown.transpose(0, 1, 4, 2, 3) / 255.0
        tensors = {k: torch.from_numpy(np.float32(v)) for k, v in batch.items()}
        if back == 1:
            tensors = {k: v if k == "action" else v[:, 0] for k, v in tensors.items()}
        tensors["action_is_pad"] = torch.from_numpy(np.stack([p for *_, p in rows]))
        made = before({**tensors, "task": [e.task for e, *_ in rows]})
        made["action_is_pad"] = tensors["action_is_pad"]
        loss = policy.forward(made)[0]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            took_s = round(time.monotonic() - began), round(time.process_time())
            print(kind, step, round(loss.item(), 4), *took_s, flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        for part in (policy, before, after):
            part.save_pretrained(folder)
    said = {"dataset": {"repo_id": f"me/{root.name}", "root": str(root)}, "steps": steps}
    write_json(folder / "train_config.json", said)
    return folder


def made_policy(
    kind: str, arm: MadeArm, seed: tuple[int, int], at: Path, steps: int, base: Path | None = None
) -> Path:  # fmt: skip
    """Train a policy on its own episodes, unless a run before did."""
    if not (at / "train_config.json").exists():
        rng, root = np.random.default_rng((*seed, 0)), at.with_name(f"{at.name}_shown")
        shown = [episode(rng, arm=arm) for _ in range(TRAINED)]
        if not (root / "meta/stats.json").exists():
            shutil.rmtree(root, ignore_errors=True)
            write(root, shown)
        train(kind, root, shown, at, seed[1], steps, base)
    return at


@dataclass(frozen=True)
class Planted:
    """One mistake, and how it is put into held-out episodes or into a copy of the checkpoint.

    Attributes:
        named: kinds of sentence that name it.
        data: changes episodes; `fps`: their rate.
        policy: changes the checkpoint's folder.
        kinds: policies that can have it.
    """

    named: tuple[str, ...]
    data: Callable[[list[MadeEpisode], np.random.Generator], list[MadeEpisode]] | None = None
    policy: Callable[[Path, np.random.Generator], None] | None = None
    kinds: tuple[str, ...] = ("act", "diffusion", "smolvla")
    fps: float = FPS


def _vectors(
    episodes: list[MadeEpisode], change: Callable[[FloatArray], FloatArray]
) -> list[MadeEpisode]:
    return [replace(e, command=change(e.command), reading=change(e.reading)) for e in episodes]


def _pictures(
    episodes: list[MadeEpisode], change: Callable[[Mapping[str, Image]], Mapping[str, Image]]
) -> list[MadeEpisode]:
    return [replace(e, pictures=change(e.pictures)) for e in episodes]


def _swap(episodes: list[MadeEpisode], rng: np.random.Generator) -> list[MadeEpisode]:
    order = np.arange(6)
    a, b = rng.choice(5, 2, replace=False)
    order[[a, b]] = b, a
    return _vectors(episodes, lambda x: x[:, order])


def _reverse(episodes: list[MadeEpisode], rng: np.random.Generator) -> list[MadeEpisode]:
    sign = np.ones(6)
    sign[rng.integers(5)] = -1
    return _vectors(episodes, lambda x: x * sign)


def _normalised(episodes: list[MadeEpisode], rng: np.random.Generator) -> list[MadeEpisode]:
    middle, half = rng.uniform(-15, 15, 6), rng.uniform(100, 140, 6) / 100
    middle[5], half[5] = 0, 1
    return _vectors(episodes, lambda x: (x - middle) / half)


def _cut(shown: Image) -> Image:
    edge = round(PX * 0.15)
    inner = shown[:, edge:-edge, edge:-edge]
    return np.stack([cv2.resize(p, (PX, PX)) for p in inner])


def _of_another_set(folder: Path, rng: np.random.Generator) -> None:
    """Give the processors statistics of a set in which other joints do other things."""
    from safetensors.numpy import load_file, save_file

    with_other = [episode(rng) for _ in range(10)]
    mixed, shift = rng.permutation(5).tolist(), rng.normal(0, 25, 6)
    values = {
        "action": np.concatenate([e.command for e in with_other])[:, [*mixed, 5]] + shift,
        "observation.state": np.concatenate([e.reading for e in with_other])[:, [*mixed, 5]]
        + shift,
    }
    for file in folder.glob("*processor_step_*.safetensors"):
        tensors = load_file(file)
        for key, value in tensors.items():
            feature, _, what = key.rpartition(".")
            if feature in values and what in (of := statistics(values[feature])):
                got = of[what]
                tensors[key] = got.astype(value.dtype)
        save_file(tensors, file)


def _without_statistics(folder: Path, _rng: np.random.Generator) -> None:
    for file in folder.glob("policy_*processor.json"):
        said = read_json(file)
        for step in said["steps"]:
            if "normalizer" in step.get("registry_name", ""):
                step.pop("state_file", None)
        write_json(file, said)


def _one_observation(folder: Path, _rng: np.random.Generator) -> None:
    write_json(folder / "config.json", read_json(folder / "config.json") | {"n_obs_steps": 1})


PLANTED: Final[Mapping[str, Planted]] = {
    "statistics of another set": Planted(("wrong_statistics",), policy=_of_another_set),
    "swapped joints": Planted(("joint_order",), _swap),
    "swapped cameras": Planted(
        ("camera_order",),
        lambda e, _: _pictures(e, lambda p: {"top": p["side"], "side": p["top"]}),
    ),
    "degrees for normalised": Planted(("wrong_units",), _normalised),
    "reversed sign": Planted(("joint_sign",), _reverse),
    "wrong rate": Planted(("wrong_rate",), fps=FPS / 2),
    "wrong crop": Planted(
        ("wrong_crop",), lambda e, _: _pictures(e, lambda p: {k: _cut(v) for k, v in p.items()})
    ),
    "missing processor": Planted(("no_normaliser",), policy=_without_statistics),
    "other colour order": Planted(
        ("colour_order",),
        lambda e, _: _pictures(e, lambda p: {k: v[..., ::-1].copy() for k, v in p.items()}),
    ),
    "delta for absolute": Planted(
        ("action_kind",), lambda e, _: [_changes(one) for one in e]
    ),
    "wrong task text": Planted(
        ("wrong_task",), lambda e, _: [replace(one, task="Put it away") for one in e],
        kinds=("smolvla",),
    ),
    "too few observation steps": Planted(
        ("observation_steps",), policy=_one_observation, kinds=("diffusion",)
    ),
}  # fmt: skip
"""In data that is the mistake of what recorded it; in the checkpoint, of what saved it."""


def _changes(one: MadeEpisode) -> MadeEpisode:
    command = one.command - one.reading
    command[:, 5] = one.command[:, 5]
    return replace(one, command=command)


def said_of(root: Path, policy: Path) -> tuple[list[str], dict[str, Any]]:
    """Run `gaploop check ROOT --policy.path=POLICY --json`; return kinds about the policy."""
    from gaploop.datasets.absolute.findings import BELONGS
    from gaploop.scripts.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(["check", str(root), f"--policy.path={policy}", "--json"])
    answer = json.loads(out.getvalue())
    about_policy = list(BELONGS)[list(BELONGS).index("wrong_features") :]  # the others need none
    return [s["kind"] for s in answer["sentences"] if s["kind"] in about_policy], answer


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Train tiny policies, plant each mistake that they can have, and count what is named.

    Cells that a run before left in `folder`/rows.jsonl aren't run again.
    """
    from benchmarks.lerobot_made_up import without_downloads
    from gaploop.datasets.absolute import open_loop

    without_downloads(setattr, folder / "vlm", is_tiny=True)
    vars(open_loop)["BUDGET_S"] = np.inf  # a shared machine may lend a hundredth of a core
    file = folder / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(r["mistake"], r["kind"], r["draw"]) for r in rows}
    cells = [
        (kind, draw, n, mistake)
        for kind, right in RIGHT.items() for draw in range(max(right, config.n))
        for n, mistake in enumerate(("none", *PLANTED))
        if not n or (kind in PLANTED[mistake].kinds and draw < (config.n or 1))
    ]  # fmt: skip
    # Right ones first, of the kinds that take least.
    for kind, draw, n, mistake in sorted(cells, key=lambda c: (c[0] == "diffusion", c[2] > 0)):
        is_wanted = not config.tasks or mistake in config.tasks or kind in config.tasks
        if (mistake, kind, draw) in known or not is_wanted:
            continue
        arm, seed = other_arm(config.seed, draw), (config.seed, draw)
        base = made_policy(kind, ARM, (0, 0), folder / f"{kind}_base", STEPS[kind])
        policy = made_policy(kind, arm, seed, folder / f"{kind}_{draw}", TUNED[kind], base)
        of, rng = PLANTED.get(mistake, Planted(())), np.random.default_rng((*seed, 1, n))
        made = [episode(rng, of.fps, arm) for _ in range(LOOKED_AT)]
        shutil.rmtree(folder / "planted", ignore_errors=True)
        shutil.rmtree(folder / "changed", ignore_errors=True)
        there = write(folder / "planted", of.data(made, rng) if of.data else made, of.fps)
        if of.policy:
            policy = shutil.copytree(policy, folder / "changed")
            of.policy(policy, rng)
        began_s = time.process_time()
        said, answer = said_of(there, policy)
        row = {"mistake": mistake, "kind": kind, "draw": draw, "said": said,
               "named": said[:1] == [*of.named][:1], "cpu_s": time.process_time() - began_s,
               "good": answer["good"], "untested": answer["untested"]}  # fmt: skip
        rows.append(row)
        with file.open("a") as out:
            print(json.dumps(row), file=out)
        print(mistake, kind, draw, said, flush=True)
    return {"rows": rows, "trained_steps": STEPS}


RIGHT: Final = {"act": 13, "smolvla": 4, "diffusion": 3}
"""Right policies of each kind, each of another arm."""


def table(result: Mapping[str, Any]) -> str:
    """As printed: of each mistake and policy, how often the first sentence names it."""
    rows = result["rows"]
    lines = ["| mistake | " + " | ".join(OPTIONS) + " |", "|---|" + "---|" * len(OPTIONS)]
    for mistake in PLANTED:
        cells = []
        for kind in OPTIONS:
            own = [r for r in rows if r["mistake"] == mistake and r["kind"] == kind]
            cells.append(f"{sum(r['named'] for r in own)} of {len(own)}" if own else "–")
        lines.append(f"| {mistake} | " + " | ".join(cells) + " |")
    planted = [r for r in rows if r["mistake"] != "none"]
    right = [r for r in rows if r["mistake"] == "none"]
    hits, false = sum(r["named"] for r in planted), sum(bool(r["said"]) for r in right)
    if planted:
        lines.append(f"named: {hits} of {len(planted)} ({percent(rate(hits, len(planted)))})")
    if right:
        lines.append(
            f"right checkpoints accused: {false} of {len(right)} "
            f"({percent(rate(false, len(right)))}): {[r['said'] for r in right if r['said']]}"
        )
    return "\n".join(lines)

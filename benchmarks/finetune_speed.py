"""Step time and memory of LoRA and of all weights, by gaploop and by plain lerobot-train.

Every turn is a program of its own with one thread, on the same takes, with the same policy, batch
size and adapter. A step is timed from one step's end to the next one's, loading included.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import GaploopError
from gaploop.core.files import read_json, write_json
from gaploop.scripts import options

KINDS: Final = ("gaploop_lora", "lerobot_lora", "gaploop_full", "lerobot_full")
STEPS: Final = 60
WARM_UP: Final = 10
BATCH: Final = 64
TAKES: Final = 20


def compare(folder: Path, turns: int) -> dict[str, Any]:
    """Return the median over turns of every kind, and the ratios turn by turn."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "speed.json"
    if path.exists():
        kept: dict[str, Any] = read_json(path)
        return kept
    root = _takes(folder / "takes")
    rows: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for turn in range(turns):
        for kind in KINDS:
            rows[kind].append(_turn(kind, root, folder / f"{kind}_{turn}"))
    result = {
        "steps": STEPS,
        "batch_size": BATCH,
        "turns": turns,
        "kinds": {kind: _figures(found) for kind, found in rows.items()},
        "ratios": {
            f"gaploop / lerobot, {way}": _ratio(rows[f"gaploop_{way}"], rows[f"lerobot_{way}"])
            for way in ("lora", "full")
        }
        | {"LoRA / all weights, gaploop": _ratio(rows["gaploop_lora"], rows["gaploop_full"])},
    }
    write_json(path, options.jsonable(result))
    return result


def _figures(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    times = [1000 * r["step_s"] for r in rows]
    return {
        "step_ms": float(np.median(times)),
        "range_ms": [min(times), max(times)],
        "memory_mb": float(np.median([r["memory_mb"] for r in rows])),
    }


def _ratio(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> dict[str, Any]:
    values = [a["step_s"] / b["step_s"] for a, b in zip(ours, theirs, strict=True)]
    return {"median": float(np.median(values)), "range": [min(values), max(values)]}


def _takes(root: Path) -> Path:
    """Write scripted takes as a LeRobot dataset without videos, as LeRobot writes one."""
    if (root / "meta" / "info.json").exists():
        return root
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from gaploop.finetune.demonstrations import scripted_source

    source = scripted_source(TAKES, workers=1)
    signature = source.signature
    named = {
        "observation.state": signature.state_names,
        "observation.environment_state": signature.environment_names,
        "action": signature.action_names,
    }
    features = {
        key: {"dtype": "float32", "shape": (len(names),), "names": list(names)}
        for key, names in named.items()
    }
    dataset = LeRobotDataset.create(
        "local/speed", round(signature.fps), features, root=root, robot_type=signature.robot_type
    )
    for episode in source.episodes:
        for state, scene, action in zip(
            episode.state, episode.environment, episode.action, strict=True
        ):
            values = dict(zip(named, (state, scene, action), strict=True))
            dataset.add_frame({**values, "task": "Put the cube on the disc"})
        dataset.save_episode()
    dataset.finalize()
    return root


def _turn(kind: str, root: Path, out: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.finetune_speed", kind, root, out]
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise GaploopError(f"bench finetune: {kind} broke off: {last}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _gaploop(way: str, root: Path, out: Path) -> list[float]:
    from gaploop.finetune.adapt import adapt
    from gaploop.finetune.config import FinetuneConfig, StartPolicy

    ends: list[float] = []
    wanted = FinetuneConfig(
        StartPolicy("base"), way, real=(root,), select="all", steps=STEPS, batch_size=BATCH,
        output_dir=out,
    )  # fmt: skip
    adapt(wanted, lambda *_: ends.append(time.perf_counter()))
    return ends


def _lerobot(way: str, root: Path, out: Path) -> list[float]:
    from lerobot.scripts import lerobot_train

    from gaploop.finetune.lerobot_policy import PACKAGED_BASE
    from gaploop.finetune.tuning.presets import ACT_TARGETS

    ends: list[float] = []
    update = lerobot_train.update_policy

    def timed(*args: Any, **kwargs: Any) -> Any:
        answer = update(*args, **kwargs)
        ends.append(time.perf_counter())
        return answer

    lerobot_train.update_policy = timed
    sys.argv = [
        "lerobot-train",
        f"--policy.path={PACKAGED_BASE}",
        "--policy.push_to_hub=false",
        "--policy.device=cpu",
        "--dataset.repo_id=local/speed",
        f"--dataset.root={root}",
        f"--output_dir={out}",
        f"--steps={STEPS}",
        f"--batch_size={BATCH}",
        "--num_workers=0",
        "--log_freq=1000",
        "--save_checkpoint=false",
        "--wandb.enable=false",
    ]
    if way == "lora":
        targets = json.dumps(list(ACT_TARGETS))
        sys.argv += ["--peft.method_type=LORA", "--peft.r=16", f"--peft.target_modules={targets}"]
    lerobot_train.train()
    return ends


def main() -> None:
    """Train a few steps as the arguments say, and print step time and memory as JSON."""
    import torch

    kind, root, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    program, _, way = kind.partition("_")
    train = {"gaploop": _gaploop, "lerobot": _lerobot}[program]
    ends = train(way, root, out)
    step_s = float(np.median(np.diff(ends[WARM_UP:])))
    print(json.dumps({"step_s": step_s, "memory_mb": _peak_mb()}))


def _peak_mb() -> float:
    """Return the most memory that this program held [MB].

    Where there is /proc it is read there: `ru_maxrss` begins at what the parent held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return float(peak.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()

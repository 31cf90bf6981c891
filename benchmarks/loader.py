"""`benchmarks loader`: samples per second for training, beside LeRobot's loaders and Lance.

Two 640×480 cameras, action chunks, random order. All loaders take turns in one run, each several
times, so that whatever else the machine does hits all of them; ratios are taken turn by turn.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.cameras import CAMERAS, HEIGHT, WIDTH
from benchmarks.loader_dataset import FPS, REPO, feature, make_dataset
from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

TAKES: Final = 3
BATCH: Final = 32
CHUNK: Final = 50
ROUNDS: Final = 5
WORKERS: Final = (0, 2)
TURN_S: Final = 1.5
"""How long a loader is measured at a time [s], and at least `TURN_BATCHES`."""
TURN_BATCHES: Final = 3
SHUFFLED: Final = 100
"""Samples in the streaming loader's buffer. By default 1000: as fast, and minutes to fill."""


@dataclass(frozen=True)
class Loader:
    """A way to read the dataset.

    Attributes:
        mode: of the frame cache; "" for LeRobot's dataset, "streaming" for its streaming one,
            "lance" for lerobot-lancedb's, where that is installed.
        size: what pictures are scaled to [px], or native.
        target: the ratio to LeRobot's dataset that is aimed at, or 0.
    """

    mode: str
    size: str = "native"
    target: float = 0.0

    @property
    def cached(self) -> bool:
        """Whether it reads from a frame cache."""
        return self.mode == "raw"

    @property
    def workers(self) -> tuple[int, ...]:
        """How many worker processes it is measured with."""
        # Streaming workers share the dataset's files out, and there is one.
        return (0,) if self.mode == "streaming" else WORKERS


LOADERS: Final = {
    "lerobot": Loader(""),
    "lerobot_streaming": Loader("streaming"),
    "lance": Loader("lance"),
    "raw_native": Loader("raw", target=10),
    "raw_224": Loader("raw", "224", target=40),
}


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Make the dataset unless it is there, build the caches, let the loaders take turns."""
    if config.n < 0:
        raise UnusableInputError(f"--n must be 0 or more takes, got {config.n}.")
    root = make_dataset(folder, config.n or TAKES)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    built = {name: _build(root, folder, name) for name, loader in LOADERS.items() if loader.cached}
    opened = {name: _open(root, folder, name) for name in LOADERS}
    usable = {name: data for name, data in opened.items() if not isinstance(data, str)}
    rates = _rates(usable)
    result = {name: _figures(name, rates, built) for name in usable}
    result |= {name: {"unusable": why} for name, why in opened.items() if isinstance(why, str)}
    for name in usable:
        result[name] |= {"memory_mb": _memory_mb(root, folder, name)}
    plain = opened["lerobot"]
    return {
        "takes": plain.num_episodes,
        "frames": plain.num_frames,
        "batch": BATCH,
        "chunk": CHUNK,
        "decoder": plain._video_backend,
        "videos_mb": _megabytes(root / "videos", "*.mp4"),
        "fidelity": _fidelity(opened),
        "rounds": ROUNDS,
        "loaders": result,
    }


def _open(root: Path, folder: Path, name: str) -> Any:
    """Return a dataset as a training opens it, or why that can't be done here."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

    from gaploop.datasets.cache.folder import CacheOptions
    from gaploop.datasets.cache.lerobot_cached import CachedLeRobotDataset

    loader = LOADERS[name]
    how: dict[str, Any] = {
        "delta_timestamps": {"action": [k / FPS for k in range(CHUNK)]},
        "return_uint8": True,
    }
    if loader.cached:
        cache = CacheOptions(loader.size, max_gb=1e6, dir=folder / "cache" / name)
        return CachedLeRobotDataset(REPO, root=root, cache=cache, **how)
    if not loader.mode:
        return LeRobotDataset(REPO, root=root, **how)
    try:
        if loader.mode == "lance":
            from lerobot_lancedb import LanceDBDataset
            from lerobot_lancedb.convert import convert

            if not (folder / "lance").exists():
                convert(folder / "lance", root=root)
            dataset = LanceDBDataset(REPO, root=folder / "lance", **how)
            _ = dataset[0]
        else:
            dataset = StreamingLeRobotDataset(REPO, root=root, buffer_size=SHUFFLED, **how)
            next(iter(dataset))
    except (ImportError, OSError, RuntimeError) as error:
        return " ".join(str(error).partition(". ")[0].split())[:160]
    return dataset


def _build(root: Path, folder: Path, name: str) -> dict[str, float]:
    began_s = time.perf_counter()
    dataset = _open(root, folder, name)
    took_s = time.perf_counter() - began_s
    return {
        "build_s": took_s,
        "build_pictures_per_s": dataset.num_frames * len(CAMERAS) / took_s,
        "disk_mb": _megabytes(folder / "cache" / name, "*.pack"),
    }


def _megabytes(folder: Path, pattern: str) -> float:
    return sum(p.stat().st_size for p in folder.rglob(pattern)) / 1e6


def _rates(opened: Mapping[str, Any]) -> dict[tuple[str, int], list[float]]:
    """Return samples per second of each loader and number of workers, turn by turn."""
    turns = [(name, w) for name in opened for w in LOADERS[name].workers]
    rates: dict[tuple[str, int], list[float]] = {turn: [] for turn in turns}
    # The streaming loader goes on where it was: its buffer takes long to fill.
    streams = {n: _batches(opened[n], 0, 0) for n, _ in turns if LOADERS[n].mode == "streaming"}
    for stream in streams.values():
        next(stream)
    with options.progress("Loading", ROUNDS * len(turns)) as advance:
        for number in range(ROUNDS):
            for name, workers in turns[number:] + turns[:number]:
                batches = streams.get(name) or _batches(opened[name], workers, number)
                # What workers had ready before the clock runs is not counted.
                for _ in range(1 + 2 * workers):
                    next(batches)
                rates[name, workers].append(_rate(batches))
                advance()
    return rates


def _batches(dataset: Any, workers: int, seed: int) -> Iterator[Any]:
    import torch
    from lerobot.datasets import video_utils
    from torch.utils.data import DataLoader, IterableDataset, RandomSampler

    # Workers must not inherit the open files of LeRobot's decoders: their position is shared.
    video_utils._default_decoder_cache.clear()
    if isinstance(dataset, IterableDataset):
        while True:
            yield from DataLoader(dataset, batch_size=BATCH, num_workers=workers)
    draws = torch.Generator().manual_seed(seed)
    order = RandomSampler(dataset, replacement=True, num_samples=10**9, generator=draws)
    # Lance's threads don't outlive a fork.
    context = (
        "spawn" if workers and type(dataset).__module__.startswith("lerobot_lancedb") else None
    )
    yield from DataLoader(
        dataset, BATCH, sampler=order, num_workers=workers, multiprocessing_context=context
    )


def _rate(batches: Iterator[Any]) -> float:
    began_s, samples, done = time.perf_counter(), 0, 0
    while done < TURN_BATCHES or time.perf_counter() - began_s < TURN_S:
        samples += len(next(batches)["index"])
        done += 1
    return samples / (time.perf_counter() - began_s)


def _figures(
    name: str, rates: Mapping[tuple[str, int], list[float]], built: Mapping[str, dict[str, float]]
) -> dict[str, Any]:
    """Return a loader's rates, and its ratio to LeRobot's dataset; each with its best workers."""
    loader = LOADERS[name]
    mine = {w: rates[name, w] for w in loader.workers}
    best = max(mine, key=lambda w: statistics.median(mine[w]))
    plain = {w: rates["lerobot", w] for w in WORKERS}
    rival = max(plain, key=lambda w: statistics.median(plain[w]))
    ratios = [a / b for a, b in zip(mine[best], plain[rival], strict=True)]
    result: dict[str, Any] = {
        "samples_per_s": {f"workers_{w}": _spread(r) for w, r in mine.items()},
        "ratio": _spread(ratios),
    }
    if loader.target:
        result["target"] = loader.target
        result["reached"] = result["ratio"]["median"] >= loader.target
    if name in built:
        saved_s = 1 / statistics.median(plain[rival]) - 1 / statistics.median(mine[best])
        result |= built[name]
        result["build_pays_after_samples"] = round(built[name]["build_s"] / saved_s)
    return result


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _fidelity(opened: Mapping[str, Any]) -> dict[str, Any]:
    """Compare cached pictures with LeRobot's: are all bits the same?"""
    import torch

    plain = opened["lerobot"]
    rows = np.random.default_rng(0).integers(0, len(plain), 16).tolist()
    keys = [feature(c) for c in CAMERAS]
    theirs = torch.stack([plain[k][key] for k in rows for key in keys])
    ours = torch.stack([opened["raw_native"][k][key] for k in rows for key in keys])
    return {"pictures": len(theirs), "raw_native_identical": torch.equal(ours, theirs)}


def _memory_mb(root: Path, folder: Path, name: str) -> float:
    """Return what opening a dataset and loading 6 batches takes, in a process of its own [MB]."""
    receive, send = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_load, args=(root, folder, name, send))
    process.start()
    send.close()
    taken: float = receive.recv()
    process.join()
    return taken


def _load(root: Path, folder: Path, name: str, send: Any) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # lets VmHWM begin anew: proc(5)
    before = _status_kb("VmRSS")
    batches = _batches(_open(root, folder, name), 0, 0)
    for _ in range(6):
        next(batches)
    send.send((_status_kb("VmHWM") - before) / 1e3)


def _status_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    lines = [
        f"{result['takes']} takes, {result['frames']} frames, two {WIDTH}×{HEIGHT} cameras, videos "
        f"{result['videos_mb']:.0f} MB; batches of {BATCH}, chunks of {CHUNK}; decoder "
        f"{result['decoder']}",
        f"{'':18}{'samples/s, workers 0':>22}{'workers 2':>20}{'× lerobot':>20}"
        f"{'disk MB':>9}{'memory MB':>11}{'build s':>9}",
    ]
    for name, figures in result["loaders"].items():
        if "unusable" in figures:
            lines.append(f"{name:18}can't be used here: {figures['unusable']}")
            continue
        rates = figures["samples_per_s"]
        cells = [_cell(rates.get(f"workers_{w}")) for w in WORKERS]
        lines.append(
            f"{name:18}{cells[0]:>22}{cells[1]:>20}{_cell(figures['ratio'], 1):>20}"
            f"{figures.get('disk_mb', 0):9.0f}{figures['memory_mb']:11.0f}"
            f"{figures.get('build_s', 0):9.1f}"
        )
    fidelity = result["fidelity"]
    lines.append(f"raw identical to LeRobot's pictures: {fidelity['raw_native_identical']}")
    return "\n".join(lines)


def _cell(spread: Mapping[str, float] | None, digits: int = 0) -> str:
    if spread is None:
        return "-"
    low, middle, high = (f"{spread[k]:.{digits}f}" for k in ("min", "median", "max"))
    return f"{middle} ({low}-{high})"

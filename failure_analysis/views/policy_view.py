"""What the policy that drove makes of a take's pictures: how unlike its training they are.

Asked through `core.protocols.PolicyProbe`, which whoever loads policies hands in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray, Image, Observation
from gaploop.core.protocols import PolicyProbe
from gaploop.core.take import Take
from gaploop.failure_analysis.views.pictures import squared

EVERY_S: Final = 0.1
"""How often a policy is asked along an episode [s]."""
CELLS: Final = 3
"""A picture is as unfamiliar as the mean of its so many least familiar cells."""
PATCHES: Final = 1500
"""Training cells kept of a camera."""
PROJECTED: Final = 16


@dataclass(frozen=True)
class CameraTrace:
    """What one camera showed along a take, and how far that is from what the policy learned from.

    Attributes:
        size_px: height and width of its pictures; `first` and `worst` are brought to 192 px.
        score: how unfamiliar each picture is to the policy's encoder, shape (m,); 1 is as far as
            one in a hundred cells of its training are from each other's takes. NaN where unknown.
        where: distance of each cell of the worst, shape (h, w); empty where unknown.
    """

    size_px: tuple[int, int]
    first: Image
    score: FloatArray
    worst: Image
    where: FloatArray

    @property
    def unfamiliar(self) -> float:
        """Median of how unfamiliar the pictures are; NaN where unknown."""
        known = self.score[np.isfinite(self.score)]
        return float(np.median(known)) if len(known) else float("nan")

    @classmethod
    def of(
        cls, size_px: tuple[int, int], pictures: Sequence[Image], cells: Sequence[FloatArray]
    ) -> CameraTrace:
        """Return the trace of pictures, RGB of 192 px, and the distances of their cells, if any."""
        score = np.array([unfamiliar(where) for where in cells] or [np.nan] * len(pictures))
        worst = int(np.argmax(score)) if len(cells) else 0
        return cls(
            size_px,
            pictures[0],
            score,
            pictures[worst],
            cells[worst] if len(cells) else np.empty((0, 0)),
        )


type Layers = Sequence[NDArray[np.floating[Any]]]
"""What some layers of an encoder make of a picture's cells, on one grid: each (h, w, channels)."""


@dataclass(frozen=True)
class PatchSpace:
    """Where the cells of one camera's pictures lie in a policy's encoder, on its training takes.

    Distances are to the nearest known cell, wherever in the picture that was, of a bank in which
    none is near another (PatchCore, Roth et al. 2022, arXiv:2106.08265); each layer counts by
    itself: the first knows colours and edges, the last what the policy makes of them.

    Attributes:
        scale: spread of each channel, shape (c,).
        bank: known cells in those units, shape (n, c).
        widths: channels of each layer.
        reach: distance in each layer that one in a hundred training cells has to other takes'.
        owner: take that each known cell is from, shape (n,); empty once it is of no use.
    """

    scale: FloatArray
    bank: NDArray[np.float32]
    widths: tuple[int, ...]
    reach: tuple[float, ...]
    owner: NDArray[np.int64]

    @classmethod
    def fit(cls, takes: Sequence[Sequence[Layers]], seed: int = 0) -> PatchSpace:
        """Fit to takes, of each some pictures."""
        rows = [np.concatenate([_flat(layers) for layers in pictures]) for pictures in takes]
        owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
        cells = np.concatenate(rows)
        least = 1e-6 + 1e-3 * float(cells.std())
        scale = np.maximum(cells.std(axis=0), least).astype(np.float64)
        white = (cells / scale.astype(np.float32)).astype(np.float32)
        # Rows far from each other, the greedy k-center coreset (Sener and Savarese 2018), in a
        # random projection: rare cells stay, of the many alike few do.
        onto = np.random.default_rng(seed).normal(size=(white.shape[1], PROJECTED))
        small = white @ onto.astype(np.float32)
        nearest, kept = np.full(len(small), np.inf, dtype=np.float32), [0]
        while len(kept) < min(PATCHES, len(small)):
            nearest = np.minimum(nearest, ((small - small[kept[-1]]) ** 2).sum(axis=1))
            kept.append(int(nearest.argmax()))
        widths = tuple(layer.shape[-1] for layer in takes[0][0])
        space = cls(scale, white[kept], widths, (1.0,) * len(widths), owner[kept])
        apart = [space.apart(shown[len(shown) // 2], own) for own, shown in enumerate(takes)]
        reach = np.percentile(np.concatenate(apart, axis=1), 99, axis=1)
        return replace(space, reach=tuple(max(float(r), 1e-6) for r in reach))

    def apart(self, layers: Layers, own: int = -1) -> FloatArray:
        """Return how far each cell is from the nearest known one, shape (n_layers, h · w).

        Cells of the picture's `own` training take don't count; -1 for none.
        """
        bank = self.bank[self.owner != own] if own >= 0 else self.bank
        ends = np.cumsum(self.widths)[:-1]
        parts = zip(
            np.split((_flat(layers) / self.scale).astype(np.float32), ends, axis=1),
            np.split(bank, ends, axis=1),
            strict=True,
        )
        nearest = []
        for rows, known in parts:
            square = (rows**2).sum(1)[:, None] + (known**2).sum(1) - 2.0 * rows @ known.T
            nearest.append(np.sqrt(np.maximum(square.min(axis=1), 0.0)))
        return np.array(nearest, dtype=np.float64)

    def distance(self, layers: Layers, own: int = -1) -> FloatArray:
        """Return the distance of each cell in reaches, in the layer where it is largest, (h, w)."""
        apart = self.apart(layers, own) / np.array(self.reach)[:, None]
        return np.asarray(apart.max(axis=0).reshape(layers[0].shape[:2]))


def _flat(layers: Layers) -> NDArray[np.floating[Any]]:
    return np.concatenate([layer.reshape(-1, layer.shape[-1]) for layer in layers], axis=1)


def unfamiliar(where: FloatArray) -> float:
    """Return how unfamiliar a picture is, from the distances of its cells, shape (h, w)."""
    return float(np.sort(where, axis=None)[-CELLS:].mean())


@dataclass(frozen=True)
class PolicyTrace:
    """What a policy makes of the cameras along one take.

    Attributes:
        measures: the signals of its cameras, as `CameraReference.measured` gives them.
    """

    cameras: Mapping[str, CameraTrace] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)


def ask(
    take: Take, probe: PolicyProbe, patches: Mapping[str, PatchSpace | None]
) -> PolicyTrace | None:
    """Ask a policy along a take, every 0.1 s; None for a take without frames.

    `patches` say of each camera that is looked at where its cells are at home.
    """
    probe.reset()
    sizes: dict[str, tuple[int, int]] = {}
    pictures: dict[str, list[Image]] = {name: [] for name in patches}
    cells: dict[str, list[FloatArray]] = {name: [] for name in patches}
    for _, seen in observations(take):
        maps = probe.maps(seen)
        for name in pictures.keys() & seen.images.keys():
            sizes[name] = (seen.images[name].shape[0], seen.images[name].shape[1])
            pictures[name].append(squared(seen.images[name]))
            if name in maps and (home := patches[name]) is not None:
                cells[name].append(home.distance(maps[name]))
    shown = {n: CameraTrace.of(sizes[n], held, cells[n]) for n, held in pictures.items() if held}
    return PolicyTrace(shown) if shown else None


def observations(take: Take) -> Iterator[tuple[float, Observation]]:
    """Yield time [s] and observation every 0.1 s of a take with pictures."""
    frames, scene, names = take.frames, take.frames.environment_state, sorted(take.cameras)
    step = max(1, round(EVERY_S * take.info.fps))
    for place, shown in enumerate(zip(*(take.cameras[name]() for name in names), strict=False)):
        if place >= len(frames):
            return
        if place % step == 0:
            tracked = scene[place] if scene.ndim == 2 and scene.shape[1] else None
            seen: Mapping[str, Image] = dict(zip(names, shown, strict=True))
            yield float(frames.t_s[place]), Observation(frames.state[place], tracked, seen)

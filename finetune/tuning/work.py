"""What is tuned, on what, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.plan import Plan
from gaploop.datasets.cache.folder import CacheOptions
from gaploop.finetune.lerobot_adapter import LoraOptions
from gaploop.finetune.tuning import held_out
from gaploop.finetune.tuning.held_out import TakeNote
from gaploop.finetune.tuning.presets import TRACKED_SPECS, Randomise, TrainSpec

STATS: Final = ("base", "new", "merged")
"""By whose statistics a tuned policy normalises: its base's, the new data's, or both; why, in
`lerobot_bundle`."""
LEAST, MOST = 0.25, 4.0
"""No dimension that is collected for is left out or drowns the others."""
COLLECT: Final = "collect"


@dataclass(frozen=True)
class AdaptOptions:
    """What to adapt, on what, and how.

    Attributes:
        base: policy to start from, as for `load_policy`.
        real: folders of real takes (or of a simulated target cell).
        sim: folders of simulated takes, mixed in so that nominal success is kept.
        sim_takes: without `sim`, scripted takes of the nominal cell to record and mix in.
        share_real: share of real samples in a batch, where there are simulated ones.
        select: which takes, see `selection.SELECTIONS`.
        episodes: only these episodes of the real datasets.
        held_out: episodes of the real datasets to keep aside and measure the error on.
        held_out_share: instead, the share of real takes to keep aside, by session.
        held_out_uids: instead, the uids of the takes.
        mixture: a mixture.yaml in the place of `real`, `sim`, `share_real` and `select`.
        weights: gap dimension to how often its takes are drawn, relative to 1.
        rename: the dataset's name of a feature to the policy's.
        device: torch device, or `auto`.
        trackers: where figures go beside metrics.jsonl, of `trackers.TRACKERS`.
    """

    base: str | Path
    real: tuple[Path, ...]
    output_dir: Path
    sim: tuple[Path, ...] = ()
    sim_takes: int = 0
    share_real: float = 0.5
    lora: LoraOptions = field(default_factory=LoraOptions)
    full: bool = False
    spec: TrainSpec = TRACKED_SPECS["lora"]
    select: str = "demonstrations"
    episodes: tuple[int, ...] | None = None
    held_out: tuple[int, ...] = ()
    held_out_share: float = 0.0
    held_out_uids: frozenset[str] = frozenset()
    resume: bool = False
    mixture: Path | None = None
    stats: str = "base"
    weights: Mapping[str, float] = field(default_factory=dict)
    station: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    cache: CacheOptions = field(default_factory=CacheOptions)
    workers: int = 0
    randomise: Randomise = field(default_factory=Randomise)
    device: str = "cpu"
    merge: bool = True
    trackers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stats not in STATS:
            raise unknown_choice("statistics", self.stats, STATS, "--stats")
        if not 0 <= self.share_real <= 1:
            raise UnusableInputError(
                f"--mix.real={self.share_real:g} must be above 0 and at most 1; 0.5 is usual."
            )
        if sum(map(bool, (self.held_out, self.held_out_share, self.held_out_uids))) > 1:
            raise UnusableInputError(
                "--held_out names episodes, --held_out_share chooses them. Give one of the two."
            )


def chosen_held_out(options: AdaptOptions, real: Sequence[TakeNote]) -> frozenset[str]:
    """Return the uids of the real takes that the options keep aside."""
    if options.held_out_uids:
        return options.held_out_uids
    if options.held_out_share:
        return held_out.choose(real, options.held_out_share, options.spec.seed)
    lacking = set(options.held_out) - {t.index for t in real}
    if lacking:
        known = ", ".join(map(str, sorted({t.index for t in real})))
        raise UnusableInputError(
            f"--held_out names episode {min(lacking)}, which is not among the real takes that "
            f"would be learned from ({known})."
        )
    return frozenset(t.uid for t in real if t.index in options.held_out)


def weights_of(plan: Plan) -> dict[str, float]:
    """Return gap dimension to weight, 1 on average over what the plan collects.

    A dimension's weight goes by the points of success that the plan expects of its takes; by
    its share of the failures where the plan doesn't say. What isn't collected counts 1.

    Raises:
        UnusableInputError: the plan collects nothing.
    """
    items = [i for i in plan.items if i.remedy == COLLECT and i.takes]
    if not items:
        raise UnusableInputError(
            f"Plan {plan.id} collects no takes, so it gives no weights for them. Leave --plan out."
        )
    has_gains = all(i.gain_points is not None for i in items)
    values: dict[str, float] = {}
    for item in items:
        gain = item.gain_points.mean if has_gains and item.gain_points else item.share
        name = item.dimension.value
        values[name] = values.get(name, 0.0) + max(0.0, gain)
    mean = sum(values.values()) / len(values)
    if mean <= 0:
        return dict.fromkeys(values, 1.0)
    return {name: min(MOST, max(LEAST, value / mean)) for name, value in values.items()}

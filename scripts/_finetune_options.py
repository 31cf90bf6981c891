"""Groups of options of `gaploop finetune`."""

from __future__ import annotations

from dataclasses import dataclass, field

from gaploop.datasets.hub.target import check_repo_id
from gaploop.scripts import options


@dataclass
class MixOptions:
    """How sources are mixed."""

    real: str = "0.5"
    """Share of real samples in a batch, where there are simulated ones; auto to choose it on
    held-out real takes."""


@dataclass
class LoraFlags:
    """Size of the adapter."""

    r: int = 0
    """Rank; the preset's (16) unless given."""
    alpha: int = 0
    """Scale; 0 means twice the rank."""
    dropout: float = 0.0
    """Dropout on the adapter's input."""
    target_modules: list[str] = field(default_factory=list)
    """What gets an adapter: names of modules, or one regular expression; the preset's unless
    given."""


@dataclass
class RandomiseFlags:
    """Visual randomisation of training pictures."""

    strength: float = 0.0
    """0 for none to 1 for strong: light, noise, camera pose, background."""
    ramp: float = 0.3
    """Part of the run over which the strength rises from 0."""


@dataclass
class RetentionFlags:
    """What the base could do in simulation, and whether the tuned policy still can."""

    n: int = 0
    """Paired rollouts in the nominal cell afterwards; 0 for none."""
    margin: float = 3.0
    """Success may fall by this many points; more ends with exit code 1. The adapter is kept."""
    workers: int = 1
    """Processes."""


@dataclass
class TunedPolicyOptions(options.PolicyOptions):
    """Which policy to start from, and what becomes of the adapted one."""

    push_to_hub: bool = False
    """Push the adapter afterwards; see gaploop push --help. A Hub that is down is tried later."""
    repo_id: str = ""
    """With push_to_hub: owner and name on the Hub, such as me/pick_place_adapter."""
    private: bool | None = None
    """With push_to_hub: make a new repository private."""
    license: str = ""
    """With push_to_hub: licence for the card; apache-2.0 unless given, as LeRobot."""
    tags: list[str] | None = None
    """With push_to_hub: more tags for the card."""

    def __post_init__(self) -> None:
        if self.push_to_hub:
            check_repo_id(self.repo_id, "--policy.repo_id")

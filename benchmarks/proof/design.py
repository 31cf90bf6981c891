"""The study's design: which sites, budgets and arms, in which order. Pure draws from seeds."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

import numpy as np

from benchmarks.proof.rows import site_name
from gaploop.core.errors import unknown_choice
from gaploop.core.vocabulary import GapDimension
from gaploop.finetune.demonstrations import TargetCell
from gaploop.sim.catalogue import SO101, TASKS, arm_named

COSTLY: Final[Mapping[GapDimension, tuple[str, ...]]] = {
    GapDimension.SPATIAL_GEOMETRY: ("camera_pose", "table_height"),
    GapDimension.OBJECT_PROPERTY: ("size", "elongated", "tall"),
    GapDimension.CONTACT_DYNAMICS: ("soft",),
    GapDimension.HUMAN_BEHAVIOR: ("nudge", "reach_in"),
    GapDimension.ACTUATOR_RESPONSE: ("latency", "backlash", "weak"),
    GapDimension.VISUAL_DOMAIN: ("exposure", "colour_cast", "blur"),
}
"""The six dimensions, and of each the mechanisms that cost the base at least half its successes at
severity 1 and aren't held out (docs/diagnose/gaps.md)."""
SEVERITIES: Final = (0.85, 1.0)
VARIED: Final = 0.5
"""Severity of a dimension that is set up at will, because the site has no gap in it."""
STAGED: Final = tuple(d for d in GapDimension if d is not GapDimension.TASK_SPECIFICATION)
"""Dimensions that a take can be recorded for."""
MIXTURES: Final = 5
MIXTURE_SEED: Final = 2026
SEEDS: Final = 5
DIAGNOSED: Final = 16
"""Rollouts of the base that are recorded for the diagnosis."""
ROLLOUTS: Final = 100
"""Paired rollouts of each policy at the site."""


class StudyArm(StrEnum):
    """How takes are chosen; see the protocol."""

    TARGETED = "targeted"
    UNIFORM = "uniform"
    ORACLE = "oracle"
    HIDDEN_PART = "hidden_part"
    OTHER_PART = "other_part"
    ON_SITE = "on_site"
    RANDOMISATION = "randomisation"
    REMEDY = "remedy"


FREE: Final = (StudyArm.RANDOMISATION, StudyArm.REMEDY)
"""Arms that record no takes of the site: they have no budget."""


@dataclass(frozen=True)
class Site:
    """A cell with hidden gaps.

    Attributes:
        task: the cell's task.
        gap: name of the gap in the design: a dimension, or a mixture's number.
        seed: draws the site, its scenes, takes and adapters.
        gaps: "dimension.mechanism" to severity.
        gap_seed: draws each gap's direction.
        robot: the cell's arm.
    """

    task: str
    gap: str
    seed: int
    gaps: Mapping[str, float]
    gap_seed: int
    robot: str = SO101.name

    @property
    def name(self) -> str:
        """Names the site's folder and rows."""
        return site_name(self.robot, self.task, self.gap, self.seed)

    @property
    def dimensions(self) -> tuple[GapDimension, ...]:
        """The hidden dimensions."""
        return tuple(GapDimension(name.partition(".")[0]) for name in self.gaps)

    @property
    def cell(self) -> TargetCell:
        """The site itself."""
        return self._cell(self.gaps, self.gap_seed)

    def _cell(self, gaps: Mapping[str, float], gap_seed: int) -> TargetCell:
        return TargetCell(gaps, gap_seed, self.task, self.robot)

    def varied(self, dimension: GapDimension, gap_seed: int) -> TargetCell:
        """Return a cell that differs from the nominal one in a dimension only, at will."""
        return self._cell({dimension.value: VARIED}, gap_seed)

    def set_up_for(self, dimension: GapDimension) -> TargetCell:
        """Return the recording cell for takes of `dimension`: as at the site, or varied at will."""
        here = {g: s for g, s in self.gaps.items() if g.partition(".")[0] == dimension.value}
        if here:
            return self._cell(here, self.gap_seed)
        return self.varied(dimension, self.gap_seed + 1)

    def with_varied(self, dimension: GapDimension) -> TargetCell:
        """Return the site with one more dimension varied, where it has no gap in it."""
        more = {} if dimension in self.dimensions else {dimension.value: VARIED}
        return self._cell({**self.gaps, **more}, self.gap_seed)


@dataclass(frozen=True)
class Part:
    """A part of the design that is to be run.

    Attributes:
        tasks, gaps, seeds, budgets, arms: those that take part.
        rollouts: of each policy.
        diagnosed: rollouts that are recorded for the diagnosis.
        steps: optimiser steps; 0 for the preset's.
        robot: the cells' arm.
    """

    tasks: tuple[str, ...] = ("pick_place",)
    gaps: tuple[str, ...] = tuple(d.value for d in COSTLY)
    seeds: tuple[int, ...] = tuple(range(SEEDS))
    budgets: tuple[int, ...] = (5, 20, 50)
    arms: tuple[StudyArm, ...] = (StudyArm.TARGETED, StudyArm.UNIFORM, StudyArm.ORACLE)
    rollouts: int = ROLLOUTS
    diagnosed: int = DIAGNOSED
    steps: int = 0
    robot: str = SO101.name

    def __post_init__(self) -> None:
        for given, known, what in (
            (self.tasks, TASKS, "task"),
            (self.gaps, GAPS, "gap"),
            (self.arms, list(StudyArm), "arm"),
        ):
            for name in given:
                if name not in known:
                    raise unknown_choice(what, name, known)
        arm_named(self.robot)

    def sites(self) -> Iterator[Site]:
        """Yield the sites in the protocol's order."""
        for seed in self.seeds:
            for task in self.tasks:
                for gap in self.gaps:
                    yield draw_site(task, gap, seed, self.robot)

    def cells(self) -> list[tuple[StudyArm, int]]:
        """Return what is done at each site: arm and budget; 0 for arms without one."""
        budgeted = [a for a in self.arms if a not in FREE]
        free = [a for a in self.arms if a in FREE]
        return [(arm, n) for n in self.budgets for arm in budgeted] + [(arm, 0) for arm in free]


@cache
def mixtures() -> tuple[tuple[GapDimension, GapDimension], ...]:
    """Return the pairs of dimensions of the five mixtures."""
    rng, known = np.random.default_rng(MIXTURE_SEED), list(COSTLY)
    pairs = [(a, b) for i, a in enumerate(known) for b in known[i + 1 :]]
    return tuple(pairs[i] for i in rng.permutation(len(pairs))[:MIXTURES])


GAPS: Final = (*(d.value for d in COSTLY), *(f"mixture_{i}" for i in range(1, MIXTURES + 1)))
"""All gaps of the design by name."""


QUICK: Final = Part(
    gaps=(GapDimension.SPATIAL_GEOMETRY.value,), seeds=(0,), budgets=(5,),
    arms=(StudyArm.TARGETED, StudyArm.UNIFORM), rollouts=4, diagnosed=6, steps=20,
)  # fmt: skip
"""Whether it runs; its figures mean nothing."""


def draw_site(task: str, gap: str, seed: int, robot: str = SO101.name) -> Site:
    """Draw mechanism, direction and severity of a site's gaps; the same for every arm.

    Raises:
        UnknownChoiceError: no such gap in the design.
    """
    if gap not in GAPS:
        raise unknown_choice("gap", gap, GAPS)
    number = gap.removeprefix("mixture_")
    dimensions = (GapDimension(gap),) if number == gap else mixtures()[int(number) - 1]
    rng = np.random.default_rng([zlib.crc32(f"{task} {gap}".encode()), seed])
    gaps = {
        f"{d.value}.{rng.choice(COSTLY[d])}": round(float(rng.uniform(*SEVERITIES)), 3)
        for d in dimensions
    }
    return Site(task, gap, seed, gaps, int(rng.integers(1_000_000)), robot)

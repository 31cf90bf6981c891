"""What absolute tests say: ranked sentences, what was found good, what couldn't be tested, and what
changed since.

Between recordings of one station, oldest first, a figure changes where it steps by more than both
sides' intervals allow, by more than it scatters from one recording to the next, and by more than
matters. Some 40 figures are compared at every place where they may step, so a step must be 4.3
standard errors (5 % over all, Bonferroni, t distribution of ten episodes).
"""

import itertools
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import unknown_choice
from gaploop.core.statistics import Estimate, median_interval

SHOWN: Final = 7
"""Sentences that are printed; --json has all."""
FEWEST: Final = 5
"""Episodes; from fewer no interval can be told, so nothing is set against another day."""
WITHOUT: Final = (
    "short_episode", "motionless", "noise_episode", "frozen_state", "frozen_camera", "black_camera",
    "empty_grasp", "missing", "stalled_gripper",
)  # fmt: skip
"""Kinds whose episodes are better left out; what the others show can be corrected or lived with."""
MISTAKES: Final = (
    "reversed_joint", "swapped_joints", "mixed_units", "swapped_cameras", "wrong_features",
    "no_normaliser", "wrong_statistics", "wrong_units", "wrong_rate", "joint_order", "joint_sign",
    "action_kind", "camera_order", "colour_order", "wrong_crop", "wrong_task", "observation_steps",
)  # fmt: skip
"""Kinds by which policy, arm and cameras were put together wrongly: they explain all rollouts, and
no demonstrations mend them."""
_BELONGS: Final[Mapping[str, tuple[str, ...]]] = {
    "actuator_response": (
        "joint_delay", "action_lag", "gain", "dead_band", "speed_limit", "clipped_joint",
        "dead_joint", "stalled_gripper", "heat", "lost_goals",
    ),
    "sensor_noise": (
        "repeats", "frozen_state", "jumps", "missing", "quantum", "noise", "camera_age",
        "camera_rate", "frozen_camera", "black_camera", "turned_camera",
    ),
    "spatial_geometry": ("offset", "drift", "zero_change", "moved_camera"),
    "visual_domain": ("exposure", "flicker", "blur"),
    "human_behavior": (
        "idle_start", "pause", "motionless", "empty_grasp", "start_change", "pushed",
    ),
    "task_specification": ("task_wording",),
    "the deployment": (
        *MISTAKES, "start_outside", "grasp_outside", "scene_outside", "unfamiliar_view",
    ),
    "the policy": ("constant_input", "undertrained", "overfitted", "ignored_camera"),
    "the data": (
        "short_episode", "noise_episode", "left_demonstrations", "two_ways", "too_few",
    ),
}  # fmt: skip
BELONGS: Final = {kind: where for where, kinds in _BELONGS.items() for kind in kinds}
"""Every kind of finding, and where it belongs: one of nine dimensions, the deployment (settings),
the policy, or the data."""
UNKNOWN: Final = Estimate(float("nan"), float("nan"), float("nan"))


def scaled(size: Estimate, factor: float) -> Estimate:
    """Return an estimate in another unit."""
    return Estimate(factor * size.value, factor * size.low, factor * size.high)


@dataclass(frozen=True)
class AbsoluteFinding:
    """One true sentence about a recording.

    Attributes:
        kind: one of `BELONGS`.
        about: the joint, camera or task.
        sentence: at most 30 words.
        estimate: the number in it.
        unit: of the number.
        episodes: those that show it; `of` so many were looked at.
        worst: the episode that shows it most.
        not_told_apart: what else would look the same.
        command: what fixes it or measures it better.
        cost_deg: what it costs to ignore, as an error of the arm; ranks the sentences [deg].
        to_mend: whether something has to be mended before anything else. Not where a twin has it,
            whose remedies are weighed against its cost; nor what arms of small servos do all along,
            such as giving way to weight and friction, which their policies have learned.
    """

    kind: str
    about: str
    sentence: str
    estimate: Estimate
    unit: str
    episodes: tuple[int, ...]
    of: int
    worst: int | None
    not_told_apart: str
    command: str
    cost_deg: float
    to_mend: bool = True

    def line(self) -> str:
        """The sentence with number, interval, episodes and what it can't tell apart."""
        text = f"{self.sentence}{self.number()}; {len(self.episodes)} of {self.of} episodes"
        if self.worst is not None and len(self.episodes) > 1:
            text += f", most in episode {self.worst}"
        elif len(self.episodes) == 1:
            text += f" (episode {self.episodes[0]})"
        text += "."
        return text + (f" Not told apart: {self.not_told_apart}." if self.not_told_apart else "")

    def number(self) -> str:
        """Its number, behind a space; "" where it has none."""
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if low < high:
            return f" {value:.3g} {self.unit} [{low:.3g}, {high:.3g}]".replace(" °", "°")
        # One value, or one that has no interval.
        return f" {value:.3g} {self.unit}".replace(" °", "°") if self.unit else ""

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        estimate = self.estimate
        finite = [v if v == v else None for v in (estimate.value, estimate.low, estimate.high)]
        return {
            "kind": self.kind, "belongs_to": BELONGS[self.kind], "about": self.about,
            "sentence": self.sentence,
            "value": finite[0], "low": finite[1], "high": finite[2], "unit": self.unit,
            "episodes": list(self.episodes), "of": self.of, "worst": self.worst,
            "not_told_apart": self.not_told_apart, "command": self.command,
        }  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A measured number of a recording, whether a fault or not, to be set against another day's.

    Attributes:
        what: such as `offset`; `about`: the joint or camera.
        least: a change of less is none to speak of, in `unit`.
    """

    what: str
    about: str
    unit: str
    size: Estimate
    least: float

    @property
    def name(self) -> str:
        """As sentences name it."""
        return f"{self.what} of {self.about}" if self.about else self.what


@dataclass
class AbsoluteReport:
    """What a recording shows by itself.

    Attributes:
        findings: dearest first, once `rank` was called.
        figures: what was measured, faults or not.
        good: kinds that were tested and found good, each with what was measured.
        untested: what couldn't be tested, and why.
        episodes: how many the recording has.
        failed: those that are labelled as failures, which nobody trains on as they are.
    """

    root: Path
    findings: list[AbsoluteFinding] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    good: dict[str, str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)
    episodes: int = 0
    failed: frozenset[int] = frozenset()

    def add(
        self,
        kind: str,
        about: str,
        sentence: str,
        found: Mapping[int, float] | Sequence[int],
        of: int,
        command: str,
        cost_deg: float | None = None,
        *,
        unit: str = "",
        size: Estimate | None = None,
        apart: str = "",
        worst: int | None = None,
        to_mend: bool = True,
    ) -> None:
        """Add a finding; see `AbsoluteFinding`.

        Args:
            found: the episodes that show it; with each one's number, their median is the estimate
                and the largest is the worst, unless these are given. Nothing is added of none.
            cost_deg: by default the estimate.
        """
        if isinstance(found, Mapping):
            if not found:  # all of them together gave an estimate that none shows by itself
                return
            size = size or median_interval(np.array(list(found.values())))
            worst = max(found, key=lambda e: abs(found[e])) if worst is None else worst
        size = size or UNKNOWN
        cost_deg = abs(size.value) if cost_deg is None else cost_deg
        episodes = tuple(sorted(found))
        self.findings.append(
            AbsoluteFinding(
                kind,
                about,
                sentence,
                size,
                unit,
                episodes,
                of,
                worst,
                apart,
                command,
                cost_deg,
                to_mend,
            )
        )

    def note(self, what: str, about: str, unit: str, size: Estimate, least: float) -> None:
        """Add a figure, if it is known."""
        if np.isfinite(size.value):
            self.figures.append(Figure(what, about, unit, size, least))

    def rank(self) -> None:
        """Put what costs most first."""
        self.findings.sort(key=lambda f: -f.cost_deg)

    def lines(self) -> list[str]:
        """As printed: at most seven sentences with their commands, what is good, what is open."""
        lines, alike = list[str](), dict[tuple[str, str], list[AbsoluteFinding]]()
        for finding in self.findings:  # what several joints or cameras show is said once
            alike.setdefault((finding.kind, finding.command), []).append(finding)
        groups = list(alike.values())
        for n, (first, *others) in enumerate(groups[:SHOWN], 1):
            lines.append(f"{n}. {first.line()}")
            if others:
                lines.append(
                    "   Likewise " + "; ".join(f"{f.about}{f.number()}" for f in others) + "."
                )
            lines.append(f"   → {first.command}")
        if more := list(itertools.chain.from_iterable(groups[SHOWN:])):
            counts = Counter(f.kind for f in more)
            lines.append("And: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()) + ".")
        if self.good:
            lines.append("Tested and good: " + "; ".join(self.good.values()) + ".")
        if gone := self.to_delete():
            command = self.without(gone, len(gone) + 1)  # some are left
            lines.append(f"Without the episodes that teach nothing: {command}")
        if self.untested:
            opened = (f"{what} ({why})" for what, why in self.untested.items())
            lines.append("Could not be tested: " + "; ".join(opened) + ".")
        return lines

    def flags(self) -> dict[str, list[str]]:
        """Return what each flagged episode shows, by its index, as text for JSON's keys."""
        flags: dict[str, list[str]] = {}
        for finding in self.findings:
            for episode in finding.episodes:
                flag = f"{finding.kind}:{finding.about}" if finding.about else finding.kind
                flags.setdefault(str(episode), []).append(flag)
        return dict(sorted(flags.items(), key=lambda item: int(item[0])))

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "sentences": [f.to_json() for f in self.findings],
            "good": self.good,
            "untested": self.untested,
            "episodes": self.flags(),
            "delete": self.to_delete(),
        }

    def failing(self, kinds: Sequence[str]) -> list[AbsoluteFinding]:
        """Return findings of some kinds, or of any where `any` is among them.

        Raises:
            UnknownChoiceError: no such kind.
        """
        for kind in kinds:
            if kind not in ("any", *BELONGS):
                raise unknown_choice("kind", kind, ["any", *BELONGS])
        return [f for f in self.findings if "any" in kinds or f.kind in kinds]

    def without(self, episodes: Sequence[int], total: int) -> str:
        """Return the command that writes the dataset without some episodes."""
        if len(episodes) >= total:
            return "That is in every episode: fix the cause, and record them again."
        episodes = sorted(set(episodes) - self.failed)
        if not episodes:
            return "Labelled as failures, so no demonstrations: nothing to delete."
        root = shlex.quote(str(self.root))
        listed = ", ".join(map(str, episodes))
        out = shlex.quote(f"{self.root}_clean")
        return f"gaploop edit delete {root} --episodes='[{listed}]' --output_dir={out}"

    def to_delete(self) -> list[int]:
        """Return the episodes that teach nothing, or something wrong, whatever is fixed later.

        None where that is all of them: what is left would be no dataset.
        """
        gone = sorted({e for f in self.findings if f.kind in WITHOUT for e in f.episodes})
        return [] if len(gone) == self.episodes else [e for e in gone if e not in self.failed]


CLEAR: Final = 4.3
"""Standard errors that a step must be."""
SCATTER_NEEDS: Final = 5
"""Recordings before their scatter is known."""

type Day = tuple[str, Sequence[Figure]]
"""A recording's name, such as a folder or a date, and its figures."""


@dataclass(frozen=True)
class Trend:
    """One figure that changed.

    Attributes:
        stretches: first and last recording of each stretch in which it stayed the same, and its
            value there.
        share: the largest step, in changes that matter; ranks the sentences.
    """

    figure: Figure
    stretches: tuple[tuple[str, str, Estimate], ...]
    share: float

    def line(self) -> str:
        """Say what it was, until when, and what it is since."""
        parts = list[str]()
        for n, (first, last, size) in enumerate(self.stretches):
            when = f"until {last}" if n == 0 else f"from {first}"
            if 0 < n < len(self.stretches) - 1:
                when = f"from {first} to {last}" if first != last else f"in {first}"
            value = f"{size.value:.3g} {self.figure.unit}".strip().replace(" °", "°")
            parts.append(f"{value} [{size.low:.3g}, {size.high:.3g}] {when}")
        return f"{self.figure.name}: {', '.join(parts)}."

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        f = self.figure
        stretches = [
            {"first": a, "last": b, "value": s.value, "low": s.low, "high": s.high}
            for a, b, s in self.stretches
        ]
        return {"what": f.what, "about": f.about, "unit": f.unit, "stretches": stretches}


def trends(days: Sequence[Day]) -> list[Trend]:
    """Return the figures that changed over recordings, the largest change first."""
    series: dict[tuple[str, str], list[tuple[str, Figure]]] = {}
    for name, figures in days:
        for figure in figures:
            series.setdefault((figure.what, figure.about), []).append((name, figure))
    found = []
    for points in series.values():
        edges = [0, *_steps([f.size for _, f in points], points[-1][1].least), len(points)]
        if len(edges) == 2:
            continue
        parts = [points[a:b] for a, b in itertools.pairwise(edges)]
        sizes = [pooled([f.size for _, f in part]) for part in parts]
        steps = np.abs(np.diff([s.value for s in sizes]))
        stretches = [(p[0][0], p[-1][0], s) for p, s in zip(parts, sizes, strict=True)]
        figure = points[-1][1]
        found.append(Trend(figure, tuple(stretches), float(steps.max()) / figure.least))
    return sorted(found, key=lambda trend: -trend.share)


def set_beside(ours: AbsoluteReport, usual: AbsoluteReport) -> tuple[list[Trend], list[str]]:
    """Return the figures in which a recording differs from another, and the lines that say so.

    Neither needs an outcome, and a difference is no cause. What both show is said of both: a policy
    that did well had it, too.
    """
    there = usual.root.resolve().name
    names = {(f.what, f.about) for f in ours.figures} & {(f.what, f.about) for f in usual.figures}
    if not names:
        return [], [f"Nothing to set beside {there}: no joint or camera of both is told from "
                    f"{FEWEST} episodes of each."]  # fmt: skip
    found = trends([(there, usual.figures), (ours.root.resolve().name, ours.figures)])
    lines, alike = list[str](), dict[str, list[Trend]]()
    for trend in found:  # what several joints or cameras show is said once
        alike.setdefault(trend.figure.what, []).append(trend)
    for first, *others in alike.values():
        was, now = (
            f"{v.value:.3g} {first.figure.unit}".rstrip() + f" [{v.low:.3g}, {v.high:.3g}]"
            for _, _, v in first.stretches
        )
        line = f"  {first.figure.name}: {now}; {there} has {was}".replace(" °", "°")
        if others:
            sizes = [(o.figure.about, *(s.value for _, _, s in o.stretches)) for o in others]
            line += ". Likewise " + ", ".join(f"{a} {y:.3g} ({x:.3g})" for a, x, y in sizes)
        lines.append(f"{line}.")
    both = {(f.kind, f.about): f for f in usual.findings}
    for f in ours.findings:
        if too := both.get((f.kind, f.about)):
            who = f" of {f.about}" if f.about else ""
            what = f.kind.replace("_", " ")
            lines.append(f"  {what}{who}{f.number()}; {there} has{too.number() or ' it'}, too.")
    if same := sorted({what for what, _ in names} - set(alike)):
        lines.append(f"  No different beyond chance: {', '.join(same)}.")
    return found, [f"Beside {usual.episodes} episodes of {there}:", *lines]


def pooled(sizes: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates, with an interval from theirs and from how they scatter."""
    values = np.array([s.value for s in sizes])
    halves = np.array([(s.high - s.low) / 2 for s in sizes])
    n, mean = len(values), float(values.mean())
    half = float(np.sqrt((halves**2).mean() / n))
    if n > 2:
        half = max(half, 1.96 * float(values.std(ddof=1)) / n**0.5)
    return Estimate(mean, mean - half, mean + half)


def _steps(sizes: Sequence[Estimate], least: float) -> list[int]:
    """Return where a series steps: the cheapest split into level stretches.

    A stretch costs its squared distances from its mean, in standard errors, and each step
    `CLEAR` squared (optimal partitioning: Jackson et al. 2005).
    """
    n, x = len(sizes), np.array([s.value for s in sizes])
    halves = np.array([max(s.high - s.low, 0.5 * least) / 2 for s in sizes])
    scatter = 0.0
    if n >= SCATTER_NEEDS:  # steps are few: a quarter of the differences are of none
        scatter = float(np.percentile(np.abs(np.diff(x)), 25)) / 0.45
    weight = 1.0 / ((halves / 1.96) ** 2 + scatter**2)
    w, wx, wxx = (np.r_[0.0, np.cumsum(v)] for v in (weight, weight * x, weight * x * x))
    cost, last = np.r_[-(CLEAR**2), np.full(n, np.inf)], np.zeros(n + 1, dtype=int)
    for end in range(1, n + 1):
        starts = np.arange(end)
        own = wxx[end] - wxx[starts] - (wx[end] - wx[starts]) ** 2 / (w[end] - w[starts])
        total = cost[starts] + own + CLEAR**2
        last[end] = int(total.argmin())
        cost[end] = total[last[end]]
    edges, at = list[int](), n
    while (at := int(last[at])) > 0:
        edges.insert(0, at)
    k = 0
    while k < len(edges):  # steps of less than matters are none
        parts = [0, *edges, n]
        a, b = (pooled(sizes[parts[k + i] : parts[k + i + 1]]) for i in (0, 1))
        if abs(b.value - a.value) > max(least, 1.1 * (a.high - a.low), 1.1 * (b.high - b.low)):
            k += 1
        else:
            del edges[k]
            k = 0
    return edges


def figures_to_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Return figures as they are kept from day to day."""
    return [
        {
            "what": f.what, "about": f.about, "unit": f.unit, "least": f.least,
            "value": f.size.value, "low": f.size.low, "high": f.size.high,
        }
        for f in figures
    ]  # fmt: skip


def figures_from_json(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Return figures that were kept; raises KeyError, TypeError or ValueError of damaged ones."""
    return [
        Figure(
            str(r["what"]), str(r["about"]), str(r["unit"]),
            Estimate(float(r["value"]), float(r["low"]), float(r["high"])), float(r["least"]),
        )
        for r in rows
    ]  # fmt: skip

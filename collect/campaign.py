"""In which order a plan's takes are recorded, how far that has come, and how long it will take.

Whatever drifts through a day (light, wear, the operator) must not coincide with a condition, so
the takes are split into blocks that each hold a fair share of every condition, and only within
a block takes of one set-up follow each other, in an order that changes little at a time. They are
dealt to blocks by minimisation (Pocock and Simon, Biometrics 31, 1975): each goes to the block that
has least of its set-up and of its conditions so far. The order is a pure function of plan, seed and
quotas; what has been recorded is struck off its front.
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from gaploop.core import consent as consents
from gaploop.core import journal_format, labels
from gaploop.core.consent import Use, consent_ids, refused
from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import ParticipantQuotas, Plan
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import CONDITIONS, Domain, Outcome, TakeKind

BLOCK_TAKES: Final = 12
"""Aimed-at length of a block: about ten minutes at 45 s an episode."""

SETUP_EFFORT: Final[Mapping[str, float]] = {
    "camera_pose": 5.0,
    "table_height": 5.0,
    "background": 3.0,
    "lighting": 2.0,
    "grid_cell": 0.2,
}
"""Effort of changing a condition, relative to any other (1): assumed. The object is put back
before every episode anyway, so that another grid cell costs next to nothing."""


@dataclass(frozen=True)
class Quota:
    """How many takes to record for a plan item under which conditions; failed ones don't count."""

    takes: int
    plan: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Plan item and conditions as text: the same for quotas of one set-up."""
        return json.dumps([self.plan, dict(self.conditions)], sort_keys=True, default=str)


def plan_quotas(plan: Plan, seed: int = 0) -> list[Quota]:
    """Return what a plan asks to be recorded, set-up by set-up; other remedies are done instead.

    Takes of an item are spread evenly over its set-ups; which of them get one more is drawn.
    """
    quotas = []
    for item in plan.items:
        setups = item.setups()
        share, more = divmod(item.takes, len(setups))
        lucky = set(_draw(f"{plan.id} {item.id} {seed}").permutation(len(setups))[:more].tolist())
        for number, conditions in enumerate(setups):
            takes = share + (number in lucky)
            if takes:
                quotas.append(Quota(takes, item.id, {item.dimension.value: 1.0}, conditions))
    return quotas


def campaign(plan: Plan, seed: int = 0) -> list[Quota]:
    """Return a plan's takes in the order to record them, one quota for each stretch of takes."""
    return in_blocks(plan_quotas(plan, seed), f"{plan.id} {seed}")


def in_blocks(quotas: Sequence[Quota], draw: str) -> list[Quota]:
    """Order the takes of `quotas`, and return a quota for each stretch of takes of one set-up.

    No set-up with two or more takes is recorded in a single stretch, unless it is the only one.
    Each stands in `quotas` once; `draw` is text that the random numbers come from.
    """
    rng = _draw(draw)
    order: list[int] = []
    for block in _deal(quotas, rng):
        order += _order_within(block, quotas, order[-1] if order else None, rng)
    runs = itertools.groupby(_split_stretches(order))
    return [replace(quotas[setup], takes=len(list(run))) for setup, run in runs]


def effort(before: Mapping[str, object], after: Mapping[str, object]) -> float:
    """Return how much there is to change between two set-ups; 0 where nothing differs."""
    return sum(SETUP_EFFORT.get(name, 1.0) for name in changed(before, after))


def efforts(order: Sequence[Quota]) -> list[float]:
    """Return the effort of every change of set-up of an order."""
    between = (effort(a.conditions, b.conditions) for a, b in itertools.pairwise(order))
    return [each for each in between if each]


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """Return the conditions that differ between two set-ups."""
    names = dict.fromkeys((*before, *after))
    return tuple(n for n in names if _plain(before.get(n)) != _plain(after.get(n)))


def _plain(value: object) -> str:
    return json.dumps(value, default=str)  # (0, 2) and [0, 2] are the same cell


def _draw(text: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def _deal(quotas: Sequence[Quota], rng: np.random.Generator) -> list[list[int]]:
    total = sum(quota.takes for quota in quotas)
    n_blocks = min(total, max(2, math.ceil(total / BLOCK_TAKES)))
    blocks: list[list[int]] = [[] for _ in range(n_blocks)]
    counts: list[Counter[Any]] = [Counter() for _ in range(n_blocks)]
    factors = [[(n, _plain(v)) for n, v in quota.conditions.items()] for quota in quotas]
    takes = np.repeat(np.arange(len(quotas)), [quota.takes for quota in quotas])
    for setup in rng.permutation(takes).tolist():
        loads = [
            (had[setup], sum(had[factor] for factor in factors[setup]) + len(block), tie)
            for had, block, tie in zip(counts, blocks, rng.random(n_blocks), strict=True)
        ]
        chosen = min(range(n_blocks), key=loads.__getitem__)
        blocks[chosen].append(setup)
        counts[chosen].update([setup, *factors[setup]])
    return [blocks[b] for b in rng.permutation(n_blocks)]


def _order_within(
    block: Sequence[int], quotas: Sequence[Quota], last: int | None, rng: np.random.Generator
) -> list[int]:
    """Order a block: begin far from where the last one ended, then change as little as possible."""
    counts = Counter(block)
    waiting = [int(s) for s in rng.permutation(sorted(counts))]
    ordered: list[int] = []
    if last is not None:
        before = quotas[last].conditions
        at = max(waiting, key=lambda s: (s != last, effort(before, quotas[s].conditions)))
        waiting.insert(0, waiting.pop(waiting.index(at)))
    at = waiting.pop(0)
    while True:
        ordered += [at] * counts[at]
        if not waiting:
            return ordered
        here = quotas[at].conditions
        at = min(waiting, key=lambda s: effort(here, quotas[s].conditions))
        waiting.remove(at)


def _split_stretches(order: list[int]) -> list[int]:
    """Move one take of every set-up that stands in a single stretch to the far end."""
    for setup in sorted(set(order)):
        places = [n for n, other in enumerate(order) if other == setup]
        first, last = places[0], places[-1]
        if len(places) == len(order) or len(places) == 1 or last - first + 1 != len(places):
            continue
        if last < len(order) - 1:
            order.append(order.pop(last))
        else:
            order.insert(0, order.pop(first))
    return order


TAKE_S: Final = 15.0
RESET_S: Final = 30.0
SETUP_S: Final = 60.0
"""Before any episode: an episode, putting things back, and what a change of set-up of effort 1 adds
[s]. Assumed."""
PAUSE_S: Final = 600.0
"""A longer gap between two episodes is a pause, and no measure of anything [s]."""


@dataclass(frozen=True)
class LoggedTake:
    """A sealed take of the journal, as a campaign counts it; its length [s] is frames by rate."""

    info: TakeInfo
    counts: bool
    duration_s: float


@dataclass(frozen=True)
class SetupProgress:
    """One set-up of a plan: what is there and what is wanted."""

    plan: str
    dimensions: Mapping[str, float]
    conditions: Mapping[str, Any]
    have: int
    wanted: int


@dataclass(frozen=True)
class CampaignProgress:
    """How far a campaign has come.

    Attributes:
        setups: every set-up, in the plan's order.
        left: what is still to be recorded, in order; one quota for each stretch of takes.
        left_s: how long that takes, as estimated [s].
        measured: takes behind the estimate; 0 where it is assumed.
    """

    setups: tuple[SetupProgress, ...]
    left: tuple[Quota, ...]
    attempts_per_take: float
    left_s: float
    measured: int

    @property
    def have(self) -> int:
        """Takes that count, no more than wanted of each set-up."""
        return sum(min(s.have, s.wanted) for s in self.setups)

    @property
    def wanted(self) -> int:
        """Takes that are wanted in all."""
        return sum(s.wanted for s in self.setups)

    def by_dimension(self) -> dict[str, list[SetupProgress]]:
        """Return the set-ups by the dimensions that they are for, in the plan's order."""
        found: dict[str, list[SetupProgress]] = {}
        for setup in self.setups:
            found.setdefault(", ".join(setup.dimensions), []).append(setup)
        return found


def counts(kind: TakeKind, outcome: Outcome, retracted: bool = False) -> bool:
    """Say whether a sealed take counts: a rollout always, others unless they failed.

    A demonstration whose label was taken back counts once it has one again; one that was passed
    over counts.
    """
    if outcome in (Outcome.DISCARDED, Outcome.INTERRUPTED):
        return False
    if kind is TakeKind.ROLLOUT:
        return True
    return outcome is not Outcome.FAILURE and not retracted


def sealed_takes(journal: Path, kind: TakeKind) -> Iterator[LoggedTake]:
    """Yield the sealed takes of one kind, oldest first, with the labels that stand now."""
    said = labels.current(labels.read(journal / journal_format.LABELS))
    for folder in journal_format.take_folders(journal):
        info, end = journal_format.read_header(folder).info, journal_format.read_end(folder)
        if end is not None and info.kind is kind:
            label = said.get(info.uid, {}).get("outcome")
            outcome = end.outcome if label is None else Outcome(label)
            retracted = label is not None and outcome is Outcome.UNLABELLED
            yield LoggedTake(info, counts(kind, outcome, retracted), end.frames / info.fps)


def held(
    journal: Path, kind: TakeKind, quotas: Sequence[Quota], *, resume: bool = True
) -> Counter[str]:
    """Return how many takes that count the journal holds, if it exists, by the key of their quota.

    Takes that belong to none of `quotas` are left out, and without `resume` also those without a
    plan item.
    """
    found = Counter[str]()
    for take in sealed_takes(journal, kind):
        if take.counts and (take.info.plan or resume):
            # The quota that it was recorded for: of its plan item, with the most in common.
            fits = [
                q
                for q in quotas
                if q.plan == take.info.plan
                and all(
                    n in take.info.conditions and _plain(take.info.conditions[n]) == _plain(value)
                    for n, value in q.conditions.items()
                )
            ]
            if fits:
                found[max(fits, key=lambda q: len(q.conditions)).key] += 1
    return found


def still_missing(quotas: Sequence[Quota], have: Mapping[str, int]) -> list[int]:
    """Return what each quota still lacks; takes that are there fill the first quotas of their key.

    So an order that was begun goes on where it ended.
    """
    rest = Counter(have)
    lacking = []
    for quota in quotas:
        used = min(rest[quota.key], quota.takes)
        rest[quota.key] -= used
        lacking.append(quota.takes - used)
    return lacking


def campaign_progress(journal: Path, quotas: Sequence[Quota]) -> CampaignProgress:
    """Return how far a campaign has come, of a journal that need not exist."""
    have = held(journal, TakeKind.DEMONSTRATION, quotas)
    lacking = still_missing(quotas, have)
    left = tuple(replace(q, takes=n) for n, q in zip(lacking, quotas, strict=True) if n)
    plans = {quota.plan for quota in quotas}
    takes = [t for t in sealed_takes(journal, TakeKind.DEMONSTRATION) if t.info.plan in plans]
    take_s, reset_s, setup_s = TAKE_S, RESET_S, SETUP_S
    if takes:
        lengths, resets, changes = intervals(takes)
        take_s, reset_s = median(lengths), median(resets) if resets else RESET_S
        each = efforts(quotas)
        if changes and each:
            setup_s = max(0.0, median(changes) - reset_s) / (sum(each) / len(each))
    per_take = len(takes) / max(1, sum(t.counts for t in takes)) if takes else 1.0
    left_s = sum(lacking) * per_take * (take_s + reset_s) + sum(efforts(left)) * setup_s
    wanted = Counter[str]()
    for quota in quotas:
        wanted[quota.key] += quota.takes
    first = {quota.key: quota for quota in reversed(quotas)}
    setups = tuple(
        SetupProgress(q.plan, q.dimensions, q.conditions, have.get(key, 0), wanted[key])
        for key, q in sorted(first.items())
    )
    return CampaignProgress(setups, left, per_take, left_s, measured=len(takes))


def intervals(takes: Sequence[LoggedTake]) -> tuple[list[float], list[float], list[float]]:
    """Return lengths of takes, and times between takes of one set-up and of two set-ups [s].

    They come oldest first. Pauses are left out. Where simulated time runs faster than the clock, a
    take's length is what the clock says.
    """
    resets: list[float] = []
    moves: list[float] = []
    lengths = [take.duration_s for take in takes]
    for place, (a, b) in enumerate(itertools.pairwise(takes)):
        between_s = (b.info.t0_ns - a.info.t0_ns) / 1e9
        rest_s = between_s - a.duration_s
        if a.info.session != b.info.session or between_s <= 0 or rest_s > PAUSE_S:
            continue
        if rest_s < 0:
            lengths[place], rest_s = between_s, 0.0
        same = not changed(a.info.conditions, b.info.conditions)
        (resets if same else moves).append(rest_s)
    return lengths, resets, moves


AS_IT_STANDS: Final = "the station as usual"
_GONE: Final = {"grid_cell": "object anywhere", "human": "nobody in the cell"}


def words(conditions: Mapping[str, Any], grid: tuple[int, int]) -> str:
    """Say in words what to set up, by `vocabulary.CONDITIONS` or free keys, on a placement grid."""
    order = [*(name for name in CONDITIONS if name in conditions)]
    order += [name for name in conditions if name not in CONDITIONS]
    return "; ".join(_phrase(name, conditions[name], grid) for name in order) or AS_IT_STANDS


def change_words(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], grid: tuple[int, int]
) -> str:
    """Say what has to be changed from one set-up to the next; everything where there is none."""
    if before is None:
        return words(after, grid)
    names = changed(before, after)
    new = words({n: after[n] for n in names if n in after}, grid)
    gone = [n for n in names if n not in after]
    back = [n.replace("_", " ") for n in gone if n not in _GONE]
    parts = [new] if any(n in after for n in names) else []
    parts += [_GONE[n] for n in gone if n in _GONE]
    parts += [f"{' and '.join(back)} back as usual"] if back else []
    return "; ".join(parts) or "nothing to change"


def _phrase(name: str, value: Any, grid: tuple[int, int]) -> str:
    if name == "distractors":
        return "no distractors" if not value else f"{value} distractor{'s' * (value != 1)}"
    if name == "grid_cell":
        row, column = value
        side = _third(row, grid[0], ("right", "middle", "left"))
        depth = _third(column, grid[1], ("near", "halfway", "far"))
        return f"object in grid cell row {row}, column {column} ({side}, {depth})"
    if name == "table_height":
        return f"table {1000 * float(value):+.0f} mm"
    if name == "camera_pose":
        metres = ", ".join(f"{1000 * float(v):+.0f}" for v in value[:3])
        degrees = ", ".join(f"{math.degrees(float(v)):+.1f}" for v in value[3:])
        return f"camera moved by ({metres}) mm and turned by ({degrees})°"
    return f"{name.replace('_', ' ')}: {value}"


def _third(index: int, count: int, names: Sequence[str]) -> str:
    return names[min(2, round(2 * index / max(1, count - 1)))] if count > 1 else names[1]


@dataclass(frozen=True)
class BandProgress:
    """One band: takes of its people, and at least how many are asked for."""

    kind: str
    band: str
    have: int
    wanted: int


@dataclass(frozen=True)
class Participants:
    """Who took part so far: bands and takes that count by consent id, and takes that are `left`."""

    quotas: ParticipantQuotas
    bands: Mapping[str, Mapping[str, str]]
    takes: Counter[str]
    left: int

    def progress(self) -> tuple[BandProgress, ...]:
        """Return every band that is asked for. How many people it has nobody is told."""
        found: list[BandProgress] = []
        for kind, wanted in self.quotas.bands.items():
            for band, least in wanted.items():
                people = (id_ for id_ in self.takes if self.bands.get(id_, {}).get(kind) == band)
                have = sum(self.takes[id_] for id_ in people)
                found.append(BandProgress(kind, band, have, least))
        return tuple(found)

    def room(self, id_: str) -> int:
        """Return how many takes of this person the plan has room for.

        As many as leave enough for what other bands still lack, and no more than `most_each`.
        """
        rooms = [self.left]
        if self.quotas.most_each:
            rooms.append(self.quotas.most_each - self.takes[id_])
        for kind in self.quotas.bands:
            own = self.bands[id_].get(kind)
            others = [p for p in self.progress() if p.kind == kind and p.band != own]
            rooms.append(self.left - sum(max(0, p.wanted - p.have) for p in others))
        return max(0, min(rooms))


@dataclass(frozen=True)
class Campaign:
    """A plan on its way: its takes in order, one quota for each stretch of one set-up."""

    plan: Plan
    order: tuple[Quota, ...]
    journal: Path
    station: Station

    def people(self) -> Participants | None:
        """Return who took part so far; None where the plan doesn't ask."""
        asked, takes = self.plan.participants, Counter[str]()
        if asked is None:
            return None
        items = {quota.plan for quota in self.order}
        for take in sealed_takes(self.journal, TakeKind.DEMONSTRATION):
            if take.counts and take.info.plan in items:
                takes.update(consent_ids(take.info.consent))
        now = self.progress()
        bands = consents.read_bands(consents.default_register())
        return Participants(asked, bands, takes, now.wanted - now.have)

    def progress(self) -> CampaignProgress:
        """Return how far it has come, from the journal."""
        return campaign_progress(self.journal, self.order)

    def as_json(self) -> dict[str, Any]:
        """Return how far it has come and what comes next, as `--json` prints it."""
        now = self.progress()
        people, following = self.people(), None
        if now.left:
            first = now.left[0]
            following = {
                "item": first.plan,
                "conditions": first.conditions,
                "takes": first.takes,
                "words": words(first.conditions, self.station.grid),
            }
        return {
            "plan": self.plan.id,
            "have": now.have,
            "wanted": now.wanted,
            "left_s": now.left_s,
            "measured": now.measured,
            "attempts_per_take": now.attempts_per_take,
            "setups": now.setups,
            "participants": people.progress() if people else (),
            "next": following,
        }


def takes_now(campaign: Campaign, consent: str) -> list[Quota]:
    """Return the campaign's order, no longer than those who take part now may add to it.

    Raises:
        UnusableInputError: nobody is named, a person's bands aren't known, or their takes would
            keep out people who are still asked for.
    """
    people = campaign.people()
    if people is None:
        return list(campaign.order)
    ids = consent_ids(consent)
    if not ids:
        raise UnusableInputError(
            f"Plan '{campaign.plan.id}' asks who takes part. Name them with --consent=ID; new "
            "ones: gaploop consent add … --bands='{age_band: 30-44, handedness: left, …}'."
        )
    for id_ in ids:
        missing = [kind for kind in people.quotas.bands if kind not in people.bands.get(id_, {})]
        if missing:
            raise UnusableInputError(
                f"Plan '{campaign.plan.id}' asks for {', '.join(missing)}, not known of {id_}. Add "
                f"it with: gaploop consent add {id_} … --bands='{{{missing[0]}: …}}'."
            )
    room = min(people.room(id_) for id_ in ids)
    if not room and people.left:
        lacking = [f"{p.kind} {p.band}" for p in people.progress() if p.have < p.wanted]
        raise UnusableInputError(
            f"No episodes left for {consent} in plan '{campaign.plan.id}' (at most "
            f"{people.quotas.most_each or 'any number'} each). Still needed: "
            f"{', '.join(lacking) or 'other people'}."
        )
    have = held(campaign.journal, TakeKind.DEMONSTRATION, campaign.order)
    shortened = []
    for quota, left in zip(campaign.order, still_missing(campaign.order, have), strict=True):
        now = min(left, room)
        room -= now
        shortened.append(replace(quota, takes=quota.takes - left + now))
    return shortened


def require_consents(quotas: Sequence[Quota], station: Station, consent: str) -> None:
    """Refuse to record people who haven't agreed; those of the embedded cell are simulated.

    Args:
        consent: ids of participants, separated by commas, or "".

    Raises:
        UnusableInputError: what can't be recorded, why, and how to fix it.
    """
    if not consent_ids(consent) and station.domain is not Domain.REAL:
        return
    register = consents.load_register()
    for quota in quotas:
        info = TakeInfo(
            "",
            domain=station.domain,
            conditions=quota.conditions,
            dimensions=quota.dimensions,
            consent=consent,
        )
        reason = register.refusal(info, Use.RECORD)
        if reason:
            what = f"Plan item '{quota.plan}'" if quota.plan else "The episodes"
            raise refused(reason, Use.RECORD, what)

"""A twin of anybody's simulation: which gap, put in, makes it do what a station's episodes show.

An episode's commands are replayed from its own start in the owner's simulation, as it is and with
one gap at a time; states and first pictures are compared. The gap that explains most is refined in
severity, and a second one is looked for beside it. What isn't clearly better than every gap of
another dimension isn't named. What comes at random can't be replayed: outages of the bus are read
from the episodes' rows, and replayed as they came.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import rate
from gaploop.core.take import Take
from gaploop.core.twin import Twin, TwinParameter
from gaploop.core.vocabulary import Outcome
from gaploop.sim.gaps import all_mechanisms
from gaploop.sim.gaps.mechanism import UnavailableError
from gaploop.sim.identification.noise import (
    LAG,
    Mask,
    Outages,
    Replay,
    find,
    followed,
    last,
    same_until,
)
from gaploop.sim.identification.things import CLUTTER, THINGS
from gaploop.sim.lerobot_worlds import (
    GymAttempts,
    GymEnvConfig,
    columns_in,
    named_world,
    pictures_in,
    state_in,
)
from gaploop.sim.recalibration import ZEROS
from gaploop.sim.roles import Survey, find_model, inside, set_alike, takes_targets
from gaploop.sim.world import GymWorld, WorldSpec

MOST_TAKES: Final = 4
"""That are replayed: half of them choose, the others confirm."""
MOST_S: Final = 4.0
"""Of each; to its end, and up to"""
WHOLE_S: Final = 20.0
"""where its outages are looked for, and where what was found is checked."""
SEARCHED: Final = 20
"""Scenes, or two for each take, among which a take's start is looked for."""
DIRECTIONS: Final = 4
"""Of a gap at most, such as to the left and to the right."""
SCREENED: Final = 0.5
REFINED: Final = (0.15, 0.3, 0.65, 0.8, 1.0)
"""Severities."""
FINALISTS: Final = 3
CLOSER: Final = 3
"""Times that the steps about the best severity are halved,"""
MOST_CLOSER: Final = 6
"""and at most so often again about a gap that leads."""
AT_ONCE: Final = 2
"""Gaps that a twin may hold; a second one is looked for where"""
LEFT: Final = 0.1
"""of the error is left."""
START_SHARE: Final = 0.2
"""A scene starts like a take where they differ by less than this share of what the take moves."""
FLOOR: Final = (0.0005, 0.012)
"""Errors of states (share of their range) and pictures (of full scale) that mean nothing; a
video's compression is of the latter size."""
PICTURES: Final = ("visual_domain",)
"""What only pictures show."""
EXPLAINED: Final = math.log(2.0)
"""Least gain, in log error, by which a gap is named,"""
AHEAD: Final = math.log(1.2)
"""and the least lead over every gap of another dimension."""
SMALL_PX: Final = (48, 48)
CLOSELY: Final = 0.01
"""Share of their range by which the numbers of each row are off at most, on average, where an
episode is followed to its end: the size of a gap is never found to the bit."""
SAME: Final = 1e-4
"""Share of a number's range by which rounding may move it."""
STATE: Final = mujoco.mjtState.mjSTATE_INTEGRATION
"""What makes two simulations go on alike."""
SOONER: Final = 5
"""Rows by which a gap leaves an episode sooner than the simulation as it is, and isn't tried on:
what it changes, the episode hasn't."""
STALE: Final = "sensor_noise.stale_reads"
SCATTER: Final = 0.1
"""Share of itself by which a joint's zero may be off in one episode otherwise than in another."""
ANEW_S: Final = 0.2
"""So long after an episode left the simulation nothing in that touches anything anew, where what
the episode touched isn't in it; an object of another size is touched a little sooner or later."""
LEAST_TOUCHED: Final = 2
TOUCHED: Final = 0.6
"""Episodes that have, of those that leave the simulation."""
UNLIKE: Final = 0.1
"""Of full scale, by which a pixel of something else differs; a video's compression seldom does."""
APART: Final = 2
"""Places in which a picture shows something else: an object that differs, or moved, is in one."""
LONGEST_S: Final = 600.0
"""Of processor time, after which nothing further is looked for. metaworld's, of the slowest that
were tried, take less than half of that."""
REAL: Final = (
    "Of a real robot? Add --robot.model=ARM.xml, its MJCF file: then its drives are fitted, which "
    "needs no scene of yours."
)
NOTHING: Final = "no gap that can be set here brings what the episodes show"
COLLECTED: Final = 10
"""Replays, each in a simulation of its own, after which memory is looked through."""
ALIKE: Final = 1e-3
"""Scenes whose states are as close to a take's start, up to this, are told apart by pictures."""
type Pair = tuple[int, int]
type Pictures = Mapping[str, NDArray[np.uint8]]
type Values = Mapping[str, Mapping[str, float]]
"""Mechanism to the values of its parameters."""


@dataclass(frozen=True)
class _Start:
    """A take, after how many resets the simulation starts as it did, and what is compared of it.

    Attributes:
        whole: all of its states, of which `states` are the first, shape (n, n_state).
        shown: its first pictures, small.
        off: how far its first row is from that scene's, share of what the takes move.
    """

    take: Take
    resets: int
    off: float
    whole: FloatArray
    states: FloatArray
    sent: FloatArray
    shown: Pictures


@dataclass(frozen=True)
class _Tried:
    """A gap as it was put in, and how far the replay is off."""

    key: str
    values: Mapping[str, float]
    severity: float
    seed: int
    errors: FloatArray
    """Of each take that chooses: states, pictures; shape (n, 2)."""

    def gain(self, before: FloatArray) -> float:
        """Return by how much it is better than `before` in log error."""
        return _gain(before[: len(self.errors)], self.errors)


def _gain(before: FloatArray, after: FloatArray) -> float:
    return float((np.log(before) - np.log(after)).mean(axis=0).sum())


def _close(errors: FloatArray, nominal: FloatArray) -> bool:
    return bool(np.all(errors <= np.maximum(2.0 * np.array(FLOOR), LEFT * nominal)))


def fit_world(
    takes: Sequence[Take],
    env: GymEnvConfig,
    roles: Path | None,
    station: str,
    *,
    made_from: tuple[Mapping[str, Any], ...] = (),
    advance: Callable[[int], None] = lambda _total: None,
) -> Twin:
    """Find the gaps by which a simulation does what takes show.

    Args:
        takes: with commands and states of this simulation's own shape; policy-rate.
        advance: called before each replay with how many there will be, as far as is known.

    Raises:
        UnusableInputError: another simulation's takes, or ones that start nowhere near its scenes.
    """
    fitter = _Replays(takes, env, roles, advance)
    before = nominal = fitter.errors(WorldSpec(roles=roles), keep=True)
    held, found, why = dict[str, Mapping[str, float]](), list[_Tried](), ""
    parameters = list[TwinParameter]()
    if not _close(before, nominal) and (lost := fitter.outages()):
        fitter.lost, before_lost = lost, fitter.as_it_was
        after = fitter.errors(WorldSpec(roles=roles), keep=True)
        if _gain(before, after) >= EXPLAINED and _close(after, nominal):
            before, parameters = after, list(_lost_parameters(lost, fitter))
        else:
            fitter.lost, fitter.as_it_was = None, before_lost
    if not _close(before, nominal) and (zeros := fitter.zeros()):
        values = {p.name.rpartition(".")[2]: p.estimate for p in zeros}
        after = fitter.errors(WorldSpec(roles=roles, parameters={ZEROS: values}))
        if _gain(before, after) >= AHEAD:  # where they begin says it; much may act beside it
            held[ZEROS], before, parameters = values, after, [*parameters, *zeros]
    for _ in range(AT_ONCE - bool(parameters)):
        if _close(before, nominal):
            break
        best, rival = _best(fitter, held, before)
        if best is None and fitter.is_late:
            why = (
                f"looked for no longer than {LONGEST_S / 60.0:.0f} minutes of processor time: not "
                "all gaps were tried. Name fewer episodes, or a simulation without pictures"
            )
            break
        if best is None or best.gain(before) < EXPLAINED:
            if not held and not parameters and (obstacles := fitter.obstacles()):
                parameters = [obstacles]
                break
            why = NOTHING
            break
        lead = best.gain(before) - (rival.gain(before) if rival else 0.0)
        if lead < AHEAD:
            assert rival is not None
            why = f"{best.key} and {rival.key} explain the episodes as well: not told apart"
            break
        best = _closest(best, fitter, held, before)
        after = fitter.errors(WorldSpec(roles=roles, parameters={**held, best.key: best.values}))
        if _gain(before[fitter.confirm], after[fitter.confirm]) < EXPLAINED:
            why = f"{best.key} explains some episodes and not the others"
            break
        held[best.key], before = best.values, after
        found.append(best)
    if not held and not parameters and why in ("", NOTHING) and (things := fitter.things()):
        parameters, why = [things], ""
    apart = float(np.median([start.off for start in fitter.starts]))
    if why == NOTHING and apart > CLOSELY:
        why += (
            f". The episodes begin elsewhere than your scenes, by {apart:.0%} of what moves. {REAL}"
        )
    parameters += [p for tried in found for p in _parameters(tried, fitter)]
    unlike = before if parameters else nominal
    shares = {"states": 0} | ({"pictures": 1} if any(s.shown for s in fitter.starts) else {})
    fit: dict[str, Any] = {
        "takes": len(fitter.starts),
        "open_loop_error_before": {k: float(nominal[:, c].mean()) for k, c in shares.items()},
        "open_loop_error_after": {k: float(unlike[:, c].mean()) for k, c in shares.items()},
        "followed": fitter.followed(held) if parameters else {},
        "replays": fitter.done,
        "not_possible": fitter.missing,
        "abstained": why,
    }
    with contextlib.closing(env.make()) as made:
        fit["takes_targets"] = takes_targets(made, roles)  # else nobody can drive slower there
    world = named_world(env, roles)
    return Twin(station, env.called, tuple(parameters), made_from, fit, world)


def _best(
    fitter: _Replays, held: Values, before: FloatArray
) -> tuple[_Tried | None, _Tried | None]:
    """Return the gap that explains most beside those held, and the next of another dimension.

    None where it is too late to compare them.
    """
    options = [o for o in fitter.options() if o[0] not in held]
    fitter.total = fitter.done + len(options) + FINALISTS * len(REFINED) + 2 * CLOSER
    tried = list[_Tried]()
    for key, seed in options:
        if fitter.is_late:
            return None, None
        tried.append(fitter.put_in(key, seed, SCREENED, held))
    tried.sort(key=lambda t: -t.gain(before))
    for one in tried[:FINALISTS]:
        for severity in REFINED:
            if fitter.is_late:
                return None, None
            tried.append(fitter.put_in(one.key, one.seed, severity, held))
    for _ in range(CLOSER if tried else 0):
        ahead = max(tried, key=lambda t: t.gain(before))
        tried += _halved(ahead, tried, fitter, held)
    tried.sort(key=lambda t: -t.gain(before))
    best = tried[0] if tried else None
    dimension = best.key.partition(".")[0] if best else ""
    return best, next((t for t in tried if t.key.partition(".")[0] != dimension), None)


def _halved(ahead: _Tried, tried: Sequence[_Tried], fitter: _Replays, held: Values) -> list[_Tried]:
    """Try the severities half way to those next to the best one."""
    same = [t for t in tried if (t.key, t.seed) == (ahead.key, ahead.seed)]
    between = [0.5 * (ahead.severity + end) for end in _around(ahead, same)]
    return [fitter.put_in(ahead.key, ahead.seed, s, held) for s in between]


def _closest(best: _Tried, fitter: _Replays, held: Values, before: FloatArray) -> _Tried:
    """Come closer to the size of a gap that leads as long as that pays.

    Else what its size is off by looks like a second gap.
    """
    same = fitter.like(best)
    for _ in range(0 if fitter.is_late else MOST_CLOSER):
        same += _halved(best, same, fitter, held)
        ahead = max(same, key=lambda t: t.gain(before))
        if ahead.gain(before) - best.gain(before) < AHEAD:
            return ahead
        best = ahead
    return best


def _around(best: _Tried, same: Sequence[_Tried]) -> tuple[float, float]:
    """Return the severities next to the best one that were tried; 0 is none."""
    at = sorted({0.0, *(t.severity for t in same)})
    k = at.index(best.severity)
    return at[k - 1], at[min(k + 1, len(at) - 1)]


def _parameters(best: _Tried, fitter: _Replays) -> Iterator[TwinParameter]:
    """Yield the values of a gap, each as wide as to the next severities that replay worse."""
    same = fitter.like(best)
    of, around = {t.severity: t for t in same}, _around(best, same)
    for parameter in all_mechanisms()[best.key].parameters:
        name, nominal = parameter.name, parameter.nominal
        estimate = best.values.get(name, nominal)
        if estimate == nominal:
            continue
        ends = [of[s].values.get(name, nominal) if s else nominal for s in around]
        interval = (min(estimate, *ends), max(estimate, *ends))
        source = f"replay: {len(fitter.starts)} episodes"
        yield TwinParameter(
            f"{best.key}.{name}", parameter.unit, nominal, estimate, interval, True, source
        )


def _states_of(take: Take, width: int) -> FloatArray:
    """Return what an observation shows in `width` numbers: the arm, and things where it tells."""
    arm, things = take.frames.state, take.frames.environment_state
    return np.hstack([arm, things]) if arm.shape[1] + things.shape[1] == width else arm


def _small(picture: Any) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(picture, SMALL_PX, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _shown(seen: Any) -> Pictures:
    """Return the pictures of an observation, small."""
    return {name: _small(picture) for name, picture in pictures_in(seen).items()}


def _off(shown: Pictures, wanted: Pictures) -> float:
    """Return how far small pictures are from others, share of full scale.

    By the root mean square: an object fills few of the pixels, over which a mean would hide it.
    """
    pairs = [np.subtract(shown[k], wanted[k], dtype=float) for k in shown.keys() & wanted.keys()]
    return max((float(np.sqrt((off**2).mean())) / 255.0 for off in pairs), default=0.0)


def _news(shown: Pictures, wanted: Pictures) -> tuple[int, FloatArray] | None:
    """Return in how many places small pictures show something where there was nothing.

    And the colours there, shape (n, 3). None where all of a picture differs: that is light, lens or
    camera.
    """
    places, colours = 0, list[FloatArray]()
    for name in sorted(shown.keys() & wanted.keys()):
        now, before = shown[name] / 255.0, wanted[name] / 255.0
        off = np.abs(now - before).max(axis=2)
        if np.median(off) > FLOOR[1]:
            return None
        new, found = (off > UNLIKE).astype(np.uint8), 0
        count, of = cv2.connectedComponents(new)
        for k in range(1, count):
            inside = of == k
            around = cv2.dilate(inside.astype(np.uint8), np.ones((5, 5))) - new == 1
            if around.any():
                beside = before[around].mean(axis=0)
                was, is_now = (np.abs(p[inside].mean(axis=0) - beside).sum() for p in (before, now))
                if was < is_now:  # what went from here isn't counted, where it went to is
                    found += 1
                    colours.append(now[inside])
        places = max(places, found)
    return places, np.concatenate(colours) if colours else np.zeros((0, 3))


def _size(news: Sequence[tuple[int, FloatArray]]) -> tuple[float, FloatArray]:
    """Return how many pixels differ in a take, one at least, and their mean colour."""
    pixels = np.concatenate([np.zeros((0, 3)), *(colours for _, colours in news)])
    mean = pixels.mean(axis=0) if len(pixels) else np.zeros(3)
    return max(len(pixels) / max(len(news), 1), 1.0), mean


def _pairs(data: mujoco.MjData) -> frozenset[Pair]:
    """Return the geoms that touch."""
    touching = data.contact.geom[data.contact.dist <= 0.0]
    return frozenset((int(a), int(b)) for a, b in touching)


def _lost_parameters(lost: Outages, fitter: _Replays) -> Iterator[TwinParameter]:
    source = f"rows: {len(fitter.starts)} episodes"
    for name, (estimate, *interval) in lost.values(fitter.period_s).items():
        of = all_mechanisms()[STALE].parameter(name)
        low, high = interval
        yield TwinParameter(
            f"{STALE}.{name}", of.unit, of.nominal, estimate, (low, high), True, source
        )


class _Replays:
    """Replays takes in a simulation, from their own starts.

    Attributes:
        done: replays so far, each of all takes.
        total: how many there will be, as far as is known.
        missing: gaps that can't be set in this simulation, each with what lacks.
        choose: takes by which gaps are compared.
        confirm: rows of those by which the best of them is confirmed.
        lost: outages that are replayed as well, or None.
        as_it_was: states of each take that the simulation as it is brings.
        shown: and the first pictures.
    """

    def __init__(
        self, takes: Sequence[Take], env: GymEnvConfig, roles: Path | None,
        advance: Callable[[int], None] = lambda _total: None,
    ) -> None:  # fmt: skip
        self._env, self._roles, self.done, self.total = env, roles, 0, 0
        self._advance, self._until_s = advance, time.process_time() + LONGEST_S
        self.known = list[_Tried]()
        self._inside: Survey | None = None
        self.lost: Outages | None = None
        self.as_it_was, self.shown = list[FloatArray](), list[Pictures]()
        self._touching = list[list[frozenset[Pair]]]()
        self.starts = self._found(takes)
        spread = np.concatenate([s.whole for s in self.starts])
        self._range = np.ptp(spread, axis=0)
        self._off = SAME * np.where(self._range > 1e-6, self._range, np.inf)
        n = len(self.starts)
        self.choose, self.confirm = self.starts[: -(-n // 2)], slice(n // 2, n)
        with contextlib.closing(GymWorld(env.make, WorldSpec(roles=roles))) as world:
            can, self._as_it_is = world.parameters(), world.as_it_is()
            self._inside = world.surveyed()
        unseen = () if any(s.take.cameras for s in self.starts) else PICTURES
        self._keys = [k for k, no in can.items() if not no and k.partition(".")[0] not in unseen]
        self.missing = {key: lacks for key, lacks in can.items() if lacks}

    def _found(self, takes: Sequence[Take]) -> list[_Start]:
        """Return takes that start as a scene of the simulation does."""
        # What failed is to be explained.
        usable = sorted(takes, key=lambda t: t.outcome is not Outcome.FAILURE)
        usable = [t for t in usable if len(t.frames) > 1]
        if not usable:
            raise UnusableInputError("The episodes have no commands and states to replay.")
        with contextlib.closing(self._attempts(WorldSpec())) as attempts:
            width = attempts.action_space.shape
            if (usable[0].frames.action.shape[1],) != width:
                raise UnusableInputError(
                    f"{self._env.called} takes commands of shape {width}, the episodes have "
                    f"{usable[0].frames.action.shape[1]} numbers: name the simulation that they "
                    f"are of. {REAL}"
                )
            self.period_s = attempts.world.period_s
            attempts.draw(any(t.cameras for t in usable))
            scenes, pictures = list[FloatArray](), list[Pictures]()
            for k in range(max(SEARCHED, 2 * len(takes) + 2)):
                seen, _ = attempts.reset(seed=k)
                scenes.append(state_in(seen).astype(np.float64))
                pictures.append(_shown(seen))
        first = np.array(scenes)
        wholes = [_states_of(t, first.shape[1]) for t in usable]
        states = np.concatenate(wholes)
        if states.shape[1] != first.shape[1]:
            raise UnusableInputError(
                f"{self._env.called} shows {first.shape[1]} numbers, the episodes "
                f"{states.shape[1]}: name the simulation that they are of, with its own kwargs. "
                f"{REAL}"
            )
        moves = np.maximum(np.ptp(states, axis=0), 1e-6)
        found, taken = list[_Start](), set[int]()
        for take, whole in zip(usable, wholes, strict=True):
            off = np.minimum(np.abs(first - whole[0]) / moves, 1.0).mean(axis=1)
            if off.min() < START_SHARE:
                alike = np.flatnonzero(off <= off.min() + ALIKE)  # an arm at home, whatever lies by
                shown = {name: _small(next(iter(c()))) for name, c in take.cameras.items()}
                sent, n = take.frames.action, round(MOST_S / self.period_s)
                scene = min(alike, key=lambda k: (_off(pictures[k], shown), k in taken, off[k]))
                taken.add(int(scene))
                found.append(
                    _Start(take, int(scene), off[scene], whole, whole[:n], sent[:n], shown)
                )
        if not found:
            raise UnusableInputError(
                f"None of the episodes starts like one of {len(first)} scenes of "
                f"{self._env.called}, so that nothing can be replayed. Record them with gaploop "
                "evaluate --dataset.root, or give the environment a reset to the station's start. "
                f"{REAL}"
            )
        return sorted(found[:MOST_TAKES], key=lambda s: s.resets)

    @property
    def is_late(self) -> bool:
        """Whether nothing further is looked for."""
        return time.process_time() > self._until_s

    def _begun(self) -> None:
        self.done += 1
        self._advance(max(self.total, self.done))

    def _attempts(self, spec: WorldSpec) -> GymAttempts:
        if self.done % COLLECTED == 0:
            gc.collect()  # robosuite's hold themselves: 55 MB each, which Python doesn't see
        return GymAttempts(GymWorld(self._env.make, spec, self._inside), None, raw=True)

    def options(self) -> list[tuple[str, int]]:
        """Return gaps with seeds, one for each direction that they have."""
        found = list[tuple[str, int]]()
        for key in self._keys:
            mechanism, seen = all_mechanisms()[key], set[tuple[float, ...]]()
            for seed in range(2 * DIRECTIONS):
                drawn = mechanism.complete(mechanism.draw(np.random.default_rng(seed), SCREENED))
                way = tuple(np.sign(drawn[p.name] - p.nominal) for p in mechanism.parameters)
                if way not in seen and len(seen) < DIRECTIONS:
                    seen.add(way)
                    found.append((key, seed))
        return found

    def like(self, gap: _Tried) -> list[_Tried]:
        """Return what was tried of a gap, in its direction, at any severity."""
        return [t for t in self.known if (t.key, t.seed) == (gap.key, gap.seed)]

    def put_in(self, key: str, seed: int, severity: float, held: Values) -> _Tried:
        """Replay with a gap beside those held."""
        mechanism = all_mechanisms()[key]
        drawn = mechanism.draw(np.random.default_rng(seed), severity)
        values = mechanism.relative(drawn, self._as_it_is)
        spec = WorldSpec(roles=self._roles, parameters={**held, key: values})
        tried = _Tried(key, values, severity, seed, self.errors(spec, self.choose))
        self.known.append(tried)
        return tried

    def outages(self) -> Outages | None:
        """Return when the bus was down, as far as rows show it."""
        states, sent = [s.states for s in self.starts], [s.sent for s in self.starts]
        replays = [self._replay(s) for s in self.starts]
        if found := find(states, sent, replays, self.as_it_was, self._off):
            whole = [*zip(map(self._whole, self.starts), replays, strict=True)]
            down = [found.further(k, *w, r, self._off) for k, (w, r) in enumerate(whole)]
            untold = () if found.columns.any() else map(self._untold, self.starts, down)
            found = replace(found, down=tuple(down), untold=tuple(untold))
        return found

    def zeros(self) -> list[TwinParameter]:
        """Return by how much joints read too much where episodes begin, if always as much."""
        known, found = self._inside, dict[str, TwinParameter]()
        if known is None or ZEROS not in self._keys:
            return []
        with contextlib.closing(self._attempts(WorldSpec(roles=self._roles))) as attempts:
            columns = columns_in(attempts.reset(seed=0)[0])
        pairs = zip(self.starts, self.as_it_was, strict=True)
        off = np.array([start.whole[0] - told[0] for start, told in pairs])
        for reading in known.readings:
            key = known.zero_keys[reading.joint] if reading.path in columns else None
            zero_rad = off[:, columns.get(reading.path, 0) + reading.index] / reading.per_rad
            middle, apart = float(np.median(zero_rad)), float(np.ptp(zero_rad))
            if key and abs(middle) > SAME and apart < SCATTER * abs(middle):
                name, around = f"{ZEROS}.{key}", max(apart, SAME)
                interval, source = (middle - around, middle + around), f"rows: {len(off)} episodes"
                found[key] = TwinParameter(name, "rad", 0.0, middle, interval, True, source)
        return list(found.values())

    def _untold(self, start: _Start, down: Mask) -> Mask:
        """Return the rows that would be the same whether or not their command arrived.

        Such as those in which a script pulls as hard as it can. A second simulation is set to
        where the first one stands before each row, and gets the other command.
        """
        self._begun()
        sent = start.take.frames.action[: len(down)]
        arrived, ways = last(down, sent), list[list[FloatArray]]()
        spec = WorldSpec(roles=self._roles)
        with (
            contextlib.closing(self._attempts(spec)) as one,
            contextlib.closing(self._attempts(spec)) as other,
        ):
            for k in range(start.resets + 1):
                one.reset(seed=k), other.reset(seed=k)
            (model, here), (there_model, there) = (find_model(w.world.env) for w in (one, other))
            if model is None or here is None or there_model is None or there is None:
                return np.zeros(len(down), dtype=bool)
            state = np.zeros(mujoco.mj_stateSize(model, STATE))
            held, held_there = (list(inside(w.world.env)) for w in (one, other))
            for k in range(len(down)):
                instead = sent[k] if down[k] else arrived[max(k - 1, 0)]
                differs = not np.array_equal(instead, arrived[k])
                if differs:
                    mujoco.mj_getState(model, here, state, STATE)
                    mujoco.mj_setState(there_model, there, state, STATE)
                    set_alike(held_there, held)
                    other.step(instead)
                one.step(arrived[k])
                places = [d.qpos.copy() for d in (here, there if differs else here)]
                for place, data in zip(places, (here, there if differs else here), strict=True):
                    mujoco.mj_integratePos(model, place, data.qvel, LAG * self.period_s)
                ways.append(places)
        apart = np.array(ways)
        spread = np.ptp(apart[:, 0], axis=0)
        off = SAME * np.where(spread > 1e-6, spread, np.inf)
        return np.asarray((np.abs(apart[:, 0] - apart[:, 1]) <= off).all(axis=1))

    def _whole(self, start: _Start) -> tuple[FloatArray, FloatArray]:
        n = round(WHOLE_S / self.period_s)
        return start.whole[:n], start.take.frames.action[:n]

    def followed(self, held: Values) -> dict[str, bool]:
        """Return, by uid, which takes the simulation with what was found follows to their end."""
        told = list[FloatArray]()
        spec = WorldSpec(roles=self._roles, parameters=held)
        self.errors(spec, states=told, whole=True)
        shares = [self._shares(k, told[k], s.whole) for k, s in enumerate(self.starts)]
        return {
            start.take.info.uid: len(share) == len(start.whole) and bool(np.all(share < CLOSELY))
            for start, share in zip(self.starts, shares, strict=True)
        }

    def _replay(self, start: _Start) -> Replay:
        def replay(sent: FloatArray) -> FloatArray:
            self._begun()
            with contextlib.closing(self._attempts(WorldSpec(roles=self._roles))) as attempts:
                for k in range(start.resets + 1):
                    seen, _ = attempts.reset(seed=k)
                return self._states(attempts, seen, sent, start.whole, len(sent))

        return replay

    def obstacles(self) -> TwinParameter | None:
        """Return about how many things stand in the way that the simulation hasn't got.

        Their places can't be read from states, and aren't needed. Takes that the simulation
        follows to the bit until they leave it where nothing in it touches anything anew have
        touched such a thing; outages leave it likewise, and are followed on.
        """
        self._touching = list[list[frozenset[Pair]]]()
        self.errors(WorldSpec(roles=self._roles), keep=True)
        rows_s, left, touched = round(ANEW_S / self.period_s), 0, 0
        for start, told, pairs in zip(self.starts, self.as_it_was, self._touching, strict=True):
            row = same_until(told, start.states, self._off)
            if row == len(told):
                continue
            left += 1
            before, near = pairs[max(row - 1 - LAG, 0)], pairs[max(row - LAG, 0) : row + rows_s]
            if row > LAG and not frozenset().union(*near) - before:
                mask, _ = followed(start.states, start.sent, self._replay(start), self._off)
                touched += not mask.any()
        if touched < LEAST_TOUCHED or touched < TOUCHED * left or CLUTTER not in self._keys:
            return None
        mechanism, shares = all_mechanisms()[CLUTTER], dict[float, float]()
        for severity in REFINED[1:]:
            drawn = mechanism.draw(np.random.default_rng(0), severity)
            values = {"count": drawn["count"]}
            states = list[FloatArray]()
            self.errors(WorldSpec(roles=self._roles, parameters={CLUTTER: values}), states=states)
            both = zip(states, self.as_it_was, strict=True)
            shares[drawn["count"]] = float(np.mean([
                same_until(a, b[: len(a)], self._off) < min(len(a), len(b)) for a, b in both
            ]))  # fmt: skip
        share = rate(touched, len(self.starts))
        count = min(shares, key=lambda c: (abs(shares[c] - share.value), c))
        as_often = [c for c, found in shares.items() if share.low <= found <= share.high]
        source = f"rows: {touched} of {len(self.starts)} episodes"
        interval = (min(as_often, default=1.0), max(as_often, default=count))
        return TwinParameter(f"{CLUTTER}.count", "1", 0.0, float(count), interval, True, source)

    def things(self) -> TwinParameter | None:
        """Return about how many things first pictures show that the simulation hasn't got.

        What an episode touches alone doesn't tell where an object is held against it. They are put
        in by each number; the kind and number are nearest that change as much, in such colours.
        """
        seen = [_news(s.shown, p) for s, p in zip(self.starts, self.shown, strict=True)]
        told = [news for news in seen if news is not None and news[0] >= APART]
        if len(told) < max(LEAST_TOUCHED, TOUCHED * len(seen)):
            return None
        share, colour = _size(told)
        tried = list[tuple[float, str, float, bool]]()
        for key in (key for key in THINGS if key in self._keys):
            for severity in REFINED[1:]:
                drawn = all_mechanisms()[key].draw(np.random.default_rng(0), severity)
                spec = WorldSpec(roles=self._roles, parameters={key: {"count": drawn["count"]}})
                there = [
                    news for shown, p in zip(self._begin(spec), self.shown, strict=True)
                    if (news := _news(shown, p)) is not None
                ]  # fmt: skip
                as_large, alike = _size(there)
                off = abs(math.log(as_large / share))
                unlike = off + float(np.abs(alike - colour).sum())
                tried.append((unlike, key, drawn["count"], off < math.log(2.0)))
        if not tried:
            return None
        _, key, count, _ = min(tried)
        # How large they are isn't known: half as many pixels, or twice, are of this number, too.
        counts = [count, *(n for _, name, n, may_be in tried if name == key and may_be)]
        source = f"pictures: {len(told)} of {len(seen)} episodes"
        interval = (min(counts), max(counts))
        return TwinParameter(f"{key}.count", "1", 0.0, count, interval, True, source)

    def _begin(self, spec: WorldSpec) -> list[Pictures]:
        """Return the first pictures of each take's scene."""
        self._begun()
        found, reset = list[Pictures](), -1
        with contextlib.closing(self._attempts(spec)) as attempts:
            for start in self.starts:
                while reset < start.resets:
                    reset += 1
                    attempts.draw(reset == start.resets)
                    seen, _ = attempts.reset(seed=reset)
                found.append(_shown(attempts.named(seen)))
        return found

    def errors(
        self, spec: WorldSpec, starts: Sequence[_Start] = (), *, keep: bool = False,
        states: list[FloatArray] | None = None, whole: bool = False,
    ) -> FloatArray:  # fmt: skip
        """Return how far states and first pictures are off in each take, shape (n, 2).

        Args:
            keep: what others are compared with.
            states: gets those of each take; with them nothing is given up.
            whole: to the takes' ends.
        """
        self._begun()
        starts = starts or self.starts
        worst = np.ones((len(starts), 2))
        try:
            attempts = self._attempts(spec)
        except UnavailableError:
            return worst
        with contextlib.ExitStack() as stack:
            stack.callback(attempts.close)
            reset, rows, kept = -1, list[FloatArray](), [] if states is None else states
            pictures = list[Pictures]()
            for number, start in enumerate(starts):
                if start.resets == reset:  # of another episode of this scene: it was moved since
                    reset, attempts = -1, self._attempts(spec)
                    stack.callback(attempts.close)
                while reset < start.resets:
                    reset += 1
                    attempts.draw(reset == start.resets and bool(start.take.cameras))
                    seen, _ = attempts.reset(seed=reset)
                attempts.draw(False)
                shown = _shown(attempts.named(seen)) if start.shown else {}
                pictures.append(shown)
                sent, last_row = self._whole(start)[1] if whole else start.sent, 0
                if self.lost:
                    down = self.lost.down[number][: len(sent)]
                    sent = last(down, sent[: len(down)])
                if not keep and states is None:
                    as_it_is = self.as_it_was[number]
                    last_row = same_until(as_it_is, start.states, self._off) - SOONER
                told = self._states(attempts, seen, sent, start.states, last_row, keep=keep)
                kept.append(told)
                if len(told) <= last_row:  # given up
                    told = self.as_it_was[number]
                off = _off(shown, start.shown)
                rows.append(np.array([self._states_off(number, told, start.whole), off]))
            if keep:
                self.as_it_was, self.shown = kept, pictures
            return np.maximum(np.stack(rows), FLOOR)

    def _states(
        self, attempts: GymAttempts, seen: Any, sent: FloatArray, wanted: FloatArray, until: int,
        *, keep: bool = False,
    ) -> FloatArray:  # fmt: skip
        """Return the states that commands bring, each before its command, shape (n, n_state).

        It is given up where it leaves those that are wanted before the row `until`.
        """
        rows, touching = list[FloatArray](), list[frozenset[Pair]]()
        held = find_model(attempts.world.env)[1] if keep else None
        for k, command in enumerate(sent):
            rows.append(state_in(seen).astype(np.float64))
            touching.append(_pairs(held) if held is not None else frozenset())
            if k < until and np.any(np.abs(rows[k] - wanted[k]) > self._off) and not self.lost:
                break
            seen, *_, late, _ = attempts.step(command)
            if late:
                break
        if keep:
            self._touching.append(touching)
        return np.array(rows)

    def _shares(self, number: int, states: FloatArray, wanted: FloatArray) -> FloatArray:
        """Return how far each row of states is off, share of their range, shape (n,)."""
        if self.lost:
            states = self.lost.read(number, states)
        moved = self._range > 1e-6
        off = np.abs(states - wanted[: len(states)])[:, moved]
        return np.asarray(np.minimum(off / self._range[moved], 1.0).mean(axis=1))

    def _states_off(self, number: int, states: FloatArray, wanted: FloatArray) -> float:
        # By ratio: after a contact any difference grows to a large one, and says little.
        share = self._shares(number, states, wanted)
        return math.exp(np.log(np.maximum(share, FLOOR[0])).mean())

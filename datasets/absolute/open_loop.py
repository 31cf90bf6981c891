"""Does a policy command what a dataset's rows command, and if not: under which mistake would it?

A policy is asked along sampled rows, and its plans are set against the commands that were recorded
there. Then the same with one thing about the question or the answer changed: two joints exchanged,
a camera's colours the other way round, actions taken for changes … Where the error falls to what
demonstrations differ by among themselves, that is what stands between this data and the policy.
Nothing here loads a policy: who does hands in how to ask (`finetune/lerobot_open_loop.py`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate
from gaploop.datasets.absolute.checkpoint import Checkpoint, CheckpointTests
from gaploop.datasets.absolute.findings import scaled
from gaploop.datasets.absolute.mistakes import (
    APART,
    PREFERRED,
    Hypothesis,
    Mistakes,
    Pictures,
    Rows,
    RowSample,
)
from gaploop.datasets.absolute.recording import evenly
from gaploop.datasets.columns import ACTION, ENVIRONMENT, FORCE, IMAGES, STATE
from gaploop.datasets.lerobot_read import pictures_at
from gaploop.datasets.v3_files import FrameTable, load_frames

EPISODES: Final = 12
ROWS: Final = 8
"""Rows of each of these that the policy is asked about."""
SCREENED: Final = 3
"""Rows of each episode by which alternatives are screened before all rows decide."""
AHEAD_S: Final = 1.0
"""How much of a plan is compared."""
FALLS: Final = 0.7
"""Of the error beside that of standing still; a rate that leaves more explains little."""
TOWARDS: Final = 0.65
"""Of what an alternative changes about the plans, this share must lead to the commands. Undoing a
mistake leads there altogether; of a policy that fits, any change leads away."""
AGREE: Final = 0.75
"""Share of episodes in which the error must fall."""
LEFT: Final = {"wrong_statistics": 0.6}
"""Of the error, 0.93 of other kinds; an alternative that leaves more isn't worth a sentence. Other
statistics move readings to where a policy learned, which helps on any other task's data, too."""
CHANGES: Final = 0.05
"""Of the joints' spread: an alternative that changes less can't be told."""
ALIKE: Final = 1.15
"""Alternatives whose errors differ by less aren't told apart."""
BUDGET_S: Final = 60.0
"""All asking takes about that long; where a policy is too slow for it, fewer alternatives."""
IGNORED: Final = 0.005
"""Of the joints' spread: commands that change by less where a camera shows another episode."""
USED: Final = 0.05
LARGEST_BYTES: Final = 3e8
"""Of decoded pictures; fewer rows where theirs are larger."""
FEWEST: Final = 8
"""Episodes that come by one state before two ways are told from one."""
NEAR: Final = 0.8
"""Spreads, over all joints, within which readings are one state."""
FORK: Final = 0.3
"""Of the joints' spread: ways that are apart by less are one."""
LEARNS: Final = 0.05
"""Four times the demonstrations must bring the nearest so much closer."""
AXES: Final = 3
"""Main directions in which ways from one state differ; two clusters are looked for along each."""
DRAWS: Final = 10
BANK: Final = 4000
"""Rows of all episodes among which alike ones are looked for."""

type AskPolicy = Callable[[FloatArray, Pictures, FloatArray | None, Sequence[str]], FloatArray]
"""Asks a policy about several rows at once: state, pictures, scene and tasks as in `RowSample`
(pictures as uint8, or what normalises them already). It returns plans from the newest row on, shape
(b, chunk, n_action), in the dataset's units."""


@dataclass(frozen=True)
class Tried:
    """An alternative's plans beside the commands, and beside the usual plans, on each row.

    Attributes:
        error: as a share of the joints' spread, shape (b,).
        change: of the plans; `towards`: its part that leads to the commands, both squared.
    """

    alternative: Hypothesis
    error: FloatArray
    change: FloatArray
    towards: FloatArray

    def explains(self, usual: FloatArray, episode: NDArray[np.int64]) -> bool:
        """Say whether it undoes a mistake: error falls in nearly all episodes, and goes away."""
        led = by_episode(self.towards, episode) / np.maximum(by_episode(self.change, episode), 1e-9)
        falls = by_episode(self.error - usual, episode) < 0
        return bool(
            np.sqrt(self.change.mean()) > CHANGES
            and self.towards.sum() > TOWARDS * self.change.sum()
            and np.mean(led > 0) >= AGREE
            and np.mean(falls) >= AGREE
            and self.error.mean() < LEFT.get(self.alternative.kind, 0.93) * usual.mean()
            and interval(by_episode(usual - self.error, episode)).low > 0
        )


class OpenLoop:
    """A policy's plans beside a dataset's commands.

    Args:
        tests: the checkpoint's own words against the dataset, and its report.
        table: the dataset's rows: action, state, and the environment state if it has one.
    """

    def __init__(self, tests: CheckpointTests, table: FrameTable, ask: AskPolicy) -> None:
        self.tests, self.checkpoint, self.table, self.ask = tests, tests.checkpoint, table, ask
        self.mistakes = Mistakes(tests, table)
        self.action = np.asarray(table.columns[ACTION], np.float64)
        self.state, self.fps = self.mistakes.state, table.info.fps
        spread = self.action.std(axis=0)
        self.moving = np.flatnonzero(spread > 1e-6 * max(float(spread.max()), 1e-9))
        self.spread = np.maximum(spread, 1e-9)
        self._began, self._cost_s = time.monotonic(), 0.0

    # What is asked

    def sample(self, without: Sequence[int] = (), *, pictures: bool = True) -> RowSample:
        """Choose rows, evenly over episodes and their length, and decode what was seen there.

        Args:
            without: episodes to leave out.
        """
        episodes = [e for e in self.table.episodes if e.length > 4 and e.index not in without]
        chosen = [episodes[k] for k in evenly(len(episodes), EPISODES)]
        back = np.arange(1 - self.checkpoint.observations, 1)
        reach = np.arange(np.ceil(3 * max(self.checkpoint.chunk, round(AHEAD_S * self.fps))))
        keys, info = self.mistakes.cameras if pictures else [], self.table.info
        pixels = sum(float(np.prod(info.features[k].get("shape") or [0])) for k in keys)
        fitting = int(LARGEST_BYTES / max(pixels * len(back) * len(chosen), 1.0))
        scene = self.table.columns.get(ENVIRONMENT)
        parts: dict[str, list[NDArray[np.generic]]] = {
            name: [] for name in ("episode", "phase", "state", "ahead", "before", "scene", *keys)
        }
        tasks = list[str]()
        for one in chosen:
            rows = self.table.rows_of(one.index)
            action, last = self.action[rows], one.length - 1
            at = np.array(evenly(last, max(SCREENED, min(ROWS, fitting))))
            seen = np.maximum(at[:, None] + back, 0)
            parts["episode"].append(np.full(len(at), one.index))
            parts["phase"].append(self._phases(action)[at])
            parts["state"].append(self.state[rows][seen])
            parts["ahead"].append(action[np.minimum(at[:, None] + reach.astype(int), last)])
            parts["before"].append(action[np.maximum(at - 1, 0)])
            if scene is not None:
                parts["scene"].append(np.asarray(scene[rows], np.float64)[seen])
            for key in keys:
                shown = pictures_at(info, one, key, seen.ravel().tolist())
                parts[key].append(np.stack([[shown[r] for r in some] for some in seen.tolist()]))
            tasks += [str((one.row.get("tasks") or [""])[0])] * len(at)
        made = {name: np.concatenate(some) for name, some in parts.items() if some}
        return RowSample(
            made["episode"], made["phase"], made["state"], {k: made[k] for k in keys},
            made.get("scene"), tuple(tasks), made["ahead"], made["before"],
        )  # fmt: skip

    def _phases(self, command: FloatArray) -> NDArray[np.str_]:
        """Name what each row does, by speed and the gripper."""
        rows, window = np.arange(len(command)), max(1, round(0.1 * self.fps))
        travel = np.maximum(np.ptp(command, axis=0), 1e-6)
        speed = (np.abs(np.gradient(command, axis=0)) / travel).max(axis=1) * self.fps
        named = np.where(speed < 0.05, "rest", "approach")
        for k in np.flatnonzero(~self.mistakes.is_arm)[:1]:
            ahead, behind = np.minimum(rows + window, rows[-1]), np.maximum(rows - window, 0)
            grip = (command[ahead, k] - command[behind, k]) / travel[k]
            last = np.maximum.accumulate(np.where(np.abs(grip) > 0.15, rows, 0))
            named[(grip[last] < -0.15) & (named == "approach")] = "carrying"
            named[grip < -0.15], named[grip > 0.15] = "closing", "opening"
        return named

    def plans(
        self, sample: RowSample, alternative: Hypothesis | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return plans, and commands at their steps, in spreads, shape (b, n, n_moving)."""
        began, pace = time.monotonic(), 1.0
        changed = sample if alternative is None else alternative.ask(sample)
        plan = self.ask(changed.state, changed.pictures, changed.scene, changed.tasks)
        if alternative is not None:
            plan, pace = alternative.answer(plan, sample), alternative.pace
        steps = max(1, min(plan.shape[1], round(AHEAD_S * (self.checkpoint.fps or self.fps))))
        self._cost_s = (time.monotonic() - began) / len(sample.episode)
        return self._in_spreads(plan[:, :steps]), self._commands(sample, pace, steps)

    def _commands(self, sample: RowSample, pace: float, steps: int) -> FloatArray:
        """Return recorded commands at a policy's steps, `pace` rows apart, in spreads."""
        ahead = sample.ahead
        at = np.minimum(np.arange(steps) * pace, ahead.shape[1] - 1)
        low = at.astype(int)
        high, share = np.minimum(low + 1, ahead.shape[1] - 1), (at - low)[:, None]
        return self._in_spreads(ahead[:, low] * (1 - share) + ahead[:, high] * share)

    def tried(self, sample: RowSample, alternative: Hypothesis, usual: FloatArray) -> Tried:
        """Try an alternative; `usual` are the plans without it."""
        plan, commands = self.plans(sample, alternative)
        before, change = commands - usual, plan - usual
        if alternative.pace != 1.0:  # the same plans, beside other commands
            before = self._commands(sample, 1.0, plan.shape[1]) - usual
            change = before - (commands - plan)
        return Tried(
            alternative, _rms(commands - plan), (change**2).mean(axis=(1, 2)),
            (change * before).mean(axis=(1, 2)),
        )  # fmt: skip

    def _in_spreads(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.clip(values / self.spread, -1e3, 1e3)[..., self.moving])

    def _steps(self) -> int:
        return int(max(1, min(self.checkpoint.chunk, round(AHEAD_S * self.fps))))

    def standing_still(self, sample: RowSample, pace: float = 1.0) -> FloatArray:
        """Return the error of repeating the command before, on each row."""
        commands = self._commands(sample, pace, self._steps())
        return _rms(commands - self._in_spreads(sample.before)[:, None])

    def alike(self, sample: RowSample) -> list[tuple[Rows, FloatArray]]:
        """Return, for each row, each other episode's most alike row by readings, and its distance.

        Distances are in spreads of the joints; rows of other tasks aren't alike.
        """
        scale = np.maximum(self.state.std(axis=0), 1e-9)
        bank = np.arange(0, len(self.state), max(1, len(self.state) // BANK))
        owner = self.table.episode_index[bank]
        first = np.flatnonzero(np.diff(owner, prepend=owner[:1] - 1))
        tasks = {e.index: str((e.row.get("tasks") or [""])[0]) for e in self.table.episodes}
        found = list[tuple[Rows, FloatArray]]()
        for one, state, task in zip(sample.episode, sample.state[:, -1], sample.tasks, strict=True):
            off = np.sqrt((((self.state[bank] - state) / scale) ** 2).sum(axis=1))
            nearest = [a + int(off[a:b].argmin()) for a, b in zip(
                first, [*first[1:], len(bank)], strict=True)
                if owner[a] != one and tasks.get(int(owner[a])) == task]  # fmt: skip
            found.append((bank[nearest], off[nearest]))
        return found

    def followed(self, rows: Rows) -> FloatArray:
        """Return what was commanded from some rows on, in spreads, shape (b, n, n_moving)."""
        last = [self.table.rows_of(int(self.table.episode_index[r])).stop - 1 for r in rows]
        ahead = np.minimum(rows[:, None] + np.arange(self._steps()), np.array(last)[:, None])
        return self._in_spreads(self.action[ahead])

    # What is said

    def run(self, *, demonstrations: bool) -> None:
        """Ask, try alternatives, and add what is found to the report.

        Args:
            demonstrations: the rows show how it should be done; else the policy itself drove.
        """
        sample = self.sample()
        self._began = time.monotonic()
        plans, commands = self.plans(sample)
        usual = _rms(plans - commands)
        alike, still = self.alike(sample), float(self.standing_still(sample).mean())
        nearest = [rows[[int(off.argmin())]] for rows, off in alike if len(rows)]
        has = [n for n, (rows, _) in enumerate(alike) if len(rows)]
        own = self._commands(sample, 1.0, self._steps())[has]
        spread = float(_rms(self.followed(np.concatenate(nearest)) - own).mean()) if has else still
        report = self.tests.report
        found, left_out = self.explained(sample, plans, usual, max(spread, still))
        rows = f"{len(usual)} rows of {len(set(sample.episode.tolist()))} episodes"
        if left_out:
            report.untested[f"{left_out} of what may be wrong with the policy"] = (
                "asking it takes too long here"
            )
        if found:
            self._mistake(found, usual, sample)
            return
        size = interval(by_episode(usual, sample.episode))
        if {f.kind for f in report.findings} & set(PREFERRED):
            return  # one of these it may be; another reason isn't looked for
        if size.low > max(1.5 * spread, still) and demonstrations:
            means = {p: float(usual[sample.phase == p].mean()) for p in np.unique(sample.phase)}
            is_its_own = self.checkpoint.is_of(self.table.info.root)
            apart = "too few steps of training, "
            apart += "a wrong learning rate" if is_its_own else "data of another station or task"
            self.tests.say(
                "undertrained", "", f"Asked about {rows}, the policy misses their commands by more "
                f"than an arm that stands still ({still:.0%}), most in "
                f"{max(means, key=lambda p: means[p])}; of the joints' spread by",
                "Train it longer, and look at its loss: gaploop finetune "
                f"{self.tests.root} --help", 90.0, apart=apart, size=scaled(size, 100), unit="%",
            )  # fmt: skip
            return
        if size.value < max(spread, still):
            report.good["reproduction"] = (
                f"asked about {rows}, the policy commands what they do to {usual.mean():.0%} of "
                f"the joints' spread (demonstrations at alike states: {spread:.0%}; standing "
                f"still: {still:.0%})"
            )
        else:
            report.untested["what stands between policy and data"] = (
                f"it misses by {usual.mean():.0%} of the joints' spread, and no single mistake "
                "explains that"
            )
        self._overfitted(sample, usual)
        if demonstrations:
            self._two_ways(sample, plans, alike)
        self._cameras(sample)

    def explained(
        self, sample: RowSample, plans: FloatArray, usual: FloatArray, level: float
    ) -> tuple[list[Tried], int]:
        """Return what explains the error, best first, and how many alternatives weren't tried."""
        per = len(usual) // max(1, len(set(sample.episode.tolist())))
        few = np.flatnonzero(np.isin(np.arange(len(usual)) % per, evenly(per, SCREENED)))
        part, tried, left_out = sample.take(few), list[Tried](), 0
        every = self.mistakes.all()
        for n, alternative in enumerate(every):
            if time.monotonic() - self._began + self._cost_s * len(few) > BUDGET_S:
                left_out = len(every) - n
                break
            tried.append(self.tried(part, alternative, plans[few]))
        tried.sort(key=lambda t: float(t.error.mean()))
        good = [t for t in tried if t.towards.sum() > 0.5 * TOWARDS * t.change.sum()][:8]
        whole = [self.tried(sample, t.alternative, plans) for t in good]
        passed = [
            t for t in whole
            if t.error.mean() < level and t.explains(usual, sample.episode)
            and self._is_rate(t, sample, usual)
        ]  # fmt: skip
        passed.sort(key=lambda t: float(t.error.mean()))
        return passed, left_out

    def _is_rate(self, tried: Tried, sample: RowSample, usual: FloatArray) -> bool:
        """Say whether another rate explains more than that commands differ less in less time."""
        pace = tried.alternative.pace
        if pace == 1.0 or self.checkpoint.fps:
            return True
        after = tried.error.mean() / self.standing_still(sample, pace).mean()
        return bool(after < FALLS * usual.mean() / self.standing_still(sample).mean())

    def _mistake(self, found: Sequence[Tried], usual: FloatArray, sample: RowSample) -> None:
        close = [t for t in found if t.error.mean() < ALIKE * found[0].error.mean() + 0.01]
        best = min(close, key=lambda t: PREFERRED.index(t.alternative.kind))
        of = best.alternative
        others = [APART[of.kind]] if of.kind in APART else []
        others += [t.alternative.words for t in close if t.alternative.kind != of.kind]
        findings = self.tests.report.findings
        findings[:] = [f for f in findings if f.kind != of.kind]  # that one has no proof
        self.tests.say(
            of.kind, of.about, f"The policy matches these {len(usual)} rows (to "
            f"{best.error.mean():.0%} of the joints' spread) only with {of.words}; as they are, it "
            "is off by", of.fix, 130.0, apart="; ".join(others[:2]), unit="%",
            size=scaled(interval(by_episode(usual, sample.episode)), 100),
        )  # fmt: skip

    def _overfitted(self, sample: RowSample, usual: FloatArray) -> None:
        known = self.checkpoint.episodes
        if known is None or not self.checkpoint.is_of(self.table.info.root):
            return
        learned = np.isin(sample.episode, known)
        if not 0.2 < learned.mean() < 0.9:
            return
        a, b = (interval(by_episode(usual[k], sample.episode[k])) for k in (learned, ~learned))
        if b.low <= 2 * a.high:
            return
        others = self.sample(without=known, pictures=False)
        few, all_ = (self._nearest_of(others, known, share) for share in (0.25, 1.0))
        falls = interval(by_episode(few - all_, others.episode) / float(few.mean()))
        told = all_.mean() < self.standing_still(others).mean()  # by readings, where to go
        if falls.low > LEARNS and len(known) >= FEWEST and told:
            self.tests.say(
                "too_few", "", f"The policy is off by {a.value:.0%} of the joints' spread where it "
                f"learned, {b.value:.0%} elsewhere; from a quarter of the demonstrations to all, "
                "the nearest came closer by", "Record more like these, "
                "between those that there are", 72.0, apart="training that was too long",
                size=scaled(falls, 100), unit="%",
            )  # fmt: skip
            return
        self.tests.say(
            "overfitted", "", "On episodes that it learned from the policy is off by "
            f"{a.value:.0%} of the joints' spread, on the others by",
            "Train shorter, or on more episodes; keep the weights that are best on held-out "
            "episodes: gaploop finetune --held_out=0.2", 70.0,
            apart="too few episodes, or such that differ", size=scaled(b, 100), unit="%",
        )  # fmt: skip

    def _nearest_of(self, sample: RowSample, known: Sequence[int], share: float) -> FloatArray:
        """Return how far commands are from those at the most alike row of a share of `known`.

        The mean over draws of so many episodes, shape (b,): one point of a learning curve.
        """
        rng, own = np.random.default_rng(0), self._commands(sample, 1.0, self._steps())
        alike, errors = self.alike(sample), []
        for _ in range(DRAWS if share < 1.0 else 1):
            some = rng.choice(known, max(1, round(share * len(known))), replace=False)
            nearest = []
            for rows, off in alike:
                fits = np.isin(self.table.episode_index[rows], some)
                nearest.append(int(rows[np.where(fits, off, np.inf).argmin()]))
            errors.append(_rms(self.followed(np.array(nearest)) - own))
        return np.asarray(np.mean(errors, axis=0))

    def _two_ways(
        self, sample: RowSample, plans: FloatArray, alike: Sequence[tuple[Rows, FloatArray]]
    ) -> None:
        """Tell where demonstrations go two ways from one state and the policy goes between.

        That both ways are there isn't enough: pictures may tell which is meant. A policy that
        can't tell commands their mean, which is neither.
        """
        between, forks, steps = dict[int, float](), set[int](), self._steps()
        if plans.shape[1] != steps or steps < 2:
            return
        commands = self._commands(sample, 1.0, steps)
        least = max(FORK, 2 * float(np.median(_rms(plans - commands))))
        for n, (rows, off) in enumerate(alike):
            near = rows[off < NEAR]
            if len(near) < FEWEST:
                continue
            ways = (self.followed(near) - self._in_spreads(self.action[near])[:, None])[:, 1:]
            flat = ways.reshape(len(ways), -1)
            middle = flat.mean(axis=0)
            axes = np.linalg.svd(flat - middle, full_matrices=False)[2][:AXES]
            clusters = [two_clusters((flat - middle) @ axis) for axis in axes]
            wide = [c[1] - c[0] > least * flat.shape[1] ** 0.5 for c in clusters]
            k = max(range(len(axes)), key=lambda k: wide[k] * clusters[k][2])
            (low, high, gap), axis = clusters[k], axes[k]
            if gap < fork_gap(len(near)) or not wide[k]:
                continue
            start = self._in_spreads(sample.ahead[n, 0])
            own, planned = (
                (float(((ahead[1:] - start).ravel() - middle) @ axis) - low) / (high - low)
                for ahead in (commands[n], plans[n])
            )
            if 0.25 < own < 0.75:
                continue
            forks.add(int(sample.episode[n]))
            if 0.25 < planned < 0.75:
                between[int(sample.episode[n])] = 100 * (high - low) / len(axis) ** 0.5
        if len(between) >= 3 and len(between) > 0.4 * len(forks):
            self.tests.report.add(
                "two_ways", "", "Where demonstrations go two ways from one state the policy "
                "commands what lies between; of the joints' spread they are apart by",
                between, len(forks), "Demonstrate one way, or say which in the task or by what a "
                "camera shows", 65.0, unit="%", apart="too few steps of training",
            )  # fmt: skip

    def _cameras(self, sample: RowSample) -> None:
        """Show each camera another episode's pictures, and see how much the plans change."""
        keys, total = self.mistakes.cameras, len(set(sample.episode.tolist()))
        if not keys or total < 3:
            return
        plan, _ = self.plans(sample)
        changes = {}
        for key in keys:
            if time.monotonic() - self._began > 1.5 * BUDGET_S:
                return
            other = np.roll(sample.pictures[key], len(sample.episode) // total, axis=0)
            moved = _rms(self.plans(sample.showing({key: other}))[0] - plan)
            changes[key.removeprefix(IMAGES)] = interval(by_episode(moved, sample.episode))
        is_used = len(keys) == 1 or max(c.value for c in changes.values()) > USED
        for name, size in changes.items():
            if size.high < IGNORED and is_used:
                self.tests.say(
                    "ignored_camera", name, f"The policy hardly looks at {name}: with another "
                    "episode's pictures there, its commands change, of the joints' spread, by",
                    "Train it on episodes in which only that camera tells where to go, or leave "
                    "the camera out", 20.0, apart="a camera that shows the same in all episodes",
                    size=scaled(size, 100), unit="%",
                )  # fmt: skip
        seen = ", ".join(f"{name} {size.value:.0%}" for name, size in changes.items())
        self.tests.report.good["cameras it uses"] = (
            f"another episode's pictures change its commands: {seen} of the joints' spread"
        )


def two_clusters(values: FloatArray) -> tuple[float, float, float]:
    """Return the means of the best two clusters of numbers, and how clearly they are two.

    That is the means' distance over the pooled spread within them. Each has a third.
    """
    x, best = np.sort(values), (0.0, 0.0, 0.0)
    least = max(3, len(x) // 3)
    for k in range(least, len(x) - least + 1):
        a, b = x[:k], x[k:]
        within = len(a) * a.var() + len(b) * b.var()
        spread = max(float(np.sqrt(within / (len(x) - 2))), 1e-9)
        if (gap := float(b.mean() - a.mean()) / spread) > best[2]:
            best = float(a.mean()), float(b.mean()), gap
    return best


@cache
def fork_gap(n: int) -> float:
    """Return what `two_clusters` finds in one draw of a hundred of n even numbers, at most."""
    draws = np.random.default_rng(n).uniform(size=(400, n))
    return float(np.quantile([two_clusters(draw)[2] for draw in draws], 1 - 0.01 / AXES))


def _rms(off: FloatArray) -> FloatArray:
    """Return the rms over steps and joints, of at most 10 spreads each, shape (b,)."""
    return np.asarray(np.sqrt((np.minimum(np.abs(off), 10.0) ** 2).mean(axis=(1, 2))))


def statistics(values: FloatArray) -> dict[str, FloatArray]:
    """Return what LeRobot normalises by, of rows of numbers, shape (n, width)."""
    q01, q10, q90, q99 = np.quantile(values, [0.01, 0.1, 0.9, 0.99], axis=0)
    return {
        "mean": values.mean(axis=0), "std": values.std(axis=0), "min": values.min(axis=0),
        "max": values.max(axis=0), "q01": q01, "q10": q10, "q90": q90, "q99": q99,
    }  # fmt: skip


def by_episode(values: FloatArray, episode: NDArray[np.int64]) -> FloatArray:
    """Return the mean of each episode's values."""
    return np.array([values[episode == e].mean() for e in np.unique(episode)])


def interval(values: FloatArray) -> Estimate:
    """Return the mean over episodes with its 95 % interval by Student's t."""
    mean, n = float(values.mean()), len(values)
    half = float(student.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5) if n > 1 else 0.0
    return Estimate(mean, max(0.0, mean - half), mean + half)


def read_rows(checkpoint: Checkpoint, tests: CheckpointTests) -> FrameTable:
    """Read what a policy is asked about.

    Raises:
        UnusableInputError: a vector that the policy needs is missing.
    """
    wanted = [ACTION, STATE] + [ENVIRONMENT] * (ENVIRONMENT in checkpoint.inputs)
    if any(feature.startswith(FORCE) for feature in checkpoint.inputs):
        raise UnusableInputError(
            f"{checkpoint.folder} sees forces: it is asked while it drives only."
        )
    lacks = [f for f in wanted if not tests.info.width(f)]
    if lacks:
        raise UnusableInputError(f"{tests.info.root} has no {', '.join(lacks)}, which it needs.")
    return load_frames(tests.info.root, wanted)

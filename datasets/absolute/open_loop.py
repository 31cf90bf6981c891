"""Does a policy command what a dataset's rows command, and if not: under which mistake would it?

A policy is asked along sampled rows, and its plans are set against the commands that were recorded
there. Then the same with one thing about the question or the answer changed: two joints exchanged,
a camera's colours the other way round, actions taken for changes … Where the error falls to what
demonstrations differ by among themselves, that is what stands between this data and the policy.
Nothing here loads a policy: who does hands in how to ask (`finetune/lerobot_open_loop.py`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate
from gaploop.datasets.absolute.checkpoint import Checkpoint, CheckpointTests, affine
from gaploop.datasets.absolute.recording import GRIPS, evenly
from gaploop.datasets.columns import ACTION, ENVIRONMENT, IMAGES, STATE
from gaploop.datasets.frames import FrameTable, load_frames
from gaploop.datasets.layout import EpisodeRow
from gaploop.datasets.lerobot_read import pictures_at

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
LEFT: Final = 0.93
"""Of the error; an alternative that leaves more of it isn't worth a sentence."""
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
PACES: Final = (1 / 3, 1 / 2, 2 / 3, 3 / 2, 2.0, 3.0)
CROPS: Final = (0.85, 0.7, 0.5)

type Pictures = Mapping[str, NDArray[np.generic]]
type Rows = NDArray[np.intp]


class AskPolicy(Protocol):
    """Asks a policy about several rows at once."""

    def __call__(
        self,
        state: FloatArray,
        pictures: Pictures,
        scene: FloatArray | None,
        tasks: Sequence[str],
    ) -> FloatArray:
        """Return plans from the newest row on, shape (b, chunk, n_action), in dataset units.

        Args:
            state: shape (b, n_observations, n_state), oldest first.
            pictures: by feature, RGB, shape (b, n_observations, height, width, 3); uint8, or what
                normalises them already.
            scene: the environment state, shape (b, n_observations, n); None without.
            tasks: in words, of each row.
        """


@dataclass(frozen=True)
class RowSample:
    """Sampled rows, each with what was seen and what was commanded from there on.

    Attributes:
        episode: of each row, shape (b,).
        phase: of each row, in words.
        ahead: recorded commands from each row on, shape (b, n, n_action); the last one is repeated
            at an episode's end.
        before: the command before each row, shape (b, n_action).
    """

    episode: NDArray[np.int64]
    phase: tuple[str, ...]
    state: FloatArray
    pictures: Pictures
    scene: FloatArray | None
    tasks: tuple[str, ...]
    ahead: FloatArray
    before: FloatArray

    def take(self, rows: Rows) -> RowSample:
        """Return some of the rows."""
        return RowSample(
            self.episode[rows], tuple(self.phase[k] for k in rows), self.state[rows],
            {k: v[rows] for k, v in self.pictures.items()},
            None if self.scene is None else self.scene[rows],
            tuple(self.tasks[k] for k in rows), self.ahead[rows], self.before[rows],
        )  # fmt: skip


@dataclass(frozen=True)
class Hypothesis:
    """One thing that may be wrong between data and policy, and what undoes it.

    Attributes:
        words: after "the error falls with", such as "colours the other way round".
        fix: what the user does.
        ask: changes what the policy is shown.
        answer: changes its plans, given the rows that it was asked about.
        pace: rows of the data for each step of the policy.
    """

    kind: str
    about: str
    words: str
    fix: str
    ask: Callable[[RowSample], RowSample] | None = None
    answer: Callable[[FloatArray, RowSample], FloatArray] | None = None
    pace: float = 1.0


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
            and self.error.mean() < LEFT * usual.mean()
            and interval(by_episode(usual - self.error, episode)).low > 0
        )


class OpenLoop:
    """A policy's plans beside a dataset's commands.

    Args:
        tests: the checkpoint's own words against the dataset, and its report.
        tables: the dataset's rows: action, state, and the environment state if it has one.
    """

    def __init__(self, tests: CheckpointTests, table: FrameTable, ask: AskPolicy) -> None:
        self.tests, self.checkpoint, self.table, self.ask = tests, tests.checkpoint, table, ask
        self.action = np.asarray(table.columns[ACTION], np.float64)
        self.state = np.asarray(table.columns[STATE], np.float64)
        self.fps = table.info.fps
        self.names = [n.removesuffix(".pos") for n in table.info.names(ACTION)]
        spread = self.action.std(axis=0)
        self.moving = np.flatnonzero(spread > 1e-6 * max(float(spread.max()), 1e-9))
        self.spread = np.maximum(spread, 1e-9)
        self.arm = [k for k in self.moving.tolist() if not self._grips(k)]
        self._began, self._cost_s = time.monotonic(), 0.0

    def _grips(self, joint: int) -> bool:
        return any(word in self.names[joint].lower() for word in GRIPS)

    # What is asked

    def sample(self) -> RowSample:
        """Choose rows, evenly over episodes and their length, and decode what was seen there."""
        episodes = [e for e in self.table.episodes if e.length > 4]
        chosen = [episodes[k] for k in evenly(len(episodes), EPISODES)]
        back = self.checkpoint.observations
        reach = int(np.ceil(3 * max(self.checkpoint.chunk, round(AHEAD_S * self.fps))))
        parts = dict[str, list[FloatArray]](state=[], ahead=[], before=[], scene=[])
        shown = {k: list[NDArray[np.generic]]() for k in self._keys()}
        pixels = [np.prod(self.table.info.features[k].get("shape") or [0]) for k in shown]
        bytes_a_row = max(1.0, float(sum(pixels)) * back)
        count = max(SCREENED, min(ROWS, int(LARGEST_BYTES / bytes_a_row / max(len(chosen), 1))))
        owner, phases, tasks = list[int](), list[str](), list[str]()
        scene = self.table.columns.get(ENVIRONMENT)
        for one in chosen:
            rows = self.table.rows_of(one.index)
            action, state = self.action[rows], self.state[rows]
            named = phases_of(action, state, self.fps, self._gripper())
            for t in evenly(len(action) - 1, count):
                seen = np.maximum(np.arange(t - back + 1, t + 1), 0)
                parts["state"].append(state[seen])
                parts["ahead"].append(action[np.minimum(np.arange(t, t + reach), len(action) - 1)])
                parts["before"].append(action[max(t - 1, 0)])
                if scene is not None:
                    parts["scene"].append(np.asarray(scene[rows], np.float64)[seen])
                owner.append(one.index)
                phases.append(named[t])
                tasks.append(_task(one))
            for key, pictures in shown.items():
                wanted = [
                    int(r) for t in evenly(len(action) - 1, count)
                    for r in np.maximum(np.arange(t - back + 1, t + 1), 0)
                ]  # fmt: skip
                found = pictures_at(self.table.info, one, key, wanted)
                small = np.stack([found[r] for r in wanted])
                pictures += list(small.reshape(-1, back, *small.shape[1:]))
        return RowSample(
            np.array(owner), tuple(phases), np.stack(parts["state"]),
            {k: np.stack(v) for k, v in shown.items()},
            np.stack(parts["scene"]) if parts["scene"] else None,
            tuple(tasks), np.stack(parts["ahead"]), np.stack(parts["before"]),
        )  # fmt: skip

    def _keys(self) -> list[str]:
        """Return the dataset's cameras that the policy sees."""
        wanted, renamed = self.checkpoint.cameras, self.checkpoint.renamed
        return [k for k in self.table.info.picture_keys if renamed.get(k, k) in wanted]

    def _gripper(self) -> int | None:
        return next((k for k in range(len(self.names)) if self._grips(k)), None)

    def plans(
        self, sample: RowSample, alternative: Hypothesis | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return plans, and commands at their steps, in spreads, shape (b, n, n_moving)."""
        began = time.monotonic()
        changed = alternative.ask(sample) if alternative and alternative.ask else sample
        plan = self.ask(changed.state, changed.pictures, changed.scene, changed.tasks)
        if alternative and alternative.answer:
            plan = alternative.answer(plan, sample)
        pace = alternative.pace if alternative else 1.0
        steps = max(1, min(plan.shape[1], round(AHEAD_S * (self.checkpoint.fps or self.fps))))
        commands = _paced(sample.ahead, pace, steps)
        self._cost_s = (time.monotonic() - began) / len(sample.episode)
        return self._in_spreads(plan[:, :steps]), self._in_spreads(commands)

    def tried(self, sample: RowSample, alternative: Hypothesis, usual: FloatArray) -> Tried:
        """Try an alternative; `usual` are the plans without it."""
        plan, commands = self.plans(sample, alternative)
        if alternative.pace != 1.0:  # the same plans, beside other commands
            before = self._in_spreads(_paced(sample.ahead, 1.0, plan.shape[1])) - usual
            change = before - (commands - plan)
        else:
            before, change = commands - usual, plan - usual
        return Tried(
            alternative, _rms(commands - plan), (change**2).mean(axis=(1, 2)),
            (change * before).mean(axis=(1, 2)),
        )  # fmt: skip

    def _in_spreads(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.clip(values / self.spread, -1e3, 1e3)[..., self.moving])

    def _beside(self, plan: FloatArray, commands: FloatArray) -> FloatArray:
        return _rms(self._in_spreads(plan) - self._in_spreads(commands))

    def standing_still(self, sample: RowSample) -> FloatArray:
        """Return the error of repeating the command before, on each row."""
        commands = sample.ahead[:, : self._steps()]
        return self._beside(np.repeat(sample.before[:, None], commands.shape[1], 1), commands)

    def _steps(self) -> int:
        return int(max(1, min(self.checkpoint.chunk, round(AHEAD_S * self.fps))))

    def demonstrators(self, sample: RowSample) -> FloatArray:
        """Return how far commands lie apart at alike states of other episodes, on each row."""
        n, total = self._steps(), self.table.episode_index
        scale = np.maximum(self.state.std(axis=0), 1e-9)
        bank = np.arange(0, len(self.state), max(1, len(self.state) // 4000))
        last = {e.index: self.table.rows_of(e.index).stop - 1 for e in self.table.episodes}
        found = []
        for owner, state, ahead in zip(
            sample.episode, sample.state[:, -1], sample.ahead, strict=True
        ):
            off = (((self.state[bank] - state) / scale) ** 2).sum(axis=1)
            off[total[bank] == owner] = np.inf
            row = int(bank[int(off.argmin())])
            rows = np.minimum(np.arange(row, row + n), last[int(total[row])])
            found.append(self._beside(self.action[rows][None], ahead[None, :n])[0])
        return np.array(found)

    # What may be wrong

    def alternatives(self) -> list[Hypothesis]:
        """Return what may be wrong between data and policy, the likeliest first."""
        found = [*self._units(), *self._deltas(), *self._pictures(), *self._paces()]
        found += [*self._history(), *self._words(), *self._joints(), *self._crops()]
        return found

    def _units(self) -> list[Hypothesis]:
        use_degrees = "Match --robot.use_degrees to the policy's training, or train on this data."
        found = []
        for kind, words, factor in (
            ("wrong_units", "radians taken for degrees", np.pi / 180),
            ("wrong_units", "degrees taken for radians", 180 / np.pi),
        ):
            scale = np.ones(len(self.names))
            scale[[k for k in range(len(self.names)) if not self._grips(k)]] = factor
            if self.state.shape[1] == len(scale):
                found.append(_scaled(kind, words, use_degrees, scale, scale * 0, scale, scale * 0))
        maps = [self._affine(STATE, self.state), self._affine(ACTION, self.action)]
        if None in maps:
            return found
        (s_scale, s_shift), (a_scale, a_shift) = [m for m in maps if m is not None]
        if self.tests.lacks_normaliser():
            kind, words = "no_normaliser", "values normalised by this dataset's statistics"
            fix = "Copy the processors of the training run beside the policy, or make them anew."
        elif self._is_other_unit():
            kind, fix = "wrong_units", use_degrees
            words = "one unit taken for another (degrees, -100 to 100)"
        else:
            kind, words = "wrong_statistics", "this dataset's statistics in place of the policy's"
            fix = "Make the policy's processors anew from its training set's statistics."
        made = _scaled(kind, words, fix, s_scale, s_shift, a_scale, a_shift)
        if kind == "no_normaliser":  # pictures aren't normalised either
            made = replace(made, ask=_both(made.ask, self._normal_pictures))
        return [*found, made]

    def _affine(self, feature: str, values: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Return scale and shift from this dataset's numbers to those that the policy expects."""
        mode = self.checkpoint.modes.get("ACTION" if feature == ACTION else "STATE", "IDENTITY")
        here = affine(statistics(values), mode)
        if here is None:
            return None
        own = self.checkpoint.affine(feature)
        if own is None or not self.checkpoint.normalises:
            own = np.zeros(values.shape[1]), np.ones(values.shape[1])
        if len(own[0]) != values.shape[1]:
            return None
        scale = own[1] / np.maximum(here[1], 1e-9)
        return scale, own[0] - scale * here[0]

    def _is_other_unit(self) -> bool:
        """Say whether the policy's statistics may be this data's in degrees or -100 to 100.

        One scale and shift a joint then maps all of them, the scale near 1 (a range of 200 is 140
        to 360 degrees), and the middle near the middle.
        """
        own, here = self.checkpoint.stats.get(STATE, {}), statistics(self.state)
        low, high = ("q10", "q90") if "q10" in own else ("min", "max")
        if not {low, high, "mean", "std"} <= own.keys() or len(own[low]) != self.state.shape[1]:
            return False
        arm = [k for k in range(self.state.shape[1]) if k < len(self.names) and not self._grips(k)]
        scale = (own[high] - own[low]) / np.maximum(here[high] - here[low], 1e-9)
        mean = own[low] + scale * (here["mean"] - here[low])
        off = np.abs(mean - own["mean"]) / np.maximum(own["std"], 1e-9)
        most = 1.0 if low == "q10" else 2.5
        alike = np.median(off[arm]) < 0.15 * most and off[arm].max() < 0.3 * most
        middle = np.abs(own[low] / scale - here[low])[arm]
        near = (np.abs(np.log(scale[arm])) < np.log(2.0)).all() and (middle < 35.0).all()
        return bool(alike and near)

    def _normal_pictures(self, sample: RowSample) -> RowSample:
        if self.checkpoint.modes.get("VISUAL") != "MEAN_STD":
            return sample
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        shown = {
            k: ((v.astype(np.float32) / 255 - mean) / std).astype(np.float32)
            for k, v in sample.pictures.items()
        }
        return replace(sample, pictures=shown)

    def _deltas(self) -> list[Hypothesis]:
        if self.state.shape[1] != self.action.shape[1]:
            return []
        is_arm = np.array([not self._grips(k) for k in range(len(self.names))], float)
        fix = "Give actions of one kind to both: add the state to what the policy answers, or "
        fix += "train it anew on this data."
        from_state = "its actions taken for changes from the state"
        return [
            Hypothesis("action_kind", "", from_state, fix,
                        answer=lambda plan, s: plan + is_arm * s.state[:, -1:]),
            Hypothesis("action_kind", "", "its actions taken for changes at each step", fix,
                        answer=lambda plan, s: np.where(
                            is_arm > 0, s.before[:, None] + plan.cumsum(axis=1), plan)),
            Hypothesis("action_kind", "", "this data's actions taken for changes", fix,
                        answer=lambda plan, s: np.where(is_arm > 0, plan - s.state[:, -1:], plan)),
            Hypothesis("action_kind", "", "this data's actions taken for changes at each step",
                        fix, answer=lambda plan, s: np.where(
                            is_arm > 0,
                            np.diff(np.concatenate([s.state[:, -1:], plan], axis=1), axis=1),
                            plan)),
        ]  # fmt: skip

    def _pictures(self) -> list[Hypothesis]:
        keys, found = self._keys(), list[Hypothesis]()
        for a, b in itertools.combinations(keys, 2):
            names = [k.removeprefix(IMAGES) for k in (a, b)]
            found.append(Hypothesis(
                "camera_order", ", ".join(names), f"cameras {names[0]} and {names[1]} exchanged",
                f"Exchange {names[0]} and {names[1]} in --robot.cameras, or by --rename_map.",
                lambda s, a=a, b=b: _with_pictures(  # type: ignore[misc]
                    s, {a: s.pictures[b], b: s.pictures[a]}
                ),
            ))  # fmt: skip
        if keys:
            found.append(Hypothesis(
                "colour_order", "", "red and blue exchanged",
                "Give pictures as RGB: OpenCV's are BGR (cv2.cvtColor, or color_mode: rgb).",
                lambda s: replace(s, pictures={k: v[..., ::-1] for k, v in s.pictures.items()}),
            ))  # fmt: skip
        return found

    def _paces(self) -> list[Hypothesis]:
        """Return the one rate that is known to be another, or all that may be where none is."""
        fps = self.checkpoint.fps
        paces = [self.fps / fps] if fps and fps != self.fps else [] if fps else PACES
        return [
            Hypothesis(
                "wrong_rate", "", f"its plans played at {self.fps / pace:.3g} steps a second",
                f"Run the policy at its own rate, about {self.fps / pace:.3g} Hz: --dataset.fps.",
                pace=pace,
            )
            for pace in paces
        ]  # fmt: skip

    def _history(self) -> list[Hypothesis]:
        if self.checkpoint.observations < 2:
            return []
        return [Hypothesis(
            "observation_steps", "", "one observation repeated in place of the last "
            f"{self.checkpoint.observations}", "Keep the observations before, and call the policy "
            "at every step (select_action).",
            lambda s: replace(
                s, state=np.repeat(s.state[:, -1:], s.state.shape[1], 1),
                pictures={k: np.repeat(v[:, -1:], v.shape[1], 1) for k, v in s.pictures.items()},
            ),
        )]  # fmt: skip

    def _words(self) -> list[Hypothesis]:
        if not self.checkpoint.reads_text:
            return []
        known = [t for t in self.tests.trained_tasks() if (t,) != self.tests.tasks][:4]
        return [
            Hypothesis(
                "wrong_task",
                task,
                f"the task “{task}”",
                f'Ask for it so: --dataset.single_task="{task}"',
                lambda s, task=task: replace(s, tasks=(task,) * len(s.tasks)),  # type: ignore[misc]
            )
            for task in known
        ]

    def _joints(self) -> list[Hypothesis]:
        """Return reversed and exchanged joints that the policy's statistics don't speak against."""
        n = len(self.names)
        if self.state.shape[1] != n:
            return []
        found = []
        arm = [k for k in range(n) if not self._grips(k)]
        fix = "Set the motor's direction and calibrate again, or reverse it in the data: "
        for k in arm:
            sign = np.ones(n)
            sign[k] = -1.0
            if self._fits(sign * self.state):
                edit = f"gaploop edit correct {self.tests.root}"
                found.append(_scaled("joint_sign", f"{self.names[k]} the other way round",
                                     fix + edit, sign, 0 * sign, sign, 0 * sign,
                                     self.names[k]))  # fmt: skip
        for a, b in itertools.combinations(range(n), 2):
            order = np.arange(n)
            order[[a, b]] = b, a
            if self._fits(self.state[:, order]):
                two = f"{self.names[a]} and {self.names[b]}"
                found.append(Hypothesis(
                    "joint_order", f"{self.names[a]}, {self.names[b]}", f"{two} exchanged",
                    f"Exchange {two} (motor ids, or the order of columns), and record again.",
                    lambda s, o=order: replace(s, state=s.state[..., o]),  # type: ignore[misc]
                    lambda plan, _s, o=order: plan[..., o],  # type: ignore[misc]
                ))  # fmt: skip
        return found

    def _fits(self, state: FloatArray) -> bool:
        """Say whether changed readings lie no farther from the policy's statistics than before."""
        own = self.checkpoint.affine(STATE)
        if own is None or len(own[0]) != state.shape[1]:
            return True
        centre, half = own[0], np.maximum(own[1], 1e-6)

        def off(values: FloatArray) -> float:
            away = np.abs(values.mean(axis=0) - centre) / half
            wide = np.abs(np.log(np.maximum(values.std(axis=0), 1e-9) / half))
            usual = np.log(np.maximum(self.state.std(axis=0), 1e-9) / half)
            wide -= np.median(np.abs(usual)) * (self.checkpoint.modes.get("STATE") != "MEAN_STD")
            return float(np.minimum(away + np.maximum(wide, 0), 5.0).sum())

        return off(state) <= off(self.state) + 0.3

    def _crops(self) -> list[Hypothesis]:
        found = []
        keys = self._keys()
        for share, (x, y), what in itertools.product(
            CROPS, ((1, 1), (1, 0)), (*((k,) for k in keys), tuple(keys)) if keys[1:] else (keys,)
        ):
            for inward in (True, False):
                names = ", ".join(k.removeprefix(IMAGES) for k in what)
                cut = f"{share:.0%} of the {'picture' if y else 'width'}"
                words = f"{names} cut to {cut}" if inward else f"{names} shown as {cut}"
                found.append(Hypothesis(
                    "wrong_crop", names, words, "Crop and resize pictures as for the policy's "
                    "training: look at both beside each other.",
                    lambda s, what=what, f=share, x=x, y=y, i=inward: replace(s, pictures={  # type: ignore[misc]
                        k: _zoomed(v, f if x else 1.0, f if y else 1.0, i) if k in what else v
                        for k, v in s.pictures.items()
                    }),
                ))  # fmt: skip
        return found if keys else []

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
        spread, still = self.demonstrators(sample), self.standing_still(sample)
        found, left_out = self.explained(sample, plans, usual, max(spread.mean(), still.mean()))
        rows = f"{len(usual)} rows of {len(set(sample.episode.tolist()))} episodes"
        if left_out:
            self.tests.report.untested[f"{left_out} of what may be wrong with the policy"] = (
                "asking it takes too long here"
            )
        if found:
            self._mistake(found, usual, sample)
            return
        here = by_episode(usual, sample.episode)
        size = interval(here)
        accused = {f.kind for f in self.tests.report.findings} & set(PREFERRED)
        if accused:  # one of these it may be; another reason isn't looked for
            return
        if size.low > max(1.5 * spread.mean(), still.mean()) and demonstrations:
            worst = _worst_phase(usual, sample)
            is_its_own = self.checkpoint.is_of(self.table.info.root)
            apart = (
                "too few steps of training, a wrong learning rate"
                if is_its_own
                else ("too few steps of training, data of another station or task")
            )
            self.tests.say(
                "undertrained", "", f"Asked about {rows}, the policy misses their commands by more "
                f"than an arm that stands still ({_share(still)}), most in {worst}; of the joints' "
                "spread by", "Train it longer, and look at its loss: gaploop finetune "
                f"{self.tests.root} --help", 90.0, apart, _percent(size), "%",
            )  # fmt: skip
            return
        if size.value < max(float(spread.mean()), float(still.mean())):
            self.tests.report.good["reproduction"] = (
                f"asked about {rows}, the policy commands what they do to {_share(usual)} of the "
                f"joints' spread (demonstrations at alike states: {_share(spread)}; standing "
                f"still: {_share(still)})"
            )
        else:
            self.tests.report.untested["what stands between policy and data"] = (
                f"it misses by {_share(usual)} of the joints' spread, and no single mistake "
                "explains that"
            )
        self._overfitted(sample, usual)
        self._cameras(sample)

    def explained(
        self, sample: RowSample, plans: FloatArray, usual: FloatArray, level: float
    ) -> tuple[list[Tried], int]:
        """Return what explains the error, best first, and how many alternatives weren't tried."""
        per = len(usual) // max(1, len(set(sample.episode.tolist())))
        few = np.flatnonzero(np.isin(np.arange(len(usual)) % per, evenly(per, SCREENED)))
        part, tried, left_out = sample.take(few), list[Tried](), 0
        every = self.alternatives()
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
        pace, n = tried.alternative.pace, self._steps()
        if pace == 1.0 or self.checkpoint.fps:
            return True
        commands = self._in_spreads(_paced(sample.ahead, pace, n))
        still = _rms(commands - self._in_spreads(sample.before)[:, None])
        before = usual.mean() / self.standing_still(sample).mean()
        return bool(tried.error.mean() / still.mean() < FALLS * before)

    def _mistake(self, found: Sequence[Tried], usual: FloatArray, sample: RowSample) -> None:
        best = found[0]
        close = [t for t in found if t.error.mean() < ALIKE * best.error.mean() + 0.01]
        best = min(close, key=lambda t: PREFERRED.index(t.alternative.kind))
        others = [APART[best.alternative.kind]] if best.alternative.kind in APART else []
        others += [t.alternative.words for t in close
                  if t.alternative.kind != best.alternative.kind]  # fmt: skip
        alternative = best.alternative
        before = interval(by_episode(usual, sample.episode))
        findings = self.tests.report.findings
        findings[:] = [f for f in findings if f.kind != alternative.kind]  # that one has no proof
        self.tests.say(
            alternative.kind, alternative.about,
            f"The policy matches these {len(usual)} rows (to {_share(best.error)} of the joints' "
            f"spread) only with {alternative.words}; as they are, it is off by",
            alternative.fix, 130.0, "; ".join(others[:2]), _percent(before), "%",
        )  # fmt: skip

    def _overfitted(self, sample: RowSample, usual: FloatArray) -> None:
        known = self.checkpoint.episodes
        if known is None or not self.checkpoint.is_of(self.table.info.root):
            return
        learned = np.isin(sample.episode, known)
        if not 0.2 < learned.mean() < 0.9:
            return
        inside, outside = (by_episode(usual[k], sample.episode[k]) for k in (learned, ~learned))
        a, b = interval(inside), interval(outside)
        if b.low > 2 * a.high:
            self.tests.say(
                "overfitted", "", "On episodes that it learned from the policy is off by "
                f"{a.value:.0%} of the joints' spread, on the others by",
                "Train shorter, or on more episodes; keep the weights that are best on held-out "
                "episodes: gaploop finetune --held_out=0.2", 70.0, "episodes that differ",
                _percent(b), "%",
            )  # fmt: skip

    def _cameras(self, sample: RowSample) -> None:
        """Show each camera another episode's pictures, and see how much the plans change."""
        keys = self._keys()
        if not keys or len(set(sample.episode.tolist())) < 3:
            return
        plan = self.ask(sample.state, sample.pictures, sample.scene, sample.tasks)
        per = len(sample.episode) // len(set(sample.episode.tolist()))
        changes = {}
        for key in keys:
            if time.monotonic() - self._began > 1.5 * BUDGET_S:
                return
            other = _with_pictures(sample, {key: np.roll(sample.pictures[key], per, axis=0)})
            changed = self.ask(other.state, other.pictures, other.scene, other.tasks)
            steps = self._steps()
            moved = self._beside(changed[:, :steps], plan[:, :steps])
            changes[key] = interval(by_episode(moved, sample.episode))
        for key, size in changes.items():
            name = key.removeprefix(IMAGES)
            if size.high < IGNORED and (len(keys) == 1 or max(
                c.value for c in changes.values()) > USED):  # fmt: skip
                self.tests.say(
                    "ignored_camera", name, f"The policy hardly looks at {name}: with another "
                    "episode's pictures there, its commands change, of the joints' spread, by",
                    "Train it on episodes in which only that camera tells where to go, or leave "
                    "the camera out", 20.0, "a camera that shows the same in all episodes",
                    _percent(size), "%",
                )  # fmt: skip
        seen = ", ".join(f"{k.removeprefix(IMAGES)} {c.value:.0%}" for k, c in changes.items())
        self.tests.report.good["cameras it uses"] = (
            f"another episode's pictures change its commands: {seen} of the joints' spread"
        )


PREFERRED: Final = (
    "no_normaliser", "wrong_units", "action_kind", "joint_sign", "joint_order", "camera_order",
    "colour_order", "wrong_task", "observation_steps", "wrong_rate", "wrong_crop",
    "wrong_statistics",
)  # fmt: skip
"""Of mistakes that explain the error alike, the one with the least freedom is named."""


def _rms(off: FloatArray) -> FloatArray:
    """Return the rms over steps and joints, of at most 10 spreads each, shape (b,)."""
    return np.asarray(np.sqrt((np.minimum(np.abs(off), 10.0) ** 2).mean(axis=(1, 2))))


APART: Final = {
    "wrong_units": "statistics of another set",
    "wrong_statistics": "data in other units, or of another arm",
}


def _task(episode: EpisodeRow) -> str:
    tasks = episode.row.get("tasks") or [""]
    return str(tasks[0])


def _paced(ahead: FloatArray, pace: float, steps: int) -> FloatArray:
    """Return recorded commands at a policy's steps, `pace` rows apart, shape (b, steps, n)."""
    at = np.minimum(np.arange(steps) * pace, ahead.shape[1] - 1)
    low = at.astype(int)
    high = np.minimum(low + 1, ahead.shape[1] - 1)
    share = (at - low)[:, None]
    return np.asarray(ahead[:, low] * (1 - share) + ahead[:, high] * share)


def _scaled(
    kind: str, words: str, fix: str, s_scale: FloatArray, s_shift: FloatArray,
    a_scale: FloatArray, a_shift: FloatArray, about: str = "",
) -> Hypothesis:  # fmt: skip
    """Return readings scaled on the way to the policy, and its plans scaled back."""
    return Hypothesis(
        kind, about, words, fix,
        lambda s: replace(s, state=s.state * s_scale + s_shift),
        lambda plan, _s: (plan - a_shift) / np.where(np.abs(a_scale) > 1e-12, a_scale, 1e-12),
    )  # fmt: skip


def _with_pictures(sample: RowSample, changed: Pictures) -> RowSample:
    return replace(sample, pictures={**sample.pictures, **changed})


def _both(
    first: Callable[[RowSample], RowSample] | None, then: Callable[[RowSample], RowSample]
) -> Callable[[RowSample], RowSample]:
    return lambda s: then(first(s) if first else s)


def _zoomed(pictures: NDArray[np.generic], x: float, y: float, inward: bool) -> NDArray[np.generic]:
    """Cut pictures to a share of width and height, or show them on that share, at equal size."""
    import cv2

    height, width = pictures.shape[2:4]
    w, h = max(4, round(width * x)), max(4, round(height * y))
    left, top = (width - w) // 2, (height - h) // 2
    out = np.empty_like(pictures)
    for at in np.ndindex(pictures.shape[:2]):
        if inward:
            part = pictures[at][top : top + h, left : left + w]
            out[at] = cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR)
        else:
            part = cv2.resize(pictures[at], (w, h), interpolation=cv2.INTER_AREA)
            edges = (top, height - h - top, left, width - w - left)
            out[at] = cv2.copyMakeBorder(part, *edges, cv2.BORDER_REPLICATE)
    return out


def statistics(values: FloatArray) -> dict[str, FloatArray]:
    """Return what LeRobot normalises by, of rows of numbers, shape (n, width)."""
    q01, q10, q90, q99 = np.quantile(values, [0.01, 0.1, 0.9, 0.99], axis=0)
    return {
        "mean": values.mean(axis=0), "std": values.std(axis=0), "min": values.min(axis=0),
        "max": values.max(axis=0), "q01": q01, "q10": q10, "q90": q90, "q99": q99,
    }  # fmt: skip


def phases_of(
    command: FloatArray, reading: FloatArray, fps: float, gripper: int | None
) -> list[str]:
    """Name what each row does, by the gripper and by speed: rest, approach, close, carry, open."""
    speed = np.abs(np.gradient(command, axis=0)) / np.maximum(np.ptp(reading, axis=0), 1e-6)
    names, holds = list[str](), False
    window = max(1, round(0.1 * fps))
    for t in range(len(command)):
        grip = 0.0
        if gripper is not None and gripper < command.shape[1]:
            a, b = max(0, t - window), min(len(command) - 1, t + window)
            travel = max(float(np.ptp(command[:, gripper])), 1e-6)
            grip = float(command[b, gripper] - command[a, gripper]) / travel
        if abs(grip) > 0.15:
            holds = grip < 0
            names.append("closing" if holds else "opening")
        elif float(speed[t].max()) * fps < 0.05:
            names.append("rest")
        else:
            names.append("carrying" if holds else "approach")
    return names


def by_episode(values: FloatArray, episode: NDArray[np.int64]) -> FloatArray:
    """Return the mean of each episode's values."""
    return np.array([values[episode == e].mean() for e in np.unique(episode)])


def interval(values: FloatArray) -> Estimate:
    """Return the mean over episodes with its 95 % interval by Student's t."""
    from scipy.stats import t

    mean, n = float(values.mean()), len(values)
    half = float(t.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5) if n > 1 else 0.0
    return Estimate(mean, max(0.0, mean - half), mean + half)


def _worst_phase(error: FloatArray, sample: RowSample) -> str:
    means = {
        p: float(error[[q == p for q in sample.phase]].mean()) for p in dict.fromkeys(sample.phase)
    }
    return max(means, key=lambda p: means[p])


def _percent(size: Estimate) -> Estimate:
    return Estimate(*(100 * v for v in (size.value, size.low, size.high)))


def _share(values: FloatArray) -> str:
    return f"{float(values.mean()):.0%}"


def read_rows(checkpoint: Checkpoint, tests: CheckpointTests) -> FrameTable:
    """Read what a policy is asked about.

    Raises:
        UnusableInputError: a vector that the policy needs is missing.
    """
    wanted = [ACTION, STATE] + [ENVIRONMENT] * (ENVIRONMENT in checkpoint.inputs)
    lacks = [f for f in wanted if not tests.info.width(f)]
    if lacks:
        raise UnusableInputError(f"{tests.info.root} has no {', '.join(lacks)}, which it needs.")
    return load_frames(tests.info.root, wanted)

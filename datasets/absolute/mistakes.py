"""What may be wrong between a policy and a dataset, each with what would undo it.

A mistake changes what the policy is shown, or what its plans mean. `open_loop.py` tries each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.grippers import is_grip
from gaploop.core.messages import FloatArray
from gaploop.datasets.absolute.checkpoint import CheckpointTests, affine
from gaploop.datasets.columns import ACTION, IMAGES, STATE
from gaploop.datasets.v3_files import FrameTable

PACES: Final = (1 / 3, 1 / 2, 2 / 3, 3 / 2, 2.0, 3.0)
PREFERRED: Final = (
    "no_normaliser", "wrong_units", "action_kind", "joint_sign", "joint_order", "camera_order",
    "colour_order", "wrong_task", "observation_steps", "wrong_rate", "wrong_statistics",
)  # fmt: skip
"""Of mistakes that explain the error alike, the one with the least freedom is named."""
APART: Final = {
    "wrong_units": "statistics of another set",
    "wrong_statistics": "data in other units, or of another arm",
}
IMAGENET: Final = (np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225]))
"""Mean and spread by which LeRobot's policies normalise pictures."""

type Pictures = Mapping[str, NDArray[np.generic]]
type Rows = NDArray[np.intp]


@dataclass(frozen=True)
class RowSample:
    """Sampled rows, each with what was seen and what was commanded from there on.

    Attributes:
        episode: of each row, shape (b,).
        phase: of each row, in words, shape (b,).
        state: shape (b, n_observations, n_state), oldest first.
        pictures: by feature, RGB, shape (b, n_observations, height, width, 3).
        scene: the environment state, shape (b, n_observations, n).
        ahead: recorded commands from each row on, shape (b, n, n_action); the last one is repeated
            at an episode's end.
        before: the command before each row, shape (b, n_action).
    """

    episode: NDArray[np.int64]
    phase: NDArray[np.str_]
    state: FloatArray
    pictures: Pictures
    scene: FloatArray | None
    tasks: tuple[str, ...]
    ahead: FloatArray
    before: FloatArray

    def take(self, rows: Rows) -> RowSample:
        """Return some of the rows."""
        return RowSample(
            self.episode[rows], self.phase[rows], self.state[rows],
            {k: v[rows] for k, v in self.pictures.items()},
            None if self.scene is None else self.scene[rows],
            tuple(self.tasks[k] for k in rows), self.ahead[rows], self.before[rows],
        )  # fmt: skip

    def showing(self, pictures: Pictures) -> RowSample:
        """Return the same rows with other pictures of some cameras."""
        return replace(self, pictures={**self.pictures, **pictures})


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
    ask: Callable[[RowSample], RowSample] = lambda sample: sample
    answer: Callable[[FloatArray, RowSample], FloatArray] = lambda plan, _sample: plan
    pace: float = 1.0


class Mistakes:
    """What may be wrong between one policy and one dataset.

    Args:
        tests: the checkpoint's own words against the dataset.
        table: the dataset's rows, with action and state.
    """

    def __init__(self, tests: CheckpointTests, table: FrameTable) -> None:
        self.tests, self.checkpoint, self.fps = tests, tests.checkpoint, table.info.fps
        self.state = np.asarray(table.columns[STATE], np.float64)
        self.names = [n.removesuffix(".pos") for n in table.info.names(ACTION)]
        self.is_arm = np.array([not is_grip(name) for name in self.names])
        wanted, renamed = self.checkpoint.cameras, self.checkpoint.renamed
        self.cameras = [k for k in table.info.picture_keys if renamed.get(k, k) in wanted]
        self.has_state_of_actions = self.state.shape[1] == len(self.names)

    def all(self) -> list[Hypothesis]:
        """Return what may be wrong, the likeliest first."""
        kinds = (self._units, self._deltas, self._pictures, self._paces, self._history,
                 self._words, self._joints)  # fmt: skip
        return [mistake for kind in kinds for mistake in kind()]

    def _units(self) -> Iterator[Hypothesis]:
        match = "Match --robot.use_degrees to the policy's training, or train on this data."
        for words, factor in (
            ("radians taken for degrees", np.pi / 180),
            ("degrees taken for radians", 180 / np.pi),
        ):
            scale = np.where(self.is_arm, factor, 1.0)
            if self.has_state_of_actions:
                yield _scaled("wrong_units", "", words, match, (scale, 0.0), (scale, 0.0))
        here = self.tests.stats
        maps = [self._to_expected(feature, here[feature]) for feature in (STATE, ACTION)]
        if maps[0] is None or maps[1] is None:
            return
        if self.tests.lacks_normaliser():
            made = _scaled(
                "no_normaliser", "", "values normalised by this dataset's statistics",
                "Copy the processors of the training run beside the policy, or make them anew.",
                maps[0], maps[1],
            )  # fmt: skip
            yield replace(made, ask=lambda s: self._normal_pictures(made.ask(s)))
        elif self._is_other_unit():
            words = "one unit taken for another (degrees, -100 to 100)"
            yield _scaled("wrong_units", "", words, match, maps[0], maps[1])
        else:
            yield _scaled(
                "wrong_statistics", "", "this dataset's statistics in place of the policy's",
                "Make the policy's processors anew from its training set's statistics.",
                maps[0], maps[1],
            )  # fmt: skip

    def _to_expected(
        self, feature: str, stats: Mapping[str, FloatArray]
    ) -> tuple[FloatArray, FloatArray] | None:
        """Return scale and shift from this dataset's numbers to those that the policy expects."""
        mode = self.checkpoint.modes.get("ACTION" if feature == ACTION else "STATE", "IDENTITY")
        here, own = affine(stats, mode), self.checkpoint.affine(feature)
        if here is None:
            return None
        if own is None or not self.checkpoint.normalises:
            own = np.zeros(len(here[0])), np.ones(len(here[0]))
        if len(own[0]) != len(here[0]):
            return None
        scale = own[1] / np.maximum(here[1], 1e-9)
        return scale, own[0] - scale * here[0]

    def _is_other_unit(self) -> bool:
        """Say whether the policy's statistics may be this data's in degrees or -100 to 100.

        One scale and shift a joint then maps all of them, the scale near 1 (a range of 200 is 140
        to 360 degrees), and the middle near the middle.
        """
        own, here = self.checkpoint.stats.get(STATE, {}), self.tests.stats[STATE]
        low, high = ("q10", "q90") if "q10" in own else ("min", "max")
        if not {low, high, "mean", "std"} <= own.keys() or len(own[low]) != self.state.shape[1]:
            return False
        arm = [k for k in range(self.state.shape[1]) if k < len(self.names) and self.is_arm[k]]
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
        mean, std = IMAGENET
        return sample.showing({
            k: ((v.astype(np.float32) / 255 - mean) / std).astype(np.float32)
            for k, v in sample.pictures.items()
        })  # fmt: skip

    def _deltas(self) -> Iterator[Hypothesis]:
        if not self.has_state_of_actions:
            return
        fix = "Give actions of one kind to both: add the state to what the policy answers, or "
        fix += "train it anew on this data."
        answers: tuple[tuple[str, Callable[[FloatArray, RowSample], FloatArray]], ...] = (
            ("its actions taken for changes from the state", lambda p, s: p + s.state[:, -1:]),
            ("its actions taken for changes at each step",
             lambda p, s: s.before[:, None] + p.cumsum(axis=1)),
            ("this data's actions taken for changes", lambda p, s: p - s.state[:, -1:]),
            ("this data's actions taken for changes at each step",
             lambda p, s: np.diff(p, axis=1, prepend=s.state[:, -1:])),
        )  # fmt: skip
        for words, of in answers:
            yield Hypothesis(
                "action_kind", "", words, fix,
                answer=lambda p, s, of=of: np.where(self.is_arm, of(p, s), p),  # type: ignore[misc]
            )  # fmt: skip

    def _pictures(self) -> Iterator[Hypothesis]:
        for a, b in itertools.combinations(self.cameras, 2):
            one, two = (k.removeprefix(IMAGES) for k in (a, b))
            yield Hypothesis(
                "camera_order", f"{one}, {two}", f"cameras {one} and {two} exchanged",
                f"Exchange {one} and {two} in --robot.cameras, or by --rename_map.",
                lambda s, a=a, b=b: s.showing({a: s.pictures[b], b: s.pictures[a]}),  # type: ignore[misc]
            )  # fmt: skip
        if self.cameras:
            yield Hypothesis(
                "colour_order", "", "red and blue exchanged",
                "Give pictures as RGB: OpenCV's are BGR (cv2.cvtColor, or color_mode: rgb).",
                lambda s: s.showing({k: v[..., ::-1] for k, v in s.pictures.items()}),
            )  # fmt: skip

    def _paces(self) -> Iterator[Hypothesis]:
        """Yield the one rate that is known to be another, or all that may be where none is."""
        fps = self.checkpoint.fps
        paces = PACES if not fps else (self.fps / fps,) if fps != self.fps else ()
        for hz, pace in ((self.fps / pace, pace) for pace in paces):
            yield Hypothesis(
                "wrong_rate", "", f"its plans played at {hz:.3g} steps a second",
                f"Run the policy at its own rate, about {hz:.3g} Hz: --dataset.fps.", pace=pace,
            )  # fmt: skip

    def _history(self) -> Iterator[Hypothesis]:
        if self.checkpoint.observations > 1:
            n = self.checkpoint.observations
            yield Hypothesis(
                "observation_steps", "", f"one observation repeated in place of the last {n}",
                "Keep the observations before, and call the policy at every step (select_action).",
                lambda s: replace(s, state=np.repeat(s.state[:, -1:], n, 1)).showing(
                    {k: np.repeat(v[:, -1:], n, 1) for k, v in s.pictures.items()}),
            )  # fmt: skip

    def _words(self) -> Iterator[Hypothesis]:
        known = self.tests.trained_tasks() if self.checkpoint.reads_text else ()
        for task in [t for t in known if (t,) != self.tests.tasks][:4]:
            yield Hypothesis(
                "wrong_task", task, f"the task “{task}”",
                f'Ask for it so: --dataset.single_task="{task}"',
                lambda s, task=task: replace(s, tasks=(task,) * len(s.tasks)),  # type: ignore[misc]
            )  # fmt: skip

    def _joints(self) -> Iterator[Hypothesis]:
        """Yield reversed and exchanged joints that the policy's statistics don't speak against."""
        n = len(self.names)
        if not self.has_state_of_actions:
            return
        fix = "Set the motor's direction and calibrate again, or reverse it in the data: "
        fix += f"gaploop edit correct {self.tests.root}"
        for k in np.flatnonzero(self.is_arm):
            sign = np.where(np.arange(n) == k, -1.0, 1.0)
            if self._fits(sign * self.state):
                name = self.names[k]
                words = f"{name} the other way round"
                yield _scaled("joint_sign", name, words, fix, (sign, 0.0), (sign, 0.0))
        for a, b in itertools.combinations(range(n), 2):
            order = np.arange(n)
            order[[a, b]] = b, a
            if self._fits(self.state[:, order]):
                one, two = self.names[a], self.names[b]
                yield Hypothesis(
                    "joint_order", f"{one}, {two}", f"{one} and {two} exchanged",
                    f"Exchange {one} and {two} (motor ids, or the order of columns), and record "
                    "again.",
                    lambda s, o=order: replace(s, state=s.state[..., o]),  # type: ignore[misc]
                    lambda plan, _s, o=order: plan[..., o],  # type: ignore[misc]
                )  # fmt: skip

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


def _scaled(
    kind: str, about: str, words: str, fix: str, state: tuple[FloatArray, FloatArray | float],
    action: tuple[FloatArray, FloatArray | float],
) -> Hypothesis:  # fmt: skip
    """Return readings scaled and shifted on the way to the policy, and its plans scaled back."""
    divisor = np.where(np.abs(action[0]) > 1e-12, action[0], 1e-12)
    return Hypothesis(
        kind, about, words, fix,
        lambda s: replace(s, state=s.state * state[0] + state[1]),
        lambda plan, _s: (plan - action[1]) / divisor,
    )  # fmt: skip

"""What a saved LeRobot policy says about itself, set against a dataset: JSON and numbers only.

A policy folder holds `config.json` (what goes in and out), processors with the statistics that
they normalise by, and, by lerobot-train, `train_config.json`: the dataset that it learned from.
"""

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, regular_file
from gaploop.core.grippers import is_grip
from gaploop.core.messages import FloatArray
from gaploop.core.paths import plain_name
from gaploop.core.statistics import Estimate
from gaploop.datasets import layout
from gaploop.datasets.absolute.examine import training_set
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.columns import ACTION, FORCE, IMAGES, STATE
from gaploop.datasets.layout import DatasetInfo

NARROW: Final = 1e-3
"""A spread below this share of what a joint covers here turns its noise into huge inputs."""
HUGE: Final = 50.0
"""Spreads: a normalised input beyond lies far outside all that a policy has seen."""
SAME_STATS: Final = 0.05
"""Spreads by which statistics of one dataset may differ: it may have been trained on a part."""
_CENTRES: Final[Mapping[str, tuple[str, str]]] = {
    "MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90"),
}  # fmt: skip
"""By LeRobot's mode of normalisation: what it maps to -1 and to 1."""

type Stats = Mapping[str, Mapping[str, FloatArray]]


@dataclass(frozen=True)
class Checkpoint:
    """What a policy folder says.

    Attributes:
        inputs: feature to shape; pictures as (3, height, width) [px].
        modes: kind of feature to LeRobot's mode of normalisation; it is in no processor where
            `normalises` is false.
        stats: by feature, what the preprocessor normalises by.
        renamed: camera or vector of the dataset to the policy's name.
        is_relative: its processors turn positions into changes, and back.
        chunk: actions that it predicts at once; `observations`: how many it looks at.
        fps: rate that it was trained at [Hz]; 0 where nothing says.
        names, state_names: entries of action and state in order; () where nothing says.
        units: of both, as LeRobot names them; "" where nothing says.
        trained_on: folder of its training set, where it is on this machine.
        episodes: those of it that it learned from, None for all.
    """

    folder: Path
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    modes: Mapping[str, str]
    stats: Stats
    normalises: bool
    reads_text: bool
    renamed: Mapping[str, str] = field(default_factory=dict)
    is_relative: bool = False
    chunk: int = 1
    observations: int = 1
    fps: float = 0.0
    names: tuple[str, ...] = ()
    state_names: tuple[str, ...] = ()
    units: str = ""
    trained_on: Path | None = None
    episodes: tuple[int, ...] | None = None

    @property
    def cameras(self) -> dict[str, tuple[int, ...]]:
        """Cameras that it sees, by their feature, with (3, height, width) [px]."""
        return {k: v for k, v in self.inputs.items() if k.startswith(IMAGES)}

    def is_of(self, root: Path) -> bool:
        """Say whether its training set is the dataset at `root`."""
        return self.trained_on is not None and self.trained_on.resolve() == root.resolve()

    def affine(self, feature: str) -> tuple[FloatArray, FloatArray] | None:
        """Return centre and half-width that it normalises by; None where it doesn't."""
        mode = self.modes.get("ACTION" if feature == ACTION else "STATE", "IDENTITY")
        return affine(self.stats.get(feature, {}), mode)


def affine(stats: Mapping[str, FloatArray], mode: str) -> tuple[FloatArray, FloatArray] | None:
    """Return centre and half-width of LeRobot's normalisation; None without statistics."""
    if mode == "MEAN_STD" and {"mean", "std"} <= stats.keys():
        return stats["mean"], stats["std"]
    low, high = _CENTRES.get(mode, ("", ""))
    if low in stats and high in stats:
        return (stats[low] + stats[high]) / 2, (stats[high] - stats[low]) / 2
    return None


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a policy folder's own words.

    Raises:
        UnusableInputError: no config.json, or a file in it is damaged.
    """
    with layout.reraise_as_damaged(f"{folder} can't be read", "Fetch or train the policy again."):
        return _read(folder)


def _read(folder: Path) -> Checkpoint:
    config = _object(folder / "config.json")
    before, after = (_steps(folder / f"policy_{n}.json") for n in ("preprocessor", "postprocessor"))
    stats = dict[str, dict[str, FloatArray]]()
    renamed, modes = dict[str, str](), dict(config.get("normalization_mapping") or {})
    for step in before:
        options = step.get("config") or {}
        renamed |= options.get("rename_map") or {}
        if str(step.get("registry_name", "")).startswith("normalizer"):
            modes = options.get("norm_map") or modes
            if "state_file" in step:
                name = plain_name(step["state_file"], "state_file", str(folder))
                try:
                    numbers = load_file(regular_file(folder / name))
                except (*DAMAGE, SafetensorError) as error:
                    problem = f"{folder / name} can't be read ({error!r}). Restore it."
                    raise UnusableInputError(problem) from None
                for key, value in numbers.items():
                    feature, _, what = key.rpartition(".")
                    stats.setdefault(feature, {})[what] = value.ravel().astype(np.float64)
    steps = [str(s.get("registry_name") or s.get("class") or "") for s in (*before, *after)]
    said = _object(folder / "gaploop.json") if (folder / "gaploop.json").exists() else {}
    root, episodes = None, None
    with contextlib.suppress(UnusableInputError):  # it names none, or that isn't here
        trained = training_set(folder)
        root, episodes = trained.root, trained.only
    fps = float(said.get("fps") or 0.0)
    names, state_names = (tuple(said.get(f"{k}_names") or ()) for k in ("action", "state"))
    if root is not None:
        info = layout.read_info(root)
        fps, names = fps or info.fps, names or info.names(ACTION)
        state_names = state_names or info.names(STATE)
    chunk = config.get("chunk_size") or config.get("horizon") or config.get("n_action_steps") or 1
    inputs, outputs = (
        {k: tuple(v.get("shape") or ()) for k, v in (config.get(key) or {}).items()}
        for key in ("input_features", "output_features")
    )
    forces = [shape[0] for key, shape in inputs.items() if key.startswith(FORCE)]
    if any("ForceStep" in step for step in steps):  # a part of its state, which isn't the arm's
        inputs[STATE] = (inputs[STATE][0] - sum(forces),)
    is_relative = any(
        "relative" in str(s.get("registry_name")) and (s.get("config") or {}).get("enabled")
        for s in before
    )
    normalises = all(any(s.startswith(f"{a}normalizer") for s in steps) for a in ("", "un"))
    return Checkpoint(
        folder, inputs, outputs, modes, stats, normalises, any("tokenizer" in s for s in steps),
        renamed, is_relative, int(chunk), int(config.get("n_obs_steps") or 1), fps, names,
        state_names, str(said.get("units") or ""), root, episodes,
    )  # fmt: skip


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def _steps(path: Path) -> list[dict[str, Any]]:
    return list(_object(path).get("steps") or []) if path.exists() else []


class CheckpointTests:
    """What a policy's own files say against a dataset, each test adding to the report.

    Args:
        stats: of the dataset's rows, by feature: mean, std, min, max.
        tasks: the dataset's.
        here: what the dataset is called; an arm that the policy is to drive stands in for one.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        info: DatasetInfo,
        stats: Stats,
        tasks: tuple[str, ...],
        report: AbsoluteReport,
        here: str = "this dataset",
    ) -> None:
        self.checkpoint, self.info, self.stats, self.report = checkpoint, info, stats, report
        self.tasks, self.here = tasks, here
        self.policy, self.root = (shlex.quote(str(p)) for p in (checkpoint.folder, info.root))

    def run(self) -> None:
        """Run all tests."""
        self.fits()
        self._statistics()
        self._action_kind()
        self._constant()
        self._task()

    def fits(self) -> None:
        """Test whether joints, cameras and rate are those that it learned from."""
        self._features()
        self._cameras()
        self._rate()
        self._normaliser()

    def say(
        self, kind: str, about: str, sentence: str, command: str, cost: float, **more: Any
    ) -> None:
        """Add a finding about the whole dataset; see `AbsoluteReport.add`."""
        total = self.info.total_episodes
        self.report.add(kind, about, sentence, range(total), total, command, cost, **more)

    def _features(self) -> None:
        known, here = self.checkpoint, self.here
        for feature, shapes in ((STATE, known.inputs), (ACTION, known.outputs)):
            wanted, have = shapes.get(feature), self.info.width(feature)
            if wanted and wanted[0] != have:
                self.say(
                    "wrong_features", feature, f"The policy's {feature} has {wanted[0]} entries, "
                    f"{here}'s {have}: it is of another arm",
                    f"Choose a policy of this arm, or train one: gaploop finetune {self.root}",
                    110.0,
                )  # fmt: skip
        for feature, names in ((ACTION, known.names), (STATE, known.state_names)):
            have_names = self.info.names(feature)
            told = names and not all(n.isdigit() or n.startswith("action_") for n in names)
            if not told or set(names) != set(have_names) or names == have_names:
                continue
            moved = [a for a, b in zip(names, have_names, strict=True) if a != b]
            self.say(
                "joint_order", ", ".join(moved), f"The policy's joints come in another order than "
                f"{here}'s: {', '.join(moved[:3])}",
                f"Record in the policy's order: {', '.join(names)}", 105.0,
            )  # fmt: skip
            break

    def _cameras(self) -> None:
        shown = {self.checkpoint.renamed.get(k, k) for k in self.info.picture_keys}
        missing = [k.removeprefix(IMAGES) for k in self.checkpoint.cameras if k not in shown
                   and "empty_camera" not in k]  # fmt: skip
        have = [k.removeprefix(IMAGES) for k in self.info.picture_keys]
        if missing:
            self.say(
                "wrong_features", ", ".join(missing), f"The policy sees camera {missing[0]}; "
                f"{self.here} has {', '.join(have) or 'none'}",
                f"Name cameras as the policy does ({', '.join(missing)}): in --robot.cameras, or "
                "with lerobot's --rename_map", 108.0,
            )  # fmt: skip
        for key, name in zip(self.info.picture_keys, have, strict=True):
            wanted = self.checkpoint.cameras.get(self.checkpoint.renamed.get(key, key))
            shape = list(self.info.features[key].get("shape") or ())
            if not wanted or len(wanted) != 3 or len(shape) != 3:
                continue
            height, width = shape[1:] if shape[0] in (1, 3) and shape[2] > 4 else shape[:2]
            if abs(width * wanted[1] / (height * wanted[2]) - 1) > 0.02:
                self.say(
                    "wrong_crop", name, f"Camera {name} gives {width}x{height} pictures, the "
                    f"policy learned from {wanted[2]}x{wanted[1]}: they are stretched or cropped",
                    f"Set width: {wanted[2]} and height: {wanted[1]} in --robot.cameras", 60.0,
                )  # fmt: skip

    def _rate(self) -> None:
        fps, here = self.checkpoint.fps, self.info.fps
        if not fps:
            self.report.untested["the policy's rate"] = "nothing beside it says at which it learned"
        elif abs(fps - here) > 1e-6:
            how = (
                f"{fps / here:.2g} times slower" if fps > here else f"{here / fps:.2g} times faster"
            )
            self.say(
                "wrong_rate", "", f"The policy learned at {fps:g} Hz, {self.here} is at {here:g} "
                f"Hz: its plans are played {how}", f"Run it at its rate: --dataset.fps={fps:g}",
                95.0,
            )  # fmt: skip

    def lacks_normaliser(self) -> list[str]:
        """Return the vectors that should be normalised, and that nothing does normalise."""
        used = {STATE: self.checkpoint.inputs, ACTION: self.checkpoint.outputs}
        modes = self.checkpoint.modes
        return [
            feature
            for feature, shapes in used.items()
            if feature in shapes
            and modes.get("ACTION" if feature == ACTION else "STATE", "IDENTITY") != "IDENTITY"
            and (not self.checkpoint.normalises or self.checkpoint.affine(feature) is None)
        ]

    def _normaliser(self) -> None:
        if bare := self.lacks_normaliser():
            self.say(
                "no_normaliser", "", f"Nothing normalises {' and '.join(bare)}: the policy's "
                "processors lack the statistics of its training set",
                f"Copy policy_preprocessor and policy_postprocessor (.json, .safetensors) from the "
                f"training run to {self.policy}, or make them anew from its training set", 120.0,
            )  # fmt: skip

    def _statistics(self) -> None:
        """Its own statistics must be those of the set that its config names, if that is this."""
        if not self.checkpoint.is_of(self.info.root) or self.checkpoint.episodes is not None:
            return
        far = dict[str, float]()
        for feature in (STATE, ACTION):
            own, here = self.checkpoint.stats.get(feature, {}), self.stats.get(feature, {})
            known = {"mean", "std"} <= own.keys() & here.keys()
            if known and len(own["mean"]) == len(here["mean"]):
                spread = np.maximum(here["std"], 1e-9)
                off = np.abs(own["mean"] - here["mean"]) / spread
                off = np.maximum(off, np.abs(np.log(np.maximum(own["std"], 1e-9) / spread)))
                far |= {n: float(v) for n, v in zip(self.info.names(feature), off, strict=True)}
        worst = max(far, key=lambda n: far[n], default="")
        if worst and far[worst] > SAME_STATS and not self.lacks_normaliser():
            self.say(
                "wrong_statistics", worst, "The policy names this dataset as its training set, and "
                f"normalises by other statistics: {worst} is off by", "Make the processors anew "
                f"from this dataset's statistics, or put back those of the training run: "
                f"{self.policy}", 100.0, apart="a dataset that was changed since",
                size=Estimate(far[worst], far[worst], far[worst]), unit="spreads",
            )  # fmt: skip
        elif far:
            self.report.good["statistics"] = "the policy normalises by this dataset's statistics"

    def _action_kind(self) -> None:
        """Tell positions from changes by how far actions spread beside readings."""
        words = {True: "changes", False: "positions"}
        own, here = (self._are_changes(s) for s in (self.checkpoint.stats, self.stats))
        if own is not None and here is not None and own != here and not self.checkpoint.is_relative:
            self.say(
                "action_kind", "", f"The policy's actions are {words[own]} of the joints, this "
                f"dataset's are {words[here]}",
                "Give both one kind of action: convert this data, or train the policy anew on it",
                115.0,
            )  # fmt: skip

    def _are_changes(self, stats: Stats) -> bool | None:
        """Say whether actions are changes, not positions; None where that can't be told."""
        state, action = (stats.get(feature, {}) for feature in (STATE, ACTION))
        if not {"mean", "std"} <= state.keys() & action.keys():
            return None
        if len(state["mean"]) != len(action["mean"]):
            return None
        names = self.info.names(ACTION)
        arm = [k for k, n in enumerate(names) if not is_grip(n)]
        if not arm or len(names) != len(action["mean"]):
            return None
        wide = float(np.median(action["std"][arm] / np.maximum(state["std"][arm], 1e-9)))
        off = np.abs(action["mean"] - state["mean"])[arm] / np.maximum(state["std"][arm], 1e-9)
        if wide < 0.4:
            return True
        return False if 0.5 < wide < 2.0 and np.median(off) < 0.5 else None

    def _constant(self) -> None:
        for feature in (STATE, ACTION):
            here, own = self.stats.get(feature, {}), self.checkpoint.affine(feature)
            if own is None or "min" not in here or len(own[0]) != len(here["min"]):
                continue
            centre, half = own
            reach = here["max"] - here["min"]
            out = np.maximum(np.abs(here["max"] - centre), np.abs(here["min"] - centre))
            narrow = (half < NARROW * np.maximum(reach, 1e-9)) & (out > HUGE * (half + 1e-8))
            for k in np.flatnonzero(narrow & (reach > 1e-6)):
                name = self.info.names(feature)[k].removesuffix(".pos")
                size = float(min(out[k] / (half[k] + 1e-8), 1e9))
                self.say(
                    "constant_input", name, f"{name} hardly moved in the policy's training and "
                    f"moves here: normalised, its {feature} reaches",
                    "Train on episodes in which it moves, or leave it out of state and action",
                    50.0, size=Estimate(size, size, size), unit="spreads",
                )  # fmt: skip

    def trained_tasks(self) -> tuple[str, ...]:
        """Return the tasks of its training set; () where that isn't here."""
        root = self.checkpoint.trained_on
        return tasks_of(root) if root is not None else ()

    def _task(self) -> None:
        known = self.trained_tasks()
        if not self.checkpoint.reads_text or not known:
            return
        new = [task for task in self.tasks if task not in known]
        if new:
            self.say(
                "wrong_task", new[0], f"The policy reads the task, and never learned "
                f"“{_short(new[0])}”; it knows “{_short(known[0])}”"
                + (f" and {len(known) - 1} more" if len(known) > 1 else ""),
                f"Ask for it in its words: --dataset.single_task={shlex.quote(known[0])}", 80.0,
            )  # fmt: skip


def _short(task: str) -> str:
    words = task.split()
    return " ".join(words[:6]) + (" …" if len(words) > 6 else "")


def tasks_of(root: Path) -> tuple[str, ...]:
    """Return a dataset's tasks in order of their first episode."""
    rows = layout.episode_rows(root)
    return tuple(dict.fromkeys(str(task) for row in rows for task in row.get("tasks") or ()))

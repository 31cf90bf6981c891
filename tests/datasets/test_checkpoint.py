"""A policy against data: what its files say, what it commands, and where rollouts leave its data.

The policy here is a memory: it answers with what followed the most alike moment that it was shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.checkpoint import CAMERAS, JOINTS, PLANTED, PX, MadeEpisode, episode, write
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.datasets import layout
from gaploop.datasets.absolute.checkpoint import (
    Checkpoint,
    CheckpointTests,
    Stats,
    read_checkpoint,
    tasks_of,
)
from gaploop.datasets.absolute.demonstrated import DemonstratedTests
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.mistakes import Pictures
from gaploop.datasets.absolute.open_loop import OpenLoop, read_rows, statistics

CHUNK = 8
FPS = 10.0
STATE = "observation.state"
VECTOR = (len(JOINTS),)
PICTURE = (3, PX, PX)
SHAPES = {STATE: VECTOR, **{f"observation.images.{name}": PICTURE for name in CAMERAS}}


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[MadeEpisode], Path]:
    """Return demonstrations, in memory and as a dataset."""
    rng = np.random.default_rng(3)
    made = [episode(rng, FPS) for _ in range(8)]
    return made, write(tmp_path_factory.mktemp("shown") / "set", made, FPS)


def stats_of(episodes: Sequence[MadeEpisode]) -> Stats:
    return {
        "action": statistics(np.concatenate([e.command for e in episodes])),
        STATE: statistics(np.concatenate([e.reading for e in episodes])),
    }


class Memory:
    """Answers with what followed the most alike moment, as it learned it."""

    cameras: tuple[str, ...] = CAMERAS

    def __init__(self, episodes: Sequence[MadeEpisode], off: FloatArray | float = 0.0) -> None:
        self.spread = np.concatenate([e.reading for e in episodes]).std(axis=0)
        self.off = off
        self.known = np.concatenate([
            self._key(e.reading, {f"observation.images.{k}": v for k, v in e.pictures.items()})
            for e in episodes
        ])  # fmt: skip
        steps = np.arange(CHUNK)
        self.ahead = np.concatenate([
            e.command[np.minimum(np.arange(len(e.command))[:, None] + steps, len(e.command) - 1)]
            for e in episodes
        ])  # fmt: skip

    def _key(self, state: FloatArray, pictures: Any) -> FloatArray:
        shown = [np.asarray(pictures[f"observation.images.{name}"]) for name in self.cameras]
        small = [s[:, 2::8, 2::8].reshape(len(s), -1) / 255.0 for s in shown]
        return np.concatenate([state / self.spread, *small], axis=1)

    def __call__(
        self, state: FloatArray, pictures: Pictures, scene: FloatArray | None, tasks: Sequence[str]
    ) -> FloatArray:
        del scene, tasks
        keys = self._key(state[:, -1], {n: v[:, -1] for n, v in pictures.items()})
        square = (self.known**2).sum(axis=1) - 2 * keys @ self.known.T
        return np.asarray(self.ahead[square.argmin(axis=1)] + self.off)


def asked(
    root: Path, made: Sequence[MadeEpisode], policy: Memory | None = None, **changes: Any
) -> AbsoluteReport:
    """Ask a policy that learned `made` about the dataset at `root`."""
    modes = dict.fromkeys(("STATE", "ACTION"), "MEAN_STD")
    known = Checkpoint(
        Path("policy"), SHAPES, {"action": VECTOR}, modes, stats_of(made), True, False,
        chunk=CHUNK, fps=FPS,
    )  # fmt: skip
    report = AbsoluteReport(root)
    known = replace(known, **changes)
    tests = CheckpointTests(known, layout.read_info(root), {}, tasks_of(root), report)
    table = read_rows(known, tests)
    tests.stats = {
        k: statistics(np.asarray(table.columns[k], np.float64)) for k in ("action", STATE)
    }
    tests.run()
    OpenLoop(tests, table, policy or Memory(made)).run(demonstrations=True)
    report.rank()
    return report


def test_a_policy_that_fits_is_accused_of_nothing(shown: tuple[list[MadeEpisode], Path]) -> None:
    made, root = shown
    report = asked(root, made)
    assert not report.findings
    assert "the policy commands what they do to 0%" in report.good["reproduction"]


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("swapped joints", "exchanged"),
        ("reversed sign", "the other way round"),
        ("swapped cameras", "top and side exchanged"),
        ("other colour order", "red and blue exchanged"),
        ("delta for absolute", "taken for changes"),
    ],
)
def test_a_mistake_in_what_was_recorded_is_named(
    shown: tuple[list[MadeEpisode], Path], tmp_path: Path, mistake: str, words: str
) -> None:
    of, (made, _) = PLANTED[mistake], shown
    assert of.data is not None
    there = write(tmp_path / "set", of.data(made, np.random.default_rng(0)), FPS)
    first = asked(there, made).findings[0]
    assert (first.kind, words in first.sentence) == (of.named[0], True), first.line()
    assert len(first.sentence.split()) <= 30


def test_a_mistake_in_what_was_saved_is_named(shown: tuple[list[MadeEpisode], Path]) -> None:
    made, root = shown
    other = {
        k: v | {"mean": v["mean"] + 2 * v["std"], "std": v["std"] * np.linspace(0.5, 2, 6)}
        for k, v in stats_of(made).items()
    }
    wrong = _normalising(Memory(made), stats_of(made), other)
    assert asked(root, made, wrong, stats=other).findings[0].kind == "wrong_statistics"
    bare = _normalising(Memory(made), stats_of(made), None)
    report = asked(root, made, bare, stats={}, normalises=False)
    assert [f.kind for f in report.findings] == ["no_normaliser"]


def _normalising(memory: Memory, right: Stats, used: Stats | None) -> Any:
    """Return a policy that learned normalised values, and is given others' statistics."""

    def of(stats: Stats | None, feature: str) -> tuple[Any, Any]:
        return (stats[feature]["mean"], stats[feature]["std"]) if stats else (0.0, 1.0)

    def ask(state: FloatArray, *rest: Any) -> FloatArray:
        (m, s), (rm, rs) = of(used, STATE), of(right, STATE)
        plan = memory((state - m) / s * rs + rm, *rest)
        (m, s), (rm, rs) = of(used, "action"), of(right, "action")
        return np.asarray((plan - rm) / rs * s + m)

    return ask


def test_a_policy_that_learned_nothing_and_one_that_ignores_a_camera_are_told(
    shown: tuple[list[MadeEpisode], Path],
) -> None:
    made, root = shown
    far = np.array([60.0, -60, 60, -60, 60, 40])
    (found,) = asked(root, made, Memory(made, far)).findings
    assert found.kind == "undertrained"
    assert "more than an arm that stands still" in found.sentence

    class Blind(Memory):
        cameras = ("top",)

    (found,) = asked(root, made, Blind(made)).findings
    assert (found.kind, found.about) == ("ignored_camera", "side")


def fork(one: MadeEpisode, n: int) -> MadeEpisode:
    """Go round something to one side or the other; nothing that is seen tells which."""
    command, rows = one.command.copy(), slice(round(0.3 * FPS), round(1.5 * FPS))
    command[rows, 3] += 30.0 * (-1) ** (n // 2) * np.hanning(rows.stop - rows.start)
    return replace(one, command=command)


def test_two_ways_are_told_only_where_the_policy_goes_between(tmp_path: Path) -> None:
    """Both ways may be right where a camera tells which; their mean never is."""
    rng, plain = np.random.default_rng(5), list[MadeEpisode]()
    for _ in range(20):
        one, off = episode(np.random.default_rng(1), FPS), rng.normal(0, 3, 6)
        plain.append(replace(one, command=one.command + off, reading=one.reading + off))
    made = [fork(one, n) for n, one in enumerate(plain)]
    root = write(tmp_path / "set", made, FPS)
    (found,) = asked(root, made, Memory(plain)).findings
    assert (found.kind, len(found.sentence.split()) <= 30) == ("two_ways", True)
    assert not asked(root, made).findings
    straight = write(tmp_path / "straight", plain, FPS)
    assert not asked(straight, plain).findings


def test_too_few_demonstrations_are_told_by_those_held_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    made = list[MadeEpisode]()
    for _ in range(36):  # where it goes follows from where it stands
        one, off = episode(np.random.default_rng(1), FPS), np.zeros(6)
        off[:3] = rng.uniform(-60, 60, 3)
        made.append(replace(one, command=one.command * (1 + off / 90), reading=one.reading + off))
    root, known = write(tmp_path / "set", made, FPS), tuple(range(20))
    few = asked(root, made, Memory(made[:20]), trained_on=root, episodes=known)
    assert [f.kind for f in few.findings] == ["too_few"], [f.line() for f in few.findings]
    assert len(few.findings[0].sentence.split()) <= 30
    assert not asked(root, made, trained_on=root, episodes=known).findings


@pytest.mark.members(4)
@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"fps": 2 * FPS}, "wrong_rate", "learned at 20 Hz, this dataset is at 10 Hz"),
        ({"inputs": SHAPES | {"observation.images.wrist": PICTURE}}, "wrong_features", "sees"),
        ({"inputs": SHAPES | {STATE: (7,)}}, "wrong_features", "7 entries, this dataset's 6"),
        ({"inputs": SHAPES | {"observation.images.top": (3, 48, 64)}}, "wrong_crop", "64x48"),
        ({"names": tuple(f"{j}.pos" for j in reversed(JOINTS))}, "joint_order", "another order"),
        ({"normalises": False}, "no_normaliser", "Nothing normalises observation.state and action"),
        ({"reads_text": True, "other": True}, "wrong_task", "never learned “Move"),
        ({"mine": True}, "wrong_statistics", "names this dataset as its training set"),
        ({"still": True}, "constant_input", "hardly moved in the policy's training"),
    ],
)
def test_what_its_files_say_is_held_against_the_data(
    shown: tuple[list[MadeEpisode], Path],
    tmp_path: Path,
    changes: dict[str, Any],
    kind: str,
    words: str,
) -> None:
    made, root = shown
    stats = {k: {n: v.copy() for n, v in s.items()} for k, s in stats_of(made).items()}
    if changes.pop("other", False):
        few = [replace(e, task="Stir", pictures={}) for e in made[:2]]
        changes["trained_on"] = write(tmp_path / "other", few, FPS)
    if changes.pop("mine", False):
        changes |= {"trained_on": root, "stats": stats}
        stats["action"]["mean"][2] += 20.0
    if changes.pop("still", False):
        changes["stats"] = stats
        stats[STATE]["std"][1] = 1e-6
    modes = dict.fromkeys(("STATE", "ACTION"), "MEAN_STD")
    known = Checkpoint(
        Path("policy"), SHAPES, {"action": VECTOR}, modes, stats_of(made), True, False,
        fps=FPS,
    )  # fmt: skip
    report = AbsoluteReport(root)
    known = replace(known, **changes)
    CheckpointTests(known, layout.read_info(root), stats_of(made), tasks_of(root), report).run()
    (found,) = report.findings
    assert (found.kind, words in found.sentence) == (kind, True), found.line()
    assert found.command


def test_a_policys_folder_is_read_without_torch(tmp_path: Path) -> None:
    step = {"registry_name": "normalizer_processor", "state_file": "numbers.safetensors"}
    (tmp_path / "config.json").write_text(
        json.dumps({
            "type": "act", "chunk_size": 50, "n_obs_steps": 1,
            "input_features": {STATE: {"type": "STATE", "shape": [2]}},
            "normalization_mapping": {"STATE": "MIN_MAX"},
        })
    )  # fmt: skip
    (tmp_path / "policy_preprocessor.json").write_text(json.dumps({"steps": [step]}))
    numbers = {f"{STATE}.min": [-1.0, 0.0], f"{STATE}.max": [3.0, 2.0]}
    arrays = {k: np.array(v, np.float32) for k, v in numbers.items()}
    save_file(arrays, tmp_path / "numbers.safetensors")
    known = read_checkpoint(tmp_path)
    assert (known.chunk, known.inputs) == (50, {STATE: (2,)})
    middle_and_half = known.affine(STATE)
    assert middle_and_half is not None
    assert [x.tolist() for x in middle_and_half] == [[1.0, 1.0], [2.0, 1.0]]
    (tmp_path / "numbers.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(UnusableInputError, match=r"numbers\.safetensors"):
        read_checkpoint(tmp_path)


def _moved(episodes: list[MadeEpisode]) -> list[MadeEpisode]:
    off = np.array([0.0, 90.0, 0, 0, 0, 0])
    return [replace(e, reading=e.reading + off) for e in episodes]


def _exchanged(episodes: list[MadeEpisode]) -> list[MadeEpisode]:
    return [
        replace(e, pictures={"top": e.pictures["side"], "side": e.pictures["top"]})
        for e in episodes
    ]


def _cut(episodes: list[MadeEpisode]) -> list[MadeEpisode]:
    of = PLANTED["wrong crop"].data
    assert of is not None
    return of(episodes, np.random.default_rng(0))


def _grasped_elsewhere(episodes: list[MadeEpisode]) -> list[MadeEpisode]:
    made = []
    for e in episodes:
        off = np.zeros_like(e.reading)
        off[:, 1] = np.interp(np.arange(len(off)), [0, FPS, 2 * FPS], [0.0, 120.0, 120.0])
        made.append(replace(e, reading=e.reading + off))
    return made


def _with_something_new(episodes: list[MadeEpisode]) -> list[MadeEpisode]:
    made = []
    for e in episodes:
        top = e.pictures["top"].copy()
        top[:1, :20, 5:50] = 255
        made.append(replace(e, pictures={**e.pictures, "top": top}))
    return made


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda e: e, set()),
        (_moved, {"start_outside", "left_demonstrations"}),
        (_exchanged, {"camera_order"}),
        (_cut, {"wrong_crop"}),
        (_grasped_elsewhere, {"grasp_outside", "left_demonstrations"}),
        (_with_something_new, {"scene_outside"}),
    ],
)
def test_rollouts_that_leave_the_demonstrations_are_told(
    shown: tuple[list[MadeEpisode], Path],
    tmp_path: Path,
    change: Callable[[list[MadeEpisode]], list[MadeEpisode]],
    kinds: set[str],
) -> None:
    made, root = shown
    there = write(tmp_path / "rollouts", change(made[:4]), FPS)
    report = AbsoluteReport(there)
    tests = CheckpointTests(
        Checkpoint(Path("p"), SHAPES, {}, {}, {}, True, False), layout.read_info(there), {},
        (), report,
    )  # fmt: skip
    DemonstratedTests(root, read_rows(tests.checkpoint, tests), report).run(demonstrations=False)
    assert {f.kind for f in report.findings} == kinds, [f.line() for f in report.findings]
    assert all(f.about in ("shoulder", *CAMERAS) for f in report.findings)

"""A publish that dies, at whatever step, leaves a dataset that loads with all published before."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gaploop.datasets import staging
from gaploop.datasets.lerobot_publish import publish, publish_takes
from gaploop.datasets.lerobot_read import read_takes

Write = Callable[..., str]
STEPS = ("cloned", "take written", "finalized", "columns written", "synced", "swapped")
DIED = 9


def dies_at(step: str, journal: Path, root: Path) -> None:
    """Publish in a child process that ends, without any cleanup, when it reaches `step`."""

    def hook(reached: str) -> None:
        if reached == step:
            os._exit(DIED)

    child = os.fork()
    if child == 0:
        try:
            publish_takes(journal, root, "me/x", hook=hook)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED


@pytest.mark.members(2)
@pytest.mark.parametrize("step", STEPS)
def test_dying_at_any_step_keeps_what_was_published(
    tmp_path: Path, write_take: Write, step: str
) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    journal, root = tmp_path / "journal", tmp_path / "set"
    before = [write_take(journal, code=i) for i in range(2)]
    publish(journal, root, "me/x")
    both = before + [write_take(journal, code=10 + i) for i in range(2)]

    dies_at(step, journal, root)
    found = [t.info.uid for t in read_takes(root)]
    assert found == (both if step == "swapped" else before)
    assert len(LeRobotDataset("me/x", root=root)) == 7 * len(found)

    assert publish(journal, root, "me/x") == len(both) - len(found)
    assert [t.info.uid for t in read_takes(root)] == both
    assert sorted(p.name for p in tmp_path.iterdir()) == [".set.lock", "journal", "set"]


def test_dying_before_anything_was_published_leaves_nothing_half(
    tmp_path: Path, write_take: Write
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    write_take(journal)
    dies_at("finalized", journal, root)
    assert not root.exists()
    assert publish(journal, root, "me/x") == 1


def cannot_exchange(_a: Path, _b: Path) -> bool:
    return False


def folder(path: Path, word: str) -> Path:
    path.mkdir(parents=True)
    (path / "word").write_text(word)
    return path


def test_without_exchange_a_kill_between_the_renames_is_put_right(tmp_path: Path) -> None:
    class DiedError(Exception):
        pass

    def die(step: str) -> None:
        if step == "renamed away":
            raise DiedError

    root = folder(tmp_path / "set", "old")
    stage = folder(staging.sibling(root, "staging"), "new")
    with pytest.raises(DiedError):
        staging.commit(stage, root, die, exchange=cannot_exchange)
    assert not root.exists()
    staging.recover(root)
    assert (root / "word").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_both_ways_of_swapping_end_alike(tmp_path: Path) -> None:
    for name, exchange in (("a", None), ("b", cannot_exchange)):
        root = folder(tmp_path / name / "set", "old")
        stage = folder(staging.sibling(root, "staging"), "new")
        staging.commit(stage, root, exchange=exchange)
        assert (root / "word").read_text() == "new"
        assert [p.name for p in root.parent.iterdir()] == ["set"]


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path: Path, write_take: Write) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    script = (
        "import sys; from pathlib import Path; "
        "from gaploop.datasets.lerobot_publish import publish; print('ready', flush=True); "
        "publish(Path(sys.argv[1]), Path(sys.argv[2]), 'me/x')"
    )
    draw, known = random.Random(0), 0
    for round_ in range(8):
        for i in range(3):
            write_take(journal, code=100 * round_ + 10 * i)
        with subprocess.Popen(
            [sys.executable, "-c", script, str(journal), str(root)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(draw.uniform(0, 1.5))
            child.send_signal(signal.SIGKILL)
        now = len(list(read_takes(root))) if root.exists() else 0
        assert now >= known
        known = now
    publish(journal, root, "me/x")
    assert len(list(read_takes(root))) == 24

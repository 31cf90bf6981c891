"""A loopback Hub for all of these tests, a small dataset, and LeRobot in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

import quick_imports
from loopback_hub import LoopbackHub, loopback_hub

from gaploop.core.consent import ENVIRONMENT as CONSENTS
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.hub import dataset as hub_dataset
from gaploop.datasets.hub import upload as transport
from gaploop.datasets.hub.dataset import PushOptions, push_dataset
from gaploop.datasets.hub.target import HubTarget
from gaploop.datasets.hub.upload import Contents, HubFile, Patience, Pushed
from gaploop.datasets.lerobot_publish import publish

NAME = "me/cube"
LOADER = """
import json, sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset

for line in sys.stdin:
    try:
        data = LeRobotDataset(*json.loads(line)[:1], root=json.loads(line)[1])
        item = data[len(data) - 1]
        said = {"episodes": data.num_episodes, "frames": len(data), "revision": data.revision,
                "state": [round(float(x), 4) for x in item["observation.state"]]}
    except Exception as error:
        said = {"error": repr(error)}
    print(json.dumps(said), flush=True)
"""


@pytest.fixture(scope="session")
def _running() -> Iterator[LoopbackHub]:
    with loopback_hub() as running:
        yield running


@pytest.fixture
def hub(_running: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """Return an empty Hub that the environment names; the consents are the test's own."""
    _running.reset()
    monkeypatch.setenv("HF_ENDPOINT", _running.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv(CONSENTS, str(tmp_path / "consents.jsonl"))
    monkeypatch.delenv("HF_HUB_DISABLE_XET", raising=False)
    return _running


@pytest.fixture(scope="session")
def _lerobot(
    _running: LoopbackHub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[str]]:
    home = tmp_path_factory.mktemp("hf_home")
    env = {**os.environ, "HF_ENDPOINT": _running.url, "HF_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-c", quick_imports.FIRST + LOADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    with process:
        yield process
        process.kill()


@pytest.fixture
def lerobot_loads(
    _lerobot: subprocess.Popen[str], hub: LoopbackHub, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Return what plain LeRobot says of a dataset that it downloads from the Hub."""
    count = 0

    def load(name: str = NAME) -> dict[str, Any]:
        nonlocal count
        count += 1
        hub.faults.clear()
        assert _lerobot.stdin is not None
        assert _lerobot.stdout is not None
        print(json.dumps([name, str(tmp_path / f"download{count}")]), file=_lerobot.stdin)
        _lerobot.stdin.flush()
        said: dict[str, Any] = json.loads(_lerobot.stdout.readline())
        assert "error" not in said, said["error"]
        return said

    return load


@pytest.fixture(scope="session")
def _published(write_take: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    journal, root = folder / "journal", folder / "cube"
    write_take(journal, 7, code=3, domain=Domain.SIM_TARGET, dimensions={"object_property": 1.0},
               conditions={"distractors": 4, "lighting": "dim"})  # fmt: skip
    write_take(journal, 5, Outcome.FAILURE, code=20, domain=Domain.SIM_TARGET,
               kind=TakeKind.ROLLOUT, dimensions={"contact_dynamics": 0.8})  # fmt: skip
    write_take(journal, 6, code=40, domain=Domain.SIM)
    publish(journal, root, NAME)
    return root


@pytest.fixture
def dataset(_published: Path, tmp_path: Path) -> Path:
    """Return a dataset of three takes that the test may change."""
    root = tmp_path / "cube"
    shutil.copytree(_published, root)
    return root


@pytest.fixture(scope="session")
def packed(_published: Path, _running: LoopbackHub) -> tuple[Path, Contents]:
    """Return a dataset and what a push makes of it, looked at once for many tests."""
    options = PushOptions()
    look = hub_dataset.inspect(_published, options)
    target = HubTarget(NAME, "dataset", _running.url)
    return _published, hub_dataset.pack(look, target, options, "").contents


@pytest.fixture
def push_packed(hub: LoopbackHub, packed: tuple[Path, Contents]) -> Callable[..., Path]:
    """Return a function that pushes what is packed and returns the dataset's folder."""

    def push(notice: str = "", private: bool | None = None, timeout_s: float = 30.0) -> Path:
        """Push; with a `notice`, what is pushed differs from what was pushed without."""
        root, contents = packed
        more = (HubFile("NOTICE", notice.encode()),) if notice else ()
        patience = Patience(3 if timeout_s > 1 else 9, wait_s=0.01, timeout_s=timeout_s)
        target = HubTarget(NAME, "dataset", hub.url, private)
        transport.push(target, replace(contents, files=contents.files + more), patience)
        return root

    return push


@pytest.fixture
def push(hub: LoopbackHub) -> Callable[..., Pushed]:
    """Return a function that pushes a dataset, with little patience."""

    def push(root: Path, name: str = NAME, **options: Any) -> Pushed:
        private = options.pop("private", None)
        patience = Patience(options.pop("retries", 3), wait_s=0.01, timeout_s=30.0)
        target = HubTarget(name, "dataset", hub.url, private)
        return push_dataset(root, target, PushOptions(patience=patience, **options))[0]

    return push

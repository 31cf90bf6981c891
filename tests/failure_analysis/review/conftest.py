"""One small dataset and journal with video, made once and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.review_dataset import write_dataset
from gaploop.core import labels
from gaploop.core.labels import LabelEvent
from gaploop.datasets.labels import LabelStore, open_labelled

TAKES = 6


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("review")
    write_dataset(folder / "data", TAKES)
    return folder


@pytest.fixture
def dataset(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "data", tmp_path / "data"))


@pytest.fixture
def journal(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "data_journal", tmp_path / "journal"))


@pytest.fixture(params=["dataset", "journal"])
def store(request: pytest.FixtureRequest) -> LabelStore:
    return open_labelled(request.getfixturevalue(request.param))


@pytest.fixture
def say() -> Callable[..., None]:
    """Return a function that has somebody say something about a take, by its index."""

    def said(
        root: Path, index: int, author: str, source: str = "engineer", **values: object
    ) -> None:
        known = open_labelled(root)
        uid, at = known.episodes[index].info.uid, labels.now()
        events = [LabelEvent(uid, n, v, author, source, at) for n, v in values.items()]
        known.write(events)

    return said

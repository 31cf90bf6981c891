from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.mixing.selection import SELECTIONS
from gaploop.finetune.batches import load_source

type WriteDataset = Callable[..., Path]

FAILED_ROLLOUT = {"kind": TakeKind.ROLLOUT, "outcome": Outcome.FAILURE}
GOOD_ROLLOUT = {"kind": TakeKind.ROLLOUT, "outcome": Outcome.SUCCESS}


def test_a_failed_take_is_never_a_demonstration_by_accident(write_dataset: WriteDataset) -> None:
    root = write_dataset(
        "mixed", [{}, {"outcome": Outcome.FAILURE}, FAILED_ROLLOUT, GOOD_ROLLOUT, {}]
    )
    assert [e.index for e in load_source(root).episodes] == [0, 4]
    assert [e.index for e in load_source(root, "successful").episodes] == [0, 3, 4]
    assert len(load_source(root, "all").episodes) == 5


def test_of_a_rollout_only_what_a_person_drove_counts(write_dataset: WriteDataset) -> None:
    root = write_dataset("helped", [{**FAILED_ROLLOUT, "intervened": True}])
    (episode,) = load_source(root).episodes
    assert np.flatnonzero(episode.usable).tolist() == [3, 4, 5, 6]


def test_what_is_read_is_what_was_recorded(write_dataset: WriteDataset) -> None:
    from gaploop.finetune import batches

    root = write_dataset("one", [{"plan": "pose-1", "domain": Domain.SIM_TARGET}])
    source = load_source(root)
    assert source.domain is Domain.SIM_TARGET
    assert source.episodes[0].plan == "pose-1"
    assert source.signature.fps == 50
    assert source.signature.units == "deg"
    assert source.signature.environment_names[-1] == batches.DOMAIN
    assert source.episodes[0].state.shape == (12, 3)


@pytest.mark.parametrize(
    ("takes", "select", "word"),
    [
        ([{"outcome": Outcome.FAILURE}], "demonstrations", "leaves none"),
        ([{"outcome": Outcome.UNLABELLED}], "demonstrations", "gaploop label"),
        ([{"domain": Domain.SIM}, {"domain": Domain.REAL}], "all", "mixes"),
        ([{}], "everything", "demonstrations"),
    ],
)
def test_what_can_not_be_trained_on_is_refused_with_the_mend(
    write_dataset: WriteDataset, takes: list[dict[str, object]], select: str, word: str
) -> None:
    root = write_dataset("bad", takes)
    with pytest.raises(UnusableInputError, match=word) as caught:
        load_source(root, select)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_and_a_missing_episode_are_named(
    write_dataset: WriteDataset, tmp_path: Path
) -> None:
    with pytest.raises(UnusableInputError, match="not found"):
        load_source(tmp_path / "nowhere")
    with pytest.raises(UnusableInputError, match="no episode 7"):
        load_source(write_dataset("short", [{}]), episodes=[7])


def test_every_selection_is_explained() -> None:
    assert all(SELECTIONS.values())

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import SELECTIONS, Domain, Outcome, TakeKind
from gaploop.datasets.mixing.mixture import MixtureStage
from gaploop.finetune.batches import MixedBatches, TrainingSource, check_signature, load_source

type MakeSource = Callable[..., TrainingSource]
type WriteDataset = Callable[..., Path]

FAILED_ROLLOUT = {"kind": TakeKind.ROLLOUT, "outcome": Outcome.FAILURE}
GOOD_ROLLOUT = {"kind": TakeKind.ROLLOUT, "outcome": Outcome.SUCCESS}


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9])
def test_shares_converge_to_what_was_asked(make_source: MakeSource, share: float) -> None:
    """Whatever the sizes of the sources: a large one doesn't crowd a small one out."""
    sources = [make_source(3), make_source(30, first=50)]
    mixture = MixedBatches(
        sources, [MixtureStage((share, 1 - share))], chunk=4, batch_size=500, seed=3
    )
    drawn = np.concatenate([mixture.batch(k).source for k in range(40)])
    assert abs((drawn == 0).mean() - share) < 0.01


def test_a_batch_depends_on_seed_and_step_alone(make_source: MakeSource) -> None:
    one, two = (
        MixedBatches([make_source()], [MixtureStage((1.0,))], chunk=4, batch_size=8, seed=5)
        for _ in range(2)
    )
    for k in (7, 3, 7):
        assert np.array_equal(one.batch(k).action, two.batch(k).action)
    assert not np.array_equal(one.batch(7).action, one.batch(8).action)


def test_a_chunk_never_reaches_into_another_take_or_past_a_span(make_source: MakeSource) -> None:
    source = make_source(3)
    usable = np.zeros(12, dtype=bool)
    usable[3:7] = True
    source = replace(source, episodes=tuple(replace(e, usable=usable) for e in source.episodes))
    batch = MixedBatches([source], [MixtureStage((1.0,))], chunk=6, batch_size=200, seed=0).batch(0)
    for state, action, is_pad in zip(batch.state, batch.action, batch.is_pad, strict=True):
        home = next(e for e in source.episodes if (e.state == state).all(axis=1).any())
        first = int(np.flatnonzero((home.state == state).all(axis=1))[0])
        assert 3 <= first < 7
        length = int((~is_pad).sum())
        assert length == min(6, 7 - first)
        assert np.array_equal(action[:length], home.action[first : first + length])


def test_the_domain_entry_is_random_in_pretraining_and_has_a_scale(
    make_source: MakeSource,
) -> None:
    mixture = MixedBatches(
        [make_source()],
        [MixtureStage((1.0,))],
        chunk=4,
        batch_size=400,
        seed=0,
        randomise_domain=True,
    )
    assert abs(mixture.batch(0).environment[:, 2].mean() - 0.5) < 0.1
    scale = mixture.moments()["environment"]
    assert scale.mean[2] == scale.std[2] == 0.5
    assert (scale.std > 0.01).all()


def test_a_constant_entry_is_not_divided_by_zero(make_source: MakeSource) -> None:
    source = make_source()
    still = tuple(replace(e, state=np.full_like(e.state, 7.0)) for e in source.episodes)
    moments = MixedBatches(
        [replace(source, episodes=still)], [MixtureStage((1.0,))], chunk=2, batch_size=2, seed=0
    ).moments()
    assert (moments["state"].std == 1).all()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"fps": 30.0}, "fps"),
        ({"state_names": ("a.pos",)}, "state names"),
        ({"action_names": ("lift.pos", "pan.pos", "gripper.pos")}, "action names"),
        ({"environment_names": ("x",)}, "environment names"),
        ({"units": "rad"}, "units"),
    ],
)
def test_sources_that_differ_are_not_mixed(
    make_source: MakeSource, changes: dict[str, object], word: str
) -> None:
    other = make_source(first=9, **changes)
    with pytest.raises(UnusableInputError, match=word):
        MixedBatches(
            [make_source(), other], [MixtureStage((1.0, 1.0))], chunk=4, batch_size=4, seed=0
        )


def test_units_that_one_side_does_not_state_are_no_difference(make_source: MakeSource) -> None:
    ours = make_source(domain=Domain.REAL).signature
    check_signature(replace(ours, units=""), ours, "a", "b")


@pytest.mark.parametrize("shares", [[0, 0], [-1, 2], [1]])
def test_shares_that_make_no_sense_are_refused(
    make_source: MakeSource, shares: list[float]
) -> None:
    with pytest.raises(UnusableInputError):
        MixedBatches(
            [make_source(), make_source()],
            [MixtureStage(tuple(shares))],
            chunk=4,
            batch_size=4,
            seed=0,
        )


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
        ([{"outcome": Outcome.UNLABELLED}, {}], "demonstrations", "gaploop label"),
        ([{"domain": Domain.SIM}, {"domain": Domain.REAL}], "all", "mixes"),
        ([{}], "everything", "demonstrations"),
    ],
)
def test_what_can_not_be_trained_on_is_refused_with_the_fix(
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

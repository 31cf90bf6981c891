"""Visual randomisation of training pictures: what it changes, and that a draw is the same again."""

from __future__ import annotations

import pytest
import torch

from gaploop.core.errors import UnusableInputError
from gaploop.finetune.tuning.lerobot_image_policy import Randomiser, plates
from gaploop.finetune.tuning.presets import Randomise

CAMERA = "observation.images.overhead"


def pictures() -> dict[str, torch.Tensor]:
    """Return eight pictures of a grey table, a white square somewhere else in each."""
    frames = torch.full((8, 3, 24, 24), 0.5)
    for n, frame in enumerate(frames):
        frame[:, 2 * n : 2 * n + 4, 2 * n : 2 * n + 4] = 1.0
    return {CAMERA: frames, "action": torch.zeros(8, 6)}


def randomised(*kinds: str, step: int = 10, seed: int = 0) -> torch.Tensor:
    batch = pictures()
    options = Randomise(1.0, kinds=kinds)
    changed = Randomiser(options, 10, (seed,), plates(batch))(batch, step)
    assert changed["action"] is batch["action"]
    found: torch.Tensor = changed[CAMERA]
    return found


@pytest.mark.parametrize("kind", ["light", "camera", "background"])
def test_a_draw_depends_on_seed_and_step_alone(kind: str) -> None:
    """A resumed run must see the same pictures."""
    assert torch.equal(randomised(kind), randomised(kind))
    assert not torch.equal(randomised(kind), randomised(kind, step=11))
    assert not torch.equal(randomised(kind), randomised(kind, seed=1))
    assert ((randomised(kind) >= 0) & (randomised(kind) <= 1)).all()


def test_a_replaced_background_leaves_what_moves() -> None:
    before, after = pictures()[CAMERA], randomised("background")
    things = before == 1.0
    assert torch.equal(after[things], before[things])
    assert not torch.equal(after[~things], before[~things])


def test_nothing_is_changed_where_no_kind_is_named_or_the_ramp_begins() -> None:
    batch = pictures()
    assert torch.equal(randomised(), batch[CAMERA])
    begun = Randomiser(Randomise(1.0), 100, (0,), {})(batch, 0)
    assert begun is batch


def test_an_unknown_kind_lists_the_kinds() -> None:
    with pytest.raises(UnusableInputError, match="background, camera, light"):
        Randomise(1.0, kinds=("colour",))


def test_an_episode_may_keep_its_look() -> None:
    """Light and camera of an episode's pictures are then the same in every step and place."""
    batch = {**pictures(), "episode_index": torch.tensor([0, 1, 0, 1, 2, 2, 3, 3])}
    batch[CAMERA][:] = batch[CAMERA][:1]
    kept = Randomiser(Randomise(1.0, "episode", ("light", "camera")), 10, (0,), {})
    found = [kept(batch, step)[CAMERA] for step in (10, 11)]
    assert torch.equal(*found)
    assert torch.equal(found[0][0], found[0][2])
    assert not torch.equal(found[0][0], found[0][1])
    with pytest.raises(UnusableInputError, match="episode, frame"):
        Randomise(1.0, every="picture")

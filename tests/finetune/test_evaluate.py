"""Rolling out on the embedded cell, and the base that ships."""

from __future__ import annotations

import json

import pytest

from gaploop.core.errors import GaploopError
from gaploop.core.files import sha256
from gaploop.core.vocabulary import Domain
from gaploop.finetune.demonstrations import (
    scripted_source,
)
from gaploop.finetune.evaluate import condition_name, evaluate
from gaploop.finetune.evaluation import Evaluation
from gaploop.finetune.lerobot_policy import PACKAGED_BASE, load_policy, policy_id

SHORT_S = 0.2


@pytest.mark.slow  # two more processes import PyTorch
def test_rollouts_pair_up_whatever_the_workers_and_the_order() -> None:
    one = evaluate("base", 5, workers=1, max_s=SHORT_S)
    two = evaluate("base", 5, workers=2, max_s=SHORT_S)
    assert one == two
    assert [r.seed for r in one.outcomes] == list(range(5))
    assert one.domain is Domain.SIM


def test_conditions_are_tried_one_at_a_time_and_called_sim_to_sim() -> None:
    told: list[int] = []
    result = evaluate(
        "base",
        2,
        conditions=[{}, {"distractors": 2}],
        gaps={"visual_domain": 0.5},
        workers=1,
        max_s=SHORT_S,
        on_rollouts=lambda done: told.append(len(done)),
    )
    assert set(result.by_condition) == {"nominal", "distractors=2"}
    assert sum(told) == result.trials == 4
    assert "sim-to-sim" in result.to_json()["evidence"]
    assert Evaluation.from_json(json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.parametrize(
    "wrong",
    [{"gaps": {"contact": 0.5}}, {"conditions": [{"colour": 1}]}, {"n": 0}, {"task": "juggle"}],
)
def test_what_can_not_be_tried_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(GaploopError) as caught:
        evaluate("base", **{"n": 1, "workers": 1, "max_s": SHORT_S, **wrong})  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


def test_conditions_are_named_by_what_they_set() -> None:
    assert condition_name({}) == "nominal"
    assert condition_name({"lighting": "dim", "distractors": 2}) == "distractors=2, lighting=dim"


def test_the_packaged_base_is_small_whole_and_says_how_to_rebuild_it() -> None:
    said = json.loads((PACKAGED_BASE / "base.json").read_text())
    assert said["sha256"] == sha256(PACKAGED_BASE / "model.safetensors")
    assert said["policy"] == policy_id("base")
    assert said["command"].startswith("gaploop finetune --policy.type=act")
    assert said["evaluation"]["successes"] >= 0.95 * said["evaluation"]["trials"]
    assert said["evaluation"]["trials"] >= 100
    assert sum(p.stat().st_size for p in PACKAGED_BASE.iterdir()) <= 2e6


def test_the_packaged_base_runs_the_tracker_under_plain_lerobot() -> None:
    steps = json.loads((PACKAGED_BASE / "policy_preprocessor.json").read_text())["steps"]
    assert any(s.get("class", "").endswith("lerobot_tracker_step.TrackerStep") for s in steps)
    assert load_policy("base").fps == 50


def test_the_packaged_base_solves_the_nominal_cell() -> None:
    assert evaluate("base", 2, seed=900, workers=1).successes == 2


@pytest.mark.slow
def test_the_packaged_base_keeps_its_rate() -> None:
    """95 % over 100 scenes, less what chance may take (binomial, 1 %)."""
    assert evaluate("base", 100, seed=5000).successes >= 89


@pytest.mark.slow
def test_scripted_takes_do_not_depend_on_the_workers() -> None:
    one, two = (scripted_source(2, seed=7, workers=w) for w in (1, 2))
    assert [e.uid for e in one.episodes] == [e.uid for e in two.episodes]
    for a, b in zip(one.episodes, two.episodes, strict=True):
        assert (a.state == b.state).all()
        assert (a.environment == b.environment).all()
        assert (a.action == b.action).all()

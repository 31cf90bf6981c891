"""From mixture.yaml to what is drawn: which takes, how heavy, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.mixing.sources import OpenMixture, describe, load_mixture, open_mixture
from gaploop.scripts import cli

type Write = Callable[..., str]
type Make = Callable[..., Path]

FRAMES = 10


@pytest.fixture
def make(tmp_path: Path, write_take: Write) -> Make:
    """Return a function that publishes takes, each given by what differs from the default."""

    def make(name: str, *takes: dict[str, Any], **common: Any) -> Path:
        for number, take in enumerate(takes or ({},)):
            options = {"frames": FRAMES, "cameras": (), "code": number, **common, **take}
            write_take(tmp_path / f"{name}_journal", **options)
        publish(tmp_path / f"{name}_journal", tmp_path / name, f"me/{name}")
        return tmp_path / name

    return make


@pytest.fixture
def mix(tmp_path: Path) -> Callable[..., Path]:
    def write(**value: Any) -> Path:
        path = tmp_path / "mixture.yaml"
        path.write_text(yaml.safe_dump(value, sort_keys=False))
        return path

    return write


def opened(path: Path) -> OpenMixture:
    return open_mixture(load_mixture(path))


def test_a_failed_take_is_never_trained_on_by_accident(make: Make, mix: Make) -> None:
    make(
        "takes",
        {"outcome": Outcome.SUCCESS},
        {"outcome": Outcome.FAILURE},
        {"outcome": Outcome.FAILURE, "kind": TakeKind.ROLLOUT},
        {"outcome": Outcome.SUCCESS, "kind": TakeKind.ROLLOUT},
    )
    chosen = {t.episode.index: t for t in opened(mix(sources={"all": "takes"})).takes}
    assert sorted(chosen) == [0, 2, 3]
    # The fixture's person takes over in every other frame.
    assert chosen[2].frames.tolist() == [21, 23, 25, 27, 29]
    assert chosen[2].ends.tolist() == [22, 24, 26, 28, 30]
    assert len(chosen[0].frames) == FRAMES
    more = opened(mix(sources={"all": {"roots": "takes", "select": "all"}}))
    assert [t.episode.index for t in more.takes] == [0, 1, 2, 3]


def test_demonstrations_that_nobody_labelled_count_as_such(
    make: Make, mix: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Plain lerobot-record writes no outcome, and people keep what went well."""
    silent = {"outcome": Outcome.UNLABELLED}
    imported = {**silent, "kind": TakeKind.IMPORT}
    make("plain", imported, imported, silent, {**silent, "kind": TakeKind.ROLLOUT})
    chosen = opened(mix(sources={"all": "plain"})).takes
    assert [t.episode.index for t in chosen if len(t.frames) == FRAMES] == [0, 1, 2]
    assert "nobody said how its 3 episodes went" in caplog.text
    for told in (Outcome.FAILURE, Outcome.SUCCESS):  # somebody began to label
        make(told.value, imported, {"outcome": told})
        with pytest.raises(UnusableInputError, match="no outcome"):
            opened(mix(sources={"all": told.value}))


def test_weights_multiply_and_zero_leaves_a_take_out(make: Make, mix: Make) -> None:
    make(
        "takes",
        {"dimensions": {"contact_dynamics": 1.0}, "conditions": {"quality": "good"}},
        {"dimensions": {"contact_dynamics": 0.5}, "conditions": {"quality": "fair"}},
        {"conditions": {"quality": "bad"}},
        {"conditions": {}},
    )
    tables = {"dimension": {"contact_dynamics": 3}, "quality": {"good": 2, "bad": 0}}
    mixture = opened(mix(sources={"all": "takes"}, weights=tables))
    assert [(t.episode.index, t.weight) for t in mixture.takes] == [(0, 6.0), (1, 2.0), (3, 1.0)]
    stream = mixture.mixture(batch_size=9)
    drawn = stream.draws(0, 9 * FRAMES).frame // FRAMES
    assert np.bincount(drawn, minlength=4).tolist() == [6 * FRAMES, 2 * FRAMES, 0, FRAMES]


def test_a_number_that_takes_say_is_a_weight(make: Make, mix: Make) -> None:
    make("takes", {"conditions": {"score": 0.5}}, {"conditions": {"score": 2}})
    mixture = opened(mix(sources={"all": "takes"}, weights={"score": "value"}))
    assert [t.weight for t in mixture.takes] == [0.5, 2.0]


def test_stages_bring_sources_in_and_out(make: Make, mix: Make) -> None:
    make("sim", {}, {}, domain=Domain.SIM)
    make("real", {}, domain=Domain.REAL)
    path = mix(
        sources={"sim": "sim", "real": ["real"]},
        stages=[
            {"name": "sim only", "steps": 3, "shares": {"sim": 1}},
            {"name": "real-focused", "shares": {"sim": 0.25, "real": 0.75}},
        ],
    )
    mixture = opened(path)
    stream = mixture.mixture(batch_size=4)
    said = describe(mixture, stream, 7)
    assert [s["samples"] for s in said] == [12 + 4, 12]
    assert [s["domains"] for s in said] == [["sim"], ["real"]]
    assert [stream.batch(k).source.sum() for k in range(5)] == [0, 0, 0, 3, 3]


def test_without_shares_every_frame_is_drawn_equally_often(make: Make, mix: Make) -> None:
    make("a", {}, {}, {})
    make("b", {})
    drawn = opened(mix(sources={"a": "a", "b": "b"})).mixture(batch_size=8).draws(0, 4 * FRAMES)
    assert len(set(zip(drawn.dataset.tolist(), drawn.frame.tolist(), strict=True))) == 4 * FRAMES


def test_a_query_chooses_takes(make: Make, mix: Make) -> None:
    make("takes", {"session": "monday"}, {"session": "tuesday"})
    source = {"roots": "takes", "where": "session=tuesday"}
    assert [t.episode.index for t in opened(mix(sources={"a": source})).takes] == [1]
    with pytest.raises(UnusableInputError, match="chooses none"):
        opened(mix(sources={"a": {**source, "where": "session=friday"}}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fps": 30.0}, "fps is 30, not 50"),
        ({"joints": ("pan", "lift", "jaw")}, r"pan.pos, lift.pos, jaw.pos"),
        ({"cameras": ("overhead",)}, "observation.images.overhead is there"),
    ],
)
def test_what_does_not_fit_is_one_line_with_the_command_that_fixes(
    make: Make, mix: Make, changes: dict[str, Any], says: str
) -> None:
    make("a")
    make("b", {}, **changes)
    with pytest.raises(UnusableInputError) as refused:
        opened(mix(sources={"a": "a", "b": "b"}))
    message = str(refused.value)
    assert says in message
    assert "gaploop edit harmonise" in message
    assert "\n" not in message


@pytest.mark.members(6)
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "'sources' is missing"),
        ({"sources": {}}, "sources is empty"),
        ({"sources": {"a": "takes"}, "shares": {"b": 1}}, "Unknown source 'b'"),
        ({"sources": {"a": "takes"}, "shares": {"a": 0}}, "no source has a share above 0"),
        ({"sources": {"a": "takes"}, "shares": {"a": -1}}, "must be a number"),
        ({"sources": {"a": "takes"}, "shares": {"a": 1}, "stages": []}, "both shares and stages"),
        ({"sources": {"a": "takes"}, "stages": [{"shares": {"a": 1}}] * 2}, "steps is missing"),
        ({"sources": {"a": {"roots": "takes", "select": "good"}}}, "Unknown selection 'good'"),
        ({"sources": {"a": "takes"}, "weights": {"dimension": {"contact": 2}}}, "contact_dynamics"),
        ({"sources": {"a": "takes"}, "weights": {"qualty": {"good": 2}}}, "Did you mean 'quality'"),
        ({"sources": {"a": "takes"}, "weights": {"quality": {"god": 2}}}, "Did you mean 'good'"),
        ({"sources": {"a": "takes"}, "weights": {"quality": "value"}}, "is no weight"),
        ({"sources": {"a": "takes"}, "weights": {"quality": {"good": 0}}}, "weight 0"),
        ({"sources": {"a": "elsewhere"}}, "not found"),
        ({"sources": {"a": "takes"}, "seed": "x"}, "seed"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(
    make: Make, mix: Make, value: dict[str, Any], says: str
) -> None:
    make("takes", {"conditions": {"quality": "good"}})
    with pytest.raises(UnusableInputError, match=says):
        opened(mix(**value))


def test_a_dataset_in_the_place_of_a_mixture_is_told_where_it_belongs(make: Make) -> None:
    """Incident: `finetune DATASET --dry_run` said "a folder, not a file. Put the file there"."""
    with pytest.raises(UnusableInputError, match="To train on it: --real='"):
        load_mixture(make("takes", {}))


def test_the_command_prints_what_a_run_draws(
    make: Make, mix: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make("sim", {}, {}, domain=Domain.SIM)
    make("real", {})
    path = mix(sources={"sim": "sim", "real": "real"}, shares={"sim": 0.5, "real": 0.5})
    options = ["--steps=5", "--batch_size=4", f"--output_dir={tmp_path / 'out'}"]
    assert cli.main(["finetune", str(path), "--dry_run", "--json", *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {s["name"]: (s["takes"], s["samples"]) for s in said["sources"]} == {
        "sim": (2, 10),
        "real": (1, 10),
    }
    assert json.loads((tmp_path / "out" / "mixture.json").read_text()) == said

"""Adapters on a Hub: loadable by who downloads them, with lineage, without this computer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback_hub import LoopbackHub

from gaploop.core import consent
from gaploop.core.consent import Use, today
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.datasets.hub.dataset import PushOptions
from gaploop.datasets.hub.target import HubTarget
from gaploop.datasets.hub.upload import Patience, Pushed
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune import lerobot_policy
from gaploop.finetune.hub_policy import push_policy
from gaploop.finetune.tuning.presets import ACT_TARGETS

NAME = "me/adapter"
UID = "01a20212-366e-7e59-896a-d0bfc9a18464"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder as `gaploop finetune` leaves it, its adapter untrained."""
    from gaploop.finetune import lerobot_act as act

    run = tmp_path_factory.mktemp("somewhere") / "run"
    base = lerobot_policy.PACKAGED_BASE
    bundle = act.load(base)
    adapter.save(
        adapter.wrap(bundle.policy, base, adapter.LoraOptions(2, ACT_TARGETS)),
        bundle,
        base,
        run / "adapter",
    )
    identity = lerobot_policy.policy_id(run / "adapter")
    entry = {"root": str(run.parent / "takes"), "sha256": "0" * 64, "domain": "sim_target",
             "share": 1.0, "takes": 1, "frames": 7, "uids": [UID], "plans": []}  # fmt: skip
    write_json(run / "run.json", {
        "schema": "gaploop.run.v1", "id": "r1", "command": "finetune", "seed": 0, "at": "2026",
        "argv": ["gaploop", str(run)], "versions": {"torch": "2"}, "inputs": [entry],
        "config": {"output_dir": str(run), "lora": {"r": 2}}, "lineage": {"base": "sha256:b"},
        "result": {"policy": identity, "steps": 4, "loss": 0.5, "held_out": None},
    })  # fmt: skip
    return run


@pytest.fixture
def push(hub: LoopbackHub, trained: Path) -> Callable[..., Pushed]:
    def push(folder: Path = trained, **options: Any) -> Pushed:
        patience = Patience(2, wait_s=0.01, timeout_s=60)
        target = HubTarget(NAME, "model", hub.url)
        return push_policy(folder, target, PushOptions(patience=patience, **options))[0]

    return push


def test_who_downloads_an_adapter_drives_with_it(
    hub: LoopbackHub, push: Callable[..., Pushed], trained: Path, tmp_path: Path
) -> None:
    push()
    files = hub.files(NAME, "model")
    for name, content in files.items():
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(content)
    there, here = (lerobot_policy.load_policy(p) for p in (tmp_path / "d", trained / "adapter"))
    for mine, theirs in zip(here.bundle.policy.parameters(), there.bundle.policy.parameters(),
                            strict=True):  # fmt: skip
        assert np.array_equal(mine.detach().numpy(), theirs.detach().numpy())
    card = files["README.md"].decode()
    for line in ("library_name: lerobot", "- lora", "- sim-to-sim", "Simulation only", "rank 2",
                 "adapted from base `sha256:b`", "| sim_target | 1 | 7 | 1.00 |"):  # fmt: skip
        assert line in card
    assert json.loads(files["lineage.json"])["datasets"][0]["uids"] == [UID]
    text = b"".join(c for n, c in files.items() if not n.endswith(".safetensors"))
    assert str(trained.parent).encode() not in text
    assert hub.repo(NAME, "model").tags == {}


def test_a_policy_is_named_as_on_the_hub(
    hub: LoopbackHub, push: Callable[..., Pushed], trained: Path
) -> None:
    push()
    found = lerobot_policy.resolve(NAME)
    assert lerobot_policy.load_policy(found).bundle.signature.fps == 50
    assert lerobot_policy.policy_id(NAME) == lerobot_policy.policy_id(trained)
    hub.fault("drop", times=10**6)
    with pytest.raises(UnusableInputError, match=r"me/other is no folder here.*the Hub"):
        lerobot_policy.resolve("me/other")


def test_an_old_adapter_doesnt_stay_beside_a_plain_policy(
    hub: LoopbackHub, push: Callable[..., Pushed]
) -> None:
    """Left there, adapter_config.json would make everybody load the old adapter."""
    push()
    push(lerobot_policy.PACKAGED_BASE)
    names = set(hub.files(NAME, "model"))
    assert "adapter_config.json" not in names
    assert not [name for name in names if name.startswith("base/")]
    assert "model.safetensors" in names


def test_a_policy_that_learned_from_whoever_withdrew_stays_here(
    hub: LoopbackHub, push: Callable[..., Pushed]
) -> None:
    register = consent.default_register()
    consent.add(register, "c-aaaaaaaaaa", today() + timedelta(days=9), frozenset(Use))
    consent.withdraw(register, "c-aaaaaaaaaa")
    write_json(register.parent / "withdrawal_c-aaaaaaaaaa.json", {"uids": [UID]})
    with pytest.raises(UnusableInputError, match=r"c-aaaaaaaaaa, whose consent was withdrawn"):
        push()
    assert hub.log == []


def test_a_policy_that_names_this_computer_stays_here(
    hub: LoopbackHub, push: Callable[..., Pushed], trained: Path
) -> None:
    config = trained / "adapter" / "train_config.json"
    config.write_text('{"output_dir": "/home/ana/outputs/run"}')
    try:
        with pytest.raises(UnusableInputError, match=r"train_config.json holds an absolute path"):
            push()
    finally:
        config.unlink()
    assert hub.log == []


def test_a_link_out_of_a_policy_is_never_pushed(
    hub: LoopbackHub, push: Callable[..., Pushed], trained: Path, tmp_path: Path
) -> None:
    """What a link beside the weights leads to was uploaded with them."""
    folder = tmp_path / "adapter"
    shutil.copytree(trained / "adapter", folder)
    (tmp_path / "token.json").write_text("{}")
    (folder / "notes.json").symlink_to(tmp_path / "token.json")
    with pytest.raises(UnusableInputError, match=r"notes.json is a link that leads out"):
        push(folder)
    assert not hub.log

"""After a withdrawal no file that gaploop wrote shows the person, but for what the report names."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import av
import numpy as np
import pytest

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.collect.withdrawal import noted_policies, withdraw
from gaploop.core import consent
from gaploop.core.consent import Place, Use, new_id, today
from gaploop.core.files import read_json, uuid7, write_json
from gaploop.core.journal_format import TakeHeader
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.cache.folder import (
    PACK,
    CacheFolder,
    CacheOptions,
    cache_path,
    default_folder,
)
from gaploop.datasets.lerobot_publish import publish
from gaploop.scripts.cli import main

TINY = [
    "--policy.type=act", "--policy.push_to_hub=false", "--policy.device=cpu",
    "--policy.pretrained_backbone_weights=null", "--policy.dim_model=16", "--policy.n_heads=2",
    "--policy.dim_feedforward=16", "--policy.chunk_size=3", "--policy.n_action_steps=3",
    "--policy.n_encoder_layers=1", "--policy.latent_dim=4", "--steps=1", "--batch_size=2",
    "--num_workers=0", "--wandb.enable=false", "--dataset.repo_id=me/x",
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that holds everything gaploop writes, caches and register included."""
    for name in ("CACHE", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.delenv(consent.ENVIRONMENT, raising=False)
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    return tmp_path


def record(journal: Path, consent: str, outcome: Outcome = Outcome.SUCCESS) -> str:
    """Record a take of somebody who waves, each picture another noise."""
    info = TakeInfo(uuid7(), "Wave", 20.0, joint_names=("pan", "lift"), consent=consent)
    camera = {"width": 64, "height": 64, "fps": 20.0, "codec": "h264"}
    rng = np.random.default_rng(int.from_bytes(info.uid.encode()[-4:]))
    with JournalWriter(journal, TakeHeader(info, cameras={"top": camera})) as writer:
        for k in range(12):
            numbers = rng.normal(size=2)
            picture = rng.integers(0, 255, (64, 64, 3), np.uint8)
            writer.frame(FrameRow(k / 20, numbers, numbers, numbers, camera_age_s={"top": 0.01},
                                  pictures={"top": picture}))  # fmt: skip
        writer.seal(outcome)
    return info.uid


def packets(video: Path) -> list[bytes]:
    """Return the middle of every packet of a video: no other has it, in whatever container."""
    with av.open(str(video)) as container:
        held = [bytes(p) for p in container.demux(video=0) if p.size]
    return [p[len(p) // 3 : len(p) // 3 + 64] for p in held if len(p) > 300]


def files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes()


def test_from_recording_to_withdrawing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The frame cache (mode 0644) and NAME.damaged-1 kept every picture of a withdrawn person.

    The report said finished, and a policy of LeRobot's training could still be pushed.
    """
    register, root, journal = consent.default_register(), home / "set", home / "journal"
    ana = consent.add(register, new_id(), today() + timedelta(days=9), frozenset(Use)).id
    consent.add_place(register, ana, Place("journal", str(journal)))
    theirs = [record(journal, ana), record(journal, ana, Outcome.FAILURE)]
    others = [record(journal, ""), record(journal, "", Outcome.FAILURE)]
    needles = [u.encode() for u in theirs]
    needles += [p for u in theirs for p in packets(journal / u / "top.mkv")]
    kept = [p for u in others for p in packets(journal / u / "top.mkv")]
    assert len(needles) > 20
    publish(journal, root, "me/x")

    run = home / "run"
    train = [
        "finetune",
        "--method=lerobot",
        f"--output_dir={run}",
        "--",
        *TINY,
    ]
    assert main([*train, f"--dataset.root={root}"]) == 0
    frames = default_folder()
    assert list(frames.rglob(f"*{PACK}"))
    for path in (frames.iterdir(), frames.rglob("*")):
        for found in path:
            assert not stat.S_IMODE(found.stat().st_mode) & 0o077, found
    (root / "meta" / "stats.json").unlink()
    assert main(["check", str(root), "--fix"]) == 0
    assert main(["check", str(root), "--fix", f"--output_dir={home / 'repaired'}"]) == 0
    assert main(["diagnose", str(root)]) == 0
    assert main(["diagnose", str(journal), f"--output_dir={home / 'looked'}"]) == 0
    write_json(home / "set_diagnosis" / "run.json", {"inputs": [], "command": "plan"})
    assert main(["convert", str(root), "--to=lerobot_v21", f"--output_dir={home / 'x'}"]) == 0
    assert main(["edit", "keep", str(root), "--episodes=[0, 2]", f"--output_dir={home / 'e'}"]) == 0
    checkpoint = run / "checkpoints" / "last" / "pretrained_model"
    push = ["push", "--repo_id=me/x", "--dry_run", "--allow_paths"]
    assert main([*push, str(checkpoint)]) == 0
    before = {path for path, content in files(home) if any(n in content for n in needles)}
    assert len(before) > 10

    capsys.readouterr()
    assert main(["consent", "withdraw", ana, "--yes", "--json"]) == 1  # for the export
    report = json.loads(capsys.readouterr().out)
    named = {Path(u["where"]) for u in report["unreached"]}
    named |= {Path(r["folder"]) for r in (*report["trained"], *report["shown"])}
    named |= {register.parent}  # the report itself, readable by its owner only
    assert [Path(r["folder"]) for r in report["trained"]] == [run]
    assert {Path(r["folder"]).name for r in report["shown"]} == {"set_diagnosis", "looked"}
    left = {path for path, content in files(home) if any(n in content for n in needles)}
    assert {p for p in left if not any(p.is_relative_to(n) for n in named)} == set()
    assert not list(home.rglob(f"*{PACK}"))
    assert not list(home.rglob("report.html"))
    assert not list(home.glob("*.damaged-*"))
    shown = b"".join(content for _, content in files(root))
    assert all(p in shown for p in kept), "pictures of other people are gone"

    # Going on without them: what the weights learned before is still said.
    resume = ["--resume=true", f"--config_path={checkpoint / 'train_config.json'}", "--steps=2"]
    assert main(["finetune", "--method=lerobot", "--cache.size=off", "--", *resume]) == 0
    assert set(theirs) <= set(read_json(run / "run.json")["lineage"]["takes"])
    for policy in (checkpoint, home / "moved"):
        if not policy.exists():
            os.rename(checkpoint, policy)
        assert main([*push, str(policy)]) == 2
        assert f"learned from episodes of {ana}" in capsys.readouterr().err
    assert main(["evaluate", f"--policy.path={home / 'moved'}", "--n=1", "--workers=1"]) != 0
    assert f"learned from episodes of {ana}" in capsys.readouterr().err


def test_a_policy_made_from_such_a_policy_is_named_too(home: Path) -> None:
    register = consent.default_register()
    ana = consent.add(register, new_id(), today() + timedelta(days=9), frozenset(Use)).id
    consent.add_place(register, ana, Place("journal", str(home / "journal")))
    uid = record(home / "journal", ana)
    runs = {"a": ("", [uid]), "b": ("p-a", []), "c": ("p-b", ["x"]), "d": ("", [])}
    for name, (base, uids) in runs.items():
        run = {"id": name, "command": "finetune", "inputs": [{"root": "r", "uids": uids}],
               "lineage": {"base": base}, "result": {"policy": f"p-{name}"}}  # fmt: skip
        (home / name).mkdir()
        write_json(home / name / "run.json", run)
    report = withdraw(register, ana, remove=True)
    assert [(r.id, r.takes) for r in report.trained] == [("a", 1), ("b", 0), ("c", 0)]
    assert noted_policies(register, ana) == {"p-a", "p-b", "p-c"}
    for name in "abc":  # deleted as told; copies of the policies may still be somewhere
        shutil.rmtree(home / name)
    assert withdraw(register, ana, remove=True).trained == ()
    assert noted_policies(register, ana) == {"p-a", "p-b", "p-c"}


def test_caches_that_everybody_could_read_are_tightened_when_opened(home: Path) -> None:
    """Caches of earlier versions were made 0755, their files 0644."""
    folder = cache_path(home / "set")
    (folder / "raw-native-pyav").mkdir(parents=True)
    (folder / "raw-native-pyav" / f"v{PACK}").write_bytes(b"picture")
    (folder / "videos.json").write_text("{}")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    cache = CacheFolder(home / "set", CacheOptions())
    cache.use("jpeg90-native-pyav")
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_cache_in_use_is_named_and_left(home: Path) -> None:
    register = consent.default_register()
    ana = consent.add(register, new_id(), today() + timedelta(days=9), frozenset(Use)).id
    consent.add_place(register, ana, Place("journal", str(home / "journal")))
    record(home / "journal", ana)
    publish(home / "journal", home / "set", "me/x")
    cache = CacheFolder(home / "set", CacheOptions())
    cache.video_ids([])
    write_json(cache.path / "videos.json", {"root": str(home / "set"), "files": {}})
    cache.use("raw-native-pyav")
    report = withdraw(register, ana, remove=True)
    assert [Path(u.where) for u in report.unreached] == [cache.path]
    assert "end the training" in report.unreached[0].why
    del cache
    assert withdraw(register, ana, remove=True).unreached == ()
    assert not cache_path(home / "set").exists()

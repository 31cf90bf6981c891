"""Every kind of LeRobot policy is tuned by its presets: two steps, stopped, resumed, saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_policies import CAMERA, SIZE

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import RANDOMISED, Domain
from gaploop.datasets.cache.folder import CacheOptions
from gaploop.finetune.adapt import adapt, kind_of
from gaploop.finetune.config import FinetuneConfig, MixOptions, StartPolicy
from gaploop.finetune.lerobot_policy import load_policy
from gaploop.finetune.tuning.presets import PRESETS, LoraOptions, Preset, Randomise, preset_for
from gaploop.finetune.tuning.takes import chosen_held_out, mixture_of, note_of, real_of
from gaploop.scripts.cli import main

OFF = CacheOptions(size="off")
QUICK: Any = {"steps": 2, "batch_size": 2, "lr": 1e-2, "cache": OFF}
NO_PICTURES = ("tracked", "other")
SLOW_FULL = ("act", "diffusion", "smolvla", "pi0", "pi05")
SLOW_TOO = ("pi05_lora",)  # pi0's way but for its normalisation


def config(base: Path | str, real: Path, out: Path, **options: Any) -> FinetuneConfig:
    return FinetuneConfig(StartPolicy(str(base)), real=(real,), output_dir=out, **options)


def config_for(preset: Preset, base: Path, real: Path, out: Path) -> FinetuneConfig:
    return config(
        base, real, out, method=preset.name, lora=LoraOptions(2), stats="new", steps=2,
        batch_size=2, cache=OFF,
    )  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "merged" / "model.safetensors")


@pytest.fixture
def real(write_dataset: Callable[..., Path]) -> Path:
    return write_dataset("real", [{"pictures": True, "session": f"s{k}"} for k in range(3)])


@pytest.mark.members(1)
@pytest.mark.parametrize(
    "name",
    [
        # Adapters are what most will train; `full` is tried with the smallest policy.
        pytest.param(
            n,
            marks=[pytest.mark.slow] if n in SLOW_TOO or (p.full and p.policy in SLOW_FULL) else [],
        )
        for n, p in PRESETS.items()
        if p.policy not in NO_PICTURES
    ],
)
def test_a_preset_trains_two_steps_and_resumes(
    tiny_policy: Callable[..., Path], real: Path, tmp_path: Path, name: str
) -> None:
    preset = PRESETS[name]
    base = tiny_policy(preset.policy)
    assert preset_for(kind_of(base), name) is preset
    whole = config_for(preset, base, real, tmp_path / "whole")
    adapt(whole)

    def stop(step: int, *_: float) -> None:
        if step == 1:
            raise KeyboardInterrupt

    cut = replace(whole, output_dir=tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        adapt(cut, stop)
    done = adapt(replace(cut, resume=True))
    found, before = weights(tmp_path / "whole"), load_file(base / "model.safetensors")
    again = weights(tmp_path / "cut")
    assert found.keys() == again.keys() == before.keys()
    assert all(torch.equal(found[k], again[k]) for k in found)
    assert any(not torch.equal(found[k], before[k]) for k in found)
    assert done.result.steps == 2
    assert (done.run / "adapter").exists() is not preset.full


def test_plain_lerobot_loads_what_was_tuned(
    tiny_policy: Callable[..., Path], real: Path, tmp_path: Path
) -> None:
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    preset = PRESETS["act_lora"]
    done = adapt(config_for(preset, tiny_policy("act"), real, tmp_path / "out"))
    config = PreTrainedConfig.from_pretrained(done.merged)
    policy = get_policy_class(config.type).from_pretrained(done.merged)
    before, _ = make_pre_post_processors(config, pretrained_path=str(done.merged))
    seen = {
        "observation.state": torch.zeros(1, 3),
        CAMERA: torch.zeros(1, 3, SIZE, SIZE),
    }
    assert torch.isfinite(policy.predict_action_chunk(before(seen))).all()
    run = json.loads((done.run / "run.json").read_text())
    assert run["inputs"][0]["takes"] == 3
    assert json.loads((done.merged / "gaploop.json").read_text())["cameras"] == [CAMERA]


def test_sim_is_mixed_in_takes_are_held_out_by_session_and_pictures_randomised(
    tiny_policy: Callable[..., Path],
    real: Path,
    write_dataset: Callable[..., Path],
    tmp_path: Path,
) -> None:
    sim = write_dataset("sim", [{"pictures": True, "domain": Domain.SIM}] * 2)
    done = adapt(
        config(
            tiny_policy("act"),
            real,
            tmp_path / "out",
            sim=(sim,),
            mix=MixOptions(0.5),
            lora=LoraOptions(2),
            held_out=0.3,
            randomise=Randomise(1.0),
            **{**QUICK, "steps": 4},
        )
    )
    assert [i["share"] for i in done.inputs] == pytest.approx([0.5, 0.5])
    assert sum(i["takes"] for i in done.inputs if i["domain"] == "real") == 2
    assert done.result.held_out
    ended = json.loads((done.run / "result.json").read_text())["held_out_at_end"]
    assert len(ended["by_session"]) == 1


@pytest.mark.parametrize("sees", [False, True])
def test_randomised_takes_stand_for_another_cell_and_nominal_ones_do_not(
    tiny_policy: Callable[..., Path],
    base: Path,
    write_dataset: Callable[..., Path],
    tmp_path: Path,
    sees: bool,
) -> None:
    """A plan's `randomise` recorded takes that its own next line, finetune, refused."""
    policy = tiny_policy("act") if sees else base
    simulated = {"pictures": True, "domain": Domain.SIM}
    drawn = {**simulated, "conditions": {RANDOMISED: {"visual_domain.exposure": {"stops": 1.0}}}}
    nominal, randomised = (
        write_dataset(name, [take] * 2) for name, take in (("a", simulated), ("b", drawn))
    )
    options = config(policy, nominal, tmp_path / "out", **QUICK)
    with pytest.raises(UnusableInputError, match="nominal simulation"):
        adapt(options)
    if sees:
        options = replace(options, lora=LoraOptions(2, ("action_head",)))
    assert adapt(replace(options, real=(randomised,), sim=(nominal,))).result.steps == 2


def test_a_policy_without_targets_asks_for_them(
    tiny_policy: Callable[..., Path], real: Path, tmp_path: Path
) -> None:
    base = tiny_policy("act")
    options = config(base, real, tmp_path / "out", method="other_lora", **QUICK)
    with pytest.raises(UnusableInputError, match=r"--lora\.target_modules, such as .*linear1"):
        adapt(options)
    done = adapt(replace(options, lora=LoraOptions(2, ("action_head",))))
    assert done.result.steps == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"camera": "observation.images.wrist"}, r"no camera .*wrist.*--rename_map"),
        ({"joints": 5}, "3 entries, .* trained on 5"),
        ({"stats": False}, "--stats=new"),
    ],
)
def test_what_does_not_fit_is_found_before_training(
    tiny_policy: Callable[..., Path],
    real: Path,
    tmp_path: Path,
    changes: dict[str, object],
    says: str,
) -> None:
    base = tiny_policy("act", **changes)
    with pytest.raises(UnusableInputError, match=says) as caught:
        adapt(config(base, real, tmp_path / "out", **QUICK))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_camera_of_another_name_is_renamed_and_isnt_tried_in_the_cell(
    tiny_policy: Callable[..., Path], real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`evaluate`, as it was told, refused the policy: the cell has no such camera."""
    base = tiny_policy("act", camera="observation.images.wrist")
    quick = ["--lora.r=2", "--steps=2", "--batch_size=2", "--cache.size=off"]
    given = [f"--policy.path={base}", f"--real=[{real}]", f"--output_dir={tmp_path / 'out'}"]
    renamed = f"--rename_map={json.dumps({CAMERA: 'observation.images.wrist'})}"
    assert main(["finetune", *given, *quick, renamed]) == 0
    modules = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    modules = modules["target_modules"]
    # In the order of a set the adapter's id changed whenever a finished run was resumed.
    assert isinstance(modules, str) or (len(modules) > 1 and modules == sorted(modules))
    told = f"Try it: gaploop check {real} --policy.path={tmp_path / 'out'}"
    assert told in capsys.readouterr().out


def test_other_action_order_and_rate_are_found_by_the_sidecar(
    tiny_policy: Callable[..., Path],
    real: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = tiny_policy("act")
    options = config(base, real, tmp_path / "out", **QUICK)
    names = ["gripper.pos", "lift.pos", "pan.pos"]
    shown = ["finetune", "--dry_run", f"--policy.path={base}", f"--real=[{real}]"]
    for sidecar, says in (
        ({"action_names": names}, "harmonise"),
        ({"fps": 30.0}, "50 frames a second"),
        ({"units": "rad"}, "joints in deg"),
    ):
        (base / "gaploop.json").write_text(json.dumps(sidecar))
        with pytest.raises(UnusableInputError, match=says):
            adapt(options)
        assert main([*shown, f"--output_dir={tmp_path / 'shown'}"]) == 2
        assert says in capsys.readouterr().err


def test_other_peoples_datasets_are_chosen_from_as_named(
    write_dataset: Callable[..., Path],
) -> None:
    """With one dataset for each station, one was refused for the first without it; and what
    doesn't say that it is simulated was held out as real, though named with --sim."""
    here, there = (write_dataset(n, [{"station": n}] * 2) for n in ("here", "there"))
    options = FinetuneConfig(real=(here, there), sim=(here,), where="station=there")
    opened = mixture_of(options)
    assert [t.episode.info.station for t in opened.takes] == ["there"] * 2 + ["here"] * 2
    notes = [note_of(t) for t in real_of(options, opened)]
    aside = chosen_held_out(replace(options, held_out=(1,)), notes)
    assert aside == {opened.takes[1].episode.info.uid}
    with pytest.raises(UnusableInputError, match="none of its 4 episodes; station is here, there"):
        mixture_of(replace(options, where="station=elsewhere"))


def test_numbers_that_are_not_finite_are_found_before_training(
    tiny_policy: Callable[..., Path],
    real: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also by --dry_run, which showed what would be drawn of them, for a policy of any name."""
    base = tiny_policy("act")
    options = config(base, real, tmp_path / "out", **QUICK)
    (file,) = base.glob("policy_preprocessor*normalizer*.safetensors")
    numbers = load_file(file)
    save_file({**numbers, "action.std": numbers["action.std"] * float("nan")}, file)
    with pytest.raises(UnusableInputError, match=r"statistics of action .* not finite"):
        adapt(options)
    save_file(numbers, file)
    (data,) = (real / "data").rglob("*.parquet")
    table = pq.read_table(data)
    rows = table["action"].to_pylist()
    rows[14][0] = float("nan")
    place = table.column_names.index("action")
    pq.write_table(
        table.set_column(place, table.field("action"), pa.array(rows, table.field("action").type)),
        data,
    )
    said = "episode 1 has NaN or infinite action, entry 0, at frame 2"
    with pytest.raises(UnusableInputError, match=said):
        adapt(options)
    shown = ["finetune", "--dry_run", f"--policy.path={base}", f"--real=[{real}]"]
    assert main([*shown, f"--output_dir={tmp_path / 'shown'}"]) == 2
    assert said in capsys.readouterr().err
    pq.write_table(table, data)
    assert main([*shown, f"--output_dir={tmp_path / 'shown'}"]) == 0
    (base / "config.json").write_text(
        (base / "config.json").read_text().replace('"type": "act"', '"type": "mine"')
    )
    assert main([*shown, f"--output_dir={tmp_path / 'other'}"]) == 2
    assert "policy type 'mine' is not one of LeRobot's" in capsys.readouterr().err
    own = (base / "config.json").read_text().replace('"type": "mine"', '"type": "act"')
    (base / "config.json").write_text(own.replace("{", '{"of_next_year": 1,', 1))
    assert main([*shown, f"--output_dir={tmp_path / 'other'}"]) == 2
    assert "Another version of LeRobot may have saved it" in capsys.readouterr().err


def test_a_policy_of_before_processors_is_one_line_with_lerobots_command(
    tiny_policy: Callable[..., Path],
) -> None:
    """`evaluate` of a policy that LeRobot 0.3 had saved ended in a traceback."""
    base = tiny_policy("act")
    for file in base.glob("policy_*"):
        file.unlink()
    with pytest.raises(UnusableInputError, match=r"migrat.*run that command") as refused:
        load_policy(base)
    assert "\n" not in str(refused.value)


def test_a_base_cut_short_is_one_line(
    tiny_policy: Callable[..., Path], real: Path, tmp_path: Path
) -> None:
    """A download that was broken off ended in a traceback of safetensors."""
    base = tiny_policy("act")
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(UnusableInputError, match="is not a loadable policy"):
        adapt(config(base, real, tmp_path / "out", **QUICK))


def test_weights_of_another_policy_are_refused(
    tiny_policy: Callable[..., Path], real: Path, tmp_path: Path
) -> None:
    """LeRobot's pi0 prints that it couldn't load them and trains what it drew at random."""
    base = tiny_policy("pi0")
    (base / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UnusableInputError, match="can't be read"):
        adapt(config(base, real, tmp_path / "out", stats="new", **QUICK))

"""A policy's files run nothing: what they name is read before LeRobot builds anything from it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lerobot
import pytest
from safetensors.torch import load_file, save_file

import gaploop
from gaploop.collect.lerobot_types import DISCOVERED
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.vocabulary import Outcome
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune import lerobot_trust as trust
from gaploop.finetune.lerobot_policy import PACKAGED_BASE, load_policy
from gaploop.finetune.lerobot_trust import refuse_foreign_code
from gaploop.finetune.tuning.presets import ACT_TARGETS, LoraOptions
from gaploop.scripts.cli import main

ROOT = Path(__file__).resolve().parents[2]
LOADERS = {
    "from_pretrained", "make_policy", "make_pre_post_processors", "get_policy_class",
    "make_reward_model", "make_reward_pre_post_processors", "from_config",
}  # fmt: skip
"""LeRobot's, PEFT's and transformers' functions that build what a policy's files name."""
HARMLESS = {
    "finetune/lerobot_act.py",  # `build` makes processors from a configuration made here
    "finetune/lerobot_train.py",  # hands LeRobot's function on; `train` looks before
}


def hostile_steps(marker: Path) -> list[dict[str, Any]]:
    touch = f"open({str(marker)!r}, 'w').close()"
    return [
        {"class": "subprocess.Popen", "config": {"args": ["touch", str(marker)]}},
        {"class": "subprocess.run", "config": {"args": ["touch", str(marker)]}},
        {"class": "os.system", "config": {"command": f"touch {marker}"}},
        {"class": "os.mkdir", "config": {"path": str(marker)}},
        {"class": "builtins.open", "config": {"file": str(marker), "mode": "w"}},
        {"class": "builtins.exec", "config": {"source": touch}},
        {"class": "timeit.timeit", "config": {"stmt": touch, "number": 1}},
        {"class": "pathlib.Path", "config": {}},
        {"class": "gaploop.core.files.write_json", "config": {"path": str(marker), "value": 1}},
        {"class": "lerobot.processor.pipeline.ProcessorStepRegistry.register", "config": {}},
        {"class": "hostile_module.Step", "config": {}},
        {"class": "hostile_module", "config": {}},
        {"class": 7},
        {"registry_name": "hostile"},
        {"registry_name": ["normalizer_processor"]},
        {"registry_name": None, "class": "subprocess.Popen"},
        {"registry_name": "device_processor", "state_file": "../../secret.safetensors"},
        {
            "registry_name": "action_tokenizer_processor",
            "config": {"action_tokenizer_name": "evil/tokenizer"},
        },
        {
            "registry_name": "reward_classifier_processor",
            "config": {"pretrained_path": "evil/classifier"},
        },
    ]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGED_BASE, tmp_path / "policy")
    return tmp_path / "policy"


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that a module on the path writes as soon as it is imported."""
    marker, folder = tmp_path / "imported", tmp_path / "site"
    folder.mkdir()
    (folder / "hostile_module.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(folder))
    return marker


def change(file: Path, **values: Any) -> None:
    write_json(file, {**read_json(file), **values})


def put(policy: Path, step: dict[str, Any], name: str = "policy_preprocessor.json") -> None:
    steps = [s for s in read_json(policy / name)["steps"] if s.get("registry_name") != "hostile"]
    change(policy / name, steps=[step, *steps])


@pytest.mark.members(12)
@pytest.mark.parametrize("number", range(len(hostile_steps(Path("m")))))
@pytest.mark.parametrize("name", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_a_step_that_is_nobodys_is_never_built(
    number: int, name: str, policy: Path, imported: Path, tmp_path: Path
) -> None:
    """`"class": "subprocess.Popen"` ran in evaluate, doctor and push --dry_run."""
    marker = tmp_path / "ran"
    put(policy, hostile_steps(marker)[number], name)
    for load in (refuse_foreign_code, load_policy):
        with pytest.raises(UnusableInputError, match=re.escape(name)):
            load(policy)
    assert not marker.exists()
    assert not imported.exists()
    assert "hostile_module" not in sys.modules


COMMANDS: dict[str, list[str]] = {
    "evaluate": ["evaluate", "--policy.path={}", "--n=1", "--workers=1"],
    "evaluate elsewhere": [
        "evaluate", "--policy.path={}", "--env.discover_packages_path=gaploop.sim.lerobot_env",
        "--env.type=so101_cell", "--n=1",
    ],
    "doctor": ["doctor", "--policy.path={}", "--robot.type=so101_sim", "--move=false"],
    "push": ["push", "{}", "--repo_id=me/x", "--dry_run"],
    "rollout": [
        "rollout", "--policy.path={}", "--robot.type=so101_sim", "--dataset.repo_id=me/rollout_x",
        "--dataset.root={}_set", "--dataset.single_task=Move",
    ],
    "finetune": ["finetune", "--policy.path={}", "--sim_takes=1", "--output_dir={}_run"],
    "gate": ["gate", "--baseline={}", "--candidate=base", "--output_dir={}_gate"],
    "train": [
        "finetune", "--method=lerobot", "--output_dir={}_run", "--",
        "--policy.path={}", "--policy.push_to_hub=false",
        "--dataset.repo_id=x/y", "--dataset.root={}_none", "--steps=1", "--policy.device=cpu",
    ],
    "latency": ["latency", "--policy.path={}"],
    "diagnose": ["diagnose", "{}_takes", "--policy.path={}", "--output_dir={}_out"],
}  # fmt: skip


@pytest.mark.members(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_a_policy_names(
    command: str,
    policy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    write_dataset: Callable[..., Path],
) -> None:
    marker = tmp_path / "ran"
    put(policy, hostile_steps(marker)[0])
    if command == "diagnose":
        write_dataset("policy_takes", [{"outcome": Outcome.FAILURE}])
    code = main([word.format(policy) for word in COMMANDS[command]])
    said = capsys.readouterr().err
    assert not marker.exists(), said
    assert code == 2, said
    assert "subprocess.Popen" in said, said
    assert "Traceback" not in said


def test_the_front_door_runs_nothing_either(policy: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    put(policy, hostile_steps(marker)[0])
    named = {"path": policy}
    with pytest.raises(UnusableInputError, match=r"subprocess\.Popen"):
        gaploop.evaluate(policy=named, n=1, workers=1)
    with pytest.raises(UnusableInputError, match=r"subprocess\.Popen"):
        gaploop.finetune(policy=named, sim_takes=1, output_dir=tmp_path / "run")
    with pytest.raises(UnusableInputError, match=r"subprocess\.Popen"):
        gaploop.gate(baseline=policy, candidate="base", output_dir=tmp_path / "gate")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("config.json", []),
        ("config.json", {"type": "act", "input_features": ["x"]}),
        ("config.json", {"type": "act", "output_features": {"action": 7}}),
        ("policy_preprocessor.json", {"steps": 7}),
        ("policy_preprocessor.json", {"steps": ["x"]}),
        ("policy_postprocessor.json", {"steps": [{"registry_name": "x", "config": [1]}]}),
        ("gaploop.json", {"fps": "fast"}),
        ("gaploop.json", {"fps": 50, "state_names": 7}),
        ("gaploop.json", {}),
        ("adapter_config.json", [1]),
    ],
)
def test_files_of_another_kind_are_one_line(file: str, value: object, policy: Path) -> None:
    """A list in the place of an object ended evaluate and push in a traceback."""
    write_json(policy / file, value)
    with pytest.raises(UnusableInputError):
        load_policy(policy)


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        ("config.json", {"type": "os.system"}, "policy type"),
        ("config.json", {"type": ["act"]}, "policy type"),
        ("config.json", {"type": "pi0_fast", "action_tokenizer_name": "evil/tok"}, "evil/tok"),
        ("config.json", {"type": "gaussian_actor", "vision_encoder_name": "./evil"}, "./evil"),
        ("config.json", {"vlm_config": [{"auto_map": {"AutoModel": "evil--m.M"}}]}, "auto_map"),
        ("adapter_config.json", {"megatron_config": {"a": 1}, "megatron_core": "evil"}, "megatron"),
        ("adapter_config.json", {"megatron_core": "hostile_module"}, "megatron"),
        ("adapter_config.json", {"auto_mapping": {"parent_library": "evil"}}, "auto_mapping"),
    ],
)
def test_other_files_name_no_code_either(
    file: str, values: dict[str, Any], said: str, policy: Path, imported: Path
) -> None:
    path = policy / file
    if not path.exists():
        write_json(path, {})
    change(path, **values)
    with pytest.raises(UnusableInputError, match=said):
        load_policy(policy)
    assert not imported.exists()


@pytest.mark.parametrize("name", ["adapter_model.bin", "model.pt", "extra.PKL"])
def test_pickles_are_refused(name: str, policy: Path) -> None:
    (policy / name).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UnusableInputError, match="pickle"):
        load_policy(policy)


def test_weights_that_hang_or_say_nothing_are_refused(policy: Path) -> None:
    """A pipe in the place of the weights kept push waiting for ever; NaN drove without a word."""
    path = policy / "model.safetensors"
    weights = load_file(path)
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, path)
    with pytest.raises(UnusableInputError, match="NaN"):
        load_policy(policy)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UnusableInputError, match="is a pipe"):
        load_policy(policy)


def test_what_is_in_a_base_counts_as_well(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    shutil.move(policy, tmp_path / "outer" / "base")
    put(tmp_path / "outer" / "base", {"class": "os.system"})
    with pytest.raises(UnusableInputError, match=r"os\.system"):
        refuse_foreign_code(tmp_path / "outer")


def test_own_steps_are_allowed_by_importing_them(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As LeRobot does it, `--policy.discover_packages_path` says that a package is trusted."""
    monkeypatch.setenv(DISCOVERED, "")
    package = tmp_path / "site" / "my_steps"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "steps.py").write_text(
        "from lerobot.processor.pipeline import IdentityProcessorStep\n"
        "import subprocess\n"
        "class MyStep(IdentityProcessorStep):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    put(policy, {"class": "my_steps.steps.MyStep", "config": {}})
    command = ["evaluate", f"--policy.path={policy}", "--n=1", "--workers=1", "--max_s=0.1"]
    assert main(command) == 2
    assert "my_steps.steps" not in sys.modules
    assert main([*command, "--policy.discover_packages_path=my_steps"]) == 0
    assert os.environ[DISCOVERED].split(",")[-1] == "my_steps"  # for worker processes
    put(policy, {"class": "my_steps.steps.subprocess.Popen", "config": {"args": ["true"]}})
    with pytest.raises(UnusableInputError, match="Popen"):
        refuse_foreign_code(policy)


def test_steps_of_an_installed_plugin_pass(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who installs `lerobot_policy_x` has LeRobot import it: a file doesn't decide that."""
    site, name = tmp_path / "site", "lerobot_policy_gaploop_test"
    (site / f"{name}-1.0.dist-info").mkdir(parents=True)
    (site / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (site / f"{name}.py").write_text(
        "from lerobot.processor.pipeline import IdentityProcessorStep, ProcessorStepRegistry\n"
        "@ProcessorStepRegistry.register('gaploop_test_named')\n"
        "class Named(IdentityProcessorStep):\n    pass\n"
        "class ByPath(IdentityProcessorStep):\n    pass\n"
    )
    put(policy, {"class": f"{name}.ByPath", "config": {}})
    put(policy, {"registry_name": "gaploop_test_named", "config": {}})
    trust._import_plugins.cache_clear()
    with pytest.raises(UnusableInputError, match="gaploop_test_named"):
        refuse_foreign_code(policy)
    monkeypatch.syspath_prepend(str(site))
    trust._import_plugins.cache_clear()
    load_policy(policy)


def test_repositories_with_code_are_allowed_by_name(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(policy / "config.json", type="pi0_fast", action_tokenizer_name="me/tokenizer")
    with pytest.raises(UnusableInputError, match=f"export {trust.TRUSTED}=me/tokenizer"):
        refuse_foreign_code(policy)
    monkeypatch.setenv(trust.TRUSTED, "you/other, me/tokenizer")
    refuse_foreign_code(policy)


def test_what_lerobot_itself_saves_passes(tiny_policy: Callable[..., Path]) -> None:
    for kind in ("act", "diffusion", "smolvla", "pi05"):
        refuse_foreign_code(tiny_policy(kind))


def test_every_place_where_lerobot_runs_fetched_code_is_known() -> None:
    """LeRobot's next version may fetch code by another name: then this list has to grow."""
    folder = Path(lerobot.__file__).parent
    found = {
        path.relative_to(folder).parts[:2]
        for part in ("policies", "rewards", "processor")
        for path in (folder / part).rglob("*.py")
        if re.search(r"trust_remote_code\W+True|trust_remote_code=self", path.read_text())
    }
    known = {("policies", k) for k in trust.CODE_REPOSITORIES if k in _folders("policies")}
    known |= {("rewards", k.removeprefix("reward_")) for k in trust.CODE_REPOSITORIES}
    assert found <= known | {("processor", "tokenizer_processor.py")}
    for kind, fields in trust.CODE_REPOSITORIES.items():
        defaults = {getattr(trust._types()[kind], name, None) for name in fields}
        own = {d for d in defaults if isinstance(d, str)}
        assert own <= trust.KNOWN_REPOSITORIES, f"{kind}: {own - trust.KNOWN_REPOSITORIES}"


def _folders(part: str) -> set[str]:
    return {p.name for p in (Path(lerobot.__file__).parent / part).iterdir()}


def calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the name of every call's function, and the function it stands in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call):
                    function = inner.func
                    name = getattr(function, "attr", getattr(function, "id", ""))
                    yield str(name), node.name


def test_nothing_loads_a_policy_unlooked_at() -> None:
    """Whatever calls a loader of LeRobot's or PEFT's calls `refuse_foreign_code`, itself or before.

    In the same function, or in one of the same module that calls that function first.
    """
    folders = ("collect", "core", "datasets", "failure_analysis", "finetune", "scripts", "sim",
               "teleop")  # fmt: skip
    for path in sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if not any(loader in text for loader in LOADERS):
            continue
        made = list(calls(ast.parse(text)))
        loads = {where for call, where in made if call in LOADERS}
        looks = {where for call, where in made if call == "refuse_foreign_code"}
        called_by = {call for call, where in made if where in looks}
        unseen = loads - looks - called_by
        if name in HARMLESS:
            continue
        assert not unseen, f"{name}: {', '.join(sorted(unseen))} loads a policy without a look"


@pytest.fixture
def adapted(base: Path, tmp_path: Path) -> Path:
    bundle = act.load(base)
    model = adapter.wrap(bundle.policy, base, LoraOptions(2, ACT_TARGETS))
    adapter.save(model, bundle, base, tmp_path / "a")
    return tmp_path / "a"


def test_an_adapter_is_put_on_no_other_base(
    adapted: Path, make_bundle: Callable[..., act.ActBundle]
) -> None:
    """An adapter whose base had been trained on meanwhile loaded without a word."""
    load_policy(adapted)
    before = adapter.weights_hash(adapted / "base")
    act.save(make_bundle(seed=1), adapted / "base")
    after = adapter.weights_hash(adapted / "base")
    with pytest.raises(UnusableInputError) as raised:
        load_policy(adapted)
    assert before[:16] in str(raised.value)
    assert after[:16] in str(raised.value)
    assert "merged" in str(raised.value)


def test_a_base_that_changes_while_it_is_trained_on_is_not_saved_beside_its_adapter(
    base: Path, make_bundle: Callable[..., act.ActBundle], tmp_path: Path
) -> None:
    bundle = act.load(base)
    model = adapter.wrap(bundle.policy, base, LoraOptions(2, ACT_TARGETS))
    act.save(make_bundle(seed=1), base)
    with pytest.raises(UnusableInputError, match="was trained on a base"):
        adapter.save(model, bundle, base, tmp_path / "a")


def test_an_older_adapter_says_that_nothing_is_known(
    adapted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sidecar = adapted / act.SIDECAR
    known = read_json(sidecar)
    del known[adapter.BASE_HASH]
    write_json(sidecar, known)
    load_policy(adapted)
    assert "doesn't state which base" in caplog.text

"""Suites of the gate: what is right comes back, what is wrong is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gaploop.core.errors import UnusableInputError
from gaploop.core.suite import CanaryRules, Rules, load_suite
from gaploop.scripts._gate import example_suite


def suite(**changes: object) -> dict[str, object]:
    return {"name": "s", "tasks": [{"task": "pick_place"}], **changes}


def task(**changes: object) -> dict[str, object]:
    return suite(tasks=[{"task": "pick_place", **changes}])


def write(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    found = load_suite(write(tmp_path, suite(rules={"gain": 0.2})))
    assert found.rules == Rules(gain=0.2)
    assert found.canary == CanaryRules()
    assert found.needs_person
    assert found.tasks[0].min_pass_rate == 0.85


def test_the_example_states_the_defaults_that_it_shows() -> None:
    """A rule that changed in code and not in the example would mislead whoever starts from it."""
    found = load_suite(example_suite())
    assert found.rules == Rules()
    assert found.canary == CanaryRules()
    assert not found.needs_person


def test_tasks_of_one_dimension_are_one_group(tmp_path: Path) -> None:
    tasks = [
        {"task": "pick_place", "gaps": {"visual_domain.exposure": 0.5}},
        {"task": "pick_place", "conditions": {"lighting": "dim"}, "dimension": "visual_domain"},
        {"task": "pick_place"},
    ]
    found = load_suite(write(tmp_path, suite(tasks=tasks)))
    assert found.groups == ("visual_domain", "pick_place")


BAD = [
    (suite(tasks=[]), "at least one task"),
    (suite(tasks=[{"task": "a"}, {"task": "a"}]), "is given twice"),
    (suite(rules={"gian": 0.1}), "Did you mean 'gain'"),
    (suite(rules={"alpha": 5}), "from 0.001 to 0.25"),
    (suite(rules={"max_pairs": 2.5}), "must be a whole number"),
    (suite(rules=3), "rules must be a mapping"),
    (suite(rules={"baseline_rate": 0.95}), "Lower gain to 0.05"),
    (suite(canary={"share": 1.0}), "from 0.01 to 0.5"),
    (suite(canary={"share": 0.4}), "Nearest: 0.333"),
    (suite(canary={"fleet": ["arm", "arm"]}), "names 'arm' twice"),
    (suite(canary={"fleet": "arm"}), "list of robots"),
    (suite(sim_tasks="pick_place"), "list of tasks"),
    (task(success_check="hope"), "operator, reward_model, script"),
    (task(success_check="reward_model"), "reward_model needs check"),
    (task(success_check="script", check="done"), "module:function"),
    (task(check="a:b"), "never called where success_check is operator"),
    (task(dimension="contact"), "contact_dynamics"),
    (task(gaps={"contact": 0.5}), "contact_dynamics"),
    (task(gaps={"contact_dynamics": 2}), "must be in [0, 1]"),
    (task(instruction=3), "instruction must be text"),
    (task(min_pass_rate=85), "from 0 to 1"),
]


@pytest.mark.parametrize(("value", "says"), BAD)
def test_what_is_wrong_is_one_line(tmp_path: Path, value: object, says: str) -> None:
    path = write(tmp_path, value)
    with pytest.raises(UnusableInputError) as caught:
        load_suite(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rule_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    """Of two blocks of rules YAML takes the last: the margins of the first were silently gone."""
    path = tmp_path / "suite.yaml"
    path.write_text("name: s\ntasks: [{task: a}]\nrules: {gain: 0.2}\nrules: {alpha: 0.1}\n")
    with pytest.raises(UnusableInputError, match="'rules' is given twice"):
        load_suite(path)


@pytest.mark.parametrize("share", [0.5, 0.33, 0.25, 0.14, 0.01])
def test_a_share_may_be_rounded(tmp_path: Path, share: float) -> None:
    assert load_suite(write(tmp_path, suite(canary={"share": share}))).canary.share == share

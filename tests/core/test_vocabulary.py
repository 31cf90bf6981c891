"""Every word is defined, and a wrong one is answered with the right ones."""

from __future__ import annotations

import ast
import inspect

import pytest

from gaploop.core import vocabulary
from gaploop.core.errors import UnknownChoiceError
from gaploop.core.vocabulary import DIMENSIONS, FailureMode, GapDimension, Phase


@pytest.mark.parametrize("enum", [FailureMode, Phase])
def test_every_member_says_what_it_means(enum: type) -> None:
    body = ast.parse(inspect.getsource(enum)).body[0]
    assert isinstance(body, ast.ClassDef)
    for place, node in enumerate(body.body):
        if isinstance(node, ast.Assign):
            after = body.body[place + 1] if place + 1 < len(body.body) else None
            assert isinstance(after, ast.Expr), f"{ast.unparse(node)} has no docstring"


def test_every_dimension_has_definition_evidence_and_remedy() -> None:
    assert set(DIMENSIONS) == set(GapDimension)
    for name, doc in DIMENSIONS.items():
        assert all((doc.definition, doc.evidence, doc.remedy)), name


def test_only_a_restated_task_has_nothing_to_collect() -> None:
    nothing = {name for name, doc in DIMENSIONS.items() if not doc.collect}
    assert nothing == {GapDimension.TASK_SPECIFICATION}


@pytest.mark.parametrize(
    ("find", "wrong", "right"),
    [
        (vocabulary.dimension, "contact", "contact_dynamics"),
        (vocabulary.outcome, "sucess", "success"),
    ],
)
def test_wrong_word_gets_the_nearest_and_all(find: object, wrong: str, right: str) -> None:
    assert find(right) == right  # type: ignore[operator]
    with pytest.raises(UnknownChoiceError) as caught:
        find(wrong, "somewhere")  # type: ignore[operator]
    said = str(caught.value)
    assert f"Did you mean '{right}'?" in said
    assert "One of: " in said
    assert "in somewhere" in said
    assert "\n" not in said

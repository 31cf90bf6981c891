"""Keys: a map never asks for two things by one key, and what is wrong is said in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.collect.operator.keys import (
    DEFAULTS,
    NAMED_KEYS,
    PAD,
    PAD_BUTTONS,
    PUNCTUATION,
    ROLLOUT,
    Command,
    KeyMap,
    is_key,
)
from gaploop.core.errors import UnusableInputError

NAMES = st.sampled_from(
    [*"abcdefghijklmnopqrstuvwxyz", *PUNCTUATION, *NAMED_KEYS, *(PAD + b for b in PAD_BUTTONS)]
)


@given(st.dictionaries(st.sampled_from([c.value for c in Command]), st.lists(NAMES, min_size=1)))
def test_a_map_that_is_taken_gives_every_key_one_meaning(changes: dict[str, list[str]]) -> None:
    try:
        keys = KeyMap.of(changes, defaults=ROLLOUT)
    except UnusableInputError:
        asked = [key for keys in changes.values() for key in dict.fromkeys(keys)]
        usual = [k for c, keys in ROLLOUT.items() if c.value not in changes for k in keys]
        assert len(set(asked + usual)) < len(asked + usual)  # one key for two things
        return
    for command, names in keys.keys.items():
        assert all(is_key(name) and keys.command(name) is command for name in names)
    for name, asked in changes.items():
        assert set(keys.keys[Command(name)]) == set(asked)


def test_a_pedal_and_a_gamepad_button_stand_beside_a_key() -> None:
    keys = KeyMap.of({"success": "b", "next": "right pad:a", "discard": ["f13"]})
    assert keys.command("b") is Command.SUCCESS
    assert keys.command("pad:a") is keys.command("right") is Command.NEXT
    assert keys.command("s") is None
    assert keys.name(Command.NEXT) == "→"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"succes": "b"}, "Did you mean 'success'"),
        ({"take_over": "b"}, "One of: accept, clear"),
        ({"success": "enter"}, "return"),
        ({"success": "pad:z"}, "pad:x"),
        ({"success": "5"}, "digits choose an answer"),
        ({"success": ""}, "needs a key"),
        ({"success": "f"}, "Give failure another key too"),
        ({"success": "b", "failure": "b"}, "can't be both success and failure"),
        ({"success": "space"}, "the leader needs it (hold to move)"),
    ],
)
def test_a_wrong_key_is_one_line_with_what_is_valid(changes: dict[str, str], said: str) -> None:
    taken = {"space": "hold to move"} if "leader" in said else {}
    with pytest.raises(UnusableInputError) as error:
        KeyMap.of(changes, taken)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_that_the_leader_needs_is_no_default() -> None:
    keys = KeyMap.of({}, {"space": "hold to move", "p": "pause"})
    assert keys.keys[Command.STOP] == ("q",)
    assert keys.name(Command.ESTOP) == ""
    assert keys.keys[Command.PAUSE] == ()
    assert DEFAULTS[Command.PAUSE] == ("p",)


def test_only_a_rollout_has_a_key_to_take_over_with() -> None:
    assert KeyMap.of({}).command("t") is None
    assert KeyMap.of({}, defaults=ROLLOUT).command("t") is Command.TAKE_OVER

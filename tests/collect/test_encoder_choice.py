"""The encoder of videos is chosen by what it does here, not by what FFmpeg was built with."""

from __future__ import annotations

import json
from pathlib import Path

import av
import pytest

from gaploop.collect import encoder_choice
from gaploop.collect.encoder import Encoder
from gaploop.collect.encoder_choice import EncoderTrial, best, choose, measure
from gaploop.collect.video_stream import HARDWARE, SOFTWARE

FAKES = {
    SOFTWARE: EncoderTrial(SOFTWARE, 3.0, 2.6),
    "fast": EncoderTrial("fast", 2.0, 0.4),
    "slow": EncoderTrial("slow", 30.0, 0.1),
    "absent": EncoderTrial("absent", why_not="The encoder absent doesn't open here."),
    "late": EncoderTrial("late", 1.0, 0.1, "it keeps pictures back"),
}


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        (("absent", "late", "slow"), SOFTWARE),
        (("absent", "fast", "slow"), "fast"),
        ((), SOFTWARE),
    ],
)
def test_the_cheapest_of_those_that_do_what_a_take_needs_is_chosen_and_remembered(
    candidates: tuple[str, ...], chosen: str, tmp_path: Path
) -> None:
    """FFmpeg offered h264_nvenc on a laptop without that card, and every take failed."""
    tried: list[str] = []

    def trial(name: str, _width: int, _height: int) -> EncoderTrial:
        tried.append(name)
        return FAKES[name]

    memory = tmp_path / "cache" / "encoders.json"
    for _ in range(3):
        assert choose(64, 48, candidates, memory, trial) == chosen
    assert tried == ([SOFTWARE, *candidates] if candidates else [])
    assert choose(128, 96, candidates, memory, trial) == chosen, "another size costs otherwise"
    assert len(json.loads(memory.read_text()) if candidates else "ab") == 2


def test_a_memory_that_is_torn_is_made_anew(tmp_path: Path) -> None:
    memory = tmp_path / "encoders.json"
    memory.write_text("{")
    assert choose(64, 48, ("fast",), memory, lambda name, _w, _h: FAKES[name]) == "fast"
    assert "fast" in memory.read_text()


def test_where_nothing_can_be_remembered_a_session_measures_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container without a home every take measured for seconds, and one ended the session."""
    (tmp_path / "gaploop").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tried: list[tuple[int, int]] = []

    def trial(name: str, width: int, height: int) -> EncoderTrial:
        tried.append((width, height))
        return FAKES[name]

    real = encoder_choice.choose
    monkeypatch.setattr(
        encoder_choice, "choose", lambda w, h: real(w, h, candidates=("fast",), trial=trial)
    )
    spec = {"width": 64, "height": 48, "fps": 50.0, "codec": "h264"}
    encoder = Encoder()
    for _ in range(3):
        named = encoder.named({"top": spec, "wrist": {**spec, "width": 32}})
        assert {one["encoder"] for one in named.values()} == {"fast"}
    assert tried == [(64, 48)] * 2 + [(32, 48)] * 2
    encoder_choice.forget()


def test_pictures_are_compared_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = encoder_choice._decoded
    monkeypatch.setattr(encoder_choice, "_decoded", lambda path: list(decoded(path))[:-3])
    assert encoder_choice.tried(SOFTWARE, 64, 48).why_not == "it lost 3 pictures"
    monkeypatch.setattr(encoder_choice, "_decoded", lambda path: [255 - p for p in decoded(path)])
    assert "it spoils pictures" in encoder_choice.tried(SOFTWARE, 64, 48).why_not


def test_where_nothing_keeps_up_software_does_it() -> None:
    assert best([FAKES["slow"], EncoderTrial(SOFTWARE, 20.0, 9.0)]) == SOFTWARE


def test_candidates_are_tried_for_real_in_a_process_of_their_own() -> None:
    assert measure(SOFTWARE, 64, 48).why_not == ""
    for name in [name for name in HARDWARE if name in av.codecs_available][:1]:
        found = measure(name, 64, 48)
        assert found.why_not or found.ms > 0
    assert "crashed" in measure("no_such_encoder", 64, 48).why_not


@pytest.mark.slow
def test_what_lerobot_tries_for_auto_is_tried_here() -> None:
    from lerobot.configs.video import HW_VIDEO_CODECS

    assert {name for name in HW_VIDEO_CODECS if name.startswith("h264")} <= set(HARDWARE)

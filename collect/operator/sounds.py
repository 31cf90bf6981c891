"""Short tones for what happens, made here; silent where there is nothing to play them on."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

RATE_HZ: Final = 44_100
LOUDNESS: Final = 0.35
FADE_S: Final = 0.008
"""A tone begins and ends this softly [s]: without it, it clicks."""


class Sound(Enum):
    """What is heard: pitches [Hz], one after another, and how long each lasts [s]."""

    START = ((660.0, 880.0), 0.09)
    END = ((880.0, 660.0), 0.09)
    GOOD = ((784.0, 988.0, 1175.0), 0.07)
    BAD = ((392.0, 330.0), 0.12)
    READY = ((523.0,), 0.15)
    DONE = ((523.0, 659.0, 784.0, 1047.0), 0.12)
    ALARM = ((988.0, 740.0, 988.0, 740.0, 988.0, 740.0), 0.14)


def samples(sound: Sound) -> NDArray[np.int16]:
    """Return a sound as 16-bit mono samples at `RATE_HZ`, shape (n,)."""
    pitches_hz, each_s = sound.value
    t_s = np.arange(round(each_s * RATE_HZ)) / RATE_HZ
    edge = np.minimum(1.0, np.minimum(t_s, each_s - t_s) / FADE_S).clip(0.0)
    tones = [np.sin(2 * np.pi * pitch_hz * t_s) * edge for pitch_hz in pitches_hz]
    return np.asarray(LOUDNESS * 32767 * np.concatenate(tones), dtype=np.int16)


class SoundPlayer:
    """Plays sounds without waiting for them. Without an audio device it plays nothing."""

    def __init__(self, wanted: bool = True) -> None:
        self._sounds: dict[Sound, Any] = {}
        self._mixer: Any = None
        if not wanted:
            return
        from gaploop.teleop.leaders.sdl import pygame

        try:
            pygame.mixer.init(RATE_HZ, -16, 1, 512)
        except pygame.error as error:
            log.info("No sounds: %s.", error)
            return
        self._mixer = pygame.mixer
        channels = self._mixer.get_init()[2]
        for sound in Sound:
            wave = samples(sound)
            data = wave if channels == 1 else np.repeat(wave[:, None], channels, axis=1)
            self._sounds[sound] = self._mixer.Sound(buffer=np.ascontiguousarray(data).tobytes())

    @property
    def works(self) -> bool:
        """Whether anything can be heard."""
        return self._mixer is not None

    def play(self, sound: Sound) -> None:
        """Play a sound; from any thread."""
        if self._mixer is not None:
            self._sounds[sound].play()

    def close(self) -> None:
        """Let go of the audio device; safe to call twice."""
        if self._mixer is not None:
            self._mixer.quit()
            self._mixer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

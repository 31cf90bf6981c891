"""A policy that drives from inside a sandbox: what is seen goes in, plans come out, nothing else.

The scene, its seed, and whether an attempt succeeded stay outside: they are nothing that a policy
could be asked to keep to itself. `policy_box.py FOLDER` is inside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.board.sandbox import EndedError, Limits, Sandbox, guard
from gaploop.collect.remote_policy import (
    MOST_BYTES,
    PLAN_BYTES,
    AskedPolicy,
    PolicyAnswer,
    PolicyCard,
    PolicyQuestion,
    answer,
    card_of,
    require_plan,
)
from gaploop.core.errors import DeviceError, GaploopError
from gaploop.teleop import link

LENGTH: Final = 4
"""Bytes that say how long a message is, most significant first."""


def framed(message: msgspec.Struct) -> bytes:
    """Return a message as it is sent: its length, then MessagePack."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH, "big") + data


def unframed[T](read: Callable[[int], bytes], kind: type[T], most: int) -> T:
    """Return the next message of what `read` reads.

    Raises:
        DeviceError: it is longer than `most` bytes, or of another kind.
    """
    length = int.from_bytes(read(LENGTH), "big")
    if length > most:
        raise DeviceError(f"It sends {length} bytes; {most} are the most.")
    return link.decoded(read(length), kind)


class BoxedPolicy(AskedPolicy):
    """A policy in a sandbox; call `close`, or use it as a context.

    Args:
        folder: the policy, which was looked at before.
        program: what answers in the place of gaploop, for tests.

    Raises:
        EndedError: it doesn't load, in time and memory.
    """

    def __init__(
        self, folder: Path, limits: Limits, task: str = "", program: Sequence[str] = ()
    ) -> None:
        own = [sys.executable, "-P", __file__, str(folder)]
        self.box, self._limits = Sandbox(list(program) or own, [folder], limits), limits
        try:
            super().__init__(self._hear(PolicyCard, limits.load_s), "The submission", task, None)
        except EndedError as error:  # it has seen nothing yet: what it said may be told
            last = (self.box.stderr_tail().strip().splitlines() or [""])[-1][:300]
            self.close()
            raise EndedError(f"doesn't load: {last or error.reason}") from None
        except BaseException:
            self.close()
            raise

    def ask(self, question: PolicyQuestion) -> PolicyAnswer:
        """Return the answer to a question.

        Raises:
            EndedError: it is late, gone, or answers nonsense; it is ended then.
        """
        self.box.allow(self._limits.answer_s)
        self.box.send(framed(question))
        said = self._hear(PolicyAnswer, self._limits.answer_s)
        self.box.allow(float("inf"))
        try:
            require_plan(said, question)
        except DeviceError:
            raise self._nonsense() from None
        if said.number != question.number or said.failed:
            raise self._nonsense()
        return said

    def close(self) -> None:
        """End it; safe to call twice."""
        self.box.close()

    def _hear[T](self, kind: type[T], seconds: float) -> T:
        self.box.allow(seconds)
        try:
            return unframed(self.box.receive, kind, PLAN_BYTES)
        except EndedError:
            raise
        except DeviceError:
            raise self._nonsense() from None

    def _nonsense(self) -> EndedError:
        self.close()
        return EndedError("answers nonsense")


def main() -> None:
    """Load the policy and answer until nobody asks any more."""
    if os.environ.get("GAPLOOP_GUARD"):
        guard()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    from gaploop.finetune.lerobot_policy import load_policy  # here: torch

    try:
        policy = load_policy(Path(sys.argv[1]))
        message: msgspec.Struct = card_of(policy, "")
    except GaploopError as error:
        sys.exit(" ".join(str(error).split()))
    while True:
        answers.write(framed(message))
        answers.flush()
        message = answer(policy, unframed(_read, PolicyQuestion, MOST_BYTES))


def _read(count: int) -> bytes:
    data = sys.stdin.buffer.read(count)
    if len(data) != count:
        sys.exit(0)
    return data


if __name__ == "__main__":
    main()

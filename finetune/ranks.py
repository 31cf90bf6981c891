"""The processes of one training: alone, or several that `accelerate launch` started.

Only what training asks for; starting processes and finding devices is accelerate's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

from gaploop.core.errors import GaploopError, UnusableInputError


class Ranks:
    """Who trains: this process's number, how many there are, where it computes.

    Args:
        device: `auto` for what accelerate gives this process, or `cpu`, `cuda`, ….

    Raises:
        UnusableInputError: there is no such device here.
    """

    def __init__(self, device: str = "cpu") -> None:
        from accelerate import PartialState

        if device != "auto":
            try:  # LeRobot would take another one and only log it
                torch.empty(0, device=device)
            except (RuntimeError, AssertionError, NotImplementedError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
                raise UnusableInputError(
                    f"--device={device}: PyTorch can't use it here ({reason}). Take --device=auto "
                    "or cpu."
                ) from None
        state = PartialState(cpu=device == "cpu")
        self.rank, self.size = int(state.process_index), int(state.num_processes)
        # Its kind alone: LeRobot knows no "cpu:0", and accelerate has made this process's GPU the
        # current one.
        self.device = str(state.device.type) if device == "auto" or self.size > 1 else device
        self._state = state

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def parallel(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return what averages gradients over all processes; the module itself where alone."""
        if self.size == 1:
            return module
        # Policies with conditional parts leave parameters without a gradient in some steps.
        return torch.nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)

    def agreed(self, value: Any) -> Any:
        """Return the first process's `value` in all, so that all take the same decision."""
        if self.size == 1:
            return value
        held = [value]
        torch.distributed.broadcast_object_list(held, src=0)
        return held[0]

    def wait(self) -> None:
        """Wait until every process is here."""
        self._state.wait_for_everyone()

    def require_same(self, weights: Iterable[torch.Tensor]) -> str:
        """Return the SHA-256 of the weights, which must be the same in all processes.

        Raises:
            GaploopError: they aren't.
        """
        digest = hashlib.sha256()
        for tensor in weights:
            values = tensor.detach().to("cpu", torch.float32).contiguous()
            digest.update(values.numpy().tobytes())
        own = digest.hexdigest()
        found = [own] * self.size
        if self.size > 1:
            torch.distributed.all_gather_object(found, own)
        if len(set(found)) > 1:
            raise GaploopError(
                f"The {self.size} processes ended with different weights. Resume from the last "
                "checkpoint with one process, and report this."
            )
        return own

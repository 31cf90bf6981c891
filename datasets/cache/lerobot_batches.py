"""Batches that are fetched whole and stay whole: collating them copies nothing.

PyTorch's collate stacks items one by one, which for pictures is a second copy into fresh memory
and the larger part of what a fast loader costs. Items here know the batch that they are views of.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map


class Sample(dict[str, Any]):
    """An item of a batch; PyTorch's collate recognises it by its type."""


class FetchedBatch(list[Sample]):
    """Items whose tensors are views of `whole`.

    Args:
        whole: tensors of shape (size, …) and lists of that length.
        size: how many items.
    """

    def __init__(self, whole: Mapping[str, Any], size: int) -> None:
        parts = {k: v.unbind(0) if isinstance(v, torch.Tensor) else v for k, v in whole.items()}
        super().__init__(Sample({k: v[i] for k, v in parts.items()}) for i in range(size))
        self.whole = dict(whole)
        self._fetched = [dict(sample) for sample in self]

    @property
    def untouched(self) -> bool:
        """Whether the items are still those that were fetched: nobody added or replaced any."""
        return len(self) == len(self._fetched) and all(
            now.keys() == then.keys() and all(map(operator.is_, now.values(), then.values()))
            for now, then in zip(self, self._fetched, strict=True)
        )


def _collate(batch: Sequence[Sample], *, collate_fn_map: object = None) -> Any:
    del collate_fn_map
    if isinstance(batch, FetchedBatch) and batch.untouched:
        return batch.whole
    return default_collate([dict(sample) for sample in batch])


# The way that PyTorch's documentation of `default_collate` gives for types of one's own.
default_collate_fn_map[Sample] = _collate


def empty_pictures(shape: Sequence[int]) -> torch.Tensor:
    """Return memory for a batch of pictures, uint8.

    In a worker process it is shared memory, from where the main process takes it as it is.
    """
    if get_worker_info() is None:
        # NumPy asks for huge pages, PyTorch doesn't: three times as fast to fill.
        return torch.from_numpy(np.empty(tuple(shape), dtype=np.uint8))
    # What `default_collate` itself does in a worker.
    storage = torch.UntypedStorage._new_shared(int(np.prod(shape)))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(*shape)

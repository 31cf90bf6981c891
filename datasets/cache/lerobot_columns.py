"""The numbers of a LeRobot dataset as tensors in memory, of the types that LeRobot's items have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch


def numeric_columns(table: Any, features: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the numeric columns of a Hugging Face dataset.

    LeRobot makes tensors from Python values, so floats of any width become float32 and integers
    int64; a feature of shape (1,) becomes a number. A column that holds nulls, lists of unequal
    length or anything else but numbers is left out.

    Args:
        table: the dataset, without a selection of rows.
        features: LeRobot's feature table.

    Returns:
        Column to values, shape (n,) or (n, *shape).
    """
    found = {}
    for name in table.column_names:
        values = _values(table.data.column(name).combine_chunks())
        shape = tuple(features[name]["shape"]) if name in features else (1,)
        shape = () if shape == (1,) else shape
        if values is not None and len(values) == len(table) * int(np.prod(shape)):
            found[name] = torch.from_numpy(values.reshape(len(table), *shape))
    return found


def _values(array: Any) -> np.ndarray[Any, Any] | None:
    """Return the numbers of an Arrow array end to end, or None where it isn't all numbers."""
    if isinstance(array, pa.ChunkedArray):  # too long for one chunk
        parts = [_values(chunk) for chunk in array.chunks]
        return (
            None
            if any(p is None for p in parts)
            else np.concatenate([p for p in parts if p is not None])
        )
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.null_count:
        return None
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _values(array.flatten())
    if pa.types.is_boolean(kind):
        return np.array(array.to_numpy(zero_copy_only=False), dtype=bool)
    if pa.types.is_floating(kind):
        return np.array(array.to_numpy(zero_copy_only=False), dtype=np.float32)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return np.array(array.to_numpy(zero_copy_only=False), dtype=np.int64)
    return None

"""`module:name`: a function or class that a user names and that lies in code of their own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from gaploop.core.errors import UnusableInputError


def named_function(name: str, where: str, form: str) -> Callable[..., Any]:
    """Import what `module:name` names.

    Args:
        where: option or entry that names it, for messages.
        form: what it must be, for messages.

    Raises:
        UnusableInputError: it can't be imported, or can't be called.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs what isn't ours
        raise UnusableInputError(
            f"{where}: {name} can't be imported ({type(error).__name__}: {error}). It must be "
            f"{form}, in a module that is installed or lies in a folder of PYTHONPATH."
        ) from error
    if not callable(function):
        raise UnusableInputError(f"{where}: {name} is no function or class.")
    return function  # type: ignore[no-any-return]

"""One tree of errors. Each says what is wrong, where, and how to fix it, on one line."""

import difflib
from collections.abc import Iterable
from typing import Final


class GaploopError(Exception):
    """Anything gaploop reports to its user. The command line prints it as one line."""

    exit_code = 2


class UnusableInputError(GaploopError):
    """The input can't be used: what, where and how to fix it. Exit code 2."""


class UnknownChoiceError(UnusableInputError):
    """A name that isn't among the valid ones."""


DAMAGE: Final = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    MemoryError,
    EOFError,
)
"""What looking into a file that somebody else wrote may raise, in parsers and our own conversions.

A reader turns it into UnusableInputError with the file and the place; it is caught nowhere else."""


class DeviceError(GaploopError):
    """A device didn't answer or answered nonsense. Exit code 2."""


class LostError(DeviceError):
    """A device is gone, such as by a pulled cable; whoever can connects it anew."""


class TrippedError(DeviceError):
    """The arm is limp after a safety trip, and nobody is there to clear it. Exit code 1."""

    exit_code = 1


def file_words(error: OSError) -> str:
    """Return what is wrong with which file, as far as it is known, without a number."""
    # pyarrow's words end in the system's.
    why = error.strerror.rpartition("] ")[2] if error.strerror else str(error)
    return f"{error.filename}: {why}" if error.filename else why


def unknown_choice(
    kind: str, value: object, valid: Iterable[str], where: str = ""
) -> UnknownChoiceError:
    """Return the error for a wrong name, with the nearest valid one and the whole list.

    `kind` is what was named, such as "dimension"; `where` the file, option or column it came from.
    """
    names = sorted(valid)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    near = near or [name for name in names if len(str(value)) > 2 and str(value) in name]
    place = f" in {where}" if where else ""
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UnknownChoiceError(f"Unknown {kind} '{value}'{place}.{hint} One of: {', '.join(names)}")

"""A servo's control table: what is at which address, what it holds at power-up, what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class EmulatedRegister:
    """One entry of a control table.

    Attributes:
        name: as in LeRobot's tables.
        address: of its first byte.
        size: bytes, little-endian.
        initial: value as shipped; after power-up where it is not kept.
        low: smallest value that is taken.
        high: largest value that is taken.
        writable: may be written.
        kept: survives a loss of power (EEPROM area).
        signed: two's complement.
    """

    name: str
    address: int
    size: int
    initial: int = 0
    low: int = 0
    high: int = -1
    writable: bool = True
    kept: bool = False
    signed: bool = False

    @property
    def end(self) -> int:
        """Address after its last byte."""
        return self.address + self.size

    @property
    def bounded(self) -> bool:
        """Whether `low` and `high` limit it."""
        return self.low <= self.high


@dataclass(frozen=True)
class ControlTable:
    """All registers of a servo model.

    Attributes:
        registers: in the order of their addresses.
        size: bytes that can be read, from address 0.
    """

    registers: tuple[EmulatedRegister, ...]
    size: int
    by_name: Mapping[str, EmulatedRegister] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {r.name: r for r in self.registers})

    @cached_property
    def by_byte(self) -> tuple[EmulatedRegister | None, ...]:
        """The register that each byte belongs to."""
        owner: list[EmulatedRegister | None] = [None] * self.size
        for register in self.registers:
            owner[register.address : register.end] = [register] * register.size
        return tuple(owner)

    def spanned(self, address: int, length: int) -> Iterable[EmulatedRegister | None]:
        """Yield the registers that `length` bytes from `address` touch, each once."""
        last: EmulatedRegister | None = None
        for owner in self.by_byte[address : address + length]:
            if owner is None or owner is not last:
                yield owner
            last = owner


class Memory:
    """The bytes of one servo, and what of them survives a loss of power."""

    def __init__(self, table: ControlTable, overrides: Mapping[str, int] | None = None) -> None:
        self.table = table
        self.bytes = bytearray(table.size)
        self._places = {r.name: (r.address, r.end, r.signed) for r in table.registers}
        self._kept = bytearray(table.size)
        for register in table.registers:
            self.store(register, (overrides or {}).get(register.name, register.initial))
        self._kept[:] = self.bytes

    def store(self, register: EmulatedRegister, value: int) -> None:
        """Set a register without any check; too large a value wraps, as in the firmware."""
        raw = (value % (1 << 8 * register.size)).to_bytes(register.size, "little")
        self.bytes[register.address : register.end] = raw

    def __getitem__(self, name: str) -> int:
        first, end, signed = self._places[name]  # read thousands of times a second
        return int.from_bytes(self.bytes[first:end], "little", signed=signed)

    def __setitem__(self, name: str, value: int) -> None:
        self.store(self.table.by_name[name], value)

    def keep(self, register: EmulatedRegister) -> None:
        """Make the present value of a register survive a loss of power."""
        here = slice(register.address, register.end)
        self._kept[here] = self.bytes[here]

    def power_up(self) -> None:
        """Take back what was kept; the rest begins with its initial value."""
        for register in self.table.registers:
            if register.kept:
                here = slice(register.address, register.end)
                self.bytes[here] = self._kept[here]
            else:
                self.store(register, register.initial)

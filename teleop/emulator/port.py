"""A pseudo-terminal that stands for a USB serial adapter, with a symbolic link to it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from gaploop.core import platform_calls
from gaploop.core.errors import UnusableInputError


class PseudoTerminal:
    """The servos' end of a pseudo-terminal; `fd` is non-blocking."""

    def __init__(self, link: Path | None = None) -> None:
        """Open a terminal and point `link` to it; UnusableInputError where that can't be done."""
        platform_calls.require_posix("Emulated arms")
        # Our own hold on the host's end keeps the terminal alive between hosts.
        self.fd, self._host_fd, self.name = platform_calls.open_terminals()
        self._link = link
        if link is None:
            return
        with contextlib.ExitStack() as undo:
            undo.callback(self._close_fds)
            if not link.is_symlink() and link.exists():
                raise UnusableInputError(
                    f"--link={link} exists and is not a link. Name another path, or remove it."
                )
            try:  # in one step, over an older link
                with tempfile.TemporaryDirectory(dir=link.absolute().parent, prefix=".link") as new:
                    fresh = Path(new, "link")
                    fresh.symlink_to(self.name)
                    fresh.replace(link)
            except OSError as error:
                raise UnusableInputError(
                    f"--link={link} can't be made: {error.strerror}. Name a path in a folder that "
                    "exists and that you may write to."
                ) from error
            undo.pop_all()

    @property
    def path(self) -> str:
        """What a host opens."""
        return self.name if self._link is None else str(self._link)

    def baud(self) -> int:
        """Return the bit rate that the host has set [bit/s]."""
        return platform_calls.terminal_baud(self.fd)

    def send(self, data: bytes) -> None:
        """Send bytes to the host; what doesn't fit is lost, as a UART has no flow control."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.fd, data)

    def receive(self) -> bytes:
        """Return what the host has sent, without waiting."""
        try:
            return os.read(self.fd, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Remove the link and close the terminal; safe to call twice."""
        if self._link is not None and self.fd >= 0:
            with contextlib.suppress(OSError):
                if os.readlink(self._link) == self.name:
                    self._link.unlink()
        self._close_fds()

    def _close_fds(self) -> None:
        for fd in (self.fd, self._host_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self._host_fd = -1

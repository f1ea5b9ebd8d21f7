"""The command line on a pseudo-terminal: what a person sees, and what a person types."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from docs.assets.terminal import Screen
from harness.forking import Forked
from tests.cli.running import LIMIT, Cli

ROWS, COLUMNS = 40, 110
CTRL_C = "\x03"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")


class Terminal:
    def __init__(self, command: Forked, master: int) -> None:
        self._command = command
        self._master = master
        self._raw = b""
        self._seen = 0

    @property
    def text(self) -> str:
        """Everything that was written so far, without colours and cursor moves."""
        return _CONTROL.sub("", self._raw.decode(errors="replace"))

    @property
    def screen(self) -> str:
        """What is on the terminal now: what was drawn anew in place is there once."""
        screen = Screen(COLUMNS)
        screen.write(self._raw.decode(errors="replace"))
        return str(screen)

    @property
    def raw(self) -> bytes:
        """The same as it was written."""
        return self._raw

    def expect(self, wanted: str) -> None:
        """Wait until `wanted` is written, after what was expected before."""
        until = time.monotonic() + LIMIT
        while (place := self.text.find(wanted, self._seen)) < 0:
            assert time.monotonic() < until, f"{wanted!r} did not come; instead:\n{self.text[self._seen :]}"
            assert self._read(until), f"{wanted!r} did not come before the end; instead:\n{self.text[self._seen :]}"
        self._seen = place + len(wanted)

    def expect_screen(self, wanted: Callable[[str], bool]) -> None:
        """Wait until the terminal shows what is wanted."""
        until = time.monotonic() + LIMIT
        while not wanted(screen := self.screen):
            assert time.monotonic() < until, screen
            assert self._read(until), screen

    def enter(self, text: str) -> None:
        self.type(f"{text}\n")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait(self) -> int:
        until = time.monotonic() + LIMIT
        while self._read(until):
            pass
        return self._command.wait(LIMIT)

    def _read(self, until: float) -> bool:
        """Take in what was written; False when the other side has gone."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise AssertionError(f"nothing came; so far:\n{self.text}")
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # Linux says EIO when the last process on the terminal has gone.
            return False
        self._raw += data
        return bool(data)


@contextmanager
def on_terminal(cli: Cli, *arguments: str, columns: int = COLUMNS) -> Generator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    command = cli.begin(arguments, [slave, slave, slave])
    os.close(slave)
    try:
        yield Terminal(command, master)
    finally:
        command.kill()
        command.wait()
        os.close(master)

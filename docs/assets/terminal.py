"""A command on a pseudo-terminal, and what a person sees there: lines that are drawn anew in place are seen once."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import termios
from collections.abc import Mapping
from typing import Final

from harness.forking import fork

PATIENCE: Final = 60.0
"""Seconds for anything to come. Far more than it takes."""

_PARTS: Final = re.compile(r"\x1b\[(?P<numbers>[0-9;?]*)(?P<verb>[A-Za-z])|\x1b[()].|[\r\n\b]|[^\x1b\r\n\b]")
_BEGUN: Final = re.compile(r"(?:\x1b(?:\[[0-9;?]*)?)?\Z")
"""A code that has not come as a whole yet."""


class DidNotCome(Exception):
    """What was waited for did not come before the end."""


class Screen:
    """What is on a terminal of a width, without its colours. It is as high as it has to be."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def __str__(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self._lines).rstrip()

    def write(self, text: str) -> None:
        """What a program writes: text, and where it goes."""
        for part in _PARTS.finditer(text):
            if part["verb"] is not None:
                self._obey(part["verb"], part["numbers"])
            elif part[0] == "\r":
                self._column = 0
            elif part[0] == "\b":
                self._column = max(0, self._column - 1)
            elif part[0] == "\n":
                self._go_to(self._row + 1)
            elif not part[0].startswith("\x1b"):
                self._put(part[0])

    def _obey(self, verb: str, numbers: str) -> None:
        number = int(numbers) if numbers.isdigit() else None
        if verb == "A":
            self._go_to(max(0, self._row - (number or 1)))
        elif verb == "B":
            self._go_to(self._row + (number or 1))
        elif verb == "K":
            del self._lines[self._row][0 if number == 2 else self._column :]

    def _go_to(self, row: int) -> None:
        self._row = row
        while len(self._lines) <= row:
            self._lines.append([])

    def _put(self, character: str) -> None:
        if self._column == self._width:
            self._go_to(self._row + 1)
            self._column = 0
        line = self._lines[self._row]
        line.extend(" " * (self._column + 1 - len(line)))
        line[self._column] = character
        self._column += 1


class Command:
    """`mcp-tasks` on a terminal of its own."""

    def __init__(self, words: list[str], *, width: int, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, width, 0, 0))
        self._screen = Screen(width)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun = ""
        self._pieces: list[str] = []
        self._process = fork("mcp_tasks", *words, env=environment, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    @property
    def screen(self) -> str:
        """What is on the terminal now."""
        return str(self._screen)

    def wait_for(self, text: str) -> str:
        """Wait until something is on the screen; gives all that is there then.

        Raises:
            DidNotCome: The command ended before.
        """
        while text not in self.screen:
            if not self._take_in():
                raise DidNotCome(f"{text!r} did not come:\n{self.screen}")
        return self.screen

    def enter(self, line: str) -> None:
        """Type a line."""
        os.write(self._master, f"{line}\n".encode())

    def end(self) -> str:
        """Wait for its end; gives what is on the screen then."""
        while self._take_in():
            pass
        self._process.wait(PATIENCE)
        os.close(self._master)
        return self.screen

    def _take_in(self) -> bool:
        """Write the next piece to the screen, so small that nothing is missed that is there for a moment only; False at
        the end."""
        if not self._pieces:
            if not select.select([self._master], [], [], PATIENCE)[0]:
                raise SystemExit(f"nothing came any more:\n{self.screen}")
            try:
                data = os.read(self._master, 65536)
            except OSError:
                # Linux says so when the last process on the terminal has gone.
                return False
            text = self._begun + self._decoder.decode(data)
            begun = _BEGUN.search(text)
            self._begun = "" if begun is None else begun[0]
            self._pieces = re.split(r"(?=\r)", text.removesuffix(self._begun))
        self._screen.write(self._pieces.pop(0))
        return True

"""How a server is named: a URL, or the command of a stdio server.

A command is kept in the ledger with the folder it was given in, as `cd FOLDER && COMMAND`, because a relative path
means something else the next day. That form is read back here, and may be typed as well. Nothing else that is in a
ledger is taken for a command: a program that shares the ledger calls its servers what it likes.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mcp_tasks.client.ledger_entry import LedgerEntry
from mcp_tasks.client.transport import http_address
from mcp_tasks.errors import InvalidAddress

_PLACED = re.compile(r"cd (?P<folder>.+?) && (?P<command>.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerAddress:
    """A server, and all that is needed to reach it again but for credentials.

    Attributes:
        url: For a server over HTTP.
        argv: For a stdio server: its command, in parts.
        folder: For a stdio server: where the command is run.
        written: How a ledger names it, where that is not the same: a server of a file is named as it is written there,
            with variables in the place of what may be secrets.
    """

    url: str | None = None
    argv: tuple[str, ...] = ()
    folder: str = ""
    written: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The server that a text names: a URL, or a command, which is run in the present folder.

        Raises:
            InvalidAddress: It does not name a server.
        """
        text = text.strip()
        if re.match(r"https?://", text, re.IGNORECASE):
            return cls(url=text)
        if re.match(r"[a-z][a-z0-9+.-]*://", text, re.IGNORECASE):
            raise InvalidAddress(f"{text!r} is not a server: a URL begins with http:// or https://")
        placed = _PLACED.fullmatch(text)
        folder, command = (placed["folder"], placed["command"]) if placed else (shlex.quote(str(Path.cwd())), text)
        try:
            argv, [where] = shlex.split(command), shlex.split(folder)
        except ValueError as exc:
            raise InvalidAddress(f"{text!r} is not a command: {exc}") from exc
        if not argv:
            raise InvalidAddress("SERVER is empty; give a URL or the command of a stdio server")
        return cls(argv=tuple(argv), folder=os.path.expanduser(where))

    @classmethod
    def of(cls, entry: LedgerEntry) -> Self:
        """The server of a task that is in a ledger.

        Raises:
            InvalidAddress: The ledger does not say how to reach it.
        """
        if entry.attributed and (re.match(r"https?://", entry.server) or _PLACED.fullmatch(entry.server)):
            return cls.parse(entry.server)
        why = "is known to the ledger by the name its program gave it"
        if not entry.attributed:
            why = "was recorded by the first release, which did not keep the addresses of servers"
        elif entry.server.startswith("with "):
            why = "is started by its program with environment variables that the ledger does not keep"
        raise InvalidAddress(
            f"the server of {entry.task_id} {why}: {entry.server!r}",
            "Say which server it is, and give the whole id of the task.",
        )

    @property
    def spec(self) -> str:
        """How a ledger names it; `parse` takes it back."""
        if self.written:
            return self.written
        if self.url is not None:
            return http_address(self.url)
        return f"cd {shlex.quote(self.folder)} && {shlex.join(self.argv)}"

    @property
    def label(self) -> str:
        """How it is shown."""
        return self.spec if self.url is not None else self.written.rpartition(" && ")[2] or shlex.join(self.argv)


def looks_like_address(text: str) -> bool:
    """Whether somebody may have meant a URL and left out how it begins."""
    return bool(re.match(r"(localhost|[\w-]+(\.[\w-]+)*:\d+|[\w-]+(\.[\w-]+)+/)", text)) and not Path(text).exists()

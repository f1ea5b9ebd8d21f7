"""SERVER on the command line: a URL, or the command of a stdio server.

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

import click

from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.client import LedgerEntry
from mcp_tasks.client.transport import http_address

_PLACED = re.compile(r"cd (?P<folder>.+?) && (?P<command>.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A server, and all that is needed to reach it again but for credentials.

    Attributes:
        url: For a server over HTTP.
        argv: For a stdio server: its command, in parts.
        folder: For a stdio server: where the command is run.
    """

    url: str | None = None
    argv: tuple[str, ...] = ()
    folder: str = ""

    @property
    def spec(self) -> str:
        """How the ledger names it; `parse_target` takes it back."""
        if self.url is not None:
            return http_address(self.url)
        return f"cd {shlex.quote(self.folder)} && {shlex.join(self.argv)}"

    @property
    def label(self) -> str:
        """How it is shown."""
        return self.spec if self.url is not None else shlex.join(self.argv)


def parse_target(text: str) -> Target:
    """The server that `text` names.

    Raises:
        UsageError: It does not name a server.
    """
    text = text.strip()
    if re.match(r"https?://", text, re.IGNORECASE):
        return Target(url=text)
    if re.match(r"[a-z][a-z0-9+.-]*://", text, re.IGNORECASE):
        raise click.UsageError(f"{text!r} is not a server: a URL begins with http:// or https://")
    placed = _PLACED.fullmatch(text)
    folder, command = (placed["folder"], placed["command"]) if placed else (shlex.quote(str(Path.cwd())), text)
    try:
        argv, [where] = shlex.split(command), shlex.split(folder)
    except ValueError as exc:
        raise click.UsageError(f"{text!r} is not a command: {exc}") from exc
    if not argv:
        raise click.UsageError("SERVER is empty; give a URL or the command of a stdio server")
    return Target(argv=tuple(argv), folder=os.path.expanduser(where))


def target_of(entry: LedgerEntry) -> Target:
    """The server of a task that is in the ledger.

    Raises:
        Problem: The ledger does not say how to reach it.
    """
    if entry.attributed and (re.match(r"https?://", entry.server) or _PLACED.fullmatch(entry.server)):
        return parse_target(entry.server)
    why = "is known to the ledger by the name its program gave it"
    if not entry.attributed:
        why = "was recorded by the first release, which did not keep the addresses of servers"
    elif entry.server.startswith("with "):
        why = "is started by its program with environment variables that the ledger does not keep"
    raise Problem(
        f"the server of {entry.task_id} {why}: {entry.server!r}",
        Exit.USAGE,
        hint="Name its server with --server, and give the whole ID.",
    )


def label_of(entry: LedgerEntry) -> str:
    """How the server of a task that is in the ledger is shown."""
    return entry.server.rpartition(" && ")[2]


def looks_like_address(text: str) -> bool:
    """Whether somebody may have meant a URL and left out how it begins."""
    return bool(re.match(r"(localhost|[\w-]+(\.[\w-]+)*:\d+|[\w-]+(\.[\w-]+)+/)", text)) and not Path(text).exists()

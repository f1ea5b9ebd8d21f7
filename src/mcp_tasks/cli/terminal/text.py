"""Text that somebody else wrote, made fit for a terminal; the one place for it.

A server chooses ids, names, titles, messages and errors. None of it may move the cursor, hide something, reorder what
is read, or begin a line where one is meant; and a command that is suggested means what it seems to mean. What
`credentials` hides is taken out of all of it as well.
"""

from __future__ import annotations

import shlex
from typing import Any

from mcp_tasks.cli.credentials import SECRETS
from mcp_tasks.client.printable import printable, printable_json


def clean(text: str) -> str:
    """Text without what a terminal would obey, on its lines."""
    return printable(SECRETS.hidden_in(text))


def one_line(text: str | None) -> str:
    """The same on one line."""
    return " ".join(clean(text or "").split())


def command_line(name: str, *words: str, options: str = "") -> str:
    """A command to be copied: `words` of it may be of somebody else's choosing, and stay single words that are no
    options. `options` are ours."""
    quoted = [shlex.quote(one_line(word)) for word in words]
    if any(word.startswith("-") for word in quoted):
        return " ".join(["mcp-tasks", name + options, "--", *quoted])
    return " ".join(["mcp-tasks", name, *quoted]) + options


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A JSON value to be printed: what a terminal would obey is escaped in it, and the value is the same, but for
    secrets of this process."""
    return printable_json(SECRETS.hidden_in_json(value), indent=indent)

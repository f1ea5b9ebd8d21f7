"""Text that somebody else wrote, made fit for a terminal; the one place for it.

A server chooses ids, names, titles, messages and errors. None of it may move the cursor, hide something, reorder what
is read, or begin a line where one is meant; and a command that is suggested means what it seems to mean. Secrets of
this process are taken out of all of it as well: what a server is told, it may say back.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp_tasks.client.printable import printable, printable_json

_secrets: set[str] = set()


def hide(*secrets: str) -> None:
    """Never show these texts from now on, whoever says them."""
    _secrets.update(secret for secret in secrets if secret)


def without_secrets(text: str) -> str:
    """Text without the secrets of this process."""
    for secret in _secrets:
        text = text.replace(secret, "***")
    return text


def clean(text: str) -> str:
    """Text without what a terminal would obey, on its lines."""
    return printable(without_secrets(text))


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
    return printable_json(_hidden(value) if _secrets else value, indent=indent)


def _hidden(value: Any) -> Any:
    """The same value without the secrets of this process: in texts alone, so that it is still JSON."""
    match value:
        case str():
            return without_secrets(value)
        case Mapping():
            return {_hidden(name): _hidden(part) for name, part in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple():
            return [_hidden(part) for part in cast("Sequence[Any]", value)]
        case _:
            return value


class CleanLog(logging.Formatter):
    """Log lines with what servers say in them."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, fit for a terminal."""
        return clean(super().format(record))

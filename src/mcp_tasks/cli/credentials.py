"""Where the token for a server comes from, and that it goes nowhere else.

On the command line it can be read by everybody on the machine, for as long as the command runs, and later in the
history of the shell; so there are a file, a prompt and the environment as well. It is hidden from all that is printed.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from mcp_tasks.cli.terminal.text import hide
from mcp_tasks.client.pages import is_loopback
from mcp_tasks.client.servers.entry import is_credential
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE

TOKEN: Final = "MCP_TASKS_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "MCP_TASKS_TOKEN_FILE"  # noqa: S105

_LONGEST: Final = 64 * 1024
"""Bytes of a file with a token: more are not one."""


def chosen_token(given: str | None, file: Path | None) -> str | None:
    """The token, wherever it is said: `--token`, `--token-file`, or the environment, in this order.

    Raises:
        UsageError: It is said twice, or what is said has none.
    """
    if given is not None and file is not None:
        raise click.UsageError("--token and --token-file are two ways to say the same; give one of them")
    if given == "-":
        token = _asked()
    elif given is not None:
        _warn(
            "the token is on the command line, where everybody on this machine can read it: --token-file, or "
            "--token - for a prompt"
        )
        token = given
    elif file is not None:
        token = _read(file)
    elif os.environ.get(TOKEN):
        token = os.environ[TOKEN]
    elif os.environ.get(TOKEN_FILE):
        token = _read(Path(os.environ[TOKEN_FILE]))
    else:
        return None
    return _checked(token)


def hide_values(headers: Mapping[str, str]) -> None:
    """Have nothing show what may be a secret in these headers: servers say back what they are told."""
    for name, value in headers.items():
        if is_credential(name) or "session" in name.lower():
            hide(value.rpartition(" ")[2])


def hide_password(url: str) -> None:
    """Have nothing show the password that is in a URL."""
    # Not by `urlsplit`, which refuses what is no URL: that is for whoever connects to it.
    user_info, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    if at and ":" in user_info:
        # As it stands in URLs, so that one of a letter does not hide that letter everywhere.
        hide(f":{user_info.partition(':')[2]}@")


def warn_of_plain_http(url: str) -> None:
    """Say that credentials travel in the clear, where they do."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        _warn(f"credentials go to {parts.hostname} over plain http, where everybody on the way can read them")


def environment_for_servers() -> dict[str, str]:
    """The environment of a stdio server: that of any other command typed here, but without what is for this one."""
    ours = (TOKEN, TOKEN_FILE, LEDGER_KEYS_VARIABLE, f"{LEDGER_KEYS_VARIABLE}_FILE")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _asked() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True, err=True))
    # From a pipe: one line, so that what follows may be for something else.
    return sys.stdin.readline()


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if os.name == "posix" and stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
                _warn(f"others on this machine may read {path}: chmod 600 {path}")
            data = file.read(_LONGEST + 1)
    except OSError as exc:
        raise click.UsageError(f"the token file {str(path)!r} cannot be read: {exc.strerror or exc}") from exc
    if len(data) > _LONGEST:
        raise click.UsageError(f"{str(path)!r} is too large to be a token file")
    return data.decode(errors="replace")


def _checked(token: str) -> str:
    token = token.strip()
    if not token:
        raise click.UsageError("the token is empty")
    hide(token)
    if not token.isascii() or not token.isprintable() or " " in token:
        # Without the token: an error message is kept longer than it should be.
        raise click.UsageError("the token has characters that no token has: is it one line, and nothing else?")
    return token


def _warn(text: str) -> None:
    click.secho(f"warning: {text}", fg="yellow", err=True)

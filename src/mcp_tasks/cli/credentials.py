"""Where the token for a server comes from, and that it goes nowhere else.

A token of the command line goes to the server of that command. The one of the environment is there for every command,
and goes only to servers that the user named or typed (`way_to`).

On the command line it can be read by everybody on the machine, for as long as the command runs, and later in the
history of the shell; so there are a file, a prompt and the environment as well. It is hidden from all that is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from mcp_tasks.client.secrets import Secrets
from mcp_tasks.client.servers.credentials import is_in_the_clear, read_headers, read_token, secrets_of
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE

TOKEN: Final = "MCP_TASKS_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "MCP_TASKS_TOKEN_FILE"  # noqa: S105

SECRETS: Final = Secrets()
"""What nothing shows that is printed here."""


def sent_headers(lines: Sequence[str] = (), given: str | None = None, file: Path | None = None) -> dict[str, str]:
    """The headers of every HTTP request that are said on the command line: those that were typed as `NAME:VALUE`, and
    one for the token of `--token` or `--token-file`.

    Raises:
        UsageError: The token is said twice.
        InvalidOption: One is no header, or there is no token where there should be one.
    """
    if given is not None and file is not None:
        raise click.UsageError("--token and --token-file are two ways to say the same; give one of them")
    token = _asked() if given == "-" else given
    if given not in (None, "-"):
        instead = "--token-file, or --token - for a prompt"
        warn(f"the token is on the command line, where everybody on this machine can read it: {instead}")
    return _hidden(read_headers(lines, token if file is None else _in_file(file)))


def environment_headers() -> dict[str, str]:
    """The header for the token of the environment, if there is one.

    Raises:
        InvalidOption: There is no token where there should be one.
    """
    token, path = os.environ.get(TOKEN) or None, os.environ.get(TOKEN_FILE)
    return _hidden(read_headers((), _in_file(Path(path)) if path and token is None else token))


def _hidden(headers: dict[str, str]) -> dict[str, str]:
    SECRETS.hide(*secrets_of(headers=headers))
    return headers


def _in_file(file: Path) -> str:
    token, is_open = read_token(file)
    if is_open:
        warn(f"others on this machine may read {file}: chmod 600 {file}")
    return token


def guard(url: str, *, with_credentials: bool) -> None:
    """Have nothing show the password that is in a URL, and say that credentials travel in the clear, where they do."""
    SECRETS.hide(*secrets_of(url))
    if with_credentials and is_in_the_clear(url):
        warn(f"credentials go to {urlsplit(url).hostname} over plain http, where everybody on the way can read them")


def environment_for_servers() -> dict[str, str]:
    """The environment of a stdio server: that of any other command typed here, but without what is for this one."""
    ours = (TOKEN, TOKEN_FILE, LEDGER_KEYS_VARIABLE, f"{LEDGER_KEYS_VARIABLE}_FILE")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _asked() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True, err=True))
    # From a pipe: one line, so that what follows may be for something else.
    return sys.stdin.readline()


def warn(text: str) -> None:
    """Say on stderr what may be wrong."""
    click.secho(f"warning: {text}", fg="yellow", err=True)

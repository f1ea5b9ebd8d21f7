"""`mcp-tasks key`: a new key to encrypt tasks with, and the ids of those that there are."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mcp_tasks.cli.options import Output, takes_format
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.views import print_json, say
from mcp_tasks.encryption import Keyring, new_key
from mcp_tasks.errors import TasksError


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it to a new file that only you can read, instead of printing it.",
)
@click.option(
    "--ids",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Make no key: print what those in this file are called in messages.",
)
@takes_format
def command(*, out: Path | None, ids: Path | None, output: Output) -> int:
    """Make a new random key. Keep it as you keep passwords: what it encrypts is lost without it.

    Examples:
      mcp-tasks key --out /etc/farm/tasks.key
      MCP_TASKS_KEYS_FILE=/etc/farm/tasks.key python server.py
      mcp-tasks key --ids /etc/farm/tasks.key
    """
    try:
        if ids is not None:
            known = list(Keyring.from_file(ids).key_ids)
            _print("\n".join(known), known, output)
        elif out is not None:
            name = _write(out, new_key())
            _print(None, {"file": str(out), "id": name}, output)
        else:
            key = new_key()
            _print(key, {"key": key, "id": Keyring(key).key_ids[0]}, output)
    except TasksError as exc:
        raise Problem(str(exc), Exit.USAGE) from None
    return Exit.OK


def _print(text: str | None, value: object, output: Output) -> None:
    if output == "json":
        print_json(value)
    elif text is not None:
        click.echo(text)


def _write(path: Path, key: str) -> str:
    """Write a key; gives its id. A file that is there is left as it is: it may have the only copy of a key."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Problem(f"there is a file {str(path)!r} already", Exit.USAGE, hint="It may have a key in it.") from None
    except OSError as exc:
        raise Problem(f"the file {str(path)!r} cannot be written: {exc.strerror}", Exit.USAGE) from None
    with open(file, "w", encoding="ascii") as stream:
        stream.write(f"{key}\n")
    name = Keyring(key).key_ids[0]
    say(f"A new key is in {path}, with the id {name}.")
    return name

"""`mcp-tasks key`: a new key to encrypt tasks with, and the ids of those that there are."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from mcp_tasks.cli.commands.store import AS, AUDIT, written_down
from mcp_tasks.cli.options import Output, file_option, takes_format, takes_output
from mcp_tasks.cli.terminal import Exit, Problem, print_json, say, store_problem
from mcp_tasks.encryption import Keyring, new_key
from mcp_tasks.errors import StoreError, TasksError, UsageError
from mcp_tasks.stores.encryption import Resealed, encrypt_store
from mcp_tasks.telemetry.audit import AuditEntry


@click.command()
@file_option("--out", help="Write it to a new file that only you can read, instead of printing it.")
@file_option("--ids", help="Make no key: print what those in this file are called in messages.")
@takes_format
def key_command(*, out: Path | None, ids: Path | None, output: Output) -> int:
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


# ---- encrypt
# `mcp-tasks encrypt`: all that a store keeps is encrypted with the first key.


@click.command()
@click.option("--store", "url", metavar="URL", required=True, help="The store, as Tasks() is given it.")
@AS
@AUDIT
@takes_output
async def encrypt_command(*, url: str, name: str | None, audit: Path | None, output: Output) -> int:
    """Encrypt all that a store keeps with the first key, whether it is plain or encrypted with another.

    Stop the servers first, unless only the key changes, in Postgres or Redis, and all of them have both keys. If it is
    interrupted, run it again.

    Examples:
      mcp-tasks encrypt --store sqlite:///tasks.db
      MCP_TASKS_KEYS_FILE=tasks.key mcp-tasks encrypt --store sqlite:///tasks.db
      MCP_TASKS_KEYS="$NEW $OLD" mcp-tasks encrypt --store postgresql://db/tasks

    The keys come from MCP_TASKS_KEYS or MCP_TASKS_KEYS_FILE, the new one first.

    Exit codes: 0 all of it is encrypted with the first key, 2 wrong usage,
    10 the store cannot be used, or some of it could not be decrypted.
    """
    try:
        # First: an act that cannot be written down is not done.
        acts, operator = written_down(audit, name)
        with closing(acts):
            done = await encrypt_store(url, Keyring.from_environment())
            outcome = "incomplete" if done.unreadable else None
            entry = AuditEntry(event="reencrypted", actor=operator, count=done.changed, outcome=outcome)
            acts.of("").write(entry)
    except (StoreError, UsageError) as exc:
        raise store_problem(exc) from None
    if output == "json":
        print_json(asdict(done))
    else:
        _say(done)
    return Exit.STORE if done.unreadable else Exit.OK


def _say(done: Resealed) -> None:
    say(f"Encrypted {done.changed:,} values ({done.plain:,} were plain); {done.kept:,} had the key already.")
    if done.unreadable:
        say(
            f"{done.unreadable:,} values could not be decrypted, and are as they were: a key is missing, or they were "
            "changed. Add the key and run it again.",
            "yellow",
        )

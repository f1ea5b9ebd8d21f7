"""`mcp-tasks encrypt`: all that a store keeps is encrypted with the first key."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from mcp_tasks.cli.commands.store.options import AS, AUDIT, written_down
from mcp_tasks.cli.options import Output, takes_output
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.views import print_json, say
from mcp_tasks.encryption import Keyring
from mcp_tasks.errors import StoreError, UsageError
from mcp_tasks.stores.encrypted import Resealed
from mcp_tasks.stores.encrypting import encrypt_store
from mcp_tasks.telemetry.audit_log import AuditEntry


@click.command()
@click.option("--store", "url", metavar="URL", required=True, help="The store, as Tasks() is given it.")
@AS
@AUDIT
@takes_output
async def command(*, url: str, name: str | None, audit: Path | None, output: Output) -> int:
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
        # First: what cannot be written down is not to be done.
        acts, operator = written_down(audit, name)
        with closing(acts):
            done = await encrypt_store(url, Keyring.from_environment())
            outcome = "incomplete" if done.unreadable else None
            entry = AuditEntry(event="reencrypted", actor=operator, count=done.changed, outcome=outcome)
            acts.of("").write(entry)
    except (StoreError, UsageError) as exc:
        raise Problem(str(exc), Exit.STORE if isinstance(exc, StoreError) else Exit.USAGE) from None
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

"""`mcp-tasks key`: a new key to encrypt tasks with."""

from __future__ import annotations

import click

from mcp_tasks.cli.exits import Exit
from mcp_tasks.encryption import new_key

EPILOG = """\
\b
Examples:
  mcp-tasks key
  (umask 077; mcp-tasks key > /etc/farm/tasks.key)
  MCP_TASKS_KEYS_FILE=/etc/farm/tasks.key python server.py
"""


@click.command(epilog=EPILOG)
def command() -> int:
    """Print a new random key. Keep it as you keep passwords: what it encrypts is lost without it."""
    click.echo(new_key())
    return Exit.OK

"""`mcp-tasks completion`: the script that has a shell complete words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mcp_tasks.cli.terminal.exits import Exit

_ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
"""zsh completes nothing before this was done, and a new .zshrc does not do it."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> int:
    """Print the script that completes commands, options, ids of tasks, names of servers and tools.

    Examples:
      mcp-tasks completion bash
      eval "$(mcp-tasks completion bash)"

    Once, for all shells that are opened from then on:
      bash  echo 'eval "$(mcp-tasks completion bash)"' >> ~/.bashrc
      zsh   echo 'eval "$(mcp-tasks completion zsh)"' >> ~/.zshrc
      fish  mkdir -p ~/.config/fish/completions
            mcp-tasks completion fish > ~/.config/fish/completions/mcp-tasks.fish
    """
    from mcp_tasks.cli.app import app

    complete = get_completion_class(shell)
    if shell == "zsh":
        click.echo(_ZSH)
    if complete is not None:
        click.echo(complete(app, {}, "mcp-tasks", "_MCP_TASKS_COMPLETE").source())
    return Exit.OK

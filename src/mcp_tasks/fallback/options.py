"""The author's options for calls of clients without tasks, and how long known hosts wait for a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, cast

from mcp_tasks.errors import InvalidOption
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.values import check_duration, check_flag, check_instance, check_mapping

ShownTo: TypeAlias = Literal["auto", "always", "never"]
"""Which clients see the companion tools: those that may need them, all, or none."""

# ---- hosts
# Known hosts by their `clientInfo.name`, and how long they wait for a call.


SHARE: Final = 5 / 6
"""How much of a host's limit is used: 50 of 60 seconds. The rest is for the network."""

ANY_ENDING: Final = "*"
"""At the end of a name in the table: it matches all names that begin so."""

VIA: Final = " (via "
"""A bridge such as mcp-remote adds this and its own name to the name of the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """How long a host waits for a call of a tool.

    Attributes:
        limit: When it gives up on a call; None if it waits without limit.
        progress_extends: Whether progress notifications restart the limit.
        asks_for_tasks: Whether it asks for tasks of 2025-11-25, and so needs no companion tools there.
        stdio: The values for a server that it starts itself over stdio; None if they are the same.
    """

    limit: timedelta | None = None
    progress_extends: bool = False
    asks_for_tasks: bool = False
    stdio: Host | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_duration("limit", self.limit)
        check_flag("progress_extends", self.progress_extends)
        check_flag("asks_for_tasks", self.asks_for_tasks)
        if self.stdio is not None:
            check_instance("stdio", self.stdio, Host)

    def answer_within(self, *, has_progress: bool) -> timedelta | None:
        """The time by which a call must be answered; None for no limit."""
        return None if self.limit is None or (self.progress_extends and has_progress) else self.limit * SHARE


def _gives_up_after(seconds: float, *, progress_extends: bool = False, stdio: Host | None = None) -> Host:
    return Host(limit=timedelta(seconds=seconds), progress_extends=progress_extends, stdio=stdio)


ANY_HOST: Final = "*"
"""The entry of a table for all hosts that are not in it."""

UNKNOWN_HOST: Final = _gives_up_after(60)
"""Many hosts give up after a minute, so an unknown host is expected to."""

HOSTS: Final[Mapping[str, Host]] = {
    # Default names of the SDKs' clients.
    "mcp": Host(),  # Python
    "rmcp": Host(),  # Rust
    "Java SDK MCP Client": _gives_up_after(20),
    "spring-ai-mcp-client*": _gives_up_after(20),
    # Chats.
    "Anthropic/ClaudeAI": _gives_up_after(60),
    "claude-ai": _gives_up_after(60),
    "local-agent-mode-*": _gives_up_after(60),
    "ChatGPT": _gives_up_after(60),
    "openai-mcp*": _gives_up_after(60),
    "@librechat/api-client": _gives_up_after(60, progress_extends=True),
    "Cherry Studio": _gives_up_after(60),
    "lobehub-mcp-client": _gives_up_after(60),
    "Jan Streamable Client": _gives_up_after(30),
    "Jan-Streamable-Client": _gives_up_after(30),
    "chat-ui-mcp": _gives_up_after(30, progress_extends=True),
    # Editors, and agents for code.
    "claude-code": _gives_up_after(60, stdio=_gives_up_after(30 * 60, progress_extends=True)),
    "codex-mcp-client": _gives_up_after(120),
    "cursor-vscode": _gives_up_after(300),
    "Visual Studio Code*": Host(asks_for_tasks=True),
    "Visual-Studio-Code*": Host(asks_for_tasks=True),
    "github-copilot-developer": _gives_up_after(60),
    "JetBrains-*": _gives_up_after(30),
    "Zed": _gives_up_after(60),
    "antigravity-client": _gives_up_after(30),
    "continue-client": _gives_up_after(60),
    "Cline": _gives_up_after(60),
    "Roo Code": _gives_up_after(60),
    "Roo-Code": _gives_up_after(60),
    "Kilo Code": _gives_up_after(60),
    "Kilo-Code": _gives_up_after(60),
    "opencode": _gives_up_after(60, progress_extends=True),
    "goose*": _gives_up_after(300),
    "gemini-cli-mcp-client*": _gives_up_after(600),
    "qwen-code-mcp-client*": _gives_up_after(60),
    "Q DEV CLI": _gives_up_after(120),
    "Q-DEV-CLI": _gives_up_after(120),
    # Workflows and tools.
    "@n8n/n8n-nodes-langchain.mcp*": _gives_up_after(60),
    "inspector-*": _gives_up_after(60),
    "mcp-tasks-cli": Host(asks_for_tasks=True),
}
"""Known hosts by `clientInfo.name`; a name that ends with `*` matches all that begin so. Sources are listed in
docs/hosts.md#the-hosts-that-are-known."""


def check_hosts(hosts: object) -> None:
    """Refuse a value of `hosts=` that is not valid, or has a name that no host can have, with `InvalidOption`."""
    check_mapping("hosts", hosts)
    for name, host in cast("Mapping[str, Any]", hosts).items():
        if not isinstance(host, Host):
            raise InvalidOption(
                f"hosts[{name!r}] must be a Host, got {host!r}: write Host(limit=timedelta(seconds=...))"
            )
        if not name:
            raise InvalidOption(
                f"hosts[{name!r}]: a host's name cannot be empty; {ANY_HOST!r} is for all that are not known"
            )
        if ANY_ENDING in name[:-1]:
            raise InvalidOption(
                f"hosts[{name!r}]: {ANY_ENDING!r} can only stand at the end of a name, for all names that begin so"
            )
        if VIA in name:
            raise InvalidOption(
                f"hosts[{name!r}]: behind a bridge the host is known by its own name; write {name.partition(VIA)[0]!r}"
            )


def host_of(client_info: JsonObject | None, hosts: Mapping[str, Host], *, over_stdio: bool = False) -> Host | None:
    """The host that a client says it is; None if it is not known."""
    said = None if client_info is None else client_info.get("name")
    if not isinstance(said, str):
        return None
    name = said.partition(VIA)[0]
    host = None if name.endswith(ANY_ENDING) else hosts.get(name)
    if host is None:
        patterns = (key for key in hosts if key.endswith(ANY_ENDING) and name.startswith(key.removesuffix(ANY_ENDING)))
        longest = max(patterns, key=len, default=None)
        host = None if longest is None else hosts[longest]
    return host.stdio if host is not None and over_stdio and host.stdio is not None else host

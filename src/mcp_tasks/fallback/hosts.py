"""What is known of hosts, by the name that they give themselves: how long they wait for a call.

A name is what a client says, not a proof: all that follows from it is how long the caller's own call waits, and what
its own list of tools shows. Each entry has a source, in the table of docs/hosts.md. Where versions of a host differ, or
one name stands for several products, the shortest limit counts: an answer that comes too early costs one more call, one
that comes too late is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

from mcp_tasks.core.durations import check_duration
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.values import check_flag, check_instance, check_mapping
from mcp_tasks.errors import InvalidOption

SHARE: Final = 5 / 6
"""How much of a host's limit is used: 50 of 60 seconds. The rest is for the way there and back."""

ANY_ENDING: Final = "*"
"""What a name in the table ends with if it stands for all names that begin so."""

VIA: Final = " (via "
"""What a bridge such as mcp-remote puts behind the name of the host that it works for, with its own name after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """How a host treats a call of a tool.

    Attributes:
        limit: When it gives up on the whole call, whatever happens meanwhile; None for one that waits.
        progress_extends: Whether progress on the call starts the limit anew.
        asks_for_tasks: Whether it asks for tasks of 2025-11-25, and so needs no companion tools there.
        stdio: What holds instead where it starts the server itself and talks to it over stdio; None for the same.
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
        """How long after its beginning a call must be answered at the latest; None for no limit."""
        return None if self.limit is None or (self.progress_extends and has_progress) else self.limit * SHARE


def _gives_up_after(seconds: float, *, progress_extends: bool = False, stdio: Host | None = None) -> Host:
    return Host(limit=timedelta(seconds=seconds), progress_extends=progress_extends, stdio=stdio)


ANY_HOST: Final = "*"
"""The name under which a table says what is assumed of hosts that are not in it."""

UNKNOWN_HOST: Final = _gives_up_after(60)
"""A host that nobody knows is taken for one of the many that give up after a minute."""

HOSTS: Final[Mapping[str, Host]] = {
    # What the SDKs' clients call themselves where nobody gives them another name.
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
"""Hosts that are known, by `clientInfo.name`; a name that ends with `*` stands for all that begin so. They are listed
with their sources in docs/hosts.md#the-hosts-that-are-known."""


def check_hosts(hosts: object) -> None:
    """Refuse what is not a mapping of names to hosts.

    Raises:
        InvalidOption: It is not, or a host could never have one of the names.
    """
    check_mapping("hosts", hosts)
    for name, host in cast("Mapping[str, Any]", hosts).items():
        if not isinstance(host, Host):
            raise InvalidOption(
                f"hosts[{name!r}] must be a Host, got {host!r}: write Host(limit=timedelta(seconds=...))"
            )
        _check_name(name)


def _check_name(name: str) -> None:
    """Refuse a name that no host is ever found by."""
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
    """The host that says this of itself; None for one that is not known."""
    name = None if client_info is None else client_info.get("name")
    host = _named(name.partition(VIA)[0], hosts) if isinstance(name, str) else None
    return host.stdio if host is not None and over_stdio and host.stdio is not None else host


def _named(name: str, hosts: Mapping[str, Host]) -> Host | None:
    """The entry of the name itself, or else of its longest beginning."""
    if name in hosts and not name.endswith(ANY_ENDING):
        return hosts[name]
    begins = (key for key in hosts if key.endswith(ANY_ENDING) and name.startswith(key.removesuffix(ANY_ENDING)))
    longest = max(begins, key=len, default=None)
    return None if longest is None else hosts[longest]

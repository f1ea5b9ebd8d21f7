"""What an author says of calls whose caller speaks no tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from mcp_tasks.errors import InvalidOption
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.values import check_choice, check_duration, check_flag, check_instance, check_mapping, check_number

ShownTo: TypeAlias = Literal["auto", "always", "never"]
"""Who is shown the companion tools: callers that may need them, everybody, nobody."""

WhenCallerLeaves: TypeAlias = Literal["continue", "cancel"]
"""What becomes of the work when its caller goes away while the call is open."""

MOST_LEGS: Final = 9
"""Clients of the SDKs take ten answers that tell them to come back, and raise at the eleventh. One is for a retry."""

LONGEST: Final = timedelta(days=30)
"""The longest that a call may be taken up again: as long as a key is kept that it was sealed with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """How a call is answered whose caller speaks no tasks, for one tool or for all.

    Attributes:
        modern: Whether clients of 2026-07-28 that do not declare tasks are answered so; if not, a plain call.
        older: Whether clients of the older versions are, where they do not ask for a task; if not, a plain call.
        wait: How long a call waits for the tool before it answers something else; a client of 2026-07-28 comes back for
            as many waits as it has `legs`. A host that is known to give up sooner is answered sooner.
        legs: How often a client of 2026-07-28 is told to come back in one call. Questions count; with 0,
            those of the tool are asked by `task_status`.
        handle: Whether the call answers that the tool is still running when the waits are over. If not, it goes on
            waiting, and the caller may give up.
        heartbeat: The longest time between two progress notifications, where the caller has asked for progress.
        when_caller_leaves: What becomes of the work when the caller goes away while the call is open.
        model_may_answer: Whether a model may answer for a person, with the companion tool `task_answer`. Then what the
            tool asks stays open where the caller cannot be asked; otherwise the tool is told that it cannot ask. Over
            stateless HTTP of older versions, where nobody knows what a client can do, it stays open in any case.
        answer_within: How long a call may be taken up again, and a question stay open if the tool has no `max_wait`.
            At most 30 days. A question with a `timeout` stays open, and can be answered, for that long instead.
    """

    modern: bool = True
    older: bool = True
    wait: timedelta = timedelta(seconds=25)
    legs: int = 8
    handle: bool = True
    heartbeat: timedelta = timedelta(seconds=10)
    when_caller_leaves: WhenCallerLeaves = "continue"
    model_may_answer: bool = False
    answer_within: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        for name in ("modern", "older", "handle", "model_may_answer"):
            check_flag(name, getattr(self, name))
        for name in ("wait", "heartbeat", "answer_within"):
            check_duration(name, getattr(self, name), zero=name == "wait", longest=LONGEST)
        check_number("legs", self.legs, 0)
        if self.legs > MOST_LEGS:
            raise InvalidOption(f"legs must be at most {MOST_LEGS}, got {self.legs}: clients give up after ten")
        check_choice("when_caller_leaves", self.when_caller_leaves, get_args(WhenCallerLeaves))


Ways: TypeAlias = Fallback | Literal["auto", "inline"]
"""What can be said of a tool: how, as usual, or that its calls stay plain calls."""

USUAL: Final = Fallback()
INLINE: Final = Fallback(modern=False, older=False)


def check_ways(ways: object) -> None:
    """Refuse what is none of the three.

    Raises:
        InvalidOption: It is not.
    """
    if not isinstance(ways, Fallback) and ways not in ("auto", "inline"):
        raise InvalidOption(
            f"fallback must be 'auto', 'inline' or a Fallback, got {ways!r}: write "
            "fallback=Fallback(wait=timedelta(seconds=20)), or 'inline' for plain calls"
        )


def chosen_ways(ways: Ways | None, usual: Fallback) -> Fallback:
    """What was said of a tool, or else of all."""
    if isinstance(ways, Fallback):
        return ways
    return INLINE if ways == "inline" else usual


# ---- hosts
# What is known of hosts, by the name that they give themselves: how long they wait for a call.


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


# ---- patience
# How long a call may wait for its tool, and whether its caller can be told to come back: rules, and no clock.


LAST_STRETCH: Final = 1.2
"""How much longer than usual a wait may be that nothing comes after: a short one more is not worth a request."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What one request of a call may do.

    Attributes:
        limit: How long it may wait; None for as long as the tool takes.
        comes_back: Whether its caller can be told to come back when the wait is over.
        asks: Whether its caller can be told to come back with answers.
    """

    limit: timedelta | None
    comes_back: bool = False
    asks: bool = False


def patience_of_call(ways: Fallback, host: Host | None, unknown: Host, *, has_progress: bool) -> Patience:
    """For a call that is one request.

    Args:
        host: What is known of the caller's host; None for nothing.
        unknown: What is assumed of such a host.
        has_progress: Whether the caller is sent progress.
    """
    if host is not None:
        return Patience(host.answer_within(has_progress=has_progress))
    assumed = unknown.answer_within(has_progress=has_progress)
    return Patience(ways.wait if assumed is None else min(ways.wait, assumed))


def patience_of_leg(ways: Fallback, host: Host, *, legs: int, elapsed: timedelta, has_progress: bool) -> Patience:
    """For a request of a call that may take several.

    Args:
        legs: How often the caller has been told to come back.
        elapsed: How much of the host's limit for the whole call has gone by.
    """
    has_legs = legs < ways.legs
    within = host.answer_within(has_progress=has_progress)
    if within is None:
        return Patience(ways.wait, comes_back=has_legs, asks=has_legs)
    remaining = max(within - elapsed, timedelta(0))
    if remaining <= ways.wait * LAST_STRETCH:
        return Patience(remaining, asks=has_legs)
    return Patience(ways.wait, comes_back=has_legs, asks=has_legs)


def patience_of_status(
    wanted: timedelta, host: Host, *, elapsed: timedelta, asks: bool, has_progress: bool
) -> Patience:
    """For a request whose caller says how long it waits, and is answered then.

    Args:
        elapsed: How much of the host's limit for the whole call has gone by.
        asks: Whether the caller can be told to come back with answers.
    """
    within = host.answer_within(has_progress=has_progress)
    limit = wanted if within is None else min(wanted, max(within - elapsed, timedelta(0)))
    return Patience(limit, asks=asks)

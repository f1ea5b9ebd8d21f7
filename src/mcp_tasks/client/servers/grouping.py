"""Tasks of a ledger by the servers that they are of: a connection each, and credentials for one only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from mcp_tasks.client.ledger_entry import LedgerEntry
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.errors import CredentialsForOne


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTasks:
    """Tasks of one server, and of one identity there.

    Attributes:
        named: How the user said which server it is, if that is known: `LedgerEntry.named`.
    """

    server: ServerAddress
    identity: str
    entries: list[LedgerEntry]
    named: str | None = None


def by_server(entries: Iterable[LedgerEntry], headers: Mapping[str, str] | None = None) -> list[ServerTasks]:
    """The tasks of each server, and of each identity there, together, as far as the server was named alike.

    Args:
        headers: What is going to be sent with requests. It is credentials, so there may be one place for it to go.

    Raises:
        CredentialsForOne: There are headers, and they would go to several servers or identities.
        InvalidAddress: The ledger does not say how to reach a server.
    """
    groups: list[ServerTasks] = []
    for _, same in groupby(sorted(entries, key=lambda entry: (_group_of(entry), entry.task_id)), _group_of):
        first, *rest = same
        groups.append(
            ServerTasks(
                server=ServerAddress.of(first), identity=first.identity, entries=[first, *rest], named=first.named
            )
        )
    over_http = {
        group.server.label + (f" as {group.identity}" if group.identity else ""): None
        for group in groups
        if group.server.url is not None
    }
    if headers and len(over_http) > 1:
        raise CredentialsForOne(
            "these tasks are of several servers or identities, and the token or headers are for one of them",
            "\n".join(["Name the tasks of one at a time:", *over_http]),
        )
    return groups


def _group_of(entry: LedgerEntry) -> tuple[str, str, bool, str]:
    return entry.server, entry.identity, entry.named is None, entry.named or ""

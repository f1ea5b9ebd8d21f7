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
    """Tasks of one server, and of one identity there."""

    server: ServerAddress
    identity: str
    entries: list[LedgerEntry]


def by_server(entries: Iterable[LedgerEntry], headers: Mapping[str, str] | None = None) -> list[ServerTasks]:
    """The tasks of each server, and of each identity there, together.

    Args:
        headers: What is going to be sent with requests. It is credentials, so there may be one place for it to go.

    Raises:
        CredentialsForOne: There are headers, and they would go to several servers or identities.
        InvalidAddress: The ledger does not say how to reach a server.
    """
    ordered = sorted(entries, key=lambda entry: entry.key)
    groups: list[ServerTasks] = []
    for (_, identity), same in groupby(ordered, lambda entry: (entry.server, entry.identity)):
        group = list(same)
        groups.append(ServerTasks(server=ServerAddress.of(group[0]), identity=identity, entries=group))
    over_http = [
        group.server.label + (f" as {group.identity}" if group.identity else "")
        for group in groups
        if group.server.url is not None
    ]
    if headers and len(over_http) > 1:
        raise CredentialsForOne(
            "these tasks are of several servers or identities, and the token or headers are for one of them",
            "\n".join(["Name the tasks of one at a time:", *over_http]),
        )
    return groups

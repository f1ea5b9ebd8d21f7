"""The differences between the versions of the protocol: one table. The version of a caller is looked up once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolVersion:
    """One version, as far as tasks are concerned.

    Attributes:
        describes_client: Whether each request says who its client is and what that can do; otherwise the handshake did.
        marks_results: Whether each result has a `resultType`.
        asks_by_result: Whether a call can be answered with a question, and then comes again with the answer.
        asks_for_tasks: Whether a caller asks for the task of a call, with `params.task`; otherwise the server decides.
        has_extension: Whether tasks are the extension of SEP-2663.
        methods: The methods that `TasksProtocol` answers with tasks.
    """

    describes_client: bool = False
    marks_results: bool = False
    asks_by_result: bool = False
    asks_for_tasks: bool = False
    has_extension: bool = False
    methods: frozenset[str] = frozenset()


UNKNOWN_VERSION: Final = ProtocolVersion()
"""A version that is not in the table: it has no tasks."""

_MODERN: Final = ProtocolVersion(
    describes_client=True,
    marks_results=True,
    asks_by_result=True,
    has_extension=True,
    methods=frozenset({"tools/call", "tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"}),
)

VERSIONS: Final[Mapping[str, ProtocolVersion]] = {
    **dict.fromkeys(HANDSHAKE_PROTOCOL_VERSIONS, UNKNOWN_VERSION),
    LATEST_HANDSHAKE_VERSION: ProtocolVersion(asks_for_tasks=True),
    **dict.fromkeys(MODERN_PROTOCOL_VERSIONS, _MODERN),
}


def version_of(name: str) -> ProtocolVersion:
    """The version of that name. One that is not known has no tasks."""
    return VERSIONS.get(name, UNKNOWN_VERSION)

"""What a task (or a call, before it is one) asks, for a host that asks a person in text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from mcp_tasks.client.fields import Field, fields_of
from mcp_tasks.core.json import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One input request.

    Attributes:
        tool: The tool that asks, or its task.
        server: And where that is.
    """

    key: str
    method: str
    params: JsonObject
    tool: str
    server: str = ""

    @property
    def is_elicitation(self) -> bool:
        """Whether a person can answer it; the other kinds are for a model or a program."""
        return self.method == "elicitation/create"

    @property
    def url(self) -> str | None:
        """The page to visit, if that is what is asked."""
        return str(self.params.get("url", "")) if self.params.get("mode") == "url" else None

    @property
    def message(self) -> str:
        """What it says, as the server wrote it."""
        return str(self.params.get("message") or f"(a {self.method} request)")

    @property
    def schema(self) -> JsonObject:
        """The form of its answer."""
        schema: Any = self.params.get("requestedSchema")
        return cast("JsonObject", schema) if isinstance(schema, Mapping) else {}

    @property
    def fields(self) -> list[Field]:
        """The fields of its form."""
        return fields_of(self.schema)


def questions_of(requests: Mapping[str, JsonObject], tool: str, server: str = "") -> list[Question]:
    """The questions in a task's `inputRequests`."""
    return [
        Question(
            key=key,
            method=str(request.get("method", "")),
            params=cast("JsonObject", request.get("params") or {}),
            tool=tool,
            server=server,
        )
        for key, request in requests.items()
    ]

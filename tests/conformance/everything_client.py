"""A client for the official client scenarios, with tasks or without.

    python -m tests.conformance.everything_client [--tasks] URL

The suite names the scenario in the environment. The two variants differ only in the transport and the extension.
"""

import argparse
import asyncio
import os
from typing import Any

from mcp import Client
from mcp.client import ClientRequestContext
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

ARGUMENTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}
"""Arguments for the tools of the scenarios; the other tools take none."""

LOOKS_ONLY = ("initialize", "json-schema-2020-12-preservation", "json-schema-ref-no-deref")
"""Scenarios that call no tool."""

ERAS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}


async def accept_defaults(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    form = params.requested_schema if isinstance(params, ElicitRequestFormParams) else {}
    fields: dict[str, Any] = form.get("properties", {})
    return ElicitResult(
        action="accept", content={name: field["default"] for name, field in fields.items() if "default" in field}
    )


def connect(url: str, *, tasks: bool) -> Client:
    mode: Any = ERAS.get(os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", ""), "auto")
    if not tasks:
        return Client(url, mode=mode, elicitation_callback=accept_defaults)
    # Imported here: the plain variant is the baseline and must not depend on this package.
    from mcp_tasks.client import TasksClient, reconnecting_http

    return Client(
        reconnecting_http(url), mode=mode, elicitation_callback=accept_defaults, extensions=[TasksClient(ledger=None)]
    )


async def run(url: str, *, tasks: bool) -> None:
    async with connect(url, tasks=tasks) as client:
        tools = (await client.list_tools()).tools
        if os.environ.get("MCP_CONFORMANCE_SCENARIO") in LOOKS_ONLY:
            return
        for tool in tools:
            await client.call_tool(tool.name, ARGUMENTS.get(tool.name, {}))


def main() -> None:
    parser = argparse.ArgumentParser(description="The conformance suite's everything client")
    parser.add_argument("--tasks", action="store_true", help="with the extension and its transport")
    parser.add_argument("url")
    options = parser.parse_args()
    asyncio.run(run(options.url, tasks=options.tasks))


if __name__ == "__main__":
    main()

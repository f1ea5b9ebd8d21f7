"""A client that hosts tasks, in a process of its own, to be killed.

    python -m tests.hosted.hosting_client URL LEDGER LOG [--answer] [--call TOOL ARGUMENTS]

It writes a line into LOG for each question that its person is asked, and answers only with --answer. With --call it
prints what the tool says, and ends; else it stays until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, TextContent

from mcp_tasks.client import Hosting, TasksClient, reconnecting_http


class Person:
    def __init__(self, log: Path, *, answers: bool) -> None:
        self._log = log
        self._answers = answers

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        with self._log.open("a") as log:
            log.write(f"{params.message}\n")
        if not self._answers:
            await anyio.sleep_forever()
        return ElicitResult(action="accept", content={"ok": True})


async def run(options: argparse.Namespace) -> None:
    tasks = TasksClient(hosting=Hosting(ledger=options.ledger))
    person = Person(options.log, answers=options.answer)
    async with Client(
        tasks.host(reconnecting_http(options.url)),
        mode="legacy",
        extensions=[tasks],
        elicitation_callback=person,
    ) as client:
        if options.call:
            tool, arguments = options.call
            result = await client.call_tool(tool, json.loads(arguments))
            print(" ".join(block.text for block in result.content if isinstance(block, TextContent)), flush=True)
        if not options.call or options.stay:
            await anyio.sleep_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("ledger", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--answer", action="store_true")
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--call", nargs=2)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Tasks of the client with the Python SDK 1.30 at the other end: the server that asks, or the client that hosts."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from harness.processes import ENVIRONMENT, run
from mcp_tasks.client import Hosting, TasksClient, stdio_transport
from tests.hosted.raw_server import Host
from tests.interop.install import PYTHON_SDK, install_python

pytestmark = [pytest.mark.anyio, pytest.mark.interop]

DRIVERS = Path(__file__).parent / "drivers"


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has the other SDK."""
    return str(install_python(PYTHON_SDK))


async def test_a_server_of_the_other_sdk_asks_our_client_for_tasks(python: str) -> None:
    host = Host()
    host.ready.set()
    tasks = TasksClient(hosting=Hosting())
    parameters = StdioServerParameters(command=python, args=[str(DRIVERS / "older_asking_server.py")])
    async with Client(
        tasks.host(stdio_transport(parameters)),
        mode="legacy",
        extensions=[tasks],
        elicitation_callback=host.elicit,
        sampling_callback=host.sample,
    ) as client:
        said: list[str] = []
        for tool in ("elicit", "sample"):
            with anyio.fail_after(60):
                [block] = (await client.call_tool(tool, {})).content
            assert isinstance(block, TextContent)
            said.append(block.text)
    assert said == ["accept {'ok': True}", "Hi"]
    assert host.asked == ["Approve?", "sample"]


async def test_our_server_asks_a_client_of_the_other_sdk_for_tasks(python: str) -> None:
    server = [sys.executable, "-m", "tests.hosted.asking_server", "stdio"]
    done = await to_thread.run_sync(
        partial(run, [python, DRIVERS / "older_hosting_client.py", *server], env=ENVIRONMENT, limit=90, check=True)
    )
    assert json.loads(done.stdout) == {
        "approve": "accept True",
        "listed": True,
        "fetch": "accept",
        "in_task": "published True",
        "asked": ["Approve?", "Later?", "Publish?"],
    }

"""With encryption on, no file and no log has a secret of a task: not of its call, questions, steps, error or result.

Without encryption, the same search finds each of them in the database.
"""

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult
from pydantic import BaseModel

from harness.http import serving
from harness.server import QUICK
from mcp_tasks import Tasks, current_task
from mcp_tasks.client import Ledger, TaskFailed
from mcp_tasks.encryption import Keyring, new_key
from tests.client.connecting import begin, connect

MARK = "SECRET"
"""Every secret begins with it."""

CARD, PIN = f"{MARK}-argument", f"{MARK}-answer"
KEPT = ("argument", "answer", "progress", "step-name", "step-value", "question", "error", "rpc-error", "result")


class Pin(BaseModel):
    pin: str


def build(tasks: Tasks) -> MCPServer[Any]:
    server = MCPServer[Any]("bank", **tasks.wiring())

    @server.tool()
    @tasks.task()
    async def pay(card: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2, f"{MARK}-progress")
        await current_task().step(f"charge {MARK}-step-name", lambda: f"{MARK}-step-value")
        answer = await ctx.elicit(f"{MARK}-question", Pin)
        return f"{MARK}-result {card} {answer.data.pin if answer.action == 'accept' else ''}"

    @server.tool()
    @tasks.task()
    async def fail(card: str) -> str:
        raise ToolError(f"{MARK}-error {card}")

    @server.tool()
    @tasks.task()
    async def crash(card: str) -> str:
        raise ValueError(f"{MARK}-crash {card}")

    @server.tool()
    @tasks.task()
    async def refuse(card: str) -> str:
        raise MCPError(-32000, f"{MARK}-rpc-error {card}", {"card": card})

    @server.tool()
    @tasks.task()
    async def odd(card: str) -> int:
        return f"{MARK}-odd {card}"  # type: ignore[return-value]

    return server


async def person(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"pin": PIN})


@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
async def test_no_secret_is_found_anywhere_with_encryption_and_all_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, encrypted: bool
) -> None:
    # INFO for other loggers: at DEBUG the SDK logs whole messages.
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "mcp_tasks")
    tasks = Tasks(f"sqlite:///{tmp_path}/tasks.db", cipher=Keyring(new_key()) if encrypted else None, settings=QUICK)
    ledger = Ledger(tmp_path / "ledger.db", keep_results=True, cipher=Keyring(new_key()) if encrypted else None)

    def kept() -> bytes:
        return b"".join(file.read_bytes() for file in tmp_path.iterdir())

    with closing(ledger):
        async with serving(build(tasks)) as wire, connect(wire.url, person=person, ledger=ledger) as client:
            tools = ("pay", "fail", "crash", "odd", "refuse")
            paying, failing, crashing, odd, refusing = handles = [
                await begin(client, tool, card=CARD) for tool in tools
            ]
            assert f"{MARK}-result {CARD} {PIN}" in str(await paying.result())
            assert f"{MARK}-error" in str(await failing.result())
            assert (await crashing.result()).is_error
            assert (await odd.result()).is_error
            with pytest.raises(TaskFailed, match=f"{MARK}-rpc-error"):
                await refusing.result()
            found = kept()
        assert any(f"{MARK}-result" in str(entry.result) for entry in ledger.entries())
    if encrypted:
        assert MARK.encode() not in found + kept()
    else:
        assert [secret for secret in KEPT if f"{MARK}-{secret}".encode() not in found] == []
    # No log has a secret, with encryption or without.
    assert "raised an unexpected exception" in caplog.text
    assert [word for word in (MARK, *(handle.id for handle in handles)) if word in caplog.text] == []

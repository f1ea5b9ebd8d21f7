"""The seam at which a connection is seen message by message: requests of our own, and handlers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from harness.rpc import PATIENCE, response
from mcp_tasks.client.wire import Wire

pytestmark = pytest.mark.anyio


class Ends:
    """A wire between a session and a server, both played by the test."""

    def __init__(self, wire: Wire, server_read: Any, server_write: Any) -> None:
        self.wire = wire
        self.session_read, self.session_write = wire.streams
        self._server_read = server_read
        self.server_write = server_write

    async def at_server(self) -> Any:
        with anyio.fail_after(PATIENCE):
            return (await self._server_read.receive()).message

    async def at_session(self) -> Any:
        with anyio.fail_after(PATIENCE):
            item: Any = await self.session_read.receive()
            return item.message

    async def serve(self, message: JSONRPCMessage) -> None:
        with anyio.fail_after(PATIENCE):
            await self.server_write.send(SessionMessage(message))

    async def say(self, message: JSONRPCMessage) -> None:
        with anyio.fail_after(PATIENCE):
            await self.session_write.send(SessionMessage(message))


@asynccontextmanager
async def ends() -> AsyncGenerator[Ends]:
    async with create_client_server_memory_streams() as ((read, write), (server_read, server_write)):
        wire = Wire(read, write)
        wire.start()
        try:
            yield Ends(wire, server_read, server_write)
        finally:
            await wire.close()


def request(request_id: int, method: str) -> JSONRPCRequest:
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params={})


def notification(method: str) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method=method, params={})


class Picky:
    """A handler that swallows one method, renames another and fails at a third."""

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        return self._handle(message)

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        return self._handle(message)

    def _handle(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        if isinstance(message, JSONRPCRequest | JSONRPCNotification):
            match message.method:
                case "swallow":
                    return None
                case "rename":
                    return message.model_copy(update={"method": "renamed"})
                case "fail":
                    raise RuntimeError("this handler fails")
                case _:
                    pass
        return message


async def test_a_request_of_our_own_gets_the_bare_result_and_the_session_sees_none_of_it() -> None:
    async with ends() as both:
        asked = asyncio.create_task(both.wire.request("tasks/get", {"taskId": "t"}))
        seen = await both.at_server()
        assert (seen.method, seen.params) == ("tasks/get", {"taskId": "t"})
        await both.serve(JSONRPCResponse(jsonrpc="2.0", id=seen.id, result={"odd": None}))
        assert await asked == {"odd": None}
        await both.serve(notification("next"))
        assert (await both.at_session()).method == "next"


async def test_the_servers_error_is_raised_as_it_was() -> None:
    async with ends() as both:
        asked = asyncio.create_task(both.wire.request("tasks/get"))
        seen = await both.at_server()
        error = ErrorData(code=-32602, message="no such task", data={"a": 1})
        await both.serve(JSONRPCError(jsonrpc="2.0", id=seen.id, error=error))
        with pytest.raises(MCPError) as caught:
            await asked
        assert caught.value.error == error


async def test_a_request_that_takes_too_long_is_cancelled_at_the_server() -> None:
    async with ends() as both:
        asked = asyncio.create_task(both.wire.request("tasks/result", timeout=0.01))
        seen = await both.at_server()
        told = await both.at_server()
        assert (told.method, told.params["requestId"]) == ("notifications/cancelled", seen.id)
        with pytest.raises(MCPError) as caught:
            await asked
        assert caught.value.code == REQUEST_TIMEOUT


async def test_a_request_whose_caller_leaves_is_cancelled_at_the_server() -> None:
    async with ends() as both:
        asked = asyncio.create_task(both.wire.request("tasks/result"))
        seen = await both.at_server()
        asked.cancel()
        told = await both.at_server()
        assert (told.method, told.params["requestId"]) == ("notifications/cancelled", seen.id)


async def test_a_connection_that_ends_takes_its_requests_with_it() -> None:
    async with ends() as both:
        asked = asyncio.create_task(both.wire.request("tasks/result"))
        await both.at_server()
        await both.server_write.aclose()
        with pytest.raises(MCPError) as caught:
            await asked
        assert (caught.value.code, both.wire.is_closed) == (CONNECTION_CLOSED, True)
        with pytest.raises(MCPError):
            await both.wire.request("tasks/get")


async def test_a_handler_swallows_and_rewrites_in_both_directions_and_may_fail() -> None:
    async with ends() as both:
        both.wire.add(Picky())
        for method in ("swallow", "rename", "fail"):
            say = asyncio.create_task(both.say(notification(method)))
            if method != "swallow":
                assert (await both.at_server()).method == ("renamed" if method == "rename" else method)
            await say
            await both.serve(notification(method))
            if method != "swallow":
                assert (await both.at_session()).method == ("renamed" if method == "rename" else method)


async def test_a_request_of_the_server_is_answered_beside_the_session() -> None:
    async with ends() as both:
        both.wire.add(Picky())
        await both.serve(request(7, "swallow"))
        replied = asyncio.create_task(both.wire.reply(7, {"tasks": []}))
        assert (await both.at_server()).model_dump(exclude_unset=True) == response(7, {"tasks": []})
        await replied


async def test_a_request_of_the_session_is_answered_in_place_of_the_server() -> None:
    async with ends() as both:
        both.wire.add(Picky())
        await both.say(request(7, "swallow"))
        answered = asyncio.create_task(both.wire.answer(7, {"content": []}))
        assert (await both.at_session()).result == {"content": []}
        await answered


async def test_what_was_begun_on_a_connection_ends_with_it() -> None:
    async with ends() as both:
        begun = both.wire.spawn(anyio.sleep_forever())
    assert begun.cancelled()


def unread(line: str) -> Exception:
    """What the SDK's transports make of a line that is no message."""
    with pytest.raises(ValidationError) as failed:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    return failed.value


HALF_A_CHARACTER = json.dumps(response(7, {"text": "\ud800"}))
NO_OBJECT = HALF_A_CHARACTER.replace('{"text": "\\ud800"}', "[]")


@pytest.mark.parametrize("line", [HALF_A_CHARACTER, NO_OBJECT])
async def test_an_answer_that_cannot_be_read_is_an_error_for_who_asked(line: str) -> None:
    async with ends() as both:
        await both.server_write.send(unread(line))
        seen = await both.at_session()
        assert (seen.id, seen.error.code) == (7, PARSE_ERROR)


async def test_an_answer_to_us_that_cannot_be_read_is_our_error() -> None:
    async with ends() as both:
        asked = asyncio.create_task(both.wire.request("tasks/get", {"taskId": "t"}))
        wanted = (await both.at_server()).id
        await both.server_write.send(unread(HALF_A_CHARACTER.replace("7", f'"{wanted}"')))
        with pytest.raises(MCPError, match="no JSON-RPC message"):
            await asked


@pytest.mark.parametrize(
    "line", ["hello", '{"id": 7, "resu', '{"id": 7, "method": 8}', '{"id": {}, "result": {}}', "[" * 100_000, '"x"']
)
async def test_what_is_an_answer_to_nobody_goes_on_as_it_came(line: str) -> None:
    async with ends() as both:
        await both.server_write.send(unread(line))
        with anyio.fail_after(PATIENCE):
            assert isinstance(await both.session_read.receive(), ValidationError)

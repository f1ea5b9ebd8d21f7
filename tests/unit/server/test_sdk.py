"""What the SDK knows of a request, as a caller; and answers, as the SDK wants them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CallToolRequestParams,
    ClientCapabilities,
    Implementation,
    InitializeRequestParams,
)
from starlette.datastructures import Headers

from mcp_tasks.model.json import LARGE
from mcp_tasks.protocol.dialect import Message
from mcp_tasks.server.sdk import caller_of, task_request, to_result

pytestmark = pytest.mark.anyio

MODERN, LEGACY = "2026-07-28", "2025-11-25"
INFO = {"name": "raw", "version": "1"}
DECLARED: Mapping[str, Any] = {"extensions": {"com.example/x": {}}, "elicitation": {"form": {}}}


class Request:
    """An HTTP request, as far as its headers go."""

    headers = Headers({"Mcp-Name": "task_1", "X-User": "alice"})


def context(
    version: str, meta: Mapping[str, Any], *, handshake: Mapping[str, Any] | None = None, request: Any = None
) -> ServerRequestContext[Any, Any]:
    connection = Connection.from_envelope(version, None, {})
    if handshake is not None:
        connection.client_params = InitializeRequestParams(
            protocol_version=version,
            capabilities=ClientCapabilities.model_validate(handshake),
            client_info=Implementation.model_validate(INFO),
        )
    return ServerRequestContext(
        session=ServerSession(connection.outbound, connection),  # pyright: ignore[reportArgumentType]
        lifespan_context={},
        protocol_version=version,
        method="tools/call",
        params={"name": "render", "_meta": dict(meta)},
        request=request,
    )


def envelope(**extra: Any) -> dict[str, Any]:
    return {CLIENT_INFO_META_KEY: INFO, CLIENT_CAPABILITIES_META_KEY: DECLARED, **extra}


def test_in_the_modern_era_the_request_itself_declares() -> None:
    caller = caller_of(context(MODERN, envelope(), handshake={"sampling": {}}))
    assert (caller.protocol_version, caller.principal) == (MODERN, None)
    assert (caller.client_info, caller.capabilities) == (INFO, DECLARED)
    assert caller.declares("com.example/x")
    assert not caller.declares("com.example/y")


def test_before_that_the_handshake_did_and_the_request_cannot() -> None:
    caller = caller_of(context(LEGACY, envelope(), handshake={"sampling": {}}))
    assert (caller.client_info, caller.capabilities) == (INFO, {"sampling": {}})


@pytest.mark.parametrize("version", [MODERN, LEGACY])
def test_a_client_that_said_nothing_declared_nothing(version: str) -> None:
    caller = caller_of(context(version, {}))
    assert (caller.client_info, dict(caller.capabilities), dict(caller.headers)) == (None, {}, {})


@pytest.mark.parametrize("nonsense", [None, 5, "all", ["x"]])
def test_a_declaration_that_is_not_an_object_is_none(nonsense: Any) -> None:
    meta = {CLIENT_INFO_META_KEY: nonsense, CLIENT_CAPABILITIES_META_KEY: nonsense}
    caller = caller_of(context(MODERN, meta))
    assert (caller.client_info, dict(caller.capabilities)) == (None, {})


def test_headers_are_found_by_their_lower_case_names() -> None:
    caller = caller_of(context(MODERN, {}, request=Request()))
    assert (caller.headers["mcp-name"], caller.headers.get("x-user")) == ("task_1", "alice")
    assert "x-user" in list(caller.headers)


def test_a_request_keeps_the_callers_own_meta_and_what_it_declared() -> None:
    ctx = context(MODERN, envelope(progressToken=7, trace="abc"))
    request = task_request(CallToolRequestParams(name="render", arguments={"a": 1}), ctx, caller_of(ctx))
    assert (request.method, request.name, request.arguments) == ("tools/call", "render", {"a": 1})
    assert request.meta == {"trace": "abc"}
    assert (request.client_info, request.client_capabilities) == (INFO, DECLARED)
    assert (request.input_responses, request.request_state) == (None, None)


async def test_an_answer_is_a_dict_with_its_outcome_in_it() -> None:
    assert await to_result(Message(fields={"a": 1})) == {"a": 1}
    assert await to_result(Message(fields={"a": 1}, large=("result", b'{"b":[1]}'))) == {"a": 1, "result": {"b": [1]}}


async def test_a_large_outcome_is_the_same_in_a_dict() -> None:
    value = {"content": [{"type": "text", "text": "x" * LARGE}], "numbers": [1, 2.5, None, True] * 1_000}
    assert await to_result(Message(fields={}, large=("result", json.dumps(value).encode()))) == {"result": value}

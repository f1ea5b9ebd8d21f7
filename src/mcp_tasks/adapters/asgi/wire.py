"""JSON-RPC on one POST: the request that was read, and the answer as it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import ErrorData
from pydantic_core import from_json, to_json
from starlette.types import Send

from mcp_tasks.core.json_bytes import LARGE

_MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params"})

_SAFE: Final = 2**53
"""Integers from here on are not the same to every parser; as an id they are left to the SDK."""

_JSON: Final = (b"content-type", b"application/json")


# Not frozen: one is made for every request, and a frozen one takes three times as long to make.
@dataclass(slots=True)
class RpcRequest:
    """One request.

    Attributes:
        params: All of them, with `_meta`.
        meta: The `_meta` in them.
    """

    id: str | int
    method: str
    params: Mapping[str, Any]
    meta: Mapping[str, Any]


def parse_request(data: bytes) -> RpcRequest | None:
    """The request in a body; None if it is anything but a plain one: then it is for the SDK to say what it is."""
    try:
        # Where it does not agree with the standard library, it refuses.
        message = _object(from_json(data))
    except ValueError:
        return None
    if message is None or message.keys() != _MEMBERS or message["jsonrpc"] != "2.0":
        return None
    request_id, method, params = message["id"], message["method"], _object(message["params"])
    meta = None if params is None else _object(params.get("_meta"))
    is_named = type(request_id) is str or (type(request_id) is int and -_SAFE < request_id < _SAFE)
    if not is_named or type(method) is not str or params is None or meta is None:
        return None
    return RpcRequest(request_id, method, params, meta)


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if type(value) is dict else None


async def send_result(send: Send, request_id: str | int, result: bytes) -> None:
    """Answer with a result that is JSON already."""
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % to_json(request_id)
    if len(result) <= LARGE:
        await _send(send, 200, b"%b%b}" % (head, result))
        return
    # Not copied: it may take long until all of it has been read.
    await _start(send, 200, len(head) + len(result) + 1)
    await send({"type": "http.response.body", "body": head, "more_body": True})
    await send({"type": "http.response.body", "body": result, "more_body": True})
    await send({"type": "http.response.body", "body": b"}"})


async def send_error(send: Send, request_id: str | int, error: ErrorData) -> None:
    """Answer with an error, and the status that the SDK has for its code."""
    told = error.model_dump(mode="json", by_alias=True, exclude_none=True)
    body = to_json({"jsonrpc": "2.0", "id": request_id, "error": told})
    await _send(send, ERROR_CODE_HTTP_STATUS.get(error.code, 200), body)


async def _send(send: Send, status: int, body: bytes) -> None:
    await _start(send, status, len(body))
    await send({"type": "http.response.body", "body": body})


async def _start(send: Send, status: int, length: int) -> None:
    headers = [(b"content-length", b"%d" % length), _JSON]
    await send({"type": "http.response.start", "status": status, "headers": headers})

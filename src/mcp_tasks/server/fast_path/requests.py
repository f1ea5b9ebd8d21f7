"""JSON-RPC on one POST: read it, answer it, and count the requests that were answered or handed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import ErrorData
from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span, get_tracer, use_span
from pydantic_core import from_json, to_json
from starlette.types import Message, Receive, Send

from mcp_tasks.model.json import LARGE, legible
from mcp_tasks.quiet import LONGEST_LINE

_MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params"})

_JSON: Final = (b"content-type", b"application/json")

_SAFE: Final = 2**53
"""Integers from here on are not the same to every parser; as an id they are left to the SDK."""


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
        fields = _object(from_json(data))
    except ValueError:
        return None
    if fields is None:
        return None
    if fields.keys() != _MEMBERS or fields["jsonrpc"] != "2.0" or type(fields["method"]) is not str:
        return None
    request_id, params = fields["id"], _object(fields["params"])
    meta = None if params is None else _object(params.get("_meta"))
    is_named = type(request_id) is str or (type(request_id) is int and -_SAFE < request_id < _SAFE)
    if not is_named or params is None or meta is None:
        return None
    return RpcRequest(request_id, fields["method"], params, meta)


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if type(value) is dict else None


LARGEST = 256 * 1024
"""Bytes of a body. A larger one takes long to parse wherever that is done, so nothing would be gained here."""


async def read_body(receive: Receive, largest: int = LARGEST) -> tuple[bytes | None, list[Message]]:
    """A body, if it is not too large and was not cut off; and the messages that were read, for `replaying`.

    However small the pieces of a body are, they are kept as one message, as the SDK keeps them.
    """
    message = await receive()
    if message["type"] != "http.request":
        return None, [message]
    if not message.get("more_body", False):
        # In one piece, as a small body comes.
        data: bytes = message.get("body", b"")
        return data if len(data) <= largest else None, [message]
    read = bytearray(message.get("body", b""))
    while message.get("more_body", False) and len(read) <= largest:
        message = await receive()
        if message["type"] != "http.request":
            return None, [{"type": "http.request", "body": bytes(read), "more_body": True}, message]
        read += message.get("body", b"")
    data, more = bytes(read), message.get("more_body", False)
    return data if len(data) <= largest else None, [{"type": "http.request", "body": data, "more_body": more}]


def replaying(messages: list[Message], receive: Receive) -> Receive:
    """Gives the messages that were read, and then those that the server gives."""

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay


async def send_result(send: Send, request_id: str | int, result: bytes) -> None:
    """Answer with a result that is JSON already."""
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % to_json(request_id)
    # A large result is not copied: it may take long until all of it has been read.
    parts = [b"%b%b}" % (head, result)] if len(result) <= LARGE else [head, result, b"}"]
    headers = [(b"content-length", b"%d" % sum(map(len, parts))), _JSON]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number, body in enumerate(parts, start=1):
        await send({"type": "http.response.body", "body": body, "more_body": number < len(parts)})


async def send_error(send: Send, request_id: str | int, error: ErrorData) -> None:
    """Answer with an error, and the status that the SDK has for its code."""
    told = error.model_dump(mode="json", by_alias=True, exclude_none=True)
    body = to_json({"jsonrpc": "2.0", "id": request_id, "error": told})
    status, headers = ERROR_CODE_HTTP_STATUS.get(error.code, 200), [(b"content-length", b"%d" % len(body)), _JSON]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# ---- counts


class Handover(StrEnum):
    """Why a request was handed over to the SDK. What each reason means is in docs/running.md, "The short way"."""

    OTHER_WIRE = "other wire"
    """Not a POST of the newest version: an older era, a GET, a version that is not known."""

    OTHER_METHOD = "other method"
    """A method that has nothing to do with tasks, or a tool that is not marked."""

    HEADERS = "headers"
    """Headers that the SDK refuses, or that are rare: `Mcp-Param-*`, `Transfer-Encoding`, one that comes twice."""

    BODY = "body"
    """A body that is large, cut off, not JSON, or not a plain request."""

    ENVELOPE = "envelope"
    """A `_meta` that the SDK refuses, or that disagrees with the headers."""

    PARAMS = "params"
    """Params that are rare, or that would be refused."""

    CALL = "call"
    """A call that becomes no task at once: the tool asks first, has a grace, or its client takes no tasks."""

    SERVER = "server"
    """Something of the author's own has to see the request: middleware, another extension, a handler, a cache hint."""

    REFUSED = "refused"
    """The request is refused: the answer is the SDK's to give."""

    LISTENERS = "listeners"
    """There are as many listeners here as may be."""

    FAILED = "failed"
    """A defect, here or in a store, which the log tells of once."""


class HandedOver(Exception):
    """The request is for the SDK."""

    def __init__(self, reason: Handover) -> None:
        super().__init__(reason)
        self.reason: Handover = reason


class Counts:
    """What one process answered before the SDK saw it, and what it handed over.

    Attributes:
        answered: How many requests were answered, by method; those that failed for a reason of the server's too.
        handed_over: How many requests went to the SDK, by reason.
        listeners: How many streams of `subscriptions/listen` are served here at this moment.
    """

    def __init__(self) -> None:
        self.listeners: int = 0
        self.answered: Final[Counter[str]] = Counter()
        self.handed_over: Final[Counter[Handover]] = Counter()

    def __repr__(self) -> str:
        handed_over = {str(reason): count for reason, count in self.handed_over.items()}
        return f"Counts(answered={dict(self.answered)}, handed_over={handed_over}, listeners={self.listeners})"


# ---- tracing
# Spans of what is answered here, like those that the SDK makes of what it answers.


_tracer: Final = get_tracer("mcp-tasks")


@contextmanager
def traced(request: RpcRequest, version: str) -> Generator[Span]:
    """A span around one request. It is ended where the request is answered; one that is handed over is the SDK's."""
    method, tool = request.method, request.params.get("name")
    # The caller chooses it, and the id: a collector of spans is no place for megabytes.
    target = legible(tool) if isinstance(tool, str) else None
    attributes: dict[str, Any] = {
        "mcp.method.name": method,
        "mcp.protocol.version": version,
        "jsonrpc.request.id": legible(str(request.id)),
    }
    if method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
        if target is not None:
            attributes["gen_ai.tool.name"] = target
    span = _tracer.start_span(
        method if target is None else f"{method} {target}",
        kind=SpanKind.SERVER,
        attributes=attributes,
        context=_parent(request.meta),
        record_exception=False,
        set_status_on_exception=False,
    )
    with use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except HandedOver:
            raise
        except BaseException:
            # Answered, but its client has left.
            span.end()
            raise


def note_failure(span: Span, error: Exception) -> None:
    """Say on a span that its request is answered with an error, in the way in which the SDK says it."""
    if isinstance(error, MCPError):
        code = str(error.error.code)
        span.set_attributes({"error.type": code, "rpc.response.status_code": code})
        span.set_status(StatusCode.ERROR, legible(error.error.message, LONGEST_LINE))
    else:
        span.set_attribute("error.type", type(error).__qualname__)
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, legible(str(error), LONGEST_LINE))


def _parent(meta: Mapping[str, Any]) -> Context | None:
    """The trace that the client says it is in; None to go on with the one of this process, if any."""
    try:
        context = extract(meta)
    except (ValueError, TypeError):
        return None
    return context if get_current_span(context).get_span_context().is_valid else None

"""Which requests the SDK would let in: its own verdicts, asked for once and kept by the bytes that they are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from types import MethodType
from typing import Any, Final, NamedTuple, cast

from mcp.server import Server
from mcp.server.context import ServerMiddleware
from mcp.server.extension import compose_tool_call_handler
from mcp.server.request_state import RequestStateBoundary
from mcp.server.streamable_http import check_accept_headers
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import ListenHandler
from mcp.server.transport_security import TransportSecurityMiddleware
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request, find_duplicated_routing_header
from mcp_types import CallToolRequestParams, SubscriptionsListenRequestParams
from mcp_types import methods as mcp_methods
from opentelemetry.propagate import extract
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json
from starlette.requests import Request
from starlette.types import Scope

from mcp_tasks._utils import BoundedDict
from mcp_tasks.protocol.shapes import EXTENSION_ID, NAME_HEADER, AnyParams
from mcp_tasks.protocol.versions import version_of
from mcp_tasks.server.fast_path.requests import HandedOver, Handover, RpcRequest, parse_request

_JUDGED: Final = frozenset({b"accept", b"content-type", b"host", b"origin", b"mcp-protocol-version", b"mcp-method"})
"""Headers that a verdict depends on, beside those that are looked at on every request."""

_NAME: Final = NAME_HEADER.encode()
_PARAM: Final = b"mcp-param-"
_DIGITS: Final = 20
"""More than the length of any body has."""

_SHAPES: Final[Mapping[str, tuple[type[BaseModel], Mapping[str, Any]]]] = {
    "tasks/get": (AnyParams, {}),
    "tasks/update": (AnyParams, {}),
    "tasks/cancel": (AnyParams, {}),
    "tools/call": (CallToolRequestParams, {"name": "tool"}),
    "subscriptions/listen": (SubscriptionsListenRequestParams, {"notifications": {}}),
}
"""The methods that are served here: what the SDK validates their params with, and the least that they may have."""

MOST_VERDICTS: Final = 256
"""Verdicts that are kept."""

LARGEST_KEY: Final = 4_096
"""Bytes that a kept verdict is about. A client that sends more of them than any needs is judged each time."""


class Admitted(NamedTuple):
    """Headers that pass.

    Attributes:
        takes_streams: Whether the client takes an answer that is a stream.
        name: What is named in `Mcp-Name`, if anything.
    """

    method: str
    version: str
    takes_streams: bool
    name: str | None = None


class Admission:
    """Decides from its headers and its `_meta` whether a request may be answered here.

    Args:
        manager: Serves the SDK's app, whose settings hold.
        largest: Bytes that a body may have.
    """

    def __init__(self, manager: StreamableHTTPSessionManager, largest: int) -> None:
        self._manager = manager
        self._largest = largest
        self._headers: BoundedDict[object, Admitted | Handover] = BoundedDict(MOST_VERDICTS)
        self._envelopes: BoundedDict[object, bool] = BoundedDict(MOST_VERDICTS)

    async def admit(self, scope: Scope) -> Admitted:
        """The method that a request is for, from the headers alone.

        Raises:
            HandedOver: The headers do not pass, or are rare.
        """
        if scope["type"] != "http" or scope["method"] != "POST":
            raise HandedOver(Handover.OTHER_WIRE)
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        if not isinstance(headers, (list, tuple)):
            # An iterable, which perhaps can be gone through only once.
            headers = scope["headers"] = list(headers)
        judged: list[tuple[bytes, bytes]] = []
        name: bytes | None = None
        # Rare headers, those that come twice where readers would disagree, and those that announce a large body.
        is_plain, has_params = True, False
        for header, value in headers:
            if header in _JUDGED:
                judged.append((header, value))
            elif header == _NAME:
                is_plain = is_plain and name is None
                name = value
            elif header == b"content-length":
                is_plain = is_plain and value.isdigit() and len(value) <= _DIGITS and int(value) <= self._largest
            elif header == b"transfer-encoding":
                is_plain = False
            elif header.startswith(_PARAM):
                has_params = True
        rules = self._manager.security_settings
        # These are lists that an author may add to while the server runs.
        hosts, origins = (None, None) if rules is None else (tuple(rules.allowed_hosts), tuple(rules.allowed_origins))
        checks_rebinding = rules is not None and rules.enable_dns_rebinding_protection
        key = (tuple(judged), self._manager.json_response, checks_rebinding, hosts, origins)
        verdict = self._headers.get(key)
        if verdict is None:
            verdict = await self._judge(scope, judged)
            if sum(len(header) + len(value) for header, value in judged) <= LARGEST_KEY:
                self._headers[key] = verdict
        if isinstance(verdict, Handover):
            raise HandedOver(verdict)
        is_call = verdict.method == "tools/call"
        needs_stream = verdict.method == "subscriptions/listen"
        # The SDK compares arguments with headers on calls of tools, and on nothing else.
        if not is_plain or (needs_stream and not verdict.takes_streams) or (is_call and (name is None or has_params)):
            raise HandedOver(Handover.HEADERS)
        return verdict if name is None else verdict._replace(name=name.decode("latin-1"))

    async def _judge(self, scope: Scope, judged: Sequence[tuple[bytes, bytes]]) -> Admitted | Handover:
        """Whether the SDK lets a POST with these headers in."""
        # Nothing else of the request may count: the verdict is that of all requests with these headers.
        request = Request({**scope, "headers": judged})
        version = request.headers.get("mcp-protocol-version", "")
        if not version_of(version).has_extension:
            return Handover.OTHER_WIRE
        method = request.headers.get("mcp-method")
        if method not in _SHAPES:
            return Handover.OTHER_METHOD
        security = TransportSecurityMiddleware(self._manager.security_settings)
        has_json, has_sse = check_accept_headers(request)
        if (
            find_duplicated_routing_header(request.headers.items()) is not None
            or await security.validate_request(request, is_post=True) is not None
            or not has_json
            or not (has_sse or self._manager.json_response)
        ):
            return Handover.HEADERS
        return Admitted(method, version, has_sse)

    def understand(self, admitted: Admitted, data: bytes | None) -> RpcRequest:
        """The request in a body.

        Raises:
            HandedOver: It is not a plain request, or disagrees with the headers.
        """
        request = None if data is None else parse_request(data)
        if request is None:
            raise HandedOver(Handover.BODY)
        meta = request.meta
        # Without fields that differ from request to request and are fine whatever they are.
        passing = [name for name, kinds in _PASSING.items() if name in meta and type(meta[name]) in kinds]
        lasting = {name: value for name, value in meta.items() if name not in passing} if passing else meta
        try:
            text = to_json(lasting)
        except (PydanticSerializationError, ValueError):
            raise HandedOver(Handover.ENVELOPE) from None
        key = (admitted.method, admitted.version, text)
        passes = self._envelopes.get(key)
        if passes is None:
            passes = _passes(admitted, lasting)
            if len(text) <= LARGEST_KEY:
                self._envelopes[key] = passes
        if request.method != admitted.method or not passes:
            raise HandedOver(Handover.ENVELOPE)
        return request


_PASSING: Final[Mapping[str, Set[type]]] = {
    "traceparent": {str},
    "tracestate": {str},
    "baggage": {str},
    "progressToken": {str, int},
}


def _passes(admitted: Admitted, meta: Mapping[str, Any]) -> bool:
    """Whether the SDK lets a request of the method that the headers name have this `_meta`."""
    shape, least = _SHAPES[admitted.method]
    params = {**least, "_meta": meta}
    headers = {
        "mcp-protocol-version": admitted.version,
        "mcp-method": admitted.method,
        # Compared with the name in the params on every request; here it is not about the name.
        "mcp-name": cast("str", least.get("name", "")),
    }
    verdict = classify_inbound_request({"method": admitted.method, "params": params}, headers=headers)
    if not isinstance(verdict, InboundModernRoute):
        return False
    try:
        # The SDK looks for a trace in every request, and may find a value of a type that no tracing has met.
        extract(meta)
        if admitted.method in mcp_methods.SPEC_CLIENT_METHODS:
            mcp_methods.validate_client_request(admitted.method, admitted.version, params)
        shape.model_validate(params, by_name=False)
    except Exception:
        # Whatever it is: the SDK runs into it too, and has an answer to it.
        return False
    return True


# ---- eligibility
# Whether the answers of a server are known here: nothing of its author's own has to see the requests.


_OURS: Final = __name__.partition(".")[0]


class Eligibility:
    """The parts of a server that could change an answer, looked at as cheaply as it must be on every request.

    Args:
        harmless: Other extensions that are known not to look at calls.
        own_handlers: The ids of handlers that were made for the tasks of the server.
        is_lowlevel: Whether its author put it together, of handlers.

    Attributes:
        makes_spans: Whether the SDK would make a span of each request.
    """

    def __init__(
        self, server: Server[Any], harmless: frozenset[str], own_handlers: Set[int], *, is_lowlevel: bool
    ) -> None:
        self.makes_spans: bool = False
        self._server = server
        self._own_handlers = own_handlers
        self._is_lowlevel = is_lowlevel
        self._harmless = harmless | {EXTENSION_ID}
        # Every server has these from the start. Their spans are made here, too; states of calls never come here.
        self._tracing = tuple(type(each) for each in Server[Any]("any").middleware)
        self._middleware: list[ServerMiddleware[Any]] | None = None
        self._is_known = False

    def allows(self, method: str) -> bool:
        """Whether requests of the method may be answered here, as the server is now."""
        server = self._server
        if server.middleware != self._middleware:
            self._middleware = list(server.middleware)
            usual = (*self._tracing, RequestStateBoundary)
            self._is_known = all(type(each) in usual or _is_ours(each) for each in self._middleware)
            self.makes_spans = any(type(each) in self._tracing for each in self._middleware)
        entry = server.get_request_handler(method)
        if entry is None or not self._is_known or method in server.cache_hints:
            return False
        if method == "subscriptions/listen":
            # A low-level server's is its author's: closing it has to end every stream, so it has them.
            return not self._is_lowlevel and type(entry.handler) is ListenHandler
        is_own = id(entry.handler) in self._own_handlers
        if method != "tools/call":
            return is_own
        # Of an `MCPServer`, the SDK makes it of all extensions, and does not say which they are.
        leaves_calls = is_own if self._is_lowlevel else getattr(entry.handler, "__code__", None) is _COMPOSED
        return leaves_calls and server.extensions.keys() <= self._harmless


def _is_ours(each: object) -> bool:
    """Whether it is of this package: then what it does to a request is done here as well, or not needed."""
    # All of ours are methods. Of a function nothing can be told: one that wraps ours may have its name and module.
    return isinstance(each, MethodType) and type(each.__self__).__module__.partition(".")[0] == _OURS


async def _no_handler(ctx: object, params: object) -> None:
    """Does nothing. Used to compare against."""


_COMPOSED: Final = cast(
    "Callable[..., object]", getattr(compose_tool_call_handler((), _no_handler), "__code__", object())
)
"""The code of every handler of calls that the SDK has put together of extensions."""

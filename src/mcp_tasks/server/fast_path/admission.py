"""Which requests the SDK would let in: its own verdicts, asked for once and remembered by the bytes they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from mcp.server.streamable_http import check_accept_headers
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request, find_duplicated_routing_header
from mcp_types import CallToolRequestParams, SubscriptionsListenRequestParams
from mcp_types import methods as mcp_methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.propagate import extract
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json
from starlette.requests import Request
from starlette.types import Scope

from mcp_tasks.protocol.shapes import NAME_HEADER, AnyParams
from mcp_tasks.server.fast_path.requests import Handover

VerdictT = TypeVar("VerdictT")

Judged: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Headers that a verdict is about, as they came."""

_MODERN: Final = frozenset(MODERN_PROTOCOL_VERSIONS)

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


class Sifted(NamedTuple):
    """The headers of a request, gone through once.

    Attributes:
        judged: Those that a verdict is about.
        name: What is named in `Mcp-Name`, if anything.
        is_plain: Whether there is none that is rare, none twice that readers would disagree about, and none that says
            that the body is large.
        has_params: Whether there are arguments of a tool, which the SDK compares on calls of tools and on nothing else.
    """

    judged: Judged
    name: bytes | None
    is_plain: bool
    has_params: bool


def sift(headers: Iterable[Sequence[bytes]], largest: int) -> Sifted:
    """Go through the headers of a request, whose body may have so many bytes."""
    judged: list[tuple[bytes, bytes]] = []
    name: bytes | None = None
    is_plain, has_params = True, False
    for header, value in headers:
        if header in _JUDGED:
            judged.append((header, value))
        elif header == _NAME:
            is_plain = is_plain and name is None
            name = value
        elif header == b"content-length":
            is_plain = is_plain and value.isdigit() and len(value) <= _DIGITS and int(value) <= largest
        elif header == b"transfer-encoding":
            is_plain = False
        elif header.startswith(_PARAM):
            has_params = True
    return Sifted(tuple(judged), name, is_plain, has_params)


class Remembered(Generic[VerdictT]):
    """Verdicts by what they are about, in bounded memory."""

    MOST: Final = 256
    LARGEST: Final = 4_096
    """Bytes of one key. A client that sends more of them than any needs is judged each time."""

    def __init__(self) -> None:
        self._verdicts: dict[object, VerdictT] = {}

    def find(self, key: object) -> VerdictT | None:
        """What was said of it; None if nothing was, or it was forgotten."""
        return self._verdicts.get(key)

    def keep(self, key: object, verdict: VerdictT, size: int) -> VerdictT:
        """Remember a verdict, unless what it is about is too large."""
        if size <= self.LARGEST:
            if len(self._verdicts) >= self.MOST:
                # Those that are still asked for are back at once. Which these are is not worth keeping book of.
                self._verdicts.clear()
            self._verdicts[key] = verdict
        return verdict


@dataclass(frozen=True, slots=True)
class Admitted:
    """Headers that pass.

    Attributes:
        takes_streams: Whether the client takes an answer that is a stream.
    """

    method: str
    version: str
    takes_streams: bool


class HeaderCheck:
    """What the SDK makes of the headers of a POST.

    Args:
        manager: Whose settings hold.
    """

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self._manager = manager
        self._verdicts: Remembered[Admitted | Handover] = Remembered()

    def known(self, judged: Judged) -> Admitted | Handover | None:
        """What was said of headers like these, which are the same on all requests of a client."""
        return self._verdicts.find((judged, self._rules()))

    async def judge(self, scope: Scope, judged: Judged) -> Admitted | Handover:
        """Whether headers like these pass."""
        size = sum(len(name) + len(value) for name, value in judged)
        return self._verdicts.keep((judged, self._rules()), await self._judge(scope, judged), size)

    def _rules(self) -> object:
        json_response, rules = self._manager.json_response, self._manager.security_settings
        if rules is None:
            return json_response
        # They are lists that an author may add to while the server runs.
        hosts, origins = tuple(rules.allowed_hosts), tuple(rules.allowed_origins)
        return json_response, rules.enable_dns_rebinding_protection, hosts, origins

    async def _judge(self, scope: Scope, judged: Judged) -> Admitted | Handover:
        # Nothing else of the request may count: the verdict is that of all requests with these headers.
        request = Request({**scope, "headers": judged})
        version = request.headers.get("mcp-protocol-version")
        if version not in _MODERN:
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


class EnvelopeCheck:
    """What the SDK makes of the `_meta` of a request."""

    def __init__(self) -> None:
        self._verdicts: Remembered[bool] = Remembered()

    def passes(self, admitted: Admitted, meta: Mapping[str, Any]) -> bool:
        """Whether a request of the method that the headers name may have this `_meta`."""
        lasting = _lasting(meta)
        try:
            text = to_json(lasting)
        except (PydanticSerializationError, ValueError):
            return False
        key = (admitted.method, admitted.version, text)
        known = self._verdicts.find(key)
        return self._verdicts.keep(key, _judge_envelope(admitted, lasting), len(text)) if known is None else known


def _lasting(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `_meta` without what differs from request to request and is fine whatever it is."""
    passing = [name for name, is_fine in _PASSING.items() if name in meta and is_fine(meta[name])]
    return {name: value for name, value in meta.items() if name not in passing} if passing else meta


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_token(value: Any) -> bool:
    return type(value) in (str, int)


_PASSING: Final[Mapping[str, Callable[[Any], bool]]] = {
    "traceparent": _is_text,
    "tracestate": _is_text,
    "baggage": _is_text,
    "progressToken": _is_token,
}


def _judge_envelope(admitted: Admitted, meta: Mapping[str, Any]) -> bool:
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
        # The SDK looks for a trace in every request, and what it finds may be of a type that no tracing has met.
        extract(meta)
        if admitted.method in mcp_methods.SPEC_CLIENT_METHODS:
            mcp_methods.validate_client_request(admitted.method, admitted.version, params)
        shape.model_validate(params, by_name=False)
    except Exception:
        # Whatever it is: the SDK runs into it too, and has an answer to it.
        return False
    return True

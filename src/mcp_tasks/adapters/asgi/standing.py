"""Whether a server is one whose answers are known here: nothing of its author's own has to see the requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mcp.server import Server
from mcp.server.context import ServerMiddleware
from mcp.server.request_state import RequestStateBoundary
from mcp.server.subscriptions import ListenHandler

from mcp_tasks.wire import EXTENSION_ID

_OURS: Final = __name__.partition(".")[0]


class Standing:
    """What of a server could change an answer, looked at as cheaply as it must be on every request.

    Args:
        harmless: Other extensions that are known not to look at calls.
        has_streams: Whether streams may be served here; otherwise they are all the SDK's.
    """

    def __init__(self, server: Server[Any], harmless: frozenset[str], *, has_streams: bool) -> None:
        self._server = server
        self._has_streams = has_streams
        self._harmless = harmless | {EXTENSION_ID}
        # What every server has from the start. Its spans are made here, too; states of calls never come here.
        self._tracing = tuple(type(each) for each in Server[Any]("any").middleware)
        self._usual = (*self._tracing, RequestStateBoundary)
        self._middleware: list[ServerMiddleware[Any]] = []
        self._is_known = False
        self.makes_spans: bool = False
        """Whether the SDK would make a span of each request."""

    def serves(self, method: str) -> bool:
        """Whether requests of the method may be answered here, as the server stands now."""
        server = self._server
        if server.middleware != self._middleware:
            self._look_at_middleware()
        entry = server.get_request_handler(method)
        if entry is None or not self._is_known or method in server.cache_hints:
            return False
        match method:
            case "tools/call":
                return server.extensions.keys() <= self._harmless
            case "subscriptions/listen":
                return self._has_streams and type(entry.handler) is ListenHandler
            case _:
                return _is_ours(entry.handler)

    def _look_at_middleware(self) -> None:
        self._middleware = list(self._server.middleware)
        self._is_known = all(type(each) in self._usual or _is_ours(each) for each in self._middleware)
        self.makes_spans = any(type(each) in self._tracing for each in self._middleware)


def _is_ours(each: Callable[..., Any]) -> bool:
    """Whether it is of this package: then what it does to a request is done here as well, or not needed."""
    function: object = getattr(each, "__func__", each)
    return getattr(function, "__module__", "").partition(".")[0] == _OURS

"""Whether a server is one whose answers are known here: nothing of its author's own has to see the requests."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Final

from mcp.server import Server
from mcp.server.context import ServerMiddleware
from mcp.server.extension import compose_tool_call_handler
from mcp.server.request_state import RequestStateBoundary
from mcp.server.subscriptions import ListenHandler

from mcp_tasks.adapters.sdk import RequestHandler
from mcp_tasks.wire import EXTENSION_ID

_OURS: Final = __name__.partition(".")[0]


class Standing:
    """What of a server could change an answer, looked at as cheaply as it must be on every request.

    Args:
        harmless: Other extensions that are known not to look at calls.
        is_own: Whether a handler of requests is one that was made for the tasks of the server.
        is_lowlevel: Whether its author put it together, of handlers.
    """

    def __init__(
        self,
        server: Server[Any],
        harmless: frozenset[str],
        is_own: Callable[[RequestHandler], bool],
        *,
        is_lowlevel: bool,
    ) -> None:
        self._server = server
        self._is_own = is_own
        self._is_lowlevel = is_lowlevel
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
                return server.extensions.keys() <= self._harmless and self._is_usual_call(entry.handler)
            case "subscriptions/listen":
                # A low-level server's is its author's: closing it has to end every stream, so it has them.
                return not self._is_lowlevel and type(entry.handler) is ListenHandler
            case _:
                return self._is_own(entry.handler)

    def _is_usual_call(self, handler: RequestHandler) -> bool:
        """Whether a handler of calls leaves them to the extensions first, and nothing is around that."""
        if self._is_lowlevel:
            return self._is_own(handler)
        # The SDK makes it of all extensions of a server, and does not say which it is.
        return getattr(handler, "__code__", None) is _COMPOSED

    def _look_at_middleware(self) -> None:
        self._middleware = list(self._server.middleware)
        self._is_known = all(type(each) in self._usual or _is_ours(each) for each in self._middleware)
        self.makes_spans = any(type(each) in self._tracing for each in self._middleware)


def _is_ours(each: object) -> bool:
    """Whether it is of this package: then what it does to a request is done here as well, or not needed."""
    # All of ours are methods. Of a function nothing can be told: one that wraps ours may have its name and module.
    return isinstance(each, MethodType) and type(each.__self__).__module__.partition(".")[0] == _OURS


async def _nothing(ctx: object, params: object) -> None:
    """The least handler that there can be."""


_COMPOSED: Final = getattr(compose_tool_call_handler((), _nothing), "__code__", object())
"""The code of every handler of calls that the SDK has put together of extensions."""

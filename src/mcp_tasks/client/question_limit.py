"""How many questions of a server are put to a session at a time, where they do not come from tasks.

The SDK runs a callback for each of them at once, however many there are. So over our transports some wait here for
their turn: requests of the server, on wires that have them. Questions that come in the answer to a call cannot wait
apart from each other, so an answer with too many of them is an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_types import (
    INVALID_REQUEST,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from mcp_tasks.client.wire import Wire

AT_ONCE: Final = 32
"""As many as a task of ours may have open: no server that means well asks more at a time."""

MOST_WAITING: Final = 1_000

_QUESTIONS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class QuestionLimit:
    """Keeps the questions of one connection within bounds. A handler of its wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: set[RequestId] = set()
        self._waiting: OrderedDict[RequestId, JSONRPCRequest] = OrderedDict()

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """Let a question pass, or have it wait."""
        match message:
            case JSONRPCRequest(method=method) if method in _QUESTIONS:
                return self._asked(message)
            case JSONRPCNotification(method="notifications/cancelled", params=dict() as params):
                return None if self._withdrawn(params.get("requestId")) else message
            case JSONRPCResponse(id=request_id, result=result) if result.get("resultType") == "input_required":
                asked: object = result.get("inputRequests")
                number = len(cast("Mapping[str, Any]", asked)) if isinstance(asked, Mapping) else 0
                if number > AT_ONCE:
                    why = f"The server asks {number} questions in one answer, and this client takes at most {AT_ONCE}"
                    return JSONRPCError(jsonrpc="2.0", id=request_id, error=_refusal(why))
            case _:
                pass
        return message

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """See an answer of the session: the next question has its turn."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id in self._open:
            self._done(message.id)
        return message

    def _asked(self, question: JSONRPCRequest) -> JSONRPCRequest | None:
        if len(self._open) < AT_ONCE:
            self._open.add(question.id)
            return question
        if len(self._waiting) < MOST_WAITING:
            self._waiting[question.id] = question
            return None
        why = f"This client has {AT_ONCE} questions open and {MOST_WAITING} waiting, and takes no more"
        self._wire.spawn(self._wire.reply(question.id, _refusal(why)))
        return None

    def _withdrawn(self, request_id: object) -> bool:
        """The server no longer wants an answer; whether the session has never heard of the question."""
        if not isinstance(request_id, str | int):
            return False
        if self._waiting.pop(request_id, None) is not None:
            return True
        if request_id in self._open:
            self._done(request_id)
        return False

    def _done(self, request_id: RequestId) -> None:
        self._open.discard(request_id)
        if self._waiting:
            _, question = self._waiting.popitem(last=False)
            self._open.add(question.id)
            self._wire.spawn(self._wire.deliver(question))


def _refusal(why: str) -> ErrorData:
    return ErrorData(code=INVALID_REQUEST, message=why)

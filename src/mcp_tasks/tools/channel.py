"""The client as a tool in a task sees it: the shape of `mcp.shared.dispatcher.DispatchContext`.

A tool talks to its client through the SDK's session, and the session through a channel. In a task the client
is not there; what the tool sends becomes part of the task: progress its progress, a request a question. Where a call
is still open for which the task does the work, progress and notifications reach that as well.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, cast

import anyio
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import INVALID_REQUEST, MISSING_REQUIRED_CLIENT_CAPABILITY, RequestId
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_tasks.core import InputRequest, JsonObject, Progress, TaskRequest
from mcp_tasks.core.text import valid_json, valid_text
from mcp_tasks.errors import TasksError
from mcp_tasks.protocol.answers import warn_of_schema
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.runtime import Asking, Run
from mcp_tasks.tools.open_calls import OpenCalls
from mcp_tasks.tools.sdk_errors import to_mcp_error

logger: Final = logging.getLogger(__name__)

_NEEDED = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
"""The requests a task may make of its client, and the capability that says the client takes them."""

UNKNOWN_CLIENT: Final[JsonObject] = MappingProxyType({"name": "unknown", "version": ""})
"""A client that nobody knows, where the SDK needs one that has a name."""

_PROGRESS: Final = "notifications/progress"
_ASKS_WITH: Final = "The tool asks with "


class TaskChannel:
    """What a tool sends to its client, taken into its task."""

    def __init__(self, run: Run, calls: OpenCalls | None = None) -> None:
        self._run = run
        self._calls = calls
        self._transport = TransportContext(kind="task", can_send_request=True)

    @property
    def transport(self) -> TransportContext:
        """There is no transport: the request has been answered long ago."""
        return self._transport

    @property
    def can_send_request(self) -> bool:
        """Requests become questions, so they can always be sent."""
        return True

    @property
    def request_id(self) -> RequestId | None:
        """The task stands in for the request."""
        return self._run.record.id

    @property
    def message_metadata(self) -> MessageMetadata:
        """Nothing of the original message is kept."""
        return None

    @property
    def cancel_requested(self) -> anyio.Event:
        """Cancellation reaches the body itself; nobody waits for this."""
        return anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Put a question to the client and wait for its answer."""
        if method not in _NEEDED:
            raise NoBackChannelError(method)
        question = InputRequest(method=method, params=valid_json(params or {}))
        try:
            check_askable(question, self._run.request)
            warn_of_schema(question.params)
            return dict(await self._run.ask(question, _asking(opts)))
        except (RpcError, TasksError) as exc:
            # As an `MCPError`, because any other exception of a tool is a crash to the SDK, and its text is withheld.
            raise to_mcp_error(exc) from exc

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send it on the calls that are open. SEP-2663 has no log or progress notifications for tasks, so it is dropped
        where there is none."""
        await self.notify_calls(method, params, related=True)

    async def notify_calls(self, method: str, params: Mapping[str, Any] | None, *, related: bool) -> None:
        """The same, on the streams of the calls or on those of their connections."""
        calls = () if self._calls is None else self._calls.of(self._run.record.id)
        if self._calls is None or not calls:
            logger.debug("dropped %s: not sent for a task", method)
        elif method == _PROGRESS:
            # The other way to report progress: with the token, as it came with the call.
            report = params or {}
            token = report.get("progressToken")
            if token is not None and token in [call.meta.get("progress_token") for call in calls]:
                await self.progress(report["progress"], report.get("total"), report.get("message"))
        else:
            said = None if params is None else valid_json(params)
            await self._calls.notify(self._run.record.id, method, said, related=related)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Make it the task's progress. Numbers that JSON cannot hold say nothing about progress either."""
        done = _json_number(progress)
        if done is None:
            return
        said = None if message is None else valid_text(message)
        reported = Progress(progress=done, total=_json_number(total), message=said)
        if self._calls is not None:
            # First, so that a call hears of it from the tool, and knows it when it shows in the record.
            await self._calls.progress(self._run.record.id, reported.progress, reported.total, said)
        await self._run.report(reported)


class ConnectionChannel:
    """What a tool sends to its client beside its request: `Connection.outbound`."""

    def __init__(self, channel: TaskChannel) -> None:
        self._channel = channel

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Put a question to the client: in a task all questions go one way."""
        return await self._channel.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send it where a plain call would, while a call is open."""
        await self._channel.notify_calls(method, params, related=False)


def _asking(opts: CallOptions | None) -> Asking | None:
    """What the SDK's own call says of the question: how long it may take."""
    seconds = None if opts is None else opts.get("timeout")
    return None if seconds is None else Asking(timeout=timedelta(seconds=seconds))


def _json_number(value: float | None) -> float | None:
    """The number as JSON can hold it, whatever type of number the tool used; None for one that it cannot."""
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    # Whole numbers stay exact, of which a float is not capable beyond 2**53; a bool is one to Python, not to JSON.
    return int(value) if isinstance(value, int) else number if math.isfinite(number) else None


def check_askable(question: InputRequest, request: TaskRequest) -> None:
    """Refuse a question that whoever made the request cannot be asked.

    Raises:
        RpcError: -32021, with the reason.
    """
    try:
        require_capability(question, request.client_capabilities)
    except RpcError as exc:
        # A handshake says who the client is. Where it was not kept, nobody knows what it said, and no way leads back.
        if request.client_info in (None, UNKNOWN_CLIENT) and request.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            raise RpcError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"{_ASKS_WITH}{question.method}, and this server is stateless: over it, a client of "
                f"{request.protocol_version} cannot be asked that. Serve with sessions (stateless_http=False).",
                {"requiredCapabilities": {_NEEDED[question.method]: {}}},
            ) from exc
        raise


def require_capability(question: InputRequest, declared: JsonObject) -> None:
    """Refuse a question of a kind that the client did not declare on its request.

    Raises:
        RpcError: -32021, with the capability that was missing.
    """
    name = _NEEDED[question.method]
    capability = declared.get(name)
    required: dict[str, Any] = {name: {}}
    missing = name
    if name == "elicitation" and isinstance(capability, Mapping):
        mode = question.params.get("mode", "form")
        required = {name: {mode: {}}}
        missing = f"{name}.{mode}"
        # An empty object stands for form mode, which came first.
        if mode in capability or (mode == "form" and "url" not in capability):
            return
    elif capability is not None:
        return
    raise RpcError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"{_ASKS_WITH}{question.method}, and the client did not declare the {missing} capability. "
        "Only a client that declares it can be asked.",
        {"requiredCapabilities": required},
    )


def in_older_words(error: JsonObject) -> JsonObject:
    """The error as eras before the newest have it.

    They know neither the code nor the data of a missing capability: in a plain call the client would have refused the
    question itself. Where a tool raises the same code for itself, it stays.
    """
    return {"code": INVALID_REQUEST, "message": error["message"]} if _is_missing_capability(error) else error


def _is_missing_capability(error: JsonObject) -> bool:
    """Whether an error is that of `check_askable`, and not one with its code that a tool raised."""
    data = error.get("data")
    return (
        error["code"] == MISSING_REQUIRED_CLIENT_CAPABILITY
        and error["message"].startswith(_ASKS_WITH)
        and isinstance(data, Mapping)
        and set(cast("Mapping[str, Any]", data)) == {"requiredCapabilities"}
    )

"""How a run ends: as its body says it, and as it is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from mcp_tasks.core.events import RunCompleted, RunFailed
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.json_bytes import encode_in_pieces, encode_json, is_large
from mcp_tasks.core.limits import Limits
from mcp_tasks.core.record import Outcome
from mcp_tasks.core.text import LONGEST_MESSAGE, short_message
from mcp_tasks.errors import ErrorTooLarge, ResultTooLarge, UsageError, ValueNotStorable
from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Success:
    """The request has a result: as on the wire, but without its `resultType`."""

    result: JsonObject


@dataclass(frozen=True, slots=True)
class Failure:
    """The request has a JSON-RPC error; `reason` says why, if it was not the tool that failed."""

    error: JsonObject
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AskedOnCall:
    """The body has asked on the original call (`Run.ask_on_call`), and with that the task is over."""


Ending: TypeAlias = Success | Failure | AskedOnCall


async def last_words(
    ending: Ending,
    attempt: int,
    *,
    tool: str,
    describe: Callable[[Exception], JsonObject],
    limits: Limits,
) -> tuple[RunCompleted | RunFailed, Outcome]:
    """An ending, ready to be written; one that cannot be kept becomes a failure that says why."""
    max_size, max_message = limits.result_bytes, limits.status_message_bytes
    try:
        match ending:
            case Success(result):
                return await completed(attempt, result, tool=tool, max_size=max_size, max_message=max_message)
            case Failure(error, reason):
                outcome = Outcome(body=await _encode(error, strict=False))
                if max_size is not None and len(outcome.body) > max_size:
                    raise ErrorTooLarge(tool, len(outcome.body), max_size)
                return _failure(attempt, error, reason, max_message), outcome
            case _:
                raise UsageError(f"The body of {tool!r} ended as if it had asked on the call, and had not")
    except (UsageError, ValueNotStorable) as exc:
        logger.error("a task of tool %r fails, because what it ended with cannot be kept: %s", tool, exc)
        return failed(attempt, describe(exc), "result")


async def completed(
    attempt: int,
    result: JsonObject,
    *,
    tool: str,
    max_size: int | None,
    max_message: int | None = LONGEST_MESSAGE,
) -> tuple[RunCompleted, Outcome]:
    """A result, ready to be written.

    Raises:
        UsageError: It cannot be kept: not JSON, not Unicode, or larger than `max_size`. The message says which.
    """
    meta = result.get("_meta")
    try:
        outcome = Outcome(
            body=await _encode({key: value for key, value in result.items() if key != "_meta"}, strict=True),
            meta=None if meta is None else await _encode(meta, strict=True),
        )
    except UnicodeEncodeError as exc:
        # Half a character (a file name from `os.fsdecode`, say) is JSON to Python and to nobody else.
        raise UsageError(f"The result of tool {tool!r} holds text that is not valid Unicode") from exc
    except ValueNotStorable as exc:
        raise UsageError(f"The result of tool {tool!r} cannot be stored: {exc}") from exc
    size = len(outcome.body) + len(outcome.meta or b"")
    if max_size is not None and size > max_size:
        raise ResultTooLarge(tool, size, max_size)
    is_error = result.get("isError") is True
    message = _told(result, max_message) if is_error else None
    return RunCompleted(attempt=attempt, is_error=is_error, message=message), outcome


def _told(result: JsonObject, most: int | None) -> str | None:
    """What a tool says of its error: the first text of the result, shortened."""
    content = result.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    texts = (cast("Mapping[str, Any]", block).get("text") for block in blocks if isinstance(block, Mapping))
    said = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return None if said is None else short_message(said, most)


def failed(attempt: int, error: JsonObject, reason: str | None = None) -> tuple[RunFailed, Outcome]:
    """An error of ours, ready to be written; those of tools may be large."""
    return _failure(attempt, error, reason), Outcome(body=encode_json(error))


def _failure(attempt: int, error: JsonObject, reason: str | None, most: int | None = LONGEST_MESSAGE) -> RunFailed:
    message = error.get("message")
    said = short_message(message, most) if isinstance(message, str) else None
    return RunFailed(attempt=attempt, message=said, reason=reason)


async def _encode(value: JsonObject, *, strict: bool) -> bytes:
    if is_large(value):
        # In a thread, and in pieces: the event loop goes on meanwhile.
        return await asyncio.to_thread(encode_in_pieces, value, strict=strict)
    return encode_json(value, strict=strict)

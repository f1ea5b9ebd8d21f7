"""Whether an answer fits its question, checked before it is written down for good.

Only answers to open questions are looked at: SEP-2663 has the others ignored, whatever they look like.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from mcp_types import (
    INVALID_PARAMS,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitResult,
    ListRootsResult,
)
from pydantic import TypeAdapter, ValidationError

from mcp_tasks.core import InputRequest, TaskRecord
from mcp_tasks.core.limits import Limits
from mcp_tasks.core.measure import check_json
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.quiet import get_logger
from mcp_tasks.wire.plain_json import encode_plain
from mcp_tasks.wire.schemas import Schema, Uncheckable, UnusableSchema, not_enforced

logger: Final = get_logger(__name__)

_WARNINGS: Final = 100
"""Warnings that are remembered, so as not to be repeated: a tool's questions are alike."""

_SHAPES: Mapping[str, TypeAdapter[Any]] = {
    "elicitation/create": TypeAdapter(ElicitResult),
    "sampling/createMessage": TypeAdapter(CreateMessageResult | CreateMessageResultWithTools),
    "roots/list": TypeAdapter(ListRootsResult),
}


def check_answers(record: TaskRecord, responses: Mapping[str, Any], limits: Limits | None = None) -> None:
    """Refuse an update in which an answer does not fit its question; the question then stays open.

    Args:
        limits: How much an answer may have; None for one of the server's own process.

    Raises:
        RpcError: -32602, naming the key and what is wrong with its answer.
        LimitExceeded: An answer is too large, or nested too deeply.
    """
    for key in sorted(record.inputs.outstanding.keys() & responses.keys()):
        if limits is not None:
            what = f"The answer to {key[:100]!r}"
            most, depth = limits.answer_bytes, limits.json_depth
            check_json("answer_bytes", what, responses[key], most=most, depth=depth, written=encode_plain)
        problem = _problem(record.inputs.outstanding[key], responses[key])
        if problem is not None:
            raise RpcError(INVALID_PARAMS, f"The answer to {key!r} does not fit: {problem}")


def _problem(request: InputRequest, answer: Any) -> str | None:
    try:
        _SHAPES[request.method].validate_python(answer, by_name=False)
    except ValidationError as exc:
        first = exc.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
    if request.method == "elicitation/create" and answer["action"] == "accept":
        return _form_problem(request.params, answer.get("content"))
    return None


def _form_problem(params: Mapping[str, Any], content: Any) -> str | None:
    schema = params.get("requestedSchema")
    if schema is None:
        return None
    try:
        return Schema(schema).first_problem(content if content is not None else {})
    except Uncheckable as exc:
        return f"it cannot be checked: {exc}"
    except UnusableSchema as exc:
        # The tool's own mistake; the client cannot answer it any better.
        logger.warning("an answer is not checked, because of the schema that its question has: %s", exc)
        return None


def warn_of_schema(params: Mapping[str, Any]) -> None:
    """Tell the author of a question, once, what its schema asks for and answers are not checked for."""
    try:
        said = [] if (schema := params.get("requestedSchema")) is None else not_enforced(schema)
    except RecursionError:
        # Told with the answer.
        return
    for each in said:
        _warn_once(each)


@lru_cache(_WARNINGS)
def _warn_once(said: str) -> None:
    logger.warning("in the schema of a question, %s; check it in the tool", said)

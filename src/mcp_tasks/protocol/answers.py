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
from mcp_tasks.core.measure import check_json, count_values
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.quiet import get_logger
from mcp_tasks.wire.plain_json import encode_plain
from mcp_tasks.wire.schemas import Schema, Uncheckable, UnusableSchema, not_enforced

logger: Final = get_logger(__name__)

_WARNINGS: Final = 100
"""Warnings that are remembered, so as not to be repeated: a tool's questions are alike."""

MOST_VALUES: Final = 2_000
"""Values in the answers of one update. A form has a few dozen."""

MOST_RULES: Final = 5_000
"""Rules of a schema that are applied to one answer."""

VALUES_PER_TURN: Final = 50
"""Values in answers that count as one request."""

MOST_PROBLEMS: Final = 100
"""Problems of an answer among which the first is told: Pydantic gives all of them or none."""

LONGEST_PLACE: Final = 200
"""Characters of where in an answer a problem is: the names in it are the client's."""

_SHAPES: Mapping[str, TypeAdapter[Any]] = {
    "elicitation/create": TypeAdapter(ElicitResult),
    "sampling/createMessage": TypeAdapter(CreateMessageResult | CreateMessageResultWithTools),
    "roots/list": TypeAdapter(ListRootsResult),
}


class AnswerMisfit(RpcError):
    """An update is refused for one of its answers. To find that out took some work, which nobody is to do again."""

    def __init__(self, why: str) -> None:
        super().__init__(INVALID_PARAMS, why)


class AnswerCheck:
    """Refuses an update in which an answer does not fit its question; the question then stays open.

    The task may be read several times before the answers are written down. Each answer is checked once, unless its
    question has become another.

    Args:
        limits: How much an answer may have; None for one of the server's own process.
    """

    def __init__(self, answers: Mapping[str, Any], limits: Limits | None = None) -> None:
        self._answers = answers
        self._limits = limits
        self._fitting: dict[str, InputRequest] = {}

    def __call__(self, record: TaskRecord) -> None:
        """Check the answers to open questions of the task.

        Raises:
            AnswerMisfit: -32602, naming the key and what is wrong with its answer.
            LimitExceeded: An answer is too large, or nested too deeply.
        """
        answers = answers_to(record, self._answers)
        if self._limits is not None:
            check_count(answers)
        for key in sorted(answers):
            request = record.inputs.outstanding[key]
            if self._fitting.get(key) != request:
                self._check(key, request, answers[key])
                self._fitting[key] = request

    def _check(self, key: str, request: InputRequest, answer: Any) -> None:
        if self._limits is not None:
            what = f"The answer to {key[:100]!r}"
            most, depth = self._limits.answer_bytes, self._limits.json_depth
            check_json("answer_bytes", what, answer, most=most, depth=depth, written=encode_plain)
        problem = _problem(request, answer)
        if problem is not None:
            raise AnswerMisfit(f"The answer to {key!r} does not fit: {problem}")


def check_answers(record: TaskRecord, answers: Mapping[str, Any], limits: Limits | None = None) -> None:
    """Check answers once. Raises what `AnswerCheck` raises."""
    AnswerCheck(answers, limits)(record)


def answers_to(record: TaskRecord, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the answers that are to open questions. The others are not even gone through: there may be hundreds of
    thousands."""
    return {key: answers[key] for key in record.inputs.outstanding if key in answers}


def check_count(answers: Mapping[str, Any]) -> None:
    """See that answers that came together are not too many values.

    Raises:
        AnswerMisfit: They are.
    """
    if _value_count(answers) > MOST_VALUES:
        raise AnswerMisfit(f"The answers of a request may have {MOST_VALUES:,} values in all, and these have more")


def turns_of(answers: Mapping[str, Any]) -> int:
    """As how many requests answers count: to check them takes time for each value."""
    return 1 + _value_count(answers) // VALUES_PER_TURN


def _value_count(answers: Mapping[str, Any]) -> int:
    return count_values(dict(answers), MOST_VALUES)


def _problem(request: InputRequest, answer: Any) -> str | None:
    try:
        _SHAPES[request.method].validate_python(answer, by_name=False)
    except ValidationError as exc:
        if exc.error_count() > MOST_PROBLEMS:
            return f"it has {exc.error_count():,} problems"
        first = exc.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))[:LONGEST_PLACE] or 'it'}: {first['msg']}"
    if request.method == "elicitation/create" and answer["action"] == "accept":
        return _form_problem(request.params, answer.get("content"))
    return None


def _form_problem(params: Mapping[str, Any], content: Any) -> str | None:
    schema = params.get("requestedSchema")
    if schema is None:
        return None
    try:
        return Schema(schema).first_problem(content if content is not None else {}, most=MOST_RULES)
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

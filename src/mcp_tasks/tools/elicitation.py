"""`elicit`: ask for one plain value, without a model of a form.

match await elicit(ctx, "Deploy to production?", bool):
    case Accepted(data=True): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from mcp.server.elicitation import AcceptedElicitation, CancelledElicitation, DeclinedElicitation
from mcp.server.mcpserver import Context
from pydantic import BaseModel, create_model

from mcp_tasks.errors import UsageError

T = TypeVar("T")

_PLAIN: Final = (bool, str, int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted(Generic[T]):
    """An answer to a question that was accepted.

    Attributes:
        data: The value, of the type that was asked for.
    """

    data: T
    action: Literal["accept"] = "accept"


Elicited: TypeAlias = Accepted[T] | DeclinedElicitation | CancelledElicitation
"""What a question is answered with: `action` is `"accept"`, `"decline"` or `"cancel"`."""


async def elicit(ctx: Context[Any, Any], message: str, schema: type[T]) -> Elicited[T]:
    """Ask the user for one value: as `ctx.elicit(message, schema)`, where the schema may also be a plain type.

    In the form, a plain value is the only field, `value`. So an answer by hand has `{"value": ...}` as its content.

    Args:
        ctx: The tool's context.
        schema: `bool`, `str`, `int`, `float`, or a model as `ctx.elicit` takes it.

    Raises:
        UsageError: The schema is none of these.
        MCPError: The client cannot be asked.
    """
    if schema in _PLAIN:
        answer = await ctx.elicit(message, _form(schema))
        return Accepted(data=answer.data.model_dump()["value"]) if isinstance(answer, AcceptedElicitation) else answer
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"elicit takes bool, str, int, float or a Pydantic model, got {schema!r}")
    answer = await ctx.elicit(message, schema)
    return Accepted(data=answer.data) if isinstance(answer, AcceptedElicitation) else answer


@lru_cache(len(_PLAIN))
def _form(schema: type[Any]) -> type[BaseModel]:
    return create_model("Answer", value=(schema, ...))

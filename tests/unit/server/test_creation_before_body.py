"""Parameters that are asked for before the body, and that the body is not entered for them."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from mcp.server.context import HandlerResult
from mcp.server.mcpserver import Elicit, Resolve
from mcp_types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

from mcp_tasks.errors import WiringError
from mcp_tasks.server.creation import asks_by_returning, resolves_parameters, settle_parameters, stop_at_body

pytestmark = pytest.mark.anyio


class Name(BaseModel):
    """Somebody's name."""

    name: str


def ask_name() -> Elicit[Name]:
    return Elicit("Who?", Name)


async def asks_before(who: Annotated[Name, Resolve(ask_name)]) -> str:
    return who.name


async def asks_by_return() -> str | InputRequiredResult:
    return "done"


def plain() -> str:
    return "done"


def unreadable(value: str) -> str:
    return value


unreadable.__annotations__["value"] = "Nowhere"


def test_how_a_function_asks_is_seen_from_its_signature() -> None:
    functions = (asks_before, asks_by_return, plain, unreadable)
    assert [resolves_parameters(function) for function in functions] == [True, False, False, False]
    assert [asks_by_returning(function) for function in functions] == [False, True, False, False]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_body_with_a_stop_is_entered_only_outside_of_it(is_async: bool) -> None:
    entered: list[int] = []

    async def work_async(value: int) -> str:
        entered.append(value)
        return "done"

    def work(value: int) -> str:
        entered.append(value)
        return "done"

    stopping = stop_at_body(work_async if is_async else work)

    async def call() -> HandlerResult:
        done = stopping(1)
        await done if is_async else done
        return CallToolResult(content=[])

    assert await settle_parameters(call, "work") is None
    assert entered == []
    await call()
    assert entered == [1]


async def test_what_is_asked_before_the_body_is_the_answer_and_can_be_read() -> None:
    async def call() -> HandlerResult:
        question = ElicitRequestFormParams(message="Keep \udce9?", requested_schema=Name.model_json_schema())
        return InputRequiredResult(input_requests={"keep": ElicitRequest(params=question)})

    answer = await settle_parameters(call, "tool")
    assert isinstance(answer, InputRequiredResult)
    asked: Any = (answer.input_requests or {})["keep"]
    assert asked.params.message == "Keep \ufffd?"


async def test_an_error_in_the_arguments_is_the_answer() -> None:
    refused = CallToolResult(content=[], is_error=True)

    async def call() -> HandlerResult:
        return refused

    assert await settle_parameters(call, "tool") is refused


async def test_a_body_that_ran_has_no_stop_and_its_author_is_told_why() -> None:
    async def call() -> HandlerResult:
        return CallToolResult(content=[])

    with pytest.raises(WiringError, match=r"put @server.tool\(\) above @tasks.task\(\)"):
        await settle_parameters(call, "tool")

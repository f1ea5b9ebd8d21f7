"""Tools and a prompt that ask by returning `InputRequiredResult` and being called again (SEP-2322).

The SDK seals `requestState`, so what a tool reads back is what it wrote, and a tampered one never reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)


def _elicit(message: str, field: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(prompt: str, max_tokens: int) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=max_tokens))


def _answer(ctx: Context, key: str) -> Any:
    return (ctx.input_responses or {}).get(key)


def _form(ctx: Context, key: str) -> dict[str, Any] | None:
    """What the user filled in under `key`, or None when there is no accepted answer yet."""
    answer = _answer(ctx, key)
    accepted = isinstance(answer, ElicitResult) and answer.action == "accept"
    return dict(answer.content or {}) if accepted else None


async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Asks for a name, then greets."""
    form = _form(ctx, "user_name")
    if form is None:
        return InputRequiredResult(input_requests={"user_name": _elicit("What is your name?", "name")})
    return f"Hello, {form.get('name')}!"


async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    """Asks the client's model a question, then repeats its answer."""
    answer = _answer(ctx, "capital_question")
    if not isinstance(answer, CreateMessageResult):
        question = _sample("What is the capital of France?", 100)
        return InputRequiredResult(input_requests={"capital_question": question})
    return f"The model said: {answer.content}"


async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    """Asks for the client's roots, then names them."""
    answer = _answer(ctx, "client_roots")
    if not isinstance(answer, ListRootsResult):
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
    return "Roots: " + ", ".join(str(root.uri) for root in answer.roots)


async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    """Asks with a state, and is content only when the same state comes back."""
    if _form(ctx, "confirm") is None or ctx.request_state != "asked":
        question = _elicit("Please confirm", "ok", "boolean")
        return InputRequiredResult(input_requests={"confirm": question}, request_state="asked")
    return "state-ok"


async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    """As above; the suite changes the state on its way back, and the SDK must refuse it."""
    return await test_input_required_result_request_state(ctx)


async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    """Asks for three kinds of input at once."""
    answers = [_answer(ctx, key) for key in ("user_name", "greeting", "client_roots")]
    if all(answer is not None for answer in answers):
        return "All three were answered."
    questions = {
        "user_name": _elicit("What is your name?", "name"),
        "greeting": _sample("Generate a greeting", 50),
        "client_roots": ListRootsRequest(),
    }
    return InputRequiredResult(input_requests=questions, request_state="three questions")


async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    """Asks twice, with a different state each time."""
    if _form(ctx, "step2") is not None:
        return f"Done, {ctx.request_state}"
    first = _form(ctx, "step1")
    if first is not None:
        question = _elicit("Step 2: What is your favorite color?", "color")
        return InputRequiredResult(input_requests={"step2": question}, request_state=f"name {first.get('name')}")
    question = _elicit("Step 1: What is your name?", "name")
    return InputRequiredResult(input_requests={"step1": question}, request_state="no name yet")


async def test_input_required_result_capabilities(ctx: Context) -> str | InputRequiredResult:
    """Asks only in ways the client declared."""
    declared = ctx.client_capabilities
    questions: dict[str, Any] = {}
    if declared is not None and declared.sampling is not None:
        questions["sampled"] = _sample("Say hello", 10)
    if declared is not None and declared.elicitation is not None:
        questions["elicited"] = _elicit("Say hello", "greeting")
    if not questions or ctx.input_responses:
        return "Nothing left to ask."
    return InputRequiredResult(input_requests=questions)


async def test_streaming_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Reports progress, then asks: the stream may hold the notification and the result, never a request."""
    if _form(ctx, "choice") is not None:
        return "Chosen."
    await ctx.report_progress(1, 2)
    return InputRequiredResult(input_requests={"choice": _elicit("Choose", "choice")})


async def test_input_required_result_prompt(ctx: Context) -> str | InputRequiredResult:
    """A prompt that first asks what it should be about."""
    form = _form(ctx, "user_context")
    if form is None:
        question = _elicit("What context should the prompt use?", "context")
        return InputRequiredResult(input_requests={"user_context": question})
    return f"Use this context: {form.get('context')}"


TOOLS: tuple[Callable[..., Any], ...] = (
    test_input_required_result_elicitation,
    test_input_required_result_sampling,
    test_input_required_result_list_roots,
    test_input_required_result_request_state,
    test_input_required_result_tampered_state,
    test_input_required_result_multiple_inputs,
    test_input_required_result_multi_round,
    test_input_required_result_capabilities,
    test_streaming_elicitation,
)

"""Everything else that a server offers: on every transport, in both eras, the same with tasks and without.

The client is the SDK's own and has never heard of tasks. Every tool it meets is marked as one that may be a task. What
differs by design is what is listed (`own_tools`), and that a tool gets an answer to what it asks, or word is given that
it asks, where a server without tasks refuses it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from mcp_types import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PromptReference,
    ResourceTemplateReference,
)

from harness.rpc import LEGACY, MODERN
from tests.everything.connecting import ERAS, TRANSPORTS, Pair, Visit, listed_tools, outcome, own_tools, paired
from tests.everything.server import SIGN_IN

pytestmark = pytest.mark.anyio

CITY = ResourceTemplateReference(uri="weather://{city}/today")

QUOTED = {
    "ask_form": 'It asks: "Who is it?"',
    "ask_before": 'It asks: "Who is it?"',
    "think": "It waits for this client itself to answer a sampling/createMessage request.",
    "roots": "It waits for this client itself to answer a roots/list request.",
}
"""How word is given of what a tool asks."""


@pytest.fixture(
    scope="module", params=[(way, era) for way in TRANSPORTS for era in ERAS], ids=lambda pair: "-".join(pair)
)
async def pair(request: pytest.FixtureRequest, site: str) -> AsyncGenerator[Pair]:
    """Clients of both servers over one of the transports, in one of the eras."""
    way, era = request.param
    async with paired(site, way, era) as connected:
        yield connected


def _text(answer: Any) -> str:
    [block] = answer["content"]
    return block["text"]


def _calling(tool: str, **arguments: Any) -> Callable[[Visit], Awaitable[Any]]:
    return lambda visit: visit.client.call_tool(tool, arguments)


async def _call(pair: Pair, tool: str, **arguments: Any) -> Any:
    return await pair.both(_calling(tool, **arguments))


async def test_the_server_says_the_same_of_itself(pair: Pair) -> None:
    async def introduction(visit: Visit) -> Any:
        client, info = visit.client, visit.client.server_info
        assert info is not None
        capabilities = client.server_capabilities.model_dump(by_alias=True, exclude_none=True)
        # What it says of tasks is all that may differ.
        capabilities.pop("tasks", None)
        capabilities.pop("extensions", None)
        experimental = capabilities.pop("experimental", {})
        experimental.pop("mcp-tasks/idempotencyKeys", None)
        return (
            info.name,
            info.title,
            info.version,
            client.instructions,
            client.protocol_version,
            (capabilities, experimental),
        )

    *words, protocol, _ = await pair.both(introduction)
    assert words == ["everything", "Everything", "1", "Ask for anything."]
    assert protocol == (MODERN if pair.newer else LEGACY)


async def test_tools_are_listed_alike_but_for_what_the_fallback_needs(pair: Pair) -> None:
    listed = own_tools(await listed_tools(pair.tasks.client))
    assert listed == await listed_tools(pair.plain.client)
    by_name = {tool["name"]: tool for tool in listed}
    assert by_name["weather"]["title"] == "Weather"
    assert by_name["weather"]["annotations"]["readOnlyHint"]
    assert by_name["weather"]["outputSchema"]["required"] == ["city", "degrees"]
    # What is asked for before the body is no argument.
    assert by_name["ask_before"]["inputSchema"]["properties"] == {}


async def test_a_structured_result(pair: Pair) -> None:
    answer = await _call(pair, "weather", city="Paris")
    assert answer["structuredContent"] == {"city": "Paris", "degrees": 21.5, "wind": None}


async def test_every_kind_of_content_a_link_to_a_resource_included(pair: Pair) -> None:
    answer = await _call(pair, "gallery")
    assert [block["type"] for block in answer["content"]] == ["text", "image", "resource_link", "resource"]
    link = answer["content"][2]["uri"]
    read = await pair.both(lambda visit: visit.client.read_resource(link))
    assert read["contents"][0]["text"] == "Good day."


@pytest.mark.parametrize(
    ("tool", "arguments"), [("fail", {}), ("weather", {}), ("weather", {"city": 7}), ("nothing-like-it", {})]
)
async def test_a_call_that_fails(pair: Pair, tool: str, arguments: dict[str, Any]) -> None:
    answer = await _call(pair, tool, **arguments)
    assert isinstance(answer, tuple) or answer["isError"]


async def test_resources_and_templates(pair: Pair) -> None:
    listed = await pair.both(lambda visit: visit.client.list_resources())
    assert [resource["uri"] for resource in listed["resources"]] == ["memo://greeting", "image://pixel"]
    templates = await pair.both(lambda visit: visit.client.list_resource_templates())
    assert [template["uriTemplate"] for template in templates["resourceTemplates"]] == [CITY.uri]
    for uri, kind in (("memo://greeting", "text"), ("image://pixel", "blob"), ("weather://Oslo/today", "text")):
        read = await pair.both(lambda visit, uri=uri: visit.client.read_resource(uri))
        assert read["contents"][0][kind]
    _, message = await pair.both(lambda visit: visit.client.read_resource("memo://nothing"))
    assert "memo://nothing" in message


async def test_prompts(pair: Pair) -> None:
    listed = await pair.both(lambda visit: visit.client.list_prompts())
    [prompt] = listed["prompts"]
    assert [(argument["name"], argument["required"]) for argument in prompt["arguments"]] == [
        ("city", True),
        ("days", False),
    ]
    got = await pair.both(lambda visit: visit.client.get_prompt("travel", {"city": "Paris"}))
    assert [message["content"]["text"] for message in got["messages"]] == ["3 days in Paris, please.", "With pleasure."]
    assert isinstance(await pair.both(lambda visit: visit.client.get_prompt("travel", {})), tuple)


async def test_completion(pair: Pair) -> None:
    for ref in (PromptReference(name="travel"), CITY):
        found = await pair.both(lambda visit, ref=ref: visit.client.complete(ref, {"name": "city", "value": "P"}))
        assert found["completion"]["values"] == ["Paris", "Prague", "Porto"]
    fewer = await pair.both(
        lambda visit: visit.client.complete(CITY, {"name": "city", "value": "P"}, context_arguments={"last": "Paris"})
    )
    assert fewer["completion"]["values"] == ["Prague", "Porto"]


async def test_progress_and_the_log_of_a_call(pair: Pair) -> None:
    async def talk(visit: Visit) -> Any:
        reported: list[Any] = []
        visit.host.logged.clear()

        async def note(progress: float, total: float | None, message: str | None) -> None:
            reported.append((progress, total, message))

        answer = await visit.client.call_tool("talk", {}, progress_callback=note)
        return answer.model_dump(by_alias=True), reported, list(visit.host.logged)

    answer, reported, logged = await pair.both(talk)
    assert _text(answer) == "Good day."
    assert reported == ([(1, 2, "half")] if pair.streams else [])
    assert logged == ([("info", "for the log")] if pair.streams else [])


async def test_a_form_before_the_body(pair: Pair) -> None:
    if not pair.hands_over:
        assert _text(await _call(pair, "ask_before")) == "Hello, Ada!"
        return
    _check_word_of_question(await outcome(_calling("ask_before"), pair.tasks), "ask_before", QUOTED["ask_before"])
    without = await outcome(_calling("ask_before"), pair.plain)
    assert isinstance(without, tuple) or without["isError"]


@pytest.mark.parametrize(
    ("tool", "expected"), [("ask_form", "Hello, Ada!"), ("think", "Forty-two."), ("roots", "file:///home/ada")]
)
async def test_what_a_tool_asks_in_the_middle(pair: Pair, tool: str, expected: str) -> None:
    if pair.answers:
        assert _text(await _call(pair, tool)) == expected
        return
    answer = await outcome(_calling(tool), pair.tasks)
    if pair.newer:
        assert _text(answer) == expected
    elif pair.way.startswith("stateless") and tool != "ask_form":
        # Nobody but this client could answer it, and nobody knows which client this is.
        code, message = answer
        assert code == INVALID_REQUEST
        assert "this server is stateless" in message
    else:
        _check_word_of_question(answer, tool, QUOTED[tool])
    if pair.way != "json" or pair.newer:
        # Over the other one the SDK drops what it cannot send and waits for the answer for good.
        assert (await outcome(_calling(tool), pair.plain))[0] == INVALID_REQUEST


def _check_word_of_question(answer: Any, tool: str, quoted: str) -> None:
    task_id = answer["structuredContent"]["taskId"]
    status = {"status": "input_required", "statusMessage": "waiting for an answer"}
    assert answer["structuredContent"] == {"taskId": task_id, **status}
    assert not answer["isError"]
    assert _text(answer).splitlines() == [
        f'The tool "{tool}" is still running: it waits for an answer. It has not finished, and this is not its result.',
        f'Do not call "{tool}" again: that would start the same work a second time.',
        "The question below is for the user, and you cannot answer it: tell the user about it. Then call the tool "
        f'"task_status" with {{"task_id": "{task_id}"}}. It waits, and returns the result once there is one. If it '
        "says that the tool has not finished, call it again. It also puts the question to the user, where this client "
        "can.",
        f"Task: {task_id}",
        'Status: input_required ("waiting for an answer")',
        quoted,
    ]


async def test_a_page_that_somebody_is_sent_to(pair: Pair) -> None:
    if pair.newer:
        assert _text(await _call(pair, "ask_url_by_returning")) == "accept"
    elif pair.answers:
        assert _text(await _call(pair, "ask_url")) == "accept"
        for visit in (pair.tasks, pair.plain):
            assert "notifications/elicitation/complete" in visit.host.told
    else:
        return
    for visit in (pair.tasks, pair.plain):
        assert visit.host.asked[-2:] == ["Please sign in", SIGN_IN]


async def test_tools_come_and_go_while_the_server_runs(pair: Pair) -> None:
    async def names(visit: Visit) -> Any:
        listed = await listed_tools(visit.client)
        return sorted(tool["name"] for tool in (own_tools(listed) if visit is pair.tasks else listed))

    before = await pair.both(names)
    assert _text(await _call(pair, "grow", count=2)) == "2 more"
    try:
        assert await pair.both(names) == sorted([*before, "fresh-0", "fresh-1"])
        assert _text(await _call(pair, "fresh-1")) == "fresh"
    finally:
        assert _text(await _call(pair, "shrink", count=2)) == "2 fewer"
    assert await pair.both(names) == before
    gone = await _call(pair, "fresh-1")
    assert isinstance(gone, tuple) or gone["isError"]


async def test_what_the_server_does_not_have(pair: Pair) -> None:
    async def set_level(visit: Visit) -> Any:
        return await visit.client.session.set_logging_level("debug")  # pyright: ignore[reportDeprecated]

    code, _ = await pair.both(set_level)
    assert code == METHOD_NOT_FOUND

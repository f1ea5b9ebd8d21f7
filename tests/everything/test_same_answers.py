"""Everything else that a server offers: on every transport, in both eras, the same with tasks and without.

The client is the SDK's own and speaks no tasks; every tool may be a task. By design the list of tools differs
(`_listed`), and a tool gets an answer where a server without tasks refuses its question. With plain calls
(`fallback="inline"`, `companions="never"`) nothing differs.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, PromptReference, ResourceTemplateReference
from pydantic import BaseModel

from harness.rpc import LEGACY, MODERN
from tests.everything.serving import ERAS, WAYS, Visit, visiting_kind

NOTE = ResourceTemplateReference(uri="memo://{day}/note")

PAIRS = [(way, era, "tasks") for way in ("memory", *WAYS) for era in ERAS] + [
    (way, era, "inline") for way in ("stateful", "stateless-json") for era in ERAS
]
COMPANIONS = ["task_status", "task_cancel"]
"""The tools that callers without tasks are shown besides, at the end of the list."""


@dataclass(frozen=True)
class Pair:
    """Clients of a server with tasks and of its twin without, connected the same way."""

    tasks: Visit
    plain: Visit
    newer: bool
    inline: bool
    """Whether the first gives a caller without tasks plain calls: then it answers in everything like the other."""
    streams: bool
    """Whether anything can reach the client before the answer does."""

    async def both(self, ask: Callable[[Visit], Awaitable[Any]]) -> Any:
        """What both servers answer, which must be the same: a value, or the code and message of an error."""
        with_tasks, without = await _outcome(ask, self.tasks), await _outcome(ask, self.plain)
        assert with_tasks == without
        return with_tasks


async def _outcome(ask: Callable[[Visit], Awaitable[Any]], visit: Visit) -> Any:
    try:
        answer = await ask(visit)
    except MCPError as exc:
        return exc.error.code, exc.error.message
    return answer.model_dump(by_alias=True, mode="json") if isinstance(answer, BaseModel) else answer


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
async def pair(request: pytest.FixtureRequest) -> AsyncGenerator[Pair]:
    """Clients of both servers over one of the transports, in one of the eras."""
    way, era, kind = request.param
    async with visiting_kind(kind, way, era) as tasks, visiting_kind("plain", way, era) as plain:
        yield Pair(tasks, plain, era == "newer", kind == "inline", streams=not way.endswith("json"))


def _text(answer: Any) -> str:
    [block] = answer["content"]
    return block["text"]


def _calling(tool: str, **arguments: Any) -> Callable[[Visit], Awaitable[Any]]:
    return lambda visit: visit.client.call_tool(tool, arguments)


async def _call(pair: Pair, tool: str, **arguments: Any) -> Any:
    return await pair.both(_calling(tool, **arguments))


async def _tools(visit: Visit) -> list[dict[str, Any]]:
    # Whether one may be a task is said in the older era only.
    return [tool.model_dump(by_alias=True, exclude={"execution"}) for tool in (await visit.client.list_tools()).tools]


async def _listed(pair: Pair) -> list[dict[str, Any]]:
    """The tools of the server with tasks, without the companions at the end, and the handle in the schemas."""
    tools = await _tools(pair.tasks)
    if pair.inline:
        return tools
    own, companions = tools[: -len(COMPANIONS)], tools[-len(COMPANIONS) :]
    assert [tool["name"] for tool in companions] == COMPANIONS
    for tool in own:
        if tool["outputSchema"] is not None and "anyOf" in tool["outputSchema"]:
            narrow, handle = tool["outputSchema"]["anyOf"]
            assert tool["outputSchema"] == {"type": "object", "anyOf": [narrow, handle]}
            assert set(handle["required"]) == {"taskId", "status", "statusMessage"}
            tool["outputSchema"] = narrow
    return own


async def test_the_server_says_the_same_of_itself_and_has_no_more_methods(pair: Pair) -> None:
    async def introduction(visit: Visit) -> Any:
        client, info = visit.client, visit.client.server_info
        assert info is not None
        capabilities = client.server_capabilities.model_dump(by_alias=True, exclude_none=True)
        # What it says of tasks is all that may differ.
        capabilities.pop("tasks", None)
        capabilities.pop("extensions", None)
        experimental = capabilities.pop("experimental", {})
        experimental.pop("mcp-tasks/idempotencyKeys", None)
        return info.name, info.title, client.instructions, client.protocol_version, (capabilities, experimental)

    *words, protocol, _ = await pair.both(introduction)
    assert words == ["everything", "Everything", "Ask for anything."]
    assert protocol == (MODERN if pair.newer else LEGACY)

    async def set_level(visit: Visit) -> Any:
        return await visit.client.session.set_logging_level("debug")  # pyright: ignore[reportDeprecated]

    assert (await pair.both(set_level))[0] == METHOD_NOT_FOUND


async def test_tools_are_listed_alike_and_come_and_go(pair: Pair) -> None:
    listed = await _listed(pair)
    assert listed == await _tools(pair.plain)
    by_name = {tool["name"]: tool for tool in listed}
    assert by_name["ask_name"]["annotations"]["idempotentHint"]
    # What is asked for before the body is no argument.
    assert by_name["ask_before"]["inputSchema"]["properties"] == {}
    assert _text(await _call(pair, "more_tools", count=2)) == "2 more"
    try:
        more = {tool["name"] for tool in await _listed(pair)}
        assert more == by_name.keys() | {"fresh-0", "fresh-1"}
        assert _text(await _call(pair, "fresh-1")) == "fresh"
    finally:
        assert _text(await _call(pair, "fewer_tools", count=2)) == "2 fewer"
    assert await _listed(pair) == listed
    for gone in ("fresh-1", *(COMPANIONS if pair.inline else [])):
        answer = await _call(pair, gone)
        assert isinstance(answer, tuple) or answer["isError"]


async def test_calls_give_the_same_and_fail_alike(pair: Pair) -> None:
    answer = await _call(pair, "point", x=1.5)
    assert answer["structuredContent"] == {"x": 1.5, "y": None}
    assert _text(await _call(pair, "greet", name="Ada")) == "Hello, Ada!"
    for tool, arguments in (
        ("fails", {}),
        ("crashes", {}),
        ("point", {}),
        ("point", {"x": "y"}),
        ("nothing-like-it", {}),
    ):
        answer = await _call(pair, tool, **arguments)
        assert isinstance(answer, tuple) or answer["isError"]


async def test_resources_prompts_and_completion_are_the_same(pair: Pair) -> None:
    listed = await pair.both(lambda visit: visit.client.list_resources())
    assert [resource["uri"] for resource in listed["resources"]] == ["memo://greeting"]
    templates = await pair.both(lambda visit: visit.client.list_resource_templates())
    assert [template["uriTemplate"] for template in templates["resourceTemplates"]] == [NOTE.uri]
    for uri, kind in (("memo://greeting", "text"), ("memo://monday/note", "text")):
        read = await pair.both(lambda visit, uri=uri: visit.client.read_resource(uri))
        assert read["contents"][0][kind]
    assert isinstance(await pair.both(lambda visit: visit.client.read_resource("memo://nothing")), tuple)
    [prompt] = (await pair.both(lambda visit: visit.client.list_prompts()))["prompts"]
    assert [argument["required"] for argument in prompt["arguments"]] == [True]
    got = await pair.both(lambda visit: visit.client.get_prompt("introduce", {"person": "Ada"}))
    assert [message["content"]["text"] for message in got["messages"]] == ["Introduce Ada."]
    assert isinstance(await pair.both(lambda visit: visit.client.get_prompt("introduce", {})), tuple)
    for ref in (PromptReference(name="introduce"), NOTE):
        found = await pair.both(lambda visit, ref=ref: visit.client.complete(ref, {"name": "day", "value": "t"}))
        assert found["completion"]["values"] == ["tuesday"]


async def test_progress_and_the_log_of_a_call(pair: Pair) -> None:
    async def talk(visit: Visit) -> Any:
        reported: list[Any] = []
        visit.host.logged.clear()

        async def note(progress: float, total: float | None, message: str | None) -> None:
            reported.append((progress, total, message))

        answer = await visit.client.call_tool("logs", {}, progress_callback=note)
        return answer.model_dump(by_alias=True), reported, list(visit.host.logged)

    answer, reported, logged = await pair.both(talk)
    assert _text(answer) == "Good day."
    assert reported == ([(1, 2, "half of it")] if pair.streams else [])
    assert logged == ([("info", "a line for the log")] if pair.streams else [])


ASKING = {
    "ask_before": "Hello, Ada!",
    "ask_name": "Hello, Ada!",
    "ask_model": "Forty-two.",
    "ask_roots": "file:///home/ada",
}


@pytest.mark.parametrize("tool", ASKING)
async def test_a_tool_asks_where_it_can_and_is_refused_where_its_caller_wants_a_plain_call(
    pair: Pair, tool: str
) -> None:
    if (pair.streams and not pair.newer) or (tool == "ask_before" and pair.newer):
        assert _text(await _call(pair, tool)) == ASKING[tool]
    elif pair.inline:
        answer = await _call(pair, tool)
        assert isinstance(answer, tuple) or answer["isError"]
    elif pair.newer:
        assert _text(await _outcome(_calling(tool), pair.tasks)) == ASKING[tool]
    # Where nothing can be asked on the call, `tests/fallback` has what becomes of the question.

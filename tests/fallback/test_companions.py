"""The companion tools: what `tools/list` shows to whom, and what a model gets that calls them."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

from harness import rpc
from harness.http import initialize, serving
from harness.older import http_session
from harness.rpc import EVERYTHING, MODERN, NOTHING, PATIENCE, TASKS, request
from harness.server import QUICK
from harness.waiting import eventually
from mcp_tasks import Fallback, Host, Tasks
from mcp_tasks.errors import InvalidOption, UsageError
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Page
from tests.fallback.scenes import MODES, chat, facts, handle, text
from tests.fallback.server import Served, build

pytestmark = pytest.mark.timeout(60)

either_mode = pytest.mark.parametrize("mode", MODES)
WAYS = Fallback(wait=timedelta(milliseconds=50), legs=1)
MAY_ANSWER = replace(WAYS, model_may_answer=True)
INLINE = replace(WAYS, modern=False, older=False)
ASKER = {"asker": Host(asks_for_tasks=True)}


def served_with(**options: Any) -> Served:
    chosen: dict[str, Any] = {"fallback": WAYS, **options}
    return build(**chosen)


async def begun(client: Any, job: str = "job", tool: str = "gated") -> str:
    return handle(await client.call_tool(tool, {"job": job}))


async def asked_for(client: Any, served: Served) -> str:
    task = await served.tasks.start("asks", {"job": "asked"})
    await task.until_asked(PATIENCE)
    return task.id


# --- task_status ----------------------------------------------------------------------------------------------------


# Far too long, as a float, as text, not said, endless; and what a host adds for itself.
LENIENT: list[dict[str, Any]] = [
    *({"wait_seconds": seconds} for seconds in (10**400, 1e308, " 7 ", None, float("inf"))),
    {"__tool_use_purpose": "to see"},
]


async def test_it_waits_no_longer_than_it_is_told_to_and_takes_what_can_mean_only_one_thing_for_that() -> None:
    served = served_with()
    async with chat(served.server, MODERN) as client:
        task_id = await begun(client)
        for seconds in (0, -(10**400), "0", 0.01, " 0 "):
            with anyio.fail_after(10):
                told = await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": seconds})
            assert handle(told) == task_id
        for number, more in enumerate(LENIENT):
            served.jobs.open(f"{number}")
            task_id = (await served.tasks.start("gated", {"job": f"{number}"})).id
            # The second with the spelling of the handle, and marks around the id.
            for said in ({"task_id": task_id, **more}, {"taskId": f" `{task_id}`\n"}):
                assert text(await client.call_tool("task_status", said)) == f"{number} is done"


def wrong_calls() -> list[Any]:
    any_id = {"task_id": "task_nope", "action": "decline"}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("task_status", {"id": "a"}, 'no argument "id". It takes "task_id", "wait_seconds". The id of the task goes'),
        ("task_cancel", {"id": "a"}, 'no argument "id". It takes "task_id". The id of the task goes into "task_id".'),
        ("task_answer", {"answer": 1}, 'no argument "answer". It takes "task_id", "action", "content", "question".'),
        ("task_cancel", {}, "A task_id is needed"),
        ("task_answer", {"action": "decline"}, "A task_id is needed"),
        ("task_status", {"task_id": "\ud83d"}, 'There is no task "\ufffd"'),
    ]
    for tool in ("task_status", "task_cancel", "task_answer"):
        more = any_id if tool == "task_answer" else {}
        for task_id in ("task_nope", "x" * 100_000, "../../etc/passwd", "\x00"):
            cases.append((tool, {**more, "task_id": task_id}, 'There is no task "'))
        for task_id in (7, ["a"], {"a": 1}, True):
            cases.append((tool, {**more, "task_id": task_id}, "The task_id must be a string"))
    return cases


async def test_whatever_is_wrong_with_a_call_is_a_tool_error_in_words() -> None:
    served = served_with(fallback=MAY_ANSWER)
    async with chat(served.server, "legacy") as client:
        await begun(client)
        for tool, arguments, said in wrong_calls():
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert said in text(result), (tool, arguments)
            assert len(text(result)) < 1_000
            if "There is no task" in said:
                assert 'call the tool "task_status" without a task_id' in text(result)
        task_id = facts(await client.call_tool("task_status", {}))["tasks"][0]["taskId"]
        no_numbers: list[Any] = ["soon", "", "nan", True, [], {"seconds": 5}]
        for seconds in no_numbers:
            result = await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": seconds})
            assert result.is_error
            assert text(result).startswith("The wait_seconds must be a number, and is ")
        # None of that has changed anything.
        assert handle(await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": 0})) == task_id


async def test_a_task_that_has_expired_looks_like_one_that_never_was() -> None:
    served = served_with(default_ttl=timedelta(milliseconds=1))
    async with chat(served.server, MODERN) as client:
        task_id = await begun(client)
        await client.call_tool("task_cancel", {"task_id": task_id})
        unknown = text(await client.call_tool("task_status", {"task_id": "task_x"}))

        async def is_gone() -> bool:
            told = await client.call_tool("task_status", {"task_id": task_id})
            return told.is_error is True and text(told).replace(task_id, "task_x") == unknown

        await eventually(is_gone)


async def test_the_words_say_what_the_tool_waits_for_and_only_what_their_reader_can_do() -> None:
    served = served_with(concurrency=1, companions="never")
    async with chat(served.server, "legacy") as client:
        first, second = [text(await client.call_tool("gated", {"job": job})) for job in "ab"]
    assert 'The tool "gated" is still running. It has not finished' in first
    assert 'The tool "gated" is still running: it waits for its turn to begin. It has not' in second
    assert served.jobs.counts("b", "start") == (0,)
    assert "task_status" not in first
    assert "cannot be fetched from here" in first
    assert "start the same work a second time" in first
    # Where a second call joins the first.
    async with chat(served_with().server, "legacy") as client:
        assert "it would not be any quicker" in text(await client.call_tool("joined", {"job": "job"}))


# --- whose tasks they are -------------------------------------------------------------------------------------------


async def shown_of_status(client: Any) -> tuple[list[str], str]:
    """The arguments that `task_status` needs, and its description."""
    [tool] = [tool for tool in (await client.list_tools()).tools if tool.name == "task_status"]
    return tool.input_schema.get("required", []), tool.description


@either_mode
async def test_over_a_pipe_the_callers_tasks_are_listed_without_an_id(mode: str) -> None:
    served = served_with()
    async with chat(served.server, mode) as client:
        first, second = [await begun(client, job) for job in "ab"]
        await client.call_tool("task_cancel", {"task_id": second})
        failed = handle(await client.call_tool("fails", {"job": "late", "late": True}))
        served.jobs.open("late")
        await client.call_tool("task_status", {"task_id": failed})
        third = await begun(client, "c")
        listed = await client.call_tool("task_status", {})
        # Another connection of the same pipe, as after a restart of the host.
        async with chat(served.server, mode) as again:
            assert text(await again.call_tool("task_status", {"task_id": ""})) == text(listed)
        needed, described = await shown_of_status(client)
    assert needed == []
    assert "Without a task_id, lists your tasks" in described
    tasks = facts(listed)["tasks"]
    assert [(task["taskId"], task["tool"], task["status"]) for task in tasks] == [
        (third, "gated", "working"),
        (first, "gated", "working"),
        (failed, "fails", "completed"),
        (second, "gated", "cancelled"),
    ]
    assert tasks[2]["statusMessage"] == "Error executing tool fails: late did not work out"
    lines = text(listed).splitlines()
    assert 'call the tool "task_status" with its task_id' in lines[1]
    found = [json.loads(line[2 : line.index("}") + 1])["task_id"] for line in lines[2:]]
    assert found == [task["taskId"] for task in tasks]


@pytest.mark.parametrize("stateless", [False, True])
async def test_over_http_without_a_name_an_id_is_needed_and_no_list_is_offered(stateless: bool) -> None:
    served = served_with()
    async with serving(served.server, stateless=stateless) as wire:
        for mode in MODES:
            async with chat(wire.url, mode) as client:
                task_id = await begun(client, mode)
                without = await client.call_tool("task_status", {})
                assert without.is_error
                assert text(without).startswith(
                    "A task_id is needed: on this connection nobody can tell which tasks are yours."
                )
                unknown = await client.call_tool("task_status", {"task_id": "task_nope"})
                assert "without a task_id" not in text(unknown)
                needed, described = await shown_of_status(client)
                assert needed == ["task_id"]
                assert "list" not in described
                served.jobs.open(mode)
                assert text(await client.call_tool("task_status", {"task_id": task_id})) == f"{mode} is done"


def always_ann(caller: Caller) -> str:
    return "ann"


class CountedStore(MemoryStore):
    """Counts the tasks that its listings give, and can be told to do something after the first."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0
        self.after_first: Any = None

    async def list(self, *args: Any, **options: Any) -> Page:
        page = await super().list(*args, **options)
        self.listed += len(page.records)
        if self.after_first is not None:
            act, self.after_first = self.after_first, None
            await act()
        return page

    async def fill(self, numbers: range, status: TaskStatus, **fields: Any) -> None:
        began = datetime(2026, 1, 1, tzinfo=UTC)
        whose: dict[str, Any] = {"owner": "ann", "namespace": "fallback", "announced": True, **fields}
        for number in numbers:
            made = began + timedelta(seconds=number)
            record = TaskRecord(
                id=f"task-{number:04}", name="gated", created_at=made, updated_at=began, status=status, **whose
            )
            await self.create(record, TaskRequest(name="gated", arguments={}))


async def test_the_newest_of_very_many_tasks_are_listed_unfinished_ones_first_and_few_are_read() -> None:
    store = CountedStore()
    served = served_with(store=store, principal=always_ann, runs_tools=False)
    async with chat(served.server, MODERN) as client:
        ended = TaskStatus.COMPLETED
        await store.fill(range(4), TaskStatus.WORKING)
        await store.fill(range(4, 2_000), ended)
        # Those of prompts, and those that nobody was told of are not listed.
        await store.fill(range(2_000, 2_001), ended, method="prompts/get")
        await store.fill(range(2_001, 2_002), ended, announced=False)
        store.listed = 0
        tasks = facts(await client.call_tool("task_status", {}))["tasks"]
        expected = [f"task-{number:04}" for number in (*range(3, -1, -1), *range(1_999, 1_983, -1))]
        assert [task["taskId"] for task in tasks] == expected
        assert store.listed <= 500
        await store.fill(range(3_000, 3_200), TaskStatus.WORKING)
        tasks = facts(await client.call_tool("task_status", {}))["tasks"]
        assert [task["taskId"] for task in tasks] == [f"task-{number:04}" for number in range(3_199, 3_179, -1)]


async def test_a_task_that_ends_while_tasks_are_listed_is_listed_once() -> None:
    store = CountedStore()
    served = served_with(store=store)
    async with chat(served.server, MODERN) as client:
        task_id = await begun(client)
        store.after_first = served.tasks.handle(task_id).cancel
        tasks = facts(await client.call_tool("task_status", {}))["tasks"]
    assert [(task["taskId"], task["status"]) for task in tasks] == [(task_id, "cancelled")]


# --- task_cancel ----------------------------------------------------------------------------------------------------


@either_mode
async def test_a_cancelled_tool_has_stopped_and_says_so_ever_after_and_a_finished_one_stays_as_it_is(mode: str) -> None:
    served = served_with()
    async with chat(served.server, mode) as client:
        task_id = await begun(client, "one")
        cancelled, again = [await client.call_tool("task_cancel", {"task_id": task_id}) for _ in range(2)]
        status = await client.call_tool("task_status", {"task_id": task_id})
        task_id = await begun(client, "two")
        served.jobs.open("two")
        await client.call_tool("task_status", {"task_id": task_id})
        late = await client.call_tool("task_cancel", {"task_id": task_id})
        assert text(await client.call_tool("task_status", {"task_id": task_id})) == "two is done"
    assert text(cancelled).startswith('The tool "gated" is cancelled, and has no result. What it had done')
    assert text(again).startswith('The tool "gated" had already been cancelled')
    assert text(status).startswith('The tool "gated" was cancelled, and has no result. Cancelled with task_cancel.')
    assert text(late).startswith('The tool "gated" had already ended, and stays as it is.')
    assert [facts(each)["status"] for each in (cancelled, again, late)] == ["cancelled", "cancelled", "completed"]
    assert [each.is_error for each in (cancelled, again, status, late)] == [False, False, True, False]


# --- task_answer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": "accept", "content": {"name": "Bob"}}, "Hello, Bob!"),
        ({"action": "accept", "content": '{"name": "Bob"}'}, "Hello, Bob!"),
        ({"action": "decline"}, "decline, then"),
        ({"action": "decline", "content": {"name": 7}}, "decline, then"),
        ({"action": "cancel"}, "cancel, then"),
    ],
)
async def test_a_model_answers_for_a_person_where_the_author_allows_it(arguments: dict[str, Any], said: str) -> None:
    served = served_with(fallback=MAY_ANSWER)
    async with chat(served.server, "legacy") as client:
        task_id = await asked_for(client, served)
        answered = await client.call_tool("task_answer", {"task_id": task_id, **arguments})
        assert text(answered).startswith('The answer was given to the tool "asks", which goes on.')
        assert text(await client.call_tool("task_status", {"task_id": task_id})) == said
        late = await client.call_tool("task_answer", {"task_id": task_id, **arguments})
    assert late.is_error
    assert text(late).startswith(
        'The tool "asks" asks nothing now. To get the result, call the tool "task_status" with'
    )


async def test_of_several_questions_the_key_says_which_and_what_no_form_asks_is_not_for_a_model() -> None:
    served = served_with(fallback=MAY_ANSWER)
    async with chat(served.server, MODERN) as client:
        task = await served.tasks.start("asks_both", {"job": "job"})

        async def asks_both() -> bool:
            return len((await task.fetch()).questions) == 2

        await eventually(asks_both)
        for question in ({}, {"question": "c"}):
            refused = await client.call_tool("task_answer", {"task_id": task.id, "action": "decline", **question})
            assert "which of these is answered:" in text(refused)
            assert '("Your name?")' in text(refused)
        keys = {asked.params["message"]: key for key, asked in (await task.fetch()).questions.items()}
        for message, content in (("Your age?", {"age": 36}), ("Your name?", {"name": "Ada"})):
            answer = {"action": "accept", "content": content, "question": keys[message]}
            assert not (await client.call_tool("task_answer", {"task_id": task.id, **answer})).is_error
        assert text(await client.call_tool("task_status", {"task_id": task.id})) == "name='Ada' age=36"
        task = await served.tasks.start("asks_to_visit", {"job": "job"})
        await task.until_asked(PATIENCE)
        refused = await client.call_tool("task_answer", {"task_id": task.id, "action": "accept"})
        assert "asks nothing now. What it waits for cannot be answered by you." in text(refused)


async def test_it_waits_for_whoever_answers_a_question_that_it_cannot_put() -> None:
    served = served_with(fallback=Fallback(model_may_answer=True))
    async with serving(served.server, json_response=True) as wire, http_session(wire) as client:
        task_id = handle((await client.call("asks", {"job": "job"})).result, "input_required")
        pending = client.begin("tools/call", {"name": "task_status", "arguments": {"task_id": task_id}})
        await anyio.sleep(0.3)  # sleep: the time in which it must not be answered
        # Or a model that does as it is told would ask again, and again.
        assert not pending.answered
        answer = {"task_id": task_id, "action": "accept", "content": {"name": "Bob"}}
        assert "The answer was given" in rpc.text_of((await client.call("task_answer", answer)).result)
        assert rpc.text_of((await pending.reply()).result) == "Hello, Bob!"


# --- names ----------------------------------------------------------------------------------------------------------


async def test_the_names_have_the_prefix_of_the_author() -> None:
    prefixes: list[Any] = ["a b", "é", "a/", "x" * 65, 7, None]
    for wrong in prefixes:
        with pytest.raises(InvalidOption, match="companion_prefix must be"):
            Tasks("memory://", companion_prefix=wrong)
    served = served_with(companion_prefix="farm_")
    async with chat(served.server, MODERN) as client:
        result = await client.call_tool("gated", {"job": "job"})
        assert 'call the tool "farm_task_status" with' in text(result)
        served.jobs.open("job")
        arguments = {"task_id": handle(result)}
        assert text(await client.call_tool("farm_task_status", arguments)) == "job is done"
        assert text(await client.call_tool("task_status", arguments)) == "Unknown tool: task_status"
        tools = {tool.name: tool for tool in (await client.list_tools()).tools if tool.name.startswith("farm_")}
    hints = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")
    assert {name: tuple(getattr(tool.annotations, hint) for hint in hints) for name, tool in tools.items()} == {
        "farm_task_status": (True, False, True, False),
        "farm_task_cancel": (False, True, True, False),
        "farm_task_answer": (False, True, False, True),
    }
    assert tools["farm_task_answer"].input_schema["required"] == ["task_id", "action"]
    for tool in tools.values():
        assert tool.title
        assert tool.output_schema is None
        assert " task_" not in (tool.description or "").replace("task_id", "")


def small(**options: Any) -> tuple[MCPServer[Any], Tasks]:
    """A server with one tool that may be a task, which may answer for nobody."""
    chosen: dict[str, Any] = {"settings": QUICK, "fallback": WAYS, **options}
    tasks = Tasks("memory://", **chosen)
    server = MCPServer("small", **tasks.wiring(), log_level="CRITICAL")
    tasks.mark("waits")

    @server.tool()
    async def waits() -> str:
        await asyncio.Event().wait()
        return ""

    return server, tasks


async def task_status() -> str:
    return "the server's own"


async def test_a_tool_of_the_same_name_is_refused_at_start_unless_ours_is_called_otherwise() -> None:
    server, tasks = small()
    server.add_tool(task_status)
    with pytest.raises(UsageError, match=r"has a tool 'task_status'.*companion_prefix"):
        async with tasks.running(server):
            pass
    for options in ({"companion_prefix": "farm_"}, {"companions": "never"}, {"fallback": INLINE}):
        server, _ = small(**options)
        server.add_tool(task_status)
        async with chat(server, MODERN) as client:
            assert text(await client.call_tool("task_status", {})) == "the server's own"
    # One that came later is not listed twice, and the log says so once.
    server, _ = small()
    async with chat(server, MODERN, cache=None) as client:
        assert text(await client.call_tool("task_answer", {"task_id": "a"})) == "Unknown tool: task_answer"
        server.add_tool(task_status)
        for _ in range(2):
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert sorted(names) == ["task_cancel", "task_status", "waits"]


@pytest.mark.parametrize(("shown", "warns"), [("never", True), ("auto", False)])
async def test_a_model_that_may_answer_and_has_nothing_to_answer_with_is_warned_of_once(
    shown: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server, tasks = small(companions=shown)
    tasks.mark("waits", fallback=MAY_ANSWER)
    for _ in range(2):
        async with chat(server, MODERN):
            pass
    said = [record.getMessage() for record in caplog.records if "model_may_answer" in record.getMessage()]
    assert len(said) == int(warns)
    assert all('companions="never"' in each for each in said)


# --- what `tools/list` shows ----------------------------------------------------------------------------------------

COMPANIONS = ["task_status", "task_cancel"]


def is_wider(tool: Any) -> bool:
    """Whether the schema of the tool allows a handle."""
    schema: Any = tool.output_schema or {}
    return len(schema.get("anyOf", [])) == 2 and "taskId" in schema["anyOf"][1]["properties"]


async def listed(mode: str, *, name: str = "chat", **options: Any) -> tuple[list[str], bool]:
    """The names of the companions that a client sees, and whether the schema of the tool allows a handle."""
    server, _ = small(**options)
    async with chat(server, mode, name=name) as client:
        own, *companions = (await client.list_tools()).tools
    assert not any(map(is_wider, companions))
    return [tool.name for tool in companions], is_wider(own)


SHOWN: list[tuple[dict[str, Any], Any, Any]] = [
    ({}, (COMPANIONS, True), (COMPANIONS, True)),
    # A host that asks for tasks needs none where it can, and without declaring tasks gets none elsewhere.
    ({"name": "asker", "hosts": ASKER}, (COMPANIONS, True), ([], True)),
    ({"name": "asker", "hosts": {"asker": Host(stdio=ASKER["asker"])}}, (COMPANIONS, True), ([], True)),
    ({"name": "asker", "hosts": ASKER, "companions": "always"}, (COMPANIONS, True), (COMPANIONS, True)),
    ({"companions": "never"}, ([], True), ([], True)),
    ({"fallback": INLINE}, ([], False), ([], False)),
    ({"fallback": INLINE, "companions": "always"}, (COMPANIONS, False), (COMPANIONS, False)),
    ({"fallback": replace(WAYS, older=False)}, (COMPANIONS, True), ([], False)),
    ({"fallback": replace(WAYS, modern=False)}, ([], False), (COMPANIONS, True)),
    # The schemas allow it: the server may have to stop before the end.
    ({"fallback": replace(WAYS, handle=False)}, ([], True), ([], True)),
    ({"fallback": MAY_ANSWER}, ([*COMPANIONS, "task_answer"], True), ([*COMPANIONS, "task_answer"], True)),
]


@pytest.mark.parametrize(("options", "modern", "older"), SHOWN)
async def test_companions_and_wider_schemas_are_shown_to_those_who_may_need_them(
    options: dict[str, Any], modern: Any, older: Any
) -> None:
    assert await listed(MODERN, **options) == modern
    assert await listed("legacy", **options) == older


async def test_a_host_that_asks_for_tasks_has_companions_in_versions_without_any_and_is_told_of_no_others() -> None:
    server, _ = small(hosts={"raw": Host(asks_for_tasks=True, limit=timedelta(seconds=0.2))})
    async with serving(server) as wire:
        for version, companions in (("2025-11-25", []), ("2025-06-18", COMPANIONS)):
            session, _ = await initialize(wire, {}, version)
            tools = (await session.ask("tools/list")).result["tools"]
            assert [tool["name"] for tool in tools[1:]] == companions
            told = (await session.ask("tools/call", {"name": "waits", "arguments": {}})).result
            assert handle(told)
            assert ("task_status" in rpc.text_of(told)) is bool(companions)


async def test_a_client_that_declares_tasks_is_listed_what_it_always_was() -> None:
    async def answered(capabilities: Mapping[str, Any], **options: Any) -> str:
        server, _ = small(**options)
        async with serving(server) as wire:
            return json.dumps((await wire.send(request("tools/list", capabilities=capabilities))).result)

    for capabilities in (TASKS, EVERYTHING):
        assert await answered(capabilities) == await answered(capabilities, fallback="inline", companions="never")
    assert '"task_status"' in await answered(TASKS, companions="always")
    # Listings are compared by clients: equal ones must be equal.
    assert await answered(NOTHING) == await answered(NOTHING, fallback=replace(WAYS, wait=timedelta(seconds=9)))


@pytest.mark.parametrize(
    ("ways", "scope"), [(WAYS, "private"), (INLINE, "public"), (replace(WAYS, modern=False), "public")]
)
async def test_a_listing_that_varies_is_private_to_those_it_was_made_for(ways: Fallback, scope: str) -> None:
    tasks = Tasks("memory://", settings=QUICK, fallback=ways)
    hints: Any = {"tools/list": CacheHint(ttl_ms=60_000, scope="public")}
    server = MCPServer("cached", **tasks.wiring(), log_level="CRITICAL", cache_hints=hints)
    server.add_tool(task_status, name="own")
    tasks.mark("own")
    async with serving(server) as wire:
        for capabilities in (NOTHING, TASKS):
            result = (await wire.send(request("tools/list", capabilities=capabilities))).result
            assert (result["cacheScope"], result["ttlMs"]) == (scope, 60_000)


# --- low-level servers, and tools that are not known when the server starts -------------------------------------------


def lowlevel(gate: asyncio.Event, *tools: str, **options: Any) -> Server[Any]:
    """A low-level server that lists a tool a page; `long` may become a task."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        page = int((params and params.cursor) or 0)
        shown = [Tool(name=name, input_schema={"type": "object"}, output_schema=schema) for name in tools][page:][:1]
        return ListToolsResult(tools=shown, next_cursor=str(page + 1) if page + 1 < len(tools) else None)

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        await gate.wait()
        return CallToolResult(content=[TextContent(type="text", text="done")], structured_content={})

    tasks = Tasks("memory://", settings=QUICK, fallback=WAYS, **options)
    server: Server[Any] = Server("paged", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    if not options:
        tasks.mark("long")
    tasks.attach(server)
    return server


@either_mode
@pytest.mark.parametrize("options", [{}, {"default_mode": "optional"}])
@pytest.mark.parametrize("tools", [(), ("long", "short")], ids=["lists none", "a page each"])
async def test_a_low_level_server_has_companions_on_the_last_page_whatever_it_lists(
    mode: str, options: dict[str, Any], tools: tuple[str, ...]
) -> None:
    gate = asyncio.Event()
    async with chat(lowlevel(gate, *tools, **options), mode) as client:
        task_id = handle(await client.call_tool("long", {}))
        gate.set()
        assert text(await client.call_tool("task_status", {"task_id": task_id})) == "done"
        names: list[list[str]] = []
        cursor: str | None = None
        while not names or cursor is not None:
            page = await client.list_tools(cursor=cursor)
            names.append([tool.name for tool in page.tools])
            cursor = page.next_cursor
            assert [is_wider(tool) for tool in page.tools if tool.name == "long"] in ([], [True])
    assert names == ([["long"], ["short", *COMPANIONS]] if tools else [COMPANIONS])


async def test_a_tool_that_is_marked_while_the_server_runs_has_companions_at_once() -> None:
    server, tasks = small(fallback=INLINE)
    async with chat(server, MODERN, cache=None) as client:
        tasks.mark("waits", fallback=WAYS)
        # Whatever is called first: nothing has looked at the tools since.
        task_id = handle(await client.call_tool("waits", {}))
        handle(await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": 0}))
        assert [tool.name for tool in (await client.list_tools()).tools] == ["waits", *COMPANIONS]


def agrees(params: CallToolRequestParams) -> bool:
    return True


async def test_tools_that_all_become_tasks_are_answered_so_without_a_mark() -> None:
    served = served_with(augment=agrees)
    async with chat(served.server, "legacy") as client:
        # With the schemas, by which it would refuse a handle that does not fit.
        await client.list_tools()
        task_id = await begun(client, tool="unmarked")
        served.jobs.open("job")
        assert facts(await client.call_tool("task_status", {"task_id": task_id})) == {"result": "job is done"}

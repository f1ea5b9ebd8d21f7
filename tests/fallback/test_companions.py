"""The companion tools, called by clients of the SDK that speak no tasks, on the newest wire and an older one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequestParams, ElicitResult

from harness.forking import piped
from harness.http import serving
from harness.processes import ENVIRONMENT, ROOT
from harness.waiting import eventually
from mcp_tasks.errors import InvalidOption, UsageError
from mcp_tasks.fallback.companions import (
    MOST_TASKS,
    PAGE_SIZE,
    STDIO_SESSION,
    BadArguments,
    Given,
    Mine,
    answer_for_person,
    key_of,
    my_tasks,
    names_with,
)
from mcp_tasks.fallback.options import Fallback
from mcp_tasks.model import InputRequest, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.record import NOBODY, InputBook
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import InSession, OwnedBy, Page
from tests.fallback.rendering import MODERN, MODES, SOON, Farm, Publish, chat, facts_of, handle_of, text_of
from tests.unit.tooling import call_of, new_server, outcome_of, running_tools, until_status

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

either_mode = pytest.mark.parametrize("mode", MODES)
WAYS = Fallback(wait=SOON, legs=1)
MAY_ANSWER = replace(WAYS, model_may_answer=True)
MORE = {"task_answer": {"action": "accept"}}
"""What a tool needs besides an id."""


@either_mode
async def test_the_result_itself_comes_back_as_often_as_it_is_asked_for(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client)
        farm.gate.set()
        for _ in range(3):
            result = await client.call_tool("task_status", {"task_id": task_id})
            assert (text_of(result), result.structured_content) == ("a rendered", {"result": "a rendered"})
            assert result.is_error is False
    assert farm.started == ["render"]


@either_mode
async def test_a_tools_own_error_comes_back_as_one(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client, "fails")
        farm.gate.set()
        result = await client.call_tool("task_status", {"task_id": task_id})
    assert result.is_error
    assert text_of(result) == "Error executing tool fails: No film"


@either_mode
async def test_it_waits_for_the_tool_to_finish(mode: str) -> None:
    farm = Farm(ways=replace(WAYS, wait=timedelta(seconds=20)))
    async with chat(farm.server, mode) as client:
        task_id = (await farm.tasks.start("render", {"scene": "a"})).id
        # Far sooner than it would give up, and long after it has looked for the first time.
        asyncio.get_running_loop().call_later(0.3, farm.gate.set)
        result = await client.call_tool("task_status", {"task_id": task_id})
    assert text_of(result) == "a rendered"


@either_mode
@pytest.mark.parametrize("seconds", [0, -5, "0", 0.01])
async def test_it_waits_no_longer_than_it_is_told_to(mode: str, seconds: Any) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client)
        with anyio.fail_after(10):
            result = await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": seconds})
    assert text_of(result).startswith('The tool "render" is still running.')
    assert facts_of(result)["taskId"] == task_id


@either_mode
@pytest.mark.parametrize("seconds", [10**400, 1e308, " 7 ", None, float("inf")])
async def test_a_time_that_is_too_long_is_none_of_a_models_problems(mode: str, seconds: Any) -> None:
    farm = Farm()
    farm.gate.set()
    async with chat(farm.server, mode) as client:
        task_id = (await farm.tasks.start("render", {"scene": "a"})).id
        result = await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": seconds})
    assert text_of(result) == "a rendered"


@either_mode
@pytest.mark.parametrize("seconds", ["soon", "", "nan", True, [], {"seconds": 5}])
async def test_a_time_that_is_no_number_is_a_tool_error(mode: str, seconds: Any) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client)
        result = await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": seconds})
    assert result.is_error
    assert text_of(result).startswith("The wait_seconds must be a number, and is ")


@pytest.mark.parametrize(("given", "taken"), [(-(10**400), 0), (-1, 0), (10**400, 300), (301, 300), (12.5, 12.5)])
def test_a_time_out_of_range_is_the_nearest_that_is_not(given: float, taken: float) -> None:
    assert Given({"wait_seconds": given}).seconds() == taken


@either_mode
@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("task_status", {"id": "a"}, 'no argument "id". It takes "task_id", "wait_seconds". The id of the task goes'),
        ("task_cancel", {"id": "a"}, 'no argument "id". It takes "task_id". The id of the task goes into "task_id".'),
        ("task_answer", {"answer": True}, 'no argument "answer". It takes "task_id", "action", "content", "question".'),
    ],
)
async def test_an_argument_that_there_is_not_is_a_tool_error_that_names_those_that_there_are(
    mode: str, tool: str, arguments: dict[str, Any], said: str
) -> None:
    farm = Farm(ways=MAY_ANSWER)
    async with chat(farm.server, mode) as client:
        await handle_of(client)
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert said in text_of(result)


async def test_what_a_host_adds_for_itself_is_not_a_models_mistake() -> None:
    farm = Farm()
    async with chat(farm.server, MODERN) as client:
        task_id = await handle_of(client)
        farm.gate.set()
        result = await client.call_tool("task_status", {"task_id": task_id, "__tool_use_purpose": "to see"})
    assert text_of(result) == "a rendered"


@either_mode
async def test_an_id_is_taken_in_the_spelling_of_the_handle_and_with_marks_around_it(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client)
        farm.gate.set()
        assert text_of(await client.call_tool("task_status", {"taskId": f" `{task_id}`\n"})) == "a rendered"


@either_mode
@pytest.mark.parametrize("tool", ["task_status", "task_cancel", "task_answer"])
@pytest.mark.parametrize("task_id", ["task_nope", "x" * 100_000, "../../etc/passwd", "\x00"])
async def test_an_unknown_id_is_a_tool_error_that_says_what_to_do(mode: str, tool: str, task_id: str) -> None:
    farm = Farm(ways=MAY_ANSWER)
    async with chat(farm.server, mode) as client:
        result = await client.call_tool(tool, {"task_id": task_id, **MORE.get(tool, {})})
    text = text_of(result)
    assert result.is_error
    assert text.startswith('There is no task "')
    assert 'call the tool "task_status" without a task_id' in text
    assert len(text) < 1_000


async def test_half_a_character_in_an_id_is_told_of_in_words_that_every_parser_reads() -> None:
    farm = Farm()
    async with chat(farm.server, "legacy") as client:
        text = text_of(await client.call_tool("task_status", {"task_id": "\ud83d"}))
    assert text.startswith('There is no task "\ufffd"')


@either_mode
@pytest.mark.parametrize("tool", ["task_status", "task_cancel", "task_answer"])
@pytest.mark.parametrize("task_id", [7, ["a"], {"a": 1}, True])
async def test_an_id_that_is_no_text_is_a_tool_error(mode: str, tool: str, task_id: Any) -> None:
    farm = Farm(ways=MAY_ANSWER)
    async with chat(farm.server, mode) as client:
        result = await client.call_tool(tool, {"task_id": task_id, **MORE.get(tool, {})})
    assert result.is_error
    assert text_of(result).startswith("The task_id must be a string")


@either_mode
async def test_a_task_that_has_expired_looks_like_one_that_never_was(mode: str) -> None:
    farm = Farm(options={"default_ttl": timedelta(milliseconds=1)})
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client)
        await client.call_tool("task_cancel", {"task_id": task_id})
        nobodys = await client.call_tool("task_status", {"task_id": "task_x"})
        assert nobodys.is_error

        async def is_gone() -> bool:
            told = await client.call_tool("task_status", {"task_id": task_id})
            return told.is_error is True and text_of(told).replace(task_id, "task_x") == text_of(nobodys)

        await eventually(is_gone)


@either_mode
async def test_somebody_elses_task_looks_like_one_that_never_was(mode: str) -> None:
    def owner(caller: Caller) -> str | None:
        return str((caller.client_info or {}).get("name"))

    farm = Farm(options={"principal": owner}, ways=MAY_ANSWER)
    async with chat(farm.server, mode, name="ada") as ada, chat(farm.server, mode, name="bob") as bob:
        task_id = await handle_of(ada)
        for tool in ("task_status", "task_cancel", "task_answer"):
            theirs = text_of(await bob.call_tool(tool, {"task_id": task_id, **MORE.get(tool, {})}))
            nobodys = text_of(await bob.call_tool(tool, {"task_id": "task_x", **MORE.get(tool, {})}))
            assert theirs.replace(task_id, "task_x") == nobodys
        assert "You have no tasks here" in text_of(await bob.call_tool("task_status", {}))
        listed = await ada.call_tool("task_status", {})
        assert [task["taskId"] for task in facts_of(listed)["tasks"]] == [task_id]
        farm.gate.set()
        assert text_of(await ada.call_tool("task_status", {"task_id": task_id})) == "a rendered"


# Mine


@either_mode
async def test_over_a_pipe_the_callers_tasks_are_listed_without_an_id(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        first, second = [await handle_of(client, scene=scene) for scene in "ab"]
        await client.call_tool("task_cancel", {"task_id": second})
        third = await handle_of(client, scene="c")
        listed = await client.call_tool("task_status", {})
        # Another connection of the same pipe, as after a restart of the host.
        async with chat(farm.server, mode) as again:
            assert text_of(await again.call_tool("task_status", {"task_id": ""})) == text_of(listed)
    tasks = facts_of(listed)["tasks"]
    assert [(task["taskId"], task["tool"], task["status"]) for task in tasks] == [
        (third, "render", "working"),
        (first, "render", "working"),
        (second, "render", "cancelled"),
    ]
    lines = text_of(listed).splitlines()
    assert 'call the tool "task_status" with its task_id' in lines[1]
    assert [json.loads(line[2 : line.index("}") + 1])["task_id"] for line in lines[2:]] == [third, first, second]


@either_mode
async def test_a_task_that_ended_with_an_error_is_listed_as_that(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client, "fails")
        farm.gate.set()
        await client.call_tool("task_status", {"task_id": task_id})
        [task] = facts_of(await client.call_tool("task_status", {}))["tasks"]
    assert (task["status"], task["statusMessage"]) == ("completed", "Error executing tool fails: No film")


@either_mode
async def test_a_host_that_lost_the_answer_finds_its_task_after_a_restart(mode: str, tmp_path: Path) -> None:
    def process(gate: str) -> StdioServerParameters:
        program, *arguments = piped("tests.fallback.rendering", f"sqlite:///{tmp_path}/tasks.db", gate)
        return StdioServerParameters(command=program, args=arguments, cwd=ROOT, env=ENVIRONMENT)

    async with chat(process("closed"), mode) as client:
        lost = await handle_of(client)
    async with chat(process("open"), mode) as client:
        [task] = facts_of(await client.call_tool("task_status", {}))["tasks"]
        result = await client.call_tool("task_status", {"task_id": task["taskId"]})
    assert task["taskId"] == lost
    assert text_of(result) == "a rendered"


@pytest.mark.parametrize("stateless", [False, True])
@either_mode
async def test_over_http_without_a_name_an_id_is_needed(mode: str, stateless: bool) -> None:
    farm = Farm()
    async with serving(farm.server, stateless=stateless) as wire, chat(wire.url, mode) as client:
        task_id = await handle_of(client)
        without = await client.call_tool("task_status", {})
        unknown = await client.call_tool("task_status", {"task_id": "task_nope"})
        farm.gate.set()
        result = await client.call_tool("task_status", {"task_id": task_id})
    assert without.is_error
    assert text_of(without).startswith("A task_id is needed: on this connection nobody can tell which tasks are yours.")
    assert "without a task_id" not in text_of(unknown)
    assert text_of(result) == "a rendered"


async def test_the_newest_of_very_many_tasks_are_listed_unfinished_ones_first() -> None:
    async with running_tools(new_server(), runs_tools=False) as runtime:
        began = datetime(2026, 1, 1, tzinfo=UTC)
        for number in range(450):
            record = TaskRecord(
                id=f"task-{number:03}",
                owner=None,
                name="render",
                created_at=began + timedelta(seconds=number),
                updated_at=began,
                session=STDIO_SESSION,
                namespace=runtime.namespace,
                # Those of others, of prompts, and those that nobody was told of are not listed.
                method="prompts/get" if number == 449 else "tools/call",
                announced=number != 448,
            )
            await runtime.store.create(record, TaskRequest(name="render", arguments={}))
        for number in range(5, 450):
            await runtime.cancel(await runtime.find(f"task-{number:03}"), "enough", actor=NOBODY)
        found = await my_tasks(runtime, Mine(owner=None, whose=InSession(STDIO_SESSION)))
    newest = [f"task-{number:03}" for number in (4, 3, 2, 1, 0, *range(447, 432, -1))]
    assert [record.id for record in found] == newest
    assert len(newest) == MOST_TASKS


async def test_a_task_that_ends_while_tasks_are_listed_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_tools(new_server(), runs_tools=False) as runtime:
        task = await runtime.launch(call_of("tool"), owner=None, retention=None, session=STDIO_SESSION)
        look = runtime.list

        async def look_and_cancel(*whose: Any, **options: Any) -> Any:
            page = await look(*whose, **options)
            if options["status"] is TaskStatus.WORKING:
                await runtime.cancel(task, "enough", actor=NOBODY)
            return page

        monkeypatch.setattr(runtime, "list", look_and_cancel)
        found = await my_tasks(runtime, Mine(owner=None, whose=InSession(STDIO_SESSION)))
    assert [(record.id, record.status) for record in found] == [(task.id, TaskStatus.CANCELLED)]


class CountedStore(MemoryStore):
    """Counts the tasks that its listings give."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0

    async def list(self, *args: Any, **options: Any) -> Page:
        page = await super().list(*args, **options)
        self.listed += len(page.records)
        return page


async def test_no_more_than_a_page_is_read_for_each_status_however_many_tasks_there_are() -> None:
    store = CountedStore()
    async with running_tools(new_server(), store=store, runs_tools=False) as runtime:
        began = datetime(2026, 1, 1, tzinfo=UTC)
        for number in range(3_000):
            record = TaskRecord(
                id=f"task-{number:04}",
                owner="ann",
                name="render",
                created_at=began + timedelta(seconds=number),
                updated_at=began,
                namespace=runtime.namespace,
                method="tools/call",
                status=TaskStatus.WORKING if number < 2_000 else TaskStatus.COMPLETED,
            )
            await store.create(record, TaskRequest(name="render", arguments={}))
        store.listed = 0
        found = await my_tasks(runtime, Mine(owner="ann", whose=OwnedBy("ann")))
    assert [record.id for record in found] == [f"task-{number:04}" for number in range(1_999, 1_999 - MOST_TASKS, -1)]
    assert store.listed <= PAGE_SIZE * len(TaskStatus)


# Cancelling


@either_mode
async def test_a_cancelled_tool_has_stopped_and_says_so_ever_after(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client)
        cancelled = await client.call_tool("task_cancel", {"task_id": task_id})
        again = await client.call_tool("task_cancel", {"task_id": task_id})
        status = await client.call_tool("task_status", {"task_id": task_id})
    assert text_of(cancelled).startswith('The tool "render" is cancelled, and has no result. What it had done')
    assert facts_of(cancelled)["status"] == "cancelled"
    assert text_of(again).startswith('The tool "render" had already been cancelled')
    assert [cancelled.is_error, again.is_error] == [False, False]
    assert status.is_error
    assert text_of(status).startswith('The tool "render" was cancelled, and has no result. Cancelled with task_cancel.')


@either_mode
async def test_a_finished_tool_stays_as_it_is_and_that_is_said(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client)
        farm.gate.set()
        await client.call_tool("task_status", {"task_id": task_id})
        late = await client.call_tool("task_cancel", {"task_id": task_id})
        result = await client.call_tool("task_status", {"task_id": task_id})
    assert text_of(late).startswith('The tool "render" had already ended, and stays as it is.')
    assert facts_of(late)["status"] == "completed"
    assert text_of(result) == "a rendered"


@either_mode
async def test_nothing_is_cancelled_without_an_id(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        await handle_of(client)
        result = await client.call_tool("task_cancel", {})
        listed = await client.call_tool("task_status", {})
    assert result.is_error
    assert text_of(result).startswith("A task_id is needed")
    assert "cancelled" not in text_of(listed)


# Asking


@either_mode
@pytest.mark.parametrize("ways", [WAYS, MAY_ANSWER])
async def test_who_waits_for_a_tool_that_asks_has_its_person_asked(mode: str, ways: Fallback) -> None:
    asked: list[str] = []

    async def person(ctx: Any, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"ok": True, "note": "a person's"})

    farm = Farm(ways=ways)
    async with chat(farm.server, mode, elicitation_callback=person) as client:
        task_id = (await farm.tasks.start("publish")).id
        result = await client.call_tool("task_status", {"task_id": task_id})
    assert text_of(result) == 'accept ok=True note="a person\'s"'
    assert asked == ["Publish?"]
    assert farm.started == ["publish"]


# Answering


@either_mode
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": "accept", "content": {"ok": True, "note": "now"}}, "accept ok=True note='now'"),
        ({"action": "accept", "content": '{"ok": true}'}, "accept ok=True note=''"),
        ({"action": "decline"}, "decline None"),
        ({"action": "decline", "content": {"ok": 7}}, "decline None"),
        ({"action": "cancel"}, "cancel None"),
    ],
)
async def test_a_model_answers_for_a_person_where_the_author_allows_it(
    mode: str, arguments: dict[str, Any], said: str
) -> None:
    farm = Farm(ways=MAY_ANSWER)
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client, "publish")
        answered = await client.call_tool("task_answer", {"task_id": task_id, **arguments})
        result = await client.call_tool("task_status", {"task_id": task_id})
        late = await client.call_tool("task_answer", {"task_id": task_id, **arguments})
    assert text_of(answered).startswith('The answer was given to the tool "publish", which goes on.')
    assert text_of(result) == said
    assert late.is_error
    asks_nothing = (
        'The tool "publish" asks nothing now. To get the result, call the tool "task_status" with {"task_id":'
    )
    assert text_of(late).startswith(asks_nothing)
    assert farm.started == ["publish"]


@either_mode
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": "accept", "content": {"ok": "perhaps"}}, "'perhaps' is not of type 'boolean'"),
        ({"action": "accept"}, "'ok' is a required property"),
        ({"action": "accept", "content": ["ok"]}, "The content must be an object"),
        ({"action": "accept", "content": "yes"}, "The content must be an object"),
        ({"action": "accept", "content": {"ok": True, "note": {"deep": 1}}}, "does not fit"),
        ({"action": "agree"}, 'The action must be "accept", "decline" or "cancel", and is "agree".'),
        ({"action": ["accept"]}, 'The action must be "accept", "decline" or "cancel"'),
        ({}, 'The action must be "accept", "decline" or "cancel", and is null.'),
        (
            {"action": "decline", "question": "another"},
            'There is no such question. The tool asks one thing: "Publish?" To answer that, leave the question out.',
        ),
        ({"action": "decline", "question": 7}, "The question must be named by a string"),
    ],
)
async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(
    mode: str, arguments: dict[str, Any], said: str
) -> None:
    farm = Farm(ways=MAY_ANSWER)
    async with chat(farm.server, mode) as client:
        task_id = await handle_of(client, "publish")
        refused = await client.call_tool("task_answer", {"task_id": task_id, **arguments})
        answer = {"action": "accept", "content": {"ok": True}, "question": "elicitation-1"}
        taken = await client.call_tool("task_answer", {"task_id": task_id, **answer})
    assert refused.is_error
    assert said in text_of(refused)
    assert "This call changed nothing." in text_of(refused)
    assert not taken.is_error


async def test_an_answer_that_comes_second_changes_nothing() -> None:
    server = new_server()

    @server.tool()
    async def publish(ctx: Context) -> str:
        return str(await ctx.elicit("Publish?", Publish))

    del publish
    names = names_with("", may_answer=True)
    async with running_tools(server) as runtime:
        created = await runtime.launch(call_of("publish"), owner=None, retention=None)
        before = await until_status(runtime, created.id, TaskStatus.INPUT_REQUIRED)
        [key] = before.inputs.outstanding
        await runtime.answer(before, {key: {"action": "accept", "content": {"ok": True}}}, actor=NOBODY)
        # As another call saw the task a moment ago.
        with pytest.raises(BadArguments, match="answered or withdrawn meanwhile"):
            await answer_for_person(runtime, before, {"action": "decline"}, None, names)
        await until_status(runtime, created.id, TaskStatus.COMPLETED)
        assert "accept" in str(await outcome_of(runtime, created.id))


@pytest.mark.parametrize(
    ("question", "named", "key"),
    [(None, 2, None), ("b", 2, "b"), ("c", 2, None), (None, 1, "a"), ("url", 1, None), (None, 0, None)],
)
def test_which_question_is_answered(question: str | None, named: int, key: str | None) -> None:
    form = InputRequest(method="elicitation/create", params={"message": "Publish?"})
    url = InputRequest(method="elicitation/create", params={"mode": "url", "message": "Log in", "url": "https://a"})
    now = datetime.now(UTC)
    asks = {**dict.fromkeys("ab"[:named], form), "url": url}
    record = TaskRecord(
        id="task", owner=None, name="tool", created_at=now, updated_at=now, inputs=InputBook().ask(asks)
    )
    names = names_with("", may_answer=True)
    if key is not None:
        assert key_of(record, question, names) == key
        return
    with pytest.raises(BadArguments) as caught:
        key_of(record, question, names)
    said = {
        0: "asks nothing now",
        1: "There is no such question",
        2: 'which of these is answered: "a" ("Publish?"), "b"',
    }
    assert said[named] in str(caught.value)
    # A key says nothing to a model that need not choose.
    assert ('"a"' in str(caught.value)) == (named == 2)


@either_mode
async def test_what_a_tool_asks_whose_author_does_not_allow_it_is_not_for_a_model(mode: str) -> None:
    farm = Farm(ways=WAYS)
    farm.tasks.mark("render", fallback=MAY_ANSWER)
    async with chat(farm.server, mode) as client:
        task_id = (await farm.tasks.start("publish")).id

        async def says_that_it_asks() -> bool:
            told = await client.call_tool("task_status", {"task_id": task_id, "wait_seconds": 0})
            return "you cannot answer it" in text_of(told)

        await eventually(says_that_it_asks)
        refused = await client.call_tool("task_answer", {"task_id": task_id, "action": "decline"})
    assert refused.is_error
    assert text_of(refused).startswith('What the tool "publish" asks is for the user alone')


@either_mode
async def test_there_is_no_task_answer_where_no_author_allows_it(mode: str) -> None:
    farm = Farm()
    async with chat(farm.server, mode) as client:
        result = await client.call_tool("task_answer", {"task_id": "a", "action": "decline"})
    assert (result.is_error, text_of(result)) == (True, "Unknown tool: task_answer")


# Names


@either_mode
async def test_the_names_have_the_prefix_of_the_author(mode: str) -> None:
    farm = Farm(options={"companion_prefix": "farm_"})
    async with chat(farm.server, mode) as client:
        result = await client.call_tool("render", {"scene": "a"})
        assert 'call the tool "farm_task_status" with' in text_of(result)
        task_id = facts_of(result)["taskId"]
        farm.gate.set()
        assert text_of(await client.call_tool("farm_task_status", {"task_id": task_id})) == "a rendered"
        assert text_of(await client.call_tool("task_status", {"task_id": task_id})) == "Unknown tool: task_status"


@pytest.mark.parametrize("prefix", ["a b", "é", "a/", "x" * 65, 7, None])
def test_a_prefix_that_cannot_begin_a_name_is_refused(prefix: Any) -> None:
    with pytest.raises(InvalidOption, match="companion_prefix must be"):
        Farm(options={"companion_prefix": prefix})


async def test_a_tool_of_the_same_name_is_refused_at_start_unless_ours_is_called_otherwise() -> None:
    def with_own(**options: Any) -> Farm:
        farm = Farm(options=options)

        @farm.server.tool()
        async def task_status() -> str:
            return "the server's own"

        del task_status
        return farm

    with pytest.raises(UsageError, match=r"has a tool 'task_status'.*companion_prefix"):
        async with with_own().tasks.running(with_own().server):
            pass
    for options in ({"companion_prefix": "farm_"}, {"companions": "never"}):
        farm = with_own(**options)
        async with chat(farm.server, MODERN) as client:
            assert text_of(await client.call_tool("task_status", {})) == "the server's own"


async def test_a_server_whose_tools_are_all_plain_may_have_tools_of_these_names() -> None:
    farm = Farm(ways=replace(WAYS, modern=False, older=False))

    @farm.server.tool()
    async def task_status() -> str:
        return "the server's own"

    del task_status
    async with chat(farm.server, MODERN) as client:
        assert text_of(await client.call_tool("task_status", {})) == "the server's own"


@pytest.mark.parametrize(("shown", "warns"), [("never", True), ("auto", False)])
async def test_a_model_that_may_answer_and_has_nothing_to_answer_with_is_warned_of_once(
    shown: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    farm = Farm(options={"companions": shown})
    farm.tasks.mark("publish", fallback=MAY_ANSWER)
    for _ in range(2):
        async with chat(farm.server, MODERN):
            pass
    said = [record.getMessage() for record in caplog.records if "model_may_answer" in record.getMessage()]
    assert len(said) == int(warns)
    assert all('companions="never"' in text for text in said)

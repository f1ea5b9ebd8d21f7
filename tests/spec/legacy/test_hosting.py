"""Our client as the receiver of tasks, over real HTTP: a server asks for an elicitation as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, ErrorData

from harness.older import FINAL, RELATED
from harness.rpc import INVALID_PARAMS, PATIENCE
from mcp_tasks.client import Hosting, TasksClient, reconnecting_http
from tests.client.connecting import Person
from tests.spec.legacy.scripted import FORM, Scripted, serving_script

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "client-tasks.md"
ELICIT: dict[str, Any] = {"mode": "form", "message": "Name?", "requestedSchema": FORM}


@asynccontextmanager
async def _hosting(person: Any) -> AsyncGenerator[Scripted]:
    """A server whose client hosts tasks."""
    script, tasks = Scripted(), TasksClient(hosting=Hosting())
    async with (
        serving_script(script) as url,
        Client(
            tasks.host(reconnecting_http(url)), mode="legacy", elicitation_callback=person, extensions=[tasks]
        ) as client,
    ):
        # The session's own stream is open once something came over it.
        await client.list_tools()
        yield script


async def _create(script: Scripted, **params: Any) -> str:
    created = (await script.ask("elicitation/create", {**ELICIT, "task": {"ttl": 60_000}, **params})).result["task"]
    assert created["status"] == "working"
    return created["taskId"]


async def _until_final(script: Scripted, task_id: str) -> dict[str, Any]:
    with anyio.fail_after(PATIENCE):
        while True:
            task = (await script.ask("tasks/get", {"taskId": task_id})).result
            if task["status"] in FINAL:
                return task
            await anyio.sleep(0.005)


@pytest.mark.requirement("hosted/declares")
async def test_the_handshake_declares_what_the_client_hosts() -> None:
    async with _hosting(Person()) as script:
        [hello] = script.asked("initialize")
    declared = hello["capabilities"]["tasks"]
    assert declared == {"list": {}, "cancel": {}, "requests": {"elicitation": {"create": {}}}}


@pytest.mark.requirement("hosted/result", "hosted/result-blocks", "hosted/result-related-task")
async def test_the_result_is_what_the_plain_request_gives_and_names_its_task() -> None:
    ready = asyncio.Event()
    async with _hosting(Person(ready=ready)) as script:
        task_id = await _create(script)
        waiting = asyncio.create_task(script.ask("tasks/result", {"taskId": task_id}))
        assert (await script.ask("tasks/get", {"taskId": task_id})).result["status"] == "working"
        assert not waiting.done()
        ready.set()
        result = (await waiting).result
        plain = (await script.ask("elicitation/create", ELICIT)).result
    assert result.pop("_meta") == {RELATED: {"taskId": task_id}}
    plain.pop("_meta", None)
    assert result == plain


@pytest.mark.requirement("hosted/result-error", "hosted/failed-message")
async def test_the_error_is_what_the_plain_request_gives() -> None:
    async def refuse(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        return ErrorData(code=-7, message="nobody is at home", data={"until": "noon"})

    async with _hosting(refuse) as script:
        plain = (await script.ask("elicitation/create", ELICIT)).error
        task_id = await _create(script)
        task = await _until_final(script, task_id)
        error = (await script.ask("tasks/result", {"taskId": task_id})).error
    assert (task["status"], "nobody is at home" in task["statusMessage"]) == ("failed", True)
    assert error["data"].pop("_meta") == {RELATED: {"taskId": task_id}}
    assert error == plain


@pytest.mark.requirement("hosted/cancel", "hosted/cancel-stops", "hosted/cancel-finished")
async def test_a_cancelled_task_takes_its_question_back() -> None:
    person = Person(ready=asyncio.Event())
    async with _hosting(person) as script:
        task_id = await _create(script)
        await person.until_asked()
        cancelled = (await script.ask("tasks/cancel", {"taskId": task_id})).result
        assert cancelled["status"] == "cancelled"
        assert "error" in (await script.ask("tasks/result", {"taskId": task_id})).message
        again = await script.ask("tasks/cancel", {"taskId": task_id})
        assert (again.code, "cancelled" in again.error["message"]) == (INVALID_PARAMS, True)
        with anyio.fail_after(PATIENCE):
            while not person.left_alone:  # noqa: ASYNC110
                await anyio.sleep(0.005)


@pytest.mark.requirement("hosted/no-related-task")
async def test_the_task_id_counts_and_not_what_the_meta_says() -> None:
    async with _hosting(Person(ready=asyncio.Event())) as script:
        wanted, other = await _create(script), await _create(script)
        params = {"taskId": wanted, "_meta": {RELATED: {"taskId": other}}}
        assert (await script.ask("tasks/get", params)).result["taskId"] == wanted
        assert (await script.ask("tasks/cancel", params)).result["taskId"] == wanted
        assert (await script.ask("tasks/get", {"taskId": other})).result["status"] == "working"


@pytest.mark.requirement("hosted/informative", "hosted/unknown-id")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_an_unknown_task_is_refused_in_words(method: str) -> None:
    async with _hosting(Person()) as script:
        reply = await script.ask(method, {"taskId": "nope"})
    assert reply.code == INVALID_PARAMS
    assert "task" in reply.error["message"].lower()


@pytest.mark.requirement("hosted/audit-log")
async def test_the_end_of_a_hosted_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mcp_tasks"):
        async with _hosting(Person()) as script:
            task_id = await _create(script)
            await _until_final(script, task_id)
    assert any(task_id[:8] in line and "completed" in line for line in caplog.messages)
    assert not any(task_id in line for line in caplog.messages)


@pytest.mark.requirement("hosted/documented-limits")
def test_the_limits_of_a_host_are_documented_as_they_are() -> None:
    page, limits = PAGE.read_text(encoding="utf-8"), Hosting()
    assert "| `max_ttl` | 1 day |" in page
    assert limits.max_ttl.total_seconds() == 86_400
    for name in ("max_running", "max_tasks", "max_total"):
        assert f"| `{name}` | {getattr(limits, name)} |" in page

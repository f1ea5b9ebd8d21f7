"""2025-11-25: our client as the receiver of tasks over real HTTP; and what is documented and logged of either side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, ErrorData

from harness.http import serving
from harness.older import FINAL, RELATED, http_session
from harness.rpc import INVALID_PARAMS
from harness.server import QUICK
from harness.waiting import eventually
from mcp_tasks import Limits, Tasks
from mcp_tasks.client import Hosting, TasksClient, reconnecting_http
from mcp_tasks.model.machine import TaskCreated
from mcp_tasks.runtime import TaskChange
from tests.client.connecting import Person
from tests.spec.furnished import furnished
from tests.spec.scripted import FORM, Scripted, serving_script

pytestmark = pytest.mark.anyio

DOCS = Path(__file__).parents[2] / "docs"
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
    async def look() -> dict[str, Any] | None:
        task = (await script.ask("tasks/get", {"taskId": task_id})).result
        return task if task["status"] in FINAL else None

    return await eventually(look) or {}


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
        await eventually(lambda: person.left_alone)


@pytest.mark.requirement("hosted/no-related-task")
async def test_the_task_id_counts_and_not_what_the_meta_says() -> None:
    async with _hosting(Person(ready=asyncio.Event())) as script:
        wanted, other = await _create(script), await _create(script)
        params = {"taskId": wanted, "_meta": {RELATED: {"taskId": other}}}
        assert (await script.ask("tasks/get", params)).result["taskId"] == wanted
        assert (await script.ask("tasks/cancel", params)).result["taskId"] == wanted
        assert (await script.ask("tasks/get", {"taskId": other})).result["status"] == "working"


@pytest.mark.requirement("hosted/informative", "hosted/unknown-id")
async def test_an_unknown_task_is_refused_in_words() -> None:
    async with _hosting(Person()) as script:
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
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


# What is documented, logged and watched


@pytest.mark.requirement(
    "hosted/documented-limits", "older/documented-exposure", "older/documented-ttl", "older/documented-concurrency"
)
def test_limits_and_exposure_are_documented_as_they_are() -> None:
    host, limits = (DOCS / "client-tasks.md").read_text(encoding="utf-8"), Hosting()
    assert "| `max_ttl` | 1 day |" in host
    assert limits.max_ttl == timedelta(days=1)
    for name in ("max_running", "max_tasks", "max_total"):
        assert f"| `{name}` | {getattr(limits, name)} |" in host
    server = " ".join((DOCS / "eras.md").read_text(encoding="utf-8").split())
    assert "Without authentication, whoever has the id of a task has the task." in server
    assert "`Tasks(max_ttl=)`, or `Limits.ttl`, 30 days by default" in server
    assert Limits().ttl == timedelta(days=30)
    assert "a rate limit and a limit of tasks per requestor: both hold for callers with a name" in server


@pytest.mark.requirement("older/audit-owner", "older/monitoring", "older/audit-log")
async def test_observers_and_the_log_are_told_of_a_task_whose_id_no_line_has_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes: list[TaskChange] = []
    # Before the server starts: it asks once whether anybody reads such lines.
    with caplog.at_level(logging.INFO, logger="mcp_tasks"):
        server = furnished(Tasks("memory://", settings=QUICK, observers=[changes.append]), guarded=True)
        async with serving(server) as way, http_session(way.as_user("alice")) as alice:
            task_id = await alice.start("nothing")
            await alice.until(task_id, "completed")
            await eventually(lambda: changes and changes[-1].task.is_final)
            await eventually(lambda: any("completed after" in line for line in caplog.messages))
    assert {change.task.id for change in changes} == {task_id}
    assert all("alice" in (change.task.owner or "") for change in changes)
    assert isinstance(changes[0].event, TaskCreated)
    assert any("was created" in line for line in caplog.messages if task_id[:12] in line)
    # A log is read by more people than a task is meant for.
    assert not any(task_id in line for line in caplog.messages)

"""One trace for a task whose call, runs and answers are in different processes, as OpenTelemetry's SDK collects it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.http import HttpWire, http_client
from harness.processes import environment, python, running
from harness.rpc import EVERYTHING, Tasking, accept
from harness.serving import ServerProcess
from harness.waiting import eventually
from mcp_tasks.errors import short_id

TRACED = "tests.trust.traced"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def _named(path: Path, name: str) -> list[dict[str, Any]]:
    """The spans of that name that a process has written."""
    spans = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [span for span in spans if span["name"] == name]


@pytest.mark.slow
@pytest.mark.anyio
async def test_one_trace_has_the_call_the_runs_and_the_question(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    served, worked = tmp_path / "served.jsonl", tmp_path / "worked.jsonl"
    with ExitStack() as stack:
        server = ServerProcess(TRACED, "serve", url, served, "{fd}", fork=False, env=environment(), polite=True)
        stack.enter_context(server)
        worker = stack.enter_context(running(python(TRACED, "work", url, worked), env=environment(), polite=True))
        async with http_client() as http:
            client = Tasking(HttpWire(server.url, http), EVERYTHING)
            meta = {"traceparent": PARENT}
            created = await client.ask("tools/call", {"name": "ask", "arguments": {}}, meta=meta)
            task_id = created.result["taskId"]
            await client.until(task_id, "input_required")
            await client.update(task_id, **{"elicitation-1": accept(name="Ada")})
            await client.until(task_id, "completed")
            await eventually(lambda: _named(worked, "tasks.run") and _named(served, "tasks.question"))
            measured = json.loads((await client.call("measured"))["content"][0]["text"])
        assert worker.poll() is None, f"the worker ended by itself with {worker.returncode}"
    [call], [question] = _named(served, "tools/call ask"), _named(served, "tasks.question")
    runs, [work] = _named(worked, "tasks.run"), _named(worked, "author.work")
    assert call["trace"] == TRACE
    # In another process, and yet of the same trace, by name of the call that made the task.
    assert {(span["trace"], span["parent"]) for span in (*runs, question)} == {(TRACE, call["id"])}
    assert runs[-1]["links"] == [TRACE]
    assert runs[-1]["attributes"]["mcp_tasks.run.end"] == "completed"
    assert call["attributes"]["mcp_tasks.task"] == short_id(task_id)
    assert runs[-1]["attributes"]["mcp_tasks.task"] == short_id(task_id)
    assert (work["trace"], work["parent"]) == (TRACE, runs[-1]["id"])
    assert question["attributes"]["mcp_tasks.question.end"] == "answered"
    # Polls and the answer are in traces of their own, which lead here.
    polls, updates = _named(served, "tasks/get"), _named(served, "tasks/update")
    assert polls
    assert updates
    for span in (*polls, *updates):
        assert span["trace"] != TRACE
        assert span["links"] == [TRACE], span
        assert span["attributes"]["mcp_tasks.task"] == short_id(task_id)
    _check_metrics(measured)
    assert task_id not in served.read_text() + worked.read_text()


def _check_metrics(measured: dict[str, Any]) -> None:
    """What the serving process has counted, as OpenTelemetry exports it."""
    found = {
        metric["name"]: metric
        for resource in measured["resource_metrics"]
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
    }
    [made] = found["mcp_tasks.created"]["data"]["data_points"]
    assert (made["value"], made["attributes"]) == (1, {"server": "traced", "tool": "ask"})
    assert found["mcp_tasks.created"]["unit"] == "{task}"
    verbs = {point["attributes"]["verb"] for point in found["mcp_tasks.store"]["data"]["data_points"]}
    assert "create" in verbs
    assert found["mcp_tasks.store"]["unit"] == "s"
    assert found["mcp_tasks.reads"]["data"]["data_points"][0]["value"] >= 2

"""One trace for a task whose call, runs and answers are in different processes, as OpenTelemetry's SDK collects it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.databases import postgres
from harness.http import HttpWire, http_client
from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import EVERYTHING, PATIENCE, Tasking, accept
from mcp_tasks.errors import short_id

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@contextmanager
def _process(*arguments: str, fds: tuple[int, ...] = ()) -> Generator[None]:
    env = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.trust.traced", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=fds)
    try:
        yield
        assert process.poll() is None, f"{arguments} ended by itself with {process.returncode}"
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def _named(path: Path, name: str) -> list[dict[str, Any]]:
    """The spans of that name that a process has written."""
    spans = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [span for span in spans if span["name"] == name]


@pytest.fixture
def url() -> Generator[str]:
    with postgres() as server:
        yield server.new_database()


async def test_one_trace_has_the_call_the_runs_and_the_question(tmp_path: Path, url: str) -> None:
    served, worked = tmp_path / "served.jsonl", tmp_path / "worked.jsonl"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        number = listener.fileno()
        stack.enter_context(_process("serve", url, str(served), str(number), fds=(number,)))
        stack.enter_context(_process("work", url, str(worked)))
        async with http_client() as http:
            client = Tasking(HttpWire(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", http), EVERYTHING)
            meta = {"traceparent": PARENT}
            created = await client.ask("tools/call", {"name": "ask", "arguments": {}}, meta=meta)
            task_id = created.result["taskId"]
            await client.until(task_id, "input_required")
            await client.update(task_id, **{"elicitation-1": accept(name="Ada")})
            await client.until(task_id, "completed")
            with anyio.fail_after(PATIENCE):
                while not (_named(worked, "tasks.run") and _named(served, "tasks.question")):  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            measured = json.loads((await client.call("measured"))["content"][0]["text"])
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


async def test_a_task_that_no_call_made_is_one_trace_as_well(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    command = [sys.executable, "-m", "tests.trust.traced", "start", "memory://", str(path)]
    env = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    await anyio.run_process(command, cwd=ROOT, env=env)
    [made], runs = _named(path, "tasks.create"), _named(path, "tasks.run")
    assert made["parent"] is None
    assert runs
    assert {(run["trace"], run["parent"]) for run in runs} == {(made["trace"], made["id"])}
    assert [run["attributes"]["mcp_tasks.run.end"] for run in runs][-1] == "completed"

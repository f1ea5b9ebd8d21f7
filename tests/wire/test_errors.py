"""What a caller is told of a request that fails, and those who watch in one word."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.http import serving
from harness.rpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Tasking
from harness.server import QUICK, UNPACED, build
from mcp_tasks import Tasks
from mcp_tasks.errors import (
    AnswerRefused,
    Interrupted,
    KeyTaken,
    LimitExceeded,
    OwnerRequired,
    QuestionTimedOut,
    RanTooLong,
    ReplayMismatch,
    StoreCorrupt,
    StoreUnavailable,
    TaskExists,
    TasksError,
    TaskUnreadable,
    UnknownTask,
    UsageError,
    VersionConflict,
)
from tests.unit.running import MeddledStore

REQUEST_TIMEOUT = -32001
LIMIT_EXCEEDED = -32010
A_MINUTE = QuestionTimedOut.after(timedelta(minutes=1))
# In whole milliseconds, and never too early.
OFTEN = LimitExceeded("creates", "often", retry_after=timedelta(microseconds=1_200))
OFTEN_DATA = {"reason": "limit", "limit": "creates", "retryAfterMs": 2}
DEEP = LimitExceeded("json_depth", "deep")
UNSAID = StoreUnavailable("/alice/secret.db", may_have_happened=True)

ERRORS: list[tuple[Exception, int, Any, str, str]] = [
    (OwnerRequired("who?"), INVALID_REQUEST, {"reason": "owner_required"}, "who?", "owner_required"),
    (KeyTaken(), INVALID_PARAMS, {"reason": "key_taken"}, "key", "key: key_taken"),
    (UnknownTask("task_secret"), INVALID_PARAMS, None, "Task not found", "unknown"),
    (AnswerRefused(-32042, "not today", {"until": "noon"}), -32042, {"until": "noon"}, "not today", "answer"),
    (A_MINUTE, REQUEST_TIMEOUT, None, "60 s", "failed"),
    (DEEP, LIMIT_EXCEEDED, {"reason": "limit", "limit": "json_depth"}, "deep", "limit: json_depth"),
    (OFTEN, LIMIT_EXCEEDED, OFTEN_DATA, "often", "limit: creates"),
    (Interrupted("render"), INTERNAL_ERROR, {"reason": "interrupted"}, "'render'", "failed"),
    (RanTooLong("x", timedelta(seconds=90)), INTERNAL_ERROR, {"reason": "max_runtime"}, " 90 s", "failed"),
    (RanTooLong("x", timedelta(milliseconds=20)), INTERNAL_ERROR, {"reason": "max_runtime"}, " 0.02 s", "failed"),
    (ReplayMismatch("question 2 differs"), INTERNAL_ERROR, {"reason": "replay"}, "question 2 differs", "failed"),
    (StoreUnavailable("/alice/secret.db"), INTERNAL_ERROR, {"reason": "unavailable"}, "try again later", "failed"),
    (UNSAID, INTERNAL_ERROR, {"reason": "may_have_happened"}, "may have been carried out", "failed"),
    (StoreCorrupt("/alice/secret.db is damaged"), INTERNAL_ERROR, None, "", "failed"),
    (TaskExists("task_secret"), INTERNAL_ERROR, None, "", "failed"),
    (VersionConflict("task_secret", 7), INTERNAL_ERROR, None, "", "failed"),
    (TaskUnreadable("task_secret", "/alice/secret.db"), INTERNAL_ERROR, None, "the server's log says", "failed"),
    (UsageError("give every step a name"), INTERNAL_ERROR, None, "give every step a name", "failed"),
    (UsageError("no step \udcff"), INTERNAL_ERROR, None, "no step \ufffd", "failed"),
    (TasksError("something of ours"), INTERNAL_ERROR, None, "something of ours", "failed"),
    (RuntimeError("password=secret"), INTERNAL_ERROR, None, "Internal server error", "failed"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("short_way", [True, False], ids=["the short way", "the SDK's"])
async def test_an_error_says_why_in_words_and_for_programs_and_not_where_tasks_are_kept(
    tmp_path: Path, short_way: bool
) -> None:
    store, audit = MeddledStore(), tmp_path / "audit.jsonl"
    tasks = Tasks(store, settings=QUICK, limits=UNPACED, audit=audit, short_way=short_way)
    async with serving(build(tasks)) as wire:
        client = Tasking(wire)
        task_id = await client.create("echo", value=1)
        await client.until(task_id, "completed")
        for why, code, data, says, _ in ERRORS:
            store.refuse(why, "get", "versions")
            error = (await client.ask("tasks/get", {"taskId": task_id})).error
            assert (error["code"], error.get("data"), says in error["message"]) == (code, data, True), why
            assert not [secret for secret in ("secret", "alice") if secret in error["message"]], why
        store.before.clear()
        undeclared = await client.declaring({}).ask("tasks/get", {"taskId": task_id})
        assert (undeclared.code, (await client.ask("tasks/get", {"taskId": 7})).code) == (-32021, INVALID_PARAMS)
    written = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    reasons = {entry["reason"] for entry in written if entry["event"] == "refused"}
    assert reasons == {*(reason for *_, reason in ERRORS), "undeclared", "malformed"}

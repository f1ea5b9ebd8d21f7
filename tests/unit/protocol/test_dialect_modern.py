"""Tasks as SEP-2663 words them, where a call is answered."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from mcp_tasks.model import Outcome
from mcp_tasks.protocol.dialect import ModernDialect
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

DIALECT = ModernDialect()


def test_a_call_that_became_a_task_is_answered_with_its_seed_state() -> None:
    record = make_record()
    created = DIALECT.created(record, NOON).fields
    assert (created["resultType"], created["taskId"], created["status"]) == ("task", record.id, "working")


def test_a_plain_result_is_marked_as_complete() -> None:
    outcome = Outcome(body=b'{"content":[]}', meta=b'{"com.example/a":1}')
    assert json.loads(DIALECT.result(outcome)) == {
        "resultType": "complete",
        "content": [],
        "_meta": {"com.example/a": 1},
    }


def test_a_question_on_the_call_is_marked_as_one() -> None:
    question: dict[str, Any] = {"inputRequests": {"a": {}}, "requestState": "s"}
    assert DIALECT.question(question).fields == {"resultType": "input_required", **question}


def test_what_moves_with_the_time_is_told_as_of_then() -> None:
    record = make_record(retention=timedelta(hours=1))
    assert DIALECT.moving(record, NOON) == {
        name: DIALECT.task(record, None, NOON).fields[name] for name in ("ttlMs", "pollIntervalMs")
    }
    assert DIALECT.moving(record, NOON + timedelta(hours=5)) != DIALECT.moving(record, NOON)

"""What parsers make of what a peer may write: a value, or the one error that they are documented to raise."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from harness.thoroughness import examples
from mcp_tasks.client import Ledger
from mcp_tasks.errors import InvalidResponse, StoreError
from mcp_tasks.fallback.companions import BadArguments, Given
from mcp_tasks.legacy import hosting
from mcp_tasks.legacy import server as older
from mcp_tasks.legacy import shapes as reading
from mcp_tasks.legacy.shapes import read_task
from mcp_tasks.protocol.dialect import ModernDialect
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.shapes import decode_header, parse_created, parse_task
from mcp_tasks.server.sdk import Offer
from tests.peers.nasty import NASTY, spoilt

TASK: Mapping[str, Any] = {
    "taskId": "t",
    "status": "input_required",
    "statusMessage": "m",
    "createdAt": "2026-07-28T10:00:00Z",
    "lastUpdatedAt": "2026-07-28T10:00:00.5+01:00",
    "ttlMs": 1_000,
    "ttl": 1_000,
    "pollIntervalMs": 5,
    "pollInterval": 5,
    "inputRequests": {"q": {"method": "elicitation/create", "params": {}}},
    "_meta": {"mcp-tasks/progress": {"progress": 1, "total": 2}},
    "task": {"taskId": "t", "status": "working", "ttl": None},
}
PARAMS: Mapping[str, Any] = {
    "taskId": "t",
    "task": {"ttl": 60_000},
    "cursor": "MDAwMDAwMDAwMDAwMDAwMDAwMDE=",
    "inputResponses": {"q": {"action": "accept"}},
    "notifications": {"taskIds": ["t", "u"]},
    "progress": 0.5,
    "total": 1,
    "message": "m",
    "progressToken": 1,
    "_meta": {"progressToken": "p", "io.modelcontextprotocol/related-task": {"taskId": "t"}, "mcp-tasks/question": "q"},
}
ARGUMENTS: Mapping[str, Any] = {
    "task_id": "`t`",
    "wait_seconds": "5",
    "question": "q",
    "action": "accept",
    "content": '{"name": "a"}',
}
OFFER = Offer(support="optional", retention=timedelta(hours=1), max_retention=timedelta(days=1))


def values(seed: int, good: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Objects as JSON gives them, each like the good one but for something."""
    chance = random.Random(seed)
    while count:
        try:
            value = json.loads(spoilt(chance, good))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            count -= 1
            yield value


DIALECT = ModernDialect()
LONGEST = 10_000
"""Characters of a refusal, however much was refused."""


def attempt(read: Callable[[], object], raises: type[Exception] | tuple[()]) -> str:
    """Read something; what the refusal says, if it is one."""
    try:
        read()
    except raises as exc:
        return str(exc)
    return ""


def retention(params: dict[str, Any]) -> object:
    return older.parse_retention(params.get("task"), OFFER)


def elicitation(params: dict[str, Any]) -> object:
    return hosting.plain_request("elicitation/create", params)


def given(value: dict[str, Any]) -> None:
    """Everything that is read of the arguments of a companion tool."""
    read = Given(value)
    for each in (read.task_id, read.seconds, read.question, read.answer, lambda: read.check_names(list(ARGUMENTS))):
        assert len(attempt(each, BadArguments)) < LONGEST


@pytest.mark.parametrize(
    ("parse", "good", "raises"),
    [
        (parse_task, TASK, InvalidResponse),
        (parse_created, TASK, InvalidResponse),
        (read_task, TASK, InvalidResponse),
        (reading.read_created, TASK, InvalidResponse),
        (reading.read_progress, PARAMS, ()),
        (reading.related_task_id, PARAMS, ()),
        (older.parse_task_id, PARAMS, RpcError),
        (older.parse_cursor, PARAMS, RpcError),
        (retention, PARAMS, RpcError),
        (older.progress_token, PARAMS, ()),
        (hosting.task_id_of, PARAMS, MCPError),
        (hosting.ttl_of, PARAMS, MCPError),
        (hosting.position_of, PARAMS, MCPError),
        (hosting.question_of, PARAMS, ()),
        (elicitation, PARAMS, MCPError),
        (DIALECT.parse_task_id, PARAMS, RpcError),
        (DIALECT.parse_answers, PARAMS, RpcError),
        (DIALECT.parse_listened, PARAMS, RpcError),
        (DIALECT.asks_to_listen, PARAMS, ()),
        (given, ARGUMENTS, ()),
    ],
)
def test_a_parser_gives_a_value_or_its_own_error(
    parse: Callable[[dict[str, Any]], object], good: Mapping[str, Any], raises: type[Exception] | tuple[()]
) -> None:
    for value in values(7, good, examples(200)):
        assert len(attempt(partial(parse, value), raises)) < LONGEST


@pytest.mark.parametrize(
    "text", [*NASTY, "=?base64?", "=?base64?" + "A" * 100_000 + "?=", "=?base64?\ud800?=", "=?base64?/w==?="]
)
def test_a_header_stands_for_a_text_or_for_nothing(text: str) -> None:
    assert isinstance(decode_header(text), str | None)


def entries_of(path: Path) -> object:
    ledger = Ledger(path)
    try:
        return ledger.entries()
    finally:
        ledger.close()


def test_a_ledger_that_somebody_wrote_into_is_read_or_refused(tmp_path: Path) -> None:
    chance = random.Random(3)
    for number in range(12):
        path = tmp_path / f"{number}.db"
        ledger = Ledger(path, keep_results=True)
        ledger.add("t", server="s", tool="x")
        ledger.close()
        column = chance.choice(
            ["task_id", "server", "tool", "started", "status", "message", "result", "error", "finished"]
        )
        with sqlite3.connect(path) as db:
            odd = chance.choice(
                [b"\xff\xfe", "x" * 1_000, "{", '{"a":' * 50, "9" * 5_000, b"", "NaN", 7, -1.5, "null", "[]"]
            )
            db.execute(f"UPDATE tasks SET {column} = ?", (odd,))
        db.close()
        refusal = attempt(partial(entries_of, path), StoreError)
        assert not refusal or str(path) in refusal


def test_a_ledger_of_random_bytes_is_refused_and_left_alone(tmp_path: Path) -> None:
    chance = random.Random(4)
    for number in range(10):
        path = tmp_path / f"{number}.db"
        planted = chance.choice([b"", b"SQLite format 3\x00"]) + chance.randbytes(3_000)
        path.write_bytes(planted)
        with pytest.raises(StoreError):
            entries_of(path)
        assert path.read_bytes() == planted

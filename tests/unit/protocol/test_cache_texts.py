"""Texts of answers to polls: the same as the answer each time, kept for their owner and within bounds."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from mcp_tasks.model import Outcome, TaskRecord, TaskStatus
from mcp_tasks.protocol.cache import LARGEST, Text, Texts
from mcp_tasks.protocol.dialect import ModernDialect
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

DIALECT = ModernDialect()
META = {"com.example/server": "a"}


def add(texts: Texts, record: TaskRecord, outcome: Outcome | None = None) -> Text:
    return texts.add(DIALECT, record, DIALECT.task(record, outcome, NOON))


def ended(**fields: Any) -> TaskRecord:
    return make_record(status=TaskStatus.COMPLETED, finished_at=NOON, **fields)


def test_a_text_says_what_the_answer_would_at_any_time() -> None:
    record, outcome = ended(), Outcome(body=b'{"content":[]}')
    text = add(Texts(META), record, outcome)
    for later in (timedelta(0), timedelta(minutes=10)):
        answer = json.loads(DIALECT.task(record, outcome, NOON + later).encode())
        assert json.loads(text.at(NOON + later)) == {**answer, "_meta": META}


def test_a_text_is_found_by_its_owner_alone_until_it_is_forgotten() -> None:
    texts, record = Texts(META), make_record(owner="ada")
    text = add(texts, record)
    assert texts.find(record.id, "ada") is text
    assert texts.find(record.id, "bob") is None
    assert texts.find(record.id, None) is None
    texts.forget(record.id)
    texts.forget(record.id)
    assert texts.find(record.id, "ada") is None


def test_a_newer_text_takes_the_place_of_the_one_before() -> None:
    texts, record = Texts(META), make_record()
    add(texts, record)
    newer = add(texts, record.but(version=record.version + 1))
    assert texts.find(record.id, record.owner) is newer


def test_beyond_so_many_bytes_the_one_that_was_not_asked_for_for_longest_goes() -> None:
    first, second, third = (make_record(id=name) for name in ("first", "second", "third"))
    texts = Texts(META, most_bytes=int(2.5 * add(Texts(META), first).size))
    add(texts, first)
    add(texts, second)
    assert texts.find("first", first.owner) is not None
    add(texts, third)
    assert texts.find("second", second.owner) is None
    assert texts.find("first", first.owner) is not None
    assert texts.find("third", third.owner) is not None


def test_a_large_text_is_told_and_not_kept() -> None:
    texts, record = Texts(META), ended()
    outcome = Outcome(body=json.dumps({"content": "x" * LARGEST}).encode())
    assert len(add(texts, record, outcome).at(NOON)) > LARGEST
    assert texts.find(record.id, record.owner) is None

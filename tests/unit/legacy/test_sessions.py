"""What a session of 2025-11-25 keeps, and for how long."""

from __future__ import annotations

import asyncio
import gc
import weakref

import anyio
import pytest

from mcp_tasks.legacy.sessions import HEAD_START, MAX_BEFORE_HANDSHAKE, Session
from mcp_tasks.legacy.streams import Audience
from mcp_tasks.server.tool_runner import OpenCalls
from mcp_tasks.testing import make_record

pytestmark = pytest.mark.anyio


async def test_a_task_that_is_made_while_its_session_ends_is_not_kept_with_it() -> None:
    audience, calls = Audience(), OpenCalls()
    session, record = Session(audience, calls), make_record()
    session.expect(record.id)
    session.close()
    session.follow(record)
    session.expect("another")
    assert not audience.has_task(record.id)
    assert not calls.reaches(record.id)
    assert not calls.reaches("another")


async def test_of_a_client_that_never_completes_its_handshake_only_the_last_tasks_are_kept() -> None:
    audience, calls = Audience(), OpenCalls()
    session, records = Session(audience, calls), [make_record() for _ in range(MAX_BEFORE_HANDSHAKE + 3)]
    for record in records:
        session.expect(record.id)
        session.follow(record)
    for kept in (audience.has_task, calls.reaches):
        assert [kept(record.id) for record in records] == [False] * 3 + [True] * MAX_BEFORE_HANDSHAKE
    await anyio.sleep(2 * HEAD_START)  # sleep: for what follows each of them
    session.close()
    assert not any(calls.reaches(record.id) for record in records)


async def test_a_session_that_ends_is_not_held_by_the_next_look_at_an_old_task() -> None:
    session, record = Session(Audience(), OpenCalls()), make_record()
    session.follow(record)
    held = weakref.ref(session)
    session.followed[record.id].later = asyncio.get_running_loop().call_later(3600, session.send_notices, record.id)
    session.close()
    del session
    await anyio.sleep(2 * HEAD_START)  # sleep: the head start of the answer has hold of it, too
    gc.collect()
    assert held() is None

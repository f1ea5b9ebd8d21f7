"""What a session of 2025-11-25 keeps, and for how long."""

from __future__ import annotations

import pytest

from mcp_tasks.legacy.server.audience import Audience
from mcp_tasks.legacy.server.sessions import Session
from mcp_tasks.testing import make_record
from mcp_tasks.tools.open_calls import OpenCalls

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

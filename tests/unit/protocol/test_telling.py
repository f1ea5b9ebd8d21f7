"""Why a request is refused, in the words that those who watch are told."""

from __future__ import annotations

import pytest
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

from mcp_tasks.errors import AnswerRefused, LimitExceeded, OwnerRequired, StoreUnavailable, UnknownTask
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.telling import refusal_of, tell_refusal
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.runtime.accesses import Refusal
from tests.unit.running import make_runtime, ok


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (UnknownTask("t"), (Refusal.UNKNOWN, None)),
        (LimitExceeded("owner_requests", "too often"), (Refusal.LIMIT, "owner_requests")),
        (OwnerRequired("who?"), (Refusal.OWNER, None)),
        (AnswerRefused(-1, "no"), (Refusal.ANSWER, None)),
        (StoreUnavailable("away"), (Refusal.FAILED, None)),
        (ValueError("a defect"), (Refusal.FAILED, None)),
        (RpcError(INVALID_REQUEST, "who?"), (Refusal.OWNER, None)),
        (RpcError(METHOD_NOT_FOUND, "no tasks"), (Refusal.UNDECLARED, None)),
        (RpcError(INVALID_PARAMS, "what?"), (Refusal.MALFORMED, None)),
        (RpcError(INTERNAL_ERROR, "a defect"), (Refusal.FAILED, None)),
        (RpcError(-32010, "no", {"reason": "limit", "limit": "creates"}), (Refusal.LIMIT, "creates")),
        (RpcError(-32010, "no", {"reason": "key_too_short"}), (Refusal.KEY, "key_too_short")),
        (RpcError(INVALID_PARAMS, "no", {"reason": "another"}), (Refusal.MALFORMED, None)),
    ],
)
def test_a_refusal_has_one_word(why: Exception, told: tuple[Refusal, str | None]) -> None:
    assert refusal_of(why) == told


def test_what_nobody_watches_is_told_to_nobody() -> None:
    async def tool(run: Run) -> Ending:
        return ok()

    runtime = make_runtime(tool)
    assert not runtime.observers.want(Refusal)
    tell_refusal(runtime, "alice", "tasks/get", UnknownTask("t"), task_id="t")

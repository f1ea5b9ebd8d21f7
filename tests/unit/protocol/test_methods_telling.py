"""What those who watch are told of looks at tasks, and in which words of refusals."""

from __future__ import annotations

import pytest
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

from mcp_tasks.errors import AnswerRefused, KeyTaken, LimitExceeded, OwnerRequired, StoreUnavailable, UnknownTask
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.methods import (
    refusal_of,
    tell_listening,
    tell_listing,
    tell_local_look,
    tell_look,
    tell_refusal,
)
from mcp_tasks.runtime import Ending, Run, TaskRuntime
from mcp_tasks.runtime.observers import Refusal, TaskAccess, Wanted
from mcp_tasks.testing import make_record
from tests.unit.running import make_runtime, ok, running
from tests.unit.watching import Touched, Watching


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (UnknownTask("t"), (Refusal.UNKNOWN, None)),
        (LimitExceeded("owner_requests", "too often"), (Refusal.LIMIT, "owner_requests")),
        (OwnerRequired("who?"), (Refusal.OWNER, None)),
        (KeyTaken(), (Refusal.KEY, "key_taken")),
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


async def tool(run: Run) -> Ending:
    return ok()


def everything(runtime: TaskRuntime) -> None:
    """One of each that can be told."""
    record = make_record(id="mine", owner="ada", name="render")
    tell_look(runtime, record, "tasks/result")
    tell_local_look(runtime, record)
    tell_listing(runtime, "ada", "tasks/list", 7)
    tell_listening(runtime, "ada", 3, ["mine"])
    tell_refusal(runtime, "ada", "tasks/cancel", UnknownTask("theirs"), task_id="x" * 1_000)
    tell_refusal(runtime, None, "tools/call", OwnerRequired("who?"), task_id=7)


LOOKS = [
    ("read", "tasks/result", "ada", "mine", "render", None),
    ("read", "local", None, "mine", "render", None),
    ("list", "tasks/list", "ada", None, None, "7 tasks"),
    ("listen", "subscriptions/listen", "ada", "mine", None, None),
]
REFUSALS = [
    ("listen", "subscriptions/listen", "ada", None, Refusal.UNKNOWN, 2),
    # What a caller names may be of any length, and is cut.
    ("cancel", "tasks/cancel", "ada", "x" * 256, Refusal.UNKNOWN, 1),
    ("create", "tools/call", None, None, Refusal.OWNER, 1),
]


@pytest.mark.anyio
@pytest.mark.parametrize("wanted", [(TaskAccess,), (Refusal,), (TaskAccess, Refusal)], ids=["looks", "refusals", "all"])
async def test_who_watches_is_told_what_it_wants_and_no_more(wanted: tuple[type[Wanted], ...]) -> None:
    watching = Watching(*wanted)
    async with running(tool, observers=[watching]) as runtime:
        everything(runtime)
    looks = [(t.verb, t.method, t.owner, t.task_id, t.tool, t.detail) for t in watching.told if not t.refused]
    refusals = [(t.verb, t.method, t.owner, t.task_id, t.refused, t.times) for t in watching.told if t.refused]
    assert looks == (LOOKS if TaskAccess in wanted else [])
    assert refusals == (REFUSALS if Refusal in wanted else [])


def test_a_look_is_a_part_of_the_trace_of_its_task() -> None:
    runtime = make_runtime(tool)
    runtime.tracing = touched = Touched()
    tell_look(runtime, make_record(id="mine"), "tasks/get")
    assert touched.ids == ["mine"]


def test_what_nobody_watches_is_told_to_nobody() -> None:
    runtime = make_runtime(tool)
    assert not runtime.observers.want(Refusal)
    assert not runtime.observers.want(TaskAccess)
    # Outside of an event loop whatever is told would raise.
    everything(runtime)

"""The state of a call: what a client brings back is taken up for the same call alone, and only for a time."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from mcp.server import MCPServer

from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable, UsageError
from mcp_tasks.fallback.request_state import (
    LARGEST_STATE,
    PREFIX,
    CallState,
    InvalidState,
    StateKeys,
    open_state,
    seal_state,
)
from mcp_tasks.model.json import encode_json, is_large
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import TaskTester
from mcp_tasks.testing.clock import NOON
from tests.fallback.replicas import NoteStore, Replica

pytestmark = pytest.mark.anyio

STATE = CallState(
    task_id="task_abc",
    legs=3,
    window=NOON,
    expires=NOON + timedelta(hours=1),
    progress=0.25,
    inner="the state of the tool",
)
CALL: dict[str, Any] = {"tool": "render", "arguments": {"scene": "forest", "size": [1, 2.5]}, "owner": "alice"}


def call(**changes: Any) -> dict[str, Any]:
    """The call, but for some of it."""
    return {**CALL, **changes}


@pytest.fixture
def store() -> NoteStore:
    return NoteStore()


@pytest.fixture
def keys(store: NoteStore) -> StateKeys:
    return Replica(store).keys


@asynccontextmanager
async def on_file(path: Path) -> AsyncGenerator[Replica]:
    store = SqliteStore(path)
    await store.open("demo")
    try:
        yield Replica(store)
    finally:
        await store.close()


STATES = {
    "all": STATE,
    "nothing started": replace(STATE, task_id=None, legs=0, progress=None, inner=None),
    "whole progress": replace(STATE, progress=7),
    "odd text": replace(STATE, inner="☃ \0 \ud800 \" '", task_id="🦆"),
    "to the microsecond": replace(STATE, window=NOON + timedelta(microseconds=1)),
    "before 1970": replace(STATE, window=NOON - timedelta(days=40_000)),
    "a large one": replace(STATE, inner="x" * 150_000),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
async def test_a_state_comes_back_as_it_was(keys: StateKeys, state: CallState) -> None:
    text = await seal_state(keys, state, **CALL)
    assert text.startswith(PREFIX)
    assert text.isascii()
    assert await open_state(keys, text, **CALL, now=NOON) == state


@pytest.mark.parametrize("owner", [None, "", "alice", "lone \ud800"])
async def test_a_state_is_for_one_caller(keys: StateKeys, owner: str | None) -> None:
    text = await seal_state(keys, STATE, **call(owner=owner))
    for other in (None, "", "alice", "Alice", "lone \ud800", "None"):
        if other == owner:
            assert await open_state(keys, text, **call(owner=other), now=NOON) == STATE
        else:
            with pytest.raises(InvalidState, match="of another call: owner"):
                await open_state(keys, text, **call(owner=other), now=NOON)


@pytest.mark.parametrize("tool", ["", "Render", "render ", "another"])
async def test_a_state_is_for_one_tool(keys: StateKeys, tool: str) -> None:
    text = await seal_state(keys, STATE, **CALL)
    with pytest.raises(InvalidState, match="of another call: tool"):
        await open_state(keys, text, **call(tool=tool), now=NOON)


LARGE = {str(number): {"image": "é" * 1_000, "n": number} for number in range(200)}
OTHER_ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "a value": ({"a": 1}, {"a": 2}),
    "a name": ({"a": 1}, {"b": 1}),
    "one less": ({"a": 1, "b": 2}, {"a": 1}),
    "none": ({"a": 1}, {}),
    "deep": ({"a": [{"b": [1]}]}, {"a": [{"b": [2]}]}),
    "the order of a list": ({"a": [1, 2]}, {"a": [2, 1]}),
    "a number as text": ({"a": 1}, {"a": "1"}),
    "null": ({"a": None}, {}),
    "a flag": ({"a": True}, {"a": 1}),
    "a surrogate": ({"a": "\ud800"}, {"a": "\udfff"}),
    "in something large": (LARGE, LARGE | {"199": {"image": "é" * 1_000, "n": 0}}),
    "one large text": ({"image": "x" * 200_000}, {"image": "x" * 199_999 + "y"}),
}


@pytest.mark.parametrize(("mine", "other"), OTHER_ARGUMENTS.values(), ids=OTHER_ARGUMENTS)
async def test_a_state_is_for_one_set_of_arguments(keys: StateKeys, mine: Any, other: Any) -> None:
    text = await seal_state(keys, STATE, **call(arguments=mine))
    assert await open_state(keys, text, **call(arguments=mine), now=NOON) == STATE
    with pytest.raises(InvalidState, match="of another call: arguments"):
        await open_state(keys, text, **call(arguments=other), now=NOON)


def reversed_members(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: reversed_members(members[name]) for name in reversed(members)}
    return [reversed_members(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


@pytest.mark.parametrize("arguments", [{"a": {"b": 1, "c": [{"d": 1, "e": 2}]}, "f": 2}, LARGE], ids=["small", "large"])
async def test_the_order_of_members_says_nothing(keys: StateKeys, arguments: dict[str, Any]) -> None:
    assert is_large(arguments) == (arguments is LARGE)
    other = reversed_members(arguments)
    assert list(other) != list(arguments)
    text = await seal_state(keys, STATE, **call(arguments=arguments))
    assert await open_state(keys, text, **call(arguments=other), now=NOON) == STATE


async def test_arguments_that_no_call_can_have_are_refused(keys: StateKeys) -> None:
    text = await seal_state(keys, STATE, **CALL)
    endless: list[Any] = []
    endless.append(endless)
    for arguments in ({"a": object()}, {"a": endless}):
        with pytest.raises(InvalidState):
            await open_state(keys, text, **call(arguments=arguments), now=NOON)


async def test_a_state_expires(keys: StateKeys) -> None:
    text = await seal_state(keys, STATE, **CALL)
    just_before = STATE.expires - timedelta(microseconds=1)
    assert await open_state(keys, text, **CALL, now=just_before) == STATE
    for now in (STATE.expires, STATE.expires + timedelta(days=9_999)):
        with pytest.raises(InvalidState, match="it has expired"):
            await open_state(keys, text, **CALL, now=now)


async def test_a_state_with_any_character_changed_is_refused(keys: StateKeys) -> None:
    text = await seal_state(keys, STATE, **CALL)
    for place, character in enumerate(text):
        changed = text[:place] + ("A" if character != "A" else "B") + text[place + 1 :]
        with pytest.raises(InvalidState):
            await open_state(keys, changed, **CALL, now=NOON)
    for place in range(len(text)):
        with pytest.raises(InvalidState):
            await open_state(keys, text[:place], **CALL, now=NOON)


async def test_a_client_can_read_nothing_of_it(keys: StateKeys) -> None:
    text = await seal_state(keys, STATE, **CALL)
    sealed = text.rpartition(".")[2]
    seen = text.encode() + urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    for part in (b"task_abc", b"the state of the tool", b"render", b"alice", b"forest"):
        assert part not in seen
    assert text != await seal_state(keys, STATE, **CALL), "equal states would be seen to be equal"


async def test_what_is_too_long_or_not_ours_is_refused_before_any_work(store: NoteStore, keys: StateKeys) -> None:
    for text in ("", "v1.abc", "mcp-task.", PREFIX.upper(), PREFIX + "x" * LARGEST_STATE):
        with pytest.raises(InvalidState):
            await open_state(keys, text, **CALL, now=NOON)
    assert store.reads == 0


async def test_a_tool_whose_own_state_cannot_be_carried_is_told_so(keys: StateKeys) -> None:
    with pytest.raises(UsageError, match=r"The requestState of tool 'render' is too large: .* Keep less in it"):
        await seal_state(keys, replace(STATE, inner="x" * LARGEST_STATE), **CALL)


GOOD: dict[str, Any] = {"version": 1, "tool": "render", "owner": "alice", "task": None, "legs": 0, "window": 0}
ODD = (
    b"",
    b"\xff",
    b"[]",
    b"null",
    b"[" * 100_000,
    b"{}",
    encode_json(GOOD),
    encode_json(GOOD | {"version": 2}),
    encode_json(GOOD | {"expires": 10**40}),
    encode_json(GOOD | {"version": "1"}),
)


@pytest.mark.parametrize("payload", ODD, ids=range(len(ODD)))
async def test_what_another_release_sealed_under_our_key_is_refused(keys: StateKeys, payload: bytes) -> None:
    text = PREFIX + await keys.seal(payload)
    with pytest.raises(InvalidState):
        await open_state(keys, text, **CALL, now=NOON)


async def test_what_another_release_left_out_or_wrote_otherwise_is_refused(keys: StateKeys) -> None:
    text = await seal_state(keys, STATE, **CALL)
    fields = json.loads(await keys.open(text.removeprefix(PREFIX)))
    assert len(fields) == 11
    for name in fields:
        less = {other: value for other, value in fields.items() if other != name}
        for changed in (less, fields | {name: []}, fields | {name: {}}):
            with pytest.raises(InvalidState):
                await open_state(keys, PREFIX + await keys.seal(encode_json(changed)), **CALL, now=NOON)


# Elsewhere, and later


async def test_another_process_takes_a_call_up_before_and_after_a_new_key(tmp_path: Path) -> None:
    async with on_file(tmp_path / "tasks.db") as one, on_file(tmp_path / "tasks.db") as other:
        before = await seal_state(one.keys, STATE, **CALL)
        assert await open_state(other.keys, before, **CALL, now=NOON) == STATE
        await one.keys.rotate()
        after = await seal_state(one.keys, STATE, **CALL)
        for text in (before, after):
            assert await open_state(other.keys, text, **CALL, now=NOON) == STATE
    async with on_file(tmp_path / "tasks.db") as restarted:
        for text in (before, after):
            assert await open_state(restarted.keys, text, **CALL, now=NOON) == STATE


async def test_another_server_does_not_take_a_call_up() -> None:
    store = NoteStore()
    text = await seal_state(Replica(store).keys, STATE, **CALL)
    with pytest.raises(InvalidState):
        await open_state(Replica(store, namespace="another").keys, text, **CALL, now=NOON)


async def test_a_store_that_is_away_is_no_refusal(store: NoteStore, keys: StateKeys) -> None:
    text = await seal_state(Replica(store).keys, STATE, **CALL)
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await open_state(keys, text, **CALL, now=NOON)
    store.is_away = False
    assert await open_state(keys, text, **CALL, now=NOON) == STATE


async def test_states_outlive_a_crash_in_a_task_tester() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("demo", **tasks.wiring())
    async with TaskTester(server, tasks) as tester:
        keys = StateKeys(lambda: tester.runtime)
        text = await seal_state(keys, STATE, **CALL)
        await tester.crash()
        assert await open_state(keys, text, **CALL, now=NOON) == STATE

"""The state of a call that comes back: taken up for the same call alone, in any process of the server, for a time.

States are seen as clients see them, and keys by what they open and by the note that the store has of them. One test
needs a private name: nobody waits five minutes for a process to look for a new key.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from mcp.server.request_state import AESGCMRequestStateCodec

from harness.rpc import INVALID_PARAMS, Tasking, accept, text_of
from mcp_tasks import Fallback
from mcp_tasks.errors import StoreCorrupt
from mcp_tasks.fallback.request_state import READ_AGAIN, StateKeys
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.testing import FakeClock
from tests.fallback.scenes import ASKABLE, Call, MoodyStore, handle, without_sockets
from tests.fallback.server import Served, build
from tests.unit.running import Seconds, make_runtime

AT_ONCE = Fallback(wait=timedelta(0))
NOTE = "request-state-keys"
REFUSAL = {
    "code": INVALID_PARAMS,
    "message": "Invalid or expired requestState",
    "data": {"reason": "invalid_request_state"},
}


@asynccontextmanager
async def client_of(served: Served) -> AsyncGenerator[Tasking]:
    async with without_sockets(served) as wire:
        yield Tasking(wire, ASKABLE)


def at_once(store: str | Store = "memory://", **options: Any) -> Served:
    """A server whose calls are told to come back at once, with a tool that takes anything."""
    chosen: dict[str, Any] = {"fallback": AT_ONCE, **options}
    served = build(store, **chosen)

    @served.tool()
    async def takes(value: Any = None, other: Any = None) -> str:
        await served.jobs.gate("never")
        return ""

    return served


async def begun(client: Tasking, tool: str = "takes", **arguments: Any) -> Call:
    call = Call(tool, arguments)
    await call.begin(client)
    return call


async def is_taken(client: Tasking, call: Call, **changes: Any) -> bool:
    """Whether the state of the call is taken. It is refused in one way."""
    reply = await replace(call, **changes).leg(client)
    if "error" in reply.message:
        assert reply.error == REFUSAL
        return False
    return True


def key_of(call: Call) -> str:
    return call.state.split(".")[1]


async def ring(store: Store, namespace: str = "fallback") -> list[str]:
    """The ids of the keys that are kept, newest first."""
    kept = await store.note(namespace, NOTE)
    return [] if kept is None else [key["id"] for key in json.loads(kept)["keys"]]


# --- of one call ----------------------------------------------------------------------------------------------------

LARGE = {str(number): {"image": "é" * 1_000, "n": number} for number in range(200)}
OTHER_ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "a value": ({"value": 1}, {"value": 2}),
    "a name": ({"value": 1}, {"other": 1}),
    "one less": ({"value": 1, "other": 2}, {"value": 1}),
    "none": ({"value": 1}, {}),
    "deep": ({"value": [{"b": [1]}]}, {"value": [{"b": [2]}]}),
    "the order of a list": ({"value": [1, 2]}, {"value": [2, 1]}),
    "a number as text": ({"value": 1}, {"value": "1"}),
    "null": ({"value": None}, {}),
    "a flag": ({"value": True}, {"value": 1}),
    "in something large": ({"value": LARGE}, {"value": LARGE | {"199": {"image": "é" * 1_000, "n": 0}}}),
    "one large text": ({"value": "x" * 200_000}, {"value": "x" * 199_999 + "y"}),
}


def reversed_members(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: reversed_members(members[name]) for name in reversed(members)}
    return [reversed_members(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


async def test_a_state_is_for_one_tool_and_one_set_of_arguments_in_whichever_order() -> None:
    async with client_of(at_once()) as client:
        for name, (mine, other) in OTHER_ARGUMENTS.items():
            call = await begun(client, **mine)
            assert await is_taken(client, call), name
            assert await is_taken(client, call, arguments=reversed_members(mine)), name
            assert not await is_taken(client, call, arguments=other), name
        call = await begun(client)
        for tool in ("quick", "Takes", "takes ", "gated", "nothing"):
            assert not await is_taken(client, call, tool=tool)


async def test_a_state_is_for_its_owner_and_expires() -> None:
    clock = FakeClock()
    served = at_once(auth=True, clock=clock, fallback=Fallback(wait=timedelta(0), answer_within=timedelta(minutes=10)))
    async with without_sockets(served) as wire:
        ada, again, eve = [Tasking(wire.as_user(token), ASKABLE) for token in ("ada", "ada-again", "eve")]
        call = await begun(ada)
        assert [await is_taken(each, call) for each in (ada, again, eve)] == [True, True, False]
        # Also where there is no task yet.
        before = await begun(ada, "asks_before", job="job")
        assert [await is_taken(each, before) for each in (ada, eve)] == [True, False]
        clock.advance(timedelta(minutes=10) - timedelta(microseconds=1))
        assert await is_taken(ada, call)
        clock.advance(timedelta(microseconds=1))
        assert not await is_taken(ada, call)


def made_up(state: str) -> list[str]:
    """States that are none, some of them close to one: cut, put together, or with one character changed."""
    prefix, key_id, version, sealed = state.split(".")
    another = "0" * len(key_id)
    token = f"{key_id}.{version}.{sealed}"
    tokens = [
        *("", ".", "..", f"{version}.", "\0", "🦆", key_id, f"{key_id}.", f"{key_id}.{version}.", sealed),
        *(f".{version}.{sealed}", f"{another}.{version}.{sealed}", f"{token}=", f"{token}A", token[:-1], token[:-4]),
        *(f"{token}.{token}", f" {token}", f"{token} ", token.upper(), f"{key_id}.{version}.é"),
        *(f"{key_id}.{version}.{'A' * 10_000}", token + "A" * 1_000_000),
    ]
    characters = [
        state[:place] + ("A" if state[place] != "A" else "B") + state[place + 1 :]
        for place in range(len(prefix) + 1, len(state), 7)
    ]
    return [*(f"{prefix}.{each}" for each in tokens), *characters]


async def test_what_was_made_up_or_changed_is_refused_with_one_look_at_the_store_at_most() -> None:
    store = MoodyStore()
    served = at_once(store)
    async with client_of(served) as client:
        call = await begun(client, "gated", job="forged")
        for state in made_up(call.state):
            looks = store.notes
            assert not await is_taken(client, call, state=state), state
            assert store.notes <= looks + 1
        # Those that do not begin as ours do are the SDK's to refuse.
        for state in ("something-else", "v1.abc", call.state.upper()):
            assert (await replace(call, state=state).leg(client)).code == INVALID_PARAMS
        for state in (5, True, [], {}, ["mcp-tasks."], {"mcp-tasks.": 1}):
            params = {"name": "gated", "arguments": {"job": "forged"}, "requestState": state}
            assert (await client.ask("tools/call", params)).code == INVALID_PARAMS
        assert await is_taken(client, call)
    assert served.jobs.count("start", "forged") == 1


async def test_a_client_can_read_nothing_of_it() -> None:
    async with client_of(at_once(fallback=Fallback())) as client:
        calls = [await begun(client, "asks_by_returning", job="forest") for _ in range(2)]
        state, another = [call.state for call in calls]
        assert state.isascii()
        assert state.startswith("mcp-tasks.")
        assert state != another, "equal states would be seen to be equal"
        sealed = state.rpartition(".")[2]
        seen = state.encode() + base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
        for part in (b"task", b"asks_by_returning", b"forest"):
            assert part not in seen.removeprefix(b"mcp-tasks.")


async def test_a_state_of_the_tools_own_may_be_as_large_as_in_a_plain_call_and_no_larger() -> None:
    served = build()
    served.jobs.open("large")
    async with client_of(served) as client:
        call = Call("asks_by_returning", {"job": "large", "size": 300_000})
        [key] = await call.asked(client)
        assert text_of(await call.end(client, {key: accept(name="Ada")})) == (
            "Ada: large is done, with 300006 characters"
        )
        too_large = await Call("asks_by_returning", {"job": "large", "size": 5_000_000}).leg(client)
        assert "The requestState of tool 'asks_by_returning' is too large" in str(too_large.message)


# --- of one server --------------------------------------------------------------------------------------------------


async def test_another_process_takes_a_call_up_before_and_after_a_new_key_and_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    one, other, stranger = at_once(store), at_once(store), at_once(store, namespace="another")
    async with client_of(one) as here, client_of(other) as there, client_of(stranger) as elsewhere:
        before = await begun(here)
        assert await is_taken(there, before)
        await one.tasks.rotate_state_key()
        after = await begun(here)
        assert key_of(before) != key_of(after)
        assert [await is_taken(client, call) for client in (here, there) for call in (after, before)] == [True] * 4
        # The other one has met the new key by now.
        assert key_of(await begun(there)) == key_of(after)
        # A state of one key is not opened under the name of another, nor by another server.
        swapped = before.state.replace(key_of(before), key_of(after))
        assert not await is_taken(here, before, state=swapped)
        assert not await is_taken(elsewhere, before)
    async with client_of(at_once(store)) as again:
        assert [await is_taken(again, call) for call in (before, after)] == [True, True]


async def test_of_many_processes_that_begin_or_rotate_at_once_all_have_the_same_key(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    servers = [at_once(store) for _ in range(4)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(served)) for served in servers]
        calls = [await begun(client) for client in clients]
        assert len({key_of(call) for call in calls}) == 1
        await asyncio.gather(*(served.tasks.rotate_state_key() for served in servers))
        assert all([await is_taken(client, call) for client in clients for call in calls])
        assert key_of(calls[0]) not in {key_of(await begun(client)) for client in clients}


async def test_a_process_that_meets_no_new_key_looks_for_one_now_and_then() -> None:
    store, seconds = MemoryStore(), Seconds()
    one, other = [make_runtime({}, store=store, monotonic=seconds, namespace="fallback") for _ in range(2)]
    mine, theirs = StateKeys(lambda: one), StateKeys(lambda: other)
    before = (await theirs.seal(b"state")).partition(".")[0]
    await mine.rotate()
    seconds.advance(READ_AGAIN)
    assert (await theirs.seal(b"state")).partition(".")[0] == before
    seconds.advance(timedelta(seconds=1))
    assert [(await theirs.seal(b"state")).partition(".")[0], before] == await ring(store)


async def test_a_key_is_dropped_at_the_rotation_after_nothing_under_it_can_be_valid() -> None:
    store, clock = MemoryStore(), FakeClock()
    served = at_once(store, clock=clock, fallback=Fallback(wait=timedelta(0), answer_within=timedelta(days=30)))
    async with client_of(served) as client:
        first = await begun(client)
        clock.advance(timedelta(days=400))
        # However old the key is: it was in use until now.
        recent = await begun(client)
        assert key_of(recent) == key_of(first)
        await served.tasks.rotate_state_key()
        clock.advance(timedelta(days=30) - timedelta(microseconds=1))
        assert await is_taken(client, recent)
        # Others sealed under it for five minutes more.
        clock.advance(timedelta(minutes=5))
        await served.tasks.rotate_state_key()
        assert key_of(first) in await ring(store)
        clock.advance(timedelta(microseconds=1))
        await served.tasks.rotate_state_key()
        assert key_of(first) not in await ring(store)
        assert len(await ring(store)) == 3


async def test_what_another_release_sealed_or_left_out_under_our_key_is_refused() -> None:
    store = MemoryStore()
    async with client_of(at_once(store)) as client:
        call = await begun(client)
        [key] = json.loads(await store.note("fallback", NOTE) or b"")["keys"]
        codec = AESGCMRequestStateCodec([base64.b64decode(key["secret"])])
        before, _, sealed = call.state.partition(key["id"] + ".")
        fields = json.loads(codec.unseal(sealed))
        payloads: list[Any] = [[], None, {}, {**fields, "version": 2}, {**fields, "expires": 10**40}]
        # Here there is no owner, and so none that could be left out.
        for name in fields.keys() - {"owner"}:
            payloads.append({other: value for other, value in fields.items() if other != name})
            payloads += [{**fields, name: []}, {**fields, name: {}}]
        raw = [b"", b"\xff", b"[" * 100_000, *(json.dumps(each).encode() for each in payloads)]
        for payload in raw:
            state = f"{before}{key['id']}.{codec.seal(payload)}"
            assert not await is_taken(client, call, state=state), payload[:200]
        assert await is_taken(client, call, state=f"{before}{key['id']}.{codec.seal(json.dumps(fields).encode())}")


# --- a store that fails ---------------------------------------------------------------------------------------------


async def test_a_store_that_is_away_costs_no_call_and_the_first_uses_at_once_make_one_key_which_is_then_kept() -> None:
    store = MoodyStore()
    served = at_once(store)
    with store.failing("note"):
        stack = AsyncExitStack()
        client = await stack.enter_async_context(client_of(served))
        # There is no key: the call is answered with its task.
        handle((await Call("gated", {"job": "away"}).leg(client)).result)
        assert served.jobs.count("request", "away") == 1
    async with stack:
        calls = await asyncio.gather(*(begun(client) for _ in range(10)))
        assert len({key_of(call) for call in calls}) == 1 == len(await ring(store))
        looks = store.notes
        with store.failing("note"):
            # What is known needs no store.
            assert all([await is_taken(client, call) for call in calls])
            assert await begun(client)
            assert store.notes == looks
            unknown = await replace(calls[0], state="mcp-tasks.0123456789abcdef.v1.AAAA").leg(client)
            assert unknown.error != REFUSAL
            assert "again" in unknown.error["message"]


SECRET = "c2VjcmV0"
DAMAGED = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"{}",
    b'{"format":1}',
    b'{"format":1,"keys":[{"id":"a"}]}',
    b'{"format":1,"keys":7}',
    b'{"format":1,"keys":[{"id":"a","made":0,"secret":"%s"}]}' % SECRET.encode(),
    b'{"format":1,"keys":[{"id":"a","made":"x","secret":"%s"}]}' % (SECRET * 4).encode(),
    b'{"format":1,"keys":[]}',
    b'{"format":2,"something":"else"}',
)


@pytest.mark.parametrize("kept", DAMAGED, ids=range(len(DAMAGED)))
async def test_damaged_keys_or_those_of_a_newer_release_are_left_alone_and_no_call_is_lost(kept: bytes) -> None:
    store = MemoryStore()
    await store.set_note("fallback", NOTE, kept, expected=None)
    served = at_once(store)
    said = "newer release" if b"else" in kept else r"the keys for requestState of the server 'fallback' .*delete the"
    async with client_of(served) as client:
        with pytest.raises(StoreCorrupt, match=said) as no:
            await served.tasks.rotate_state_key()
        assert SECRET not in str(no.value)
        handle((await Call("gated", {"job": "damaged"}).leg(client)).result)
        assert "error" in (await Call("gated", {"job": "damaged"}, "mcp-tasks.a.v1.x").leg(client)).message
    assert await store.note("fallback", NOTE) == kept

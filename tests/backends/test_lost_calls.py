"""A real store commits a new task, its answer is lost, and it is unreachable for a while: every caller is told that the
call may have been made, and nothing runs twice.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import anyio
import pytest
from mcp import Client
from mcp.server import MCPServer

from harness.http import serving
from harness.proxy import Proxy, proxy_to
from harness.rpc import INTERNAL_ERROR, PATIENCE
from harness.stored import all_tasks
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.client import CallLost, TasksClient, call_tool, reconnecting_http
from mcp_tasks.stores import Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from tests.backends.places import PostgresPlace, RedisPlace
from tests.client.connecting import LONG, text
from tests.trust.keyed import DOORS, LONG_KEY, opened, told

pytestmark = pytest.mark.slow

NEW_TASK = r"^create$|INSERT INTO mcp_tasks_tasks"
STORE_PATIENCE = timedelta(seconds=2)


@pytest.fixture(params=["redis", "postgres"])
def place(request: pytest.FixtureRequest) -> RedisPlace | PostgresPlace:
    found: RedisPlace | PostgresPlace = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture
async def proxy(place: RedisPlace | PostgresPlace) -> AsyncIterator[Proxy]:
    async with proxy_to(place.url) as proxy:
        yield proxy


@pytest.fixture
def store(place: RedisPlace | PostgresPlace, proxy: Proxy) -> Store:
    if isinstance(place, RedisPlace):
        return RedisStore(proxy.url, timeout=STORE_PATIENCE)
    return PostgresStore(proxy.url, patience=STORE_PATIENCE)


@pytest.mark.parametrize("door", DOORS)
async def test_every_caller_is_told_that_the_call_may_have_been_made_and_can_repeat_it(
    store: Store, proxy: Proxy, door: str
) -> None:
    async with opened(door, store=store) as (scene, caller):
        proxy.lose(of=NEW_TASK, then_cut=True)
        error = (await caller.call("pay", LONG_KEY, amount=7)).error
        assert proxy.lost == 1
        assert error["code"] == INTERNAL_ERROR
        assert error["data"] == {"reason": "may_have_happened"}
        assert "may have been carried out" in error["message"]
        assert str(proxy.port) not in error["message"]
        proxy.restore()
        first = told(await caller.call("pay", LONG_KEY, amount=7))
        assert told(await caller.call("pay", LONG_KEY, amount=7)) == first
        assert len(await scene.all_tasks()) == 1
        await scene.until_idle()
        assert scene.runs["pay"] == 1


class Paying:
    """A server whose tool `pay` may not run twice, and whose tool `look_up` may."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs: Counter[str] = Counter()
        tasks = Tasks(store, namespace="paying")
        self.server = MCPServer("paying", **tasks.wiring())

        @self.server.tool()
        @tasks.task()
        async def pay(amount: int) -> str:
            self.runs["pay"] += 1
            return f"paid {amount}"

        @self.server.tool()
        @tasks.task(recover="rerun")
        async def look_up(amount: int) -> str:
            self.runs["look_up"] += 1
            return f"looked up {amount}"

    async def has_one_task_that_ended(self) -> bool:
        [task] = await all_tasks(self.store, "paying")
        return task.is_final


@pytest.mark.parametrize(("tool", "result"), [("pay", "paid 7"), ("look_up", "looked up 7")])
async def test_our_client_repeats_the_call_under_its_key_and_the_tool_runs_once(
    store: Store, proxy: Proxy, tool: str, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    paying = Paying(store)

    async def restore_when_the_call_is_repeated() -> None:
        await proxy.until_lost()
        await eventually(lambda: "making it again" in caplog.text)
        proxy.restore()

    with caplog.at_level(logging.INFO, "mcp_tasks.client"), anyio.fail_after(2 * PATIENCE):
        async with (
            serving(paying.server) as wire,
            Client(reconnecting_http(wire.url), extensions=[TasksClient(patience=LONG)]) as client,
            anyio.create_task_group() as group,
        ):
            await client.list_tools()
            proxy.lose(of=NEW_TASK, then_cut=True)
            group.start_soon(restore_when_the_call_is_repeated)
            assert text(await call_tool(client, tool, {"amount": 7})) == result
            assert await paying.has_one_task_that_ended()
    assert proxy.lost == 1
    assert paying.runs == {tool: 1}


async def test_without_a_key_the_call_is_lost(store: Store, proxy: Proxy) -> None:
    paying = Paying(store)
    async with (
        serving(paying.server) as wire,
        # A client with a pinned version asks the server nothing, so it does not know that the server honours keys.
        Client(reconnecting_http(wire.url), mode="2026-07-28", extensions=[TasksClient(patience=LONG)]) as client,
    ):
        proxy.lose(of=NEW_TASK, then_cut=True)
        with anyio.fail_after(2 * PATIENCE), pytest.raises(CallLost, match="may have been made") as caught:
            await call_tool(client, "pay", {"amount": 7})
        assert caught.value.may_have_run
        assert caught.value.data == {"reason": "may_have_happened"}
        proxy.restore()
        # The call was made indeed, and once.
        await eventually(paying.has_one_task_that_ended)
    assert proxy.lost == 1
    assert paying.runs == {"pay": 1}

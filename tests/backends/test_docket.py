"""What is particular to Docket: what is left on the server, who may write to it, clusters, and its errors."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import re
import weakref
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from harness.databases import Valkey
from harness.proxy import proxy_to
from harness.waiting import eventually
from mcp_tasks.engines import ANYWHERE
from mcp_tasks.engines.docket import DocketCarrier
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.testing._engine_work import WAIT, at_work, serving, settle
from tests.backends.carriers import docket
from tests.backends.places import RedisPlace

pytestmark = pytest.mark.anyio


async def test_nothing_piles_up_on_the_server(redis_place: RedisPlace) -> None:
    client, url = redis_place.client, redis_place.url

    async def a_life(number: int) -> set[str]:
        ids = [f"{number}-{each}" for each in range(30)]
        async with at_work(docket(url)) as work, at_work(docket(url)) as other, serving(docket(url)) as engine:
            work.end(*ids)
            other.end(*ids)
            for each, task_id in enumerate(ids):
                await engine.submit(task_id, delay=timedelta(milliseconds=1) if each % 5 == 0 else None)
            await eventually(lambda: len(work.started) + len(other.started) >= len(ids))
        return {key for key in redis_place.names() if client.ttl(key) == -1}

    first, last = await a_life(1), await a_life(2)
    # What is left of several lives for longer is what was left of one: an empty stream.
    assert last == first
    [stream] = last
    assert client.xlen(stream) == 0
    (group,) = client.xinfo_groups(stream)
    assert (group["consumers"], group["pending"]) == (1, 0)


async def test_what_is_sent_by_a_request_leaves_nothing_of_it_behind(redis_place: RedisPlace) -> None:
    class Request:
        pass

    current: ContextVar[Request] = ContextVar("current")
    async with serving(docket(redis_place.url)) as engine:

        async def request() -> weakref.ref[Request]:
            current.set(Request())
            await engine.submit("a")
            return weakref.ref(current.get())

        left = await asyncio.create_task(request())
        await settle()
        gc.collect()
        # What a docket does in the background would have kept it, and a run would seem to be at work for ever.
        assert left() is None


async def test_what_is_sent_after_the_stop_or_to_a_server_that_does_not_answer_fails_in_time(
    redis_place: RedisPlace,
) -> None:
    carrier = DocketCarrier(redis_place.url, timeout=timedelta(seconds=1))
    await carrier.open("")
    await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
    redis_place.client.client_pause(10_000, all=False)
    with pytest.raises(RedisConnectionError, match="does not answer"):
        await carrier.send("b", route=ANYWHERE, lane="new", delay=None)
    redis_place.client.client_unpause()
    await carrier.close()
    await carrier.close()
    with pytest.raises(ConnectionError, match="is not open"):
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)


async def test_a_carrier_that_could_not_be_opened_can_be_later(redis_place: RedisPlace) -> None:
    nobody = DocketCarrier(redis_place.url.replace("//", "//nobody:secret@"))
    with pytest.raises(StoreUnavailable, match="password") as refused:
        await nobody.open("")
    assert "secret" not in str(refused.value)
    async with proxy_to(redis_place.url) as proxy:
        carrier = DocketCarrier(proxy.url, timeout=timedelta(seconds=0.5))
        proxy.is_silent = True
        with pytest.raises(StoreUnavailable, match="does not answer in time"):
            await carrier.open("")
        proxy.is_silent = False
        await carrier.open("")
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
        await carrier.close()


async def test_in_a_cluster_ids_are_carried_from_any_of_its_servers(cluster: tuple[Valkey, Valkey]) -> None:
    first, second = cluster
    # The second has nothing, and says where to go.
    async with (
        at_work(docket(second.url)) as work,
        at_work(docket(first.url)) as other,
        serving(docket(second.url)) as engine,
    ):
        for each in (work, other):
            each.end("a", "b")
        await engine.submit("a")
        await engine.submit("b", delay=timedelta(milliseconds=10))
        await eventually(lambda: {*work.started, *other.started} == {"a", "b"})


async def test_a_user_needs_no_more_than_the_page_says(shared_valkey: Valkey, redis_place: RedisPlace) -> None:
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
    (command,) = re.findall(r"^(ACL SETUSER tasks .*)$", page, flags=re.MULTILINE)
    redis_place.client.execute_command(*command.split())
    url = shared_valkey.url.replace("//", "//tasks:PASSWORD@")
    async with at_work(docket(url)) as work, serving(docket(url)) as engine:
        work.end("a", "b")
        await engine.submit("a")
        await engine.submit("b", delay=timedelta(milliseconds=10))
        await work.until("end a", "end b")


class Planted:
    """What runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("part", ["args", "kwargs", "strike"])
async def test_what_others_write_to_the_server_runs_no_code_here(
    redis_place: RedisPlace, tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    planted, nothing = pickle.dumps(Planted(tmp_path / "ran")), pickle.dumps(())
    client, url = redis_place.client, redis_place.url
    async with serving(docket(url)) as sender:
        await sender.submit("first")
        [stream] = [name for name in redis_place.names() if name.endswith(":stream")]
        message: dict[Any, Any] = {
            "key": "no key of ours",
            "when": datetime.now(UTC).isoformat(),
            "function": "run",
            "args": planted if part == "args" else nothing,
            "kwargs": planted if part == "kwargs" else pickle.dumps({}),
            "attempt": "1",
            "generation": "0",
        }
        if part == "strike":
            strike = {"direction": "strike", "function": "another", "operator": "==", "value": planted}
            client.xadd(stream.removesuffix(":stream") + ":strikes", strike)
        else:
            client.xadd(stream, message)
        async with at_work(docket(url)) as work:
            work.end("first", "second")
            await work.until("end first")
            await sender.submit("second")
            await work.until("end second")
            if part != "strike":
                await eventually(lambda: "is passed over" in caplog.text, WAIT)
                # It is not read again and again.
                await eventually(lambda: client.xlen(stream) == 0, WAIT)
        assert sorted(work.started) == ["first", "second"]
        assert not (tmp_path / "ran").exists()

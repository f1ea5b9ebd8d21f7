"""What a low-level server has besides: pages, a level for the log, subscriptions. The same with tasks and without."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from harness.rpc import PATIENCE
from tests.everything.connecting import COMPANIONS, ERAS, Pair, Visit, paired
from tests.everything.lowlevel import COUNT, LEVELS

pytestmark = pytest.mark.anyio

WAYS = ("stdio", "low")


@pytest.fixture(scope="module", params=[(way, era) for way in WAYS for era in ERAS], ids=lambda pair: "-".join(pair))
async def pair(request: pytest.FixtureRequest, site: str) -> AsyncGenerator[Pair]:
    """Clients of both low-level servers, over stdio and over HTTP, in one of the eras."""
    way, era = request.param
    async with paired(site, way, era, *(["--low"] if way == "stdio" else []), log_level="warning") as connected:
        yield connected


LISTS = {
    "tools": ("list_tools", "log touch tool-0 tool-1 tool-2 tool-3 tool-4"),
    "resources": ("list_resources", "note-0 note-1 note-2 note-3 note-4"),
    "resourceTemplates": ("list_resource_templates", "shelf-0 shelf-1 shelf-2 shelf-3 shelf-4"),
    "prompts": ("list_prompts", "prompt-0 prompt-1 prompt-2 prompt-3 prompt-4"),
}


@pytest.mark.parametrize("kind", LISTS)
async def test_lists_come_in_pages(pair: Pair, kind: str) -> None:
    method, expected = LISTS[kind]

    async def pages(visit: Visit) -> Any:
        found: list[list[str]] = []
        cursor: str | None = None
        while not found or cursor is not None:
            page = await getattr(visit.client, method)(cursor=cursor)
            found.append([item["name"] for item in page.model_dump(by_alias=True)[kind]])
            cursor = page.next_cursor
        if kind == "tools" and visit is pair.tasks:
            # The author's own have their pages to themselves, but for the end of the last.
            *found[-1], status, cancel = found[-1]
            assert [status, cancel] == COMPANIONS
        return found

    found = await pair.both(pages)
    assert len(found) == (COUNT + 1) // 2
    assert " ".join(name for page in found for name in page) == expected


async def test_a_marked_tool_of_a_later_page_is_called(pair: Pair) -> None:
    answer = await pair.both(lambda visit: visit.client.call_tool("tool-4", {}))
    assert answer["content"][0]["text"] == "tool-4 done"


async def test_the_log_has_the_level_that_the_client_chose(pair: Pair) -> None:
    async def log(visit: Visit) -> Any:
        if not pair.newer:
            await visit.client.session.set_logging_level("warning")  # pyright: ignore[reportDeprecated]
        visit.host.logged.clear()
        await visit.client.call_tool("log", {})
        return list(visit.host.logged)

    logged = await pair.both(log)
    assert logged == [(level, f"a line of {level}") for level in LEVELS[LEVELS.index("warning") :]]


async def test_updates_of_a_resource_that_a_client_subscribed_to(pair: Pair) -> None:
    if pair.newer:
        # `resources/subscribe` is gone; `subscriptions/listen` has come in its place.
        assert isinstance(await pair.both(_subscribe), tuple)
        return
    for visit in (pair.tasks, pair.plain):
        visit.host.told.clear()
        await _subscribe(visit)
        await visit.client.call_tool("touch", {})
        with anyio.fail_after(PATIENCE):
            while "notifications/resources/updated" not in visit.host.told:  # noqa: ASYNC110 - it comes by itself
                await anyio.sleep(0.01)
        await visit.client.session.unsubscribe_resource("note://1")  # pyright: ignore[reportDeprecated]


async def _subscribe(visit: Visit) -> Any:
    return await visit.client.session.subscribe_resource("note://1")  # pyright: ignore[reportDeprecated]

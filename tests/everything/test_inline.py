"""Where the author wants plain calls (`fallback="inline"`, `companions="never"`), callers without tasks notice nothing.

What differs with the fallback is here the same as without tasks, to the letter. All else is the same in any case
(`test_same_answers`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from mcp_types import INVALID_REQUEST

from tests.everything.connecting import ERAS, TRANSPORTS, Pair, Visit, paired

pytestmark = pytest.mark.anyio


@pytest.fixture(
    scope="module", params=[(way, era) for way in TRANSPORTS for era in ERAS], ids=lambda pair: "-".join(pair)
)
async def pair(request: pytest.FixtureRequest, site: str) -> AsyncGenerator[Pair]:
    """Clients of both servers over one of the transports, in one of the eras."""
    way, era = request.param
    async with paired(site, way, era, kind="inline") as connected:
        yield connected


async def _call(pair: Pair, tool: str) -> Any:
    return await pair.both(lambda visit: visit.client.call_tool(tool, {}))


async def test_tools_are_listed_alike(pair: Pair) -> None:
    async def listed(visit: Visit) -> Any:
        answer = (await visit.client.list_tools()).model_dump(by_alias=True, mode="json")
        for tool in answer["tools"]:
            # Whether a tool may be a task is said in the older era, and is all that may differ.
            tool.pop("execution")
        return answer

    names = [tool["name"] for tool in (await pair.both(listed))["tools"]]
    assert "weather" in names
    assert "task_status" not in names


async def test_a_form_before_the_body(pair: Pair) -> None:
    answer = await _call(pair, "ask_before")
    if pair.hands_over:
        assert isinstance(answer, tuple) or answer["isError"]
    else:
        assert answer["content"][0]["text"] == "Hello, Ada!"


@pytest.mark.parametrize(
    ("tool", "expected"), [("ask_form", "Hello, Ada!"), ("think", "Forty-two."), ("roots", "file:///home/ada")]
)
async def test_what_a_tool_asks_in_the_middle(pair: Pair, tool: str, expected: str) -> None:
    if pair.way == "json" and not pair.newer:
        # The SDK drops what it cannot send and waits for the answer for good, with tasks or without.
        return
    answer = await _call(pair, tool)
    if pair.answers:
        assert answer["content"][0]["text"] == expected
    else:
        assert answer[0] == INVALID_REQUEST


async def test_no_companion_can_be_called(pair: Pair) -> None:
    answer = await _call(pair, "task_status")
    assert isinstance(answer, tuple) or answer["isError"]

"""Answers that do not fit, from our client to our server on the 2025-11-25 wire: the question comes again."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult

from harness.rpc import INVALID_PARAMS, PATIENCE
from tests.client.connecting import Person, accepted, begin, text
from tests.client.test_legacy import ANSWER, connect, shown

pytestmark = pytest.mark.anyio

MISFIT = {"action": "accept", "content": {"name": 7}}


async def test_a_question_that_was_answered_wrongly_by_hand_is_shown_again(url: str) -> None:
    async with connect(url, person=Person()) as client:
        handle = await begin(client, "ask_name")
        [first] = (await shown(handle, lambda snapshot: snapshot.input_requests)).input_requests
        await handle.answer({first: MISFIT})
        again = await shown(handle, lambda snapshot: snapshot.input_requests.keys() - {first})
        await handle.answer(dict.fromkeys(again.input_requests, ANSWER))
        assert text(await handle.result(PATIENCE)) == "Hello, Ada!"


@pytest.mark.parametrize("mistakes", [1, 2])
async def test_a_callback_that_errs_is_called_again(url: str, mistakes: int) -> None:
    asked: list[str] = []

    async def person(context: ClientRequestContext, params: Any) -> ElicitResult:
        asked.append(params.message)
        return accepted() if len(asked) > mistakes else ElicitResult.model_validate(MISFIT)

    async with connect(url, person=person) as client:
        handle = await begin(client, "ask_name")
        assert text(await handle.result(PATIENCE)) == "Hello, Ada!"
    assert len(asked) == mistakes + 1


async def test_a_callback_that_always_errs_is_told_what_does_not_fit(url: str) -> None:
    asked: list[str] = []

    async def person(context: ClientRequestContext, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult.model_validate(MISFIT)

    async with connect(url, person=person) as client:
        handle = await begin(client, "ask_name")
        with pytest.raises(MCPError, match=r"does not fit: \$\.name: 7 is not of type 'string'") as refused:
            await handle.result(PATIENCE)
    assert refused.value.code == INVALID_PARAMS
    assert len(asked) == 3

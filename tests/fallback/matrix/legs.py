"""A client of the newest wire that takes its calls leg by leg, and the call that is told to come back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio

from harness.http import HttpWire, http_client
from harness.rpc import NOTHING, PATIENCE, Reply, Tasking

ASKABLE: Final[Mapping[str, Any]] = {"elicitation": {"form": {}}}


@dataclass
class Call:
    """One call of a tool, and the state that its next leg is to bring."""

    tool: str
    arguments: Mapping[str, Any]
    state: str | None = None

    async def leg(
        self, client: Tasking, answers: Mapping[str, Any] | None = None, *, progress_token: str | None = None
    ) -> Reply:
        """Send the next request of the call; takes the state of its answer, if there is one."""
        params: dict[str, Any] = {"name": self.tool, "arguments": self.arguments}
        if self.state is not None:
            params["requestState"] = self.state
        if answers:
            params["inputResponses"] = answers
        meta = None if progress_token is None else {"progressToken": progress_token}
        reply = await client.ask("tools/call", params, meta=meta)
        if "result" in reply.message and reply.result["resultType"] == "input_required":
            self.state = reply.result["requestState"]
        return reply

    async def begin(self, client: Tasking) -> dict[str, Any]:
        """The first leg of a call that is told to come back."""
        result = (await self.leg(client)).result
        assert result["resultType"] == "input_required", result
        return result

    async def end(self, client: Tasking, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Come back until there is a result."""
        with anyio.fail_after(PATIENCE):
            result = (await self.leg(client, answers)).result
            while result["resultType"] == "input_required":
                assert not result.get("inputRequests"), result
                result = (await self.leg(client)).result
        return result


@asynccontextmanager
async def legs(
    url: str, capabilities: Mapping[str, Any] = NOTHING, *, token: str | None = None
) -> AsyncGenerator[Tasking]:
    """A client that declares no tasks."""
    async with http_client() as client:
        yield Tasking(HttpWire(url, client, token=token), capabilities)

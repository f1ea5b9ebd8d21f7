"""A server that is started again on every change of its code."""

from __future__ import annotations

import pytest
from mcp import MCPError

from tests.deploy.recipes import Site, connected, started, wire
from tests.push.listening import listening

pytestmark = pytest.mark.anyio


async def test_a_reload_keeps_tasks_and_runs_again_what_may_run_again(place: Site) -> None:
    await place.start("uvicorn app:app --reload")
    async with connected(f"{place.url}/mcp") as client:
        again, once = await started(client, "again", job="again"), await started(client, "once", job="once")
        await place.until(lambda: place.runs("again") and place.runs("once"), "both have started")
        async with wire(f"{place.url}/mcp") as raw, listening(raw, [again.id]) as stream:
            # A listener must not keep the old process.
            await stream.acknowledged()
            with (place.folder / "app.py").open("a") as app:
                app.write("\n# changed\n")
            await place.until(lambda: len(place.runs("again")) == 2, "it runs again")
        place.let_go("again", "once")
        assert (await again.result()).structured_content == {"result": place.runs("again")[1]}
        with pytest.raises(MCPError, match="Interrupted"):
            await once.result()
    assert len(place.runs("once")) == 1
    place.stop()

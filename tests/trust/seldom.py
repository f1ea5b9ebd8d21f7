"""The server of `tests.trust.limited` on a pipe. Its limits on callers without a name let next to nothing through.

python -m tests.trust.seldom stdio
"""

from __future__ import annotations

import asyncio

from harness.serving import serve_stdio
from mcp_tasks import Limits, Tasks
from tests.trust.limited import QUICK, build


def main() -> None:
    """Serve the pipes until they close."""
    limits = Limits(
        connection_creates=0.01,
        connection_cancels=0.01,
        connection_unknown=0.01,
        creates=0.01,
        cancels=0.01,
        unknown=0.01,
    )
    asyncio.run(serve_stdio(build(Tasks("memory://", limits=limits, settings=QUICK), asyncio.Event(), auth=False)))


if __name__ == "__main__":
    main()

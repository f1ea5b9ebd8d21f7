"""How long tests with random input look for what is wrong."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("MCP_TASKS_TEST_TIMES", "1"))
"""How many times as many examples as usual; `make soak` says ten."""


def examples(usual: int) -> int:
    """How many examples a test tries that is content with `usual` ones in everyday runs."""
    return usual * TIMES

"""What a store may fail with: for what a client is told then, in either era."""

from __future__ import annotations

import pytest

from mcp_tasks.errors import StoreCorrupt, StoreUnavailable

with_each_failure = pytest.mark.parametrize(
    "failure",
    [StoreUnavailable("secret-host:5432 refused"), StoreCorrupt("secret row"), RuntimeError("secret defect")],
    ids=["unavailable", "corrupt", "defect"],
)

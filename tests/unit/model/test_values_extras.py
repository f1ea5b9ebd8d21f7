"""Parts that need an extra say which, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from mcp_tasks.errors import MissingExtra
from mcp_tasks.model.values import needing_extra


def test_a_package_that_is_not_there_is_one_of_the_extra() -> None:
    with pytest.raises(MissingExtra, match="postgres"), needing_extra("The Postgres store", "postgres"):
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")


@pytest.mark.parametrize("name", ["mcp_tasks", "mcp_tasks.stores.postgres"])
def test_a_module_of_ours_that_is_not_there_is_a_defect(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="defect"), needing_extra("The Postgres store", "postgres"):
        raise ModuleNotFoundError("defect", name=name)

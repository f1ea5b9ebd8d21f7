"""Helpers for tests of servers, stores and engines.

`store_suite` and `engine_suite` need pytest (`pip install 'mcp-tasks[testing]'`), and are imported from their own
modules. All else needs nothing installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcp_tasks.testing.clock import FakeClock
from mcp_tasks.testing.records import make_record, make_request

if TYPE_CHECKING:
    from mcp_tasks.testing.tester import TaskTester

__all__ = ["FakeClock", "TaskTester", "make_record", "make_request"]


def __getattr__(name: str) -> Any:
    # With it comes the SDK, which takes longer to import than a process of a suite takes for its work.
    if name == "TaskTester":
        return import_module("mcp_tasks.testing.tester").TaskTester
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

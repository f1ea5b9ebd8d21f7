"""What tests of this package, of its backends and of servers built with it have in common.

Here is what needs nothing installed. `store_suite` needs pytest, `strategies` and `store_machine` need
Hypothesis (`pip install 'mcp-tasks[testing]'`); they are imported from their own modules.
"""

from mcp_tasks.testing.clock import FakeClock
from mcp_tasks.testing.records import make_record, make_request
from mcp_tasks.testing.tester import TaskTester

__all__ = ["FakeClock", "TaskTester", "make_record", "make_request"]

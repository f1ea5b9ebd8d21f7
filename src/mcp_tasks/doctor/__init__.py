"""What `mcp-tasks doctor` looks at: raw JSON-RPC, so that it sees what a server really sends.

`wire` sends, `shapes` judges one task, `report` collects findings; the other modules are probes, an area each.
"""

from mcp_tasks.doctor.checkup import Checkup
from mcp_tasks.doctor.report import Finding, Report, Verdict

__all__ = ["Checkup", "Finding", "Report", "Verdict"]

"""Is a server's support for tasks right? Ask it, with raw JSON-RPC, and say in plain words what it does wrong.

`examination` asks in order, `probes` are what is asked, and `requests` how. `report` judges the answers and is what
comes of it; `shapes` judges one task.
"""

from mcp_tasks.cli.doctor.examination import examine
from mcp_tasks.cli.doctor.report import Finding, Report, Verdict

__all__ = ["Finding", "Report", "Verdict", "examine"]

"""What is public: the modules whose `__all__` is the API, on which page each of them is, and who needs it."""

from __future__ import annotations

PAGES = {
    "server": ("mcp_tasks", "mcp_tasks.server", "mcp_tasks.legacy.server"),
    "client": ("mcp_tasks.client",),
    "testing": ("mcp_tasks.testing",),
    "doctor": ("mcp_tasks.cli.doctor",),
    "stores": ("mcp_tasks.stores", "mcp_tasks.stores.sqlite", "mcp_tasks.stores.postgres", "mcp_tasks.stores.redis"),
    "engines": ("mcp_tasks.engines", "mcp_tasks.engines.procrastinate", "mcp_tasks.engines.docket"),
    "encryption": ("mcp_tasks.encryption",),
    "errors": ("mcp_tasks.errors",),
}
"""The pages of the reference, and the modules that are described on each."""
TYPES_PAGE = "types"
"""The page of what signatures name and no module exports."""
MODULES = tuple(module for modules in PAGES.values() for module in modules)
AUDIENCES = {
    "Server authors": ("mcp_tasks", "mcp_tasks.server", "mcp_tasks.legacy.server"),
    "Client authors": ("mcp_tasks.client",),
    "Testers": ("mcp_tasks.testing", "mcp_tasks.cli.doctor"),
    "Those who choose stores and engines": (
        "mcp_tasks.stores.sqlite",
        "mcp_tasks.stores.postgres",
        "mcp_tasks.stores.redis",
        "mcp_tasks.engines.procrastinate",
        "mcp_tasks.engines.docket",
        "mcp_tasks.encryption",
    ),
    "Those who write stores and engines": ("mcp_tasks.stores", "mcp_tasks.engines"),
    "Everybody: what may be raised": ("mcp_tasks.errors",),
}
"""Whose names are in which modules, for the index."""

NOT_MADE_BY_CALLERS = frozenset({"ClientTask", "LocalTask", "TaskContext", "TaskHandle"})
"""What is handed out by functions; its constructor is for this package alone."""

"""The defaults of the options of a tool, which their `TypedDict` has no way to tell."""

from __future__ import annotations

import ast
from functools import cache

from docs.api.source import definition


@cache
def option_defaults() -> dict[str, str]:
    """The defaults of the options of a tool, as `TaskOptions` has them. `in_thread` is none."""
    usual = _defaults_in("mcp_tasks.model.options", "TaskOptions")
    del usual["in_thread"]
    return {
        **usual,
        "ttl": _value_of("mcp_tasks.model.options", "DEFAULT_TTL"),
        "queue": _value_of("mcp_tasks.model.record", "DEFAULT_QUEUE"),
        # What holds for all tools.
        "fallback": "None",
    }


def _value_of(module: str, name: str) -> str:
    for node in definition(module, name).nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return ast.unparse(node.value)
    raise LookupError(f"{module}.{name} is not a constant")


def _defaults_in(module: str, name: str) -> dict[str, str]:
    fields = [
        statement
        for node in definition(module, name).nodes
        for statement in (node.body if isinstance(node, ast.ClassDef) else ())
        if isinstance(statement, ast.AnnAssign)
    ]
    return {ast.unparse(field.target): ast.unparse(field.value) for field in fields if field.value is not None}

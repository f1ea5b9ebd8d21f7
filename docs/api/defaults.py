"""The defaults of the options of a tool, which their `TypedDict` has no way to tell."""

from __future__ import annotations

import ast
from functools import cache

from docs.api.source import definition


@cache
def option_defaults() -> dict[str, str]:
    """What holds for an option of a tool that nobody says anything of. A `TypedDict` has no way to tell.

    `TaskOptions` has the defaults. None there means in turn what the runtime's `ToolPolicy` has, and a `ttl` that
    nobody gives is `DEFAULT_TTL`. The queue has a name elsewhere, too.
    """
    usual = _defaults_in("mcp_tasks.server", "TaskOptions")
    policy = _defaults_in("mcp_tasks.runtime.policy", "ToolPolicy")
    chosen = {name: policy.get(name, default) if default == "None" else default for name, default in usual.items()}
    return {
        **chosen,
        "ttl": _value_of("mcp_tasks.server.options", "DEFAULT_TTL"),
        "queue": _value_of("mcp_tasks.model.record", "DEFAULT_QUEUE"),
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

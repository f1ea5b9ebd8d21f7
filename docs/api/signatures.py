"""Signatures as a caller reads them, in the words of the author."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from copy import deepcopy

from docs.api.source import Definition, Function, decorators, definition

LINE = 100
"""Longer signatures have an argument per line."""


def signatures(name: str, found: Sequence[Function]) -> list[str]:
    overloads = [node for node in found if "overload" in decorators(node)]
    return [_signature(name, node) for node in overloads or found[-1:]]


def _signature(name: str, node: Function) -> str:
    returns = "" if node.returns is None else ast.unparse(node.returns)
    marks = decorators(node)
    if any(text.endswith("property") for text in marks):
        return f"{name}: {returns}"
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    if any(text.endswith("contextmanager") for text in marks):
        prefix = "async with " if prefix else "with "
    return wrapped(f"{prefix}{name}(", arguments_text(node.args), f") -> {returns}" if returns else ")")


def arguments_text(arguments: ast.arguments) -> list[str]:
    """The arguments as a caller gives them, so without `self`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [argument_text(argument, default) for argument, default in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if parts[:1] in (["self"], ["cls"]):
        parts = parts[2:] if parts[1:2] == ["/"] else parts[1:]
    if arguments.vararg is not None and "Never" not in ast.unparse(arguments.vararg):
        parts.append(f"*{argument_text(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [argument_text(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return parts if arguments.kwarg is None else [*parts, f"**{argument_text(arguments.kwarg, None)}"]


def argument_text(argument: ast.arg, default: ast.expr | None) -> str:
    typed = argument.arg if argument.annotation is None else f"{argument.arg}: {ast.unparse(argument.annotation)}"
    if default is None:
        return typed
    return f"{typed}{'=' if argument.annotation is None else ' = '}{ast.unparse(default)}"


def with_numbers(arguments: ast.arguments, home: str) -> ast.arguments:
    """The arguments of a constructor with the number where a default is the name of one: it is what is looked up."""
    told = deepcopy(arguments)
    told.defaults = [_number(default, home) for default in told.defaults]
    told.kw_defaults = [None if default is None else _number(default, home) for default in told.kw_defaults]
    return told


def _number(default: ast.expr, home: str) -> ast.expr:
    if not isinstance(default, ast.Name) or not default.id.isupper():
        return default
    for node in definition(home, default.id).nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            return node.value
    return default


def is_argument(field: ast.AnnAssign) -> bool:
    is_plain = not ast.unparse(field.annotation).startswith("ClassVar") and "init=False" not in ast.unparse(field)
    return is_plain and not ast.unparse(field.target).startswith("_")


def field_text(statement: ast.AnnAssign) -> str:
    declared = f"{ast.unparse(statement.target)}: {ast.unparse(statement.annotation)}"
    if statement.value is None:
        return declared
    default = ast.unparse(statement.value)
    return f"{declared} = ..." if default.startswith("field(") else f"{declared} = {default}"


def constant_text(node: Definition) -> str:
    """An assignment; a table that is too long for a line without its entries."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and len(ast.unparse(node)) > LINE:
        return f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)} = {{...}}"
    return ast.unparse(node)


def wrapped(opening: str, parts: Sequence[str], closing: str) -> str:
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) <= LINE or not parts:
        return line
    return "\n".join([opening, *(f"    {part}," for part in parts), closing])


def is_public(name: str, found: Sequence[Function]) -> bool:
    """Whether callers may use a member: one that takes or gives something private is for the module itself."""
    is_private = re.search(r"\b_[A-Za-z]", " ".join(signatures(name, found)))
    return name == "__call__" or (not name.startswith("_") and not is_private)

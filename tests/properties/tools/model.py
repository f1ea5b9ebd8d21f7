"""What a tool may end with, said without running it: the outcomes that some schedule of the plain tool allows.

A value or an error names where in the tree it comes from, so that one that came from elsewhere is noticed."""

from collections.abc import Sequence
from typing import Any, cast

from tests.properties.tools.tree import (
    Ask,
    Beside,
    Caught,
    Child,
    Gather,
    Group,
    Io,
    MoveOn,
    Node,
    Race,
    Report,
    Seq,
    Sleep,
    Step,
    Twice,
    children_of,
)

SHORT = 120.0
"""Seconds. A result that is kept for less may be gone before its task's parent is run again."""

MAY_BE_CUT_OFF = frozenset({"once", "once_limited"})
"""Tools that may not run again: their tasks fail when their process dies."""


def can_fail(node: Node) -> bool:
    match node:
        case Step():
            return node.fails
        case Ask():
            return node.timeout is not None
        case Child():
            return node.waits
        case Caught():
            return False
        case _:
            return any(map(can_fail, children_of(node)))


def at(path: str, place: int) -> str:
    return f"{path}.{place}"


def allows(node: Node, path: str, value: Any) -> bool:
    match node:
        case Step():
            return not node.fails and value == f"done {path}"
        case Ask():
            return value == f"answered {path}"
        case Sleep():
            return value == f"slept {path}"
        case Io():
            return value == f"worked {path}"
        case Report():
            return value == f"reported {path}"
        case Child():
            if not node.waits:
                return value == f"started {path}"
            return isinstance(value, dict) and "child" in value and allows(node.child, "0", value["child"])
        case Twice():
            return value == [f"answered {path}"] * 2 if node.asks else value == [f"slept {path}"] * 2
        case Seq() | Gather() | Group() | Beside():
            return _allows_all(children_of(node), path, value)
        case Race():
            winner: int = value[0]
            return 0 <= winner < len(node.children) and allows(node.children[winner], at(path, winner), value[1])
        case MoveOn():
            return value == f"moved on {path}" or allows(node.child, at(path, 0), value)
        case Caught():
            caught = isinstance(value, dict) and may_fail(node.child, at(path, 0), value["caught"])
            return caught or allows(node.child, at(path, 0), value)


def may_fail(node: Node, path: str, error: Any) -> bool:
    match node:
        case Step():
            return node.fails and error == f"failed {path}"
        case Ask():
            return node.timeout is not None and error == f"timed out {path}"
        case Sleep() | Io() | Report() | Twice() | Caught():
            return False
        case Child():
            if error == f"child gone {path}":
                return node.ttl < SHORT
            may_fail_at_all = node.tool in MAY_BE_CUT_OFF or can_fail(node.child)
            return node.waits and may_fail_at_all and error == f"child failed {path}"
        case Group():
            return isinstance(error, list) and _all_may_fail(node, path, cast("list[Any]", error))
        case Seq() | Gather() | Race() | Beside() | MoveOn():
            return _child_may_fail(node, path, error)


def _allows_all(children: Sequence[Node], path: str, value: Any) -> bool:
    return len(value) == len(children) and all(
        allows(child, at(path, place), value[place]) for place, child in enumerate(children)
    )


def _all_may_fail(group: Group, path: str, errors: list[Any]) -> bool:
    return bool(errors) and all(_child_may_fail(group, path, each) for each in errors)


def _child_may_fail(node: Node, path: str, error: Any) -> bool:
    return any(may_fail(child, at(path, place), error) for place, child in enumerate(children_of(node)))

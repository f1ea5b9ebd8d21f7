"""Which schemas of a peer may be left to others: to the SDK, whose validator works for as long as a schema asks it to.

`schemas` is for our own checks. What the SDK checks by itself (a result, against the `outputSchema` of its tool), it
checks with patterns that backtrack and references that double, so it is better not given such a schema at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

MOST_NODES: Final = 10_000
"""Parts of a schema, each counted as often as something refers to it."""

DEEPEST: Final = 64
"""References that follow from one another."""

_NAMED_BY_AUTHORS: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples", "required", "dependentRequired"})
_UNTAMED: Final = frozenset(
    {"pattern", "patternProperties", "uniqueItems", "$dynamicRef", "$recursiveRef", "unevaluatedProperties"}
)


def is_tame(schema: Any) -> bool:
    """Whether any validator is soon done with the schema: it is small with all that it refers to, has no patterns, and
    leads neither back to itself nor elsewhere."""
    try:
        _Walk(schema).walk(schema, ())
    except (_Untamed, RecursionError):
        return False
    return True


def target_of(reference: object, root: Any) -> Any:
    """What a reference within a schema leads to.

    Raises:
        LookupError: It leads nowhere, or elsewhere.
    """
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise LookupError(f"{str(reference)[:80]!r} is not in the schema")
    target: Any = root
    for step in reference[2:].split("/") if reference != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = cast("Mapping[str, Any]", target)[name]
        elif isinstance(target, Sequence) and not isinstance(target, str) and name.isdecimal() and len(name) < 6:
            target = cast("Sequence[Any]", target)[int(name)]
        else:
            raise LookupError(f"{reference[:80]!r} is not in the schema")
    return target


class _Untamed(Exception):
    pass


class _Walk:
    """Goes through a schema with all that it refers to, for so many steps."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MOST_NODES

    def walk(self, node: Any, stack: tuple[str, ...]) -> None:
        """Go through a part, to which the references of `stack` led."""
        self._left -= 1
        if self._left < 0 or len(stack) > DEEPEST:
            raise _Untamed("it is too large")
        if isinstance(node, list):
            for inner in cast("list[Any]", node):
                self.walk(inner, stack)
        elif isinstance(node, Mapping):
            self._walk_object(cast("Mapping[str, Any]", node), stack)

    def _walk_object(self, node: Mapping[str, Any], stack: tuple[str, ...]) -> None:
        if node.keys() & _UNTAMED or ("$id" in node and node is not self._root):
            raise _Untamed("it has keywords of which the cost cannot be told")
        for keyword, value in node.items():
            if keyword == "$ref":
                self._follow(value, stack)
            elif keyword in _NAMED_BY_AUTHORS and isinstance(value, Mapping):
                for inner in cast("Mapping[str, Any]", value).values():
                    self.walk(inner, stack)
            elif keyword not in _NO_SCHEMAS:
                self.walk(value, stack)

    def _follow(self, reference: Any, stack: tuple[str, ...]) -> None:
        if reference in stack:
            raise _Untamed("it leads back to itself")
        try:
            target = target_of(reference, self._root)
        except LookupError as exc:
            raise _Untamed(str(exc)) from None
        self.walk(target, (*stack, reference))

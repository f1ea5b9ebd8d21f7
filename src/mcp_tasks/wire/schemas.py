"""JSON schemas that somebody else wrote: checked against with bounded work, and without asking the network.

A schema can be a bomb: references that fan out, patterns that backtrack, nesting that has no end. So every keyword that
is evaluated is paid for out of a budget, patterns are matched by `patterns`, and a reference leads to another place in
the same schema or nowhere. Where that is not enough to come to a verdict, there is none: `Unchecked`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, cast

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import (
    ValidationError,
    best_match,  # pyright: ignore[reportUnknownVariableType]
)
from jsonschema.validators import extend  # pyright: ignore[reportUnknownVariableType]
from referencing import Registry

from mcp_tasks.core.json import JsonObject
from mcp_tasks.wire.patterns import PatternRefused, matches

MOST_STEPS: Final = 50_000
"""Keywords, and what they go through, that one value may cost: under a second."""

MOST_NODES: Final = 10_000
"""Objects and lists in a schema."""

DEEPEST: Final = 64
"""Levels of nesting in a schema, as of JSON on the wire."""

LONGEST_MESSAGE: Final = 500
"""Characters of what is said of a misfit: it quotes the value and the schema, which may be large."""


class Unchecked(Exception):
    """There is no verdict: the schema is not valid, leads elsewhere, or asks for too much. The message says which."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """How a value does not fit a schema: where in the value, and what is wrong there."""

    path: str
    message: str


def misfit_of(value: Any, schema: JsonObject, *, steps: int = MOST_STEPS) -> Misfit | None:
    """How the value does not fit the schema; None if it does.

    Raises:
        Unchecked: There is no telling.
    """
    _check_size(schema)
    token = _steps_left.set([steps])
    try:
        # Without formats: those of the metaschema would have Python compile every pattern.
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))
        # With a registry of its own, so that a reference to elsewhere is never fetched.
        registry: Registry[Any] = Registry()
        validator: Any = _Bounded(schema, registry=registry)
        error = cast("ValidationError | None", best_match(validator.iter_errors(value)))
    except (Unchecked, PatternRefused) as exc:
        raise Unchecked(str(exc)) from exc
    except RecursionError:
        raise Unchecked("the schema leads back to itself") from None
    except Exception as exc:
        # A validator that is given a bad schema raises what it likes.
        raise Unchecked(f"the schema cannot be used: {str(exc).partition(chr(10))[0][:LONGEST_MESSAGE]}") from exc
    finally:
        _steps_left.reset(token)
    return None if error is None else Misfit(error.json_path, error.message[:LONGEST_MESSAGE])


def is_tame(schema: Any) -> bool:
    """Whether any validator is soon done with the schema: it is small with all that it refers to, has no patterns, and
    leads neither back to itself nor elsewhere."""
    try:
        _Walk(schema).walk(schema, ())
    except (Unchecked, RecursionError):
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


# Keywords that pay for what they do

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")

_Check = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


def _pays(check: _Check) -> _Check:
    def paying(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        left = _steps_left.get()
        left[0] -= 1 + _length(value) + _length(instance)
        if left[0] < 0:
            raise Unchecked("the schema asks for too much work")
        return check(validator, value, instance, schema)

    return paying


def _length(value: Any) -> int:
    return len(cast("Sequence[Any]", value)) if isinstance(value, list | dict) else 0


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, part in patterns.items():
        for name, value in cast("dict[str, Any]", instance).items():
            if matches(pattern, name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    named: Mapping[str, Any] = schema.get("properties", {})
    patterns: Mapping[str, Any] = schema.get("patternProperties", {})
    held = cast("dict[str, Any]", instance)
    others = [name for name in held if name not in named and not any(matches(p, name) for p in patterns)]
    if isinstance(part, dict):
        for name in others:
            yield from validator.descend(held[name], part, path=name)
    elif part is False and others:
        yield ValidationError(f"Additional properties are not allowed ({', '.join(map(repr, others[:10]))})")


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if unique and isinstance(instance, list):
        items = cast("list[Any]", instance)
        if len({_hashable(item) for item in items}) < len(items):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _hashable(value: Any) -> Hashable:
    """The value as something by which equal ones are found. 1 and 1.0 are equal in JSON; 1 and true are not."""
    match value:
        case bool():
            return "a truth value", value
        case list():
            return "a list", *map(_hashable, cast("list[Any]", value))
        case dict():
            held = cast("dict[str, Any]", value)
            return "an object", frozenset((name, _hashable(item)) for name, item in held.items())
        case _:
            return value


_KEYWORDS: Mapping[str, _Check] = {
    **cast("Mapping[str, _Check]", Draft202012Validator.VALIDATORS),
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}

_Bounded = cast("Any", extend(Draft202012Validator, {name: _pays(check) for name, check in _KEYWORDS.items()}))


# Going through a schema


def _check_size(schema: Any) -> None:
    """Refuse a schema that is too large or too deep to be looked at, or that the library would match patterns for."""
    left, names = MOST_NODES, set[str]()
    level = [schema]
    for _ in range(DEEPEST):
        left -= len(level)
        if left < 0 or not level:
            break
        names.update(name for node in level if isinstance(node, Mapping) for name in cast("Mapping[str, Any]", node))
        level = [inner for node in level for inner in _parts(node)]
    if level:
        raise Unchecked(f"the schema is too large or too deep: {MOST_NODES} parts and {DEEPEST} levels are the limits")
    if {"unevaluatedProperties", "patternProperties"} <= names:
        # To find what was evaluated, the library matches patterns itself, and backtracks.
        raise Unchecked("the schema has both patternProperties and unevaluatedProperties")


def _parts(node: Any) -> Iterator[Any]:
    """The objects and lists in an object or a list."""
    held: Iterable[Any] = cast("Mapping[str, Any]", node).values() if isinstance(node, Mapping) else node
    return (cast("Any", inner) for inner in held if isinstance(inner, Mapping | list))


_NAMED_BY_AUTHORS: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples", "required", "dependentRequired"})
_UNTAMED: Final = frozenset(
    {"pattern", "patternProperties", "uniqueItems", "$dynamicRef", "$recursiveRef", "unevaluatedProperties"}
)


class _Walk:
    """Goes through a schema with all that it refers to, for so many steps."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MOST_NODES

    def walk(self, node: Any, stack: tuple[str, ...]) -> None:
        """Go through a part, to which the references of `stack` led."""
        self._left -= 1
        if self._left < 0 or len(stack) > DEEPEST:
            raise Unchecked("it is too large")
        if isinstance(node, list):
            for inner in cast("list[Any]", node):
                self.walk(inner, stack)
        elif isinstance(node, Mapping):
            self._walk_object(cast("Mapping[str, Any]", node), stack)

    def _walk_object(self, node: Mapping[str, Any], stack: tuple[str, ...]) -> None:
        if node.keys() & _UNTAMED or ("$id" in node and node is not self._root):
            raise Unchecked("it has keywords of which the cost cannot be told")
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
            raise Unchecked("it leads back to itself")
        try:
            target = target_of(reference, self._root)
        except LookupError as exc:
            raise Unchecked(str(exc)) from None
        self.walk(target, (*stack, reference))

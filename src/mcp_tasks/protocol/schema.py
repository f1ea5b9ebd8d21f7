"""Whether a value fits a JSON schema, with bounded work whoever wrote either of them.

It is the validator of `jsonschema` with some things changed:

- Patterns are searched for in linear time (`schema.py`); one that cannot be is not enforced.
- A reference to another document is never fetched.
- Every rule that is applied counts, and too many are too much: references can double at each level, so a schema of a
  kilobyte may ask for a year of work.
- Equal items of a list are found by hash. The library compares each with each where they cannot be sorted.
- `$schema` is not heeded: the library would go on with a validator of its own, in which none of this holds.

`unevaluatedProperties` and `unevaluatedItems` are not enforced: what they ask for cannot be counted from outside. No
form has them, and no model is made into a schema with them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend  # pyright: ignore[reportUnknownVariableType]
from pydantic_core import SchemaError as PydanticCoreSchemaError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

from mcp_tasks.model.json import valid_text

# ---- patterns
# Regular expressions of JSON schemas, searched for in time that is linear in the text.


LONGEST: Final = 4_096
"""Characters of a pattern. A longer one is not evaluated: compiling it would take a while."""

_KEPT: Final = 256
"""Patterns that are kept compiled. A server asks with the same few; those of a peer must not pile up."""


def found(pattern: str, text: str) -> bool | None:
    """Whether `pattern` occurs in `text`; None if the pattern cannot be evaluated."""
    compiled = _compiled(pattern)
    # Half a character fits no pattern in this engine, not even one that lets everything pass.
    return None if isinstance(compiled, str) else compiled.isinstance_python(valid_text(text))


def why_unusable(pattern: str) -> str | None:
    """Why a pattern cannot be evaluated, in a few words; None if it can."""
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else None


@lru_cache(_KEPT)
def _compiled(pattern: str) -> SchemaValidator | str:
    if len(pattern) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    try:
        return SchemaValidator(core_schema.str_schema(pattern=valid_text(pattern), regex_engine="rust-regex"))
    except PydanticCoreSchemaError as exc:
        # The engine quotes the pattern and points into it; its last line says what is wrong.
        return str(exc).strip().splitlines()[-1].strip().removeprefix("error: ")


MOST_PARTS: Final = 5_000
"""Objects and lists in a schema: checking that it is a schema takes time for each."""

MOST_RULES: Final = 20_000
"""Rules that are applied in one check: a fifth of a second of work."""

MOST_PROBLEMS: Final = 100
"""Problems that are told of one value."""

LONGEST_MESSAGE: Final = 500
"""Characters of a problem in words: the library quotes the whole value."""

_DATA: Final = frozenset({"const", "enum", "default", "examples"})
"""What in a schema is a value and no schema."""

_REFERENCES: Final = frozenset({"$ref", "$dynamicRef"})
_IGNORED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})

_NO_OTHERS: Registry[Any] = Registry()

_Rule = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class UnusableSchema(ValueError):
    """A value cannot be checked: the schema is not valid, refers to elsewhere, or asks for too much work.

    The message quotes no value, so that it can be logged.
    """


class Uncheckable(UnusableSchema):
    """This value cannot be checked: it would take too much work, or the library fails on it.

    Whoever sends such a value must not get by with it; another may fit.
    """


class Schema:
    """A schema that was found to be one, for as many values as there are.

    Raises:
        UnusableSchema: It is none, or too large.
    """

    def __init__(self, schema: Any) -> None:
        work = _Work()
        with _translated():
            own = _own(schema, work)
            # Without the library's formats: one of them compiles patterns with `re`.
            Draft202012Validator.check_schema(own, format_checker=FormatChecker(()))
        self._own: Any = own
        self._parts = work.parts

    def problems(self, value: Any) -> list[ValidationError]:
        """What is wrong with `value`, as much of it as is told; empty if it fits.

        Raises:
            UnusableSchema: The value cannot be checked.
        """
        with _translated():
            return list(islice(self._errors(value), MOST_PROBLEMS))

    def first_problem(self, value: Any, *, most: int = MOST_RULES) -> str | None:
        """The first thing that is wrong with `value`, in words and with its place; None if it fits.

        Args:
            most: Rules that may be applied.

        Raises:
            UnusableSchema: The value cannot be checked.
        """
        with _translated():
            error = next(self._errors(value, most), None)
        return None if error is None else f"{_shortened(error.json_path)}: {_shortened(error.message)}"

    def _errors(self, value: Any, most: int = MOST_RULES) -> Iterator[ValidationError]:
        work = _Work(self._parts, most)
        return iter(_Validator(self._own, registry=_NO_OTHERS, format_checker=work).iter_errors(value))


def not_enforced(schema: Any) -> list[str]:
    """What of a schema is not enforced here, in words for its author; empty if all of it is."""
    return sorted(set(_not_enforced(schema)))


def _not_enforced(schema: Any) -> Iterator[str]:
    for name, part in cast("dict[str, Any]", schema).items() if isinstance(schema, dict) else ():
        if name in _IGNORED:
            yield f"{name} is not enforced"
        for pattern in _patterns(name, part):
            if why := why_unusable(pattern):
                yield f"the pattern {_shortened(pattern)!r} is not enforced: {why}"
        yield from () if name in _DATA else _not_enforced(part)
    for part in cast("list[Any]", schema) if isinstance(schema, list) else ():
        yield from _not_enforced(part)


def _patterns(name: str, part: Any) -> list[str]:
    """The patterns under a keyword. A property of a form may have its name, and is then an object."""
    if name == "pattern":
        return [part] if isinstance(part, str) else []
    return list(cast("dict[str, Any]", part)) if name == "patternProperties" and isinstance(part, dict) else []


@contextmanager
def _translated() -> Generator[None]:
    """Whatever the library runs into, as one error that can be logged."""
    try:
        yield
    except UnusableSchema:
        raise
    except SchemaError as exc:
        raise UnusableSchema(f"it is not a valid JSON schema, at {_shortened(exc.json_path)}") from None
    except Unresolvable as exc:
        raise UnusableSchema(f"it refers to {_shortened(exc.ref)!r}, which is not in it") from None
    except RecursionError:
        raise Uncheckable("it is nested too deeply, or refers to itself for ever") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        # A value or a schema that the library did not think of, such as 10**400 by `multipleOf: 0.1`.
        raise Uncheckable(f"the check failed with {type(exc).__name__}") from None


def _own(schema: Any, work: _Work) -> Any:
    """A copy of the schema that names no dialect."""
    if isinstance(schema, Mapping):
        work.count_part()
        parts = cast("Mapping[str, Any]", schema)
        return {
            name: part if name in _DATA else _own(part, work)
            for name, part in parts.items()
            if name != "$schema" or not isinstance(part, str)
        }
    if isinstance(schema, list | tuple):
        work.count_part()
        return [_own(part, work) for part in cast("list[Any]", schema)]
    return schema


class _Work(FormatChecker):
    """What one check has cost. In the place of a checker of formats: that is what goes along into every part."""

    def __init__(self, parts: int = 0, most: int = MOST_RULES) -> None:
        super().__init__(())
        self.parts: int = parts
        self.most: int = most
        self.rules: int = 0

    def count_part(self) -> None:
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise UnusableSchema(f"it has more than {MOST_PARTS:,} parts")

    def count(self, rules: int = 1) -> None:
        self.rules += rules
        if self.rules > self.most:
            raise Uncheckable(f"the check takes more than {self.most:,} steps")


def _counted(name: str, rule: _Rule) -> _Rule:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        work = validator.format_checker
        # A name is looked for in the whole schema, each time; a pointer leads there.
        is_search = name in _REFERENCES and not (value == "#" or str(value).startswith("#/"))
        work.count(work.parts if is_search else 1)
        return rule(validator, value, instance, schema)

    return counted


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and found(pattern, instance) is False:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, part in patterns.items():
        for name, value in cast("dict[str, Any]", instance).items():
            validator.format_checker.count()
            if found(pattern, name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name, value in cast("dict[str, Any]", instance).items():
        validator.format_checker.count(1 + len(patterns))
        # A pattern that cannot be evaluated may be the one that allows the name.
        if name in schema.get("properties", {}) or any(found(pattern, name) is not False for pattern in patterns):
            continue
        if part is False:
            yield ValidationError(f"Additional properties are not allowed ({name!r} was unexpected)")
        else:
            yield from validator.descend(value, part, path=name)


def _unique_items(validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if not wanted or not isinstance(instance, list):
        return
    items = cast("list[Any]", instance)
    validator.format_checker.count(len(items) // 10)
    if len({_identity(item) for item in items}) < len(items):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _identity(value: Any) -> Any:
    """What two equal JSON values have in common, to be hashed. Numbers as text: somebody could choose equal hashes."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return ("number", hex(int(value)))
    if isinstance(value, float):
        return ("number", value.hex())
    if isinstance(value, list):
        return ("list", *map(_identity, cast("list[Any]", value)))
    if isinstance(value, dict):
        return frozenset((name, _identity(item)) for name, item in cast("dict[str, Any]", value).items())
    return value


def _nothing(_validator: Any, _rule: Any, _instance: Any, _schema: Any) -> None:
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"


_RULES: Final[Mapping[str, _Rule]] = {
    **cast("Mapping[str, _Rule]", Draft202012Validator.VALIDATORS),
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "format": _nothing,
    **dict.fromkeys(_IGNORED, _nothing),
}

_Validator: Final = cast(
    "Callable[..., Validator]",
    extend(Draft202012Validator, {name: _counted(name, rule) for name, rule in _RULES.items()}),
)


# ---- tame
# Which schemas of a peer may be left to others: to the SDK, whose validator works for as long as a schema asks it to.


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
    left = MOST_NODES

    def visit(node: Any, stack: tuple[str, ...]) -> None:
        """Go through a part, to which the references of `stack` led."""
        nonlocal left
        left -= 1
        if left < 0 or len(stack) > DEEPEST:
            raise _Untamed("it is too large")
        if isinstance(node, list):
            for inner in cast("list[Any]", node):
                visit(inner, stack)
        if not isinstance(node, Mapping):
            return
        keywords = cast("Mapping[str, Any]", node)
        if keywords.keys() & _UNTAMED or ("$id" in keywords and node is not schema):
            raise _Untamed("it has keywords of which the cost cannot be told")
        for keyword, value in keywords.items():
            if keyword == "$ref":
                if value in stack:
                    raise _Untamed("it leads back to itself")
                visit(target_of(value, schema), (*stack, value))
            elif keyword in _NAMED_BY_AUTHORS and isinstance(value, Mapping):
                for inner in cast("Mapping[str, Any]", value).values():
                    visit(inner, stack)
            elif keyword not in _NO_SCHEMAS:
                visit(value, stack)

    try:
        visit(schema, ())
    except (_Untamed, LookupError, RecursionError):
        return False
    return True


class _Untamed(Exception):
    pass


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

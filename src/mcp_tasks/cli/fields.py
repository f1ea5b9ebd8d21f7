"""Values of a JSON schema from what a person types: arguments of a tool, and the fields of a question.

The schema says what a text means (`3` is a number for one field and a text for another) and what is allowed. It is the
server's, and may be anything: of one that is too much to go through, a field takes anything, and the server has the
last word. Nothing that it refers to is fetched.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from difflib import get_close_matches
from typing import Any, Final, cast
from urllib.parse import urlsplit

from jsonschema.exceptions import (
    ValidationError,
    best_match,  # pyright: ignore[reportUnknownVariableType]
)

from mcp_tasks.client.ledger import on_one_line
from mcp_tasks.errors import BadValue
from mcp_tasks.model.json import JsonObject
from mcp_tasks.protocol.schema import Schema, UnusableSchema, target_of

# ---- conversions
# Text to JSON value and back, one type at a time, and the text formats that questions use.


YES: Final = frozenset({"yes", "y", "true", "on"})
NO: Final = frozenset({"no", "n", "false", "off"})


FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "email": ("an e-mail address", "ann@example.com"),
    "uri": ("a URI", "https://example.com"),
    "date": ("a date", "2026-07-28"),
    "date-time": ("a date and time with its offset", "2026-07-28T12:00:00Z"),
}
"""The formats that questions may use: each in words, and one text that has it."""


def chosen_word(text: str, words: Iterable[str]) -> str | None:
    """The word of a menu that was typed, whole or by its first letter; None for anything else: somebody who types
    `continue` does not mean `cancel`."""
    typed = text.strip().removeprefix("/").casefold()
    return next((word for word in words if typed in (word, word[0])), None)


def convert(text: str, kinds: AbstractSet[str]) -> Any:
    """The value that `text` stands for in a field of these JSON types.

    Raises:
        ValueError: The text stands for no value of these types.
    """
    if not kinds:
        return _anything(text)
    if "string" in kinds and text.casefold() in (YES | NO) - {"true", "false"}:
        # A field that may be a text or a truth value: only JSON's own words are the latter.
        return text
    converters: Sequence[tuple[str, Callable[[str], Any]]] = (
        ("null", _null),
        ("integer", _integer),
        ("number", _number),
        ("boolean", _boolean),
        ("array", _conversions_list),
        ("object", _conversions_object),
        ("string", str),
    )
    for kind, read in converters:
        if kind in kinds:
            try:
                return read(text)
            except ValueError:
                continue
    raise ValueError(text)


def check_format(name: Any, value: Any) -> None:
    """Check the formats that questions may use; a validator is not obliged to.

    Raises:
        BadValue: The text is not of this format.
    """
    if not isinstance(value, str):
        return
    checks: Mapping[str, Callable[[str], Any]] = {
        "email": _email,
        "uri": _uri,
        "date": date.fromisoformat,
        "date-time": _instant,
    }
    if name in checks:
        try:
            checks[name](value)
        except ValueError:
            wanted, example = FORMATS[name]
            raise BadValue(f"expected {wanted}, like {example}, got {value!r}") from None


def as_text(value: Any) -> str:
    """A JSON value as somebody would type it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(as_text(item) for item in cast("list[Any]", value))
    return value if isinstance(value, str) else json.dumps(value)


def _anything(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _null(text: str) -> None:
    if text != "null":
        raise ValueError


def _integer(text: str) -> int:
    number = _number(text)
    if number != int(number):
        raise ValueError
    # Not by way of a float, which has no room for large ones.
    return int(text) if text.strip().lstrip("+-").isdigit() else int(number)


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    if text.casefold() in YES | NO:
        return text.casefold() in YES
    raise ValueError


def _conversions_list(text: str) -> list[Any]:
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError
    return cast("list[Any]", value)


def _conversions_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return cast("dict[str, Any]", value)


def _email(text: str) -> None:
    name, at, host = text.rpartition("@")
    if not (name and at and host) or " " in text:
        raise ValueError


def _uri(text: str) -> None:
    if not urlsplit(text).scheme:
        raise ValueError


def _instant(text: str) -> None:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError


NOTHING: Final = object()
"""No default; None is one."""

MOST_PARTS: Final = 2_000
"""Parts of a schema that are gone through for its fields, each as often as something refers to it."""

DEEPEST: Final = 32
"""References and unions inside one another."""

LONGEST: Final = 200
"""Characters that are said of what a field takes."""

_WORDS: Final[Mapping[str, str]] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "yes or no",
    "array": "list",
    "object": "JSON object",
    "null": "null",
}

_SEVERAL: Final[Mapping[str, str]] = {
    "string": "texts",
    "integer": "whole numbers",
    "number": "numbers",
    "object": "JSON objects",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One of the values a field may have, and what it is called."""

    value: Any
    title: str

    def matches(self, text: str) -> bool:
        """Whether `text` names it."""
        return text == _plain(self.value) or text.casefold() in (
            _plain(self.value).casefold(),
            self.title.casefold(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One property of an object schema.

    Attributes:
        kinds: The JSON types it may have; empty if the schema does not say.
        choices: If there are any, it is one of them; or several, if `multiple`.
        schema: What a value is checked against, complete with what it refers to.
    """

    name: str
    title: str
    description: str
    required: bool
    default: Any
    kinds: frozenset[str]
    choices: tuple[Choice, ...]
    multiple: bool
    schema: JsonObject

    @property
    def has_default(self) -> bool:
        """Whether leaving it out means something."""
        return self.default is not NOTHING

    def read(self, text: str) -> Any:
        """The value that `text` stands for; of a list, JSON or its only item.

        Raises:
            BadValue: The text stands for no value that is allowed here.
        """
        return self.check(self._convert(text))

    def read_many(self, texts: Sequence[str]) -> Any:
        """The value of a field that was given in several texts: a list.

        Raises:
            BadValue: It takes no list, or not this one.
        """
        if "array" not in self.kinds:
            raise BadValue("given more than once, and it takes one value")
        return self.check([self.item.read(text) for text in texts])

    def read_line(self, text: str) -> Any:
        """The value of what somebody typed at a prompt: choices by name or by their number, several values with
        commas (as JSON if a value has a comma in it).

        Raises:
            BadValue: It stands for no value that is allowed here.
        """
        if not self.is_list:
            return self.check(self._nth(text)) if self.choices else self.read(text)
        if text.lstrip().startswith("[") or (text == "null" and "null" in self.kinds):
            return self.read(text)
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return self.check([self._nth(part) if self.choices else self.item.read(part) for part in parts])

    @property
    def is_list(self) -> bool:
        """Whether it takes a list, and nothing else but null."""
        return self.multiple or self.kinds - {"null"} == frozenset({"array"})

    @property
    def item(self) -> Field:
        """An item of it, if it is a list."""
        return field_of("", _object(self.schema.get("items")), self.schema)

    def check(self, value: Any) -> Any:
        """The value, if the schema allows it, or if there is no telling."""
        try:
            error = cast("ValidationError | None", best_match(Schema(self.schema).problems(value)))
        except UnusableSchema:
            return value
        if error is not None:
            raise BadValue(shortened(error.message))
        check_format(self.schema.get("format"), value)
        return value

    def _convert(self, text: str) -> Any:
        if self.choices and not (self.multiple and text.lstrip().startswith("[")):
            return self._several(text) if self.multiple else self.choose(text)
        try:
            return convert(text, self.kinds)
        except ValueError:
            if "array" in self.kinds and text and not text.lstrip().startswith("["):
                return [self.item.read(text)]
            raise BadValue(f"expected {self.wanted()}, got {text!r}") from None

    def _nth(self, text: str) -> Any:
        """A choice by its name, or by its place in the list; a number that is a choice itself is that."""
        if not text.isdecimal() or any(choice.matches(text) for choice in self.choices):
            return self.choose(text)
        place = int(text) - 1
        return self.choices[place].value if 0 <= place < len(self.choices) else self.choose(text)

    def choose(self, text: str) -> Any:
        """The choice that `text` names.

        Raises:
            BadValue: No choice has that name.
        """
        for choice in self.choices:
            if choice.matches(text):
                return choice.value
        if "null" in self.kinds and text == "null":
            return None
        raise BadValue(f"expected one of {', '.join(_plain(c.value) for c in self.choices)}, got {text!r}")

    def _several(self, text: str) -> list[Any]:
        return [self.choose(part.strip()) for part in text.split(",") if part.strip()]

    def wanted(self) -> str:
        """What it takes, in words."""
        if self.choices:
            names = shortened(", ".join(_plain(choice.value) for choice in self.choices))
            return f"some of {names}" if self.multiple else f"one of {names}"
        # Whoever means null leaves out what need not be given.
        kinds = self.kinds if self.required else self.kinds - {"null"} or self.kinds
        words = {**_WORDS, "array": _list_words(_kinds(_object(self.schema.get("items"))))}
        said = " or ".join(word for kind, word in words.items() if kind in kinds) or "anything"
        return shortened(" ".join(filter(None, (said, _bounds(self.schema)))))

    def wanted_line(self) -> str:
        """What `read_line` takes, in words."""
        if self.multiple:
            return "numbers or names, with commas"
        wanted = "a number or a name" if self.choices else self.wanted()
        return f"{wanted}, with commas" if self.is_list else wanted

    def describe(self) -> str:
        """What it takes, whether it must be given, what it is without, and what it is for: half a line."""
        default = (
            f", default {shortened(json.dumps(self.default))}" if self.has_default and self.default is not None else ""
        )
        about = f"; {self.description}" if self.description else ""
        return f"{self.wanted()}{', required' if self.required else ''}{default}{about}"


def fields_of(schema: JsonObject) -> list[Field]:
    """The properties of an object schema, in its order."""
    required = _list(schema.get("required"))
    reader = _Reader(schema)
    return [
        reader.field(name, _object(part), required=name in required)
        for name, part in _object(schema.get("properties")).items()
    ]


def field_lines(fields: Sequence[Field]) -> list[str]:
    """What each field takes: a line each, fit for a terminal, with the names in a column."""
    names = [on_one_line(field.name) for field in fields]
    width = max(map(len, names), default=0)
    return [f"  {name:<{width}}  {on_one_line(field.describe())}" for name, field in zip(names, fields, strict=True)]


def field_of(name: str, part: JsonObject, root: JsonObject) -> Field:
    """One field from its own part of a schema and the whole that it may refer to."""
    return _Reader(root).field(name, part)


class _Reader:
    """Goes through a schema for its fields, for so many steps."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._left = MOST_PARTS

    def field(self, name: str, part: JsonObject, *, required: bool = False) -> Field:
        """One field from its own part of the schema."""
        resolved = self._resolve(part)
        items = self._resolve(_object(resolved.get("items")))
        own = _choices(resolved)
        kinds = _kinds(resolved)
        return Field(
            name=name,
            title=str(resolved.get("title") or name),
            description=str(resolved.get("description") or ""),
            required=required,
            default=resolved.get("default", NOTHING),
            kinds=kinds or (frozenset({"string"}) if own else kinds),
            choices=own or _choices(items),
            multiple=not own and bool(_choices(items)),
            schema={**{key: self._root[key] for key in ("$defs", "definitions") if key in self._root}, **resolved},
        )

    def _resolve(self, part: JsonObject, depth: int = 0) -> dict[str, Any]:
        """A schema without references and without the wrapping that makes it optional; an empty one, which takes
        anything, where that is too much."""
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            return {}
        if "$ref" in part:
            try:
                target = _object(target_of(part["$ref"], self._root))
            except LookupError:
                target = {}
            own = {key: value for key, value in part.items() if key != "$ref"}
            return {**self._resolve(target, depth + 1), **own}
        for word in ("anyOf", "oneOf"):
            options = [self._resolve(_object(option), depth + 1) for option in _list(part.get(word))]
            if options and not all("const" in option for option in options):
                return _merge_options(part, options)
        return dict(part)


def _kinds(schema: JsonObject) -> frozenset[str]:
    kind = schema.get("type")
    return frozenset(name for name in ([kind] if isinstance(kind, str) else _list(kind)) if isinstance(name, str))


def _merge_options(part: JsonObject, options: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The types that a union has; and the whole rest of its one option, if null is the only other."""
    real = [option for option in options if option.get("type") != "null"]
    kinds = frozenset[str]().union(*map(_kinds, options))
    inner = {key: value for key, value in real[0].items() if key not in ("enum", "oneOf")} if len(real) == 1 else {}
    merged = {**inner, **part, "type": sorted(kinds)}
    if len(real) == 1 and "enum" in real[0]:
        merged["enum"] = [*_list(real[0]["enum"]), *([None] if len(options) > 1 else [])]
    return merged


def _choices(schema: JsonObject) -> tuple[Choice, ...]:
    titled = [_object(option) for option in _list(schema.get("oneOf")) or _list(schema.get("anyOf"))]
    if titled and all("const" in option for option in titled):
        return tuple(Choice(value=o["const"], title=str(o.get("title") or o["const"])) for o in titled)
    values = [value for value in _list(schema.get("enum")) if value is not None]
    names = _list(schema.get("enumNames")) or values
    return tuple(Choice(value=value, title=str(name)) for value, name in zip(values, names, strict=False))


def _list_words(kinds: frozenset[str]) -> str:
    """A list, with what is in it where that is one thing that has a plural."""
    [kind] = kinds if len(kinds) == 1 else [""]
    return f"list of {_SEVERAL[kind]}" if kind in _SEVERAL else "list"


def _bounds(schema: JsonObject) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"from {low} to {high}"
    if low is not None or high is not None:
        return f"of at least {low}" if low is not None else f"of at most {high}"
    short, long = schema.get("minLength"), schema.get("maxLength")
    if short or long:
        return f"of {short or 0} to {long} characters" if long else f"of at least {short} characters"
    form = schema.get("format")
    return f"({form})" if isinstance(form, str) else ""


def _object(value: Any) -> dict[str, Any]:
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def shortened(text: str) -> str:
    """So much of a text as is said of a field."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ---- examples
# A value that a schema allows, to show somebody how one is written.


EXAMPLES_DEEPEST: Final = 4
"""Lists and objects inside one another; what is further down is left out."""


def example_of(field: Field) -> Any:
    """A value that the field takes; of a list, two items if they can differ.

    Raises:
        BadValue: None comes to mind that the schema allows.
    """
    return field.check(_example(field, 0))


def _example(field: Field, depth: int) -> Any:
    if depth > EXAMPLES_DEEPEST:
        raise BadValue("too deep for an example")
    given = field.schema.get("examples")
    if field.choices:
        values = [choice.value for choice in field.choices]
        return values[:2] if field.multiple else values[0]
    if isinstance(given, list) and given:
        return cast("list[Any]", given)[0]
    if field.has_default and field.default is not None:
        return field.default
    for kind in ("array", "object", "string", "integer", "number", "boolean"):
        if kind in field.kinds:
            return _of_kind(kind, field, depth)
    return "text"


def _of_kind(kind: str, field: Field, depth: int) -> Any:
    schema = field.schema
    match kind:
        case "array":
            return _items(field, depth)
        case "object":
            return _properties(field, depth)
        case "string":
            text = FORMATS.get(str(schema.get("format")), ("", "text"))[1]
            short, long = schema.get("minLength"), schema.get("maxLength")
            text = text.ljust(short, "x") if isinstance(short, int) and short < 100 else text
            return text[:long] if isinstance(long, int) else text
        case "boolean":
            return True
        case _:
            return _examples_number(schema, whole=kind == "integer")


def _items(field: Field, depth: int) -> list[Any]:
    item = field.item
    first = _example(item, depth + 1)
    if isinstance(first, bool | dict | list) or item.schema.get("format") or item.has_default:
        return [first]
    second: Any = first + 1 if isinstance(first, int | float) else "more"
    try:
        return [first, item.check(second)]
    except BadValue:
        return [first]


def _properties(field: Field, depth: int) -> dict[str, Any]:
    parts = fields_of(field.schema)
    chosen = [part for part in parts if part.required] or parts[:1]
    if chosen:
        return {part.name: _example(part, depth + 1) for part in chosen}
    others = field.schema.get("additionalProperties")
    if not isinstance(others, Mapping):
        return {"key": "value"}
    return {"key": _example(field_of("", cast("Mapping[str, Any]", others), field.schema), depth + 1)}


def _examples_number(schema: Mapping[str, Any], *, whole: bool) -> float | int:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    number: float | int = 1 if whole else 1.5
    if isinstance(above, int | float) and number <= above:
        number = above + 1
    if isinstance(below, int | float) and number >= below:
        number = below - 1
    if isinstance(low, int | float):
        number = max(number, low)
    if isinstance(high, int | float):
        number = min(number, high)
    step = schema.get("multipleOf")
    if isinstance(step, int) and step > 0:
        number = math.ceil(number / step) * step
    return math.ceil(number) if whole else number


# ---- words
# KEY=VALUE words as the values that a schema asks for, and how those are written.


def read_words(schema: JsonObject, words: Iterable[str], *, known: JsonObject | None = None) -> dict[str, Any]:
    """The values that words give, each checked against its part of `schema`.

    Args:
        known: Values to begin with, which are not checked; words come on top of them.

    Raises:
        BadValue: Something is unknown, missing or wrong. The message says what, `names` which fields are missing or
            wrong, and `hint` what can be given.
    """
    try:
        return _read_all(schema, words, known or {})
    except BadValue as exc:
        raise BadValue(str(exc), names=exc.names, hint=describe_words(schema, exc.names)) from exc


def describe_words(schema: JsonObject, names: Sequence[str] = ()) -> str:
    """What can be given in words, a line each, and how that is written; fit for a terminal.

    Args:
        names: The fields that have to be written; as far as nothing is said, those that must be given.
    """
    fields = fields_of(schema)
    if not fields:
        return "It takes no arguments."
    wanted = [field for field in fields if (field.name in names if names else field.required)] or fields[:1]
    examples = [on_one_line(word).partition("=") for field in wanted for word in example_words(field)]
    line = " ".join(f"{shlex.quote(name)}={shlex.quote(value)}" for name, _, value in examples)
    return "\n".join(["It takes:", *field_lines(fields), *([f"Write it like this: {line}"] if line else [])])


def _read_all(schema: JsonObject, words: Iterable[str], known: JsonObject) -> dict[str, Any]:
    fields = {field.name: field for field in fields_of(schema)}
    texts: dict[str, list[str]] = {}
    values: dict[str, Any] = dict(known)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise BadValue(f"{word!r} is not KEY=VALUE")
        if name.endswith(":"):
            name = name[:-1]
            values[name] = _json_of(text, name)
            if name in fields:
                with _about(fields[name]):
                    fields[name].check(values[name])
        else:
            texts.setdefault(name, []).append(text)
    for name, given in texts.items():
        values[name] = _read(_field(name, fields, schema), given)
    missing = [field.name for field in fields.values() if field.required and field.name not in values]
    if missing:
        raise BadValue(f"missing: {', '.join(missing)}", names=missing)
    return values


def keys_of(words: Iterable[str]) -> set[str]:
    """The names of the fields that words give values to."""
    return {word.partition("=")[0].removesuffix(":") for word in words if "=" in word}


def example_words(field: Field) -> list[str]:
    """Words that give a field a value that it takes; none if no such value comes to mind."""
    try:
        value = example_of(field)
    except BadValue:
        return []
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    if isinstance(value, dict) or not items or any(isinstance(item, list | dict) for item in items):
        return [f"{field.name}:={json.dumps(value)}"]
    texts = [as_text(item) for item in items]
    try:
        is_plain = _read(field, texts) == value
    except BadValue:
        is_plain = False
    return [f"{field.name}={text}" for text in texts] if is_plain else [f"{field.name}:={json.dumps(value)}"]


def _read(field: Field, texts: Sequence[str]) -> Any:
    with _about(field):
        return field.read(texts[0]) if len(texts) == 1 else field.read_many(texts)


@contextmanager
def _about(field: Field) -> Generator[None]:
    """Have a problem name the field that it is about."""
    try:
        yield
    except BadValue as exc:
        raise BadValue(f"{field.name}: {exc}", names=[field.name]) from exc


def _field(name: str, fields: Mapping[str, Field], schema: JsonObject) -> Field:
    if name in fields:
        return fields[name]
    if schema.get("additionalProperties") or not (fields or schema.get("type") == "object"):
        # The schema wants more than it names, or says nothing at all.
        return field_of(name, cast("JsonObject", {}), schema)
    near = get_close_matches(name, fields, n=1)
    guess = f"; did you mean {near[0]}?" if near else ""
    raise BadValue(f"unknown: {name}{guess}")


def _json_of(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise BadValue(f"{name} is not valid JSON: {exc}", names=[name]) from exc

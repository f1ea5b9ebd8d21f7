"""Values of a JSON schema from what a person types: arguments of a tool, and the fields of a question.

The schema says what a text means (`3` is a number for one field and a text for another) and what is allowed. It is the
server's, and may be anything: if it is too large to go through, a field takes anything, and the server decides. Nothing
that it refers to is fetched.
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

YES: Final = frozenset({"yes", "y", "true", "on"})
NO: Final = frozenset({"no", "n", "false", "off"})

NOTHING: Final = object()
"""No default; None is one."""

MOST_PARTS: Final = 2_000
"""Parts of a schema that are gone through for its fields, each as often as something refers to it."""

DEEPEST: Final = 32
"""References and unions inside one another."""

EXAMPLES_DEEPEST: Final = 4
"""Lists and objects inside one another in an example; deeper ones are left out."""

LONGEST: Final = 200
"""Characters of the description of a field."""


def chosen_word(text: str, words: Iterable[str]) -> str | None:
    """The word of a menu that was typed, whole or by its first letter; None for anything else: a person who types
    `continue` does not mean `cancel`."""
    typed = text.strip().removeprefix("/").casefold()
    return next((word for word in words if typed in (word, word[0])), None)


# ---- conversions
# Text to JSON value and back, one type at a time, and the text formats that questions use.


def _null(text: str) -> None:
    if text != "null":
        raise ValueError


def _integer(text: str) -> int:
    number = _number(text)
    if number != int(number):
        raise ValueError
    # A float has no room for large ones.
    return int(text) if text.strip().lstrip("+-").isdigit() else int(number)


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    if text.casefold() not in YES | NO:
        raise ValueError
    return text.casefold() in YES


def _json_of(kind: type, text: str) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError
    return value


_CONVERTERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "array": lambda text: _json_of(list, text),
    "object": lambda text: _json_of(dict, text),
    "string": str,
}


def convert(text: str, kinds: AbstractSet[str]) -> Any:
    """The value that `text` stands for in a field of these JSON types.

    Raises:
        ValueError: The text stands for no value of these types.
    """
    if not kinds:
        try:
            return json.loads(text)
        except ValueError:
            return text
    if "string" in kinds and text.casefold() in (YES | NO) - {"true", "false"}:
        # In a field that may be a text or a boolean, only JSON's own words are booleans.
        return text
    for kind, read in _CONVERTERS.items():
        if kind in kinds:
            try:
                return read(text)
            except ValueError:
                continue
    raise ValueError(text)


def as_text(value: Any) -> str:
    """A JSON value as a person would type it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(as_text(item) for item in cast("list[Any]", value))
    return _plain(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_email(text: str) -> bool:
    name, at, host = text.rpartition("@")
    return bool(name and at and host) and " " not in text


_FORMATS: Final[Mapping[str, tuple[str, str, Callable[[str], Any]]]] = {
    "email": ("an e-mail address", "ann@example.com", _is_email),
    "uri": ("a URI", "https://example.com", lambda text: urlsplit(text).scheme),
    "date": ("a date", "2026-07-28", date.fromisoformat),
    "date-time": (
        "a date and time with its offset",
        "2026-07-28T12:00:00Z",
        lambda text: datetime.fromisoformat(text).tzinfo,
    ),
}
"""The formats that questions may use: in words, an example, and the check, which a validator is not obliged to make."""


def _check_format(name: Any, value: Any) -> None:
    if not isinstance(value, str) or name not in _FORMATS:
        return
    wanted, example, check = _FORMATS[name]
    try:
        is_one = check(value)
    except ValueError:
        is_one = None
    if not is_one:
        raise BadValue(f"expected {wanted}, like {example}, got {value!r}")


# ---- fields


_WORDS: Final[Mapping[str, str]] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "yes or no",
    "array": "list",
    "object": "JSON object",
    "null": "null",
}

_SEVERAL: Final = frozenset({"string", "integer", "number", "object"})
"""Types with a plural."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One of the values a field may have, and its title."""

    value: Any
    title: str

    def matches(self, text: str) -> bool:
        plain = _plain(self.value)
        return text == plain or text.casefold() in (plain.casefold(), self.title.casefold())


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One property of an object schema.

    Attributes:
        kinds: The JSON types it may have; empty if the schema does not say.
        choices: If there are any, the value is one of them; or several, if `multiple`.
        schema: What a value is checked against, with everything that it refers to.
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
        return self.default is not NOTHING

    @property
    def is_list(self) -> bool:
        """Whether it takes a list, and nothing else but null."""
        return self.multiple or self.kinds - {"null"} == frozenset({"array"})

    @property
    def item(self) -> Field:
        """The field of one item, if it is a list."""
        return field_of("", _object(self.schema.get("items")), self.schema)

    def read(self, texts: Sequence[str]) -> Any:
        """The value that was given in one or several texts; of a list, JSON or its items.

        Raises:
            BadValue: They stand for no value that is allowed here.
        """
        if len(texts) == 1:
            return self.check(self._convert(texts[0]))
        if "array" not in self.kinds:
            raise BadValue("given more than once, and it takes one value")
        return self.check([self.item.read([text]) for text in texts])

    def read_line(self, text: str) -> Any:
        """The value of a line typed at a prompt: choices by name or by their number, several values with commas (as
        JSON if a value has a comma in it).

        Raises:
            BadValue: It stands for no value that is allowed here.
        """
        if not self.is_list:
            return self.check(self._nth(text)) if self.choices else self.read([text])
        if text.lstrip().startswith("[") or (text == "null" and "null" in self.kinds):
            return self.read([text])
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return self.check([self._nth(part) if self.choices else self.item.read([part]) for part in parts])

    def check(self, value: Any) -> Any:
        """The value, if the schema allows it, or if the schema cannot be used."""
        try:
            error = cast("ValidationError | None", best_match(Schema(self.schema).problems(value)))
        except UnusableSchema:
            return value
        if error is not None:
            raise BadValue(_shortened(error.message))
        _check_format(self.schema.get("format"), value)
        return value

    def _convert(self, text: str) -> Any:
        if self.choices and not (self.multiple and text.lstrip().startswith("[")):
            if not self.multiple:
                return self._choose(text)
            return [self._choose(part.strip()) for part in text.split(",") if part.strip()]
        try:
            return convert(text, self.kinds)
        except ValueError:
            if "array" in self.kinds and text and not text.lstrip().startswith("["):
                return [self.item.read([text])]
            raise BadValue(f"expected {self.wanted()}, got {text!r}") from None

    def _nth(self, text: str) -> Any:
        """A choice by its name, or by its place in the list; a number that is itself a choice is that choice."""
        place = int(text) - 1 if text.isdecimal() and not any(choice.matches(text) for choice in self.choices) else -1
        return self.choices[place].value if 0 <= place < len(self.choices) else self._choose(text)

    def _choose(self, text: str) -> Any:
        for choice in self.choices:
            if choice.matches(text):
                return choice.value
        if "null" in self.kinds and text == "null":
            return None
        raise BadValue(f"expected one of {', '.join(_plain(c.value) for c in self.choices)}, got {text!r}")

    def wanted(self) -> str:
        """What it takes, in words."""
        if self.choices:
            names = _shortened(", ".join(_plain(choice.value) for choice in self.choices))
            return f"some of {names}" if self.multiple else f"one of {names}"
        # A field that may be null is usually left out instead.
        kinds = self.kinds if self.required else self.kinds - {"null"} or self.kinds
        [inner] = items if len(items := _kinds(_object(self.schema.get("items")))) == 1 else [""]
        words = {**_WORDS, "array": f"list of {_WORDS[inner]}s" if inner in _SEVERAL else "list"}
        said = " or ".join(word for kind, word in words.items() if kind in kinds) or "anything"
        return _shortened(" ".join(filter(None, (said, _bounds(self.schema)))))

    def wanted_line(self) -> str:
        """What `read_line` takes, in words."""
        if self.multiple:
            return "numbers or names, with commas"
        wanted = "a number or a name" if self.choices else self.wanted()
        return f"{wanted}, with commas" if self.is_list else wanted

    def describe(self) -> str:
        """What it takes, whether it is required, its default and its description: half a line."""
        default = ""
        if self.has_default and self.default is not None:
            default = f", default {_shortened(json.dumps(self.default))}"
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
    """A line for each field, fit for a terminal, with the names in a column."""
    names = [on_one_line(field.name) for field in fields]
    width = max(map(len, names), default=0)
    return [f"  {name:<{width}}  {on_one_line(field.describe())}" for name, field in zip(names, fields, strict=True)]


def field_of(name: str, part: JsonObject, root: JsonObject) -> Field:
    """A field from its own part of a schema, and the whole schema that it may refer to."""
    return _Reader(root).field(name, part)


class _Reader:
    """Goes through a schema for its fields, up to a number of parts."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._left = MOST_PARTS

    def field(self, name: str, part: JsonObject, *, required: bool = False) -> Field:
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
        """A schema without references and without the union that makes it optional; an empty one, which takes
        anything, if that is too much."""
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
    """The types of a union; and the rest of its one option, if null is the only other."""
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


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# ---- examples
# A value that a schema allows, to show how one is written.


def _example(field: Field, depth: int) -> Any:
    """A value that the field may take. It is not checked yet."""
    if depth > EXAMPLES_DEEPEST:
        raise BadValue("too deep for an example")
    schema, given = field.schema, field.schema.get("examples")
    if field.choices:
        values = [choice.value for choice in field.choices]
        return values[:2] if field.multiple else values[0]
    if isinstance(given, list) and given:
        return cast("list[Any]", given)[0]
    if field.has_default and field.default is not None:
        return field.default
    kinds = ("array", "object", "string", "integer", "number", "boolean")
    match next((kind for kind in kinds if kind in field.kinds), ""):
        case "array":
            return _example_list(field, depth)
        case "object":
            return _example_object(field, depth)
        case "string":
            _, text, _ = _FORMATS.get(str(schema.get("format")), ("", "text", str))
            short, long = schema.get("minLength"), schema.get("maxLength")
            text = text.ljust(short, "x") if isinstance(short, int) and short < 100 else text
            return text[:long] if isinstance(long, int) else text
        case "integer" | "number" as kind:
            return _example_number(schema, whole=kind == "integer")
        case "boolean":
            return True
        case _:
            return "text"


def _example_list(field: Field, depth: int) -> list[Any]:
    """Two items, if they can differ."""
    item = field.item
    first = _example(item, depth + 1)
    if isinstance(first, bool | dict | list) or item.schema.get("format") or item.has_default:
        return [first]
    second: Any = first + 1 if isinstance(first, int | float) else "more"
    try:
        return [first, item.check(second)]
    except BadValue:
        return [first]


def _example_object(field: Field, depth: int) -> dict[str, Any]:
    parts = fields_of(field.schema)
    chosen = [part for part in parts if part.required] or parts[:1]
    if chosen:
        return {part.name: _example(part, depth + 1) for part in chosen}
    others = field.schema.get("additionalProperties")
    if not isinstance(others, Mapping):
        return {"key": "value"}
    return {"key": _example(field_of("", cast("Mapping[str, Any]", others), field.schema), depth + 1)}


def _example_number(schema: Mapping[str, Any], *, whole: bool) -> float | int:
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


def _example_words(field: Field) -> list[str]:
    """Words that give a field a value that it takes; none if no such value is found."""
    try:
        value = field.check(_example(field, 0))
        items = cast("list[Any]", value) if isinstance(value, list) else [value]
        texts = [as_text(item) for item in items]
        is_plain = texts and not any(isinstance(item, list | dict) for item in items)
    except BadValue:
        return []
    try:
        if is_plain and field.read(texts) == value:
            return [f"{field.name}={text}" for text in texts]
    except BadValue:
        pass
    return [f"{field.name}:={json.dumps(value)}"]


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
    """The fields that can be given in words, and how that is written; fit for a terminal.

    Args:
        names: The fields of the example; by default those that are required.
    """
    fields = fields_of(schema)
    if not fields:
        return "It takes no arguments."
    wanted = [field for field in fields if (field.name in names if names else field.required)] or fields[:1]
    examples = [on_one_line(word).partition("=") for field in wanted for word in _example_words(field)]
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
        if not name.endswith(":"):
            texts.setdefault(name, []).append(text)
            continue
        name = name[:-1]
        try:
            values[name] = json.loads(text)
        except ValueError as exc:
            raise BadValue(f"{name} is not valid JSON: {exc}", names=[name]) from exc
        if name in fields:
            with _about(name):
                fields[name].check(values[name])
    for name, given in texts.items():
        field = fields.get(name)
        if field is None:
            # A schema that wants more than it names, or says nothing at all.
            if not (schema.get("additionalProperties") or not (fields or schema.get("type") == "object")):
                near = get_close_matches(name, fields, n=1)
                raise BadValue(f"unknown: {name}{f'; did you mean {near[0]}?' if near else ''}")
            field = field_of(name, cast("JsonObject", {}), schema)
        with _about(name):
            values[name] = field.read(given)
    missing = [field.name for field in fields.values() if field.required and field.name not in values]
    if missing:
        raise BadValue(f"missing: {', '.join(missing)}", names=missing)
    return values


def keys_of(words: Iterable[str]) -> set[str]:
    """The names of the fields that words give values to."""
    return {word.partition("=")[0].removesuffix(":") for word in words if "=" in word}


@contextmanager
def _about(name: str) -> Generator[None]:
    """Name the field in a problem with its value."""
    try:
        yield
    except BadValue as exc:
        raise BadValue(f"{name}: {exc}", names=[name]) from exc

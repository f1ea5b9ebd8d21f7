"""Values of a JSON schema from what a person types: arguments of a tool, and the fields of a question.

The schema says what a text means (`3` is a number for one field and a text for another) and what is allowed. It is the
server's, and may be anything: of one that is too much to go through, a field takes anything, and the server has the
last word. Nothing that it refers to is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from jsonschema.exceptions import (
    ValidationError,
    best_match,  # pyright: ignore[reportUnknownVariableType]
)

from mcp_tasks.client.conversions import check_format, convert
from mcp_tasks.client.printable import on_one_line
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import BadValue
from mcp_tasks.wire.schemas import Schema, UnusableSchema
from mcp_tasks.wire.tame import target_of

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

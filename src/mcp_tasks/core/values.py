"""The checks of values that authors give: each says what the option is called, what it was given, and what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp_tasks.errors import InvalidOption


def check_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is not a whole number of at least so much, and at most so much.

    Raises:
        InvalidOption: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidOption(f"{name} must be a whole number {wanted}, got {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is not one of a few words.

    Raises:
        InvalidOption: It is not.
    """
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise InvalidOption(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse what is not a bool: to Python, "no" is true.

    Raises:
        InvalidOption: It is not.
    """
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False, got {value!r}")


def check_text(name: str, value: object) -> None:
    """Refuse what is not a string, or an empty one.

    Raises:
        InvalidOption: It is not, or is empty.
    """
    if not isinstance(value, str) or not value:
        raise InvalidOption(f"{name} must be a non-empty string, got {value!r}")


def check_queue(name: str, value: object) -> None:
    """Refuse what is not the name of a queue: operators list them with commas between, and spaces around do not count.

    Raises:
        InvalidOption: It is not.
    """
    check_text(name, value)
    if isinstance(value, str) and ("," in value or value != value.strip()):
        raise InvalidOption(f"{name} must be a name without commas, and without spaces around it, got {value!r}")


def check_mapping(name: str, value: object) -> None:
    """Refuse what is not a mapping with names as its keys.

    Raises:
        InvalidOption: It is not.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", value)):
        raise InvalidOption(f"{name} must be a mapping with strings as its keys, got {value!r}")


def check_function(name: str, value: object, example: str) -> None:
    """Refuse what is not a plain function: what cannot be called, and what would have to be awaited.

    Raises:
        InvalidOption: It is not; the message shows the example.
    """
    if not callable(value):
        raise InvalidOption(f"{name} must be a function, such as {example}; got {value!r}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None)):  # noqa: B004
        raise InvalidOption(f"{name} must be a plain function (def), because nothing awaits it; got {value!r}")


def check_instance(name: str, value: object, kind: type) -> None:
    """Refuse what is not an object of that class.

    Raises:
        InvalidOption: It is not.
    """
    if not isinstance(value, kind):
        raise InvalidOption(f"{name} must be a {kind.__name__}, got {value!r}: write {name}={kind.__name__}(...)")

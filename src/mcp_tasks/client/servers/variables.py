"""Variables in files that name servers: `${NAME}`, `${NAME:-default}` and `${env:NAME}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with values in the place of its variables.

    A default stands in for what is not set, and for what is empty, as in a shell.

    Raises:
        KeyError: A variable is not set and has no default; it has the name.
    """

    def value(found: re.Match[str]) -> str:
        name, has_default, default = found[1].partition(":-")
        name = name.removeprefix("env:")
        if has_default:
            return values.get(name) or default
        return values[name]

    return _REFERENCE.sub(value, text)


def has_variables(text: str) -> bool:
    """Whether there is a variable in a text."""
    return _REFERENCE.search(text) is not None


def names_in(text: str) -> list[str]:
    """The variables that a text refers to."""
    return [name.partition(":-")[0].removeprefix("env:") for name in _REFERENCE.findall(text)]

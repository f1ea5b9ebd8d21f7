"""Texts that are not to be shown, taken out of whatever is: what a server is told, it may say back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

HIDDEN: Final = "***"
"""What stands where a secret was."""


class Secrets:
    """Tokens, passwords and the like of this process. `secrets_of` finds those of a URL and of headers."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def hide(self, *texts: str) -> None:
        """Never show these from now on, whoever says them."""
        self._texts.update(text for text in texts if text)

    def hidden_in(self, text: str) -> str:
        """A text without them."""
        # One may be the beginning of another, of which the rest must not stay.
        for secret in sorted(self._texts, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def hidden_in_json(self, value: Any) -> Any:
        """A JSON value without them: in its texts alone, so that it is still JSON."""
        match value if self._texts else None:
            case str():
                return self.hidden_in(value)
            case Mapping():
                items = cast("Mapping[Any, Any]", value).items()
                return {self.hidden_in_json(name): self.hidden_in_json(part) for name, part in items}
            case list() | tuple():
                return [self.hidden_in_json(part) for part in cast("Sequence[Any]", value)]
            case _:
                return value

"""Menus at the prompt, which take exact keys: somebody who types `continue` does not mean `cancel`."""

from __future__ import annotations

from collections.abc import Iterable


def chosen(text: str, words: Iterable[str]) -> str | None:
    """The word of a menu that was typed, whole or by its first letter; None for anything else."""
    typed = text.strip().casefold()
    return next((word for word in words if typed in (word, word[0])), None)

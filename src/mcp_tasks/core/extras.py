"""Parts of the package that need what only an extra installs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from mcp_tasks.errors import MissingExtra

_OURS: Final = __name__.partition(".")[0]


@contextmanager
def needing_extra(what: str, extra: str) -> Generator[None]:
    """In here, a package that cannot be imported is one of an extra; one of ours is a defect, and raised as it is.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is not None and exc.name.partition(".")[0] == _OURS:
            raise
        raise MissingExtra(what, extra) from exc

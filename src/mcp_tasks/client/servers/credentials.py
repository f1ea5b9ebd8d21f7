"""What a server is sent to prove who asks: tokens and headers as people write them, and what of that is not shown."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from mcp_tasks.client.pages import is_loopback
from mcp_tasks.client.servers.entry import is_credential
from mcp_tasks.errors import InvalidOption
from mcp_tasks.files import LARGEST_SECRET


def check_token(text: str) -> str:
    """A token, without the space around it.

    Raises:
        InvalidOption: It is none. The message does not have it: those are kept longer than they should be.
    """
    token = text.strip()
    if not token:
        raise InvalidOption("the token is empty")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidOption("the token has characters that no token has: is it one line, and nothing else?")
    return token


def read_token(path: Path) -> tuple[str, bool]:
    """The token in a file; and whether others on this machine may read the file, which somebody should be told.

    Raises:
        InvalidOption: The file cannot be read, or has no token.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(LARGEST_SECRET + 1)
    except OSError as exc:
        raise InvalidOption(f"the token file {str(path)!r} cannot be read: {exc.strerror or exc}") from exc
    if len(data) > LARGEST_SECRET:
        raise InvalidOption(f"{str(path)!r} is too large to be a token file")
    is_open = os.name == "posix" and stat.S_ISREG(mode) and bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
    return check_token(data.decode(errors="replace")), is_open


def read_headers(lines: Iterable[str], token: str | None = None) -> dict[str, str]:
    """HTTP headers that are written as `NAME:VALUE`, and one for a bearer token, if there is one.

    Raises:
        InvalidOption: One cannot be a header, or the token cannot be one. Of values, which may be secrets, the message
            says nothing.
    """
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise InvalidOption("a header is written NAME:VALUE, with a colon")
        if not (line.strip().isascii() and line.strip().isprintable()):
            raise InvalidOption(f"the header {name.strip()!r} has characters that no header has")
        headers[name.strip()] = value.strip()
    return headers if token is None else {**headers, "Authorization": f"Bearer {check_token(token)}"}


def secrets_of(url: str = "", headers: Mapping[str, str] | None = None) -> list[str]:
    """What is not to be shown of a URL and of headers, wherever it turns up: servers say back what they are told."""
    named = [value for name, value in (headers or {}).items() if is_credential(name) or "session" in name.lower()]
    secrets = [value.rpartition(" ")[2] for value in named]
    # Not by `urlsplit`, which refuses what is no URL: that is for whoever connects to it.
    user_info, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    if at and ":" in user_info:
        # As it stands in URLs, so that one of a letter does not hide that letter everywhere.
        secrets.append(f":{user_info.partition(':')[2]}@")
    return [secret for secret in secrets if secret]


def is_in_the_clear(url: str) -> bool:
    """Whether everybody on the way to a server can read what is sent there."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")

"""Images, sounds and files of results, written into a folder.

What they are called is decided here, by the tool's name, a number and the MIME type: a server chooses no path and no
name, and nothing that is there is written over.
"""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import InvalidOption, InvalidResponse

_APPLICATIONS: Final = frozenset({"json", "pdf", "zip", "gzip", "xml", "octet-stream", "x-tar", "rtf"})
_MOST: Final = 100_000
"""Files of one name in a folder."""


def save_files(result: JsonObject, folder: Path, tool: str) -> dict[int, Path]:
    """Write what is a file in a tool's result; gives where, by the number of its block.

    Args:
        result: As the protocol has it.
        folder: Where to, made if it is not there.
        tool: What the files are called after.

    Raises:
        InvalidOption: The folder cannot be written to.
        InvalidResponse: A file in the result is not what it says it is.
    """
    saved: dict[int, Path] = {}
    for number, block in enumerate(cast("Sequence[JsonObject]", result.get("content") or ())):
        found = _file_in(block)
        if found is not None:
            data, kind = found
            saved[number] = _write(folder, _name(tool), _suffix(kind, text=isinstance(data, str)), data)
    return saved


def _file_in(block: JsonObject) -> tuple[str | bytes, str] | None:
    """What is in a block that is a file, and its MIME type."""
    match block:
        case {"type": "image" | "audio", "data": str(data)}:
            return _decoded(data), str(block.get("mimeType", ""))
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            return _decoded(data), _type_of(resource)
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return text, _type_of(resource)
        case _:
            return None


def _type_of(resource: Mapping[str, Any]) -> str:
    return str(resource.get("mimeType", ""))


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as exc:
        raise InvalidResponse(f"a file in the result is not base64, and cannot be saved: {exc}") from exc


def _name(tool: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", tool)[:40].strip("-") or "result"


def _suffix(mime: str, *, text: bool) -> str:
    kind, _, name = mime.partition(";")[0].strip().lower().partition("/")
    known = kind in ("image", "audio", "video", "text") or (kind == "application" and name in _APPLICATIONS)
    # Some are known by the names that they had before they were registered.
    guesses = [mimetypes.guess_extension(f"{kind}/{prefix}{name}") for prefix in ("", "x-")] if known else []
    return next(filter(None, guesses), ".txt" if text else ".bin")


def _write(folder: Path, name: str, suffix: str, data: str | bytes) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST):
            path = folder / f"{name}-{number}{suffix}"
            try:
                # Only if nothing is there, a link included.
                with path.open("xb") as file:
                    file.write(data if isinstance(data, bytes) else data.encode(errors="replace"))
            except FileExistsError:
                continue
            return path
    except OSError as exc:
        raise InvalidOption(f"{str(folder)!r} cannot be written to: {exc.strerror or exc}") from exc
    raise InvalidOption(f"{str(folder)!r} has too many files that are called {name}")

"""Results for people: in words, and their images, sounds and files written into a folder.

What files are called is decided here, by the tool's name, a number and the MIME type: a server chooses no path and no
name, and nothing that is there is written over.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import InvalidOption, InvalidResponse, TasksError

_APPLICATIONS: Final = frozenset({"json", "pdf", "zip", "gzip", "xml", "octet-stream", "x-tar", "rtf"})
_SUFFIXES: Final = {"audio/wav": ".wav", "audio/mp3": ".mp3", "image/jpg": ".jpg", "application/xml": ".xml"}
"""Those that Python does not know, or knows by another name."""

_MOST: Final = 100_000
"""Files of one name in a folder."""


def check_folder(folder: Path) -> None:
    """See whether files can be written into a folder, or it can be made: before a tool is called, whose result comes
    once.

    Raises:
        InvalidOption: They cannot.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InvalidOption(f"{str(there)!r} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidOption(f"{str(there)!r} cannot be written to")


def save_files(result: JsonObject, folder: Path, tool: str) -> tuple[dict[int, Path], TasksError | None]:
    """Write what is a file in a tool's result; gives where, by the number of its block, and the first problem with one.

    A file that cannot be written, or is not what it says it is, keeps nobody from the rest of a result.

    Args:
        result: As the protocol has it.
        folder: Where to, made if it is not there.
        tool: What the files are called after.

    Returns:
        The files, and an `InvalidOption` if the folder cannot be written to, an `InvalidResponse` if a file is not what
        it says it is; None if all is well.
    """
    saved: dict[int, Path] = {}
    problem: TasksError | None = None
    for number, block in enumerate(blocks_of(result)):
        try:
            found = _file_in(block)
            if found is not None:
                data, kind = found
                saved[number] = _write(folder, _name(tool), _suffix(kind, text=isinstance(data, str)), data)
        except TasksError as exc:
            problem = problem or exc
    return saved, problem


def result_texts(
    result: JsonObject, saved: Mapping[int, Path] | None = None, *, unsaved: str = "not saved"
) -> list[str]:
    """A tool's result in words, block by block, as the server wrote them.

    Args:
        saved: Where files of it are, by the number of their block, as `save_files` gives it.
        unsaved: What is said of a file that is nowhere.
    """
    where = {number: f"saved as {path}" for number, path in (saved or {}).items()}
    texts = [_text_of(block, where.get(number, unsaved)) for number, block in enumerate(blocks_of(result))]
    if not texts and result.get("structuredContent") is not None:
        return [json.dumps(result["structuredContent"], indent=2, ensure_ascii=False)]
    return texts


def blocks_of(result: JsonObject) -> list[JsonObject]:
    """The content of a tool's result, block by block; an empty one for what is none."""
    content = result.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return [cast("JsonObject", block) if isinstance(block, dict) else {} for block in blocks]


def _text_of(block: JsonObject, where: str) -> str:
    match block:
        case {"type": "text"}:
            return str(block.get("text", ""))
        case {"type": "image" | "audio" as kind}:
            size = len(str(block.get("data", "")).rstrip("=")) * 3 // 4
            return f"[{kind}, {block.get('mimeType', 'unknown type')}, {size} bytes; {where}]"
        case {"type": "resource", "resource": {"text": str(text)}} if text:
            return text
        case {"type": "resource", "resource": {"uri": uri}}:
            return f"[resource {uri}; {where}]"
        case {"type": "resource_link"}:
            return f"[resource {block.get('uri', '')}]"
        case _:
            return f"[{block.get('type', 'unknown')} content, only in the JSON of the result]"


def _file_in(block: JsonObject) -> tuple[str | bytes, str] | None:
    """What is in a block that is a file, and its MIME type."""
    match block:
        case {"type": "image" | "audio", "data": str(data)}:
            return _decoded(data), str(block.get("mimeType", ""))
        case {"type": "resource", "resource": {"blob": str(data)}}:
            return _decoded(data), str(block["resource"].get("mimeType", ""))
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text, str(block["resource"].get("mimeType", ""))
        case _:
            return None


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
    guessed = _SUFFIXES.get(f"{kind}/{name}") or mimetypes.guess_extension(f"{kind}/{name}")
    return (guessed if known else None) or (".txt" if text else ".bin")


def _write(folder: Path, name: str, suffix: str, data: str | bytes) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST):
            path = folder / f"{name}-{number}{suffix}"
            try:
                # Only if nothing is there, a link included.
                file = path.open("xb")
            except FileExistsError:
                continue
            try:
                with file:
                    file.write(data if isinstance(data, bytes) else data.encode(errors="replace"))
            except OSError:
                # Half a file is worse than none.
                path.unlink(missing_ok=True)
                raise
            return path
    except OSError as exc:
        raise InvalidOption(f"{str(folder)!r} cannot be written to: {exc.strerror or exc}") from exc
    raise InvalidOption(f"{str(folder)!r} has too many files that are called {name}")

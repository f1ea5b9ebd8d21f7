"""Results for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tasks.client import check_folder, result_texts
from mcp_tasks.client.questions import save_files
from mcp_tasks.errors import InvalidOption


def test_a_result_is_said_block_by_block() -> None:
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "audio", "data": "AAAA"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "b"}},
        {"type": "resource", "resource": {"uri": "file:///x", "blob": "AAAA"}},
        {"type": "resource_link", "uri": "file:///y"},
        {"type": "hologram"},
        7,
    ]
    assert result_texts({"content": blocks}, {1: Path("out/x.png")}, unsaved="nowhere") == [
        "a",
        "[image, image/png, 3 bytes; saved as out/x.png]",
        "[audio, unknown type, 3 bytes; nowhere]",
        "b",
        "[resource file:///x; nowhere]",
        "[resource file:///y]",
        "[hologram content, only in the JSON of the result]",
        "[unknown content, only in the JSON of the result]",
    ]


def test_without_blocks_it_is_what_is_structured() -> None:
    assert result_texts({"content": [], "structuredContent": {"a": "ä"}}) == ['{\n  "a": "ä"\n}']
    assert result_texts({"content": 7}) == []


def test_a_file_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    image = {"type": "image", "mimeType": "image/png", "data": "A" * 200_000}
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        saved, problem = save_files({"content": [image]}, tmp_path, "paint")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (saved, list(tmp_path.iterdir())) == ({}, [])
    assert isinstance(problem, InvalidOption)


def test_a_folder_is_checked_before_there_is_anything_to_write(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "to" / "be" / "made")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidOption, match="file' is not a folder"):
        check_folder(file / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

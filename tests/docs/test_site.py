"""The site: every page is in its navigation, programs find all of them, and versions stand side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.site import check, llms, versions
from docs.site.layout import DOCS, REDIRECTS, navigation, pages, summary
from docs.site.stage import LINK, staged


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [entry.path for entry in navigation()]
    assert sorted(listed) == sorted(pages())


def test_the_front_page_comes_first() -> None:
    assert next(navigation()).path == "index.md"


@pytest.mark.parametrize("path", [path for path, file in pages().items() if file.parent == DOCS])
def test_a_page_says_at_its_top_for_whom_it_is(path: str) -> None:
    assert summary(path).startswith("For ")


@pytest.mark.parametrize("path", pages())
def test_links_of_a_page_lead_within_the_site(path: str) -> None:
    for _, target, _ in LINK.findall(re.sub(r"^```.*?^```$", "", staged(path), flags=re.DOTALL | re.MULTILINE)):
        aim = (Path("/") / Path(path).parent / target).resolve().relative_to("/")
        assert str(aim) in pages() or aim.parts[0] in {"assets", "files"}, target


def test_pages_that_were_renamed_lead_to_pages_that_are_there() -> None:
    assert {f"{new}.md" for new in REDIRECTS.values()} <= pages().keys()
    assert not {f"{old}.md" for old in REDIRECTS} & pages().keys()


def test_programs_find_every_page_with_what_is_in_it() -> None:
    text = llms.index()
    assert text.startswith("# mcp-tasks\n\n> ")
    found = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .+$", text, flags=re.MULTILINE)
    assert sorted(found) == sorted(pages())
    assert "](https://docs.example/0.1/client.md)" in llms.index("https://docs.example/0.1/")


def _built(folder: Path, words: str) -> Path:
    folder.mkdir()
    (folder / "index.html").write_text(words)
    for name in versions.AT_THE_TOP:
        (folder / name).write_text("- [The client](client.md): words\n")
    return folder


def test_versions_stand_side_by_side_and_latest_is_the_newest_release(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for version in (None, "0.9.0", "0.10.0", "0.9.1"):
        versions.publish(_built(tmp_path / str(version), str(version)), site, version)
    known = json.loads((site / "versions.json").read_text())
    assert [(entry["version"], entry["title"], entry["aliases"]) for entry in known] == [
        ("dev", "development", []),
        ("0.10", "0.10.0", ["latest"]),
        ("0.9", "0.9.1", []),
    ]
    assert (site / "latest" / "index.html").read_text() == "0.10.0"
    assert (site / "0.9" / "index.html").read_text() == "0.9.1"
    assert "latest/index.html" in (site / "index.html").read_text()
    assert (site / "llms.txt").read_text() == "- [The client](latest/client.md): words\n"


def test_before_the_first_release_a_visitor_is_led_to_what_is_being_worked_on(tmp_path: Path) -> None:
    versions.publish(_built(tmp_path / "built", "words"), tmp_path / "site", None)
    assert "dev/index.html" in (tmp_path / "site" / "index.html").read_text()


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(SystemExit, match="is not a version"):
        versions.folder_of("../elsewhere")


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<script src="https://cdn.example/a.js"></script>', "loads https://cdn.example/a.js from another host"),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', "from another host"),
        ('<img src="there.svg">', "a picture without words"),
        ('<a href="nothing.html">x</a>', "there is no such file"),
        ('<a href="#nothing">x</a>', "there is no such anchor"),
        ('<a href="../../elsewhere">x</a>', "outside of the site"),
        ('<a href="/top.html">x</a>', "from the top of the host"),
    ],
)
def test_what_is_wrong_with_a_built_page_is_found(tmp_path: Path, html: str, problem: str) -> None:
    (tmp_path / "there.svg").write_text("<svg/>")
    (tmp_path / "page.html").write_text(html)
    assert [line for line in check.problems(tmp_path) if problem in line]


def test_fonts_of_another_host_are_found_in_styles_and_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import 'https://fonts.example/x.css';")
    (tmp_path / "a.svg").write_text('<style>src: url("https://fonts.example/x.woff")</style>')
    assert len(check.problems(tmp_path)) == 2


def test_what_is_right_is_not_complained_of(tmp_path: Path) -> None:
    (tmp_path / "there.svg").write_text("<svg/>")
    (tmp_path / "page.html").write_text(
        '<h1 id="top">x</h1><img src="there.svg" alt="x"><a href="#top">x</a><a href="https://example.com">x</a>'
    )
    assert check.problems(tmp_path) == []


def test_the_site_is_built_without_a_warning_and_a_second_version_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="installed by make docs")
    from docs.site.__main__ import build

    where = build(tmp_path / "site", "0.1.0")
    assert where == tmp_path / "site" / "0.1"
    assert {entry.path for entry in navigation()} <= {str(path.relative_to(where)) for path in where.rglob("*.md")}
    assert "cancel" in (where / "search.json").read_text()
    for name in ("llms.txt", "llms-full.txt", "latest/running.html", "0.1/operate.html"):
        assert (tmp_path / "site" / name).stat().st_size
    for target in re.findall(r"\]\(([^)]*)\): ", (tmp_path / "site" / "llms.txt").read_text()):
        assert (tmp_path / "site" / target).exists(), target

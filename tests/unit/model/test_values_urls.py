"""URLs of authors, as drivers want them and as messages repeat them."""

from __future__ import annotations

import pytest

from mcp_tasks.model.values import names_redis_database, shown, with_plain_scheme


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("PostgreSQL://Host/Tasks", "postgresql://Host/Tasks"),
        ("redis://Host", "redis://Host"),
        ("Host=db Dbname=Tasks", "Host=db Dbname=Tasks"),
    ],
)
def test_the_scheme_alone_is_made_small(url: str, plain: str) -> None:
    assert with_plain_scheme(url) == plain


@pytest.mark.parametrize(
    ("url", "is_number"),
    [
        ("redis://host", True),
        ("redis://host/", True),
        ("redis://host/7?protocol=3", True),
        ("redis://host/tasks", False),
        ("redis://host/7/8", False),
        ("redis://host/\u0667", False),
        ("unix:///run/valkey.sock", True),
    ],
)
def test_a_database_of_redis_has_a_number(url: str, is_number: bool) -> None:
    assert names_redis_database(url) is is_number


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///tasks.db?key=abc", "sqlite:///tasks.db?key=abc"),
        ("postgresql://host/tasks", "postgresql://host/tasks"),
        ("postgresql://ada:hunter2@host/tasks?sslmode=require", "postgresql://…@host/tasks?sslmode=…"),
        ("postgresql://ada:hunt?er2@host/tasks", "postgresql://…@host/tasks"),
        ("host=db user=ada password=hunter2", "host=db user=ada password=…"),
        ("ada:hunter2@host", "…@host"),
    ],
)
def test_what_is_secret_in_a_url_is_not_repeated(url: str, told: str) -> None:
    assert shown(url) == repr(told)
    assert "hunter2" not in shown(url)

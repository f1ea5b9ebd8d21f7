"""Which database a statement is for."""

from __future__ import annotations

import pytest

from mcp_tasks.model.values import database_place

PLACE = "postgresql://db.example:5433/tasks"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db.example:5433/tasks",
        "postgres://DB.example:5433/tasks",
        "postgresql://me:se@cret@db.example:5433/tasks?sslmode=require",
        "postgresql:///tasks?host=db.example&port=5433",
        "postgresql://elsewhere/other?host=db.example&port=5433&dbname=tasks",
    ],
)
def test_one_database_is_one_place_whoever_asks_and_however_it_is_written(url: str) -> None:
    assert database_place(url) == PLACE


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db.example:5433/others",
        "postgresql://db.example/tasks",
        "postgresql://other.example:5433/tasks",
        "postgresql://one:5432,two:5432/tasks",
        "postgresql:///tasks",
    ],
)
def test_another_database_is_another_place(url: str) -> None:
    assert database_place(url) != PLACE


def test_without_a_name_it_is_the_one_that_is_called_like_the_user() -> None:
    assert database_place("postgresql://me:secret@host") == "postgresql://host/me"


def test_a_place_names_no_password() -> None:
    assert "secret" not in database_place("postgresql://me:secret@db.example/tasks?password=secret")

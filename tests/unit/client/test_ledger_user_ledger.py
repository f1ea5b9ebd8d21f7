"""The ledger that programs of a user share with the `mcp-tasks` command."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from mcp_tasks.client import Ledger, user_ledger
from mcp_tasks.client.ledger import user_ledger_path
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE, new_key
from mcp_tasks.errors import EncryptionMismatch


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv(LEDGER_KEYS_VARIABLE, raising=False)


def test_it_is_made_in_the_state_folder_and_keeps_what_has_ended() -> None:
    with closing(user_ledger()) as ledger:
        assert ledger.path == user_ledger_path()
        assert ledger.path.is_file()
        assert ledger.keep_results


def test_another_file_is_opened_in_the_same_way(tmp_path: Path) -> None:
    with closing(user_ledger(tmp_path / "other.db")) as ledger:
        assert (ledger.path, ledger.keep_results) == (tmp_path / "other.db", True)
    assert not user_ledger_path().exists()


def test_it_is_encrypted_with_the_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEDGER_KEYS_VARIABLE, new_key())
    user_ledger().close()
    with pytest.raises(EncryptionMismatch):
        Ledger(user_ledger_path())


@pytest.mark.parametrize(("variable", "value"), [("", "short"), ("_FILE", "/nonexistent"), ("_FILE", "/")])
def test_keys_that_are_none_are_the_ledgers_problem(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(LEDGER_KEYS_VARIABLE + variable, value)
    with pytest.raises(EncryptionMismatch, match=r"the ledger .* needs its keys, see MCP_TASKS_LEDGER_KEYS"):
        user_ledger()

"""The ledger of whoever runs a program: the one of the `mcp-tasks` command, which can come back to what it has."""

from __future__ import annotations

from pathlib import Path

from mcp_tasks.client.ledger import Ledger
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE, keyring_from_environment
from mcp_tasks.errors import EncryptionMismatch, InvalidOption, UntrustedFile
from mcp_tasks.files import private_state_folder, state_folder


def user_ledger_path() -> Path:
    """Where it is: in the user's state folder."""
    return state_folder() / "ledger.db"


def user_ledger(path: Path | None = None) -> Ledger:
    """Open it, with the keys of the environment (`MCP_TASKS_LEDGER_KEYS`) and results kept; made if it is not there.
    Only its owner may read it: ids can be all that protects a task.

    Args:
        path: Another file, which is opened in the same way.

    Raises:
        StoreError: The file cannot be used, or others can write to its folder; or the environment has no keys where it
            says that it has some.
    """
    if path is None:
        private_state_folder()
    where = path or user_ledger_path()
    try:
        cipher = keyring_from_environment(LEDGER_KEYS_VARIABLE)
    except (InvalidOption, UntrustedFile) as exc:
        raise EncryptionMismatch(f"the ledger {where} needs its keys, see {LEDGER_KEYS_VARIABLE}: {exc}") from exc
    return Ledger(where, keep_results=True, cipher=cipher)

"""`mcp-tasks key` and `mcp-tasks encrypt`, and commands on a store that is encrypted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mcp_tasks.encryption import Keyring, new_key
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from tests.cli.running import Cli, Done


def said(done: Done) -> str:
    return " ".join(done.stderr.split())


def test_a_store_is_encrypted_and_only_its_key_opens_it(cli: Cli, tmp_path: Path) -> None:
    async def fill() -> None:
        store = SqliteStore(tmp_path / "tasks.db")
        await store.open("demo")
        await store.create(make_record(namespace="demo"), make_request(arguments={"a": "secret"}))
        await store.close()

    asyncio.run(fill())
    url = f"sqlite:///{tmp_path}/tasks.db"
    key = cli("key").stdout.strip()
    assert Keyring(key)
    unset = cli("encrypt", "--store", url)
    assert (unset.returncode, "MCP_TASKS_KEYS is not set" in said(unset)) == (2, True), unset
    cli.environment["MCP_TASKS_KEYS"] = key
    assert cli.json("encrypt", "--store", url) == {"changed": 2, "plain": 2, "kept": 0, "unreadable": 0}
    assert b"secret" not in (tmp_path / "tasks.db").read_bytes()
    assert cli.json("backlog", url, "--namespace", "demo")
    cli.environment["MCP_TASKS_KEYS"] = new_key()
    wrong = cli("encrypt", "--store", url)
    assert (wrong.returncode, "it needs the key" in said(wrong)) == (10, True), wrong
    del cli.environment["MCP_TASKS_KEYS"]
    refused = cli("backlog", url, "--namespace", "demo")
    assert (refused.returncode, "there is no key" in said(refused)) == (10, True), refused

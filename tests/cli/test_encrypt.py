"""`mcp-tasks key` and `mcp-tasks encrypt`, and commands on a store that is encrypted."""

from __future__ import annotations

import asyncio
import json
import stat
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
    audit = tmp_path / "audit.jsonl"
    done = cli.json("encrypt", "--store", url, "--as", "ops", "--audit", str(audit))
    assert done == {"changed": 2, "plain": 2, "kept": 0, "unreadable": 0}
    [entry] = [json.loads(line) for line in audit.read_text().splitlines()]
    assert (entry["event"], entry["actor"], entry["principal"], entry["count"]) == ("reencrypted", "operator", "ops", 2)
    assert b"secret" not in (tmp_path / "tasks.db").read_bytes()
    assert cli.json("backlog", url, "--namespace", "demo")
    cli.environment["MCP_TASKS_KEYS"] = new_key()
    wrong = cli("encrypt", "--store", url)
    assert (wrong.returncode, "it needs the key" in said(wrong)) == (10, True), wrong
    del cli.environment["MCP_TASKS_KEYS"]
    refused = cli("backlog", url, "--namespace", "demo")
    assert (refused.returncode, "there is no key" in said(refused)) == (10, True), refused


def test_a_key_in_a_file_is_private_and_has_an_id(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tasks.key"
    made = cli("key", "--out", str(path))
    assert (made.returncode, made.stdout) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [key_id] = Keyring.from_file(path).key_ids
    assert key_id in made.stderr
    assert cli("key", "--ids", str(path)).stdout.strip() == key_id
    # What is there may be the only copy.
    before = path.read_text()
    assert cli("key", "--out", str(path)).returncode == 2
    assert path.read_text() == before

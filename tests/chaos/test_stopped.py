"""A server that is asked to stop."""

from __future__ import annotations

from typing import Any

import anyio

from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.model.json import decode_json
from mcp_tasks.stores.sqlite import SqliteStore
from tests.chaos.serving import Site, site, until


def on_disk(place: Site, task_ids: list[str]) -> list[tuple[TaskRecord, Any]]:
    """The tasks as they are on disk, each with what it ended with."""

    async def read() -> list[tuple[TaskRecord, Any]]:
        store = SqliteStore(place.db)
        await store.open()
        try:
            found = [(await store.get(task_id), await store.outcome(task_id)) for task_id in task_ids]
            assert await store.workers("mcp-tasks-fixture") == {}, "the process signed off"
        finally:
            await store.close()
        return [(record, outcome and decode_json(outcome.body)) for record, outcome in found if record is not None]

    return anyio.run(read)


def test_a_server_that_is_asked_to_stop_drains_and_hands_over() -> None:
    with site() as place:
        server = place.serve("--concurrency", "4")
        asking = server.call("confirm_delete", filename="a.txt")
        server.until_status(asking, "input_required")
        quick = place.job(server, "fragile_job", 1, 1.5)
        again = place.job(server, "job", 2, 60)
        once = place.job(server, "fragile_job", 3, 60)
        blocking = server.call("blocking_job", seconds=60)
        until(lambda: len(place.logged("start")) == 3, 10, what="the jobs have started")
        queued = place.job(server, "fragile_job", 4, 0)
        # Five seconds to drain, two for what was told to stop, and some for a busy machine.
        assert server.terminate(limit=20) < 12
        ended = on_disk(place, [asking, quick, again, once, blocking, queued])
        assert [record.status for record, _ in ended] == [
            TaskStatus.INPUT_REQUIRED,
            TaskStatus.COMPLETED,
            TaskStatus.WORKING,
            TaskStatus.FAILED,
            TaskStatus.FAILED,
            TaskStatus.WORKING,
        ]
        assert [record.worker for record, _ in ended] == [None] * 6
        errors = [outcome for record, outcome in ended if record.status is TaskStatus.FAILED]
        assert [error["data"] for error in errors] == [{"reason": "interrupted"}] * 2
        assert not place.db.with_name("tasks.db-wal").exists(), "the database was closed in order"
        server.start()
        server.answer(asking, elicitation_1={"confirm": True})
        for task in server.until_all_final([asking, queued], limit=15).values():
            assert task["status"] == "completed"
        assert server.status(again) == "working"
        until(lambda: place.logged("start").count(2) == 2, 10, what="the job that may run again does")
        assert place.logged("start").count(3) == 1


def test_a_server_with_nothing_to_do_stops_at_once() -> None:
    with site() as place:
        server = place.serve()
        server.until_status(server.call("noop"), "completed")
        assert server.terminate(limit=20) < 5
        assert "Traceback" not in server.output

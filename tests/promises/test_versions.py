"""A server with version 1 of its tools parks tasks and is stopped; one with version 2 takes over."""

from __future__ import annotations

from tests.chaos.serving import Server, Site, Task, site, until

SERVER = "tests.promises.versioned_server"
TOOLS = ("goes_on", "changed", "starts_over", "fails")


def text(task: Task) -> str:
    return task["result"]["content"][0]["text"]


def begin(place: Site) -> dict[str, str]:
    """A task of each tool that version 1 has begun, and that waits for a name."""
    old = place.serve("--version", "1", module=SERVER)
    tasks = {tool: old.call(tool, folder=str(place.folder)) for tool in TOOLS}
    for task in tasks.values():
        old.until_status(task, "input_required")
    old.terminate(10)
    return tasks


def answer(server: Server, task: str, key: str = "elicitation-1") -> None:
    until(lambda: key in server.get(task).get("inputRequests", {}) or None, 10, what=f"it asks {key}")
    server.answer(task, **{key: {"name": "Ann"}})


def test_each_author_chooses_what_becomes_of_a_task_of_another_version() -> None:
    with site() as place:
        tasks = begin(place)
        new = place.serve("--version", "2", module=SERVER)
        for task in tasks.values():
            answer(new, task)

        assert text(new.until_status(tasks["goes_on"], "completed")) == "Ann from 2"

        refused = new.until_status(tasks["changed"], "failed")["error"]
        assert refused["data"] == {"reason": "replay"}
        assert "version 1" in refused["message"]
        assert "version 2" in refused["message"]

        ended = new.until_status(tasks["fails"], "failed")["error"]
        assert ended["data"] == {"reason": "tool_version"}
        assert "begun with version 1 of 'fails', and the server has version 2" in ended["message"]

        asked = new.until_status(tasks["starts_over"], "input_required")
        assert asked["inputRequests"].keys() == {"elicitation-2"}
        answer(new, tasks["starts_over"], "elicitation-2")
        assert text(new.until_status(tasks["starts_over"], "completed")) == "Ann from 2"

        assert sorted((place.folder / "log").read_text().splitlines()) == sorted(
            [
                *(f"{tool} first 1" for tool in TOOLS),
                "goes_on second 2",
                "starts_over first 2",
                "starts_over second 2",
            ]
        )

"""Tasks of the 2025-11-25 wire whose server or client is killed in the middle of a question."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from harness.forking import forked
from harness.processes import PIPE
from harness.rpc import error_response
from tests.chaos.legacy_clients import RELATED, Client, HttpClient, StdioClient, accept, ask, create
from tests.chaos.serving import GATED, Site, site, until

NAME, SURE = "What is your name?", "Are you sure?"
STEPS = ["step before", "step between", "step after"]


def survey_folder(place: Site, *gates: str) -> Path:
    """Where a survey writes, with these gates open."""
    folder = place.folder / "survey"
    folder.mkdir()
    for gate in gates:
        (folder / gate).touch()
    return folder


def steps(folder: Path) -> list[str]:
    return [line for line in (folder / "log").read_text().splitlines() if line.startswith("step")]


def finish(client: Client, task_id: str) -> str:
    """Answer what is asked on an open result, in a session that has only the id; gives what the tool returned."""
    number, result = client.begin("tasks/result", taskId=task_id)
    asked = result.question(NAME)
    assert asked["params"]["_meta"][RELATED] == {"taskId": task_id}
    accept(client, asked, {"name": "Ann"})
    accept(client, result.question(SURE), {"confirm": True})
    answer = result.answer_to(number)["result"]
    assert answer["_meta"][RELATED] == {"taskId": task_id}
    return answer["structuredContent"]["result"]


def test_over_http_a_question_comes_again_in_a_new_session_after_the_server_was_killed() -> None:
    with site() as place, ExitStack() as stack:
        folder = survey_folder(place, "asking", "finishing", "ending")
        server = place.serve(module=GATED, json_response=False)
        client = stack.enter_context(closing(HttpClient(server.port)))
        task_id = create(client, "survey", folder)
        _, result = client.begin("tasks/result", taskId=task_id)
        result.question(NAME)
        server.kill()
        server.start()
        client = stack.enter_context(closing(HttpClient(server.port)))
        assert ask(client, "tasks/get", taskId=task_id)["result"]["status"] in ("working", "input_required")
        assert finish(client, task_id) == "Ann: True"
        assert steps(folder) == STEPS


def test_over_http_the_new_session_may_be_asked_on_its_own_stream() -> None:
    with site() as place, ExitStack() as stack:
        folder = survey_folder(place, "asking", "finishing", "ending")
        server = place.serve(module=GATED, json_response=False)
        client = stack.enter_context(closing(HttpClient(server.port)))
        own = client.own()
        task_id = create(client, "parked_survey", folder)
        own.question(NAME)
        server.kill()
        server.start()
        client = stack.enter_context(closing(HttpClient(server.port)))
        own = client.own()
        ask(client, "tasks/get", taskId=task_id)
        accept(client, own.question(NAME), {"name": "Ann"})
        accept(client, own.question(SURE), {"confirm": True})
        answer = ask(client, "tasks/result", taskId=task_id)["result"]
        assert answer["structuredContent"]["result"] == "Ann: True"
        assert steps(folder) == STEPS


def test_over_stdio_a_question_comes_again_in_a_new_process_after_the_server_was_killed() -> None:
    with site() as place, ExitStack() as stack:
        folder = survey_folder(place, "asking", "finishing", "ending")
        client = StdioClient(place.db)
        stack.callback(client.kill)
        task_id = create(client, "survey", folder)
        client.own().question(NAME)
        client.kill()
        again = stack.enter_context(closing(StdioClient(place.db)))
        assert finish(again, task_id) == "Ann: True"
        assert steps(folder) == STEPS


def test_over_http_the_task_of_a_client_that_was_killed_is_found_again() -> None:
    with site() as place, ExitStack() as stack:
        folder = survey_folder(place, "asking", "finishing", "ending")
        server = place.serve(module=GATED, json_response=False)
        task_id = asked_then_killed("--port", str(server.port), "--folder", str(folder))
        assert finish(stack.enter_context(closing(HttpClient(server.port))), task_id) == "Ann: True"
        assert steps(folder) == STEPS


def test_over_stdio_the_task_of_a_client_that_was_killed_is_found_again() -> None:
    with site() as place, ExitStack() as stack:
        folder = survey_folder(place, "asking", "finishing", "ending")
        task_id = asked_then_killed("--db", str(place.db), "--folder", str(folder))
        again = stack.enter_context(closing(StdioClient(place.db)))
        assert finish(again, task_id) == "Ann: True"
        assert steps(folder) == STEPS


def asked_then_killed(*options: str) -> str:
    """The id of a task whose client was killed while it was asked."""
    with forked("tests.chaos.legacy_clients", *options, stdout=PIPE) as process:
        assert process.stdout is not None
        return process.stdout.readline().decode().strip()


def test_an_error_that_was_answered_is_the_tools_again_after_the_server_was_killed() -> None:
    with site() as place, ExitStack() as stack:
        folder = survey_folder(place)
        server = place.serve(module=GATED, json_response=False)
        client = stack.enter_context(closing(HttpClient(server.port)))
        task_id = create(client, "petition", folder)
        _, result = client.begin("tasks/result", taskId=task_id)
        client.post(error_response(result.question("May I?")["id"], -1, "User rejected it", {"why": [1]}))
        until(lambda: "at deciding" in _log(folder), 15, what="the tool was told")
        server.kill()
        server.start()
        (folder / "deciding").touch()
        client = stack.enter_context(closing(HttpClient(server.port)))
        number, result = client.begin("tasks/result", taskId=task_id)
        answer = result.answer_to(number)["result"]
        assert answer["structuredContent"]["result"] == "-1 User rejected it {'why': [1]}"
        assert [each for each in result.messages if each.get("method") == "elicitation/create"] == []


def test_a_result_that_is_waited_for_ends_with_a_word_when_the_server_stops() -> None:
    with site() as place, ExitStack() as stack:
        folder = survey_folder(place)
        server = place.serve(module=GATED, json_response=False)
        client = stack.enter_context(closing(HttpClient(server.port)))
        task_id = create(client, "survey", folder)
        number, result = client.begin("tasks/result", taskId=task_id)
        until(lambda: "at asking" in _log(folder), 15, what="the tool is at work")
        server.terminate(limit=20)
        error = result.answer_to(number)["error"]
        assert error["code"] == -32802
        assert error["data"]["reason"] == "server_stopping"
        assert "ask for its result again" in error["message"]
        for gate in ("asking", "finishing", "ending"):
            (folder / gate).touch()
        server.start()
        assert finish(stack.enter_context(closing(HttpClient(server.port))), task_id) == "Ann: True"


def _log(folder: Path) -> str:
    return (folder / "log").read_text() if (folder / "log").exists() else ""

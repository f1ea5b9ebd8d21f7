"""`tasks/update`: answers to open questions, and to nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from harness.rpc import INVALID_PARAMS, MISSING_CAPABILITY, TASKS, Tasking, accept, text_of

pytestmark = pytest.mark.anyio


async def _asked(client: Tasking, tool: str = "ask_name") -> tuple[str, list[str]]:
    """A task that waits for input, and the keys of its questions."""
    task = await client.until(await client.create(tool), "input_required")
    return task["taskId"], list(task["inputRequests"])


@pytest.mark.requirement("update/ack", "update/result-type")
async def test_an_update_is_acknowledged_with_nothing_but_its_result_type(client: Tasking) -> None:
    task_id, [key] = await _asked(client)
    ack = await client.update(task_id, **{key: accept(name="Ada")})
    assert ack.keys() == {"resultType", "_meta"}
    assert ack["resultType"] == "complete"
    assert ack["_meta"].keys() == {"io.modelcontextprotocol/serverInfo"}
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


@pytest.mark.requirement("update/keys-are-unique", "update/keys-are-not-reused", "update/keys-are-not-shared")
async def test_every_question_of_a_task_has_a_key_of_its_own(client: Tasking) -> None:
    task_id = await client.create("ask_again")
    seen: list[str] = []
    for name in ("Ada", "Bob", "Cyd"):
        [key] = (await client.until(task_id, "input_required"))["inputRequests"]
        seen.append(key)
        await client.update(task_id, **{key: accept(name=name)})
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Ada, Bob, Cyd"
    assert len(set(seen)) == 3


@pytest.mark.requirement("update/keys-are-not-shared")
async def test_questions_after_the_call_have_keys_of_their_own(client: Tasking) -> None:
    task_id, keys = await _asked(client, "ask_both")
    assert len(set(keys)) == 2
    task = await client.get(task_id)
    by_message = {question["params"]["message"]: key for key, question in task["inputRequests"].items()}
    answers = {by_message["Your age?"]: accept(age=36), by_message["Your name?"]: accept(name="Ada")}
    await client.update(task_id, **answers)
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Ada is 36"


@pytest.mark.requirement("update/other-keys-are-ignored")
@pytest.mark.parametrize("answer", [accept(name="Eve"), {}, None, 7, "text", [1]], ids=repr)
async def test_an_answer_to_a_key_that_was_never_issued_is_ignored_whatever_it_looks_like(
    client: Tasking, answer: Any
) -> None:
    task_id, [key] = await _asked(client)
    before = await client.get(task_id)
    await client.update(task_id, **{"never-issued": answer})
    assert (await client.get(task_id)) == before
    await client.update(task_id, **{"never-issued": answer, key: accept(name="Ada")})
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


@pytest.mark.requirement("update/other-keys-are-ignored")
async def test_a_second_answer_to_the_same_question_is_ignored(client: Tasking) -> None:
    task_id, [key] = await _asked(client, "ask_again")
    await client.update(task_id, **{key: accept(name="Ada")})
    await client.update(task_id, **{key: accept(name="Eve")})
    for name in ("Bob", "Cyd"):
        [key] = (await client.until(task_id, "input_required"))["inputRequests"]
        await client.update(task_id, **{key: accept(name=name)})
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Ada, Bob, Cyd"


@pytest.mark.requirement("update/other-keys-are-ignored")
async def test_an_answer_to_a_question_of_a_task_that_has_ended_is_ignored(client: Tasking) -> None:
    task_id, [key] = await _asked(client)
    await client.cancel(task_id)
    ended = await client.until(task_id, "cancelled")
    ack = await client.update(task_id, **{key: accept(name="Ada")})
    assert ack["resultType"] == "complete"
    assert await client.get(task_id) == ended


@pytest.mark.requirement("update/partial")
async def test_a_part_of_the_answers_leaves_the_rest_open(client: Tasking) -> None:
    task_id, keys = await _asked(client, "ask_both")
    questions = (await client.get(task_id))["inputRequests"]
    [name_key] = [key for key in keys if questions[key]["params"]["message"] == "Your name?"]
    [age_key] = [key for key in keys if key != name_key]

    await client.update(task_id, **{name_key: accept(name="Ada")})
    task = await client.get(task_id)
    assert task["status"] == "input_required"
    assert task["inputRequests"] == {age_key: questions[age_key]}

    await client.update(task_id, **{age_key: accept(age=36)})
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Ada is 36"


@pytest.mark.requirement("update/answers-fit")
@pytest.mark.parametrize("content", [{}, {"name": 3}, {"name": None}, "text"], ids=repr)
async def test_an_answer_that_does_not_fit_the_form_is_refused_and_the_question_stays_open(
    client: Tasking, content: Any
) -> None:
    task_id, [key] = await _asked(client)
    bad = {"action": "accept", "content": content}
    reply = await client.ask("tasks/update", {"taskId": task_id, "inputResponses": {key: bad}})
    assert (reply.status, reply.code) == (400, INVALID_PARAMS)
    assert key in reply.error["message"]
    assert (await client.get(task_id))["status"] == "input_required"
    await client.update(task_id, **{key: accept(name="Ada")})
    assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"


@pytest.mark.requirement("update/answers-fit")
@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("ask_name", {}),
        ("ask_name", {"action": "shrug"}),
        ("ask_name", {"action": "decline", "content": 7}),
        ("ask_name", 7),
        ("ask_name", None),
        ("ask_name", []),
        ("ask_model", {"role": "assistant"}),
        ("ask_roots", {"roots": "none"}),
    ],
    ids=repr,
)
async def test_an_answer_that_is_no_answer_at_all_is_refused_and_the_question_stays_open(
    client: Tasking, tool: str, answer: Any
) -> None:
    task_id, [key] = await _asked(client, tool)
    reply = await client.ask("tasks/update", {"taskId": task_id, "inputResponses": {key: answer}})
    assert (reply.status, reply.code) == (400, INVALID_PARAMS)
    assert key in reply.error["message"]
    assert (await client.get(task_id))["status"] == "input_required"


@pytest.mark.requirement("update/only-declared-kinds")
@pytest.mark.parametrize(
    ("tool", "declared", "missing", "name"),
    [
        ("ask_name", {}, {"elicitation": {}}, "elicitation"),
        ("ask_name", {"sampling": {}, "roots": {}}, {"elicitation": {}}, "elicitation"),
        ("ask_name", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}, "elicitation.form"),
        ("ask_model", {"elicitation": {}, "roots": {}}, {"sampling": {}}, "sampling"),
        ("ask_roots", {"elicitation": {}, "sampling": {}}, {"roots": {}}, "roots"),
    ],
    ids=["nothing", "others", "another mode", "no sampling", "no roots"],
)
async def test_a_client_is_never_asked_what_it_did_not_declare(
    client: Tasking, tool: str, declared: dict[str, Any], missing: dict[str, Any], name: str
) -> None:
    careful = client.declaring({**TASKS, **declared})
    task = await careful.until(await careful.create(tool), "failed")
    assert task["error"]["code"] == MISSING_CAPABILITY
    assert task["error"]["data"] == {"requiredCapabilities": missing}
    assert f"did not declare the {name} capability" in task["error"]["message"]

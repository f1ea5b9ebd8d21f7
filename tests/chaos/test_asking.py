"""A server that is killed while its tasks ask: before, while they wait, and after they were answered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.chaos.serving import GATED, Server, site, until

ANSWERS: Mapping[str, Mapping[str, object]] = {
    "What is your name?": {"name": "Ann"},
    "Are you sure?": {"confirm": True},
}
GATES = ("asking", "finishing", "ending", "hogging")


class Survey:
    """One task that asks twice, and what was seen of it."""

    def __init__(self, server: Server, folder: Path, tool: str, gates: tuple[str, ...] = ()) -> None:
        self.folder = folder
        folder.mkdir()
        self.open(*gates)
        self.keys: dict[str, str] = {}
        self.answered: list[str] = []
        self.id = server.call(tool, folder=str(folder))

    def open(self, *gates: str) -> None:
        for gate in gates:
            (self.folder / gate).touch()

    def until_at(self, gate: str) -> None:
        until(lambda: f"at {gate}" in self.log, 15, what=f"it is at the gate {gate!r}")

    def answer(self, server: Server, message: str) -> None:
        """Answer that question, once it is asked."""
        until(lambda: message in self.look(server), 15, what=f"it asks {message!r}")
        server.answer(self.id, **{self.keys[message]: ANSWERS[message]})
        self.answered.append(message)

    def look(self, server: Server) -> set[str]:
        """What it asks now. A question has one key for life, and what was answered is not asked again."""
        asked = server.get(self.id).get("inputRequests", {})
        messages = {request["params"]["message"]: key for key, request in asked.items()}
        for message, key in messages.items():
            assert self.keys.setdefault(message, key) == key
        assert not set(messages) & set(self.answered)
        return set(messages)

    def finish(self, server: Server) -> None:
        """See it to its end."""
        for message in ANSWERS:
            if message not in self.answered:
                self.answer(server, message)
        task = server.until_status(self.id, "completed", "failed", "cancelled")
        assert task["status"] == "completed", task
        assert task["result"]["structuredContent"] == {"result": "Ann: True"}
        assert len(set(self.keys.values())) == len(self.keys) == 2

    @property
    def steps(self) -> list[str]:
        return [line for line in self.log if line.startswith("step")]

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


def test_a_task_that_asks_goes_on_where_it_was_wherever_its_server_was_killed() -> None:
    name, sure = ANSWERS
    with site() as place:
        # Four slots: three surveys stand at a gate, and the fourth is for the hog.
        server = place.serve("--concurrency", "4", module=GATED)
        waiting = Survey(server, place.folder / "waiting", "survey", ("asking",))
        parked = Survey(server, place.folder / "parked", "parked_survey", ("asking",))
        answered = Survey(server, place.folder / "answered", "survey", ("asking",))
        between = Survey(server, place.folder / "between", "survey", ("asking",))
        finishing = Survey(server, place.folder / "finishing", "survey", ("asking",))
        ending = Survey(server, place.folder / "ending", "survey", ("asking", "finishing"))
        for survey in (between, finishing, ending):
            survey.answer(server, name)
        for survey in (finishing, ending):
            survey.answer(server, sure)
        finishing.until_at("finishing")
        ending.until_at("ending")
        until(lambda: sure in between.look(server), 15, what="it asks again")
        for survey in (waiting, parked, answered):
            until(lambda survey=survey: name in survey.look(server), 15, what="it asks")
        asking = Survey(server, place.folder / "asking", "survey")
        asking.until_at("asking")
        hog = Survey(server, place.folder / "hog", "hog")
        hog.until_at("hogging")
        # All slots are used, so this one is answered and cannot wake.
        answered.answer(server, name)
        assert server.status(answered.id) == "working"
        surveys = (asking, waiting, parked, answered, between, finishing, ending)
        assert "step between" not in answered.log
        server.kill()
        for survey in (*surveys, hog):
            survey.open(*GATES)
        server.start()
        for survey in surveys:
            survey.finish(server)
            assert survey.steps == ["step before", "step between", "step after"]
        assert server.until_status(hog.id, "completed")


def test_an_answer_that_was_acknowledged_is_never_asked_for_again() -> None:
    name, _ = ANSWERS
    with site() as place:
        server = place.serve(module=GATED)
        surveys = [
            Survey(server, place.folder / f"{tool}-{number}", tool, GATES)
            for number in range(5)
            for tool in ("survey", "parked_survey")
        ]
        for survey in surveys:
            until(lambda survey=survey: name in survey.look(server), 15, what="it asks")
        for survey in surveys:
            survey.answer(server, name)
        # Some have woken by now and some have not; one may be in the middle of its step, which then begins again.
        server.kill()
        server.start()
        for survey in surveys:
            survey.finish(server)
            assert set(survey.steps) == {"step before", "step between", "step after"}
            assert survey.steps.count("step before") == survey.steps.count("step after") == 1

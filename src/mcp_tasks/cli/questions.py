"""What a task (or a call, before it is one) asks, for a host that asks a person in text."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast, get_args
from urllib.parse import urlsplit

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import PaginatedRequestParams, Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_tasks.cli.fields import NO, YES, Field, as_text, chosen_word, field_lines, fields_of, keys_of, read_words
from mcp_tasks.client.ledger import on_one_line, printable
from mcp_tasks.errors import BadValue, InvalidInput, InvalidOption, InvalidResponse, TasksError
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.protocol.shapes import EXTENSION_ID

# ---- pages
# Pages that a server wants somebody to visit: which may be opened from here, and what to know before that.


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """An address that somebody is asked to visit.

    Attributes:
        host: Where it leads, in ASCII: letters that look like others cannot pass for them.
        refusal: Why it is not opened from here; None if it may be.
        warnings: What somebody should know before they go there.
    """

    host: str
    refusal: str | None
    warnings: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings, and the refusal if there is one."""
        return self.warnings if self.refusal is None else (*self.warnings, self.refusal)


def link_to(url: str) -> Link:
    """What is to be known of an address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        shown = _ascii(host)
    except ValueError:
        return Link(host="?", refusal="This is not an address that can be opened.", warnings=())
    warnings: list[str] = []
    if shown != host or "xn--" in shown:
        warnings.append("The host name has letters that can look like others.")
    return Link(host=shown or "?", refusal=_refusal(parts.scheme, shown, parts.netloc, url), warnings=tuple(warnings))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _refusal(scheme: str, host: str, netloc: str, url: str) -> str | None:
    if scheme not in ("https", "http") or not host:
        return "Only web addresses (https) are opened from here."
    if scheme == "http" and not is_loopback(host):
        return "This is not an https address: others can read along, and change it. It is not opened from here."
    if "@" in netloc:
        return "The part before the @ is not the host, and there is no reason for it. It is not opened from here."
    if not url.isprintable() or any(char in " \\" for char in url):
        # What one program passes over, another takes for the end of the host.
        return "It has characters that no address has. It is not opened from here."
    return None


def _ascii(host: str) -> str:
    """A host name as it is looked up."""
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError as exc:
        raise ValueError(host) from exc


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One input request.

    Attributes:
        tool: The tool that asks, or its task.
        server: And where that is.
    """

    key: str
    method: str
    params: JsonObject
    tool: str
    server: str = ""

    @property
    def is_elicitation(self) -> bool:
        """Whether a person can answer it; the other kinds are for a model or a program."""
        return self.method == "elicitation/create"

    @property
    def url(self) -> str | None:
        """The page to visit, if that is what is asked."""
        return str(self.params.get("url", "")) if self.params.get("mode") == "url" else None

    @property
    def message(self) -> str:
        """What it says, as the server wrote it."""
        return str(self.params.get("message") or f"(a {on_one_line(self.method)} request)")

    @property
    def schema(self) -> JsonObject:
        """The form of its answer."""
        schema: Any = self.params.get("requestedSchema")
        return cast("JsonObject", schema) if isinstance(schema, Mapping) else {}

    @property
    def fields(self) -> list[Field]:
        """The fields of its form."""
        return fields_of(self.schema)

    def answer(
        self, words: Sequence[str] = (), *, known: JsonObject | None = None, action: str = "accept"
    ) -> dict[str, Any]:
        """The answer that somebody gives in words, as `TaskHandle.answer` takes it.

        Args:
            words: `KEY=VALUE` for the fields of its form, as `read_words` takes them.
            known: Values to begin with. For a model or a program that is asked, its whole result.
            action: `accept`, `decline` or `cancel`.

        Raises:
            BadValue: Something is unknown, missing or wrong.
        """
        if not self.is_elicitation:
            if known is None:
                raise BadValue(f"a {on_one_line(self.method)} request takes a whole result, as JSON")
            return dict(known)
        if action != "accept" or self.url is not None:
            return {"action": action}
        return {"action": "accept", "content": read_words(self.schema, words, known=known)}

    def describe(self) -> list[str]:
        """The question, and the fields of its answer or the page to visit: a line each, fit for a terminal."""
        lines = printable(self.message).splitlines()
        if self.url is None:
            return [*lines, *field_lines(self.fields)]
        link = link_to(self.url)
        page = [f"  visit: {on_one_line(self.url)}", f"  host:  {link.host}"]
        return [*lines, *page, *(f"  ! {note}" for note in link.notes)]


def questions_of(requests: Mapping[str, JsonObject], tool: str, server: str = "") -> list[Question]:
    """The questions in a task's `inputRequests`."""
    return [
        Question(
            key=key,
            method=str(request.get("method", "")),
            params=cast("JsonObject", params) if isinstance(params := request.get("params"), Mapping) else {},
            tool=tool,
            server=server,
        )
        for key, request in requests.items()
    ]


def questions_for(words: Iterable[str], questions: Sequence[Question], *, key: str | None = None) -> Sequence[Question]:
    """Those of some questions that words may be meant for: which have a field for each; all if none has, or without
    words. With a `key`, the one that has it.

    Raises:
        InvalidInput: None has this key.
    """
    if key is not None:
        named = [each for each in questions if each.key == key]
        if not named:
            hint = f"Open questions: {', '.join(each.key for each in questions)}"
            raise InvalidInput("no_question", f"the task has no open question {key!r}", hint)
        return named
    names = keys_of(words)
    return [each for each in questions if names and names <= {field.name for field in each.fields}] or questions


def answers_to(
    questions: Sequence[Question], words: Sequence[str] = (), *, known: JsonObject | None = None, action: str = "accept"
) -> dict[str, dict[str, Any]]:
    """The answers that somebody gives in words, by the keys of the questions, as `TaskHandle.answer` takes them.

    Args:
        questions: All can be declined or dismissed at once, and one be accepted.
        words: For the fields of its form, and `known` and `action`, as `Question.answer` takes them.

    Raises:
        InvalidInput: There are several questions, and they are not declined or dismissed.
        BadValue: Something is unknown, missing or wrong.
    """
    if len(questions) > 1 and action == "accept":
        lines = [line for question in questions for line in [f"{question.key}:", *question.describe()]]
        raise InvalidInput("several_questions", "the task has several open questions", "\n".join(lines))
    return {question.key: question.answer(words, known=known, action=action) for question in questions}


# ---- form
# A form that somebody fills in line by line, for a host that asks in text: a terminal, a chat, a ticket.


_COMMANDS: Final = frozenset({"/decline", "/cancel", "/later", "/back", "/skip", "/help", "/?"})
"""The last two are for whoever shows the form."""


class Form:
    """The fields of a question, one after the other, and then whether the answer is right.

    Any line may also be `/decline` or `/cancel`, which answer the question that way, `/later`, which leaves it open,
    and `/back`, for the field before. `/skip` leaves out a field that may be left out. A text that is one of these
    words is typed with two slashes. A page to visit has no fields: it takes `visit`, `decline`, `cancel` or `later`, or
    their first letters.

    Attributes:
        HELP: What these words mean, a line each, for whoever shows the form.
        link: The page to visit, if that is what is asked. It is opened by whoever shows the form, if at all.
        fields: What is asked for. A question without any, and without a page, is answered with yes or no.
        answers: What was given so far, by the names of the fields.
        is_over: Whether nothing is left to ask.
        response: The answer, as `TaskHandle.answer` takes it, once it is over; None if the question is left open.
    """

    HELP: ClassVar[str] = """\
/decline   say no to the question; the task goes on and knows it
/cancel    dismiss the question without a choice; the task goes on and knows it
/later     leave the question open and stop waiting
/back      go back to the field before
/skip      leave this field out, if it may be left out
//...      a text that begins with a slash and is one of these words"""

    def __init__(self, question: Question) -> None:
        self.link: Link | None = None if question.url is None else link_to(question.url)
        self.fields: list[Field] = [] if self.link else question.fields
        self.answers: dict[str, Any] = {}
        self.is_over: bool = False
        self.response: dict[str, Any] | None = None
        self._place = 0

    @property
    def field(self) -> Field | None:
        """The field that is next; None if that is whether to accept, or whether the answers are right."""
        return self.fields[self._place] if self._place < len(self.fields) else None

    @property
    def shown(self) -> list[str]:
        """What somebody should see before the next line, fit for a terminal: the choices, or at the end all answers."""
        if self.field is None:
            return [f"{on_one_line(name)} = {on_one_line(as_text(value))}" for name, value in self.answers.items()]
        return [
            f"{number}. {on_one_line(str(choice.value))}"
            + (f"  ({on_one_line(choice.title)})" if choice.title != str(choice.value) else "")
            for number, choice in enumerate(self.field.choices, 1)
        ]

    @property
    def last_question(self) -> str:
        """What is asked when no field is next."""
        if self.link is not None:
            return "[v]isit it yourself, [d]ecline, [c]ancel, [l]ater"
        return "Send it? [Y]es, [n]o (edit)" if self.fields else "Accept? [y]es, [n]o (decline), /cancel, /later"

    @property
    def current(self) -> Any:
        """What an empty line stands for: the answer that was given before, or the default; None for nothing."""
        if self.field is None:
            return True if self.fields else None
        default = self.field.default if self.field.has_default else None
        return self.answers.get(self.field.name, default)

    def take(self, line: str) -> None:
        """Take what was typed.

        Raises:
            BadValue: It does not fit the field. The field is still next.
        """
        text = line.strip()
        if self.link is not None:
            self._choose(text)
            return
        match text:
            case "/decline" | "/cancel":
                self._end({"action": text[1:]})
            case "/later":
                self._end(None)
            case "/back":
                self._place = max(0, self._place - 1)
            case "/skip" if self.field is not None:
                self._leave_out(self.field)
            case _:
                unslashed = text.removeprefix("/")
                text = unslashed if unslashed in _COMMANDS else text
                if self.field is None:
                    self._confirm(text)
                else:
                    self._fill_in(self.field, text)

    def _fill_in(self, field: Field, text: str) -> None:
        if not text and field.name not in self.answers and not field.has_default:
            self._leave_out(field)
        else:
            self.answers[field.name] = field.read_line(text) if text else self.current
            self._next()

    def _leave_out(self, field: Field) -> None:
        if field.required:
            raise BadValue("this must be answered")
        self.answers.pop(field.name, None)
        self._next()

    def _next(self) -> None:
        self._place += 1
        if len(self.fields) == 1:
            self._accept()

    def _choose(self, text: str) -> None:
        match chosen_word(text, ("visit", "decline", "cancel", "later")):
            case None:
                raise BadValue("Type one of the letters, or the whole word.")
            case "later":
                self._end(None)
            case word:
                self._end({"action": "accept" if word == "visit" else word})

    def _confirm(self, text: str) -> None:
        word = text.casefold() or ("yes" if self.fields else "")
        if word in YES:
            self._accept()
        elif word in NO and self.fields:
            self._place = 0
        elif word in NO:
            self._end({"action": "decline"})

    def _accept(self) -> None:
        self._end({"action": "accept", "content": self.answers})

    def _end(self, response: dict[str, Any] | None) -> None:
        self.response = response
        self.is_over = True


# ---- saving
# Results for people: in words, and their images, sounds and files written into a folder.


_APPLICATIONS: Final = frozenset({"json", "pdf", "zip", "gzip", "xml", "octet-stream", "x-tar", "rtf"})
_SUFFIXES: Final = {"audio/wav": ".wav", "audio/mp3": ".mp3", "image/jpg": ".jpg", "application/xml": ".xml"}
"""Those that Python does not know, or knows by another name."""

_MOST: Final = 100_000
"""Files of one name in a folder."""


def check_folder(folder: Path) -> None:
    """See whether files can be written into a folder, or it can be made: before a tool is called, whose result comes
    once.

    Raises:
        InvalidOption: They cannot.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InvalidOption(f"{str(there)!r} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidOption(f"{str(there)!r} cannot be written to")


def save_files(result: JsonObject, folder: Path, tool: str) -> tuple[dict[int, Path], TasksError | None]:
    """Write what is a file in a tool's result; gives where, by the number of its block, and the first problem with one.

    A file that cannot be written, or is not what it says it is, keeps nobody from the rest of a result.

    Args:
        result: As the protocol has it.
        folder: Where to, made if it is not there.
        tool: What the files are called after.

    Returns:
        The files, and an `InvalidOption` if the folder cannot be written to, an `InvalidResponse` if a file is not what
        it says it is; None if all is well.
    """
    saved: dict[int, Path] = {}
    problem: TasksError | None = None
    for number, block in enumerate(blocks_of(result)):
        try:
            found = _file_in(block)
            if found is not None:
                data, kind = found
                saved[number] = _write(folder, _name(tool), _suffix(kind, text=isinstance(data, str)), data)
        except TasksError as exc:
            problem = problem or exc
    return saved, problem


def result_texts(
    result: JsonObject, saved: Mapping[int, Path] | None = None, *, unsaved: str = "not saved"
) -> list[str]:
    """A tool's result in words, block by block, as the server wrote them.

    Args:
        saved: Where files of it are, by the number of their block, as `save_files` gives it.
        unsaved: What is said of a file that is nowhere.
    """
    where = {number: f"saved as {path}" for number, path in (saved or {}).items()}
    texts = [_text_of(block, where.get(number, unsaved)) for number, block in enumerate(blocks_of(result))]
    if not texts and result.get("structuredContent") is not None:
        return [json.dumps(result["structuredContent"], indent=2, ensure_ascii=False)]
    return texts


def blocks_of(result: JsonObject) -> list[JsonObject]:
    """The content of a tool's result, block by block; an empty one for what is none."""
    content = result.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return [cast("JsonObject", block) if isinstance(block, dict) else {} for block in blocks]


def _text_of(block: JsonObject, where: str) -> str:
    match block:
        case {"type": "text"}:
            return str(block.get("text", ""))
        case {"type": "image" | "audio" as kind}:
            size = len(str(block.get("data", "")).rstrip("=")) * 3 // 4
            return f"[{kind}, {block.get('mimeType', 'unknown type')}, {size} bytes; {where}]"
        case {"type": "resource", "resource": {"text": str(text)}} if text:
            return text
        case {"type": "resource", "resource": {"uri": uri}}:
            return f"[resource {uri}; {where}]"
        case {"type": "resource_link"}:
            return f"[resource {block.get('uri', '')}]"
        case _:
            return f"[{block.get('type', 'unknown')} content, only in the JSON of the result]"


def _file_in(block: JsonObject) -> tuple[str | bytes, str] | None:
    """What is in a block that is a file, and its MIME type."""
    match block:
        case {"type": "image" | "audio", "data": str(data)}:
            return _decoded(data), str(block.get("mimeType", ""))
        case {"type": "resource", "resource": {"blob": str(data)}}:
            return _decoded(data), str(block["resource"].get("mimeType", ""))
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text, str(block["resource"].get("mimeType", ""))
        case _:
            return None


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as exc:
        raise InvalidResponse(f"a file in the result is not base64, and cannot be saved: {exc}") from exc


def _name(tool: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", tool)[:40].strip("-") or "result"


def _suffix(mime: str, *, text: bool) -> str:
    kind, _, name = mime.partition(";")[0].strip().lower().partition("/")
    known = kind in ("image", "audio", "video", "text") or (kind == "application" and name in _APPLICATIONS)
    guessed = _SUFFIXES.get(f"{kind}/{name}") or mimetypes.guess_extension(f"{kind}/{name}")
    return (guessed if known else None) or (".txt" if text else ".bin")


def _write(folder: Path, name: str, suffix: str, data: str | bytes) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST):
            path = folder / f"{name}-{number}{suffix}"
            try:
                # Only if nothing is there, a link included.
                file = path.open("xb")
            except FileExistsError:
                continue
            try:
                with file:
                    file.write(data if isinstance(data, bytes) else data.encode(errors="replace"))
            except OSError:
                # Half a file is worse than none.
                path.unlink(missing_ok=True)
                raise
            return path
    except OSError as exc:
        raise InvalidOption(f"{str(folder)!r} cannot be written to: {exc.strerror or exc}") from exc
    raise InvalidOption(f"{str(folder)!r} has too many files that are called {name}")


# ---- tools
# The tools of a server: all of them, one by its name, and what is known about which of their calls become tasks.


PAGE_LIMIT: Final = 100
"""Pages of a listing; a server whose listing never ends is not followed for ever."""

TaskSupport: TypeAlias = Literal["required", "optional", "forbidden", "undeclared"]
"""What a server says about calls of a tool: they are tasks, can be, never are; or it decides call by call."""

_SAID: Final = frozenset(get_args(TaskSupport)) - {"undeclared"}


async def list_tools(client: Client) -> list[Tool]:
    """All tools of a server, page by page.

    Raises:
        InvalidResponse: It does not list them.
    """
    tools: list[Tool] = []
    cursor: str | None = None
    try:
        for _ in range(PAGE_LIMIT):
            page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            tools.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
    except MCPError as exc:
        raise InvalidResponse(f"the server does not list its tools: {exc}") from exc
    except ValidationError as exc:
        raise InvalidResponse(f"the server's list of tools is not valid: {exc}") from exc
    return tools


async def find_tool(client: Client, name: str) -> Tool:
    """The tool of that name.

    Raises:
        InvalidInput: The server has none; it says which are spelled like it.
        InvalidResponse: It does not list its tools.
    """
    tools = {tool.name: tool for tool in reversed(await list_tools(client))}
    if name in tools:
        return tools[name]
    raise unknown_tool(name, [*reversed(tools)])


def unknown_tool(name: str, names: Collection[str]) -> InvalidInput:
    """That a server has no tool of that name: which of its tools are spelled like it, or what it has."""
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    # On one line, whatever a server calls them.
    near, names = ([" ".join(found.split()) for found in some] for some in (near, names))
    hint = f"Did you mean {' or '.join(near)}?" if near else f"It has: {', '.join(names) or 'no tools'}"
    return InvalidInput("tool", f"the server has no tool {name!r}", hint)


def declares_tasks(client: Client) -> bool | None:
    """Whether the server says that calls of tools may become tasks; None if nobody has asked it, which is so for a
    client that is pinned to the newer protocol."""
    capabilities = client.server_capabilities
    if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
        if client.mode in MODERN_PROTOCOL_VERSIONS:
            return None
        return EXTENSION_ID in (capabilities.extensions or {})
    requests = None if capabilities.tasks is None else capabilities.tasks.requests
    return requests is not None and requests.tools is not None and requests.tools.call is not None


def task_support(tool: Tool, client: Client) -> TaskSupport:
    """What is known about whether calls of a tool become tasks.

    On the 2026-07-28 protocol the server decides call by call and need not say anything in advance; where it does,
    that is given.
    """
    if declares_tasks(client) is False:
        return "forbidden"
    # Part of the 2025-11-25 protocol, and on the newer one whatever a server adds.
    hint = (object_in(tool.model_dump(by_alias=True, mode="json"), "execution") or {}).get("taskSupport")
    if isinstance(hint, str) and hint in _SAID:
        return cast("TaskSupport", hint)
    return "undeclared" if client.protocol_version in MODERN_PROTOCOL_VERSIONS else "forbidden"


# ---- secrets
# Texts that are not to be shown, taken out of whatever is: what a server is told, it may say back.


HIDDEN: Final = "***"
"""What stands where a secret was."""


class Secrets:
    """Tokens, passwords and the like of this process. `secrets_of` finds those of a URL and of headers."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def hide(self, *texts: str) -> None:
        """Never show these from now on, whoever says them."""
        self._texts.update(text for text in texts if text)

    def hidden_in(self, text: str) -> str:
        """A text without them."""
        # One may be the beginning of another, of which the rest must not stay.
        for secret in sorted(self._texts, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def hidden_in_json(self, value: Any) -> Any:
        """A JSON value without them: in its texts alone, so that it is still JSON."""
        match value if self._texts else None:
            case str():
                return self.hidden_in(value)
            case Mapping():
                items = cast("Mapping[Any, Any]", value).items()
                return {self.hidden_in_json(name): self.hidden_in_json(part) for name, part in items}
            case list() | tuple():
                return [self.hidden_in_json(part) for part in cast("Sequence[Any]", value)]
            case _:
                return value

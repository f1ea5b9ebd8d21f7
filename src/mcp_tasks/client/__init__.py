"""The client side of the extension: calls that wait for tasks by themselves, and handles for those who want them."""

from mcp_tasks.client.calls import call_tool, list_tasks, pending_tasks, resume_task, start_task
from mcp_tasks.client.connected import ConnectedClient
from mcp_tasks.client.eras import Hosting
from mcp_tasks.client.examples import example_of
from mcp_tasks.client.extension import TasksClient
from mcp_tasks.client.failure import CallLost, TaskFailed
from mcp_tasks.client.fields import Choice, Field, fields_of
from mcp_tasks.client.followed import Followed
from mcp_tasks.client.following import Follower, follow
from mcp_tasks.client.form import Form
from mcp_tasks.client.handle import OnAbandon, OnProgress, TaskHandle
from mcp_tasks.client.hooks import Hooks
from mcp_tasks.client.http import reconnecting_http
from mcp_tasks.client.ledger import Ledger
from mcp_tasks.client.ledger_entry import LedgerEntry
from mcp_tasks.client.looking import open_questions, still_asked
from mcp_tasks.client.pages import Link, link_to
from mcp_tasks.client.poller import Patience
from mcp_tasks.client.questions import Question, answers_to, questions_for, questions_of
from mcp_tasks.client.saving import check_folder, result_texts, save_files
from mcp_tasks.client.secrets import Secrets
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.servers.connecting import connect
from mcp_tasks.client.servers.credentials import check_token, is_in_the_clear, read_headers, read_token, secrets_of
from mcp_tasks.client.servers.entry import KnownServer
from mcp_tasks.client.servers.grouping import ServerTasks, by_server
from mcp_tasks.client.servers.known import KnownServers
from mcp_tasks.client.short_ids import short_id, short_ids
from mcp_tasks.client.tools import TaskSupport, find_tool, list_tools, task_support
from mcp_tasks.client.transport import ServerTransport, stdio_transport, with_tasks
from mcp_tasks.client.user_ledger import user_ledger
from mcp_tasks.client.words import describe_words, example_words, read_words
from mcp_tasks.core.record import Progress
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import (
    AmbiguousAnswer,
    BadValue,
    InvalidOption,
    InvalidResponse,
    NoOpenQuestion,
    QuestionUnanswered,
    QuestionUnseen,
    ServerUnreachable,
    TasksError,
    TaskWasCancelled,
    UnknownTask,
    WaitAbandoned,
    WaitTimedOut,
)
from mcp_tasks.wire.parse import TaskSnapshot

__all__ = [
    "AmbiguousAnswer",
    "BadValue",
    "CallLost",
    "Choice",
    "ConnectedClient",
    "Field",
    "Followed",
    "Follower",
    "Form",
    "Hooks",
    "Hosting",
    "InvalidOption",
    "InvalidResponse",
    "KnownServer",
    "KnownServers",
    "Ledger",
    "LedgerEntry",
    "Link",
    "NoOpenQuestion",
    "OnAbandon",
    "OnProgress",
    "Patience",
    "Progress",
    "Question",
    "QuestionUnanswered",
    "QuestionUnseen",
    "Secrets",
    "ServerAddress",
    "ServerTasks",
    "ServerTransport",
    "ServerUnreachable",
    "TaskFailed",
    "TaskHandle",
    "TaskSnapshot",
    "TaskStatus",
    "TaskSupport",
    "TaskWasCancelled",
    "TasksClient",
    "TasksError",
    "UnknownTask",
    "WaitAbandoned",
    "WaitTimedOut",
    "answers_to",
    "by_server",
    "call_tool",
    "check_folder",
    "check_token",
    "connect",
    "describe_words",
    "example_of",
    "example_words",
    "fields_of",
    "find_tool",
    "follow",
    "is_in_the_clear",
    "link_to",
    "list_tasks",
    "list_tools",
    "open_questions",
    "pending_tasks",
    "questions_for",
    "questions_of",
    "read_headers",
    "read_token",
    "read_words",
    "reconnecting_http",
    "result_texts",
    "resume_task",
    "save_files",
    "secrets_of",
    "short_id",
    "short_ids",
    "start_task",
    "stdio_transport",
    "still_asked",
    "task_support",
    "user_ledger",
    "with_tasks",
]

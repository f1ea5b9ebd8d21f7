"""2025-11-25: what else binds a client that hosts tasks."""

from __future__ import annotations

from tests.spec.requirements.model import Requirement

REQUIREMENTS = (
    Requirement(
        id="hosted/informative",
        section="Protocol Errors",
        says="Error messages describe the cause.",
        level="SHOULD",
        source="2025-11-25",
        party="client",
        era="2025-11-25",
        tests=("spec/legacy/test_hosting::test_an_unknown_task_is_refused_in_words",),
    ),
    Requirement(
        id="hosted/internal-error",
        section="Protocol Errors",
        says="Internal errors are -32603.",
        level="MUST",
        source="2025-11-25",
        party="client",
        era="2025-11-25",
        gap="only a file that breaks under a running client makes one; what is over a limit is answered with that "
        "code, which hosted/limits shows",
    ),
    Requirement(
        id="hosted/documented-limits",
        section="Resource Management",
        says="The maximum ttl and the maximum of concurrent tasks are documented.",
        level="SHOULD",
        source="2025-11-25",
        party="client",
        era="2025-11-25",
        tests=("spec/legacy/test_hosting::test_the_limits_of_a_host_are_documented_as_they_are",),
    ),
    Requirement(
        id="hosted/audit-log",
        section="Audit and Logging",
        says="What happens to hosted tasks is logged.",
        level="SHOULD",
        source="2025-11-25",
        party="client",
        era="2025-11-25",
        tests=("spec/legacy/test_hosting::test_the_end_of_a_hosted_task_is_logged",),
    ),
    Requirement(
        id="hosted/rate-limits",
        section="Task Isolation and Access Control",
        says="Operations on tasks are limited in their rate.",
        level="SHOULD",
        source="2025-11-25",
        party="client",
        era="2025-11-25",
        gap="open requests are bounded per connection, and a server is one that the host chose to connect to; a rate "
        "is not limited",
    ),
)

"""How long tests with random input look for what is wrong."""

import os

from hypothesis import settings

TIMES = float(os.environ.get("MCP_TASKS_TEST_TIMES", "1"))
"""How many times as many examples as usual; `make soak` says ten, `make check` a fifth."""

HYPOTHESIS = 100
"""How many examples Hypothesis tries where a test does not say."""


def examples(usual: int) -> int:
    """How many examples a test tries that is content with `usual` ones in everyday runs."""
    return max(1, round(usual * TIMES))


def for_all_tests() -> None:
    """The same for tests that leave the number to Hypothesis.

    None fails because an example took long: tests run beside others on few cores.
    """
    settings.register_profile("as many as said", max_examples=examples(HYPOTHESIS), deadline=None)
    settings.load_profile("as many as said")

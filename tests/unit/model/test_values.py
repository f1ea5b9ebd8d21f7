"""The checks of values that authors give: what fits passes, and what does not is told by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mcp_tasks.errors import InvalidOption
from mcp_tasks.model.values import (
    check_choice,
    check_flag,
    check_function,
    check_instance,
    check_mapping,
    check_number,
    check_queue,
    check_text,
)

Check = Callable[[str, Any], None]

one_of_three: Check = partial(check_choice, choices=("never", "optional", "required"))
a_rule: Check = partial(check_function, example="lambda caller: caller.principal")
an_integer: Check = partial(check_instance, kind=int)


async def awaited(_: object) -> None: ...


class Awaited:
    async def __call__(self, _: object) -> None: ...


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (partial(check_number, least=1), 1),
        (partial(check_number, least=1, most=5), 5),
        (one_of_three, "optional"),
        (check_flag, False),
        (check_text, "x"),
        (check_queue, "gpu large"),
        (check_mapping, {"a": 1}),
        (check_mapping, {}),
        (a_rule, len),
        (an_integer, 5),
    ],
)
def test_what_fits_is_taken(check: Check, value: Any) -> None:
    check("it", value)


@pytest.mark.parametrize(
    ("check", "value", "says"),
    [
        (partial(check_number, least=1), 0, "it must be a whole number of at least 1, got 0"),
        (partial(check_number, least=1, most=5), 6, "from 1 to 5, got 6"),
        (partial(check_number, least=0), True, "a whole number of at least 0, got True"),
        (partial(check_number, least=0), 1.0, "got 1.0"),
        (one_of_three, "always", "it must be 'never', 'optional' or 'required', got 'always'"),
        (one_of_three, ["never"], "got ['never']"),
        (check_flag, "no", "it must be True or False, got 'no'"),
        (check_text, "", "a non-empty string, got ''"),
        (check_text, b"x", "a non-empty string, got b'x'"),
        (check_queue, "", "a non-empty string"),
        (check_queue, "gpu,cpu", "a name without commas"),
        (check_queue, " gpu", "without spaces around it"),
        (check_mapping, [("a", 1)], "a mapping with strings as its keys"),
        (check_mapping, {1: "a"}, "a mapping with strings as its keys"),
        (a_rule, "alice", "it must be a function, such as lambda caller: caller.principal; got 'alice'"),
        (a_rule, awaited, "a plain function (def)"),
        (a_rule, Awaited(), "a plain function (def)"),
        (an_integer, "5", "it must be a int, got '5': write it=int(...)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_with_what_it_takes(check: Check, value: Any, says: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        check("it", value)
    assert str(refused.value).startswith("it must be ")
    assert says in str(refused.value)

"""How plans are drawn: trees of everything a tool may do, and of all that may happen to it meanwhile."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.properties.tools.tree import (
    Ask,
    Beside,
    Caught,
    Gather,
    Group,
    Io,
    Losers,
    MoveOn,
    Node,
    Race,
    Seq,
    Sleep,
    Step,
    Trimmer,
    Twice,
)
from tests.properties.tools.world import Act, Faults, Plan, What

_STEPS = st.builds(Step, st.sampled_from((0.0, 0.5, 3.0)), st.sampled_from((False, False, False, True)))
_ASKS = st.builds(Ask, st.sampled_from((None, None, 2.0, 20.0)), st.booleans())
_SLEEPS = st.builds(Sleep, st.sampled_from((0.5, 3.0, 15.0)))
_IO = st.builds(Io, st.sampled_from((0.0, 0.3, 0.7)))

LEAVES: st.SearchStrategy[Node] = st.one_of(
    _STEPS,
    _ASKS,
    _SLEEPS,
    _IO,
    st.builds(Twice, st.booleans(), st.booleans()),
    # Most of what goes wrong needs a branch that does something and then waits.
    st.builds(Seq, st.tuples(_STEPS | _IO | _SLEEPS, _ASKS | _STEPS)),
)


def _grown(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(nodes, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Seq, several),
        st.builds(Gather, several),
        st.builds(Group, several),
        st.builds(Race, several, st.sampled_from(Losers)),
        st.builds(Beside, nodes, nodes),
        st.builds(MoveOn, nodes),
        st.builds(Caught, nodes),
    )


_TWIGS = _grown(LEAVES)
_BRANCHES = _grown(LEAVES | _TWIGS)
_TREES = _grown(LEAVES | _TWIGS | _TWIGS)

TOOLS: st.SearchStrategy[Node] = st.one_of(_TWIGS, _BRANCHES, _TREES).map(lambda tree: Trimmer().trim(tree))

ACTS = st.builds(
    Act,
    st.sampled_from((0.0, 0.1, 0.4, 1.0, 3.0, 7.0, 20.0)),
    st.sampled_from(
        (What.ANSWER, What.ANSWER, What.ANSWER, What.ANSWER_ELSEWHERE, What.WRONG, What.KILL, What.KILL, What.DRAIN)
    ),
    st.integers(0, 3),
)

_NUMBERS = st.frozensets(st.integers(0, 30), max_size=3)

FAULTS = st.builds(
    Faults,
    pauses=st.just((0.0,)) | st.lists(st.sampled_from((0.0, 0.001, 0.2, 1.0)), min_size=1, max_size=3).map(tuple),
    refused=_NUMBERS,
    refused_readings=_NUMBERS,
    crashes=st.dictionaries(st.integers(0, 30), st.booleans(), max_size=2),
    deaf=st.booleans(),
)

PLANS = st.builds(
    Plan,
    tools=st.lists(TOOLS, min_size=1, max_size=2).map(tuple),
    acts=st.lists(ACTS, max_size=8).map(tuple),
    faults=FAULTS,
    park_after=st.sampled_from((0.0, 0.0, 2.0, 3600.0)),
    slots=st.integers(1, 2),
    seats=st.integers(0, 2),
    joins=st.booleans(),
)

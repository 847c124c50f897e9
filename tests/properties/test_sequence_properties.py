"""Whatever was called before: a call on several ranks gives what plain PyG gives on one process.

What ranks keep from call to call is found here when it is kept for too long: a sequence that is
wrong is made as short as it can be, and is printed. `make fuzz-sequences` draws others.
"""

from __future__ import annotations

import functools

import pytest
from call_sequences import FAMILIES, Call, Sequence, sequences
from drawn_graphs import examples
from hypothesis import given
from ranks import run_ranks
from sequence_runs import check

pytestmark = pytest.mark.filterwarnings('ignore')


@examples(60)
@given(sequences())
def test_any_sequence_of_calls(case: Sequence) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize('conv', sorted({c for f in FAMILIES for c in f.split(', ')}))
def test_any_sequence_of_calls_of_a_conv(conv: str) -> None:
    @examples(20)
    @given(sequences(conv))
    def of_conv(case: Sequence) -> None:
        check(case)

    of_conv()


def _call(mask: int, weight: int = 0) -> Call:
    return Call(edges='mask', mask=mask, weight=weight, takes='gradient', mode='train')


@pytest.mark.parametrize('conv', ['GraphConv', 'SAGE median', 'RGCN'])
def test_ranks_that_are_processes(conv: str) -> None:
    """Edges into one part change and change back."""
    case = Sequence(
        num_nodes=20,
        num_edges=80,
        shape='hubs in',
        seed=4,
        ranks=3,
        num_parts=3,
        full_parts=3,
        conv=conv,
        layers=2,
        flow='source_to_target',
        options=(('mode', 'sequential'),),
        in_inference=False,
        steps=(_call(0), _call(2), _call(0), _call(2, 2), _call(0, 1), _call(0)),
    )
    check(case, functools.partial(run_ranks, timeout=120))

"""Whatever was called before: a call on several ranks gives what plain PyG gives on one process.

What ranks keep from call to call is found here when it is kept for too long: a sequence that is
wrong is made as short as it can be, and is printed. `make fuzz-sequences` draws others.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from alike import assert_same
from call_sequences import FAMILIES, Call, Sequence, World, plain_world, run, sequences
from drawn_graphs import examples
from hypothesis import given
from ranks import run_ranks
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.comm.rows_by_id import rows
from pyg_sar.comm.threads import run_threads

pytestmark = pytest.mark.filterwarnings('ignore')

TOLERANCE = 1e-9

REFUSED = (
    'which may be of',  # a plain tensor, in a graph with as many nodes as edges
    'got edges derived from it',  # an LSTM, which depends on the order of edges
)
"""What may be refused: a part of the sentence."""


def on_rank(case: Sequence, root: str) -> list[tuple[str, Tensor]]:
    """What a rank finds."""
    data: Any = pyg_sar.load_shard(root)
    lists, n_id = case.lists(), pyg_sar.local(data.n_id)  # the same tensors in every step

    def by_id(x: Tensor, of_ranks: tuple[int, ...]) -> Any:
        own = rows(pyg_sar.local(x), lists[of_ranks[rank()]], n_id)
        return [own if i == rank() else None for i in range(case.ranks)]

    world = World(
        wrap=lambda m: pyg_sar.DistributedDataParallel(m, **dict(case.options)),
        rounded=lambda m: pyg_sar.SARConv(m, exchange_dtype=torch.bfloat16),
        gather=lambda t: pyg_sar.gather(t).clone(),
        by_id=by_id,
    )
    return run(case, data, world)


def check(case: Sequence, runs: Any = run_threads) -> None:
    """Ranks give what plain PyG gives; what that cannot run is left out.

    `runs` starts ranks: as threads, or as ``ranks.run_ranks`` does.
    """
    try:
        want = dict(run(case, case.graph(), plain_world(case)))
    except (RuntimeError, IndexError):  # PyG's median of no messages
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / 'parts'
        pyg_sar.partition_graph(case.graph(), case.num_parts, root, method=case.parts())
        try:
            results = runs(on_rank, case.ranks, case, str(root))
        except ValueError as error:
            if any(each in str(error) for each in REFUSED):
                return
            raise
    for got in results:  # None is of another rank
        found = {name: want.get(name) if value is None else value for name, value in got}
        assert_same(found, want, tolerance=TOLERANCE, equal_nan=True)


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

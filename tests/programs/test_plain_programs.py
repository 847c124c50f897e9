"""Plain programs on a cut graph: equal to one process of plain PyG, or refused; never wrong."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from few import few
from one_program import all_programs, is_hetero, refusal
from program_graphs import graph, hetero_graph, parts_of
from torch_geometric.data import HeteroData

import pyg_sar

CUTS = {
    **{'three ranks': (3, 3), 'one rank': (1, 3), 'two ranks': (2, 2), 'four ranks': (4, 4)},
    **{'one without nodes': (3, 3), 'two parts each': (2, 4)},
}
"""Numbers of ranks and of parts."""


def _of(*themes: str) -> list[str]:
    return [name for name in all_programs() if name.startswith(themes)]


OBJECTS = _of('object.')
"""Programs that always run."""

OTHERS = [name for name in all_programs() if name not in OBJECTS]
OTHER_CUTS = ['four ranks', 'one without nodes', 'two parts each']

RUNS = [
    *product(OBJECTS, ['three ranks', 'one rank']),
    *few(product(OTHERS, ['three ranks']), every=4),
    *few(product(_of('attention.', 'mesh.'), OTHER_CUTS)),
    *(
        pytest.param(*run, marks=pytest.mark.slow)
        for run in product(OTHERS, ['one rank', 'two ranks'])
    ),
]


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('programs')
    for cut, (_, num_parts) in CUTS.items():
        for data in (graph(), hetero_graph()):
            parts = parts_of(data, num_parts)
            is_typed = isinstance(data, HeteroData)
            if cut == 'one without nodes' and not is_typed:
                parts[parts == 1] = 2
            where = folder / f'{cut}, {is_typed}'
            pyg_sar.partition_graph(data, num_parts, where, method=parts)
    return folder


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('name', 'cut'), RUNS)
def test_a_program(name: str, cut: str, root: Path) -> None:
    is_slow = cut in ('one rank', 'two ranks') and name not in OBJECTS
    by = 'processes' if is_slow else 'threads'
    refused = refusal(name, CUTS[cut][0], str(root / f'{cut}, {is_hetero(name)}'), by)
    assert name.startswith('refused.') or refused == ''

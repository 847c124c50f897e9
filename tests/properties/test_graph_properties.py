"""Whatever the graph: its partition, what ranks load of it, and a step of training on it.

Graphs are drawn first and sent to the ranks together, as a call of the ranks costs. With
PYG_SAR_EXAMPLES=200 in the environment that many are drawn, others in every run.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from cut_graphs import check_ranks, cut, write
from drawn_graphs import Drawn, examples, graphs, heterogeneous, homogeneous
from few import few
from hypothesis import given
from hypothesis import strategies as st
from partition_files import tree
from ranks import run_ranks
from step_of_training import on_ranks, whole
from torch_geometric.data import Data
from whole_partition import verify_partition

import pyg_sar
from pyg_sar.shard.read_shard import read_shard

pytestmark = pytest.mark.filterwarnings(
    'ignore:Sparse CS. tensor support is in beta',
    'ignore:There exist node types',  # PyG's
)
MODES = ['sequential', 'sequential_no_remat', 'one_shot']


@examples(8)
@given(graphs())
def test_same_seed_same_bytes(drawn: Drawn) -> None:
    """The same graph twice, and from a file, whose tensors stay on disk."""
    # META.json names the file that parts come from, and each run here has one of its own.
    drawn.method = 'given' if drawn.method == 'file' else drawn.method
    # A file is read as a dict, from which PyG makes x, y and others first.
    drawn.data = type(drawn.data).from_dict(drawn.data.to_dict())
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(drawn, folder / 'a')
        write(drawn, folder / 'b')
        torch.save(drawn.data, folder / 'graph.pt')
        drawn.data = folder / 'graph.pt'
        write(drawn, folder / 'c')
        assert tree(folder / 'a') == tree(folder / 'b') == tree(folder / 'c')


@pytest.mark.slow
@examples(15)
@given(graphs())
def test_ranks_hold_rows_of_the_graph(drawn: Drawn) -> None:
    with cut(drawn) as root:
        assert verify_partition(root) == []
        for world_size in range(1, drawn.num_parts + 1):
            if drawn.num_parts % world_size:
                with pytest.raises(ValueError, match=r'parts of .* can be dealt'):
                    read_shard(root, 0, world_size)
            else:
                check_ranks(drawn, root, world_size)
        _check_whole(root, drawn)


def _check_whole(root: Path, drawn: Drawn) -> None:
    """Without torch.distributed one process has the whole graph, as PyG's idioms see it."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    assert type(data) is type(drawn.data)
    assert data.num_nodes == sum(drawn.num_nodes.values())
    assert data.num_edges == sum(edges.size(1) for edges in drawn.edges.values())
    if isinstance(data, Data):
        return
    assert data.metadata() == (list(drawn.num_nodes), list(drawn.edges))
    with_x = {key for key, attrs in drawn.node_attrs.items() if 'x' in attrs}
    assert data.collect('x', allow_empty=True).keys() == with_x


def _drawn(strategy: st.SearchStrategy[Drawn], few: int) -> list[tuple[Drawn, str]]:
    found: list[tuple[Drawn, str]] = []

    @examples(few)
    @given(strategy, st.sampled_from(MODES))
    def collect(drawn: Drawn, mode: str) -> None:
        found.append((drawn, mode))

    collect()
    return found


def _check_training(
    strategy: st.SearchStrategy[Drawn], world_size: int, few: int, folder: Path
) -> None:
    drawn = _drawn(strategy, few)
    for i, (graph, _) in enumerate(drawn):
        write(graph, folder / f'{i}')
    cases = [(str(folder / f'{i}'), mode) for i, (_, mode) in enumerate(drawn)]
    results = run_ranks(on_ranks, world_size, cases, timeout=60 + len(cases))
    for i, (graph, mode) in enumerate(drawn):
        want = whole(graph)
        for found in (rank[i] for rank in results):
            torch.testing.assert_close(
                found, want, rtol=1e-10, atol=1e-10, msg=lambda m, g=graph, o=mode: f'{o} {g}: {m}'
            )


@pytest.mark.parametrize('world_size', few([3, 2]))
def test_a_step_on_a_homogeneous_graph(tmp_path, world_size):
    _check_training(homogeneous(tame=True, ranks=world_size), world_size, 8, tmp_path)


@pytest.mark.slow
def test_a_step_on_a_heterogeneous_graph(tmp_path):
    _check_training(heterogeneous(tame=True, ranks=2), 2, 6, tmp_path)


@pytest.mark.bench
@pytest.mark.parametrize('world_size', [2, 3])
@pytest.mark.parametrize('graphs', [homogeneous, heterogeneous])
def test_a_step_on_many_graphs(tmp_path, graphs, world_size):
    _check_training(graphs(tame=True, ranks=world_size), world_size, 12, tmp_path)

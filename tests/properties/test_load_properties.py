"""Whatever the graph: what ``load_shard`` gives is rows of it, under the same names and types.

With PYG_SAR_EXAMPLES=2000 in the environment that many are drawn, others in every run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cut_graphs import check_ranks, cut
from drawn_graphs import Drawn, examples, graphs
from hypothesis import given
from torch_geometric.data import Data
from whole_partition import verify_partition

import pyg_sar
from pyg_sar.shard.read_shard import read_shard

pytestmark = pytest.mark.filterwarnings('ignore:Sparse CS. tensor support is in beta')


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

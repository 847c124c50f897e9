"""Batches do not depend on the order of nodes within parts, but the order of links at random does,
as it goes by places in parts, and so do their negatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from hetero_graphs import assignment, hetero_graph
from joined import batches, link_batches
from ranks import run_as_threads
from small_graphs import assign, small_graph

from pyg_sar import partition_graph
from pyg_sar.partitioner import sub_parts


@pytest.fixture(scope='module')
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('orders')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sub_parts, 'ROWS', 3)
        for order in ('cache', 'source'):
            graph, typed = small_graph(), hetero_graph()
            partition_graph(graph, 2, root / f'{order}-one', method=assign(40, 2), order=order)
            partition_graph(typed, 2, root / f'{order}-typed', method=assignment(2), order=order)
    return root


def _content(batch: dict[str, Any]) -> dict[Any, list[Any]]:
    """The nodes and edges of a batch by ids, hop by hop, and its seeds, whatever their order."""
    out = {}
    for key, store in batch['nodes'].items():
        hops = torch.split(store['n_id'], list(store['num_sampled_nodes']))
        out[key, 'nodes'] = [sorted(hop.tolist()) for hop in hops]
    for key, store in batch['edges'].items():
        src, dst = (None, None) if key is None else (key[0], key[2])
        row, col = store['edge_index']
        ends = batch['nodes'][src]['n_id'][row], batch['nodes'][dst]['n_id'][col]
        out[key, 'edges'] = sorted(zip(*(t.tolist() for t in (*ends, store['e_id'])), strict=True))
    return out


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ('one', {'num_neighbors': [3, 2]}),
    ('one', {'num_neighbors': [2, 2], 'replace': True, 'weight_attr': 'edge_weight'}),
    ('one', {'num_neighbors': [2, 2], 'disjoint': True}),
    ('typed', {'num_neighbors': [3, 2], 'input_type': 'paper'}),
    ('typed', {'num_neighbors': [2, 2], 'input_type': 'author', 'time_attr': 'age'}),
]


@pytest.mark.parametrize('size', few([2, 1]))
@pytest.mark.parametrize(('graph', 'options'), few(OPTIONS))
def test_batches_of_nodes(roots, graph, options, size):
    options = {'batch_size': 2, 'shuffle': True, 'seed': 3, **options}
    found, want = (
        run_as_threads(batches, size, str(roots / f'{order}-{graph}'), 2, **options)
        for order in ('cache', 'source')
    )
    assert any(sum(b['edges'][k]['e_id'].numel() for k in b['edges']) for b in want[0])
    for ours, theirs in zip(found, want, strict=True):
        assert [_content(b) for b in ours] == [_content(b) for b in theirs]


@pytest.mark.parametrize('size', few([2, 1]))
def test_batches_of_links(roots, size):
    pairs = small_graph().edge_index[:, ::5]
    options = {'batch_size': 4, 'num_neighbors': [2, 2], 'seed': 1, 'pairs': pairs}
    found, want = (
        run_as_threads(link_batches, size, str(roots / f'{order}-one'), **options)
        for order in ('cache', 'source')
    )
    for ours, theirs in zip(found, want, strict=True):
        assert [_content(b) for b in ours] == [_content(b) for b in theirs]

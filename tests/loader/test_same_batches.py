"""Batches have the same seeds on any number of ranks, and any order of nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alike import assert_bits
from few import few
from hetero_graphs import CITES, HAS, WRITES, assignment, hetero_graph
from joined import Taken, batches, content, drawn_pairs, link_batches, nodes_and_edges
from ranks import run_as_threads, run_ranks
from small_graphs import assign, cut, small_graph

from pyg_sar import partition_graph
from pyg_sar.partition import metis
from pyg_sar.partition.options import CutOptions
from pyg_sar.partition.partition_graph import cut_graph

SIZES = [4, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 8))]
BINARY = {'neg_sampling': 'binary'}
MAKES = {'nodes': batches, 'links': link_batches}


@pytest.fixture(scope='module')
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp('parts')
    cut(small_graph(), 8, root / 'one')
    partition_graph(hetero_graph(), 8, root / 'typed', method=assignment(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metis, 'ROWS', 3)
        for order in ('cache', 'source'):
            for name, data, parts in (
                ('one', small_graph(), assign(40, 2)),
                ('typed', hetero_graph(), assignment(2)),
            ):
                out, options = root / f'{name}-{order}', CutOptions(parts)
                cut_graph(data, 2, out, options, in_cache_order=order == 'cache')
    return {path.name: str(path) for path in root.iterdir()}


CLASSES = torch.arange(60) % 3
LABELLED = {'pairs': drawn_pairs(), 'edge_label': CLASSES}
TIMED = {'pairs': drawn_pairs(), 'edge_label_time': CLASSES}

NODES: list[dict[str, Any]] = [
    {'num_neighbors': [3, 2, 2], 'shuffle': True, 'seed': 5},
    {'num_neighbors': [-1, 2], 'replace': True},
    {'num_neighbors': [3, 2], 'weight_attr': 'edge_weight'},
    {'num_neighbors': [3, 2], 'weight_attr': 'edge_weight', 'replace': True, 'disjoint': True},
    {'num_neighbors': [2, 2], 'disjoint': True, 'mask': None},
    {'num_neighbors': [2, 1], 'subgraph_type': 'induced'},
    {'num_neighbors': [2, 2], 'time_attr': 'y', 'drop_last': True},
    {'num_neighbors': [2, 2], 'time_attr': 'y', 'temporal_strategy': 'last', 'shuffle': True},
    {'num_neighbors': [], 'mask': None},
]
NODES_BY_TYPE: list[dict[str, Any]] = [
    {'input_type': 'paper', 'num_neighbors': [3, 2, 2], 'shuffle': True},
    {'input_type': 'author', 'num_neighbors': [2, 2], 'time_attr': 'age'},
    {'input_type': 'author', 'num_neighbors': [2, -1], 'disjoint': True},
    {'input_type': 'term', 'mask': None, 'num_neighbors': [2, 2], 'subgraph_type': 'induced'},
]
TRIPLETS = {'neg_sampling': 'triplet'}
REVERSED = {'exclude_edges': ('paper', 'rev_writes', 'author')}
INDUCED = {'subgraph_type': 'induced'}
LINKS: list[dict[str, Any]] = [
    {'num_neighbors': [3, 2], 'shuffle': True, 'seed': 5, **BINARY},
    {'num_neighbors': [3, 2], 'neg_sampling': {'mode': 'triplet', 'amount': 3}, 'disjoint': True},
    {'num_neighbors': [2, 2], 'exclude_edges': 'reverse', **INDUCED},
    {'num_neighbors': [-1, 1], 'exclude_edges': True, 'disjoint': True, **BINARY, 'replace': True},
    {'num_neighbors': [2], 'neg_sampling': {'mode': 'binary', 'amount': 0.4}, 'drop_last': True},
    {'num_neighbors': [], **TRIPLETS, 'shuffle': True},
    {'num_neighbors': [3, 2], 'shuffle': True, **BINARY, **LABELLED},
    {'num_neighbors': [2, 2], 'time_attr': 'y', **BINARY, **TIMED},
    {'num_neighbors': [2, 2], 'time_attr': 'y', **TRIPLETS, 'shuffle': True, **TIMED},
    {'num_neighbors': [2], 'time_attr': 'edge_type', **LABELLED, **TIMED},
]
LINKS_BY_TYPE: list[dict[str, Any]] = [
    {'relation': WRITES, **BINARY, **REVERSED},
    {'relation': WRITES, **TRIPLETS, 'disjoint': True},
    {'relation': CITES, **BINARY, 'exclude_edges': 'reverse', 'shuffle': True},
    {'relation': HAS, 'pairs': drawn_pairs(30, (34, 7)), **INDUCED, **BINARY},
]
LINKS_BY_TYPE = [{'num_neighbors': [3, 2], **each} for each in LINKS_BY_TYPE]


def _taken(kind: str, size: int, root: str, epochs: int = 1, **options: Any) -> list[Taken]:
    options = {'batch_size': 7 if kind == 'nodes' else 25, **options}
    return run_as_threads(MAKES[kind], size, root, epochs, **options)


CASES = [
    *few([('nodes', 'one', each) for each in NODES], every=4),
    *few([('nodes', 'typed', each) for each in NODES_BY_TYPE], every=4),
    *few([('links', 'one', each) for each in LINKS], every=3),
    *few([('links', 'typed', each) for each in LINKS_BY_TYPE], every=4),
]


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize(('kind', 'graph', 'options'), CASES)
def test_ranks_share_the_batches_of_one_process(roots, kind, graph, options, size):
    """Negatives are the same, too, and so are the trees of seeds."""
    epochs = 2 if 'shuffle' in options else 1
    want = content(_taken(kind, 1, roots[graph], epochs, **options))
    assert content(_taken(kind, size, roots[graph], epochs, **options)) == want


OF_LOADERS = few(
    [
        ('nodes', 'one', NODES[0]),
        ('links', 'one', {**LINKS[0], 'exclude_edges': True}),
        ('nodes', 'typed', NODES_BY_TYPE[0]),
    ],
    every=2,
)


@pytest.mark.parametrize(('kind', 'graph', 'options'), OF_LOADERS)
def test_processes_have_the_batches_of_threads(roots, kind, graph, options):
    options = {'batch_size': 7, **options}
    want = _taken(kind, 2, roots[graph], 2, **options)
    found = run_ranks(MAKES[kind], 2, roots[graph], 2, **options)
    for got, wanted in zip(found, want, strict=True):
        assert_bits(got, wanted)


PAIRS = small_graph().edge_index[:, ::5]
OF_ORDERS: list[tuple[str, str, dict[str, Any]]] = [
    ('nodes', 'one', {'num_neighbors': [3, 2]}),
    ('nodes', 'typed', {'num_neighbors': [3, 2], 'input_type': 'paper'}),
    ('nodes', 'one', {'num_neighbors': [2, 2], 'replace': True, 'weight_attr': 'edge_weight'}),
    ('links', 'one', {'num_neighbors': [2, 2], 'pairs': PAIRS}),
    ('nodes', 'one', {'num_neighbors': [2, 2], 'disjoint': True}),
    ('nodes', 'typed', {'num_neighbors': [2, 2], 'input_type': 'author', 'time_attr': 'age'}),
]


@pytest.mark.parametrize('size', few([2, 1]))
@pytest.mark.parametrize(('kind', 'graph', 'options'), few(OF_ORDERS))
def test_batches_do_not_depend_on_the_order_of_nodes(roots, kind, graph, options, size):
    """But negatives do, as they go by places in parts."""
    options = {'shuffle': True, 'seed': 3, **options}
    found, want = (
        _taken(kind, size, roots[f'{graph}-{order}'], **options) for order in ('cache', 'source')
    )
    assert any(sum(b['edges'][k]['e_id'].numel() for k in b['edges']) for b in want[0])
    for ours, theirs in zip(found, want, strict=True):
        assert [*map(nodes_and_edges, ours)] == [*map(nodes_and_edges, theirs)]

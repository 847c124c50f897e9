"""What a batch of links holds."""

from __future__ import annotations

import pytest
import torch
from joined import drawn_pairs
from on_ranks import on_ranks
from small_graphs import cut, small_graph

import pyg_sar
from pyg_sar.comm.vote import agree


@pytest.mark.parametrize('disjoint', [False, True])
def test_a_batch_tells_of_its_links(folder: str, disjoint: bool) -> None:
    graph, data = small_graph(), pyg_sar.load_shard(folder)
    pairs, batch_size = drawn_pairs(), 24
    label = torch.arange(60) % 3
    how = {'neg_sampling': {'mode': 'binary', 'amount': 1.5}, 'batch_size': batch_size}
    loader = pyg_sar.LinkNeighborLoader(data, [2, 2], pairs, label, disjoint=disjoint, **how)
    edges = set(map(tuple, graph.edge_index.t().tolist()))
    seen = []
    for number, batch in enumerate(loader):
        own = torch.arange(60)[batch_size * number :][:batch_size]
        assert torch.equal(batch.input_id, own)
        num = batch.input_id.numel()
        ends = batch.n_id[batch.edge_label_index]
        assert torch.equal(ends[:, :num], pairs[:, batch.input_id])
        num_negatives = -(-3 * num // 2)
        assert ends.size(1) == batch.edge_label.numel() == num + num_negatives
        assert torch.equal(batch.edge_label[:num], label[batch.input_id] + 1)
        assert not batch.edge_label[num:].any()
        assert edges.isdisjoint(map(tuple, ends[:, num:].t().tolist()))
        assert torch.equal(batch.x, graph.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])
        first = batch.num_sampled_nodes[0]
        assert int(batch.edge_label_index.max()) < first
        if disjoint:
            assert batch.edge_label_index.unique().numel() == first == 2 * ends.size(1)
            trees = batch.batch[batch.edge_label_index]
            assert torch.equal(trees[0], trees[1])
            assert torch.equal(trees[0, :num], torch.arange(num))
            assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
        seen.append(batch.input_id)
    assert torch.cat(seen).sort().values.tolist() == list(range(60))


def test_triplets(folder: str) -> None:
    graph, data = small_graph(), pyg_sar.load_shard(folder)
    edges = set(map(tuple, graph.edge_index.t().tolist()))
    for amount in (1, 2):
        sampling = {'mode': 'triplet', 'amount': amount}
        loader = pyg_sar.LinkNeighborLoader(data, [2], batch_size=4, neg_sampling=sampling)
        for batch in loader:
            src, dst = batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index]
            assert torch.equal(torch.stack([src, dst]), graph.edge_index[:, batch.input_id])
            other = batch.n_id[batch.dst_neg_index]
            assert other.shape == ((len(src),) if amount == 1 else (len(src), amount))
            pairs = torch.stack([src.repeat_interleave(amount), other.view(-1)])
            assert edges.isdisjoint(map(tuple, pairs.t().tolist()))
            assert {'edge_label_index', 'edge_label'}.isdisjoint(batch.keys())


def test_selected_edges(folder: str) -> None:
    graph, data = small_graph(), pyg_sar.load_shard(folder)
    mask = data.edge_type == 1
    for links in (data.edge_index[:, mask], data.edge_index[:, mask.nonzero().view(-1)]):
        weight = data.edge_weight[mask]
        found = []
        for batch in pyg_sar.LinkNeighborLoader(data, [2], links, weight, batch_size=16):
            ends = batch.n_id[batch.edge_label_index]
            at = mask.nonzero().view(-1)[batch.input_id]
            assert torch.equal(graph.edge_index[:, at], ends)
            assert torch.equal(batch.edge_label, graph.edge_weight[at])
            found.append(at)
        assert torch.equal(torch.cat(found).sort().values, mask.nonzero().view(-1))


@pytest.mark.parametrize('kind', ['directional', 'induced', 'bidirectional'])
@pytest.mark.parametrize('disjoint', [False, True])
@pytest.mark.parametrize('exclude', [False, True, 'reverse'])
def test_links_are_no_edges_of_their_batch(tmp_path, kind, disjoint, exclude):
    if kind == 'bidirectional' and (exclude is True or disjoint):
        pytest.skip('refused; PyG has no trees there')
    graph = small_graph(num_edges=90)
    reverse = graph.edge_index[:, ::2].flip(0)  # half of the edges have their reverse
    graph.edge_index = torch.cat([graph.edge_index, reverse], dim=1)
    graph = type(graph)(x=graph.x, edge_index=graph.edge_index)
    data, leaks = pyg_sar.load_shard(cut(graph, 1, tmp_path / 'both')), [0, 0]
    how = {'batch_size': 9, 'shuffle': True, 'neg_sampling': 'binary', 'subgraph_type': kind}
    how |= {'disjoint': disjoint, 'exclude_edges': exclude}
    loader, kept = pyg_sar.LinkNeighborLoader(data, [-1, -1], **how), 0
    for batch in loader:
        num = batch.input_id.numel()
        ends = batch.n_id[batch.edge_label_index[:, :num]]
        links = set(map(tuple, ends.t().tolist()))
        back = {(dst, src) for src, dst in links} - links
        edges = list(map(tuple, batch.n_id[batch.edge_index].t().tolist()))
        leaks[0] += sum(edge in links for edge in edges)
        leaks[1] += sum(edge in back for edge in edges)
        if kind != 'bidirectional':
            assert torch.equal(graph.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
            if kind == 'directional':
                assert sum(batch.num_sampled_edges) == batch.edge_index.size(1)
        # All others are there.
        gone = (links if exclude else set()) | (back if exclude == 'reverse' else set())
        first = set(ends.view(-1).tolist())
        into = [e for e in graph.edge_index.t().tolist() if e[1] in first and tuple(e) not in gone]
        assert set(map(tuple, into)) <= set(edges)
        kept += len(into)
    assert kept > 100
    assert (leaks[0] == 0) == (exclude is not False)
    assert (leaks[1] == 0) == (exclude == 'reverse')


@on_ranks(4, by='threads')
def test_ranks_without_links_take_part(data):
    pairs, counts = torch.tensor([[3, 9], [0, 1]]), [0, 0]
    loader = pyg_sar.LinkNeighborLoader(data, [2, 2], pairs, batch_size=4, neg_sampling='binary')
    for batch in loader:
        assert batch.x.dim() == 2
        counts[0] += batch.input_id.numel()
        counts[1] += batch.edge_label_index.size(1)
    assert [sum(agree(count)) for count in counts] == [2, 4]

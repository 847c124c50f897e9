"""A hypergraph is the relation of its nodes to its hyperedges; messages pass there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from hetero_graphs import NUM_NODES, WRITES, hetero_graph
from ranks import run_as_threads, run_ranks
from small_graphs import assert_all_raise
from torch import Tensor
from torch_geometric.nn import HypergraphConv

import pyg_sar
from pyg_sar.comm import all_reduce_sum, is_distributed

TOLERANCE = 1e-10

ATTENTION: dict[str, dict[str, Any]] = {
    'none': {},
    'node': {'use_attention': True, 'heads': 2},
    'edge': {'use_attention': True, 'attention_mode': 'edge', 'heads': 2, 'concat': False},
}
"""Authors are the nodes, papers the hyperedges."""


def _conv(attention: str) -> HypergraphConv:
    conv = HypergraphConv(4, 3, **ATTENTION[attention]).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return conv


def _run(conv: Any, data: Any, authors: Tensor) -> tuple[Tensor, ...]:
    """Output, the gradients of what comes in, and those of the parameters."""
    x = data['author'].x.detach().requires_grad_()
    attr = data['paper'].x[:, :4].detach().requires_grad_()
    weight = data['paper'].x[:, 5].abs().detach().requires_grad_()
    out = conv(x, data[WRITES].edge_index, weight, attr, data['paper'].num_nodes)
    (out * (authors.view(-1, 1) % 5 - 2) / 4).sum().backward()
    attr_grad = torch.zeros_like(attr) if attr.grad is None else attr.grad
    grads = [p.grad.clone() for p in conv.parameters()]
    if is_distributed():
        grads = [all_reduce_sum(grad) for grad in grads]
    return out.detach(), x.grad, attr_grad, weight.grad, *grads


def _on_rank(root: Path, attention: str, mode: Any) -> Any:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    authors, papers = data['author'].n_id, data['paper'].n_id
    return authors, papers, _run(pyg_sar.SARConv(_conv(attention), mode=mode), data, authors)


@pytest.mark.parametrize(
    ('world_size', 'method'), few([(1, 'random'), (2, 'random'), (3, 'metis'), (3, 'no nodes')])
)
@pytest.mark.parametrize('attention', ATTENTION)
@pytest.mark.parametrize('mode', few(['sequential', 'sequential_no_remat', 'one_shot']))
def test_hypergraph(
    mode: str, attention: str, world_size: int, method: str, tmp_path: Path
) -> None:
    whole, root = hetero_graph(), tmp_path / 'parts'
    how: Any = method
    if method == 'no nodes':
        how = {name: torch.arange(num) % 2 * 2 for name, num in NUM_NODES.items()}
    pyg_sar.partition_graph(whole, 2 * world_size if method == 'random' else 3, root, method=how)
    want = _run(_conv(attention), whole, torch.arange(NUM_NODES['author']))
    if world_size == 1:
        answers = [_on_rank(root, attention, mode)]
    else:
        answers = run_as_threads(_on_rank, world_size, root, attention, mode)
    for authors, papers, got in answers:
        rows = [authors, authors, papers, papers]
        for i, (own, expected) in enumerate(zip(got, want, strict=True)):
            part = expected[rows[i]] if i < len(rows) else expected
            scale = max(1.0, expected.abs().max().item())
            assert own.shape == part.shape
            assert own.numel() == 0 or (own - part).abs().max() <= TOLERANCE * scale


def _without_num_edges(root: Path) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    try:
        pyg_sar.SARConv(_conv('none'))(data['author'].x, data[WRITES].edge_index)
    except ValueError as error:
        return f'ValueError: {error}'
    return 'no error'


def test_number_of_hyperedges_is_needed(tmp_path: Path) -> None:
    """The last papers have no author, so the edges do not tell how many there are."""
    pyg_sar.partition_graph(hetero_graph(), 2, tmp_path / 'parts', method='random')
    outcomes = run_ranks(_without_num_edges, 2, tmp_path / 'parts')
    assert_all_raise(outcomes, 'ValueError', "'size'")

"""torch.compile around a model on a cut graph: its graph breaks at the convs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks
from small_graphs import cut, small_graph
from torch_geometric.nn.models import GAT

import pyg_sar

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]


@pytest.mark.parametrize('first', ['compile', 'wrap'])
def test_compile(tmp_path, first):
    graph = small_graph()
    data = pyg_sar.local(pyg_sar.load_shard(cut(graph, 2, tmp_path / 'parts')))
    torch.manual_seed(0)
    model = GAT(6, 8, 2, 3, norm='batch_norm').double()
    want = model(graph.x, graph.edge_index)[data.n_id]
    want_grads = torch.autograd.grad(want.square().sum(), list(model.parameters()))
    if first == 'compile':
        compiled = pyg_sar.wrap(torch.compile(model, backend='eager'))
    else:
        compiled = torch.compile(pyg_sar.wrap(model), backend='eager')
    for _ in range(2):
        out = compiled(data.x, data.edge_index)
        torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-10)
        grads = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        for grad, wanted in zip(grads, want_grads, strict=True):
            torch.testing.assert_close(grad, wanted, rtol=1e-10, atol=1e-10)


def _step(root: str, order: str) -> tuple[float, list[torch.Tensor]]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(0)
    model: torch.nn.Module = GAT(6, 8, 2, 3, norm='batch_norm').double()
    if order == 'inside':
        model = torch.compile(model, backend='eager')
    model = pyg_sar.DistributedDataParallel(model)
    if order == 'outside':
        model = torch.compile(model, backend='eager')
    out = model(data.x, data.edge_index)
    values = F.cross_entropy(out, data.y, reduction='none')
    loss = pyg_sar.over_all_nodes.global_mean(values, data.train_mask)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return loss.item(), gradients


def test_compile_on_ranks(tmp_path):
    """Norms and gradients tell each other things between ranks; dynamo leaves them alone."""
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    plain = run_ranks(_step, 3, root, '')
    for order in ('inside', 'outside'):
        compiled = run_ranks(_step, 3, root, order)
        for (loss, gradients), (want, wanted) in zip(compiled, plain, strict=True):
            assert abs(loss - want) <= 1e-10
            for gradient, each in zip(gradients, wanted, strict=True):
                torch.testing.assert_close(gradient, each, rtol=1e-10, atol=1e-10)


class Broken(torch.nn.Module):
    """The graph breaks before a conv."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = GAT(6, 8, 2, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = 2 * x
        torch._dynamo.graph_break()
        return self.convs(x, edge_index)


def test_another_graph_break(tmp_path):
    graph, model = small_graph(), Broken().double()
    data = pyg_sar.local(pyg_sar.load_shard(cut(graph, 2, tmp_path / 'parts')))
    want = model(graph.x, graph.edge_index)[data.n_id]
    out = torch.compile(pyg_sar.wrap(model), backend='eager')(data.x, data.edge_index)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-10)

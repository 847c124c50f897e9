"""With all neighbours, links have the outputs and gradients of the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hetero_graphs import WRITES, assignment
from ranks import run_as_threads
from small_graphs import assert_close
from test_neighbor_parity import HeteroNet, compare_gradients, featured
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import pyg_sar
from pyg_sar import partition_graph

TOLERANCE = 1e-10
Step = Callable[[Any, nn.Module], tuple[Tensor, Tensor, Tensor]]


def _scores(src: Tensor, dst: Tensor, label: Tensor) -> Tensor:
    values = (src * dst).sum(-1) * 3
    return nn.functional.binary_cross_entropy_with_logits(values, label.to(values), reduction='sum')


def _of_ranks(
    root: str, make: Callable[[], nn.Module], step: Step, options: dict[str, Any]
) -> tuple[Any, ...]:
    """All links that were seen, as ids; what they gave; every gradient."""
    data = pyg_sar.load_shard(root)
    model = make()
    loader = pyg_sar.LinkNeighborLoader(data, [-1, -1], shuffle=True, **options)
    seen, losses = [], []
    for batch in loader:
        loss, links, _ = step(batch, model)
        loss.backward()
        losses.append(loss.detach())
        seen.append(links)
    return torch.cat(seen, dim=1), sum(losses), {n: p.grad for n, p in model.named_parameters()}


def _compare(
    results: list[Any], make: Callable[[], nn.Module], whole: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    model = make()
    loss = whole(model, torch.cat([links for links, _, _ in results], dim=1))
    loss.backward()
    assert_close(sum(loss for _, loss, _ in results), loss.detach(), tolerance=TOLERANCE)
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    compare_gradients(results, model)


class BothEnds(HeteroNet):
    def forward(self, data: HeteroData) -> dict[str, Tensor]:
        x = data.x_dict
        for conv in self.convs:
            x = {key: value.tanh() for key, value in conv(x, data.edge_index_dict).items()}
        return x


def _hetero_net(state: dict[str, Tensor] | None = None) -> nn.Module:
    graph = featured()
    torch.manual_seed(0)
    model = BothEnds(graph.edge_types).double()
    with torch.no_grad():
        model(graph)
    if state is not None:
        model.load_state_dict(state)
    return model


def _of_types(batch: HeteroData, model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    z, store = model(batch), batch[WRITES]
    src, dst = store.edge_label_index
    ends = [batch['author'].n_id[src], batch['paper'].n_id[dst], store.edge_label.long()]
    values = _scores(z['author'][src], z['paper'][dst], store.edge_label)
    return values, torch.stack(ends), src


def test_links_as_on_the_whole_heterogeneous_graph(tmp_path: Path) -> None:
    graph = featured()
    partition_graph(graph, 4, tmp_path / 'parts', method=assignment(4))
    state = _hetero_net().state_dict()
    options = {'edge_label_index': WRITES, 'batch_size': 5, 'neg_sampling': 'binary'}
    results = run_as_threads(
        _of_ranks, 2, str(tmp_path / 'parts'), partial(_hetero_net, state), _of_types, options
    )

    def whole(model: nn.Module, links: Tensor) -> Tensor:
        z = model(graph)
        return _scores(z['author'][links[0]], z['paper'][links[1]], links[2])

    _compare(results, partial(_hetero_net, state), whole)

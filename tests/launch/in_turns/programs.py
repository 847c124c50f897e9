"""Programs that ranks run, and the graphs that they run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from graphs import awkward_graph
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GAT, GENConv, GraphSAGE, HeteroConv, SAGEConv, TransformerConv

import pyg_sar
from pyg_sar.comm import vote
from pyg_sar.launch.in_turns.run import InTurns, play

NUM_RANKS, NUM_EPOCHS = 3, 3
SIZE = 1000


def in_turns(
    program: Callable[[], Any],
    folder: Path | None,
    num_ranks: int = 2,
    memory: int | str = 0,
    **options: Any,
) -> InTurns:
    """Runs a program on ranks in turn; by default all but what is in use is evicted."""
    return play(program, num_ranks, memory=memory, spill=folder, least=256, **options)


def others_turn() -> None:
    vote.agree(0)  # the last rank here goes on by itself,
    vote.agree(0)  # and waits here


def is_away(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().nbytes() == 0


def write_parts(folder: Path) -> None:
    """Two partition folders of small graphs: `one`, and `typed` of two types of nodes."""
    pyg_sar.partition_graph(awkward_graph(240, 1600), NUM_RANKS, folder / 'one')
    pyg_sar.partition_graph(_typed(), NUM_RANKS, folder / 'typed')


def _typed() -> HeteroData:
    generator, data = torch.Generator().manual_seed(1), HeteroData()
    for name, size in (('a', 150), ('b', 90)):
        data[name].x = torch.randn(size, 8, generator=generator, dtype=torch.float64)
        data[name].y = torch.randint(3, (size,), generator=generator)
    for src, dst in (('a', 'b'), ('b', 'a'), ('a', 'a')):
        sizes = data[src].num_nodes, data[dst].num_nodes
        ends = [torch.randint(size, (500,), generator=generator) for size in sizes]
        data[src, 'to', dst].edge_index = torch.stack(ends)
    return data


class _WithEdges(nn.Module):
    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList([conv(8, 16), conv(16, 3)])
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = F.dropout(self.norm(self.convs[0](x, edge_index, edge_attr)).relu(), 0.4, self.training)
        out: Tensor = self.convs[1](x, edge_index, edge_attr)
        return out


class _Typed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kinds = [('a', 'to', 'b'), ('b', 'to', 'a'), ('a', 'to', 'a')]
        widths = [(8, 12), (12, 3)]
        self.convs = nn.ModuleList(
            HeteroConv({kind: SAGEConv((i, i), o) for kind in kinds}) for i, o in widths
        )

    def forward(self, x: Any, edge_index: Any) -> Any:
        x = {name: rows.relu() for name, rows in self.convs[0](x, edge_index).items()}
        return self.convs[1](x, edge_index)


def make_model(kind: str) -> nn.Module:
    if kind == 'typed':
        return _Typed()
    if kind == 'gat':
        return GAT(8, 12, 3, 3, heads=2, norm='batch_norm')
    if kind == 'transformer':
        return _WithEdges(lambda i, o: TransformerConv(i, o, edge_dim=4))
    if kind == 'gen':
        return _WithEdges(lambda i, o: GENConv(i, o, edge_dim=4))
    return GraphSAGE(8, 16, 3, 3, norm='batch_norm', dropout=0.3 if kind == 'dropout' else 0.0)


KINDS = ('sage', 'gat', 'transformer', 'gen', 'typed', 'dropout')


def train(
    folder: str, kind: str, device: str = 'cpu'
) -> tuple[list[float], list[Tensor], list[Tensor]]:
    """Losses of some epochs, all weights, and the own rows of the outputs."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data: Any = pyg_sar.load_shard(Path(folder) / ('typed' if kind == 'typed' else 'one'))
    data = data.to(device)
    model = pyg_sar.DistributedDataParallel(make_model(kind).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(NUM_EPOCHS):
        if kind == 'typed':
            outs = model(data.x_dict, data.edge_index_dict)
            loss = sum(F.cross_entropy(out, data[name].y) for name, out in outs.items())
        else:
            given = [data.edge_attr] if kind in ('transformer', 'gen') else []
            outs = {'': model(data.x, data.edge_index, *given)}
            mask = data.train_mask
            loss = F.cross_entropy(outs[''][mask], data.y[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = [p.detach().cpu().clone() for p in model.parameters()]
    return losses, weights, [pyg_sar.local(out).detach().cpu() for out in outs.values()]

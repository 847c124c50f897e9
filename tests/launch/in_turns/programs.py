"""Programs that ranks run, and the graphs that they run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from graphs import awkward_graph
from torch import Tensor, nn
from torch_geometric import seed_everything
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
    dropout = 0.3 if 'dropout' in kind else 0.0
    if kind == 'typed':
        return _Typed()
    if kind.startswith('gat'):
        return GAT(8, 12, 3, 3, heads=2, norm='batch_norm', dropout=dropout)
    if kind == 'transformer':
        return _WithEdges(lambda i, o: TransformerConv(i, o, edge_dim=4))
    if kind == 'gen':
        return _WithEdges(lambda i, o: GENConv(i, o, edge_dim=4))
    return GraphSAGE(8, 16, 3, 3, norm='batch_norm', dropout=dropout)


KINDS = ('sage', 'gat', 'transformer', 'gen', 'typed', 'dropout')


class Run:
    """A model in training."""

    def __init__(self, folder: str, kind: str, device: str = 'cpu', **options: Any) -> None:
        seed_everything(0)
        torch.set_default_dtype(torch.float64)
        self.kind = kind
        data: Any = pyg_sar.load_shard(Path(folder) / ('typed' if kind == 'typed' else 'one'))
        self.data = data.to(device)
        self.model = pyg_sar.DistributedDataParallel(make_model(kind).to(device), **options)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=1)

    def _outputs(self) -> dict[str, Tensor]:
        data = self.data
        if self.kind == 'typed':
            outs: dict[str, Tensor] = self.model(data.x_dict, data.edge_index_dict)
            return outs
        given = [data.edge_attr] if self.kind in ('transformer', 'gen') else []
        return {'': self.model(data.x, data.edge_index, *given)}

    def epoch(self) -> float:
        """The loss of a step on all nodes."""
        self.model.train()
        self.optimizer.zero_grad()
        data, outs = self.data, self._outputs()
        if self.kind == 'typed':
            loss = sum(F.cross_entropy(out, data[name].y) for name, out in outs.items())
        else:
            loss = F.cross_entropy(outs[''][data.train_mask], data.y[data.train_mask])
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluated(self) -> Tensor:
        """The logits of the own nodes, of all types."""
        self.model.eval()
        return torch.cat([pyg_sar.local(out).cpu() for out in self._outputs().values()])

    def weights(self) -> list[Tensor]:
        """Of the model, and the states of the optimizer."""
        states = [s for state in self.optimizer.state.values() for s in state.values()]
        return [t.detach().cpu().clone() for t in (*self.model.state_dict().values(), *states)]


def train(folder: str, kind: str, device: str = 'cpu', **options: Any) -> list[Any]:
    """Losses of some epochs, all weights, and outputs."""
    run = Run(folder, kind, device, **options)
    return [[run.epoch() for _ in range(NUM_EPOCHS)], run.weights(), run.evaluated()]

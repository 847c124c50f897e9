"""One small program for every way in which ranks communicate, to lose a rank in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINEConv, GraphNorm, SAGEConv, TransformerConv

import pyg_sar
from pyg_sar.nn.options import Mode

MODES: tuple[Mode, ...] = get_args(Mode)[:3]
AGAINST = 'target_to_source'

Step = Callable[[int], object]

CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    'linear': lambda: SAGEConv(8, 8),
    'linear, narrower': lambda: SAGEConv(8, 3),
    'linear with weights': lambda: GCNConv(8, 8),
    'weighted': lambda: GATConv(8, 4, heads=2),
    'replay': lambda: SAGEConv(8, 8, aggr='max'),
    'softmax': lambda: TransformerConv(8, 8),
    'gather': lambda: SAGEConv(8, 8, aggr='median'),
    'reversed': lambda: GATConv(8, 8, flow=AGAINST),
    'reversed, edge features': lambda: GINEConv(torch.nn.Linear(8, 8), edge_dim=4, flow=AGAINST),
}


class Net(torch.nn.Module):
    """A layer of every node by itself, then one that communicates."""

    def __init__(self, conv: torch.nn.Module, norm: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = norm
        self.conv = conv
        self.edges = torch.nn.Linear(4, 4)

    def forward(self, data: Data) -> Tensor:
        x = self.first(data.x)
        if self.norm is not None:
            x = self.norm(x)
        if isinstance(self.conv, GINEConv):
            return self.conv(x, data.edge_index, self.edges(data.edge_attr))
        return self.conv(x, data.edge_index)


def _training(
    conv: Callable[[], torch.nn.Module], norm: Callable[[], torch.nn.Module] | None = None
) -> Callable[..., Step]:
    def build(data: Data, mode: Mode, timeout: float, folder: Path) -> Step:
        net = Net(conv(), None if norm is None else norm())
        if not isinstance(net.conv, GINEConv):
            net.edges.requires_grad_(False)
        model = pyg_sar.DistributedDataParallel(net.double(), mode=mode, timeout=timeout)

        def step(epoch: int) -> None:
            out = model(data)
            F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()

        return step

    return build


def _sage(timeout: float) -> torch.nn.Module:
    return pyg_sar.DistributedDataParallel(Net(SAGEConv(8, 8)).double(), timeout=timeout)


def _load(data: Data) -> Data:
    return pyg_sar.load_shard(data.edge_index.handle.shard.root)


def _first_forward(data: Data, mode: Mode, timeout: float, folder: Path) -> Step:
    """The ranks agree on a layer, and turn edges round, in its first forward only."""
    _sage(timeout)

    def step(epoch: int) -> None:
        conv, again = torch.nn.ModuleDict({'conv': GATConv(6, 8, flow=AGAINST)}), _load(data)
        pyg_sar.DistributedDataParallel(conv.double())['conv'](again.x, again.edge_index)

    return step


def _kept_sum(data: Data, mode: Mode, timeout: float, folder: Path) -> Step:
    """The sum over raw features is made once; then the ranks only agree that all have it."""
    model = torch.nn.ModuleDict({'conv': SAGEConv(6, 8)})
    pyg_sar.DistributedDataParallel(model.double(), timeout=timeout)
    return lambda epoch: model['conv'](data.x, data.edge_index)


def _save_checkpoint(data: Data, mode: Mode, timeout: float, folder: Path) -> Step:
    model = _sage(timeout)
    states = model, torch.optim.SGD(model.parameters(), lr=0.1)
    return lambda epoch: pyg_sar.save_checkpoint(folder / 'saved', *states, epoch=epoch)


def _load_checkpoint(data: Data, mode: Mode, timeout: float, folder: Path) -> Step:
    _save_checkpoint(data, mode, timeout, folder)(0)
    model = _sage(timeout)
    states = model, torch.optim.SGD(model.parameters(), lr=0.1)
    return lambda epoch: pyg_sar.load_checkpoint(folder / 'saved', *states)


def _calls(make: Callable[[Data], object]) -> Callable[..., Step]:
    def build(data: Data, mode: Mode, timeout: float, folder: Path) -> Step:
        _sage(timeout)
        return lambda epoch: make(data)

    return build


OTHERS: dict[str, tuple[Callable[..., Step], str]] = {
    'batch norm': (_training(CONVS['linear'], lambda: torch.nn.BatchNorm1d(8)), ''),
    'graph norm': (_training(CONVS['linear'], lambda: GraphNorm(8)), ''),
    'first forward': (_first_forward, "layer 'conv' (GATConv)"),
    'kept sum': (_kept_sum, "layer 'conv' (SAGEConv)"),
    'save_checkpoint': (_save_checkpoint, 'save_checkpoint'),
    'load_checkpoint': (_load_checkpoint, 'load_checkpoint'),
    'load_shard': (_calls(_load), 'load_shard'),
    'restrict': (_calls(lambda data: pyg_sar.restrict(data, data.train_mask, 2)), 'restrict'),
    'mean_of_batches': (
        _calls(lambda data: pyg_sar.loader.mean_of_batches(pyg_sar.local(data.x)[:, 0])),
        'mean_of_batches',
    ),
}
"""The program, and what errors call the place where it communicates."""


def program(name: str) -> tuple[Callable[..., Step], str]:
    """What builds a program from data, mode, timeout and folder; and the place."""
    if name in CONVS:
        return _training(CONVS[name]), f"layer 'conv' ({type(CONVS[name]()).__name__})"
    return OTHERS[name]


def place_of(name: str, phase: str) -> str:
    """What errors call the place of a phase; a norm on rows is in no layer."""
    where = program(name)[1]
    if phase not in ('forward', 'backward'):
        return where
    return f'{where}, {phase}' if where else phase.removeprefix('forward')

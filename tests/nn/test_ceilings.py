"""How much of pyg_sar one layer takes: calls of its own functions, their depth, and collectives.

Counted in the third training step on two ranks, when everything is known that is found out first.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from ranks import run_once
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

import pyg_sar

CEILINGS = {'SAGE': (158, 132), 'GAT': (312, 290), 'GCN': (186, 129)}
"""Calls of a layer, forward and backward, a little above what they are.

Comprehensions and lambdas do not count.
"""

COLLECTIVES = {'SAGE': (2, 3), 'GAT': (3, 6), 'GCN': (2, 3)}
"""Calls of torch.distributed that send something."""

DEPTH = 16
"""Own functions on the stack at once."""

LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    'SAGE': lambda: SAGEConv(16, 16),
    'GAT': lambda: GATConv(16, 8, 2, add_self_loops=False),
    'GCN': lambda: GCNConv(16, 16),
}
SENDING = ('all_reduce', 'all_to_all_single', 'batch_isend_irecv', 'all_gather', 'broadcast')
OWN = str(Path(pyg_sar.__file__).parent)


class Net(torch.nn.Module):
    """A linear layer before, so that rows take a gradient."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.lin, self.conv = torch.nn.Linear(16, 16), LAYERS[name]()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv(self.lin(x).relu(), edge_index)


@contextmanager
def _counted(counts: Counter[str]) -> Iterator[None]:
    def enter(frame: FrameType | None, event: str, arg: Any) -> None:
        is_own = frame is not None and frame.f_code.co_filename.startswith(OWN)
        if event != 'call' or frame is None or not is_own or frame.f_code.co_name[0] == '<':
            return
        counts['calls'] += 1
        depth = 0
        while frame is not None:
            depth += frame.f_code.co_filename.startswith(OWN)
            frame = frame.f_back
        counts['depth'] = max(counts['depth'], depth)

    def sending(name: str) -> Any:
        plain = getattr(dist, name)

        def send(*args: Any, **kwargs: Any) -> Any:
            counts['collectives'] += 1
            return plain(*args, **kwargs)

        return send

    with mock.patch.multiple(dist, **{name: sending(name) for name in SENDING}):
        sys.setprofile(enter)
        threading.setprofile(enter)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def _third_steps(root: str) -> dict[str, tuple[Counter[str], Counter[str]]]:
    """Counts of forward and of backward, by the name of a layer."""
    data, found = pyg_sar.load_shard(root), {}
    torch.autograd.set_multithreading_enabled(False)
    for name in LAYERS:
        torch.manual_seed(0)
        model = pyg_sar.DistributedDataParallel(Net(name))
        for _ in range(3):
            forward: Counter[str] = Counter()
            backward: Counter[str] = Counter()
            with _counted(forward):
                out = model(data.x, data.edge_index)
            loss = out.square().mean()
            with _counted(backward):
                loss.backward()
        found[name] = forward, backward
    return found


def test_layers(tmp_path: Path) -> None:
    graph = Data(x=torch.randn(200, 16), edge_index=torch.randint(200, (2, 1000)))
    pyg_sar.partition_graph(graph, 2, tmp_path / 'parts')
    for found in run_once(_third_steps, 2, str(tmp_path / 'parts')):
        for name, counts in found.items():
            for i, of_pass in enumerate(counts):
                assert of_pass['calls'] <= CEILINGS[name][i], name
                assert of_pass['collectives'] <= COLLECTIVES[name][i], name
                assert of_pass['depth'] <= DEPTH, name

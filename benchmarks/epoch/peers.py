"""Other libraries, measured beside plain PyG where they are installed: DGL.

Its models start from weights of their own, so their losses are not compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from cached_graphs import graph_file
from measured_training import PeakMemory, num_cores
from team import Team

DGL = 'DGL'
NAMES = (DGL,)


def teams(graph: str, processes: int, **options: Any) -> dict[str, Callable[[], Team]]:
    """What makes a team of every peer that is installed; none where none is."""
    if find_spec('dgl') is None:
        return {}
    source = str(graph_file(graph))
    return {DGL: partial(Team, train_dgl, threads=num_cores(), source=source, **options)}


def train_dgl(
    *, source: str, model: str, hidden: int, layers: int, lr: float
) -> Iterator[dict[str, Any]]:
    """As :func:`training.train`, with DGL's layers on the whole graph in one process."""
    import dgl
    from dgl.nn import GATConv, SAGEConv

    data = torch.load(source, weights_only=False)
    graph = dgl.graph((data.edge_index[0], data.edge_index[1]), num_nodes=data.num_nodes)
    widths = [data.num_features, *[hidden] * (layers - 1), data.num_classes]
    convs, norms = torch.nn.ModuleList(), torch.nn.ModuleList()
    for number in range(layers):
        src, dst = widths[number : number + 2]
        is_last = number == layers - 1
        if model == 'sage':
            convs.append(SAGEConv(src, dst, 'mean'))
        else:
            convs.append(GATConv(src, dst if is_last else dst // 4, 4))
        norms.append(torch.nn.Identity() if is_last else torch.nn.BatchNorm1d(dst))
    optimizer = torch.optim.Adam([*convs.parameters(), *norms.parameters()], lr=lr)
    if model == 'gat':
        graph = dgl.add_self_loop(graph)  # as PyG's GATConv does
    memory = PeakMemory()
    result: dict[str, Any] = {'before_bytes': memory.before}
    while True:
        yield result
        start = time.perf_counter()
        x = data.x
        for number, (conv, norm) in enumerate(zip(convs, norms, strict=True)):
            x = conv(graph, x)
            if x.dim() == 3:  # heads
                x = x.mean(dim=1) if number == layers - 1 else x.flatten(1)
            x = x if number == layers - 1 else norm(x).relu()
        values = F.cross_entropy(x, data.y, reduction='none', ignore_index=-1)
        loss = values[data.train_mask].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result = {'loss': loss.item(), 'seconds': time.perf_counter() - start}
        result['peak_bytes'] = memory.bytes()
        del x, values, loss

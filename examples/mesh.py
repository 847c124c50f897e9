"""Trains a MeshGraphNet to foretell the next state of a field on a drawn mesh.

    python examples/mesh.py --draw 320 parts/ --num-parts 4    # 320 x 320 points
    torchrun --nproc-per-node 4 examples/mesh.py parts/

A wave moves over a mesh of triangles. The model gets the field at one time and foretells how it
changes until the next one: 15 layers, each of which updates the features of all edges from both of
their ends, and then those of all nodes from their edges. No layer is a conv: rows of nodes are
read at the ends of edges as `h[src]` and `h[dst]`, and edges are summed by `scatter`. Layers are
computed again in backward (`torch.utils.checkpoint`).
"""

from __future__ import annotations

import argparse
import math
import resource

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module, ModuleList, ReLU, Sequential
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.utils import scatter, to_undirected

import pyg_sar


def main() -> None:
    args = parse()
    if args.draw:
        pyg_sar.partition_graph(drawn(args.draw), args.num_parts, args.root, force=True)
        return
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root)
    torch.manual_seed(0)
    model = pyg_sar.DistributedDataParallel(MeshGraphNet(args.hidden, args.layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        time = 0.1 * step  # another state of the field in every step, on one mesh
        now, then = field(data.pos, time), field(data.pos, time + 0.1)
        loss = F.mse_loss(model(now, data.edge_index, data.edge_attr), then - now)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if process.rank == 0:
            print(f'step {step + 1}  loss {loss.item():.6f}')
    if process.rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f'peak memory of rank 0, libraries included: {peak:,.0f} MiB')


def drawn(size: int) -> Data:
    """A mesh of ``size * size`` points that are moved a little, and 2 triangles in each square."""
    generator = torch.Generator().manual_seed(0)
    line = torch.arange(size) / size
    pos = torch.cartesian_prod(line, line)
    pos += torch.randn(pos.shape, generator=generator) * 0.2 / size
    ids = torch.arange(size * size).view(size, size)
    pairs = [
        (ids[1:], ids[:-1]),
        (ids[:, 1:], ids[:, :-1]),
        (ids[1:, 1:], ids[:-1, :-1]),
    ]
    ends = torch.stack(
        [torch.cat([each.flatten() for each in side]) for side in zip(*pairs, strict=True)]
    )
    edge_index = to_undirected(ends)
    offset = (pos[edge_index[1]] - pos[edge_index[0]]) * size
    edge_attr = torch.cat([offset, offset.norm(dim=1, keepdim=True)], dim=1)
    return Data(pos=pos, edge_index=edge_index, edge_attr=edge_attr, num_nodes=size * size)


def field(pos: Tensor, time: float) -> Tensor:
    """Two waves, ``[N, 2]``."""
    first = torch.sin(2 * math.pi * (pos[:, 0] - time))
    second = torch.cos(2 * math.pi * (pos[:, 1] + 0.5 * time))
    return torch.stack([first * second, first + second], dim=1)


def mlp(num_in: int, hidden: int) -> Sequential:
    return Sequential(Linear(num_in, hidden), ReLU(), Linear(hidden, hidden), LayerNorm(hidden))


class Processor(Module):
    """Edges from their ends, then nodes from their edges."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.of_edge, self.of_node = mlp(3 * hidden, hidden), mlp(2 * hidden, hidden)

    def forward(self, h: Tensor, edge_index: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        e = e + self.of_edge(torch.cat([h[src], h[dst], e], dim=-1))
        received = scatter(e, dst, dim=0, dim_size=h.size(0), reduce='sum')
        return h + self.of_node(torch.cat([h, received], dim=-1)), e


class MeshGraphNet(Module):
    """Encoder, processors, decoder (Pfaff et al., ICLR 2021, arXiv 2010.03409)."""

    def __init__(self, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.nodes, self.edges = mlp(2, hidden), mlp(3, hidden)
        self.layers = ModuleList(Processor(hidden) for _ in range(num_layers))
        self.decoder = Sequential(Linear(hidden, hidden), ReLU(), Linear(hidden, 2))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h, e = self.nodes(x), self.edges(edge_attr)
        for layer in self.layers:
            h, e = checkpoint(layer, h, edge_index, e, use_reentrant=False)
        out: Tensor = self.decoder(h)
        return out


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='the partition folder')
    parser.add_argument('--draw', type=int, metavar='SIZE', help='draw a mesh and cut it, once')
    parser.add_argument('--num-parts', type=int, default=4)
    parser.add_argument('--hidden', type=int, default=32)
    parser.add_argument('--layers', type=int, default=15)
    parser.add_argument('--steps', type=int, default=5)
    return parser.parse_args()


if __name__ == '__main__':
    main()

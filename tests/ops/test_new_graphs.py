"""A new graph in every step: each is cut once, and they are loaded in turn."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from alike import cut_of
from mesh_programs import MeshGraphNet
from ranks import run_ranks
from three_steps import descend
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar

SIZES = (40, 61, 33)


def mesh(number: int) -> Data:
    generator = torch.Generator().manual_seed(number)
    count = SIZES[number]
    ends = torch.randint(count, (2, 4 * count), generator=generator)
    return Data(
        x=torch.randn(count, 6, generator=generator, dtype=torch.float64),
        edge_index=ends,
        edge_attr=torch.randn(ends.size(1), 4, generator=generator, dtype=torch.float64),
    )


def trained(model: Any, graphs: list[Any]) -> list[Tensor]:
    """Two rounds over the graphs; the losses, then the weights."""
    optimizer, given = torch.optim.Adam(model.parameters(), lr=0.01), iter(graphs * 2)

    def loss() -> Tensor:
        data = next(given)
        return (model(data.x, data.edge_index, data.edge_attr) - data.x[:, :3]).square().mean()

    losses = descend(loss, optimizer, steps=2 * len(graphs))
    return [torch.tensor(losses), *(p.detach() for p in model.parameters())]


def make() -> Any:
    torch.manual_seed(0)
    return MeshGraphNet(again=True, num_layers=3)


def _on_rank(roots: list[str]) -> list[Tensor]:
    model = pyg_sar.DistributedDataParallel(make())
    return trained(model, [pyg_sar.load_shard(root) for root in roots])


def test_meshes_in_turn() -> None:
    meshes = [partial(mesh, number) for number in range(len(SIZES))]
    want = trained(make(), [each() for each in meshes])
    for found in run_ranks(_on_rank, 3, [cut_of(each, 3, 'metis') for each in meshes]):
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-10)

"""The ways PyG's convs are called, and what they are given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from conv_case import Edges, Inputs, takes
from torch import Tensor
from torch_geometric import typing
from torch_geometric.nn.conv import spline_conv


def mlp(num_in: int, num_out: int) -> torch.nn.Module:
    """Two linear layers and a smooth function between them."""
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, 7), torch.nn.Tanh(), torch.nn.Linear(7, num_out)
    )


DEGREES = torch.tensor([1, 2, 5, 9, 12, 9, 7, 3])

WEIGHT, ATTR, TYPE = takes('edge_weight'), takes('edge_attr'), takes('edge_type')


def fixed_weight(module: torch.nn.Module, d: Inputs) -> Any:
    return module(d.x, d.edge_index, edge_weight=d.constant.edge_weight)


def with_attention(*names: str, x_0: bool = False) -> Any:
    def call(module: torch.nn.Module, d: Inputs) -> Any:
        kwargs = {name: getattr(d, name) for name in names}
        x = (d.x, d.x.sin()) if x_0 else (d.x,)
        out, edges = module(*x, d.edge_index, **kwargs, return_attention_weights=True)
        return out, Edges(*edges)

    return call


def twice(module: torch.nn.Module, d: Inputs) -> Any:
    return module(d.x, d.edge_index) + module(d.x.tanh(), d.edge_index)


def x_and_x_0(*names: str) -> Any:
    return lambda m, d: m(d.x, d.x.sin(), d.edge_index, **{n: getattr(d, n) for n in names})


def stacked(*names: str) -> Any:
    def call(module: torch.nn.Module, d: Inputs) -> Any:
        x = torch.stack([d.x, d.x.sin(), d.x.cos()], dim=1)
        return module(x, d.edge_index, *(getattr(d, name) for name in names))

    return call


def with_rows(*names: str) -> Any:
    """Values of nodes by their names, None for an empty one, then edges."""
    return lambda m, d: m(*(getattr(d, name) if name else None for name in names), d.edge_index)


def signed(module: torch.nn.Module, d: Inputs) -> Any:
    is_positive = d.edge_type == 0
    x = d.x if module.first_aggr else torch.cat([d.x, d.x.sin()], dim=-1)
    return module(x, d.edge_index[:, is_positive], d.edge_index[:, ~is_positive])


@contextmanager
def spline_kernels() -> Iterator[None]:
    """Splines of degree 1 in plain PyTorch where pyg-lib, which has them, is not installed."""

    def basis(pseudo: Tensor, sizes: Tensor, is_open: Tensor, degree: int) -> Any:
        assert degree == 1
        place = pseudo * (sizes - is_open)
        low = place.floor()
        weights, indices = [], []
        for corner in torch.cartesian_prod(*[torch.arange(2, device=sizes.device)] * len(sizes)):
            fraction = place - low
            weights.append(torch.where(corner == 1, fraction, 1 - fraction).prod(-1))
            strides = torch.cat([sizes.new_ones(1), sizes[:-1].cumprod(0)])
            indices.append(((low.long() + corner) % sizes * strides).sum(-1))
        return torch.stack(weights, -1), torch.stack(indices, -1)

    def weighting(x: Tensor, weight: Tensor, basis: Tensor, index: Tensor) -> Tensor:
        return torch.einsum('ef,es,esfo->eo', x, basis, weight[index])

    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)  # 'We do not recommend ... CPU'
        if spline_conv.spline_basis is None:  # they stay: other ranks may be threads
            spline_conv.spline_basis, spline_conv.spline_weighting = basis, weighting
        yield


def of_points(module: torch.nn.Module, d: Inputs) -> Any:
    return module(d.x)


@contextmanager
def knn() -> Iterator[None]:
    """Nearest points in plain PyTorch where pyg-lib, which has them, is not installed."""
    if typing.WITH_KNN:
        yield
        return

    def nearest(x: Tensor, y: Tensor, ptr_x: Any, ptr_y: Any, k: int, *_: Any) -> Tensor:
        found = torch.cdist(y, x).topk(k, largest=False).indices
        to = torch.arange(y.size(0), device=y.device).repeat_interleave(k)
        return torch.stack([to, found.view(-1)])

    with (
        mock.patch.object(typing, 'WITH_KNN', True),
        mock.patch.object(torch.ops, 'pyg', mock.Mock(knn=nearest)),
    ):
        yield

"""pyg_sar.check: a whole training step, without ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_graphs import small_graph
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN, HeteroConv, SAGEConv

import pyg_sar


def _data() -> Data:
    data = small_graph(300, 1500)
    data.x = data.x.float()
    return data


def _losses(model: nn.Module, data: Data) -> Tensor:
    return F.cross_entropy(model(data.x, data.edge_index), data.y, reduction='none')


def _right(model: nn.Module, data: Data) -> Tensor:
    return pyg_sar.global_mean(_losses(model, data), data.train_mask)


def _local_mean(model: nn.Module, data: Data) -> Tensor:
    return _losses(model, data)[data.train_mask].mean()


def _standardised(model: nn.Module, data: Data) -> Tensor:
    data.x = (data.x - pyg_sar.global_mean(data.x, dim=0)) / pyg_sar.global_std(data.x)
    return _right(model, data)


def _standardised_by_part(model: nn.Module, data: Data) -> Tensor:
    data.x = (data.x - data.x.mean(dim=0)) / data.x.std(dim=0)
    return _right(model, data)


def _class_weights(model: nn.Module, data: Data) -> Tensor:
    counts = pyg_sar.global_sum(torch.bincount(data.y, minlength=3))
    return pyg_sar.global_mean(_losses(model, data) / counts[data.y])


def _class_weights_of_part(model: nn.Module, data: Data) -> Tensor:
    return pyg_sar.global_mean(_losses(model, data) / torch.bincount(data.y, minlength=3)[data.y])


def _link_prediction(model: nn.Module, data: Data) -> Tensor:
    out = model(data.x, data.edge_index)
    z = pyg_sar.rows(out, torch.tensor([[0, 3, 5], [9, 1, 7]]), data.n_id)
    return F.logsigmoid((z[0] * z[1]).sum(dim=-1)).mean()


@pytest.mark.parametrize('step', [_right, _standardised, _class_weights, _link_prediction])
def test_right(step: Any) -> None:
    model, data = GCN(6, 8, 2, 3, norm='batch_norm', dropout=0.5), _data()
    before = data.clone()
    pyg_sar.check(step, model, data)
    assert all(p.grad is None for p in model.parameters())
    assert type(model.convs[0]).__name__ == 'GCNConv'
    assert data.keys() == before.keys()
    assert all(torch.equal(data[key], before[key]) for key in ('x', 'edge_index', 'y'))


@pytest.mark.parametrize(
    'step', [_local_mean, _standardised_by_part, _class_weights_of_part], ids=lambda f: f.__name__
)
def test_wrong(step: Any) -> None:
    with pytest.raises(ValueError, match='its output differs by'):
        pyg_sar.check(step, GCN(6, 8, 2, 3), _data())


def _cannot(model: nn.Module, data: Data) -> Tensor:
    return _right(model, data) + data.x[250].sum()


def test_what_cannot_run() -> None:
    with pytest.raises(ValueError, match='the step cannot be checked: IndexError'):
        pyg_sar.check(_cannot, GCN(6, 8, 2, 3), _data())


class _Hetero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        keys = [('a', 'to', 'b'), ('b', 'back', 'a')]
        self.conv = HeteroConv(
            {key: SAGEConv((4, 5) if key[0] == 'a' else (5, 4), 3) for key in keys}
        )

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        return self.conv(x, edges)


def _of_types(model: nn.Module, data: HeteroData) -> Tensor:
    out = model(data.x_dict, data.edge_index_dict)
    return pyg_sar.global_mean(out['a'].square()) + pyg_sar.global_mean(out['b'].square())


def _of_types_by_part(model: nn.Module, data: HeteroData) -> Tensor:
    out = model(data.x_dict, data.edge_index_dict)
    return pyg_sar.global_mean((out['a'] - out['a'].mean(dim=0)).square())


def test_heterogeneous() -> None:
    data = HeteroData()
    data['a'].x, data['b'].x = torch.randn(150, 4), torch.randn(170, 5)
    data['a', 'to', 'b'].edge_index = torch.stack(
        [torch.randint(150, (600,)), torch.randint(170, (600,))]
    )
    data['b', 'back', 'a'].edge_index = data['a', 'to', 'b'].edge_index.flip(0)
    pyg_sar.check(_of_types, _Hetero(), data)
    with pytest.raises(ValueError, match='its output differs by'):
        pyg_sar.check(_of_types_by_part, _Hetero(), data)

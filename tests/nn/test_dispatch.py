"""Functions over edges after a conv was wrapped: PyG's for whoever is not on a cut graph."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.utils
from small_graphs import cut, small_graph
from sum_conv import SumConv
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from pyg_sar import SARConv, load_shard
from pyg_sar.nn.intercept import _dispatchers

SARConv(GCNConv(2, 2))


def _plain(name: str) -> Any:
    return next(function for function in _dispatchers if function.__name__ == name)


@pytest.mark.parametrize('function', _dispatchers, ids=lambda function: function.__name__)
def test_a_dispatcher_looks_like_the_function(function: Any) -> None:
    dispatcher = _dispatchers[function]
    assert (dispatcher.__name__, dispatcher.__doc__) == (function.__name__, function.__doc__)
    assert pickle.loads(pickle.dumps(dispatcher)) is dispatcher
    assert copy.deepcopy(dispatcher) is dispatcher
    if dispatcher.__module__ != 'torch':
        assert inspect.signature(dispatcher) == inspect.signature(function)


def _of_torch(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(edge_index, x[edge_index[0], 0], [5, 5]).to_dense()


@pytest.mark.filterwarnings('ignore:Sparse invariant checks')
@pytest.mark.parametrize('make', [lambda: GCNConv(4, 4), lambda: SAGEConv(4, 4), lambda: _of_torch])
def test_plain_models_are_scripted(make: Any) -> None:
    plain, x, edge_index = make(), torch.randn(5, 4), torch.tensor([[0, 1, 2], [1, 2, 4]])
    assert torch.equal(torch.jit.script(plain)(x, edge_index), plain(x, edge_index))


@pytest.mark.parametrize('conv', [GCNConv, GATConv])
def test_plain_models_are_compiled_as_one_graph(conv: Any) -> None:
    plain, x, edge_index = conv(4, 4), torch.randn(5, 4), torch.tensor([[0, 1, 2], [1, 2, 4]])
    compiled = torch.compile(plain, backend='eager', fullgraph=True)
    assert torch.equal(compiled(x, edge_index), plain(x, edge_index))


class _Outer(SumConv):
    pass


def test_modules_of_what_is_put_in_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_shard(cut(small_graph(), 2, tmp_path / 'parts'))
    module: Any = types.ModuleType('met_at_a_forward')
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.by_destination = _plain('softmax')
    conv = SARConv(_Outer())
    conv.late = type('Late', (torch.nn.Identity,), {'__module__': module.__name__})()
    conv(data.x, data.edge_index)
    assert module.by_destination is torch_geometric.utils.softmax

"""``adj_t`` on a cut graph: convs and functions give what they give for the whole matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    AGNNConv,
    ARMAConv,
    ChebConv,
    ClusterGCNConv,
    EGConv,
    FAConv,
    GATConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    LEConv,
    LGConv,
    MixHopConv,
    PNAConv,
    ResGatedGraphConv,
    SAGEConv,
    SGConv,
    SSGConv,
    TAGConv,
    TransformerConv,
)
from torch_geometric.typing import WITH_TORCH_SPARSE

import pyg_sar

CONVS: dict[str, Callable[[], Any]] = {
    'GCNConv': lambda: GCNConv(6, 5),
    'GCNConv, cached, improved': lambda: GCNConv(6, 5, cached=True, improved=True),
    'GCNConv without loops': lambda: GCNConv(6, 5, add_self_loops=False),
    'SAGEConv': lambda: SAGEConv(6, 5),
    'SAGEConv of maxima': lambda: SAGEConv(6, 5, aggr='max'),
    'SAGEConv of sums': lambda: SAGEConv(6, 5, aggr='sum', normalize=True),
    'GATConv': lambda: GATConv(6, 5, heads=2),
    'GATv2Conv': lambda: GATv2Conv(6, 5, heads=2, concat=False),
    'GINConv': lambda: GINConv(torch.nn.Linear(6, 5), train_eps=True),
    'GraphConv': lambda: GraphConv(6, 5),
    'GraphConv of means': lambda: GraphConv(6, 5, aggr='mean'),
    'TAGConv': lambda: TAGConv(6, 5),
    'SGConv': lambda: SGConv(6, 5, K=2),
    'SSGConv': lambda: SSGConv(6, 5, alpha=0.1, K=2),
    'APPNP': lambda: APPNP(3, 0.1),
    'GCN2Conv': lambda: GCN2Conv(6, 0.2, 0.5, 2),
    'ChebConv': lambda: ChebConv(6, 5, K=2),
    'ARMAConv': lambda: ARMAConv(6, 5, num_stacks=2, num_layers=2),
    'ClusterGCNConv': lambda: ClusterGCNConv(6, 5, diag_lambda=0.1),
    'LEConv': lambda: LEConv(6, 5),
    'LGConv': lambda: LGConv(),
    'TransformerConv': lambda: TransformerConv(6, 5, heads=2),
    'MixHopConv': lambda: MixHopConv(6, 5),
    'FAConv': lambda: FAConv(6),
    'AGNNConv': lambda: AGNNConv(),
    'ResGatedGraphConv': lambda: ResGatedGraphConv(6, 5),
    'EGConv': lambda: EGConv(6, 8, aggregators=['sum', 'mean', 'max']),
    'PNAConv': lambda: PNAConv(
        6, 5, ['mean', 'max', 'std'], ['identity', 'attenuation'], torch.arange(1, 20)
    ),
}
KINDS = ['csr', 'coo'] + ['SparseTensor'] * WITH_TORCH_SPARSE
LAYOUTS = {'csr': torch.sparse_csr, 'coo': torch.sparse_coo, 'SparseTensor': None}
N = 40


@contextmanager
def _of_float64() -> Iterator[None]:
    """The ones of PyG's matrices are of the default type."""
    torch.set_default_dtype(torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # PyG: COO matrices are slow, and torch: CSR is in beta
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def _with_adj_t(data: Any, kind: str, attr: str | None) -> Any:
    if 'adj_t' in data:
        return data
    return T.ToSparseTensor(attr=attr, layout=LAYOUTS[kind])(data)


def _whole(value: Any) -> Any:
    """Plain tensors of the whole graph, also of matrices, which have other classes."""
    if value is None or isinstance(value, (int, float, bool, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_whole(item) for item in value]
    if not isinstance(value, Tensor):
        return _whole(value.coo())
    if value.layout != torch.strided:
        return _whole(value.to_dense())
    return pyg_sar.gather(value).detach()


def _conv_results(data: Any, kind: str, attr: str | None, names: list[str]) -> Any:
    is_cut = not isinstance(data, Data) or 'n_id' in data
    with _of_float64():
        data = _with_adj_t(data, kind, attr)
        return {name: _of_conv(data, name, is_cut=is_cut) for name in names}


def _of_conv(data: Any, name: str, *, is_cut: bool) -> Any:
    torch.manual_seed(0)
    conv = CONVS[name]()
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)
    if is_cut:
        conv = pyg_sar.DistributedDataParallel(conv)
    x = data.x.clone().requires_grad_()
    others = (data.pos.flatten(1).repeat(1, 2)[:, :6],) * (name in ('GCN2Conv', 'FAConv'))
    try:
        out = conv(x, *others, data.adj_t)
        out = conv(x, *others, data.adj_t)
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    out.square().sum().backward()
    return _whole([out, x.grad, *[p.grad for p in conv.parameters()]])


def _loaded(root: str, program: Callable[..., Any], *args: Any) -> Any:
    return program(pyg_sar.load_shard(root), *args)


@pytest.fixture(scope='module')
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp('parts')
    return {n: str(cut(small_graph(), n, folder / str(n), 'empty part')) for n in (1, 3)}


def _check(got: Any, want: Any) -> None:
    assert type(got) is type(want), (got, want)
    if isinstance(want, Tensor):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    elif isinstance(want, list):
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            _check(*pair)
    else:
        assert got == want


@pytest.mark.parametrize('attr', ['edge_weight', None])
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(('world_size', 'parts'), [(3, 3), (1, 3), (1, 1)])
def test_convs(
    roots: dict[int, str], world_size: int, parts: int, kind: str, attr: str | None
) -> None:
    want = _conv_results(small_graph(), kind, attr, [*CONVS])
    right = [name for name in CONVS if not isinstance(want[name], str)]
    assert len(right) >= 20
    for got in run_ranks(
        _loaded, world_size, roots[parts], _conv_results, kind, attr, right, timeout=120
    ):
        for name in right:
            assert not isinstance(got[name], str), (name, got[name])
            _check(got[name], want[name])

"""``adj_t`` on a cut graph: convs and functions give what they give for the whole matrix."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_once, run_ranks
from small_graphs import attempt, cut, small_graph
from torch import Tensor
from torch.nn import functional as F
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    AGNNConv,
    ChebConv,
    ClusterGCNConv,
    CorrectAndSmooth,
    EGConv,
    FAConv,
    GATConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    HGTConv,
    LabelPropagation,
    MessagePassing,
    PNAConv,
    SAGEConv,
    SGConv,
    TransformerConv,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor, torch_sparse
from torch_geometric.utils import (
    add_self_loops,
    coalesce,
    is_sparse,
    remove_self_loops,
    spmm,
    to_edge_index,
)

import pyg_sar

matmul = torch_sparse.matmul  # imported by its name before a graph is loaded

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
    'SGConv': lambda: SGConv(6, 5, K=2),
    'APPNP': lambda: APPNP(3, 0.1),
    'GCN2Conv': lambda: GCN2Conv(6, 0.2, 0.5, 2),
    'ChebConv': lambda: ChebConv(6, 5, K=2),
    'ClusterGCNConv': lambda: ClusterGCNConv(6, 5, diag_lambda=0.1),
    'TransformerConv': lambda: TransformerConv(6, 5, heads=2),
    'FAConv': lambda: FAConv(6),
    'AGNNConv': lambda: AGNNConv(),
    'EGConv': lambda: EGConv(6, 8, aggregators=['sum', 'mean', 'max']),
    'PNAConv': lambda: PNAConv(
        6, 5, ['mean', 'max', 'std'], ['identity', 'attenuation'], torch.arange(1, 20)
    ),
}
pytestmark = pytest.mark.filterwarnings('ignore:Sparse CSR tensor support is in beta')

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


def _of_product(run: Callable[[Any, Tensor], Any]) -> Callable[[Any], Any]:
    """A product with x, and its gradient."""

    def function(data: Any) -> Any:
        x = data.x.clone().requires_grad_()
        out = run(data.adj_t, x)
        out.square().sum().backward()
        return out, x.grad

    return function


def _degrees(adj: Any) -> Any:
    deg = adj.sum(dim=1).to(torch.float64)
    deg = deg.to_dense() if deg.layout != torch.strided else deg
    return deg.clamp(min=1).pow(-0.5)


def _hops(adj: Any, x: Any) -> Any:
    xs = [x]
    for _ in range(3):
        xs.append(adj @ xs[-1])
    return torch.cat(xs, dim=-1)


def _learned(data: Any) -> Any:
    """A gradient of the values."""
    weight = data.adj_t.detach().clone().requires_grad_()
    x = data.x.clone().requires_grad_()
    (weight @ x).square().sum().backward()
    return x.grad


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    '@': _of_product(lambda a, x: a @ x),
    '@ a vector': _of_product(lambda a, x: a @ x[:, :1]),
    'hops': _of_product(_hops),
    'spmm': _of_product(spmm),
    'spmm, mean': _of_product(lambda a, x: spmm(a, x, reduce='mean')),
    'spmm, max': _of_product(lambda a, x: spmm(a, x, reduce='max')),
    'spmm, min': _of_product(lambda a, x: spmm(a, x, 'min')),
    't': lambda d: d.adj_t.t(),
    't @': _of_product(lambda a, x: a.t() @ x),
    'sum': lambda d: [d.adj_t.sum(), d.adj_t.sum(dim=1), d.adj_t.sum(dim=0)],
    'to_edge_index': lambda d: to_edge_index(d.adj_t),
    'gcn_norm': lambda d: gcn_norm(d.adj_t, num_nodes=N, dtype=torch.float64)[0],
    'to': lambda d: d.adj_t.to('cpu').to(torch.float64),
    'times a number': lambda d: d.adj_t * 2 if isinstance(d.adj_t, Tensor) else None,
    'to_dense': lambda d: d.adj_t.to_dense(),
    'copies': lambda d: copy.deepcopy(copy.copy(d)).adj_t,
    'sizes': lambda d: [d.adj_t.size(0), d.adj_t.size(-1), d.num_nodes, d.num_edges],
    'label propagation': lambda d: LabelPropagation(3, 0.9)(d.y, d.adj_t, d.train_mask),
    'correct and smooth': lambda d: CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=False).smooth(
        F.softmax(d.x, -1), d.y[d.train_mask], d.train_mask, d.adj_t
    ),
    'learned values': _learned,
}
OF_TORCH: dict[str, Callable[[Any], Any]] = {
    'torch.sparse.mm': _of_product(torch.sparse.mm),
    'torch.sparse.mm, reduced': _of_product(lambda a, x: torch.sparse.mm(a, x, 'mean')),
    'torch.mm': _of_product(torch.mm),
    'values': lambda d: d.adj_t.values(),
    'sizes': lambda d: [*d.adj_t.shape, d.adj_t.dim(), str(d.adj_t.layout), d.adj_t._nnz()],
    'is_sparse': lambda d: [d.adj_t.is_sparse, d.adj_t.is_sparse_csr, is_sparse(d.adj_t)],
    'to_sparse_csr': lambda d: d.adj_t.to_sparse_csr(),
    'to_sparse': lambda d: d.adj_t.to_sparse(),
    'add loops': lambda d: add_self_loops(d.adj_t)[0],
    'remove loops': lambda d: remove_self_loops(d.adj_t)[0],
    'times itself': lambda d: (d.adj_t @ d.adj_t).to_dense(),
    'addmm': _of_product(lambda a, x: torch.addmm(x, a, x)),
    'from the left': _of_product(lambda a, x: x.t() @ a),
    'of all edges': lambda d: torch.sparse_coo_tensor(
        torch.stack([*to_edge_index(d.adj_t)[0]]), torch.ones(d.adj_t._nnz()), (N, N)
    ).coalesce(),
}
OF_TORCH_SPARSE: dict[str, Callable[[Any], Any]] = {
    'coo': lambda d: d.adj_t.coo(),
    'csr': lambda d: d.adj_t.csr(),
    'csc': lambda d: d.adj_t.csc(),
    'sizes': lambda d: [d.adj_t.sizes(), d.adj_t.sparse_sizes(), d.adj_t.sparse_size(1)],
    'numbers': lambda d: [d.adj_t.nnz(), d.adj_t.density(), d.adj_t.dim(), d.adj_t.has_value()],
    'matmul, max': _of_product(lambda a, x: matmul(a, x, reduce='max')),
    'torch_sparse.matmul': _of_product(lambda a, x: torch_sparse.matmul(a, x, reduce='mean')),
    'matmul, min': _of_product(lambda a, x: a.matmul(x, 'min')),
    'to_symmetric': lambda d: d.adj_t.to_symmetric(),
    'set_diag': lambda d: d.adj_t.set_diag(),
    'fill_diag': lambda d: torch_sparse.fill_diag(d.adj_t, 2.0),
    'remove_diag': lambda d: d.adj_t.remove_diag(),
    'get_diag': lambda d: d.adj_t.get_diag(),
    'by degrees': lambda d: (
        _degrees(d.adj_t).view(-1, 1) * d.adj_t.set_diag() * _degrees(d.adj_t).view(1, -1)
    ),
    'by rows of nodes': lambda d: torch_sparse.mul(d.adj_t, d.x[:, :1]),
    'of it': lambda d: torch_sparse.sum(d.adj_t, dim=1),
    'mean': lambda d: torch_sparse.mean(d.adj_t, dim=1),
    'storage': lambda d: [d.adj_t.storage.row(), d.adj_t.storage.rowcount()],
    'set_value': lambda d: d.adj_t.set_value(None, layout=None),
    'set_value of rows': lambda d: d.adj_t.set_value(torch.ones_like(d.adj_t.coo()[0]) * 2.0),
    'set_value of plain': lambda d: d.adj_t.set_value(torch.arange(float(d.adj_t.nnz()))),
    'fill_value': lambda d: d.adj_t.fill_value(3.0),
    'to_torch_sparse_csr_tensor': lambda d: d.adj_t.to_torch_sparse_csr_tensor(),
    'to_torch_sparse_coo_tensor': lambda d: d.adj_t.to_torch_sparse_coo_tensor(),
    'selected': lambda d: [d.adj_t[:5], d.adj_t[torch.tensor([3, 1])], d.adj_t[3:7, :4]],
    'made anew': lambda d: SparseTensor(
        row=d.adj_t.coo()[1], col=d.adj_t.coo()[0], sparse_sizes=(N, N)
    ),
    'of edges': lambda d: SparseTensor.from_edge_index(
        torch.stack(d.adj_t.coo()[:2]), sparse_sizes=(N, N)
    ),
    'made anew @': _of_product(
        lambda a, x: SparseTensor(row=a.coo()[0], col=a.coo()[1], sparse_sizes=(N, N)) @ x
    ),
    'times itself': lambda d: (d.adj_t @ d.adj_t).to_dense(),
    'equal': lambda d: [d.adj_t == d.adj_t, d.adj_t.is_symmetric()],
    'double': lambda d: d.adj_t.double().detach().clone().cpu(),
}


def _functions(kind: str) -> dict[str, Callable[[Any], Any]]:
    return FUNCTIONS | (OF_TORCH_SPARSE if kind == 'SparseTensor' else OF_TORCH)


def _function_results(data: Any, kind: str, attr: str | None) -> Any:
    results: dict[str, Any] = {}
    with _of_float64():
        data = _with_adj_t(data, kind, attr)
        for name, function in _functions(kind).items():
            try:
                results[name] = _whole(function(data))
            except Exception as error:
                results[name] = f'{type(error).__name__}: {error}'
    return results


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    ('world_size', 'attr'), [(3, 'edge_weight'), (3, None), (1, 'edge_weight')]
)
def test_functions(roots: dict[int, str], world_size: int, kind: str, attr: str | None) -> None:
    want = _function_results(small_graph(), kind, attr)
    for got in run_ranks(_loaded, world_size, roots[3], _function_results, kind, attr):
        for name, values in want.items():
            if not isinstance(values, str):
                assert not isinstance(got[name], str), (name, got[name])
                _check(got[name], values)


def _check_convs(
    root: str, world_size: int, graph: Data, kind: str, attr: str | None, names: list[str]
) -> None:
    want = _conv_results(graph, kind, attr, names)
    right = [name for name in names if not isinstance(want[name], str)]
    assert len(right) >= 0.8 * len(names)
    # PyG generates propagate for a class once, without its way for matrices if the first conv of
    # the class has an aggregation that this lacks. So ranks that ran other convs are not asked.
    for got in run_once(_loaded, world_size, root, _conv_results, kind, attr, right):
        for name in right:
            assert not isinstance(got[name], str), (name, got[name])
            _check(got[name], want[name])


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('world_size', [3, 1])
def test_convs(roots: dict[int, str], world_size: int, kind: str) -> None:
    _check_convs(roots[3], world_size, small_graph(), kind, 'edge_weight', [*CONVS])


SOME = ['GCNConv', 'SAGEConv', 'SAGEConv of maxima', 'GATConv', 'GraphConv of means', 'GINConv']


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('world_size', [3, 1])
def test_without_values(roots: dict[int, str], world_size: int, kind: str) -> None:
    _check_convs(roots[3], world_size, small_graph(), kind, None, SOME)


@pytest.mark.parametrize(('attr', 'keeps_edges'), [('edge_weight', False), (None, True)])
@pytest.mark.parametrize('kind', KINDS)
def test_made_before_the_cut(
    tmp_path: Path, kind: str, attr: str | None, keeps_edges: bool
) -> None:
    graph = small_graph()
    with _of_float64():
        edges, weight = coalesce(graph.edge_index, graph.edge_weight)
        transform = T.ToSparseTensor(attr, not keeps_edges, layout=LAYOUTS[kind])
        graph = transform(Data(x=graph.x, pos=graph.pos, edge_index=edges, edge_weight=weight))
    root = str(cut(graph, 3, tmp_path / 'parts'))
    for world_size in (3, 1):
        _check_convs(root, world_size, graph, kind, attr, SOME)
        for got in run_ranks(_loaded, world_size, root, _what_it_has):
            _check(got, _what_it_has(graph))


def _what_it_has(data: Any) -> Any:
    sizes = [data.num_nodes, data.num_edges, 'edge_index' in data, data.adj_t.size(0)]
    layout = str(data.adj_t.layout) if isinstance(data.adj_t, Tensor) else 'SparseTensor'
    return [*sizes, layout, *_whole(to_edge_index(data.adj_t))]


class _Edges(MessagePassing):
    """A conv of a user: values come to its messages and to its edge_update."""

    def __init__(self) -> None:
        super().__init__(aggr='add')
        self.lin = torch.nn.Linear(6, 4)

    def forward(self, x: Any, adj_t: Any) -> Any:
        x = self.lin(x)
        gate = self.edge_updater(adj_t, x=x, edge_attr=None)
        return self.propagate(adj_t, x=x, gate=gate, edge_weight=None)

    def edge_update(self, x_j: Tensor, x_i: Tensor, edge_attr: Any) -> Tensor:
        gate = (x_j * x_i).sum(-1).tanh()
        return gate if edge_attr is None else gate * edge_attr.view(-1)

    def message(self, x_j: Tensor, gate: Tensor, edge_weight: Any) -> Tensor:
        out = x_j * gate.view(-1, 1)
        return out if edge_weight is None else out * edge_weight.view(-1, 1)


class _Fused(_Edges):
    def forward(self, x: Any, adj_t: Any) -> Any:
        return self.propagate(adj_t, x=self.lin(x))

    def message_and_aggregate(self, adj_t: Any, x: Tensor) -> Tensor:
        return spmm(adj_t, x, reduce=self.aggr)


def _learned_values(data: Any, kind: str) -> Any:
    """Gradients of weights of edges that became values, and of convs along them."""
    is_cut, found = 'n_id' in data, []
    for make in (_Edges, _Fused, lambda: GCNConv(6, 4), lambda: GraphConv(6, 4)):
        with _of_float64():
            torch.manual_seed(0)
            conv = make()
            conv = pyg_sar.DistributedDataParallel(conv) if is_cut else conv
            weighted, weight = copy.copy(data), data.edge_weight.clone().requires_grad_()
            weighted.edge_weight = weight
            adj_t = _with_adj_t(weighted, kind, 'edge_weight').adj_t
            out = conv(data.x, adj_t)
            out.square().sum().backward()
            found += [out, weight.grad, *[p.grad for p in conv.parameters()]]
    return _whole(found)


@pytest.mark.parametrize('kind', [kind for kind in KINDS if kind != 'coo'])
def test_learned_values_and_convs_of_users(roots: dict[int, str], kind: str) -> None:
    want = _learned_values(small_graph(), kind)
    for got in run_ranks(_loaded, 3, roots[3], _learned_values, kind):
        _check(got, want)


def _refused(data: Any) -> list[str]:
    data = T.ToSparseTensor(attr='edge_weight', layout=torch.sparse_csr)(data)
    against = pyg_sar.SARConv(GCNConv(6, 4, flow='target_to_source').double())
    hgt = pyg_sar.SARConv(HGTConv(6, 4, (['v'], [('v', 'to', 'v')])).double())
    return [
        attempt(data.adj_t.mul_, 2),
        attempt(setattr, data.adj_t, 'data', data.adj_t),
        attempt(against, data.x, data.adj_t),
        attempt(hgt, {'v': data.x}, {('v', 'to', 'v'): data.adj_t}),
        attempt(pyg_sar.local, data.adj_t),
        attempt(pickle.dumps, data.adj_t),
        attempt(pyg_sar.NeighborLoader, data, [2], batch_size=4),
        attempt(lambda: data.adj_t @ data.x[:5]),
    ]


def test_refused(roots: dict[int, str]) -> None:
    words = ("'mul_' cannot", "'data = ...' cannot", 'Flow direction', "give it 'edge_index'")
    words += ('pyg_sar.gather', 'cannot be pickled', 'edge_index', 'do not fit')
    for found in run_ranks(_loaded, 3, roots[3], _refused):
        for text, word in zip(found, words, strict=True):
            assert word in text

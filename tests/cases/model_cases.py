"""Every class of torch_geometric.nn.models: how it is made and called, or why it is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from conv_case import Call, Case
from graphs import NUM_CLASSES, NUM_EDGE_FEATURES, NUM_FEATURES, awkward_graph
from torch import Tensor, nn
from torch_geometric.nn import APPNP, GCNConv, GENConv, GINEConv, RGCNConv, SAGEConv, Sequential
from torch_geometric.nn import models as M
from torch_geometric.utils import add_self_loops

NUM_NODES = 60
F, H, C = NUM_FEATURES, 6, NUM_CLASSES


_inside: list[int] = []
_lock = threading.Lock()


@contextmanager
def _float64() -> Iterator[None]:
    """PyG's one-hot labels have the default dtype, which threads share."""
    with _lock:
        _inside.append(1)
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            torch.set_default_dtype(torch.float64 if _inside else torch.float32)


Made = tuple[Callable[[], nn.Module], Call]


def _of(make: Callable[[], nn.Module], *names: str) -> Made:
    """Called with attributes of the data by their names; without any with nodes and edges."""
    names = names or ('x', 'edge_index')
    return make, lambda model, data: model(*(getattr(data, name) for name in names))


def _gnn(cls: Any, *names: str, **kwargs: Any) -> Made:
    return _of(lambda: cls(F, H, 3, C, **kwargs), *names)


def _on_data(model: Any, data: Any) -> Tensor:
    return model(data)


def _labels(model: Any, data: Any) -> Tensor:
    return model(data.y, data.edge_index, mask=data.train_mask)


def _weighted_labels(model: Any, data: Any) -> Tensor:
    x, weight = data.x.detach(), data.edge_weight.detach()
    return model(x, data.edge_index, None, weight, torch.tanh)


def _semantic(model: Any, data: Any) -> Tensor:
    return model.get_semantic_labels(data.x, data.y, torch.ones_like(data.train_mask))


def _ranking(model: Any, data: Any) -> Tensor:
    return model(data.edge_index, edge_weight=data.edge_weight)


def _some_rankings(model: Any, data: Any) -> Tensor:
    return model(data.edge_index, data.edge_index[:, data.edge_type == 1])


def _one_graph(model: Any, data: Any) -> Tensor:
    return model(data.x, data.edge_index, torch.zeros_like(data.y))


def _of_signs(model: Any, data: Any) -> Tensor:
    edges = (data.edge_index[:, data.edge_type == kind] for kind in (1, 2))
    return model(data.x, *edges)


def _stack(*layers: nn.Module, given: str = 'x, edge_index') -> nn.Module:
    """Layers one after another; linear ones get x alone."""
    takes = ('x' if isinstance(layer, nn.Linear) else given for layer in layers)
    return Sequential(given, [*zip(layers, (f'{names} -> x' for names in takes), strict=True)])


def _deep_gcn(block: str) -> nn.Module:
    """Two deep layers that recompute their conv in backward."""

    def layer(channels: int) -> M.DeepGCNLayer:
        norm = nn.BatchNorm1d(channels if block == 'res+' else H)
        conv = GENConv(channels, H, aggr='sum')
        return M.DeepGCNLayer(conv, norm, nn.ReLU(), block=block, ckpt_grad=True)

    return _stack(nn.Linear(F, H), layer(H), layer(2 * H if block == 'dense' else H))


class _JumpingStack(nn.Module):
    """A model of one's own: convs of several kinds and a JumpingKnowledge."""

    def __init__(self) -> None:
        super().__init__()
        self.first = RGCNConv(F, H, num_relations=3)
        self.second = SAGEConv(H, H, aggr='max')
        self.norm = nn.BatchNorm1d(H)
        self.jump = M.JumpingKnowledge('max')
        self.propagate = APPNP(4, 0.2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        first = self.first(x, edge_index, edge_type).relu()
        second = self.norm(self.second(first, edge_index)).relu()
        return self.propagate(self.jump([first, second]), edge_index)


class _MaskedLabels(nn.Module):
    """UniMP: labels of the training nodes among the features."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.mask_label = M.MaskLabel(C, F, method=method)
        self.conv = GCNConv(F if method == 'add' else 2 * F, H)

    def forward(self, data: Any) -> Tensor:
        x = self.mask_label(data.x, data.y, data.train_mask)
        return self.conv(x, data.edge_index)


class _CorrectAndSmooth(nn.Module):
    """Corrects the predictions of a linear layer, so that a gradient has somewhere to go."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.lin = nn.Linear(F, C)
        self.post = M.CorrectAndSmooth(4, 0.8, 3, 0.7, **kwargs)

    def forward(self, data: Any, *, with_weight: bool = False) -> Tensor:
        weight = data.edge_weight.detach() if with_weight else None
        y_soft = self.lin(data.x).softmax(dim=-1)
        mask = data.train_mask
        return self.post(y_soft, data.y[mask], mask, data.edge_index, weight)

    def correct(self, data: Any) -> Tensor:
        """With an error at every node: where there is none, PyG's gradient is not a number."""
        y_soft = self.lin(data.x).softmax(dim=-1)
        everywhere = torch.ones_like(data.train_mask)
        edge_index, _ = add_self_loops(data.edge_index, num_nodes=data.num_nodes)
        return self.post.correct(y_soft, data.y, everywhere, edge_index)


def _reversible() -> nn.Module:
    convs = M.GroupAddRev(SAGEConv(4, 4), num_groups=2), M.GroupAddRev(GCNConv(4, 4), num_groups=2)
    return _stack(nn.Linear(F, 8), *convs)


def _gin_with_edges() -> nn.Module:
    convs = (GINEConv(M.MLP([num, H, H]), edge_dim=NUM_EDGE_FEATURES) for num in (F, H))
    return _stack(*convs, given='x, edge_index, edge_attr')


_DEGREES = torch.bincount(torch.bincount(awkward_graph(NUM_NODES).edge_index[1]))
_PNA = {'aggregators': ['mean', 'max', 'min', 'std'], 'scalers': ['identity', 'amplification']}

_MADE: dict[str, Made] = {
    'GCN': _gnn(M.GCN),
    'GCN-weighted': _gnn(
        M.GCN, 'x', 'edge_index', 'edge_weight', act='elu', act_first=True, norm='batch_norm'
    ),
    'GCN-jk-lstm': _gnn(M.GCN, jk='lstm'),
    'GraphSAGE': _gnn(M.GraphSAGE, norm='batch_norm'),
    'GraphSAGE-jk-cat': _gnn(M.GraphSAGE, jk='cat', act='gelu', project=True),
    'GIN': _gnn(M.GIN, norm='batch_norm'),
    'GIN-jk-max': _gnn(M.GIN, jk='max', train_eps=True),
    'GAT': _gnn(M.GAT, heads=2, norm='batch_norm'),
    'GAT-v2-jk-cat': (
        lambda: M.GAT(F, H, 3, C, v2=True, heads=2, edge_dim=NUM_EDGE_FEATURES, jk='cat'),
        lambda model, data: model(data.x, data.edge_index, edge_attr=data.edge_attr),
    ),
    'PNA': _gnn(M.PNA, deg=_DEGREES, norm='batch_norm', **_PNA),
    'EdgeCNN': _gnn(M.EdgeCNN, act='leaky_relu'),
    'GraphSAGE-layer-norm': _gnn(M.GraphSAGE, norm='layer_norm', norm_kwargs={'mode': 'node'}),
    'GINE-stack': _of(_gin_with_edges, 'x', 'edge_index', 'edge_attr'),
    'RGCN-JumpingKnowledge-APPNP': _of(_JumpingStack, 'x', 'edge_index', 'edge_type'),
    **{
        f'DeepGCNLayer-{block}': _of(partial(_deep_gcn, block))
        for block in ('res+', 'res', 'dense', 'plain')
    },
    'GroupAddRev': _of(_reversible),
    'MaskLabel-add': (lambda: _MaskedLabels('add'), _on_data),
    'MaskLabel-concat': (lambda: _MaskedLabels('concat'), _on_data),
    'PMLP': _of(lambda: M.PMLP(F, H, C, 3).eval()),
    'RECT_L': _of(lambda: M.RECT_L(F, H), 'x', 'edge_index', 'edge_weight'),
    'RECT_L-semantic-labels': (lambda: M.RECT_L(F, H), _semantic),
    'LINKX': _of(
        lambda: M.LINKX(NUM_NODES, F, H, C, 2, num_edge_layers=2), 'x', 'edge_index', 'edge_weight'
    ),
    'LINKX-no-features': (
        lambda: M.LINKX(NUM_NODES, F, H, C, 1),
        lambda model, data: model(None, data.edge_index),
    ),
    'LightGCN': (
        lambda: M.LightGCN(NUM_NODES, H, 3),
        lambda model, data: model.get_embedding(data.edge_index),
    ),
    'LightGCN-ranking': (lambda: M.LightGCN(NUM_NODES, H, 2), _ranking),
    'LightGCN-some-rankings': (lambda: M.LightGCN(NUM_NODES, H, 2), _some_rankings),
    'LabelPropagation': (lambda: M.LabelPropagation(5, 0.9), _labels),
    'LabelPropagation-weighted': (lambda: M.LabelPropagation(3, 0.6), _weighted_labels),
    'CorrectAndSmooth': (_CorrectAndSmooth, _on_data),
    'CorrectAndSmooth-correct': (_CorrectAndSmooth, lambda model, data: model.correct(data)),
    'CorrectAndSmooth-weighted': (
        lambda: _CorrectAndSmooth(autoscale=False, scale=1.5),
        lambda model, data: model(data, with_weight=True),
    ),
    'ARLinkPredictor': _of(lambda: M.ARLinkPredictor(F, H, H)),
    'AttentiveFP': _of(
        lambda: M.AttentiveFP(F, H, C, NUM_EDGE_FEATURES, 2, 2), 'x', 'edge_index', 'edge_attr', 'y'
    ),
    'GraphUNet': (
        lambda: M.GraphUNet(F, H, C, 2).eval(),  # in training it drops edges
        lambda model, data: model.eval()(data.x, data.edge_index),
    ),
    'NeuralFingerprint': _of(lambda: M.NeuralFingerprint(F, H, C, 2), 'x', 'edge_index', 'y'),
    'Polynormer': (lambda: M.Polynormer(F, H, C, in_dropout=0, dropout=0), _one_graph),
    'SGFormer': (lambda: M.SGFormer(F, H, C, trans_dropout=0, gnn_dropout=0), _one_graph),
    'SignedGCN': (lambda: M.SignedGCN(F, H, 2), _of_signs),
}

CASES = {
    name: Case('models', name, make, call, during=_float64) for name, (make, call) in _MADE.items()
}

_CONV = partial(GCNConv, F, F)

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    'MetaPath2Vec': (
        lambda: M.MetaPath2Vec(
            {('a', 'to', 'a'): torch.tensor([[0, 1], [1, 0]])}, H, [('a', 'to', 'a')] * 2, 2, 2
        ),
        'random walks',
    ),
    'Node2Vec': (lambda: _node2vec(), 'random walks'),
    'LPFormer': (lambda: M.LPFormer(F, H), 'all pairs of nodes'),
    'RENet': (lambda: M.RENet(4, 2, H, 2), 'events'),
    'TGNMemory': (lambda: _tgn_memory(), 'events'),
}
"""How to make it, and words of the reason."""


OF_MOLECULES = {'DimeNet', 'DimeNetPlusPlus', 'GNNFF', 'GPSE', 'SchNet', 'ViSNet'}
"""Of many small graphs: left to the rules of what they call; GPSE is a plain program, too."""

ROWWISE = {'MLP', 'HeteroJumpingKnowledge', 'GPSENodeEncoder'}
"""No conv and no look at other nodes: right inside any model as they are."""

UNSUPERVISED = {'ARGA', 'ARGVA', 'DeepGraphInfomax', 'GAE', 'InnerProductDecoder', 'VGAE'}
"""See the end of test_models.py."""

FUNCTIONS = {'to_captum_model', 'to_captum_input', 'captum_output_to_dicts'}


def _tgn_memory() -> nn.Module:
    from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator

    return M.TGNMemory(4, 2, 3, 3, IdentityMessage(2, 3, 3), LastAggregator())


def _node2vec() -> nn.Module:
    model = M.Node2Vec.__new__(M.Node2Vec)  # its constructor wants pyg-lib or torch_cluster
    nn.Module.__init__(model)
    return model

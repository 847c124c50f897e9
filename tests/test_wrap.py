"""A wrapped model is the plain model: same parameters, same checkpoints, same output."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn.attention
from small_graphs import assert_close, cut, small_graph
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, MessagePassing, SAGEConv, conv
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from pyg_sar import SARConv, load_shard, wrap
from pyg_sar.conv.support import REFUSED, why_refused
from pyg_sar.norm import GlobalBatchNorm


def _mlp(num_in: int = 6, num_out: int = 6) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, num_out),
    )


class Nested(torch.nn.Module):
    """Convs in lists, dicts and blocks, one of them used twice, and a norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = SAGEConv(6, 6)
        self.layers = torch.nn.ModuleList([GCNConv(6, 6), self.shared])
        self.by_name = torch.nn.ModuleDict({'gin': GINConv(_mlp()), 'norm': pyg.BatchNorm(6)})
        self.block = torch.nn.Sequential(torch.nn.Sequential(torch.nn.BatchNorm1d(6)))
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index).tanh()
        x = self.by_name['norm'](self.by_name['gin'](x, edge_index))
        return self.shared(self.block(x), edge_index) * self.scale


class WithConvAttribute(MessagePassing):
    """A conv that itself has an attribute `conv`: keys with the prefix twice."""

    def __init__(self) -> None:
        super().__init__(aggr='add')
        self.conv = torch.nn.Linear(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.conv(x))


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    'SAGE': lambda: GraphSAGE(6, 8, 2, 3, norm='batch_norm'),
    'GCN': lambda: GCN(6, 8, 3, 3, dropout=0.2, jk='cat'),
    'GAT': lambda: GAT(6, 8, 2, 3, heads=2, norm='layer_norm', norm_kwargs={'mode': 'node'}),
    'GIN': lambda: GIN(6, 8, 2, 3),
    'nested': Nested,
    'PyG Sequential': lambda: pyg.Sequential(
        'x, edge_index',
        [
            (GCNConv(6, 8), 'x, edge_index -> x'),
            torch.nn.BatchNorm1d(8),
            (GATConv(8, 3), 'x, edge_index -> x'),
        ],
    ),
    'conv in a conv': lambda: torch.nn.ModuleDict({'conv': WithConvAttribute()})['conv'],
}


def _make(name: str) -> torch.nn.Module:
    torch.manual_seed(1)
    return MODELS[name]().double()


@pytest.fixture
def graph() -> Data:
    return small_graph()


@pytest.fixture
def shard(graph: Data, tmp_path: Path) -> Data:
    """Three parts in one process."""
    return load_shard(cut(graph, 3, tmp_path / 'parts'))


def _run(model: torch.nn.Module, data: Data) -> Tensor:
    torch.manual_seed(2)
    return model(data.x, data.edge_index)


@pytest.mark.parametrize('name', MODELS)
def test_keys_and_parameters_stay(name):
    model = _make(name)
    keys = list(model.state_dict())
    names = {id(p) for p in model.parameters()}
    values = {key: value.data_ptr() for key, value in model.state_dict().items()}
    wrapped = wrap(model)
    if not isinstance(model, MessagePassing):
        assert wrapped is model
    assert list(wrapped.state_dict()) == keys
    assert {id(p) for p in wrapped.parameters()} == names
    assert {key: value.data_ptr() for key, value in wrapped.state_dict().items()} == values


@pytest.mark.parametrize('name', MODELS)
def test_everything_is_wrapped(name):
    wrapped = wrap(_make(name))
    inside = {id(m.conv) for m in wrapped.modules() if isinstance(m, SARConv)}
    plain = [m for m in wrapped.modules() if isinstance(m, MessagePassing)]
    assert inside
    assert all(isinstance(m, SARConv) or id(m) in inside for m in plain)
    norms = [m for m in wrapped.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    assert all(type(m) is GlobalBatchNorm for m in norms)


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('name', MODELS)
def test_plain_edge_index(graph, name, training):
    """Bit for bit the plain model, dropout and running statistics included."""
    plain, wrapped = _make(name).train(training), wrap(_make(name)).train(training)
    assert torch.equal(_run(wrapped, graph), _run(plain, graph))
    for key, value in plain.state_dict().items():
        assert torch.equal(wrapped.state_dict()[key], value)


@pytest.mark.parametrize('name', MODELS)
def test_shard(graph, shard, name):
    plain, wrapped = _make(name).eval(), wrap(_make(name)).eval()
    assert_close(_run(wrapped, shard), _run(plain, graph)[shard.n_id])


@pytest.mark.parametrize('name', MODELS)
def test_checkpoints_move_both_ways(graph, name):
    torch.manual_seed(5)
    source = MODELS[name]().double()
    _run(source, graph)
    wrapped = wrap(_make(name))
    result = wrapped.load_state_dict(source.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    again = _make(name)
    result = again.load_state_dict(wrapped.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    for key, value in source.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
    assert torch.equal(_run(again.eval(), graph), _run(source.eval(), graph))


def test_checkpoints_through_a_file(tmp_path):
    wrapped = wrap(_make('nested'))
    torch.save(wrapped.state_dict(), tmp_path / 'model.pt')
    plain = MODELS['nested']().double()
    plain.load_state_dict(torch.load(tmp_path / 'model.pt', weights_only=True))
    for key, value in wrapped.state_dict().items():
        assert torch.equal(plain.state_dict()[key], value)


def test_loading_leaves_the_checkpoint_as_it_was():
    wrapped = wrap(_make('nested'))
    state = _make('nested').state_dict()
    before = list(state)
    for _ in range(2):
        wrapped.load_state_dict(state)
    assert list(state) == before


@pytest.mark.parametrize('name', ['nested', 'conv in a conv'])
def test_keys_that_do_not_fit_are_named_as_in_the_plain_model(name):
    plain, wrapped = _make(name), wrap(_make(name))
    state = plain.state_dict()
    dropped = next(key for key in state if key.endswith('weight'))
    del state[dropped]
    state['shared.more' if name == 'nested' else 'conv.more'] = torch.zeros(1)
    want = plain.load_state_dict(dict(state), strict=False)
    found = wrapped.load_state_dict(dict(state), strict=False)
    assert found.missing_keys == want.missing_keys == [dropped]
    assert found.unexpected_keys == want.unexpected_keys
    with pytest.raises(RuntimeError, match='Missing key'):
        wrapped.load_state_dict(dict(state))


def test_the_same_conv_twice():
    model = wrap(_make('nested'))
    assert isinstance(model.shared, SARConv)
    assert model.layers[1] is model.shared


@pytest.mark.parametrize('has_run', [False, True])
@pytest.mark.parametrize('how', ['deepcopy', 'pickle', 'torch.save'])
@pytest.mark.parametrize('name', MODELS)
def test_copies(graph, shard, name, how, has_run):
    """Also after a forward on a shard, whose traces must not come along."""
    model = wrap(_make(name), mode='one_shot').eval()
    if has_run:
        _run(model, shard)
    if how == 'deepcopy':
        other = copy.deepcopy(model)
    elif how == 'pickle':
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert list(other.state_dict()) == list(model.state_dict())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in other.parameters()}
    assert [m.mode for m in other.modules() if isinstance(m, SARConv)] == [
        m.mode for m in model.modules() if isinstance(m, SARConv)
    ]
    for data in (graph, shard):
        assert torch.equal(_run(other, data), _run(model, data))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    for data in (graph, shard):
        assert not torch.equal(_run(other, data), _run(model, data))


def test_reset_parameters():
    model = wrap(GraphSAGE(6, 8, 2, 3))
    before = copy.deepcopy(model.state_dict())
    model.reset_parameters()
    after = model.state_dict()
    assert any(not torch.equal(after[key], before[key]) for key in before)
    torch.manual_seed(3)
    conv_ = SARConv(SAGEConv(6, 4))
    conv_.reset_parameters()
    torch.manual_seed(3)
    plain = SAGEConv(6, 4)
    plain.reset_parameters()
    assert torch.equal(conv_.lin_l.weight, plain.lin_l.weight)


def test_attributes_of_the_conv():
    plain = GATConv(6, 4, heads=2, dropout=0.25)
    sar = SARConv(plain)
    assert (sar.in_channels, sar.out_channels, sar.heads, sar.dropout) == (6, 4, 2, 0.25)
    assert sar.lin is plain.lin
    assert sar.att_src is plain.att_src
    assert sar.conv is plain
    assert (sar.flow, sar.node_dim) == (plain.flow, plain.node_dim)
    assert not hasattr(sar, 'nonsense')
    with pytest.raises(AttributeError, match='nonsense'):
        _ = sar.nonsense
    assert 'GATConv(6, 4, heads=2)' in repr(sar)


@pytest.mark.parametrize('attribute', ['aggr', 'aggr_module', 'explain', 'decomposed_layers'])
def test_attributes_that_every_conv_has(attribute):
    plain = SAGEConv(6, 4, aggr='sum')
    assert getattr(SARConv(plain), attribute) is getattr(plain, attribute)


def test_the_output_of_edge_attributes(graph, shard):
    """What a conv returns beside its output goes through."""
    plain = GATConv(6, 4).double()
    sar = SARConv(copy.deepcopy(plain))
    out, (edge_index, alpha) = sar(shard.x, shard.edge_index, return_attention_weights=True)
    want, (_, want_alpha) = plain(graph.x, graph.edge_index, return_attention_weights=True)
    assert_close(out, want[shard.n_id])
    assert alpha.shape == (edge_index.size(1), 1)
    assert alpha.shape == want_alpha.shape
    assert_close(alpha.sort(0).values, want_alpha.sort(0).values)


# What is refused.

CONSTRUCTIBLE: dict[str, Callable[[], torch.nn.Module]] = {
    'GPSConv': lambda: conv.GPSConv(6, GCNConv(6, 6), norm=None),
    'PANConv': lambda: conv.PANConv(6, 6, 2),
    'WLConv': lambda: conv.WLConv(),
}


def _places(model: torch.nn.Module) -> list[tuple[str, int, type]]:
    return [(name, id(m), type(m)) for name, m in model.named_modules(remove_duplicate=False)]


def _refuses(model: torch.nn.Module, match: str, **kwargs: Any) -> None:
    """Wrap raises, and leaves every module where it was."""
    before = _places(model)
    with pytest.raises(ValueError, match=match):
        wrap(model, **kwargs)
    assert _places(model) == before


def _class(name: str) -> type:
    spaces = (conv, torch_geometric.nn, torch_geometric.nn.models, torch_geometric.nn.attention)
    return next(getattr(space, name) for space in spaces if hasattr(space, name))


def test_every_refused_class_exists():
    for name in REFUSED:
        assert isinstance(_class(name), type), name


@pytest.mark.parametrize('name', REFUSED)
def test_refused_classes_by_name(name):
    """Also those whose constructor needs a package that is not here."""
    cls = _class(name)
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    assert why_refused(module) == REFUSED[name]


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('name', CONSTRUCTIBLE)
def test_refused_convs(name, mode):
    reason = REFUSED[name]
    module = CONSTRUCTIBLE[name]()
    _refuses(module, f'^{name} cannot run on a partitioned graph: {reason}', mode=mode)
    model = torch.nn.ModuleDict({'first': GINConv(_mlp()), 'last': module})
    _refuses(model, f"^{name} at 'last' cannot run on a partitioned graph: {reason}", mode=mode)
    if isinstance(module, MessagePassing):
        with pytest.raises(ValueError, match=f'^{name} cannot be wrapped: {reason}'):
            SARConv(module, mode=mode)


class PANConv(SAGEConv):
    """A user's class that happens to have a refused name."""


def test_a_users_class_of_a_refused_name():
    assert isinstance(wrap(PANConv(6, 6)), SARConv)


AGGREGATIONS = [
    *('sum', 'add', 'mean', 'max', 'min', 'std', 'var', ['sum', 'mean'], ['mean', 'max']),
    *('median', 'softmax', 'powermean', ['mean', 'median']),
]


@pytest.mark.parametrize('aggr', AGGREGATIONS, ids=str)
def test_supported_aggregations(graph, shard, aggr):
    plain = SAGEConv(6, 4, aggr=aggr).double()
    sar = wrap(copy.deepcopy(plain))
    assert_close(_run(sar, shard), _run(plain, graph)[shard.n_id])


def test_batch_norm_inside_a_conv(graph, shard):
    model = torch.nn.ModuleDict({'gin': GINConv(_mlp())}).double()
    norm = model['gin'].nn[1]
    plain = copy.deepcopy(model)['gin']
    wrap(model)
    converted = model['gin'].conv.nn[1]
    assert type(converted) is GlobalBatchNorm
    assert converted.weight is norm.weight
    assert converted.running_mean is norm.running_mean
    found, want = _run(model['gin'], shard), _run(plain, graph)
    assert_close(found, want[shard.n_id])


NORMS: dict[str, Callable[[], torch.nn.Module]] = {
    'GraphNorm': lambda: pyg.GraphNorm(6),
    'InstanceNorm': lambda: pyg.InstanceNorm(6),
    'LayerNorm': lambda: pyg.LayerNorm(6, mode='graph'),
    'PairNorm': lambda: pyg.PairNorm(),
    'MeanSubtractionNorm': lambda: pyg.MeanSubtractionNorm(),
    'DiffGroupNorm': lambda: pyg.DiffGroupNorm(6, 2),
    'GraphSizeNorm': lambda: pyg.GraphSizeNorm(),
    'HeteroBatchNorm': lambda: pyg.HeteroBatchNorm(6, 2),
    'BatchNorm': lambda: pyg.BatchNorm(6, allow_single_element=True),
}
NOT_OVER_NODES: dict[str, Callable[[], torch.nn.Module]] = {
    'InstanceNorm1d': lambda: torch.nn.InstanceNorm1d(6),
    'BatchNorm2d': lambda: torch.nn.BatchNorm2d(6),
    'LazyBatchNorm1d': lambda: torch.nn.LazyBatchNorm1d(),
}


@pytest.mark.parametrize('name', NORMS)
def test_norms_become_global(name):
    """Outside convs and inside them, wherever the same one stands."""
    norm = NORMS[name]()
    inside = GINConv(torch.nn.Sequential(_mlp(), NORMS[name]()))
    model = wrap(torch.nn.ModuleList([GINConv(_mlp()), norm, inside, norm]))
    assert model[1] is model[3]
    for converted in (model[1], model[2].conv.nn[1]):
        assert isinstance(converted, type(norm))
        assert converted.is_global
    assert wrap(model)[1] is model[1]


@pytest.mark.parametrize('name', NOT_OVER_NODES)
def test_norms_over_the_rows_of_one_rank(name):
    make = NOT_OVER_NODES[name]
    model = torch.nn.ModuleList([GINConv(_mlp()), torch.nn.BatchNorm1d(6), make()])
    _refuses(model, f"^{name} at '2' cannot run on a partitioned graph: .* rows of one rank")
    inside = torch.nn.ModuleList([GINConv(torch.nn.Sequential(_mlp(), make()))])
    _refuses(inside, f"^{name} at '0.nn.1' cannot run on a partitioned graph")


@pytest.mark.parametrize('name', [*NORMS, *NOT_OVER_NODES])
def test_norms_by_hand_must_be_global(name):
    norm = {**NORMS, **NOT_OVER_NODES}[name]()
    with pytest.raises(ValueError, match=f'^{name} cannot be wrapped'):
        SARConv(GINConv(torch.nn.Sequential(torch.nn.Linear(6, 6), norm)))


@pytest.mark.parametrize(
    'norm',
    [pyg.LayerNorm(6, mode='node'), torch.nn.LayerNorm(6), pyg.MessageNorm(), pyg.BatchNorm(6)],
    ids=lambda norm: type(norm).__name__,
)
def test_norms_of_a_row(norm):
    model = torch.nn.ModuleList([GCNConv(6, 6), norm])
    assert wrap(model) is model


def test_batch_norm_by_hand_must_be_global():
    with pytest.raises(ValueError, match='BatchNorm1d cannot be wrapped: it takes statistics'):
        SARConv(GINConv(_mlp()))
    mlp = torch.nn.Sequential(torch.nn.Linear(6, 6), GlobalBatchNorm(6))
    assert isinstance(SARConv(GINConv(mlp)), SARConv)


def test_sync_batch_norm():
    model = torch.nn.ModuleList([GCNConv(6, 6), torch.nn.SyncBatchNorm(6)])
    wrap(model)
    assert type(model[1]) is GlobalBatchNorm


class OwnBatchNorm(torch.nn.BatchNorm1d):
    """May do anything in its forward."""


def test_a_subclass_of_batch_norm():
    model = torch.nn.ModuleList([GINConv(_mlp()), OwnBatchNorm(6)])
    _refuses(model, "^OwnBatchNorm at '1' cannot run on a partitioned graph")


def test_wrapping_twice():
    model = wrap(_make('nested'), mode='one_shot')
    before = _places(model)
    assert wrap(model) is model
    assert _places(model) == before
    assert {m.mode for m in model.modules() if isinstance(m, SARConv)} == {'one_shot'}
    sar = SARConv(GCNConv(6, 6))
    assert wrap(sar) is sar


def test_wrapping_the_rest():
    """A conv wrapped by hand keeps its mode; the others get the one asked for."""
    model = torch.nn.ModuleList([SARConv(GCNConv(6, 6), mode='one_shot'), GCNConv(6, 6)])
    first = model[0]
    wrap(model, mode='sequential_no_remat', prefetch=2)
    assert model[0] is first
    assert [(m.mode, m.prefetch) for m in model] == [('one_shot', 1), ('sequential_no_remat', 2)]


def test_a_conv_alone():
    plain = SAGEConv(6, 4)
    wrapped = wrap(plain, mode='one_shot')
    assert isinstance(wrapped, SARConv)
    assert wrapped.conv is plain
    assert wrapped.mode == 'one_shot'


@pytest.mark.parametrize(
    'model', [torch.nn.Linear(2, 2), torch.nn.ModuleList(), torch.nn.BatchNorm1d(3)], ids=str
)
def test_a_model_without_convs(model):
    _refuses(model, f'at least one message-passing conv .got {type(model).__name__} without any')


@pytest.mark.parametrize('mode', ['parallel', '', None, 'SEQUENTIAL'])
def test_unknown_modes(mode):
    words = "'mode' must be one of .*sequential.*one_shot.*got"
    with pytest.raises(ValueError, match=words):
        SARConv(GCNConv(6, 6), mode=mode)
    _refuses(torch.nn.ModuleList([GINConv(_mlp()), torch.nn.BatchNorm1d(6)]), words, mode=mode)


@pytest.mark.parametrize('prefetch', [0, -1, 1.0, '1', True, None])
def test_wrong_prefetch(prefetch):
    words = "'prefetch' must be a positive int .got"
    with pytest.raises(ValueError, match=words):
        SARConv(GCNConv(6, 6), prefetch=prefetch)
    _refuses(torch.nn.ModuleList([GINConv(_mlp())]), words, prefetch=prefetch)


def test_prefetch_is_not_ignored():
    words = "'prefetch' has no meaning in mode 'one_shot'"
    with pytest.raises(ValueError, match=words):
        SARConv(GCNConv(6, 6), mode='one_shot', prefetch=2)
    _refuses(torch.nn.ModuleList([GINConv(_mlp())]), words, mode='one_shot', prefetch=2)


@pytest.mark.parametrize(
    'value', [torch.nn.Linear(2, 2), GCNConv, None, 'GCNConv', SARConv(GCNConv(6, 6))], ids=str
)
def test_not_a_conv(value):
    with pytest.raises(ValueError, match=r'expected a MessagePassing conv to wrap .got'):
        SARConv(value)


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        SARConv(GCNConv(6, 6), 'one_shot')
    with pytest.raises(TypeError):
        wrap(GCNConv(6, 6), 'one_shot')

"""A wrapped model is the plain model: same parameters, checkpoints and output; or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn.attention
from alike import assert_bits, cut_of
from copied_modules import WAYS, copied
from few import few
from small_graphs import small_graph
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, MessagePassing, SAGEConv, conv
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from pyg_sar import DistributedDataParallel, SARConv, load_shard
from pyg_sar.nn.sar_conv import REFUSED, why_refused


def mlp() -> torch.nn.Module:
    layers = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 6)
    return torch.nn.Sequential(*layers)


class Nested(torch.nn.Module):
    """Convs in lists, dicts and blocks, one of them used twice, and a norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = SAGEConv(6, 6)
        self.layers = torch.nn.ModuleList([GCNConv(6, 6), self.shared])
        self.by_name = torch.nn.ModuleDict({'gin': GINConv(mlp()), 'norm': pyg.BatchNorm(6)})
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


GRAPH = small_graph()


def _make(name: str) -> torch.nn.Module:
    torch.manual_seed(1)
    return MODELS[name]().double()


def _run(model: torch.nn.Module, data: Data) -> Tensor:
    torch.manual_seed(2)
    return model(data.x, data.edge_index)


@pytest.mark.parametrize('name', MODELS)
def test_everything_is_wrapped_and_keys_and_parameters_stay(name):
    model = _make(name)
    keys = list(model.state_dict())
    names = {id(p) for p in model.parameters()}
    values = {key: value.data_ptr() for key, value in model.state_dict().items()}
    wrapped = DistributedDataParallel(model)
    if not isinstance(model, MessagePassing):
        assert wrapped is model
    assert list(wrapped.state_dict()) == keys
    assert {id(p) for p in wrapped.parameters()} == names
    assert {key: value.data_ptr() for key, value in wrapped.state_dict().items()} == values
    layers = [m for m in wrapped.modules() if isinstance(m, SARConv)]
    inside = {inner for layer in layers for inner in layer.modules()}
    plain = [m for m in wrapped.modules() if isinstance(m, MessagePassing)]
    assert layers
    assert all(m in inside for m in plain)
    norms = [m for m in wrapped.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    assert all(type(m) is torch.nn.BatchNorm1d for m in norms)


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('name', MODELS)
def test_plain_edge_index(name, training):
    """Bit for bit the plain model, dropout and running statistics included."""
    plain, wrapped = (_make(name).train(training) for _ in range(2))
    DistributedDataParallel(wrapped)
    assert torch.equal(_run(wrapped, GRAPH), _run(plain, GRAPH))
    assert_bits(wrapped.state_dict(), plain.state_dict())


@pytest.mark.parametrize('name', MODELS)
def test_checkpoints_move_both_ways(name):
    torch.manual_seed(5)
    source = MODELS[name]().double()
    _run(source, GRAPH)
    wrapped, again, state = DistributedDataParallel(_make(name)), _make(name), source.state_dict()
    before = list(state)
    for _ in range(2):  # which leaves the checkpoint as it was
        result = wrapped.load_state_dict(state)
        assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert list(state) == before
    result = again.load_state_dict(wrapped.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert_bits(again.state_dict(), source.state_dict())
    assert torch.equal(_run(again.eval(), GRAPH), _run(source.eval(), GRAPH))


@pytest.mark.parametrize('name', ['nested', 'conv in a conv'])
def test_keys_that_do_not_fit_are_named_as_in_the_plain_model(name):
    plain, wrapped = _make(name), DistributedDataParallel(_make(name))
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


def _modes(model: torch.nn.Module) -> list[str]:
    return [m.sar_options.mode for m in model.modules() if isinstance(m, SARConv)]


@pytest.mark.parametrize('has_run', [False, True])
@pytest.mark.parametrize('how', WAYS)
@pytest.mark.parametrize('name', few(MODELS))
def test_copies(name, how, has_run):
    """Also after a forward on a shard, whose traces must not come along."""
    shard = load_shard(cut_of(small_graph, 3))
    model = DistributedDataParallel(_make(name), mode='one_shot').eval()
    if has_run:
        _run(model, shard)
    other = copied(model, how)
    assert list(other.state_dict()) == list(model.state_dict())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in other.parameters()}
    assert _modes(other) == _modes(model)
    for data in (GRAPH, shard):
        assert torch.equal(_run(other, data), _run(model, data))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    for data in (GRAPH, shard):
        assert not torch.equal(_run(other, data), _run(model, data))


def test_reset_parameters():
    for wrap, make in (
        (SARConv, lambda: SAGEConv(6, 4)),
        (DistributedDataParallel, MODELS['SAGE']),
    ):
        wrapped, plain = wrap(make()), make()
        for model in (wrapped, plain):
            torch.manual_seed(3)
            model.reset_parameters()
        assert_bits(wrapped.state_dict(), plain.state_dict())


def places(model: torch.nn.Module) -> list[tuple[str, int, type]]:
    return [(name, id(m), type(m)) for name, m in model.named_modules(remove_duplicate=False)]


def test_wrapping_twice():
    model = DistributedDataParallel(_make('nested'), mode='one_shot')
    before = places(model)
    assert DistributedDataParallel(model) is model
    assert places(model) == before
    assert set(_modes(model)) == {'one_shot'}
    sar = SARConv(GCNConv(6, 6))
    assert DistributedDataParallel(sar) is sar


def test_wrapping_the_rest():
    """A conv wrapped by hand keeps its options; the others get those asked for."""
    model = torch.nn.ModuleList([SARConv(GCNConv(6, 6), mode='one_shot'), GCNConv(6, 6)])
    first = model[0]
    options = {'mode': 'sequential_no_remat', 'exchange_dtype': torch.bfloat16}
    options |= {'partial_sums': False}
    DistributedDataParallel(model, return_memory=False, **options)
    assert model[0] is first
    assert (first.sar_options.mode, first.sar_options.partial_sums) == ('one_shot', True)
    assert vars(model[1].sar_options) == options


# What wrap refuses, and what it takes


def _refuses(model: torch.nn.Module, match: str, **kwargs: Any) -> None:
    """Wrap raises, and leaves every module where it was."""
    before = places(model)
    with pytest.raises(ValueError, match=match):
        DistributedDataParallel(model, **kwargs)
    assert places(model) == before


def _class(name: str) -> type:
    spaces = (conv, torch_geometric.nn, torch_geometric.nn.models, torch_geometric.nn.attention)
    return next(getattr(space, name) for space in spaces if hasattr(space, name))


@pytest.mark.parametrize('name', REFUSED)
def test_refused_classes_by_name(name):
    """Also those whose constructor needs a package that is not here."""
    cls = _class(name)
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    assert why_refused(module) == REFUSED[name]


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
def test_a_refused_conv(mode):
    module, reason = conv.PANConv(6, 6, 2), f'.*{REFUSED["PANConv"]}'
    _refuses(module, f'^PANConv {reason}', mode=mode)
    model = torch.nn.ModuleDict({'first': GINConv(mlp()), 'last': module})
    _refuses(model, f"^PANConv at 'last' {reason}", mode=mode)
    with pytest.raises(ValueError, match=f'^PANConv {reason}'):
        SARConv(module, mode=mode)


def test_decomposed_layers():
    _refuses(GCNConv(6, 6, decomposed_layers=2), 'write decomposed_layers=1')


class PANConv(SAGEConv):
    """A user's class that happens to have a refused name."""


def test_a_users_class_of_a_refused_name():
    assert isinstance(DistributedDataParallel(PANConv(6, 6)), SARConv)


MODES = 'parallel', 'auto', '', None, 'SEQUENTIAL'
DTYPES = torch.float16, torch.float32, torch.int8, 'bfloat16'


@pytest.mark.parametrize(
    ('option', 'value', 'words'),
    [
        *(('mode', value, "'mode'") for value in MODES),
        *(('exchange_dtype', value, f'exchange_dtype.*bfloat16.*{value}') for value in DTYPES),
    ],
)
def test_unknown_values(option, value, words):
    with pytest.raises(ValueError, match=words):
        SARConv(GCNConv(6, 6), **{option: value})
    model = torch.nn.ModuleList([GINConv(mlp()), torch.nn.BatchNorm1d(6)])
    _refuses(model, words, **{option: value})


@pytest.mark.parametrize(
    'value', [torch.nn.Linear(2, 2), GCNConv, None, 'GCNConv', SARConv(GCNConv(6, 6))], ids=str
)
def test_not_a_conv(value):
    with pytest.raises(ValueError, match='MessagePassing'):
        SARConv(value)


def test_options_are_keyword_only():
    for wrap in (SARConv, DistributedDataParallel):
        with pytest.raises(TypeError):
            wrap(GCNConv(6, 6), 'one_shot')


class _OwnPAN(conv.PANConv):
    pass


def test_a_subclass_of_what_is_refused():
    model = torch.nn.ModuleList([SAGEConv(6, 6), _OwnPAN(6, 6, 2)])
    _refuses(model, f"^_OwnPAN at '1' .*{REFUSED['PANConv']}")

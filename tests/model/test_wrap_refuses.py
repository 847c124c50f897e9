"""What wrap makes of norms, and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn.attention
from pyg_sar.models.counts import GlobalRECT_L
from small_graphs import assert_close
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GINConv, MessagePassing, SAGEConv, conv

from pyg_sar import SARConv, wrap
from pyg_sar.conv.support import REFUSED, why_refused
from pyg_sar.norm import GlobalBatchNorm


def _mlp(num_in: int = 6, num_out: int = 6) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, num_out),
    )


def _run(model: torch.nn.Module, data: Data) -> Tensor:
    torch.manual_seed(2)
    return model(data.x, data.edge_index)


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
    converted = model['gin'].nn[1]
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
    for converted in (model[1], model[2].nn[1]):
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_a_batch_norm_with_a_forward_of_its_own():
    model = torch.nn.ModuleList([GINConv(_mlp()), OwnBatchNorm(6)])
    _refuses(model, "^OwnBatchNorm at '1' cannot run on a partitioned graph")


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


class _OwnGPS(conv.GPSConv):
    pass


class _OwnInfomax(pyg.DeepGraphInfomax):
    pass


class _OwnRECT(pyg.models.RECT_L):
    pass


class _OwnSmooth(pyg.models.CorrectAndSmooth):
    pass


class _OwnSuperGAT(conv.SuperGATConv):
    pass


class _CutRECT(GlobalRECT_L):
    pass


SUBCLASSES: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {
    'GPSConv': (lambda: _OwnGPS(6, GCNConv(6, 6), norm=None), 'global attention'),
    'DeepGraphInfomax': (
        lambda: _OwnInfomax(6, GCNConv(6, 6), lambda *_: _, lambda *_: _),
        'derive it from pyg_sar.models.unsupervised.GlobalDeepGraphInfomax',
    ),
    'RECT_L': (lambda: _OwnRECT(6, 6), 'derive it from pyg_sar.models.counts.GlobalRECT_L'),
    'CorrectAndSmooth': (
        lambda: _OwnSmooth(2, 0.5, 2, 0.5),
        'derive it from pyg_sar.models.counts.GlobalCorrectAndSmooth',
    ),
    'SuperGATConv': (
        lambda: _OwnSuperGAT(6, 6),
        'derive it from pyg_sar.models.counts.GlobalSuperGATConv',
    ),
}


@pytest.mark.parametrize('name', SUBCLASSES)
def test_subclasses_of_what_looks_at_all_nodes(name):
    make, words = SUBCLASSES[name]
    _refuses(torch.nn.ModuleList([SAGEConv(6, 6), make()]), words)


def test_a_subclass_of_the_global_form_is_taken():
    model = wrap(_CutRECT(6, 6))
    assert type(model) is _CutRECT
    assert isinstance(model.conv, SARConv)


def test_a_norm_that_a_list_holds_too_is_global():
    model = torch.nn.Module()
    model.conv, model.norm = SAGEConv(6, 6), torch.nn.BatchNorm1d(6)
    model.steps = [model.conv, model.norm]  # what its forward calls
    wrap(model)
    assert model.steps[0] is model.conv
    assert model.steps[1] is model.norm
    assert isinstance(model.norm, GlobalBatchNorm)

"""What wrap refuses, and what it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn.attention
from test_wrap import mlp, places
from torch_geometric.nn import GCNConv, GINConv, SAGEConv, conv

from pyg_sar import DistributedDataParallel, SARConv
from pyg_sar.nn.sar_conv import REFUSED, why_refused


def _refuses(model: torch.nn.Module, match: str, **kwargs: Any) -> None:
    """Wrap raises, and leaves every module where it was."""
    before = places(model)
    with pytest.raises(ValueError, match=match):
        DistributedDataParallel(model, **kwargs)
    assert places(model) == before


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
    with pytest.raises(TypeError):
        SARConv(GCNConv(6, 6), 'one_shot')
    with pytest.raises(TypeError):
        DistributedDataParallel(GCNConv(6, 6), 'one_shot')


class _OwnPAN(conv.PANConv):
    pass


def test_a_subclass_of_what_is_refused():
    model = torch.nn.ModuleList([SAGEConv(6, 6), _OwnPAN(6, 6, 2)])
    _refuses(model, f"^_OwnPAN at '1' .*{REFUSED['PANConv']}")

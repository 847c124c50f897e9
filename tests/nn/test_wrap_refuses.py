"""What wrap refuses, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn.attention
from torch_geometric.nn import GCNConv, GINConv, MessagePassing, SAGEConv, conv

from pyg_sar import DistributedDataParallel, SARConv
from pyg_sar.nn.sar_conv import REFUSED, why_refused


def _mlp(num_in: int = 6, num_out: int = 6) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, num_out),
    )


CONSTRUCTIBLE: dict[str, Callable[[], torch.nn.Module]] = {
    'PANConv': lambda: conv.PANConv(6, 6, 2),
}


def _places(model: torch.nn.Module) -> list[tuple[str, int, type]]:
    return [(name, id(m), type(m)) for name, m in model.named_modules(remove_duplicate=False)]


def _refuses(model: torch.nn.Module, match: str, **kwargs: Any) -> None:
    """Wrap raises, and leaves every module where it was."""
    before = _places(model)
    with pytest.raises(ValueError, match=match):
        DistributedDataParallel(model, **kwargs)
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
    _refuses(module, f'^{name} .*{reason}', mode=mode)
    model = torch.nn.ModuleDict({'first': GINConv(_mlp()), 'last': module})
    _refuses(model, f"^{name} at 'last' .*{reason}", mode=mode)
    if isinstance(module, MessagePassing):
        with pytest.raises(ValueError, match=f'^{name} .*{reason}'):
            SARConv(module, mode=mode)


def test_decomposed_layers():
    _refuses(GCNConv(6, 6, decomposed_layers=2), 'write decomposed_layers=1')


class PANConv(SAGEConv):
    """A user's class that happens to have a refused name."""


def test_a_users_class_of_a_refused_name():
    assert isinstance(DistributedDataParallel(PANConv(6, 6)), SARConv)


@pytest.mark.parametrize('mode', ['parallel', 'auto', '', None, 'SEQUENTIAL'])
def test_unknown_modes(mode):
    words = "'mode'"
    with pytest.raises(ValueError, match=words):
        SARConv(GCNConv(6, 6), mode=mode)
    _refuses(torch.nn.ModuleList([GINConv(_mlp()), torch.nn.BatchNorm1d(6)]), words, mode=mode)


@pytest.mark.parametrize('value', [torch.float16, torch.float32, torch.int8, 'bfloat16'])
def test_unknown_dtypes(value):
    with pytest.raises(ValueError, match=f'exchange_dtype.*bfloat16.*{value}'):
        SARConv(GCNConv(6, 6), exchange_dtype=value)


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

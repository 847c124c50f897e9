"""Every norm, with its options and what it is given beside rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch_geometric import nn as pyg


@dataclass(frozen=True)
class NormCase:
    """A norm and what its forward is given beside x: names of row tensors, and options.

    Attributes:
        is_constant: Whether all rows are equal.
        trailing: The shape of a channel.
        is_fixed: Whether x takes no gradient.
    """

    make: Callable[[], torch.nn.Module]
    rows: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    is_constant: bool = False
    trailing: tuple[int, ...] = ()
    is_fixed: bool = False


def _graph_cases() -> dict[str, NormCase]:
    makes: dict[str, Callable[[], torch.nn.Module]] = {
        'GraphNorm': lambda: pyg.GraphNorm(4),
        'GraphNorm eps': lambda: pyg.GraphNorm(4, eps=0.5),
        'GraphSizeNorm': pyg.GraphSizeNorm,
        'InstanceNorm': lambda: pyg.InstanceNorm(4),
        'InstanceNorm affine': lambda: pyg.InstanceNorm(4, affine=True, eps=0.5),
        'InstanceNorm running': lambda: pyg.InstanceNorm(4, track_running_stats=True),
        'InstanceNorm all': lambda: pyg.InstanceNorm(
            4, momentum=0.5, affine=True, track_running_stats=True
        ),
        'LayerNorm': lambda: pyg.LayerNorm(4),
        'LayerNorm not affine': lambda: pyg.LayerNorm(4, affine=False, eps=0.5),
        'LayerNorm node': lambda: pyg.LayerNorm(4, mode='node'),
        'PairNorm': pyg.PairNorm,
        'PairNorm individually': lambda: pyg.PairNorm(scale_individually=True),
        'PairNorm scale': lambda: pyg.PairNorm(scale=2.5, eps=0.5),
        'MeanSubtractionNorm': pyg.MeanSubtractionNorm,
    }
    cases = {}
    for name, make in makes.items():
        size = 'dim_size' if name == 'MeanSubtractionNorm' else 'batch_size'
        cases[name] = NormCase(make)
        cases[f'{name}, batch'] = NormCase(make, ('batch',))
        cases[f'{name}, batch and size'] = NormCase(make, ('batch',), {size: 7})
    return cases


def _batch_norms() -> dict[str, NormCase]:
    options: dict[str, dict[str, Any]] = {
        '': {},
        ' momentum 0.5': {'momentum': 0.5},
        ' momentum None': {'momentum': None},
        ' not affine': {'affine': False},
        ' no running': {'track_running_stats': False},
        ' eps': {'eps': 0.5},
    }
    return {
        f'BatchNorm1d{name}{more}': NormCase(
            lambda kwargs=kwargs: torch.nn.BatchNorm1d(4, **kwargs), trailing=trailing
        )
        for name, kwargs in options.items()
        for more, trailing in (('', ()), (', 3D', (5,)))
    }


def _batch_norm_without_bias() -> torch.nn.Module:
    module = pyg.BatchNorm(4)
    module.module.register_parameter('bias', None)
    return module


CASES: dict[str, NormCase] = {
    **_graph_cases(),
    'LayerNorm, constant': NormCase(lambda: pyg.LayerNorm(4), is_constant=True),
    'LayerNorm, constant, batch': NormCase(lambda: pyg.LayerNorm(4), ('batch',), is_constant=True),
    **_batch_norms(),
    'BatchNorm1d frozen': NormCase(lambda: torch.nn.BatchNorm1d(4).requires_grad_(False)),
    'BatchNorm1d of what takes no gradient': NormCase(
        lambda: torch.nn.BatchNorm1d(4), is_fixed=True
    ),
    'SyncBatchNorm': NormCase(lambda: torch.nn.SyncBatchNorm(4)),
    'BatchNorm': NormCase(lambda: pyg.BatchNorm(4)),
    'BatchNorm options': NormCase(lambda: pyg.BatchNorm(4, eps=0.5, momentum=None, affine=False)),
    'BatchNorm without bias': NormCase(_batch_norm_without_bias),
    'BatchNorm no running': NormCase(lambda: pyg.BatchNorm(4, track_running_stats=False)),
    'BatchNorm one element': NormCase(lambda: pyg.BatchNorm(4, allow_single_element=True)),
    'HeteroBatchNorm': NormCase(lambda: pyg.HeteroBatchNorm(4, 5), ('type_vec',)),
    'HeteroBatchNorm options': NormCase(
        lambda: pyg.HeteroBatchNorm(4, 5, eps=0.5, momentum=None, affine=False), ('type_vec',)
    ),
    'HeteroBatchNorm no running': NormCase(
        lambda: pyg.HeteroBatchNorm(4, 5, track_running_stats=False), ('type_vec',)
    ),
    'HeteroLayerNorm': NormCase(lambda: pyg.HeteroLayerNorm(4, 5), ('type_vec',)),
    'HeteroLayerNorm not affine': NormCase(
        lambda: pyg.HeteroLayerNorm(4, 5, affine=False), ('type_vec',)
    ),
    'MessageNorm': NormCase(pyg.MessageNorm, ('msg',)),
    'MessageNorm learned': NormCase(
        lambda: pyg.MessageNorm(learn_scale=True), ('msg',), {'p': 1.5}
    ),
    'DiffGroupNorm': NormCase(lambda: pyg.DiffGroupNorm(4, 3, lamda=0.5)),
    'DiffGroupNorm options': NormCase(
        lambda: pyg.DiffGroupNorm(4, 3, eps=0.5, momentum=None, affine=False)
    ),
    'DiffGroupNorm no running': NormCase(
        lambda: pyg.DiffGroupNorm(4, 3, lamda=0.5, track_running_stats=False)
    ),
}

"""Every aggregation of ``torch_geometric.nn.aggr`` that a conv can use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from conv_calls import DEGREES
from conv_case import Case, takes
from torch_geometric.nn import aggr, conv

Linear = torch.nn.Linear


def _sage(aggregation: Any, **kwargs: Any) -> torch.nn.Module:
    return conv.SAGEConv(8, 6, aggregation, **kwargs)


def _several(mode: str, **mode_kwargs: Any) -> torch.nn.Module:
    names = ['mean', 'max', 'std']
    return _sage(names, aggr_kwargs={'mode': mode, 'mode_kwargs': mode_kwargs})


def _simple(config: str, make: Callable[[], Any], graph: str = 'plain') -> Case:
    """On a conv that does not mind the width of the result."""
    return Case('SimpleConv', f'aggr={config}', lambda: conv.SimpleConv(make()), graph=graph)


def _sorted(config: str, make: Callable[[], Any]) -> Case:
    """PyG wants the edges sorted by destination; most of these depend on the order of messages."""
    return _simple(config, make, 'sorted')


@contextmanager
def _no_warning() -> Iterator[None]:
    """torch warns of the variance of an empty tensor, which a rank without nodes has."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)
        yield


_BY_NAME = ['sum', 'mean', 'max', 'min', 'mul', 'var', 'std', 'softmax', 'powermean', 'median']

CASES = [
    *(Case('SAGEConv', f'aggr={a}', lambda a=a: _sage(a)) for a in _BY_NAME),
    Case('SAGEConv', 'aggr=lstm', lambda: _sage('lstm'), graph='sorted'),
    Case('SAGEConv', 'project, normalize', lambda: _sage('sum', project=True, normalize=True)),
    Case('SAGEConv', 'no root, no bias', lambda: _sage('mean', root_weight=False, bias=False)),
    Case('SAGEConv', 'aggr=max, project (ties)', lambda: _sage('max', project=True)),
    Case(
        'SAGEConv',
        'aggr=var, semi_grad',
        lambda: _sage('var', aggr_kwargs={'semi_grad': True}),
    ),
    Case(
        'SAGEConv',
        'aggr=softmax, learnable t',
        lambda: _sage('softmax', aggr_kwargs={'t': 0.7, 'learn': True}),
    ),
    Case(
        'SAGEConv',
        'aggr=softmax, t per channel',
        lambda: _sage(aggr.SoftmaxAggregation(0.7, learn=True, channels=8)),
    ),
    Case(
        'SAGEConv',
        'aggr=softmax, semi_grad',
        lambda: _sage(aggr.SoftmaxAggregation(0.7, semi_grad=True)),
    ),
    Case(
        'SAGEConv',
        'aggr=powermean, learnable p',
        lambda: _sage('powermean', aggr_kwargs={'p': 1.7, 'learn': True}),
    ),
    Case(
        'SAGEConv',
        'aggr=powermean, p per channel',
        lambda: _sage(aggr.PowerMeanAggregation(1.7, learn=True, channels=8)),
    ),
    Case(
        'SAGEConv',
        'aggr=max with degree scaler',
        lambda: _sage(aggr.DegreeScalerAggregation('max', 'linear', DEGREES)),
    ),
    Case(
        'SAGEConv',
        'aggr=std with learnable degree scaler',
        lambda: _sage(aggr.DegreeScalerAggregation('std', 'attenuation', DEGREES, True)),
    ),
    *(
        Case(
            'SAGEConv',
            f'mean, max and std, mode={mode}',
            lambda mode=mode: _several(mode),
            during=_no_warning,
        )
        for mode in ('cat', 'sum', 'mean', 'max', 'min', 'logsumexp', 'std', 'var')
    ),
    Case(
        'SAGEConv',
        'mean, max and std, mode=proj',
        lambda: _several('proj', in_channels=8, out_channels=8),
    ),
    Case(
        'SAGEConv',
        'mean, max and std, mode=attn',
        lambda: _several('attn', in_channels=8, out_channels=8, num_heads=2),
    ),
    Case(
        'SAGEConv',
        'all that are fused',
        lambda: _sage(['sum', 'mean', 'min', 'max', 'mul', 'var', 'std']),
    ),
    Case('SAGEConv', 'softmax and median', lambda: _sage(['softmax', 'median'])),
    Case('SAGEConv', 'max within sum', lambda: _sage(['sum', aggr.MultiAggregation(['max'])])),
    _simple('quantile', lambda: aggr.QuantileAggregation(0.3)),
    _sorted('GRU', lambda: aggr.GRUAggregation(8, 6)),
    _simple('Set2Set', lambda: aggr.Set2Set(8, 2)),
    _simple('degree scalers', lambda: _scalers(['mean', 'min'])),
    _sorted('Sort', lambda: aggr.SortAggregation(2)),
    _sorted('GraphMultisetTransformer', lambda: aggr.GraphMultisetTransformer(8, 3)),
    _simple('Attentional', lambda: aggr.AttentionalAggregation(Linear(8, 1))),
    _simple('Attentional with net', lambda: _attentional()),
    # It finds its minimum by gradients, of energies that PyG computes in float32.
    replace(
        _simple('Equilibrium', lambda: aggr.EquilibriumAggregation(8, 6, [5], 2)), is_single=True
    ),
    _sorted('MLP', lambda: aggr.MLPAggregation(8, 6, 20, num_layers=1)),
    _simple('DeepSets', lambda: aggr.DeepSetsAggregation(Linear(8, 7), Linear(7, 6))),
    _sorted('SetTransformer', lambda: aggr.SetTransformerAggregation(8, 2, heads=2)),
    _sorted('LCM', lambda: aggr.LCMAggregation(8, 6)),
    _simple('VariancePreserving', lambda: aggr.VariancePreservingAggregation()),
    _sorted('PatchTransformer', lambda: aggr.PatchTransformerAggregation(8, 6, 2, 4)),
    Case('GraphConv', 'aggr=median', lambda: conv.GraphConv(8, 6, 'median'), takes('edge_weight')),
    Case('GATConv', 'aggr=median', lambda: conv.GATConv(8, 5, 2, aggr='median')),
    Case('GINEConv', 'aggr=softmax', lambda: _gine('softmax'), takes('edge_attr')),
    Case('GINEConv', 'aggr=mul', lambda: _gine('mul'), takes('edge_attr')),
    Case('TransformerConv', 'aggr=max', lambda: conv.TransformerConv(8, 5, 2, aggr='max')),
]


def _scalers(names: list[str]) -> Any:
    scalers = ['identity', 'amplification', 'inverse_linear']
    return aggr.DegreeScalerAggregation(names, scalers, DEGREES)


def _attentional() -> Any:
    gate = torch.nn.Sequential(Linear(8, 5), torch.nn.Tanh(), Linear(5, 1))
    return aggr.AttentionalAggregation(gate, Linear(8, 6))


def _gine(name: str) -> torch.nn.Module:
    return conv.GINEConv(Linear(8, 6), edge_dim=4, aggr=name)

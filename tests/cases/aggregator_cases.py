"""Every aggregation of ``torch_geometric.nn.aggr`` that a conv can use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from conv_calls import ATTR, DEGREES, WEIGHT
from conv_case import Case, case, of
from torch.nn import Linear, Sequential, Tanh
from torch_geometric.nn import aggr

_sage = of('SAGEConv', 8, 6)
# On a conv that does not mind the width of the result.
_simple = of('SimpleConv')
# PyG wants the edges sorted by destination; most of these depend on the order of messages.
_sorted = of('SimpleConv', graph='sorted')


@contextmanager
def _no_warning() -> Iterator[None]:
    """torch warns of the variance of an empty tensor, which a rank without nodes has."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)
        yield


def _several(mode: str, during: Any = nullcontext, **mode_kwargs: Any) -> Case:
    options = {'mode': mode, 'mode_kwargs': mode_kwargs}
    config = f'mean, max and std, mode={mode}'
    return _sage(config, ['mean', 'max', 'std'], aggr_kwargs=options, during=during)


_BY_NAME = ['sum', 'mean', 'max', 'min', 'mul', 'var', 'std', 'softmax', 'powermean', 'median']
_SCALERS = ['identity', 'amplification', 'inverse_linear']

CASES = [
    *(_sage(f'aggr={name}', name) for name in _BY_NAME),
    _sage('aggr=lstm', 'lstm', graph='sorted'),
    _sage('project, normalize', 'sum', project=True, normalize=True),
    _sage('no root, no bias', 'mean', root_weight=False, bias=False),
    _sage('aggr=max, project (ties)', 'max', project=True),
    _sage('aggr=var, semi_grad', 'var', aggr_kwargs={'semi_grad': True}),
    _sage('aggr=softmax, learnable t', 'softmax', aggr_kwargs={'t': 0.7, 'learn': True}),
    _sage('aggr=softmax, t per channel', aggr.SoftmaxAggregation(0.7, learn=True, channels=8)),
    _sage('aggr=softmax, semi_grad', aggr.SoftmaxAggregation(0.7, semi_grad=True)),
    _sage('aggr=powermean, learnable p', 'powermean', aggr_kwargs={'p': 1.7, 'learn': True}),
    _sage('aggr=powermean, p per channel', aggr.PowerMeanAggregation(1.7, learn=True, channels=8)),
    _sage('aggr=max with degree scaler', aggr.DegreeScalerAggregation('max', 'linear', DEGREES)),
    _sage(
        'aggr=std with learnable degree scaler',
        aggr.DegreeScalerAggregation('std', 'attenuation', DEGREES, True),
    ),
    *(_several(mode, _no_warning) for mode in ('cat', 'sum', 'mean', 'max', 'min')),
    *(_several(mode, _no_warning) for mode in ('logsumexp', 'std', 'var')),
    _several('proj', in_channels=8, out_channels=8),
    _several('attn', in_channels=8, out_channels=8, num_heads=2),
    _sage('all that are fused', ['sum', 'mean', 'min', 'max', 'mul', 'var', 'std']),
    _sage('softmax and median', ['softmax', 'median']),
    _sage('max within sum', ['sum', aggr.MultiAggregation(['max'])]),
    _simple('aggr=quantile', aggr.QuantileAggregation(0.3)),
    _sorted('aggr=GRU', aggr.GRUAggregation(8, 6)),
    _simple('aggr=Set2Set', aggr.Set2Set(8, 2)),
    _simple(
        'aggr=degree scalers', aggr.DegreeScalerAggregation(['mean', 'min'], _SCALERS, DEGREES)
    ),
    _sorted('aggr=Sort', aggr.SortAggregation(2)),
    _sorted('aggr=GraphMultisetTransformer', aggr.GraphMultisetTransformer(8, 3)),
    _simple('aggr=Attentional', aggr.AttentionalAggregation(Linear(8, 1))),
    _simple(
        'aggr=Attentional with net',
        aggr.AttentionalAggregation(Sequential(Linear(8, 5), Tanh(), Linear(5, 1)), Linear(8, 6)),
    ),
    # It finds its minimum by gradients, of energies that PyG computes in float32.
    replace(_simple('aggr=Equilibrium', aggr.EquilibriumAggregation(8, 6, [5], 2)), is_single=True),
    _sorted('aggr=MLP', aggr.MLPAggregation(8, 6, 20, num_layers=1)),
    _simple('aggr=DeepSets', aggr.DeepSetsAggregation(Linear(8, 7), Linear(7, 6))),
    _sorted('aggr=SetTransformer', aggr.SetTransformerAggregation(8, 2, heads=2)),
    _sorted('aggr=LCM', aggr.LCMAggregation(8, 6)),
    _simple('aggr=VariancePreserving', aggr.VariancePreservingAggregation()),
    _sorted('aggr=PatchTransformer', aggr.PatchTransformerAggregation(8, 6, 2, 4)),
    case('GraphConv', 'aggr=median', 8, 6, 'median', call=WEIGHT),
    case('GATConv', 'aggr=median', 8, 5, 2, aggr='median'),
    case('GINEConv', 'aggr=softmax', Linear(8, 6), edge_dim=4, aggr='softmax', call=ATTR),
    case('GINEConv', 'aggr=mul', Linear(8, 6), edge_dim=4, aggr='mul', call=ATTR),
    case('TransformerConv', 'aggr=max', 8, 5, 2, aggr='max'),
]

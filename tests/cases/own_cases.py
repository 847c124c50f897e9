"""How the MessagePassing classes of users are called."""

from __future__ import annotations

from typing import Any

import own_convs as own
import torch
from conv_calls import ATTR, TYPE, WEIGHT
from conv_case import X_AND_EDGES, Case, Inputs, case, takes


def _ids(module: torch.nn.Module, d: Inputs) -> Any:
    return module(d.node, d.edge_index)


def _no_x(module: torch.nn.Module, d: Inputs) -> Any:
    return module(None, d.edge_index, d.edge_attr, size=(d.data.num_nodes,) * 2)


def _fixed_x(module: torch.nn.Module, d: Inputs) -> Any:
    return module(d.constant.x, d.edge_index, d.constant.edge_attr)


def _case(config: str, make: Any, call: Any = X_AND_EDGES) -> Case:
    return Case('MessagePassing', config, make, call)


CASES = [
    _case('two softmaxes, one of the other', own.TwoSoftmaxes),
    _case('three softmaxes side by side', own.ThreeSoftmaxes),
    _case('own aggregate', own.OwnAggregate),
    _case('own aggregate by edge type', own.AggregateOfTypes, TYPE),
    _case('own aggregate with a softmax', own.AggregateWithSoftmax),
    _case('own aggregate into a plain tensor', own.AggregateIntoPlain),
    _case('own update that reads x', own.OwnUpdate),
    _case('edge_updater', lambda: own.EdgeUpdates(has_softmax=False), ATTR),
    _case('edge_updater with a softmax', lambda: own.EdgeUpdates(has_softmax=True), ATTR),
    _case('edge_updater, no gradients', lambda: own.EdgeUpdates(has_softmax=True), _fixed_x),
    _case('two propagates, node_dim=1', own.Stacked, WEIGHT),
    _case('three propagates', own.ManyPropagates, takes('edge_weight', 'edge_type')),
    _case('flow=target_to_source', lambda: own.Own(flow='target_to_source')),
    _case(
        'flow=target_to_source, edge features',
        lambda: own.DestinationOnly(flow='target_to_source'),
        ATTR,
    ),
    _case('keeps edge values in message', own.SetsEdgeValues),
    _case('keeps a number in message', own.SetsNumber),
    _case('counts its calls in message', own.CountsCalls),
    _case('reads x at sources in forward', own.ReadsSources),
    _case('reduces over sources in forward', own.ReducesAtSources, WEIGHT),
    _case(
        'self loops up to the largest id',
        lambda: own.LoopsUpToLargestId(remaining=False),
        takes('edge_attr', 'node'),
    ),
    _case(
        'remaining self loops up to the largest id',
        lambda: own.LoopsUpToLargestId(remaining=True),
        takes('edge_attr', 'node'),
    ),
    _case('node ids, embedding in message', own.EmbeddingInMessage, _ids),
    _case('node ids, embedding in forward', own.EmbeddingInForward, _ids),
    _case('x=None', own.EdgesOnly, _no_x),
    _case('reads x_i only', own.DestinationOnly, ATTR),
    _case('integer messages', own.CountsPositive),
    _case('float64 messages of float32', own.Widens),
    _case('degree of the destination', own.DividesByDegree),
    _case('reads edge_index in message', lambda: own.ReadsSourceIds(node_dim=0), takes('node')),
    *(_case(hook, lambda hook=hook: own.Hooked(hook)) for hook in own.HOOKS),
    _case('all hooks', lambda: own.Hooked(*own.HOOKS)),
]


_TURNED = {'flow': 'target_to_source'}

MORE = [
    case('SAGEConv', 'aggr=median, turned', 8, 6, 'median', **_TURNED),
    case('GATConv', 'turned', 8, 5, 3, edge_dim=4, **_TURNED, call=ATTR),
    case('PDNConv', 'turned', 8, 6, 4, 5, **_TURNED, call=ATTR),
    _case('looks at all nodes in forward', own.AllNodes),
]
"""Of which the table has others like them."""

CHECKS = [
    Case('Check', 'wrong', own.ReadsOwnRows),
    Case('Check', 'one rank raises', lambda: own.FailsOnOneRank(before=False), takes('node')),
    Case('Check', 'ranks wait', lambda: own.FailsOnOneRank(before=True), takes('node')),
    Case('Check', 'exact', own.Own),
]

"""Fewer numbers travel for a sum over in-edges: sums in the place of rows, or fewer columns.

Along edges and weights that stay as they are a reader asks the owner of rows once for sums
(:mod:`pyg_sar.ops.partial_sums`). Along the loaded edges without weights all ranks ask at the first
call, and keep the answer with the shard. In any other call they decide together whether all have
asked for these edges with these weights, unless the answer of the last forward holds
(:mod:`pyg_sar.nn.answers`). Weights are compared by content.

A sum commutes with a linear map of the rows: ``sum(x) @ W.T == sum(x @ W.T)``, and so does a mean.
Where a conv gives its sums to a layer of fewer columns (256 to 40), ``x @ W.T`` is exchanged and
summed. The convs that do so are listed, so that every forward has the same bits. The result of
propagate then answers that layer only; any other use raises.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdRef
from torch_geometric.nn import ClusterGCNConv, GraphConv, MessagePassing, SAGEConv, aggr

from pyg_sar.comm.exchange import Exchange, exchange_of
from pyg_sar.comm.ranks import current
from pyg_sar.comm.vote import Agreed, vote
from pyg_sar.nn.answers import Forward, never, note, recalled, state_of
from pyg_sar.nn.reuse import kept_copy
from pyg_sar.ops.linear import is_plain_layer, linear
from pyg_sar.ops.partial_sums import covered
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.rows import tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.blocks import Plan
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.shard import Cached
from pyg_sar.utils.dry_run import lazy_draws
from pyg_sar.utils.tensor_state import storage_of, version_of

_MAX_WEIGHTS = 4
# The plan by which rows and sums travel; None where that spares too little.
_COVERS: Cached[Agreed[tuple[Plan | None]]] = Cached()
_ALL: Cached[tuple[Plan | None]] = Cached()  # of all edges without weights
_ASKED: Cached[int] = Cached()

_QUESTION = 'sums in place of rows'

_MAX_ASKED = 8
"""How many times ranks ask along the edges of a shard: a program may make them anew each time."""


def with_partial_sums(
    edges: ShardEdges, plan: Plan, exchange: Exchange, weight: Tensor | None
) -> tuple[Plan, Exchange]:
    """The plan and exchange of a sum, by rows and sums where that spares rows, else unchanged.

    `weight` are constant weights ``[num_edges]`` of the plan's `edges`, or None. Collective, where
    it is not of all edges without weights, and the answer of the last forward does not hold: one
    small all-gather, see :meth:`pyg_sar.comm.Agreed.find`; where the ranks ask, see
    :func:`pyg_sar.ops.partial_sums.covered`.
    """
    shard = plan.shard
    # Reading the content of weights on a device would wait for it.
    if shard.world_size == 1 or (weight is not None and weight.device.type != 'cpu'):
        return plan, exchange
    if edges.is_whole and weight is None:
        (by_sums,) = _ALL.of(shard, lambda: (covered(plan, None),))
    else:
        by_sums = _plan_of_all(edges, plan, weight)
    if by_sums is None:
        return plan, exchange
    return by_sums, exchange_of(by_sums.shard, dtype=exchange.wire.dtype)


def _plan_of_all(edges: ShardEdges, plan: Plan, weight: Tensor | None) -> Plan | None:
    """The plan that all ranks have made for these edges and weights, or make now."""
    about = [edges] if weight is None else [edges, weight]
    known = recalled(_QUESTION, *about)
    if known is not None:
        return known[0] if known else None
    state = () if weight is None else state_of(weight)
    key = None if weight is None else (weight.dtype, *state[1])
    answers, asked = _COVERS.of(plan, lambda: Agreed(_MAX_WEIGHTS)), _ASKED.of(plan.shard, int)
    # Without gradients the weights that a model computes look like constants.
    may_last = weight is None or torch.is_grad_enabled()
    answer, all_ask = answers.find(key, may_last and asked < _MAX_ASKED)
    if answer is None and all_ask:
        answer = answers.keep(key, (covered(plan, weight),))
        _ASKED.put(plan.shard, asked + 1)
    if answer is not None:
        (by_sums,) = answer
        value = () if by_sums is None else (by_sums,)
        states = [version_of(edges.ids)] if weight is None else [version_of(edges.ids), state]
        note(_QUESTION, about, value, _is_still, *states)
        return by_sums
    holds = never if torch.is_grad_enabled() else _is_none_made
    note(_QUESTION, (), (), holds, WeakIdRef(about[-1]), current().num_made)
    return None


def _is_still(
    forward: Forward, about: list[Any], value: list[Any], states: tuple[Any, ...]
) -> bool:
    """Whether edges and weights are as they were."""
    edges, *weights = about
    return states == (version_of(edges.ids), *map(forward.state, weights))


def _is_none_made(
    forward: Forward, about: list[Any], value: list[Any], states: tuple[Any, ...]
) -> bool:
    """Whether all ranks have made no plan since, or none for these, as forwards make them anew."""
    last, num_made = states
    return last() is None or current().num_made == num_made


_KINDS_OF_HOOKS = ('forward', 'forward_pre', 'backward', 'backward_pre')
GLOBAL_HOOKS = [
    getattr(torch.nn.modules.module, f'_global_{kind}_hooks') for kind in _KINDS_OF_HOOKS
]
"""The hooks of all modules, by their kind."""

_LAYERS = {
    SAGEConv.forward: ('lin_l', 'lin_r'),
    GraphConv.forward: ('lin_rel', 'lin_root'),
    ClusterGCNConv.forward: ('lin_out', 'lin_root'),
}
"""The layer that alone gets the result of the only propagate of a forward; that of own rows.

An overridden forward is another one.
"""


def is_sum(conv: MessagePassing) -> bool:
    """Whether the conv's aggregation is a sum or a mean alone, hooks aside."""
    return (
        'aggregate' not in vars(conv)
        and type(conv).aggregate is MessagePassing.aggregate
        and type(getattr(conv, 'aggr_module', None)) in (aggr.SumAggregation, aggr.MeanAggregation)
    )


def is_hooked(conv: MessagePassing) -> bool:
    """Whether the aggregation has hooks on this rank."""
    return bool(
        conv._aggregate_forward_pre_hooks
        or conv._aggregate_forward_hooks
        or conv.aggr_module._forward_hooks
        or conv.aggr_module._forward_pre_hooks
    )


def layer_after(conv: MessagePassing, x: Tensor) -> Any:
    """The narrower linear layer that the conv's forward gives the sums to, or None.

    No rank may have hooks. Collective, where there is such a layer: one small all-gather. The
    conv's aggregation is a sum; `x` are own rows.
    """
    layer = _narrower_layer(conv, x)
    if layer is None:
        return None
    return layer if vote('a decision', _is_watched(conv, layer, x.device)) == [0] else None


def only_reads(conv: MessagePassing, x: Tensor) -> bool:
    """Whether the conv gives the sums to a layer, and to nobody who might write to them."""
    layer = _layer(conv)
    return layer is not None and not _is_watched(conv, layer, x.device)


def rows_through(conv: Any, layer: Any, pair: Any, x: Tensor) -> Tensor:
    """The own rows `x` after the layer, without its bias; `pair` is what propagate got."""
    # Unlike a sum, a layer keeps its rows for backward: a program may change them in place now,
    # but if the layer of own rows keeps the same ones, as in plain PyG.
    root: Any = getattr(conv, _LAYERS[_forward(conv)][1], None)
    learns = torch.is_grad_enabled() and layer.weight.requires_grad
    # A weight that is computed anew at every read is read by its layer alone.
    is_kept = is_plain_layer(root) and root.weight.requires_grad and _are_one(pair)
    if learns and not is_kept:
        x = kept_copy(x)
    return linear(x, for_rows(layer.weight))


def _are_one(pair: Any) -> bool:
    if not isinstance(pair, (tuple, list)) or not all(isinstance(rows, Tensor) for rows in pair):
        return False
    return len({(storage_of(rows), rows.storage_offset(), rows.shape) for rows in pair}) == 1


class NarrowSum(Tensor):
    """Sums ``[num_dst, K]`` of rows after a layer, which answer that layer only."""

    _weight: Tensor
    _sharding: Sharding | None = None  # of the nodes whose rows the layer gives

    @staticmethod
    def of(total: Tensor, weight: Tensor) -> NarrowSum:
        """The sums `total` of rows after the layer of `weight`."""
        self = total.as_subclass(NarrowSum)
        self._weight = weight
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.linear or not isinstance(args[0], cls) or args[0]._weight is not args[1]:
            raise RuntimeError(
                'expected a forward that gives the result of propagate to its linear layer and '
                f'uses it for nothing else (got {getattr(func, "__name__", func)})'
            )
        with torch._C.DisableTorchFunctionSubclass():
            out, bias = args[0].as_subclass(Tensor), args[2]
            out = out if bias is None else out + for_rows(bias)
            return out if args[0]._sharding is None else tag(out, 0, args[0]._sharding)


def gives_arguments(conv: MessagePassing) -> bool:
    """Whether the conv's forward is PyG's own, and no hook changes what it gives to propagate."""
    is_pygs = _forward(conv).__module__.startswith('torch_geometric.')
    return is_pygs and 'forward' not in vars(conv) and not conv._propagate_forward_pre_hooks


def _forward(conv: MessagePassing) -> Any:
    classes = [c for c in type(conv).__mro__ if not c.__module__.startswith('pyg_sar.')]
    return next(vars(c)['forward'] for c in classes if 'forward' in vars(c))


def _layer(conv: MessagePassing) -> Any:
    """The linear layer that gets the result of propagate, or None, as on all ranks."""
    forward = _forward(conv)
    is_known = (
        forward in _LAYERS
        and type(conv).update is MessagePassing.update
        and not {'forward', 'update'} & set(vars(conv))
    )
    layer: Any = getattr(conv, _LAYERS[forward][0]) if is_known else None
    return layer if isinstance(layer, torch.nn.Module) and is_plain_layer(layer) else None


def _narrower_layer(conv: MessagePassing, x: Tensor) -> Any:
    """The linear layer that makes fewer columns of the sums of `x`, or None, as on all ranks."""
    layer = _layer(conv)
    if layer is None or x.dtype not in (torch.float32, torch.float64):
        return None  # in others sums of products are rounded
    if torch.nn.parameter.is_lazy(layer.weight):
        with lazy_draws.value:
            layer.initialize_parameters(layer, (x,))  # as its call would, with the same numbers
    num_out, num_in = layer.weight.shape
    is_narrower = num_out < num_in == x.size(1) and layer.weight.dtype == x.dtype
    return layer if is_narrower else None


def _is_watched(conv: MessagePassing, layer: torch.nn.Module, device: torch.device) -> bool:
    """Whether hooks or autocast on this rank would see another computation."""
    return (
        is_hooked(conv)
        or bool(conv._propagate_forward_hooks)
        or any(GLOBAL_HOOKS)
        or any(getattr(layer, f'_{kind}_hooks') for kind in _KINDS_OF_HOOKS)
        or torch.is_autocast_enabled(device.type)
    )

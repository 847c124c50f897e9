"""The start of a forward on a cut graph, before the conv computes anything.

Ranks decide together how a call of message passing is computed, and keep to it. A decision holds
for one state of the conv: its hooks, its training mode, its numbers and the kinds of its inputs. If
one rank registers a hook and the others do not, it would decide anew while they wait for its rows.
So every forward begins with an all-reduce of one number, which tells whether what must be alike is
the same on all ranks, and whether one of them has to decide anew.

Only ``propagate`` shows for certain which role a tensor has. But a conv may fail before it gets
there, on the one rank whose input is wrong. So what the names of arguments tell is checked here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, RGCNConv

from pyg_sar.comm import agree, are_alike, check_equal, raise_together
from pyg_sar.conv.call.decision import Decisions
from pyg_sar.conv.names import PLAIN, name_of, plain_class
from pyg_sar.conv.options import Options
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard

_MESSAGE_HOOKS = ('_propagate', '_message', '_aggregate', '_edge_update')
_FUNCTIONS = ('message', 'aggregate', 'update', 'edge_update')


def decisions_for(
    conv: MessagePassing,
    options: Options,
    shards: list[Shard],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: dict[str, Decisions],
) -> Decisions:
    """What the ranks have decided for a forward like this one; new ones are added to `known`.

    Collective: an all-reduce of one number; where a rank has not seen such a forward, or the conv
    has changed since, an all-gather.

    Raises:
        ValueError: On all ranks, if the forwards differ, or the inputs of one are wrong.
    """
    error = None
    try:
        if len(shards) == 1:
            _check_inputs(conv, shards[0], args, kwargs)
    except ValueError as wrong:
        error = wrong
    words, local = _state_of(conv, options, shards, [*args, *kwargs.values()])
    found = known.get(words)
    is_known = found is not None and found.local == local and error is None
    if shards[0].world_size > 1:
        _, is_known = are_alike(words, is_known)
        if not is_known:
            check_equal('layer', words, agree(words))
            raise_together(error)
    elif error is not None:
        raise error
    if found is None or not is_known:
        known.pop(words, None)  # the new one is the latest
        found = known[words] = Decisions(local)
    return found


def _state_of(
    conv: MessagePassing, options: Options, shards: list[Shard], values: Iterable[Any]
) -> tuple[str, tuple[Any, ...]]:
    """What a forward is decided by: what must be alike on all ranks, in words, and a rank's own.

    The second asks for new decisions where it changes: numbers and words that the conv and its
    modules hold, functions and hooks by identity.
    """
    words = [name_of(conv), str(options), *(shard.fingerprint for shard in shards)]
    words.append(
        f'gradients {torch.is_grad_enabled()}, inference {torch.is_inference_mode_enabled()}'
    )
    own: list[Any] = []
    for path, module in conv.named_modules():
        table = vars(module)
        own.append(table['training'])
        if not table['training']:
            words.append(f"'{path}' in evaluation")
        for name, value in table.items():
            if isinstance(value, PLAIN):
                own.append((name, value))
            elif name.endswith('_hooks') and value and 'state_dict' not in name:
                hooks = list(value.values())
                own.append((name, *map(id, hooks)))
                if name.startswith(_MESSAGE_HOOKS):
                    called = (getattr(h, '__qualname__', type(h).__qualname__) for h in hooks)
                    words.append(f"{name[1:]} of '{path}': {', '.join(called)}")
        if isinstance(module, MessagePassing):
            own += [id(table[name]) for name in _FUNCTIONS if name in table]
            own.append(id(module.aggr_module))
    words += _kinds(values)
    return '; '.join(words), tuple(own)


def _kinds(values: Iterable[Any]) -> Iterator[str]:
    """Kind, dtype and need of a gradient of every tensor among a forward's arguments."""
    for value in values:
        if isinstance(value, (ShardEdgeIndex, EdgeIndex)):
            yield 'edges'
        elif isinstance(value, Tensor):
            needs = value.requires_grad and torch.is_grad_enabled()
            yield f'{value.dtype} in {value.dim()} dimensions' + ', with gradient' * needs
        elif isinstance(value, Mapping):
            yield from map(str, value)
            yield from _kinds(value.values())
        elif isinstance(value, (tuple, list)):
            yield from _kinds(value)


def _check_has_features(conv: MessagePassing, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError where PyG's own convs are given None for ``x``.

    RGCNConv then learns a row per node, which it numbers from 0 on, and a rank would number its
    own. Convs on points do without ``x``.
    """
    is_pygs = plain_class(conv).__module__.startswith('torch_geometric.')
    x = arguments.get('x', ())
    is_missing = x is None or (isinstance(x, (tuple, list)) and len(x) > 0 and x[0] is None)
    if is_missing and is_pygs and 'pos' not in arguments:
        of_ids = '; RGCNConv also takes the ids of the own nodes, data.n_id'
        raise ValueError(
            f"expected features in 'x' of {name_of(conv)} (got None): nodes without features get "
            f'rows of their own by pyg_sar.NodeEmbedding(data, width)()'
            + of_ids
            * isinstance(conv, RGCNConv)
        )


def _check_inputs(
    conv: MessagePassing, shard: Shard, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Checks the rows of ``x`` and of edge tensors among the arguments of a conv's forward.

    Raises:
        ValueError: If ``x`` does not have one row per own node, or a tensor whose name begins with
            ``edge_`` not one per edge.
    """
    try:
        forward = inspect.signature(plain_class(conv).forward)
        arguments = forward.bind(conv, *args, **kwargs).arguments
    except TypeError:
        return  # the conv itself says it best
    handles = [v for v in arguments.values() if isinstance(v, ShardEdgeIndex)]
    x = arguments.get('x')
    _check_has_features(conv, arguments)
    # A relation under another name may be an incidence, along which messages go there and back.
    if shard.is_bipartite and isinstance(x, Tensor) and 'edge_index' in arguments:
        raise ValueError(
            f"expected a pair (x_src, x_dst) for 'x' of {name_of(conv)}, as its edges run "
            f'between two sets of nodes (got a tensor of shape {tuple(x.shape)})'
        )
    own = shard.num_own, shard.num_dst
    for tensor, rows in zip(x if isinstance(x, (tuple, list)) else [x], own, strict=False):
        if not isinstance(tensor, Tensor) or not handles:  # rows say themselves whose they are
            continue
        dims = {0, conv.node_dim} if tensor.dim() > 1 else {0}
        if rows not in {tensor.size(d) for d in dims if -tensor.dim() <= d < tensor.dim()}:
            raise ValueError(
                f"expected one row per own node in 'x' of {name_of(conv)}: {rows} "
                f'rows (got shape {tuple(tensor.shape)})'
            )
    if len(handles) != 1:
        return
    num_edges = handles[0].size(1)
    for name, value in arguments.items():
        if (
            name.startswith('edge_')
            and isinstance(value, Tensor)
            and not isinstance(value, ShardEdgeIndex)
            and value.shape[:1] != (num_edges,)
        ):
            raise ValueError(
                f"expected one row per edge in '{name}' of {name_of(conv)}: {num_edges} rows "
                f'(got shape {tuple(value.shape)})'
            )

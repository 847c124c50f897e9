"""The start of a forward on a cut graph, before the conv computes anything.

Ranks agree on how a call of message passing is computed, and keep to it. That holds for one state
of the conv: its hooks, its training mode, its numbers and the kinds of its inputs. If one rank
registers a hook and the others do not, it would decide anew while they wait for its rows. So every
forward begins with an all-reduce of one number, which tells whether what must be alike is the same
on all ranks, and whether one of them has to decide anew.

Only ``propagate`` shows for certain which role a tensor has. But a conv may fail before it gets
there, on the one rank whose input is wrong. So what the names of arguments tell is checked here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, RGCNConv

from pyg_sar.comm import agree, are_alike, check_equal, raise_together
from pyg_sar.conv.around.patching import Forms
from pyg_sar.conv.around.state import words_of_modules
from pyg_sar.conv.call.plans import CallPlan
from pyg_sar.conv.exchanges import exchange_of, shards_of
from pyg_sar.conv.names import name_of, plain_class
from pyg_sar.conv.options import Options
from pyg_sar.conv.substitutes import special_forms
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import plainly
from pyg_sar.scoped import Scoped
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard


@dataclass(eq=False)
class LayerPlan:
    """What the ranks have agreed on for one kind of forward of a layer."""

    kind: tuple[Any, ...]  # of forward
    state: list[Any]  # of the conv on this rank
    words: str  # both, as far as they must be alike on all ranks
    # The convs inside the conv, with their paths.
    paths: Mapping[MessagePassing, str] = field(default_factory=dict)
    forms: Forms = field(default_factory=special_forms)
    # How each kind of call is computed, in the conv or a conv inside it.
    calls: dict[Any, CallPlan] = field(default_factory=dict)
    # The tensors with one row per edge, where edges have to be turned round.
    turned: dict[Any, list[str]] = field(default_factory=dict)
    # The arguments of functions of convs.
    names: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    # Whose rows each of the arguments has, where they are own rows; see rows_of_call.
    spaces: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Forward:
    """A forward of a layer on a cut graph, or a call of its ``propagate`` from outside of one."""

    conv: MessagePassing
    plan: LayerPlan
    options: Options
    in_forward: bool  # whether the conv's own forward takes what propagate returns

    def path_of(self, conv: MessagePassing) -> str | None:
        """Where a conv is in the layer; None if it is not."""
        return '' if conv is self.conv else self.plan.paths.get(conv)


running: Scoped[Forward | None] = Scoped(None)
"""The innermost forward in this thread."""


def plan_for(
    conv: MessagePassing,
    options: Options,
    state: list[Any],
    edges: list[EdgeIndex | ShardEdgeIndex],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: dict[str, LayerPlan],
    *,
    in_forward: bool,
) -> LayerPlan:
    """What the ranks have agreed on for a forward like this one; a new plan is added to `known`.

    Collective: an all-reduce of one number; where a rank has not seen such a forward, or the conv
    has changed since, an all-gather.

    Raises:
        ValueError: If a shard is not this rank's. On all ranks, if the forwards differ, or the
            inputs of one are wrong.
    """
    shards = shards_of(edges)
    for shard in shards:
        exchange_of(shard, options.prefetch, options.exchange_dtype)
    kind = (
        in_forward,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *[shard.fingerprint for shard in shards],
    )
    with plainly():
        kinds: list[Any] = _kinds([*args, *kwargs.values()])
    kind += tuple(kinds)
    plan = next((p for p in known.values() if p.kind == kind and p.state == state), None)
    error = None
    try:
        if plan is None:
            _check_not_explained(conv)
        # Rows say themselves whose they are.
        is_told = plan is not None and all(isinstance(each, EdgeIndex) for each in edges)
        if len(shards) == 1 and not is_told:
            _check_inputs(conv, shards[0], args, kwargs)
    except ValueError as wrong:
        error = wrong
    words = _words(conv, options, kind) if plan is None else plan.words
    is_known = plan is not None and error is None
    if shards[0].world_size > 1:
        _, is_known = are_alike(words, is_known)
        if not is_known:
            check_equal('layer', words, agree(words))
            raise_together(error)
    elif error is not None:
        raise error
    if plan is None or not is_known:
        known.pop(words, None)  # the new one is the latest
        convs = ((m, p) for p, m in conv.named_modules() if isinstance(m, MessagePassing) and p)
        plan = known[words] = LayerPlan(kind, state, words, dict(convs))
    return plan


def _kinds(values: Iterable[Any]) -> list[Any]:
    """Kind, dtype and need of a gradient of every tensor among a forward's arguments."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, (ShardEdgeIndex, EdgeIndex)):
            found.append('edges')
        elif isinstance(value, Tensor):
            needs_grad = value.requires_grad and torch.is_grad_enabled()
            found.append((value.dtype, value.dim(), needs_grad))
        elif isinstance(value, Mapping):
            found += [*map(str, value), *_kinds(value.values())]
        elif isinstance(value, (tuple, list)):
            found += _kinds(value)
        elif value is None:
            found.append(None)
    return found


def _words(conv: MessagePassing, options: Options, kind: tuple[Any, ...]) -> str:
    in_forward, with_gradients, in_inference, *kinds = kind
    words = [name_of(conv), str(options)]
    words.append(f'gradients {with_gradients}, inference {in_inference}')
    if not in_forward:
        words.append('called from outside of forward')
    words += words_of_modules(conv)
    for each in kinds:
        if isinstance(each, tuple):
            dtype, dims, needs_grad = each
            words.append(f'{dtype} in {dims} dimensions' + ', with gradient' * needs_grad)
        elif each is not None:
            words.append(each)
    return '; '.join(words)


@cache
def signature_of(forward: Any) -> inspect.Signature:
    """Of a conv's forward."""
    return inspect.signature(forward)


def _check_not_explained(conv: MessagePassing) -> None:
    for module in conv.modules():
        if isinstance(module, MessagePassing) and module.explain:
            raise ValueError(
                f'{name_of(module)} cannot be explained on a cut graph: explain the model on a '
                'plain graph, such as the neighbourhood of a node (k_hop_subgraph), with its '
                'weights or on one process'
            )


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
        forward = signature_of(plain_class(conv).forward)
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

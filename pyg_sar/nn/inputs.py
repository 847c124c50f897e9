"""Checks a forward's inputs by their names, before the conv computes anything.

Only ``propagate`` shows for certain which role a tensor has. But a conv may fail before that, on
the one rank whose input is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing, RGCNConv

from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.registry import signature_of
from pyg_sar.utils.class_swap import name_of, plain_class


def check_not_explained(conv: MessagePassing) -> None:
    """Raises a ValueError if a conv in it is explained."""
    for module in conv.modules():
        if isinstance(module, MessagePassing) and module.explain:
            raise ValueError(
                f'{name_of(module)} of a wrapped model cannot be explained on a cut graph, as an '
                'explainer masks all edges at once: write plain.load_state_dict(model.state_dict())'
                ' and explain that model, which pyg_sar.DistributedDataParallel does not know'
            )


def _check_has_features(conv: MessagePassing, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError where PyG's own convs get None for ``x``.

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


def check_inputs(
    conv: MessagePassing, edges: EdgeIndex, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raises a ValueError if ``x`` or a tensor of edges among a forward's arguments is wrong."""
    try:
        arguments = signature_of(plain_class(conv).forward).bind(conv, *args, **kwargs).arguments
    except TypeError:
        return  # the conv itself says it best
    x, ends = arguments.get('x'), edges.ends
    _check_has_features(conv, arguments)
    # A relation under another name may be an incidence, along which messages go there and back.
    if ends.shard.is_bipartite and isinstance(x, Tensor) and 'edge_index' in arguments:
        raise ValueError(
            f"expected a pair (x_src, x_dst) for 'x' of {name_of(conv)}, as its edges run "
            f'between two sets of nodes (got a tensor of shape {tuple(x.shape)})'
        )
    nodes = [ends.src.total, ends.dst.total]
    if edges.handle.is_flipped:
        nodes.reverse()
    # Against the edges a pair goes by their rows or by the way of the messages.
    others = set() if conv.flow == 'source_to_target' else set(nodes)
    for tensor, rows in zip(x if isinstance(x, (tuple, list)) else [x], nodes, strict=False):
        fitting = {rows, *others}
        if type(tensor) is Tensor and fitting.isdisjoint([*tensor.shape[:1], *_size(tensor, conv)]):
            raise ValueError(
                f"expected one row per node in 'x' of {name_of(conv)}: {rows} rows (got shape "
                f'{tuple(tensor.shape)})'
            )
    num_edges = edges._space.total
    for name, value in arguments.items():
        is_of_edges = name.startswith('edge_') and type(value) is Tensor
        if is_of_edges and 'index' not in name and value.shape[:1] != (num_edges,):
            raise ValueError(
                f"expected one row per edge in '{name}' of {name_of(conv)}: {num_edges} rows "
                f'(got shape {tuple(value.shape)})'
            )


def _size(tensor: Tensor, conv: MessagePassing) -> list[int]:
    dim = int(conv.node_dim)
    return [tensor.size(dim)] if -tensor.dim() <= dim < tensor.dim() else []

"""Checks what a conv is called with, before it computes anything.

Only ``propagate`` shows for certain which role a tensor has. But a conv may fail before it gets
there, on the one rank whose input is wrong. So forward checks at its beginning what the names of
arguments tell.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.conv.names import name_of, plain_class
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard


def check_inputs(
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
    # A relation under another name may be an incidence, along which messages go there and back.
    if shard.is_bipartite and isinstance(x, Tensor) and 'edge_index' in arguments:
        raise ValueError(
            f"expected a pair (x_src, x_dst) for 'x' of {name_of(conv)}, as its edges run "
            f'between two sets of nodes (got a tensor of shape {tuple(x.shape)})'
        )
    own = shard.num_own, shard.num_dst
    for tensor, rows in zip(x if isinstance(x, (tuple, list)) else [x], own, strict=False):
        if isinstance(tensor, Tensor) and rows not in _node_sizes(conv, tensor):
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


def _node_sizes(conv: MessagePassing, x: Tensor) -> set[int]:
    """Sizes of the dimensions that may be the nodes'."""
    dims = {0, conv.node_dim} if x.dim() > 1 else {0}
    return {x.size(dim) for dim in dims if -x.dim() <= dim < x.dim()}

"""Hooks inside message passing see what they see on one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_graphs import assemble, assert_close
from torch import Tensor
from torch_geometric.nn import (
    GATConv,
    SAGEConv,
)

from pyg_sar import SARConv, load_shard


def _hook(kind: str) -> Callable[..., Any]:
    """Changes what it is given; a hook of the message works edge by edge."""
    if kind == 'propagate_forward_pre_hook':
        return lambda _, args: (*args[:2], {**args[2], 'x': (args[2]['x'][0].sin(), None)})
    if kind == 'message_forward_pre_hook':
        return lambda _, args: ({'x_j': args[0]['x_j'].cos()},)
    return lambda _, args, out: out * 2 + 1


def _hooked(root: str, kind: str, on_wrapper: bool) -> tuple[Tensor, Tensor]:
    data = load_shard(root)
    torch.manual_seed(0)
    plain = SAGEConv(6, 4).double()
    conv = SARConv(plain)
    getattr(conv if on_wrapper else plain, f'register_{kind}')(_hook(kind))
    return data.n_id, conv(data.x, data.edge_index).detach()


@pytest.mark.parametrize('on_wrapper', [False, True])
@pytest.mark.parametrize(
    'kind',
    [
        'propagate_forward_pre_hook',
        'propagate_forward_hook',
        'message_forward_pre_hook',
        'message_forward_hook',
        'aggregate_forward_hook',
    ],
)
def test_hooks(graph, root, kind, on_wrapper):
    torch.manual_seed(0)
    plain = SAGEConv(6, 4).double()
    getattr(plain, f'register_{kind}')(_hook(kind))
    want = plain(graph.x, graph.edge_index).detach()
    assert not torch.allclose(want, SAGEConv(6, 4).double()(graph.x, graph.edge_index))
    assert_close(assemble(run_ranks(_hooked, 3, root, kind, on_wrapper), 40), want)


def test_hooks_of_edge_updates(graph, root):
    """They see the arguments and the result of all edges."""
    data = load_shard(root)
    called = []
    conv = SARConv(GATConv(6, 4, add_self_loops=False).double())
    conv.register_edge_update_forward_pre_hook(lambda _, args: called.append(len(args)))
    conv.register_edge_update_forward_hook(lambda _, args, out: called.append(out.size(0)))
    conv(data.x, data.edge_index)
    assert called == [3, graph.num_edges]


def test_explaining(root):
    data = load_shard(root)
    plain = SAGEConv(6, 4).double()
    conv = SARConv(plain)
    plain.explain = True
    with pytest.raises(ValueError, match='SAGEConv cannot be explained'):
        conv(data.x, data.edge_index)

"""What cannot be computed on a cut graph yet, each with its reason, checked at construction."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch_geometric.nn import MessagePassing, norm

from pyg_sar.utils.class_swap import name_of, plain_class
from pyg_sar.utils.dry_run import is_of_user

_REASONS = {
    'its message runs inside a closed CUDA kernel': (
        'CuGraphGATConv CuGraphRGCNConv CuGraphSAGEConv FusedGATConv'
    ),
    'its message pairs edges by their place, four at a time': 'MeshCNNConv',
    'it samples random walks over the whole graph': 'MetaPath2Vec Node2Vec',
    'it multiplies adjacency matrices': 'PANConv',
    'it follows events in time, not one graph': 'RENet TGNMemory',
    'it reads scores of all pairs of nodes: give every rank the graph and its share of the pairs, '
    "in torch's DistributedDataParallel": 'LPFormer',
}

REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Classes of torch_geometric.nn that use rows where no rule sees it, with the reason."""


_STATISTICS_MODULES = (
    torch.nn.BatchNorm1d.__mro__[-3],  # of all norms of batches, above Module
    norm.DiffGroupNorm,
    norm.GraphNorm,
    norm.GraphSizeNorm,
    norm.HeteroBatchNorm,
    norm.InstanceNorm,
    norm.MeanSubtractionNorm,
    norm.PairNorm,
)

_BLOCK_LOCAL_ARGS = ('adj_t', 'ptr_j')
_EDGES = ('edge_index', 'size')


def reads_edges(conv: MessagePassing, function: str) -> bool:
    """Whether ``message`` with its aggregation, or ``edge_update``, reads the edge_index itself."""
    functions = ('message', 'aggregate') if function == 'message' else (function,)
    names = {name for f in functions for name in conv.inspector.get_param_names(f)}
    return not names.isdisjoint(_EDGES)


def has_hooks_inside(conv: MessagePassing) -> bool:
    """Whether a program has put forward hooks on modules of a conv, or on its message."""
    tables = [
        table
        for module in {*conv.modules()} - {conv}
        for table in (module._forward_pre_hooks, module._forward_hooks)
    ]
    tables += [
        getattr(conv, f'_{step}_forward_{kind}')
        for step in ('message', 'aggregate')
        for kind in ('hooks', 'pre_hooks')
    ]
    return any(is_of_user(hook) for table in tables for hook in table.values())


def takes_statistics(module: torch.nn.Module) -> bool:
    """Whether a module's result on one row depends on the other rows."""
    if isinstance(module, norm.LayerNorm):
        return module.mode == 'graph'
    return isinstance(module, _STATISTICS_MODULES)


def refuse_tracing(module: torch.nn.Module) -> NoReturn:
    """Raises for torch.jit.trace, on all ranks alike, before they communicate."""
    raise ValueError(
        f'torch.jit.trace cannot follow {name_of(module)} on a graph that is cut (got rows of all '
        'ranks): trace the plain model on plain tensors, on one machine; model.state_dict() has '
        'its keys'
    )


def why_refused(module: torch.nn.Module) -> str | None:
    """Why a conv or a module inside it cannot be wrapped, as the end of a sentence, or None."""
    cls = plain_class(module)
    for base in cls.__mro__:
        if base.__module__.startswith('torch_geometric.') and base.__name__ in REFUSED:
            return REFUSED[base.__name__]
    if not isinstance(module, MessagePassing):
        return None
    if module.decomposed_layers != 1:
        return 'it computes its channels in parts: write decomposed_layers=1'
    for base in cls.__mro__:
        if base is MessagePassing:
            break
        for method in ('propagate', 'edge_updater'):
            own = base.__dict__.get(method)
            # PyG replaces it on the class by one it generates in a module of that name.
            if own is not None and not own.__module__.endswith(f'_{method}'):
                return f"it overrides '{method}'"
    for function in ('message', 'aggregate', 'edge_update', 'update'):
        for arg in module.inspector.get_param_names(function):
            of_edges = arg in (*_EDGES, 'edge_index_j')
            if arg in _BLOCK_LOCAL_ARGS or (function == 'update' and of_edges):
                return f"its '{function}' reads '{arg}', which is a block's own here"
            of_edges = arg == 'index' or (arg[-2:] in ('_i', '_j') and arg[:-2] != 'size')
            if function == 'update' and of_edges:
                return f"its 'update' reads '{arg}', one row per edge"
    return None

"""Transforms of PyG, applied to the whole graph before it is cut."""

from __future__ import annotations

import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.sources.named_class import named_class


def transformed(data: Data | HeteroData, text: str, *, seed: int = 0) -> Data | HeteroData:
    """The graph after a transform.

    Args:
        data: The whole graph; features that are mapped are read into memory.
        text: A class of torch_geometric.transforms or the path of another, with its arguments by
            name: ``'NormalizeFeatures'``, ``'AddRandomWalkPE(walk_length=20)'``,
            ``'my_module.MyTransform'``.
        seed: Seed of torch's random numbers, for transforms that draw some.

    Raises:
        ValueError: If there is no such class, it takes other arguments, it fails on this graph, or
            it does not give one graph.
    """
    cls, options = named_class(text, 'torch_geometric.transforms')
    torch.manual_seed(seed)
    try:
        out = cls(**options)(data)
    except Exception as error:  # of any transform, on any graph
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(f"could not apply the transform '{text}' (got {reason})") from error
    if not isinstance(out, (Data, HeteroData)):
        raise ValueError(f"expected one graph from '{text}' (got {type(out).__name__})")
    return out

"""Transforms of PyG, applied to the whole graph before it is cut."""

from __future__ import annotations

import importlib
import re

import torch
from torch_geometric import transforms
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.sources.datasets import keyword_arguments

_CALL = re.compile(r'((?:[A-Za-z_]\w*\.)*)([A-Za-z_]\w*)(?:\((.*)\))?')


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
    found = _CALL.fullmatch(text)
    if found is None:
        raise ValueError(
            f"expected a transform such as 'AddRandomWalkPE(walk_length=20)' (got '{text}')"
        )
    module, name = found[1][:-1], found[2]
    try:
        cls = getattr(importlib.import_module(module) if module else transforms, name, None)
    except ImportError as error:
        raise ValueError(f"expected a transform in '{text}' (got {error})") from error
    if cls is None:
        where = module or 'torch_geometric.transforms'
        raise ValueError(f"expected a transform of {where} (got '{name}')")
    options = keyword_arguments(found[3] or '', text)
    torch.manual_seed(seed)
    try:
        out = cls(**options)(data)
    except Exception as error:  # of any transform, on any graph
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(f"could not apply the transform '{text}' (got {reason})") from error
    if not isinstance(out, (Data, HeteroData)):
        raise ValueError(f"expected one graph from '{text}' (got {type(out).__name__})")
    return out

"""Classes that a command line names, with their arguments: datasets, and transforms of a graph."""

from __future__ import annotations

import ast
import importlib
import re
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

_CALL = re.compile(r'((?:[A-Za-z_]\w*\.)*)([A-Za-z_]\w*)(?:\((.*)\))?')


def named_class(text: str, module: str, kind: type = object) -> tuple[type[Any], dict[str, Any]]:
    """The class that a text names, and the arguments that it gives.

    Args:
        text: ``'Class'``, ``'module.Class'`` or ``'module.Class(name=Cora, num_nodes=100)'``.
        module: Where a class without a module is.
        kind: What it must be a subclass of.

    Raises:
        ValueError: If there is no such class, or the arguments are not literals by name.
    """
    found = _CALL.fullmatch(text)
    what = 'a class' if kind is object else f'a subclass of {kind.__name__}'
    if found is None:
        raise ValueError(f"expected a class such as 'module.Class(name=Cora)' (got '{text}')")
    try:
        cls = getattr(importlib.import_module(found[1][:-1] or module), found[2], None)
    except ImportError as error:
        raise ValueError(f"expected {what} in '{text}' (got {error})") from error
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        got = 'nothing of that name' if cls is None else repr(cls)
        raise ValueError(f"expected {what} in '{text}' (got {got})")
    return cls, _keyword_arguments(found[3] or '', text)


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


def _keyword_arguments(text: str, name: str) -> dict[str, Any]:
    """Keyword arguments; their values are literals, or words that stand for strings."""
    try:
        call = ast.parse(f'f({text})', mode='eval').body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError('arguments without a name')
        named = {str(keyword.arg): keyword.value for keyword in call.keywords}
        return {
            k: v.id if isinstance(v, ast.Name) else ast.literal_eval(v) for k, v in named.items()
        }
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"expected arguments such as (name=Cora, num_nodes=100) in '{name}' (got {error})"
        ) from error

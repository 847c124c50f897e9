"""Classes that a command line names, with their arguments: datasets, and transforms of a graph."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, Dataset, HeteroData

_CLASS = re.compile(r'([A-Za-z_]\w*\.)+[A-Z]\w*(\(.*\))?')


def is_class(name: str) -> bool:
    """Whether a name is that of a class in a module: 'graph.csv' is a file that is not there."""
    return _CLASS.fullmatch(name) is not None


def named_class(text: str, module: str, kind: type = object) -> tuple[type[Any], dict[str, Any]]:
    """The class that a text names, a subclass of `kind`, and its arguments; words are strings.

    Such as ``'Class'``, of `module`, or ``'module.Class(name=Cora, num_nodes=100)'``.
    """
    try:
        named: Any = ast.parse(text, mode='eval').body
        call = named if isinstance(named, ast.Call) else ast.Call(named, [], [])
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError('arguments without a name')
        values = {str(keyword.arg): keyword.value for keyword in call.keywords}
        options = {
            k: v.id if isinstance(v, ast.Name) else ast.literal_eval(v) for k, v in values.items()
        }
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            "expected a class such as 'module.Class', with arguments such as (name=Cora, "
            f"num_nodes=100) (got '{text}': {error})"
        ) from error
    home, _, name = ast.unparse(call.func).rpartition('.')
    try:
        of = importlib.import_module(home or module)
        cls = getattr(of, name, None)
        alike = {name.lower(): name for name in dir(of)}
        near = difflib.get_close_matches(name.lower(), alike, 1)
        hint = f'; do you mean {alike[near[0]]}?' if near else f' in {home or module}'
        got = f'nothing of that name{hint}' if cls is None else repr(cls)
    except ImportError as error:
        cls, got = None, str(error)
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        what = 'a class' if kind is object else f'a subclass of {kind.__name__}'
        raise ValueError(f"expected {what} in '{text}' (got {got})")
    return cls, options


def transformed(data: Data | HeteroData, text: str, *, seed: int = 0) -> Data | HeteroData:
    """The graph after a transform; what it writes to mapped features stays in memory.

    `text` is a class of torch_geometric.transforms or the path of another, with its arguments by
    name: ``'NormalizeFeatures'``, ``'AddRandomWalkPE(walk_length=20)'``,
    ``'my_module.MyTransform'``. `seed` is for transforms that draw numbers.
    """
    cls, options = named_class(text, 'torch_geometric.transforms')
    torch.manual_seed(seed)
    try:
        out: Any = cls(**options)(data)
    except Exception as error:  # of any transform, on any graph
        raise ValueError(f"could not apply the transform '{text}' {_got(error)}") from error
    if not isinstance(out, (Data, HeteroData)):
        raise ValueError(f"expected one graph from '{text}' (got {type(out).__name__})")
    return out


def load_class(name: str, root: Path) -> Data | HeteroData:
    """The graph of a dataset class of PyG, whose files lie or come to lie in `root`."""
    cls, options = named_class(name, 'torch_geometric.datasets', Dataset)
    if 'root' in inspect.signature(cls).parameters:
        options.setdefault('root', str(root / cls.__name__))
    try:
        dataset: Any = cls(**options)
        graphs = len(dataset)
        data: Any = dataset[0] if graphs else None
    except Exception as error:  # of the dataset, of a download, of a file: anything
        where = f"; its files belong in '{options['root']}'" if 'root' in options else ''
        raise ValueError(f"could not load '{name}'{where} {_got(error)}") from error
    if graphs != 1:
        raise ValueError(f"expected a dataset of one graph in '{name}' (got {graphs} graphs)")
    if not isinstance(data, (Data, HeteroData)):
        raise ValueError(f"expected a Data or HeteroData in '{name}' (got {type(data).__name__})")
    y = data.get('y') if isinstance(data, Data) else None
    if isinstance(y, torch.Tensor) and not y.is_floating_point() and 'num_classes' not in data:
        data.num_classes = int(dataset.num_classes)
    return data


def _got(error: Exception) -> str:
    return f'(got {" ".join(f"{type(error).__name__}: {error}".split())})'

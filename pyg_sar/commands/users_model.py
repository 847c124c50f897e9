"""What a user names in a Python file: a model, or a function that runs one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData


def named(text: str) -> Any:
    """What ``FILE.py:NAME`` names."""
    file, _, name = text.rpartition(':')
    path = Path(file)
    if path.suffix != '.py' or not name:
        raise ValueError(f"expected FILE.py:NAME, such as train.py:make_model (got '{text}')")
    if not path.is_file():
        raise FileNotFoundError(f'no such file: {path}')
    module = sys.modules.get(path.stem)
    known = None if module is None else getattr(module, '__file__', None)
    if known is None or Path(known).resolve() != path.resolve():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # PyG looks for a conv's module by its name
        sys.path.insert(0, str(path.parent.resolve()))
        spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"expected '{name}' in {path} (got a file without it)")
    return getattr(module, name)


def made_model(text: str) -> torch.nn.Module:
    """The model that ``FILE.py:NAME`` names, or that a function or a class of that name gives."""
    value = named(text)
    model = value if isinstance(value, torch.nn.Module) else None
    if model is None and callable(value):
        model = value()
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"expected a model, or what makes one, in '{text}' (got {type(model)})")
    return model


def run_model(model: torch.nn.Module, data: Data | HeteroData) -> Any:
    """What a model gives for the features and edges of data."""
    if isinstance(data, HeteroData):
        return model(data.x_dict, data.edge_index_dict)
    return model(data.x, data.edge_index)

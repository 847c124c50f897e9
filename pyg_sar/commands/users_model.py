"""Models and functions of a user's Python file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.commands.command_line import users_files

MODEL = 'FILE.py:NAME of a function without arguments that makes the model, or of a model'
FORWARD = 'FILE.py:NAME of forward(model, data); default: model(data.x, data.edge_index)'


def load_named(text: str) -> Any:
    """The object that ``FILE.py:NAME`` names."""
    file, _, name = text.rpartition(':')
    path = Path(file)
    if path.suffix != '.py' or not name:
        raise ValueError(f"expected FILE.py:NAME, such as train.py:make_model (got '{text}')")
    if not path.is_file():
        raise FileNotFoundError(f'no such file: {path}')
    module = sys.modules.get(path.stem)
    loaded_file = None if module is None else getattr(module, '__file__', None)
    if loaded_file is None or Path(loaded_file).resolve() != path.resolve():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        users_files.add(str(module.__file__))
        sys.modules[path.stem] = module  # PyG looks for a conv's module by its name
        sys.path.insert(0, str(path.parent.resolve()))
        spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"expected '{name}' in {path} (got a file without it)")
    return getattr(module, name)


def load_model(text: str) -> torch.nn.Module:
    """The model that ``FILE.py:NAME`` names, or the result of a function or class of that name."""
    model = load_named(text)
    if not isinstance(model, torch.nn.Module) and callable(model):
        model = model()
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"expected a model, or what makes one, in '{text}' (got {type(model)})")
    return model


def run_model(model: torch.nn.Module, data: Data | HeteroData) -> Any:
    """The result of a model for the features and edges of data."""
    if isinstance(data, HeteroData):
        return model(data.x_dict, data.edge_index_dict)
    return model(data.x, data.edge_index)

"""What a user names in a Python file, and the weights of a model."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from pyg_sar.checkpoint import load_checkpoint
from pyg_sar.shard.format.tensor_file import load_plain


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


def made_model(named_so: Any, what: str) -> torch.nn.Module:
    """The model that a name stands for: itself, or what a function or a class gives."""
    model = named_so if isinstance(named_so, torch.nn.Module) else None
    if model is None and callable(named_so):
        model = named_so()
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"expected a model, or what makes one, in '{what}' (got {type(model)})")
    return model


def set_weights(model: torch.nn.Module, path: Path) -> None:
    """Sets the weights of a model: a file's ``state_dict``, or those of the newest checkpoint."""
    if path.is_dir():
        if load_checkpoint(path, model) is None:
            raise ValueError(f'expected a checkpoint in {path} (got none)')
        return
    if not path.exists():
        raise FileNotFoundError(f'no such file: {path}')
    try:
        state = load_plain(path)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'expected a state_dict in {path} (got: {reason})') from error
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise ValueError(f'expected a state_dict in {path} (got a {type(state).__name__})')
    consume_prefix_in_state_dict_if_present(state, 'module.')
    try:
        model.load_state_dict(state)
    except (RuntimeError, AttributeError) as error:
        raise ValueError(f'the weights in {path} do not fit the model: {error}') from error

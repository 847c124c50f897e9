"""The weights of a model, out of a file or a checkpoint."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from pyg_sar.checkpoint import load_checkpoint
from pyg_sar.shard.format.tensor_file import load_plain


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

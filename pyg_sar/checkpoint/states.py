"""A training run as one flat dict of tensors and plain values, and back.

==========================  ======================================================================
``model.<key>``             the plain model's ``state_dict()``
``optimizer.<i>.<name>``    tensors of the optimizer's state of parameter i
``training``                all the rest: one dict of plain values, among them the random states of
                            all ranks
==========================  ======================================================================

The state of a data-parallel run is the same on all ranks, so nothing in it depends on how many
there are, apart from the random states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from pyg_sar.ddp import DistributedDataParallel

MODEL, OPTIMIZER, TRAINING = 'model.', 'optimizer.', 'training'


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside DistributedDataParallel, ours or torch's."""
    kinds = DistributedDataParallel, torch.nn.parallel.DistributedDataParallel
    return model.module if isinstance(model, kinds) else model


def model_state(model: torch.nn.Module) -> dict[str, Any]:
    """Under the keys of the plain PyG model."""
    return {f'{MODEL}{key}': value for key, value in plain_model(model).state_dict().items()}


def set_model_state(model: torch.nn.Module, saved: dict[str, Any]) -> None:
    """Loads what :func:`model_state` has told."""
    state = {k.removeprefix(MODEL): value for k, value in saved.items() if k.startswith(MODEL)}
    plain_model(model).load_state_dict(state)


def optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, one entry each, and the rest.

    Not torch.distributed.checkpoint's ``get_state_dict``: of an optimizer that has made no step it
    makes one, and it leaves out what a scheduler has noted in the parameter groups.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    rest: dict[Any, Any] = {}
    for index, values in state['state'].items():
        if isinstance(index, int) and isinstance(values, dict):
            split = {name: isinstance(value, Tensor) for name, value in values.items()}
            tensors |= {f'{OPTIMIZER}{index}.{n}': values[n] for n, is_in in split.items() if is_in}
            values = {name: value for name, value in values.items() if not split[name]}
        rest[index] = values
    other = {key: value for key, value in state.items() if key != 'state'}
    return tensors, {'class': type(optimizer).__name__, 'state': rest, 'other': other}


def set_optimizer_state(
    optimizer: Optimizer, saved: dict[str, Any], described: dict[str, Any]
) -> None:
    """Loads what :func:`optimizer_state` has told.

    Raises:
        ValueError: If it is of another class, or of other parameters.
    """
    name = type(optimizer).__name__
    if described['class'] != name:
        raise ValueError(f'expected the state of {name} (got {described["class"]})')
    state = {
        index: dict(values) if isinstance(values, dict) else values
        for index, values in described['state'].items()
    }
    for key, tensor in saved.items():
        if key.startswith(OPTIMIZER):
            index, name = key.removeprefix(OPTIMIZER).split('.', 1)
            state[int(index)][name] = tensor
    optimizer.load_state_dict({'state': state, **described['other']})


def check_model(model: torch.nn.Module, metadata: Metadata) -> None:
    """Compares names, shapes and dtypes.

    Raises:
        ValueError: With the first difference between the model and a checkpoint.
    """
    name = type(plain_model(model)).__name__
    saved = {k: v for k, v in metadata.state_dict_metadata.items() if k.startswith(MODEL)}
    for key, value in model_state(model).items():
        short = key.removeprefix(MODEL)
        if key not in saved:
            raise ValueError(f"expected '{short}' of the model, a {name}, in it (got none)")
        found = saved.pop(key)
        if isinstance(value, Tensor) != isinstance(found, TensorStorageMetadata):
            raise ValueError(f"expected '{short}' to be a tensor in both or in neither")
        if not isinstance(found, TensorStorageMetadata) or torch.nn.parameter.is_lazy(value):
            continue
        want = f'{list(value.shape)} {value.dtype}'
        got = f'{list(found.size)} {found.properties.dtype}'
        if got != want:
            raise ValueError(f"expected '{short}' of the model, a {name}, as {want} (got {got})")
    if saved:
        extra = next(iter(saved)).removeprefix(MODEL)
        raise ValueError(f"expected only what the model, a {name}, has (got '{extra}', too)")

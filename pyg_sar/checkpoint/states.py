"""A training run as one flat dict of tensors and plain values, and back.

- ``model.<key>``: the plain model's ``state_dict()``
- ``optimizer.<i>.<name>``: tensors of the optimizer's state of parameter i
- ``training``: all the rest, one dict of plain values, among them the random states of all ranks

Apart from these nothing depends on how many ranks there are.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from pyg_sar.checkpoint.tables import Table
from pyg_sar.ddp import DistributedDataParallel
from pyg_sar.own_rows import OwnRows

MODEL, OPTIMIZER, TRAINING = 'model.', 'optimizer.', 'training'


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside DistributedDataParallel, ours or torch's."""
    kinds = DistributedDataParallel, torch.nn.parallel.DistributedDataParallel
    return model.module if isinstance(model, kinds) else model


def model_state(model: torch.nn.Module) -> dict[str, Any]:
    """Under the keys of the plain PyG model; rows of node embeddings as tables."""
    state = {f'{MODEL}{key}': value for key, value in plain_model(model).state_dict().items()}
    return state | {key: Table.of(weight, weight) for key, weight in embeddings(model).items()}


def embeddings(model: torch.nn.Module) -> dict[str, OwnRows]:
    """The rows of node embeddings, under the keys of the plain PyG model."""
    named = plain_model(model).named_parameters(remove_duplicate=False)
    return {f'{MODEL}{name}': p for name, p in named if isinstance(p, OwnRows)}


def embeddings_of(optimizer: Optimizer) -> dict[int, OwnRows]:
    """Those that an optimizer has, by their numbers in its state."""
    parameters = (p for group in optimizer.param_groups for p in group['params'])
    return {index: p for index, p in enumerate(parameters) if isinstance(p, OwnRows)}


def set_model_state(model: torch.nn.Module, saved: dict[str, Any]) -> None:
    """Loads what :func:`model_state` has told."""
    state = {k.removeprefix(MODEL): value for k, value in saved.items() if k.startswith(MODEL)}
    plain_model(model).load_state_dict(state)


def tables_in(
    metadata: Metadata, model: torch.nn.Module, optimizer: Optimizer | None
) -> dict[str, OwnRows]:
    """What a checkpoint has of node embeddings, by key, with the rows that it is for.

    Raises:
        ValueError: If an optimizer's state of one has another shape.
    """
    found = embeddings(model)
    for index, weight in ({} if optimizer is None else embeddings_of(optimizer)).items():
        want = torch.Size([weight.num_nodes, *weight.shape[1:]])
        for key, described in metadata.state_dict_metadata.items():
            is_of_it = key.startswith(f'{OPTIMIZER}{index}.')
            if is_of_it and isinstance(described, TensorStorageMetadata) and described.size:
                if described.size != want:
                    raise ValueError(f"expected '{key}' as {list(want)} (got {described.size})")
                found[key] = weight
    return found


def optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors, one entry each, those of node embeddings as tables; and the rest.

    Not torch.distributed.checkpoint's ``get_state_dict``: it makes a step of an optimizer that has
    made none, and leaves out what a scheduler has noted in the parameter groups.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Any] = {}
    rest: dict[Any, Any] = {}
    tables = embeddings_of(optimizer)
    for index, values in state['state'].items():
        if isinstance(index, int) and isinstance(values, dict):
            split = {name: isinstance(value, Tensor) for name, value in values.items()}
            for n in (name for name, is_in in split.items() if is_in):
                key, value = f'{OPTIMIZER}{index}.{n}', values[n]
                if index in tables and value.dim() > 0:
                    if value.shape != tables[index].shape:
                        raise ValueError(
                            f"expected '{n}' of {type(optimizer).__name__} to have a row for every "
                            f'own node (got {list(value.shape)} for {list(tables[index].shape)})'
                        )
                    value = Table.of(tables[index], value)
                tensors[key] = value
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
    kind = type(optimizer).__name__
    if described['class'] != kind:
        raise ValueError(f'expected the state of {kind} (got {described["class"]})')
    state = described['state']
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
        is_tensor = isinstance(value, (Tensor, Table))
        if is_tensor != isinstance(found, TensorStorageMetadata):
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


def random_states() -> dict[str, Any]:
    """Of torch (CPU, and the current CUDA device if CUDA is used), NumPy and Python."""
    name, key, *rest = np.random.get_state()  # noqa: NPY002 (what PyG draws from)
    version, internal, gauss = random.getstate()
    states = {
        'torch': torch.get_rng_state(),
        'numpy': (str(name), torch.from_numpy(np.asarray(key, dtype=np.int64)), *rest),
        'python': (version, torch.tensor(internal), gauss),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states['cuda'] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Sets what :func:`random_states` has told."""
    name, key, *rest = states['numpy']
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, internal, gauss = states['python']
    random.setstate((version, tuple(internal.tolist()), gauss))
    torch.set_rng_state(states['torch'])
    if 'cuda' in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states['cuda'])

"""The states of a training run: tensors and plain values, and tables of all nodes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from pyg_sar.checkpoint.row_files import Table
from pyg_sar.nn.node_embedding import NodeEmbedding
from pyg_sar.rows.rows import Rows, plain, tag
from pyg_sar.utils.rng import random_states as states_of_torch
from pyg_sar.utils.rng import set_random_states as set_states_of_torch

State = tuple[dict[str, Any], dict[str, Table]]
"""A dict of tensors and plain values, and the tables that belong to it, by key."""


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside torch's DistributedDataParallel."""
    kind = torch.nn.parallel.DistributedDataParallel
    inner: torch.nn.Module = model.module if isinstance(model, kind) else model
    return inner


def embeddings(model: torch.nn.Module) -> dict[str, Rows]:
    """The rows of node embeddings, under the keys of the plain PyG model."""
    named = plain_model(model).named_parameters(remove_duplicate=False)
    return {name: p for name, p in named if isinstance(p, Rows)}


def embeddings_of(optimizer: Optimizer) -> dict[int, Rows]:
    """The rows of node embeddings that an optimizer has, by their numbers in its state."""
    parameters = (p for group in optimizer.param_groups for p in group['params'])
    return {index: p for index, p in enumerate(parameters) if isinstance(p, Rows)}


def model_state(model: torch.nn.Module) -> State:
    """The state of a model, under the keys of the plain PyG model."""
    own = embeddings(model)
    state = {k: v for k, v in plain_model(model).state_dict().items() if k not in own}
    return state, {f'model.{name}': Table.of(weight, weight) for name, weight in own.items()}


def optimizer_state(optimizer: Optimizer) -> State:
    """The ``state_dict()`` and class; tensors of a node embedding must have all its rows."""
    state, tables, kind = optimizer.state_dict(), dict[str, Table](), type(optimizer).__name__
    for index, weight in embeddings_of(optimizer).items():
        values = state['state'].get(index, {})
        of_rows = {n: v for n, v in values.items() if isinstance(v, Tensor) and v.dim() > 0}
        for name, value in of_rows.items():
            if plain(value).shape != plain(weight).shape:
                raise ValueError(
                    f"expected '{name}' of {kind} to have a row for every node (got "
                    f'{list(value.shape)} for {list(weight.shape)})'
                )
            tables[f'optimizer.{index}.{name}'] = Table.of(weight, value)
        if of_rows:
            state['state'][index] = {n: v for n, v in values.items() if n not in of_rows}
    return {'class': kind, **state}, tables


def graphs(model: torch.nn.Module) -> dict[str, str]:
    """The graph whose nodes each node embedding of a model has, if it was loaded, by its name."""
    named = model.named_modules(remove_duplicate=False)
    return {k: m.graph for k, m in named if isinstance(m, NodeEmbedding) and m.graph is not None}


def check_model(model: torch.nn.Module, saved: dict[str, Any], of_graphs: dict[str, str]) -> None:
    """Raises ValueError with the first difference in names, shapes, dtypes and graphs."""
    inner, left = plain_model(model), dict(saved)
    kind = f'the model, a {type(inner).__name__}'
    for name, value in (inner.state_dict() | embeddings(model)).items():
        if name not in left:
            raise ValueError(f"expected '{name}' of {kind}, in it (got none)")
        got = _form(left.pop(name))
        if not torch.nn.parameter.is_lazy(value) and got != _form(value):
            raise ValueError(f"expected '{name}' of {kind}, as {_form(value)} (got {got})")
    if left:
        raise ValueError(f"expected only what {kind}, has (got '{next(iter(left))}', too)")
    for name, graph in graphs(inner).items():
        if of_graphs.get(name, graph) != graph:
            raise ValueError(
                f"expected rows of the graph {graph} for '{name}' (got some of {of_graphs[name]}, "
                "as 'graph' in META.json names it)"
            )


def _form(value: object) -> str:
    return f'{[*value.shape]} {value.dtype}' if isinstance(value, Tensor) else 'no tensor'


def entry_of(key: str, saved: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The entry of the states that a table belongs to: a dict, and the key in it."""
    kind, entry = key.split('.', 1)
    if kind == 'model':
        return saved['model'], entry
    number, entry = entry.split('.', 1)
    return saved['optimizer']['state'][int(number)], entry


def keep_own_rows(
    model: torch.nn.Module, optimizer: Optimizer | None, saved: dict[str, Any]
) -> None:
    """Leaves own rows alone in tensors of all nodes, where the model has only own rows."""
    entries = [(saved['model'], name, weight) for name, weight in embeddings(model).items()]
    for index, weight in ({} if optimizer is None else embeddings_of(optimizer)).items():
        values = saved['optimizer']['state'].get(index, {})
        of_rows = (n for n, v in values.items() if isinstance(v, Tensor) and v.dim() > 0)
        entries += [(values, name, weight) for name in of_rows]
    for values, name, weight in entries:
        value, space = values[name], weight._space
        if value.shape != weight.shape:
            got = f'{[*weight.shape]} (got {[*value.shape]})'
            raise ValueError(f"expected '{name}' as {got}")
        values[name] = tag(value[space.ids(value.device)].to(weight.device), 0, space)


def set_optimizer_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Loads an :func:`optimizer_state`; raises ValueError if it is of another class."""
    state, kind = dict(saved), type(optimizer).__name__
    if (saved_kind := state.pop('class')) != kind:
        raise ValueError(f'expected the state of {kind} (got {saved_kind})')
    optimizer.load_state_dict(state)


def random_states() -> dict[str, Any]:
    """States of torch (CPU, and the current CUDA device if in use), NumPy and Python."""
    uses_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    name, key, *rest = np.random.get_state()  # noqa: NPY002 (what PyG draws from)
    return {
        'torch': states_of_torch(torch.device('cuda' if uses_gpu else 'cpu')),
        'numpy': (str(name), np.asarray(key).tolist(), *rest),
        'python': random.getstate(),
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Sets :func:`random_states`."""
    has_gpu = len(states['torch']) > 1 and torch.cuda.is_available()
    set_states_of_torch(states['torch'], torch.device('cuda' if has_gpu else 'cpu'))
    np.random.set_state(states['numpy'])  # noqa: NPY002
    random.setstate(states['python'])

"""The states of a training run: tensors and plain values, and tables of all nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pyg_sar.checkpoint.row_files import Table
from pyg_sar.nn.node_embedding import NodeEmbedding
from pyg_sar.rows.rows import Rows, plain, tag
from pyg_sar.utils.rng import random_states as states_of_torch
from pyg_sar.utils.rng import set_random_states as set_states_of_torch


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside torch's DistributedDataParallel."""
    kind = torch.nn.parallel.DistributedDataParallel
    inner: torch.nn.Module = model.module if isinstance(model, kind) else model
    return inner


_HOLDERS = {
    'optimizer': "of one optimizer of torch; the state_dict() of another may go into 'extra'",
    'scheduler': "of one scheduler of torch; the state_dict() of another may go into 'extra'",
    'loader': 'as loaders of pyg_sar have: leave out one whose epochs begin anew',
}


def check_holders(**holders: object) -> None:
    """Raises ValueError for an argument without a ``state_dict()``; None is no argument."""
    for name, holder in holders.items():
        if holder is not None and not hasattr(holder, 'state_dict'):
            kind = type(holder).__name__
            raise ValueError(
                f"expected a state_dict() of '{name}', {_HOLDERS[name]} (got a {kind})"
            )


def embeddings(model: torch.nn.Module) -> dict[str, Rows]:
    """The rows of node embeddings, under the keys of the plain PyG model."""
    named = plain_model(model).named_parameters(remove_duplicate=False)
    return {name: p for name, p in named if isinstance(p, Rows)}


def entries_of_rows(
    model: torch.nn.Module, optimizer: Optimizer | None, held: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], str, Rows]]:
    """The tensors with a row for every node that states have, where the model has own rows.

    Of each its key, the dict that has it, its key there, and the node embedding.
    """
    for name, weight in embeddings(model).items():
        yield f'model.{name}', held['model'], name, weight
    groups = [] if optimizer is None else optimizer.param_groups
    for index, weight in enumerate(p for group in groups for p in group['params']):
        values = held['optimizer']['state'].get(index, {}) if isinstance(weight, Rows) else {}
        for name in [n for n, v in values.items() if isinstance(v, Tensor) and v.dim() > 0]:
            yield f'optimizer.{index}.{name}', values, name, weight


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """The ``state_dict()`` and the class; entries may be taken out of it."""
    state = optimizer.state_dict()
    own = {index: dict(values) for index, values in state['state'].items()}
    return {'class': type(optimizer).__name__, **state, 'state': own}


def table_of(key: str, values: Tensor, weight: Rows, optimizer: Optimizer) -> Table:
    """The table of a node embedding, or of an optimizer's state of it, which has all its rows."""
    if plain(values).shape != plain(weight).shape:
        raise ValueError(
            f"expected '{key.split('.')[-1]}' of {type(optimizer).__name__} to have a row for "
            f'every node (got {list(values.shape)} for {list(weight.shape)})'
        )
    sharding = weight._sharding
    return Table(plain(values).detach(), sharding.ids(weight.device), sharding.total)


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
    for _, values, name, weight in entries_of_rows(model, optimizer, saved):
        value, sharding = values[name], weight._sharding
        if value.shape != weight.shape:
            got = f'{[*weight.shape]} (got {[*value.shape]})'
            raise ValueError(f"expected '{name}' as {got}")
        values[name] = tag(value[sharding.ids(value.device)].to(weight.device), 0, sharding)


def set_optimizer_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Loads an :func:`optimizer_state`; raises ValueError if it is of another class."""
    _check_class(saved['class'], type(optimizer).__name__)
    optimizer.load_state_dict(_without_class(saved))


def scheduler_state(scheduler: LRScheduler) -> dict[str, Any]:
    """The ``state_dict()`` and the class."""
    return {'class': _class_of(scheduler), **scheduler.state_dict()}


def check_scheduler(scheduler: LRScheduler, saved: dict[str, Any]) -> None:
    """Raises ValueError if a :func:`scheduler_state` is of another class."""
    _check_class(saved['class'], _class_of(scheduler))


def set_scheduler_state(scheduler: LRScheduler, saved: dict[str, Any]) -> None:
    """Loads a :func:`scheduler_state`."""
    scheduler.load_state_dict(_without_class(saved))


def _class_of(scheduler: Any) -> str:
    """Its name, with those of the schedulers that it consists of."""
    inner = ', '.join(map(_class_of, getattr(scheduler, '_schedulers', ())))
    return type(scheduler).__name__ + (f'({inner})' if inner else '')


def _without_class(saved: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in saved.items() if key != 'class'}


def _check_class(saved: str, own: str) -> None:
    if saved != own:
        raise ValueError(f'expected the state of {own} (got {saved})')


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

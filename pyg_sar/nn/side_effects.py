"""What a message function leaves behind, and how a conv gets back what it had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from pyg_sar.comm.ranks import world_size
from pyg_sar.nn.intercept import MessageError
from pyg_sar.ops.program import Arguments
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.rows import plainly
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.dry_run import Snapshot
from pyg_sar.utils.installed import missing
from pyg_sar.utils.nested import PLAIN
from pyg_sar.utils.rng import states_of_process

_PLAIN = (*PLAIN, FunctionType, BuiltinFunctionType)


class UndoneSideEffects:
    """While it lasts a function may set attributes of its conv and draw random numbers.

    At the end the conv, its modules, the generators and the program's tensors among the arguments
    are as they were. Then `changed` are the attributes that were set, with their values, and
    `uses_rng` says whether torch drew numbers.
    """

    def __init__(self, conv: torch.nn.Module, arguments: Arguments) -> None:
        self.conv = conv
        self.changed: dict[str, Any] = {}
        self.uses_rng = False
        self._refilled: list[str] = []
        self._whole = arguments.whole
        self._drew: set[str] = set()

    def __enter__(self) -> UndoneSideEffects:
        self._before = dict(vars(self.conv))
        self._snapshot = Snapshot((self.conv, self._whole))
        self._states = states_of_process()
        self._copying = self._snapshot.copying()
        self._copying.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._copying.__exit__(None, None, None)
        self.changed = undo(self.conv, self._before)
        self._refilled = self._snapshot.restore()
        self._drew = self._states()
        self.uses_rng = 'torch' in self._drew

    def edge_attributes(self, is_of_edges: Callable[[Any], bool]) -> tuple[str, ...]:
        """The attributes that were set, each a row for every edge; a MessageError for others."""
        names = tuple(name for name, value in self.changed.items() if is_of_edges(value))
        kept = [*(name for name in self.changed if name not in names), *self._refilled]
        if kept:
            raise MessageError(f"it keeps '{kept[0]}', which has no row for every edge")
        if self._drew - {'torch'}:
            raise MessageError('it draws random numbers by others than torch')
        return names


def undo(conv: torch.nn.Module, before: Mapping[str, Any]) -> dict[str, Any]:
    """Gives a conv the attributes that it had before; returns those that were set since."""
    now, missing = vars(conv), object()
    changed = {k: v for k, v in now.items() if before.get(k, missing) is not v}
    for name in changed:
        if name in before:
            now[name] = before[name]
        else:
            del now[name]
    return changed


def edge_rows(
    conv: torch.nn.Module, changed: dict[str, Any], names: tuple[str, ...], num_edges: int
) -> tuple[Tensor, ...]:
    """The attributes of these names that a conv has set to one row per edge."""
    for name in names:
        value = changed.get(name)
        if not isinstance(value, Tensor) or value.size(0) != num_edges:
            raise ValueError(
                f"expected {name_of(conv)} to set '{name}' to one row per edge in every block"
            )
    return tuple(changed[name] for name in names)


def state_of(
    conv: torch.nn.Module, check: Callable[[], None] | None = None
) -> Callable[[], AbstractContextManager[None]]:
    """Notes parameters, buffers, modules and attributes of a conv and all modules in it.

    Returns a function that makes a context, in which the conv is as it was noted; `check` is called
    there. Objects are the same, by identity; autograd finds a parameter that was changed in place.
    Tensors with a history are left out, which no message reads: they would keep that of every step.
    """
    noted: list[tuple[Any, dict[str, Any]]] = []
    lists = []  # from which recurrent modules read their parameters
    for module in conv.modules():
        own = vars(module)
        noted += [(t, dict(t)) for t in (module._parameters, module._buffers, module._modules) if t]
        with plainly():
            noted.append(
                (own, {k: v for k, v in own.items() if not (isinstance(v, Tensor) and v.grad_fn)})
            )
        if isinstance(module, torch.nn.RNNBase):
            if '_flat_weights' not in own:
                raise missing('torch.nn.RNNBase._flat_weights')
            lists.append((own['_flat_weights'], list(own['_flat_weights'])))

    @contextmanager
    def as_in_forward() -> Iterator[None]:
        changed = []
        others = [list(now) for now, _ in lists]
        for weights, noted_weights in lists:
            weights[:] = noted_weights
        for now, then in noted:
            other = {k: now[k] for k, v in then.items() if k in now and now[k] is not v}
            if other:
                changed.append((now, other))
                now.update({key: then[key] for key in other})
        try:
            if check is not None:
                check()
            yield
        finally:
            for now, other in changed:
                now.update(other)
            for (weights, _), other_weights in zip(lists, others, strict=True):
                weights[:] = other_weights

    return as_in_forward


@contextmanager
def parameters_for_rows(conv: torch.nn.Module) -> Iterator[None]:
    """While it lasts, the parameters of a conv meet plain tensors of own rows."""
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []
    is_cut = world_size() > 1 and torch.is_grad_enabled()
    try:
        for module in conv.modules() if is_cut else ():
            table = cast(dict[str, Any], module._parameters)
            # Recurrent modules have lists of their parameters, too.
            tables = (table, vars(module)) if isinstance(module, torch.nn.RNNBase) else (table,)
            before += [(each, dict(each)) for each in tables]
            for name, p in table.items():
                if p is not None and not is_lazy(p):
                    table[name] = for_rows(p)
        yield
    finally:
        for now, then in before:
            now.update(then)


@lru_cache(maxsize=4096)
def plain_attributes(
    names: tuple[str, ...], kinds: tuple[type, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of a module's attributes, and their classes, the plain ones, and tables of hooks.

    Plain are numbers, words and functions.
    """
    plain = (n for n, kind in zip(names, kinds, strict=True) if issubclass(kind, _PLAIN))
    return tuple(plain), tuple(n for n in names if n.endswith('_hooks') and 'state_dict' not in n)


@contextmanager
def not_saved() -> Iterator[None]:
    """While it lasts, hooks on what autograd saves see nothing.

    A checkpoint compares what a forward saves with what the same forward saves in backward, when
    the ranks have agreed on the call already.
    """
    # A node that keeps its own result, with its history, would never be freed; see recompute.
    with saved_tensors_hooks(_detached, lambda tensor: tensor):
        yield


def _detached(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # they count operations
        return tensor.detach()


def node_of_now() -> Any:
    """A node of the autograd history that is younger than all others; None without gradients."""
    return torch.ones(1, requires_grad=torch.is_grad_enabled()).exp().grad_fn


def leaves_of(
    outputs: Sequence[Tensor], samples: Arguments, first_node: Any
) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
    """Leaves of the outputs' history that are no samples, and for every sample whether it is one.

    A function computed `outputs` from `samples`, right after `first_node` of the history was made.
    """
    leaves: dict[int, Tensor] = {}
    seen: set[Any] = set()
    last_node = node_of_now()
    todo = [t.grad_fn for t in outputs if t.grad_fn is not None]
    for output in outputs:
        if output.requires_grad and output.grad_fn is None:
            leaves[id(output)] = output
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, 'variable', None)
        if variable is not None:
            leaves[id(variable)] = variable
            continue
        if not first_node._sequence_nr() <= node._sequence_nr() <= last_node._sequence_nr():
            raise MessageError(
                'it reads a tensor that forward computed and kept on the conv; '
                'pass that tensor to propagate instead'
            )
        todo += [parent for parent, _ in node.next_functions if parent is not None]
    are_read = tuple(leaves.pop(id(sample), None) is not None for sample in samples)
    return tuple(leaves.values()), are_read

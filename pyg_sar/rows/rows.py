"""``Rows``: a tensor that knows whose rows it holds.

A rank holds the rows of its own nodes and edges. What is computed over them by a plain tensor is
right for one rank and wrong for the graph. So the rows of a shard are of a class of their own, as
the edge_index is. It shows the shape of the whole. Every function of torch has a rule
(:mod:`pyg_sar.rows.registry`): it works row by row, and runs on the own rows; or over the rows, and
runs over all ranks, and what it gives is a plain tensor, equal on all ranks; or it is refused.

A plain tensor is equal on all ranks. Where it meets rows it broadcasts, or it has as many rows as
the whole, in the order of the whole: then the own ones are taken from it.

A loss made of rows is equal on all ranks, and gradients are those of one process
(:mod:`pyg_sar.rows.one_loss`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from traceback import walk_stack
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.nn import MessagePassing

from pyg_sar.rows.registry import (
    ALL_ROWS,
    instead_of,
    name_of,
    rule_of,
    rules_by_function,
)
from pyg_sar.rows.replicated import note
from pyg_sar.rows.sharding import Sharding
from pyg_sar.rows.slices import check_slices, slices_read
from pyg_sar.utils.scoped import Scoped

inside: Scoped[str] = Scoped('')
"""Begins the error for a function that is refused inside of a transform."""

plainly = torch._C.DisableTorchFunctionSubclass
"""In its ``with``, functions of torch take rows as plain tensors of the own rows."""


class Rows(Tensor):
    """Own rows of a sharding, in one dimension; see the module.

    Made by :func:`pyg_sar.load_shard` and by convs on a cut graph. :func:`pyg_sar.local` gives the
    plain tensor of the own rows, :func:`pyg_sar.gather` all rows in the order of the whole graph.
    """

    _dim: int
    _sharding: Sharding
    _own: Tensor

    def __new__(cls, *_: Any, **__: Any) -> Rows:  # noqa: D102
        refuse(f'{cls.__name__}(...)', 'is not made by its class')

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if len(types) > 1 and any(hasattr(kind, 'is_matrix') for kind in types):
            return NotImplemented  # a sparse matrix knows what it is with rows
        if slices_read.value:
            check_slices(func, args, kwargs)
        rule = rules_by_function.get(func)
        if rule is None or torch._C._are_functorch_transforms_active():
            rule = rule_of(func)
        if rule is read:
            with plainly():
                return func(*args, **kwargs or {})
        world = dist.group.WORLD
        for value in (*args, kwargs or None):  # of rows and parameters there is nothing to note
            if type(value) is Rows:
                comm = value._sharding.comm
                is_known = comm is not None and world is not None and comm.world() is world
            else:
                is_known = value is None or (type(value) is Parameter and value.requires_grad)
            if not is_known:
                note(func, args, kwargs)
                break
        if not kwargs:
            return rule(func, args, {})
        kwargs = {_NAMES_OF_NUMPY.get(name, name): value for name, value in kwargs.items()}
        out = kwargs.pop('out', None)
        if out is None:
            return rule(func, args, kwargs)
        if not isinstance(out, Tensor):
            refuse(func, "with several tensors as 'out' is not known to be right")
        # torch's own would write the rows of this rank.
        result = rule(func, args, kwargs)
        if not isinstance(result, Tensor) or result.shape != out.shape:
            raise ValueError(f"'{name_of(func)}' of rows takes an 'out' of the shape of the result")
        return out.copy_(result)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError(
                'Only Tensors created explicitly by the user (graph leaves) support the deepcopy '
                'protocol at the moment'
            )
        copy = _rebuilt(plain(self.detach()).clone(), *self._state())
        if self.grad is not None:
            copy.grad = self.grad.clone()
        memo[id(self)] = copy
        return copy

    def _state(self) -> tuple[int, Sharding, bool, bool]:
        return self._dim, self._sharding, self.requires_grad, isinstance(self, Parameter)

    def __copy__(self) -> Tensor:
        with plainly():
            out: Any = self.detach()
        out.__class__ = type(self)
        vars(out).update(vars(self))
        return out.requires_grad_() if self.requires_grad else out

    # torch calls these two without __torch_function__.
    def as_subclass(self, cls: Any) -> Any:  # noqa: D102
        if torch._C._is_torch_function_enabled():
            refuse('as_subclass')
        return Tensor.as_subclass(self, cls)

    def set_(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: D102
        refuse('set_')

    def __reduce_ex__(self, proto: Any) -> Any:
        if self._sharding.is_learned:
            values = plain(self.detach())
            if isinstance(self, Parameter):
                return _rebuilt, (values, *self._state())
            # In a file a state_dict has plain tensors.
            return values.__reduce_ex__(proto)
        raise TypeError(
            "rows of this rank cannot be pickled or saved as the whole graph's: save "
            'pyg_sar.gather(x), or each rank its own by pyg_sar.save_rows'
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        with plainly():
            own = self.as_subclass(Tensor)
            where = f'{self._sharding!r}, dim={self._dim}'
            return f'Rows({where}, all are in pyg_sar.gather(x), own={own!r})'

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))


def read(func: Any, args: Any, kwargs: Any) -> Any:
    """The rule of a function whose result is the same for the own rows and the whole."""
    with plainly():
        return func(*args, **kwargs)


_NAMES_OF_NUMPY = {'axis': 'dim', 'keepdims': 'keepdim'}


def tag(tensor: Tensor, dim: int, sharding: Sharding) -> Any:
    """Makes a new plain tensor rows of a sharding, in dimension `dim`; gives the same object.

    With one process tensors stay plain: its own rows are those of the whole.
    """
    if sharding.is_whole:
        return tensor
    if type(tensor) is Tensor:
        if tensor.size(dim) != sharding.own:
            raise ValueError(
                f'expected {sharding!r} in dimension {dim} (got a tensor of shape '
                f'{tuple(tensor.shape)}): please report it, with the program that shows it'
            )
        tensor.__class__ = Rows
    elif type(tensor) is not Rows:
        tensor = tensor.as_subclass(Rows)
    tensor._dim, tensor._sharding = dim, sharding  # type: ignore[attr-defined]
    return tensor


def _rebuilt(
    values: Tensor, dim: int, sharding: Sharding, requires_grad: bool, is_parameter: bool
) -> Tensor:
    rows: Tensor = tag(values, dim, sharding)
    return Parameter(rows, requires_grad) if is_parameter else rows.requires_grad_(requires_grad)


def plain(value: Any) -> Any:
    """The plain tensor of the own rows, if it is one of rows."""
    if isinstance(value, Rows):
        with plainly():
            return Tensor.as_subclass(value, Tensor)
    return value


def same_plain(rows: Rows) -> Tensor:
    """The plain tensor of the own rows; without a gradient the same object every time.

    What is computed from features once is known by the tensor.
    """
    with plainly():
        if rows.requires_grad:
            return Tensor.as_subclass(rows, Tensor)
        own = vars(rows).get('_own')
        if own is None:  # no view, which would hold its base
            own = rows._own = Tensor.as_subclass(rows, Tensor).detach()
        return own


def refuse(
    func: Any, why: str = 'would see the rows of this rank alone', instead: str = ''
) -> NoReturn:
    """Raises a ValueError that names a function and says what to write instead."""
    name = (func if isinstance(func, str) else name_of(func)).strip('_')
    if inside.value:
        raise ValueError(f"{inside.value} ('{name}' of rows that are spread over the ranks {why})")
    instead = instead or instead_of.get(name, ALL_ROWS)
    conv = _plain_conv()
    if conv is not None:
        instead = (
            f'{conv} is not wrapped: call pyg_sar.DistributedDataParallel(model) before, of it or '
            'of its model'
        )
    raise ValueError(f"'{name}' of rows that are spread over the ranks {why}: {instead}")


def _plain_conv() -> str | None:
    """The class of the conv whose forward runs, if it is not wrapped."""
    for frame, _ in walk_stack(sys._getframe()):
        module = frame.f_locals.get('self')
        if isinstance(module, MessagePassing):
            return None if hasattr(module, 'sar_options') else type(module).__name__
    return None

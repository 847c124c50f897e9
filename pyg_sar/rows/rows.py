"""``Rows``: a tensor that knows whose rows it holds.

A rank holds the rows of its own nodes and edges. What is computed over them by a plain tensor is
right for one rank and wrong for the graph. So the rows of a shard are of a class of their own, as
the edge_index is. It shows the shape of the whole. Every function of torch has a rule
(:mod:`pyg_sar.rows.registry`): it works row by row, and runs on the own rows; or over the rows, and
runs over all ranks, and what it gives is a plain tensor, equal on all ranks; or it is refused.

A plain tensor is equal on all ranks. Where it meets rows it broadcasts, or it has as many rows as
the whole, in the order of the whole: then the own ones are taken from it.

Gradients are those of the sum of the ranks' losses, as everywhere in this package, and a loss made
of rows is equal on all ranks; so what a user sees of them is divided by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from pyg_sar.rows.copies import check, slices_read
from pyg_sar.rows.registry import known_rules, name_of, rule_of
from pyg_sar.rows.space import Space
from pyg_sar.scoped import Scoped

inside: Scoped[str] = Scoped('')
"""What runs as a whole, and what to do where a function inside of it is refused."""

plainly = torch._C.DisableTorchFunctionSubclass
"""While it lasts, rows are plain tensors of the own rows."""


class Rows(Tensor):
    """Own rows of a space, in one dimension; see the module.

    Made by :func:`pyg_sar.load_shard` and by convs on a cut graph. :func:`pyg_sar.local` gives the
    plain tensor of the own rows, :func:`pyg_sar.gather` all rows in the order of the whole graph.
    """

    _dim: int
    _space: Space
    _own: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if slices_read.value:
            check(func, args)
        rule = known_rules.get(func)
        if rule is None or torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
            rule = rule_of(func)
        if rule is read:
            with plainly():
                return func(*args, **kwargs or {})
        if not kwargs:
            return rule(func, args, {})
        kwargs = {_NAMES_OF_NUMPY.get(name, name): value for name, value in kwargs.items()}
        out = kwargs.pop('out', None)
        if out is None:
            return rule(func, args, kwargs)
        if not isinstance(out, Tensor):
            refuse(func, "with several tensors as 'out' is not known to be right")
        # torch's own would write the rows of this rank.
        made = rule(func, args, kwargs)
        if not isinstance(made, Tensor) or made.shape != out.shape:
            raise ValueError(f"'{name_of(func)}' of rows takes an 'out' of the shape of the result")
        return out.copy_(made)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError(
                'Only Tensors created explicitly by the user (graph leaves) support the deepcopy '
                'protocol at the moment'
            )
        with plainly():
            out = self.detach().clone().requires_grad_(self.requires_grad)
            if self.grad is not None:
                out.grad = self.grad.clone()
        memo[id(self)] = made = tag(out, self._dim, self._space)
        return made

    def __copy__(self) -> Tensor:
        with plainly():
            out: Any = self.detach().requires_grad_(self.requires_grad)
        out.__class__ = type(self)
        vars(out).update(vars(self))
        return out

    # Of these two torch asks no class.
    def as_subclass(self, cls: Any) -> Any:  # noqa: D102
        if torch._C._is_torch_function_enabled():
            refuse('as_subclass')
        return Tensor.as_subclass(self, cls)

    def set_(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: D102
        refuse('set_')

    def __reduce_ex__(self, proto: Any) -> Any:
        raise TypeError(
            "rows of this rank cannot be pickled or saved as the whole graph's: save "
            'pyg_sar.gather(x), or each rank its own by pyg_sar.save_rows'
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        with plainly():
            return f'Rows({self._space!r}, dim={self._dim}, own={self.as_subclass(Tensor)!r})'

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))


def read(func: Any, args: Any, kwargs: Any) -> Any:
    """The rule of what is equal for the own rows and the whole."""
    with plainly():
        return func(*args, **kwargs)


_NAMES_OF_NUMPY = {'axis': 'dim', 'keepdims': 'keepdim'}


def tag(tensor: Tensor, dim: int, space: Space) -> Any:
    """Says of a new plain tensor whose rows it has in dimension `dim`; gives the same object."""
    if type(tensor) is Tensor:
        tensor.__class__ = Rows
    elif type(tensor) is not Rows:
        tensor = tensor.as_subclass(Rows)
    tensor._dim, tensor._space = dim, space  # type: ignore[attr-defined]
    return tensor


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
        known = vars(rows).get('_own')
        if known is None:  # no view, which would hold its base
            known = rows._own = Tensor.as_subclass(rows, Tensor).detach()
        return known


def leaves(value: Any) -> list[Any]:
    """What is in nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (tuple, list)):
        return [value]
    nested = (tuple, list, dict)
    return [x for each in value for x in (leaves(each) if isinstance(each, nested) else [each])]


def in_nested(value: Any, change: Callable[[Any], Any]) -> Any:
    """Tuples, lists and dicts with other leaves."""
    if isinstance(value, dict):
        return dict(zip(value, in_nested([*value.values()], change), strict=True))
    if not isinstance(value, (tuple, list)):
        return change(value)
    items = [
        in_nested(each, change) if isinstance(each, (tuple, list, dict)) else change(each)
        for each in value
    ]
    return type(value)(*items) if hasattr(value, '_fields') else type(value)(items)


def refuse(func: Any, why: str = 'would see the rows of this rank alone') -> NoReturn:
    """Raises a ValueError that names a function and says what to do instead."""
    name = (func if isinstance(func, str) else name_of(func)).strip('_')
    if inside.value:
        raise ValueError(f"{inside.value} ('{name}' of rows that are spread over the ranks {why})")
    raise ValueError(
        f"'{name}' of rows that are spread over the ranks {why}: pyg_sar.gather(x) has all rows in "
        'the order of the whole graph, pyg_sar.local(x) is the plain tensor of the own rows'
    )

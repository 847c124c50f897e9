"""A rank's part of a learned table of all nodes, and what may be computed with it.

What is done with every number by itself, as most optimizers do, is right on a part of a table. A
norm is not: ``clip_grad_norm_`` with the norm of own rows would scale the parameters that all ranks
share, on every rank by another number. So the rows, their gradients and what is computed from them
(the state of an optimizer) have a class of their own. It lets through what is done number by
number, gives sums, norms and extrema the value over the rows of all ranks, and refuses everything
else by its name. With one process everything is let through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from pyg_sar.comm import agree, all_gather_alike, world_size
from pyg_sar.ground.nested import in_nested, leaves
from pyg_sar.rows.registry import is_pointwise
from pyg_sar.shard.edge_index import READS, name_of, names

_READS = READS - names('rand_like randn_like') | names(
    'tolist numpy __array__ sparse_dim dense_dim _nnz _indices indices new is_coalesced is_signed '
    'is_conj is_neg _has_compatible_shallow_copy_type register_hook '
    'register_post_accumulate_grad_hook'
)
"""Operations by name that tell of this rank's rows, or make tensors that have nothing of them."""

_KEEPS = names(
    'data grad detach detach_ to cpu cuda clone contiguous float double half bfloat16 type type_as '
    'requires_grad_ zeros_like empty_like ones_like full_like copy_ fill_ zero_ constant_ '
    'masked_fill masked_fill_ view_as_real view_as_complex coalesce to_dense sparse_mask '
    'resize_as_ _values values'
)
"""Operations by name that leave every number in its row, beside those that torch marks."""

_REDUCES = names('sum mean max min amax amin any all norm linalg_vector_norm')
"""Reductions to one number that may be applied again, to the numbers of the ranks."""

_UNSCALES = '_amp_foreach_non_finite_check_and_unscale_'
_COLLECTIVES = names('all_reduce reduce broadcast all_gather reduce_scatter flatten_dense_tensors')
_DRAWS = names('normal_ uniform_ random_ exponential_ trunc_normal_ rand_like randn_like')


class OwnRows(Tensor):
    """Rows of a rank's own nodes ``[num_own, ...]`` of a learned table; see the module.

    Attributes:
        n_id: Of the table itself: the ids of the own nodes, int64 ``[num_own]``, on the CPU.
        num_nodes: Of the table itself: the number of its rows on all ranks.
        node_type: Of the table itself: the type of the nodes; None without types.
        of_table: Of what was made of a table, such as ``weight.data``: its `n_id` and `num_nodes`.
    """

    n_id: Tensor
    num_nodes: int
    node_type: str | None
    of_table: tuple[Tensor, int] | None
    is_of_own_nodes = True  # nobody adds them up over the ranks

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = name_of(func).removeprefix('_foreach_'), kwargs or {}
        is_attribute = getattr(func, '__name__', '') in ('__get__', '__set__', '__delete__')
        is_whole = world_size() == 1
        if not is_whole:
            args, kwargs = _with_own_rows(args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            if name in _READS:
                return func(*args, **kwargs)
            if name in _REDUCES and not is_whole:
                return _reduced(func, name, args, kwargs)
            is_set = name == '__setitem__' and _is_by_row(*args[1:])
            is_kept = name in _KEEPS or is_set or name.startswith('_fused_')
            is_kept |= is_pointwise(name) and name.strip('_') != 'rrelu'  # which draws
            if not (is_whole or is_attribute or is_kept or name == _UNSCALES):
                _refuse(name)
            out = func(*args, **kwargs)
            if name == _UNSCALES:  # whether a number is not finite, of its second argument
                args[1].copy_(all_gather_alike(args[1]).amax(dim=0))
                return out
            for made, rows in _made(out, [*args, *kwargs.values()]):
                has_rows = made.shape[:1] == rows.shape[:1] or name in ('values', '_values')
                is_history = made.grad_fn is not None and name != 'grad'
                if is_kept and has_rows and not is_history and type(made) is Tensor:
                    made.__class__ = OwnRows
                    vars(made)['of_table'] = _table_of(rows)
                elif not is_whole and (not (is_kept and has_rows) or is_history):
                    _refuse(name)
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = memo[id(self)] = _rebuilt(plain(self).clone(), *self._state())
        return copied

    def __reduce_ex__(self, proto: Any) -> Any:
        if hasattr(self, 'n_id'):
            return _rebuilt, (plain(self), *self._state())
        # In a file a state_dict has plain tensors.
        return plain(self).__reduce_ex__(proto)  # type: ignore[no-untyped-call]

    def _state(self) -> tuple[bool, dict[str, Any]]:
        return self.requires_grad, dict(vars(self))


def _table_of(rows: Tensor) -> tuple[Tensor, int] | None:
    """The ids of the own nodes, and the number of all, of a table or of what was made of it."""
    if hasattr(rows, 'n_id'):
        return rows.n_id, rows.num_nodes  # type: ignore[attr-defined]
    return vars(rows).get('of_table')


def _is_by_row(index: Any, value: Any) -> bool:
    """Whether what is set is set row by row: ``rows[rows > 0] = 1``, ``rows[:] = table``."""
    if isinstance(index, OwnRows):
        return not isinstance(value, Tensor)
    return index is Ellipsis or (isinstance(index, slice) and index == slice(None))


def _with_own_rows(args: Any, kwargs: Any) -> Any:
    """Arguments, with the own rows of plain tensors that have a row for every node."""
    tables = [_table_of(each) for each in leaves((args, kwargs)) if isinstance(each, OwnRows)]
    known = next(filter(None, tables), None)
    if known is None:
        return args, kwargs
    n_id, num_nodes = known

    def own(value: Any) -> Any:
        is_whole = type(value) in (Tensor, torch.nn.Parameter) and value.shape[:1] == (num_nodes,)
        return value[n_id.to(value.device)] if is_whole and len(n_id) < num_nodes else value

    return in_nested((args, kwargs), own)


def _rebuilt(values: Tensor, requires_grad: bool, state: dict[str, Any]) -> OwnRows:
    rows: OwnRows = values.as_subclass(OwnRows).requires_grad_(requires_grad)  # type: ignore[assignment]
    vars(rows).update(state)
    return rows


def plain(rows: Tensor) -> Tensor:
    """The numbers as a plain tensor, without history."""
    with torch._C.DisableTorchFunctionSubclass():
        return rows.detach()


def _made(out: Any, given: list[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """What an operation has made or written to, each with rows that it came from."""
    sources: list[Any] = [tuple(given)]
    made: Any = [out]
    if given and isinstance(given[0], (list, tuple)):  # an operation on lists, place by place
        sources = list(zip(*(g for g in given if isinstance(g, (list, tuple))), strict=False))
        made = out if isinstance(out, (list, tuple)) else given[0]
    for each, of_it in zip(made, sources, strict=False):
        own = [t for t in of_it if isinstance(t, OwnRows)]
        if isinstance(each, Tensor) and own:
            yield each, own[0]


def _reduced(func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """A number of the rows of all ranks (collective): that of the numbers of the ranks."""
    rows, *rest = args
    if isinstance(rows, (list, tuple)):
        of_one = getattr(torch, name)
        return [
            _reduced(of_one, name, [t, *rest], kwargs)
            if isinstance(t, OwnRows)
            else of_one(t, *rest, **kwargs)
            for t in rows
        ]
    options = [*rest, *kwargs.values()]
    if any(each == 'nuc' or (type(each) in (int, float) and each == 0) for each in options):
        _refuse(name)
    counts = torch.tensor(agree(rows.numel()))
    local = func(plain(rows) if rows.numel() else rows.new_zeros([1] * rows.dim()), *rest, **kwargs)
    is_in_a_loss = rows.requires_grad and torch.is_grad_enabled()
    if not isinstance(local, Tensor) or local.dim() or is_in_a_loss:
        _refuse(name)
    each, counts = all_gather_alike(local)[counts > 0], counts[counts > 0]
    return (each * counts).sum() / counts.sum() if name == 'mean' else func(each, *rest, **kwargs)


def _refuse(name: str) -> NoReturn:
    way = 'call the embedding, and reduce the rows that it gives'
    if name in _COLLECTIVES:
        way = 'it has its whole gradient on its rank, leave it out'
    elif name in _DRAWS:
        way = 'its values are drawn by node id: scale them with weight.mul_(...) in torch.no_grad()'
    elif torch._C._current_graph_task_id() == -1 and not torch.is_grad_enabled():
        way += '; an optimizer must treat every number by itself, as SGD, Adam and SparseAdam do'
    raise ValueError(
        f"'{name.strip('_')}' of a NodeEmbedding's weight or its gradient would see the rows of "
        f'one rank alone: {way}'
    )

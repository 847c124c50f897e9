"""What all global norms have in common, and which norm becomes which.

A change of a norm is a change of one file: a class whose bases are :class:`GlobalNorm` and the
plain norm takes the place of the plain one.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.modules.lazy import LazyModuleMixin
from torch_geometric.nn import norm

from pyg_sar.comm import in_layer
from pyg_sar.norm.running import OwnUpdates
from pyg_sar.norm.whose_rows import edges_here, last_edges, normalized_a_batch
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.rows import Rows, in_nested, plain, tag
from pyg_sar.rows.space import Space

Norm = TypeVar('Norm', bound='GlobalNorm')

_GLOBAL: dict[type[torch.nn.Module], type[GlobalNorm]] = {}
"""The global norm of every plain one."""


class GlobalNorm:
    """A norm with the statistics of all ranks' rows, or of those of a batch.

    A class has this and the plain norm as its bases, hence the norm's constructor, parameters,
    buffers and state_dict. With one process (``torch.distributed`` is not initialised) it is the
    plain norm.

    In a forward of a module that has a conv in it and was called with plain edges, not with those
    of a shard, a norm is the plain one, of this rank's rows, as models have it in torch's
    DistributedDataParallel. Nothing is collective then. A batch without rows changes nothing.
    Everywhere else, also where a program calls a norm outside of such a forward, its statistics are
    those of all ranks' rows.

    Running statistics are equal on all ranks after every backward of
    :class:`pyg_sar.DistributedDataParallel`: the mean of those of the ranks whose batches had rows
    (:mod:`pyg_sar.norm.running`). That is 2 C + 3 numbers more in an all-reduce that is there
    anyway.
    """

    is_global = True
    is_synced = False
    """Whether statistics are those of all ranks' rows also of batches."""
    _own_updates: OwnUpdates | None = None
    _of_batches: frozenset[bool | None] = frozenset()
    """Whether forwards were of batches, since those of checkpoints were last computed again."""
    _path = ''
    """The path of the module in the model that :func:`pyg_sar.wrap` was given."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        plain_class = type(self).__bases__[0]
        if _GLOBAL.get(plain_class) is not type(self):  # any module can import the class
            return reduced
        return _empty, (plain_class,), *reduced[2:]

    def __init_subclass__(cls) -> None:
        for base in cls.__bases__:
            if issubclass(base, torch.nn.Module) and not issubclass(base, GlobalNorm):
                _GLOBAL[base] = cls

    # torch.compile leaves what ranks tell each other to itself.
    @torch.compiler.disable
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The norm; errors of lost ranks name it."""
        first = next((each for each in (*args, *kwargs.values()) if isinstance(each, Rows)), None)
        if first is not None:
            space = first._space
            args, kwargs = in_nested((args, kwargs), lambda value: _own(value, space))
            return tag(self(*args, **kwargs), first._dim, first._space)
        call = super().__call__  # type: ignore[misc]
        if not self._path:
            return call(*args, **kwargs)
        with in_layer(f"layer '{self._path}' ({type(self).__name__.removeprefix('Global')})"):
            return call(*args, **kwargs)

    def _is_of_batch(self, batch: Tensor | None = None) -> bool:
        """Whether the statistics of this forward are those of this rank's rows alone.

        `batch` is the graph of every row, if there are several. Raises ValueError if that cannot be
        told.
        """
        if self.is_synced:
            return False
        edges = edges_here()
        is_of_batch = edges == 'batch'
        if is_of_batch:
            normalized_a_batch()
        if torch._C._current_graph_task_id() != -1 and edges is None:  # of a checkpoint
            known, self._of_batches = self._of_batches - {None}, self._of_batches | {None}
            if len(known) > 1:
                raise ValueError(
                    f'{type(self).__name__} is computed again by a checkpoint after forwards on '
                    'batches and on the whole graph: call backward() after each, or have the '
                    'checkpoint take the edge_index as an argument, too'
                )
            return True in known
        is_training: bool = self.training  # type: ignore[attr-defined]
        if is_training or torch.is_grad_enabled():
            before = frozenset() if None in self._of_batches else self._of_batches
            self._of_batches = before | {is_of_batch}
        if batch is not None and edges is None and last_edges() == 'batch':
            raise ValueError(
                f"'batch' of {type(self).__name__} would join graphs of different ranks, as it is "
                'called outside of a forward that is given edges: call the model itself, '
                'model(x, edge_index, batch)'
            )
        return is_of_batch

    @classmethod
    def convert(cls: type[Norm], module: torch.nn.Module) -> Norm:
        """Makes a plain norm this one, and returns it: whoever holds it holds the global one."""
        module.__class__ = cls  # type: ignore[assignment]
        return module  # type: ignore[return-value]


def _own(value: Any, space: Space) -> Any:
    """Own rows, also of a plain tensor with a row for each of the whole, such as a batch vector."""
    if type(value) is Tensor and value.dim() and value.size(0) == space.total:
        return own_rows('norm', value, 0, space)
    return plain(value)


def global_form(module: torch.nn.Module) -> type[GlobalNorm] | None:
    """The class that a plain norm is to become; None if `module` is no norm over rows known here.

    Norms of a row alone (LayerNorm in mode 'node', HeteroLayerNorm, MessageNorm) need none. A
    subclass of a norm that has a forward of its own may do anything in it: it is none, and a lazy
    one will be of another class.
    """
    if type(module) is torch.nn.SyncBatchNorm:
        return _GLOBAL[torch.nn.BatchNorm1d]
    if isinstance(module, norm.LayerNorm) and module.mode != 'graph':
        return None
    return None if isinstance(module, GlobalNorm | LazyModuleMixin) else _form_of(type(module))


def _form_of(plain: type[torch.nn.Module]) -> type[GlobalNorm] | None:
    for base in plain.__mro__:
        form = _GLOBAL.get(base)
        if form is not None:  # a new class is in the table from then on
            return form if base is plain else type(plain.__name__, (plain, form), {})
        if 'forward' in vars(base):
            break
    return None


def _empty(plain: type[torch.nn.Module]) -> GlobalNorm:
    """A global norm in place of a plain one of a class that users wrote; without its contents."""
    form = _form_of(plain)
    assert form is not None
    return form.__new__(form)

"""Notices a message whose Python code reads the number of edges, or values of a tensor.

``if x_j.size(0) < 20``, ``w.max().item()`` and ``print(x_j.shape)`` read all edges in plain PyG,
and a block here. A message that does so on sampled edges has to run on the rows of the edges of all
ranks. It may compute with a number of edges, and make tensors of that size: they are right for
every block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import norm

from pyg_sar.nn.call import Call
from pyg_sar.nn.intercept import MessageError
from pyg_sar.nn.sample_edges import NUM_SAMPLES
from pyg_sar.ops.program import Arguments
from pyg_sar.utils.nested import leaves

_SIZES = {Tensor.size, Tensor.shape.__get__, Tensor.numel, Tensor.nelement, torch.numel}  # type: ignore[attr-defined]
_SIZES |= {Tensor.__len__}
_VALUES = {
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__complex__),
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__contains__),
    *(Tensor.__repr__, Tensor.__format__, Tensor.is_nonzero, torch.is_nonzero),
    *(Tensor.equal, torch.equal, Tensor.allclose, torch.allclose),
}
_COUNTED = {'nonzero', 'argwhere', 'masked_select', 'unique', 'unique_consecutive', 'where'}
"""Functions whose result has as many rows as values decide."""

_CONSTRUCTORS = {torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.full, torch.arange}

_STATISTICS_MODULES = (
    torch.nn.BatchNorm1d.__mro__[-3],  # of all norms of batches, above Module
    norm.DiffGroupNorm,
    norm.GraphNorm,
    norm.GraphSizeNorm,
    norm.HeteroBatchNorm,
    norm.InstanceNorm,
    norm.MeanSubtractionNorm,
    norm.PairNorm,
)


_COMPARISONS = ('__eq__', '__ne__', '__gt__', '__le__', '__lt__', '__ge__')


def _notes(name: str) -> Any:
    operation = getattr(int, name)

    def noting(self: EdgeCount, *others: Any) -> Any:
        if any(not isinstance(other, (int, float)) for other in others):
            return NotImplemented
        if not self.reads.is_watching:  # a number that was kept
            return operation(self, *others)
        is_equality = name in ('__eq__', '__ne__') and isinstance(others[0], EdgeCount)
        is_of_none = name == '__bool__' or (name in _COMPARISONS and others[0] == 0)
        if is_equality or (is_of_none and self.reads.allows_none):
            return operation(self, *others)
        raise self.reads.refusal(f"the number of edges or nodes it sees ('{name}')")

    return noting


def _keeps(name: str) -> Any:
    operation = getattr(int, name)

    def computing(self: EdgeCount, *others: Any) -> Any:
        if self.reads.is_watching and any(isinstance(other, float) for other in others):
            raise self.reads.refusal(f"the number of edges or nodes it sees ('{name}')")
        out = operation(self, *others)
        return EdgeCount.of(out, self.reads) if type(out) is int else out

    return computing


class EdgeCount(int):
    """A number of sampled edges or nodes, or one that was computed from it."""

    reads: WholeReads

    @staticmethod
    def of(number: int, reads: WholeReads) -> EdgeCount:
        """A number whose use `reads` watches."""
        count = EdgeCount(number)
        count.reads = reads
        return count

    for _name in ('add', 'radd', 'sub', 'rsub', 'mul', 'rmul', 'floordiv', 'neg', 'pos'):
        locals()[f'__{_name}__'] = _keeps(f'__{_name}__')
    for _name in ('lt', 'le', 'gt', 'ge', 'eq', 'ne', 'bool', 'mod', 'rmod', 'divmod', 'truediv'):
        locals()[f'__{_name}__'] = _notes(f'__{_name}__')
    for _name in ('rtruediv', 'rfloordiv', 'float', 'int', 'repr', 'str', 'format', 'pow', 'rpow'):
        locals()[f'__{_name}__'] = _notes(f'__{_name}__')
    __hash__ = int.__hash__


class WholeReads(TorchFunctionMode):
    """While it lasts, refuses a message whose Python code reads what depends on all edges.

    Args:
        alike: Tensors that are the same for every block, such as parameters.
        allows_none: Whether it may ask if there are edges at all: without any it gives no rows.

    Raises MessageError, at the end once more if the message has caught it.
    """

    def __init__(self, alike: list[Tensor], *, allows_none: bool) -> None:
        super().__init__()
        self.allows_none = allows_none
        self._alike = {id(tensor): tensor for tensor in alike}  # kept: ids are used again
        self._counted: dict[int, Tensor] = {}
        self._error: MessageError | None = None
        self.is_watching = True

    def refusal(self, what: str) -> MessageError:
        """The error for reading `what`; it is kept, as a message may catch it."""
        self._error = self._error or MessageError(f'it asks in Python for {what}')
        return self._error

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.is_watching = False
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._error is not None and error is not self._error:
            raise self._error from error

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func in _SIZES:
            return self._counts(first, func(*args, **kwargs))
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_alike = all(id(tensor) in self._alike for tensor in tensors)
        is_alike = is_alike and (bool(tensors) or func in _CONSTRUCTORS)
        if func in _VALUES and not is_alike:
            raise self.refusal(f"values of all edges ('{func.__name__}')")
        out = func(*args, **kwargs)
        for leaf in leaves(out):
            if not isinstance(leaf, Tensor):
                continue
            if is_alike:
                self._alike[id(leaf)] = leaf
            elif _is_counted(func, args):
                self._counted[id(leaf)] = leaf
        return out

    def _counts(self, tensor: Any, out: Any) -> Any:
        if not isinstance(tensor, Tensor) or id(tensor) in self._alike:
            return out
        is_counted = id(tensor) in self._counted

        def counted(size: int) -> int:
            is_of_edges = is_counted or (size and size % NUM_SAMPLES == 0)
            return EdgeCount.of(size, self) if is_of_edges else size

        if isinstance(out, int):
            return counted(out)
        return torch.Size([counted(size) for size in out])


def run_message(call: Call, values: dict[str, Any], samples: Arguments) -> Tensor:
    """Runs a message on sampled edges, watched."""
    reads = WholeReads(_alike(call, samples), allows_none=True)
    with reads:
        return call.run(_counted(values, reads))


def run_aggregation(
    call: Call, values: dict[str, Any], message: Tensor, samples: Arguments
) -> Tensor:
    """Runs an aggregation on sampled edges, watched unless it is PyG's own."""
    conv = call.conv
    modules = [] if conv.aggr_module is None else conv.aggr_module.modules()
    parts = [type(conv).aggregate, *map(type, modules)]
    if all(part.__module__.startswith(('torch.', 'torch_geometric.')) for part in parts):
        return call.aggregate(values, message)
    reads = WholeReads(_alike(call, samples), allows_none=False)
    with reads:
        return call.aggregate(_counted(values, reads), message)


def _counted(values: dict[str, Any], reads: WholeReads) -> dict[str, Any]:
    """With numbers of nodes whose use `reads` watches."""
    return values | {name: EdgeCount.of(values[name], reads) for name in ('size_i', 'dim_size')}


def _alike(call: Call, samples: Arguments) -> list[Tensor]:
    return [*call.conv.parameters(), *call.conv.buffers(), *samples.whole]


def _is_counted(func: Any, args: Any) -> bool:
    name = func.__name__
    if name == 'where':
        return len(args) == 1
    index = args[1] if name == '__getitem__' and len(args) > 1 else None
    return name in _COUNTED or any(
        isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in leaves(index)
    )


def takes_statistics(module: torch.nn.Module) -> bool:
    """Whether a module's result on one row depends on the other rows."""
    if isinstance(module, norm.LayerNorm):
        return module.mode == 'graph'
    return isinstance(module, _STATISTICS_MODULES)

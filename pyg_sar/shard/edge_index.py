"""The halo-aware edge_index: an ordinary ``[2, E]`` tensor that carries its shard.

A model written for ``model(x, edge_index)`` passes it through unchanged, and a `SARConv` that
meets it knows the shard. It is a tensor subclass, as PyG's own ``EdgeIndex`` is. What is still an
edge_index after an operation (a selection of edges, self loops appended) keeps the shard, so that
``dropout_edge`` or ``remove_self_loops`` in a model's forward work; all other results are plain
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard.shard import Shard

_PLACE_KEEPING: frozenset[Callable[..., Any]] = frozenset(
    {
        Tensor.to,
        Tensor.cpu,
        Tensor.cuda,
        Tensor.clone,
        Tensor.detach,
        Tensor.contiguous,
        Tensor.pin_memory,
        torch.clone,
        torch.detach,
    }
)
"""Operations after which every edge is where it was."""

SOURCE_ENDS = 'source ends'
"""Under this key a shard's cache holds what makes a row of sources into more than a plain tensor:
``wrap(edge_index, sources)``."""


class ShardEdgeIndex(Tensor):
    """The edges into the own nodes of a rank, int64 ``[2, num_edges]``, in local ids.

    Row 0 holds sources: own nodes ``0 .. num_own - 1``, halo nodes from ``num_own`` on, grouped by
    the part that owns them. Row 1 holds destinations: own nodes. Made by
    :func:`pyg_sar.load_shard`.
    """

    shard: Shard
    is_flipped: bool
    _whole_version: int | None

    @staticmethod
    def wrap(
        edge_index: Tensor, shard: Shard, *, is_whole: bool, is_flipped: bool = False
    ) -> ShardEdgeIndex:
        """Attaches `shard`.

        Args:
            edge_index: int64 ``[2, num_edges]``.
            shard: The shard.
            is_whole: Whether these are all its edges in their order.
            is_flipped: Whether row 0 holds the destinations and row 1 the sources.
        """
        out = edge_index.detach().as_subclass(ShardEdgeIndex)
        out.shard = shard.to(edge_index.device)
        out.is_flipped = is_flipped
        out._whole_version = _version(out) if is_whole else None
        return out

    @property
    def is_whole(self) -> bool:
        """Whether these are all edges of the shard in their order, not written to since."""
        return self._whole_version is not None and self._whole_version == _version(self)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
            source = _find([*args, *(kwargs or {}).values()])
            if source is None:
                return out
            if SOURCE_ENDS in source.shard.cache and args and type(args[0]) is ShardEdgeIndex:
                out = _with_source_ends(out, func, args, source)
            is_whole = func in _PLACE_KEEPING and source.is_whole
            is_flipped = source.is_flipped ^ _flips(func, args, kwargs or {})

            def keep_shard(value: Any) -> Any:
                """Attaches the shard to what still is an edge_index."""
                if not isinstance(value, Tensor) or isinstance(value, ShardEdgeIndex):
                    return value
                if value.dtype != torch.int64 or value.dim() != 2 or value.size(0) != 2:
                    return value
                return ShardEdgeIndex.wrap(
                    value, source.shard, is_whole=is_whole, is_flipped=is_flipped
                )

            if type(out) in (tuple, list):  # chunk, split
                return type(out)(keep_shard(value) for value in out)
            return keep_shard(out)

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardEdgeIndex:
        out = memo[id(self)] = self.clone()
        return out  # type: ignore[return-value]

    def __reduce_ex__(self, proto: Any) -> Any:
        raise TypeError(
            'the edge_index of a shard belongs to this rank and cannot be pickled or saved; '
            'load it again with pyg_sar.load_shard'
        )


def _with_source_ends(
    out: Any, func: Callable[..., Any], args: tuple[Any, ...], edge_index: ShardEdgeIndex
) -> Any:
    """A row, or both, that was taken out of `edge_index`: the one with the sources is wrapped."""
    wrap = edge_index.shard.cache[SOURCE_ENDS]
    place = 1 if edge_index.is_flipped else 0
    if func is Tensor.__getitem__ and type(args[1]) is int and args[1] in (place, place - 2):
        return wrap(edge_index, out)
    if func in (Tensor.unbind, torch.unbind) and out[0].dim() == 1 and len(out) == 2:
        return tuple(wrap(edge_index, row) if i == place else row for i, row in enumerate(out))
    return out


def _flips(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation swaps the rows of an edge_index."""
    if func in (Tensor.flip, torch.flip):
        dims = kwargs.get('dims', args[1:])
        return 0 in _flat(dims) or -2 in _flat(dims)
    if func in (torch.flipud, Tensor.flipud):
        return True
    if func is Tensor.__getitem__:
        index = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        if isinstance(index, Tensor) and index.dtype != torch.bool and index.dim() == 1:
            index = index.tolist()
        return isinstance(index, list) and index == [1, 0]
    return False


def _flat(dims: Any) -> list[int]:
    if isinstance(dims, int):
        return [dims]
    return [each for dim in dims for each in _flat(dim)]


def _version(edge_index: Tensor) -> int:
    return 0 if edge_index.is_inference() else edge_index._version


def _find(args: Iterable[Any]) -> ShardEdgeIndex | None:
    """The first handle among arguments, inside lists and tuples too."""
    for arg in args:
        if isinstance(arg, ShardEdgeIndex):
            return arg
        if isinstance(arg, (list, tuple)):
            found = _find(arg)
            if found is not None:
                return found
    return None

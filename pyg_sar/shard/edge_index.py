"""The edge_index of a rank: an ordinary ``[2, E]`` tensor of local ids that carries its shard.

Convs compute with it. What is still an edge_index after an operation (a selection of edges, self
loops appended) keeps the shard. Its rows are plain tensors of local ids. Anything else is refused
by name: what is counted or compared with ids of a rank is an answer of this rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NoReturn

import torch
from torch import Tensor

from pyg_sar.ground.nested import leaves_of
from pyg_sar.shard.shard import Shard


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


READS = names(
    'dim numel nelement ndimension size stride storage_offset element_size is_contiguous '
    'is_floating_point is_complex is_inference is_pinned is_shared is_same_size '
    'data_ptr get_device requires_grad requires_grad_ __len__ __repr__ __format__ __hash__ __dir__ '
    'new_empty new_full new_ones new_zeros empty_like full_like ones_like rand_like randn_like '
    'zeros_like share_memory_ record_stream untyped_storage _is_view _base _typed_storage '
    'is_conj is_neg'
)
"""Operations by name whose result does not depend on what a tensor holds."""

_KEEPS_ALL = names('to cpu cuda clone detach contiguous pin_memory long type_as')
"""Operations by name after which every edge is where it was."""

_SELECTS = names(
    'index_select narrow chunk split split_with_sizes tensor_split cat concat concatenate hstack '
    'flip fliplr flipud'
)
"""Operations by name that give edges of the shard, if rows 0 and 1 stay what they are."""


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
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = name_of(func), kwargs or {}
        is_getter = getattr(func, '__name__', '') == '__get__'  # shape, device, is_cuda ...
        if is_getter or name in READS:
            with torch._C.DisableTorchFunctionSubclass():
                value = func(*args, **kwargs)
            if name in READS or not isinstance(value, Tensor):
                return value
        return cls._edges(func, name, args, kwargs)

    @classmethod
    def _edges(
        cls, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Edges of the shard, or one row of their ids; the rest is refused."""
        given = [each for each in leaves_of((args, kwargs)) if isinstance(each, cls)]
        source = given[0]
        if name == '__getitem__' and args[0] is source:
            row = _row_asked_for(args[1])
            if row is not None:
                rest = args[1][1:] if isinstance(args[1], tuple) else ()
                out = source.as_subclass(Tensor)[row]
                return out[rest] if rest else out
        elif name == 'unbind':
            rows = func(source.as_subclass(Tensor), *args[1:], **kwargs)
            if len(rows) == 2 and rows[0].dim() == 1:
                return rows
        elif name not in _KEEPS_ALL and name not in _SELECTS:
            _refuse(name)
        kind = source.shard, source.is_flipped
        if any((each.shard, each.is_flipped) != kind for each in given):
            _refuse(name)
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
        is_whole = name in _KEEPS_ALL and source.is_whole
        is_flipped = source.is_flipped ^ _flips(name, args, kwargs)

        def keep_shard(value: Any) -> ShardEdgeIndex:
            if value.dtype != torch.int64 or value.dim() != 2 or value.size(0) != 2:
                _refuse(name)
            return cls.wrap(value, source.shard, is_whole=is_whole, is_flipped=is_flipped)

        if isinstance(out, (tuple, list)):  # chunk, split
            return type(out)(keep_shard(value) for value in out)
        return keep_shard(out)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        out = memo[id(self)] = self.clone()
        return out

    def __reduce_ex__(self, proto: Any) -> Any:
        raise TypeError(
            'the edge_index of a shard belongs to this rank and cannot be pickled or saved; '
            'load it again with pyg_sar.load_shard'
        )


def kept_on(
    handle: ShardEdgeIndex, key: Hashable, make: Callable[[], Any], given: Any = None
) -> Any:
    """What `make` gives, kept on an edge_index while that is not written to and `given` is equal.

    Nothing is kept on one of inference mode, as what is written to it cannot be seen.
    """
    if handle.is_inference():
        return make()
    kept = vars(handle).setdefault('kept', {})
    state = handle._version, given
    if key not in kept or kept[key][0] != state:
        with torch.inference_mode(False):  # it outlives the caller's mode
            kept[key] = state, make()
    return kept[key][1]


def name_of(func: Callable[..., Any]) -> str:
    """What refusals call an operation; of an attribute its name."""
    name: str = getattr(func, '__name__', str(func))
    if name in ('__get__', '__set__'):
        name = func.__self__.__name__  # type: ignore[attr-defined]
    return name


def refuse_local(what: str) -> NoReturn:
    """Raises a ValueError where what `pyg_sar.local` gives is taken for the graph."""
    raise ValueError(
        f"'{what}' takes the edge_index and rows of load_shard, which are of the whole graph (got "
        'the own edges and rows of a rank, as pyg_sar.local gives them to be read)'
    )


def _refuse(name: str) -> NoReturn:
    """Raises a ValueError that names an operation and says what to do instead."""
    name = 'indexing' if name == '__getitem__' else name.strip('_')
    raise ValueError(
        f"'{name}' of a rank's edge_index means nothing, as it holds ids of this rank's own and "
        'halo nodes: take the edge_index of pyg_sar.load_shard, which has those of the whole '
        'graph, or the rows edge_index[0] and edge_index[1] on purpose'
    )


def _row_asked_for(index: Any) -> int | None:
    """0 or 1 for ``edge_index[0]``, ``edge_index[1, mask]`` ..."""
    first = index[0] if isinstance(index, tuple) and index else index
    return first % 2 if type(first) is int and -2 <= first < 2 else None


def _flips(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation swaps the rows of an edge_index; raises where it loses one."""
    if name == 'flip':
        dims = _flat(kwargs.get('dims', args[1:]))
        return 0 in dims or -2 in dims
    if name == 'flipud':
        return True
    if name == 'index_select':
        dim = kwargs.get('dim', args[1] if len(args) > 1 else 0)
        index = kwargs.get('index', args[-1])
        return dim in (0, -2) and _swaps(name, index)
    if name == '__getitem__':
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return bool(index) and _swaps(name, index[0])
    return False


def _swaps(name: str, index: Any) -> bool:
    """Whether an index of the rows names them in the order 1, 0."""
    if index is Ellipsis or isinstance(index, slice):
        index = [0, 1][index] if isinstance(index, slice) else [0, 1]
    elif isinstance(index, Tensor) and index.dtype != torch.bool and index.dim() == 1:
        index = index.tolist()
    if index not in ([0, 1], [1, 0]):
        _refuse(name)
    return bool(index == [1, 0])


def _flat(dims: Any) -> list[int]:
    if isinstance(dims, int):
        return [dims]
    return [each for dim in dims for each in _flat(dim)]


def _version(edge_index: Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return 0 if edge_index.is_inference() else edge_index._version

"""The edges of a rank in its own ids: a record for convs, and a tensor to be read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from pyg_sar.shard.shard import Shard, make_steps


class ShardEdges:
    """The edges into the own nodes of a rank: local ids, plain int64 ``[2, num_edges]``.

    Row 0 holds sources: own nodes ``0 .. num_own - 1``, halo nodes from ``num_own`` on, grouped by
    the part that owns them. Row 1 holds destinations: own nodes. With `is_flipped` row 0 has these.
    """

    def __init__(
        self, ids: Tensor, shard: Shard, *, is_whole: bool = False, is_flipped: bool = False
    ) -> None:
        self.ids, self.shard, self.is_flipped = ids, shard.to(ids.device), is_flipped
        self.kept: dict[Hashable, tuple[object, Any]] = {}
        self._whole_version = _version(ids) if is_whole else None

    @property
    def is_whole(self) -> bool:
        """Whether these are all edges of the shard in their order, not written to since."""
        return self._whole_version is not None and self._whole_version == _version(self.ids)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.ids.size(1)

    def with_ids(self, ids: Tensor, *, is_whole: bool = False) -> ShardEdges:
        """Other edges of the shard, held the same way round."""
        return ShardEdges(ids, self.shard, is_whole=is_whole, is_flipped=self.is_flipped)

    def flip(self) -> ShardEdges:
        """These edges held the other way round."""
        return ShardEdges(self.ids.flip(0), self.shard, is_flipped=not self.is_flipped)

    def sources_first(self) -> ShardEdges:
        """These edges with the sources in row 0."""
        return self.flip() if self.is_flipped else self


class LocalEdges(Tensor):
    """What `pyg_sar.local` gives of edges, int64 ``[2, num_edges]`` in local ids, to be read.

    Its operations are torch's. Edges made of it are LocalEdges, which convs, loaders and the
    functions of pyg_sar refuse; its rows are plain.
    """

    handle: ShardEdges  # the edges that it was made of; what is made of it has none

    @classmethod
    def of(cls, handle: ShardEdges) -> LocalEdges:
        """The ids of edges, in the same memory."""
        out = handle.ids.as_subclass(cls)
        out.handle = handle
        return out

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs or {})
            many = type(out)(map(_local, out)) if type(out) in (tuple, list) else out
            return _local(many)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return memo.setdefault(id(self), self.clone())

    def __reduce_ex__(self, proto: Any) -> Any:
        raise TypeError(
            'the edge_index of a shard belongs to this rank and cannot be pickled or saved; '
            'load it again with pyg_sar.load_shard'
        )


def _local(value: Any) -> Any:
    """A tensor that may be of edges as LocalEdges; anything else as it is."""
    if type(value) is not Tensor or value.dtype != torch.int64:
        return value
    return value.as_subclass(LocalEdges) if value.dim() == 2 and value.size(0) == 2 else value


def kept_on(
    handle: ShardEdges, key: Hashable, make: Callable[[], Any], sharding: Any = None
) -> Any:
    """The result of `make`, kept while edges are not written to and `sharding` is equal."""
    if handle.ids.is_inference():  # of which writes cannot be seen
        return make()
    state = handle.ids._version, sharding
    if key not in handle.kept or handle.kept[key][0] != state:
        with torch.inference_mode(False):  # it outlives the caller's mode
            handle.kept[key] = state, make()
    return handle.kept[key][1]


def refuse_local(what: str) -> NoReturn:
    """Raises a ValueError for edges of `pyg_sar.local` where those of the graph belong."""
    raise ValueError(
        f"'{what}' takes the edge_index and rows of load_shard, which are of the whole graph (got "
        'the own edges and rows of a rank, as pyg_sar.local gives them to be read)'
    )


def _version(ids: Tensor) -> int:
    return 0 if ids.is_inference() else ids._version


def join_relations(
    handles: Sequence[ShardEdges],
    src_offsets: Sequence[int],
    dst_offsets: Sequence[int],
    num_dst: int,
) -> ShardEdges:
    """The edges of several relations as one bipartite graph, for a layer over all types (HGT).

    Each relation's own sources start at its offset, and fill all rows in this order; so do the own
    nodes of its destination type, of which all types have `num_dst`. Every rank's parts count as
    one part. Joining takes no communication.
    """
    shards = [handle.shard for handle in handles]
    first = shards[0]
    world_size, device = first.world_size, handles[0].ids.device
    num_own = sum(shard.num_own for shard in shards)
    # The joint id of every local source of a relation: own ones, then the halo, which is joined by
    # owner and then by relation.
    ptrs = [shard.halo_ptr[:: shard.parts_per_rank] for shard in shards]
    ids = [[torch.arange(o, o + s.num_own)] for s, o in zip(shards, src_offsets, strict=True)]
    halo_ptr = [0]
    for owner in range(world_size):
        end = halo_ptr[-1]
        for ptr, of_relation in zip(ptrs, ids, strict=True):
            start, end = end, end + ptr[owner + 1] - ptr[owner]
            of_relation.append(torch.arange(num_own + start, num_own + end))
        halo_ptr.append(end)
    edges = []
    for handle, of_relation, offset in zip(handles, ids, dst_offsets, strict=True):
        src, dst = handle.ids
        edges.append(torch.stack([torch.cat(of_relation).to(device)[src], dst + offset]))

    def sent(reader: int, _: int) -> Tensor:
        return torch.cat(
            [
                step.send_index + offset
                for shard, offset in zip(shards, src_offsets, strict=True)
                for step in shard.steps
                if step.send_rank == reader
            ]
        )

    whole = torch.cat(edges, dim=1)
    shard = Shard(
        root=first.root,
        fingerprint=f'{first.partition} {len(shards)} relations',
        rank=first.rank,
        world_size=world_size,
        num_parts=world_size,
        num_nodes=first.num_nodes,
        own_ptr=(0, num_own),
        halo_ptr=tuple(halo_ptr),
        block_ptr=(*[0] * world_size, whole.size(1)),
        steps=make_steps(first.rank, world_size, halo_ptr, sent),
        dst_rows=num_dst,
    )
    return ShardEdges(whole, shard)

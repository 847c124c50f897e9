"""``NodeEmbedding``: a learnable row for every node, on the rank that owns the node."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch_geometric.data.storage import NodeStorage

from pyg_sar.comm.errors import collective
from pyg_sar.comm.ranks import world_size
from pyg_sar.comm.rows_by_id import rows as rows_by_id
from pyg_sar.comm.vote import agree
from pyg_sar.rows.from_data import as_local, sharding_of_nodes
from pyg_sar.rows.one_loss import read_alone
from pyg_sar.rows.patches import ask_for_rows
from pyg_sar.rows.rows import Rows, plain, plainly, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.utils.installed import find
from pyg_sar.utils.rng import normal

_DRAWN_AT_ONCE = 2**12  # rows: what is computed on the way stays in the cache


class NodeEmbedding(torch.nn.Module):
    """One learnable row per node: ``torch.nn.Embedding(data.num_nodes, dim)`` of the whole graph.

    Every rank holds the rows of its own nodes. ``weight`` is a parameter that is rows of the whole
    graph, float ``[num_nodes, embedding_dim]``. :class:`pyg_sar.DistributedDataParallel` does not
    average it; its gradient is that of one process. ``embedding()`` gives the rows in the order of
    ``data.x``. Of a HeteroData, give the nodes of a type, such as ``data['author']``::

        embedding = pyg_sar.NodeEmbedding(data, 64)
        x = embedding()  # [num_own, 64]

    Collective: construction, ``reset_parameters()``, and what is computed over the rows of weight
    or gradient, such as a norm, with a small all-gather or sum each. Forward is not.

    The initial values are normal with deviation 1, drawn by seed and id. They are the same for any
    number of ranks and any partition. Scale them with ``embedding.weight.mul_(0.1)`` in
    ``torch.no_grad()``.

    Optimizers that treat every number by itself are exact (SGD, Adam, SparseAdam ...). Norms and
    sums of weight and gradient, such as in ``clip_grad_norm_`` or a penalty, are over the rows of
    all ranks; all ranks must call them. What would see the rows of one rank alone is refused.

    ``state_dict()`` has the rows of this rank. :func:`pyg_sar.save_checkpoint` writes the rows of
    all ranks by id, with the optimizer's state. Any number of ranks loads them, and so does
    ``torch.nn.Embedding``.

    Args:
        data: What :func:`pyg_sar.load_shard` gave, or of a HeteroData the nodes of a type. With one
            process also a plain graph.
        embedding_dim: Columns.
        sparse: Whether gradients are sparse, of the rows that were looked up.
        seed: Of the initial values; None to draw one from torch's generator on rank 0.

    Raises:
        ValueError: On all ranks, if `data` is a HeteroData or without ``n_id``, the nodes of the
            ranks are not those of the whole graph, or `embedding_dim` is not positive or differs.
    """

    weight: torch.nn.Parameter

    @collective('NodeEmbedding', 'one small all-gather')
    def __init__(
        self, data: Any, embedding_dim: int, *, sparse: bool = False, seed: int | None = None
    ) -> None:
        super().__init__()
        is_store = 'n_id' in data if not hasattr(data, 'node_types') else False
        self._sharding = sharding_of_nodes(data) if is_store else None
        data = as_local(data)
        n_id, error = _ids(data)
        end = int(n_id.max()) + 1 if n_id.numel() else 0
        answers = agree((error, embedding_dim, n_id.numel(), end))
        num_nodes = sum(count for _, _, count, _ in answers)
        for error, dim, _, _ in answers:
            if error is not None:
                raise ValueError(error)
            if dim != embedding_dim or dim < 1:
                raise ValueError(
                    "'embedding_dim' must be positive and the same on all ranks (got "
                    f'{[d for _, d, _, _ in answers]})'
                )
        if num_nodes != max(end for *_, end in answers):
            raise ValueError(
                f'expected every node of the whole graph on one rank (got {num_nodes} nodes of all '
                f'ranks, with ids up to {max(end for *_, end in answers) - 1}): give what '
                'pyg_sar.load_shard gave, on all ranks'
            )
        self.embedding_dim, self.sparse, self.seed = embedding_dim, sparse, seed
        self.node_type = data._key if isinstance(data, NodeStorage) else None
        self.graph = vars(data if self.node_type else data.stores[0]).get('_graph')
        self.n_id, self.num_nodes = n_id, num_nodes
        ask_for_rows()
        _watch_optimizers()
        what = 'nodes' if self.node_type is None else f"nodes of type '{self.node_type}'"
        sharding = Sharding(len(n_id), what=what, ids=n_id, total=num_nodes)
        sharding.is_learned = True
        self.weight = torch.nn.Parameter(tag(torch.empty(len(n_id), embedding_dim), 0, sharding))
        self.register_state_dict_post_hook(_note_nodes)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_check_nodes)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    def _ids(self) -> Tensor:
        """Ids of the nodes whose rows the weight has here."""
        return torch.arange(self.num_nodes) if world_size() == 1 else self.n_id

    def reset_parameters(self) -> None:
        """Draws all values anew, with the same seed if there is one (collective)."""
        seed = int(torch.randint(2**62, ())) if self.seed is None else self.seed
        seed = agree(seed)[0]
        columns = torch.arange(self.embedding_dim)
        tensors = self._ids(), plain(self.weight.detach())
        for ids, rows in zip(*(torch.split(t, _DRAWN_AT_ONCE) for t in tensors), strict=True):
            rows.copy_(normal(seed, ids.unsqueeze(1), columns))

    @torch.compiler.disable
    def forward(self, n_id: Tensor | None = None) -> Tensor:
        """The rows of all nodes, in the order of ``data.x``, or those of some.

        Args:
            n_id: Ids of the whole graph, int64, of any shape: ``batch.n_id``, pairs of nodes, or
                ids that are rows, such as ``data.n_id[mask]``. Plain ids may differ from rank to
                rank. Only their rows are looked up (collective, as ``x[ids]`` of rows).

        Returns:
            ``[num_nodes, embedding_dim]``, or ``[*n_id.shape, embedding_dim]``.

        Raises:
            ValueError: On all ranks, if on one of them an id is no node's.
        """
        if self._sharding is None:
            return self.plain_rows(n_id)
        if n_id is not None and not isinstance(n_id, Rows):
            return rows_by_id(self, n_id, self.n_id.to(n_id.device))
        ids = None if n_id is None else as_local(n_id)
        if ids is not None and not (self.sparse or self._have_own(ids)):
            out: Tensor = self.weight[n_id]
            return out
        own = self._rows(plain(self.weight), ids)
        dim, sharding = (0, self._sharding) if n_id is None else (n_id._dim, n_id._sharding)
        return tag(own, dim, sharding)

    def _have_own(self, ids: Tensor) -> bool:
        """Whether all ranks ask for own nodes alone (collective)."""
        return all(agree(bool(torch.isin(ids, self.n_id.to(ids.device)).all())))

    def plain_rows(self, n_id: Tensor | None = None) -> Tensor:
        """The result of forward, as a plain tensor of own rows, which a rank reads by itself."""
        return self._rows(read_alone(plain(self.weight)), n_id)

    def _rows(self, own: Tensor, n_id: Tensor | None) -> Tensor:
        weight = self.weight
        if world_size() > 1 and not isinstance(weight, Rows):
            raise TypeError(
                f"expected the 'weight' that the embedding was made with (got a "
                f'{type(weight).__name__}): copy values into it, and leave it to '
                'pyg_sar.DistributedDataParallel'
            )
        torchs = find('torch.nn.parallel.DistributedDataParallel._get_active_ddp_module')()
        if torchs is not None and any(p is weight for p in torchs.module.parameters()):
            raise ValueError(
                "torch's DistributedDataParallel would average rows of different nodes: use "
                'pyg_sar.DistributedDataParallel'
            )
        n_id = self.n_id.to(weight.device) if n_id is None else n_id
        places = _places(self._ids().to(n_id.device), n_id)
        with plainly():
            if places is None and self.sparse:
                places = torch.arange(len(own), device=own.device)
            if places is None:
                return own.clone()
            return embedding(places, own, sparse=self.sparse)

    def extra_repr(self) -> str:
        """What is shown of it."""
        of_type = f' of {self.node_type}' if self.node_type else ''
        return f'{len(self.n_id)} of {self.num_nodes} nodes{of_type}, {self.embedding_dim}'


def _note_nodes(
    module: NodeEmbedding, state_dict: Any, prefix: str, local_metadata: dict[str, Any]
) -> None:
    """Notes in the metadata of a state_dict which nodes its rows belong to."""
    local_metadata['n_id'] = _code_of(module._ids())


def _check_nodes(
    module: NodeEmbedding,
    state_dict: Any,
    prefix: str,
    local_metadata: dict[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    errors: list[str],
) -> None:
    weight, table, n_id = module.weight, state_dict.get(f'{prefix}weight'), module._ids()
    has_all = isinstance(table, Tensor) and table.shape[:1] == (module.num_nodes,)
    if isinstance(table, Rows):
        return
    if has_all and isinstance(weight, Rows) and len(n_id) < module.num_nodes:  # of an Embedding
        state_dict[f'{prefix}weight'] = tag(table[n_id.to(table.device)], 0, weight._sharding)
    elif local_metadata.get('n_id') not in (None, _code_of(n_id)):
        errors.append(
            f"'{prefix}weight' has the rows of other nodes than this rank's: "
            'pyg_sar.save_checkpoint and load_checkpoint bring rows to their nodes'
        )
    elif isinstance(weight, Rows) and table is not None and table.shape == plain(weight).shape:
        state_dict[f'{prefix}weight'] = tag(table.detach(), 0, weight._sharding)


def _code_of(n_id: Tensor) -> int:
    return zlib.crc32(n_id.cpu().numpy().tobytes())


@cache
def _watch_optimizers() -> None:
    register_optimizer_step_pre_hook(_tag_state)


def _tag_state(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Makes what an optimizer has loaded from a file rows again."""
    for p, state in optimizer.state.items():
        for value in state.values():
            if isinstance(p, Rows) and type(value) is Tensor and value.shape == plain(p).shape:
                tag(value, 0, p._sharding)


def _places(own: Tensor, n_id: Tensor) -> Tensor | None:
    """Rows of ids in the weight; None where these are all rows in their order."""
    if torch.equal(own, n_id):
        return None
    others = n_id[~torch.isin(n_id, own)]
    if others.numel():
        raise ValueError(
            f"'n_id' must hold ids of own nodes of this rank (got {int(others[0])}): rows of any "
            'nodes are embedding()[n_id]'
        )
    order = own.argsort()
    return order[torch.searchsorted(own, n_id, sorter=order)]


def _ids(data: Any) -> tuple[Tensor, str | None]:
    """Ids of the own nodes in the whole graph, and what is wrong with the data."""
    none = torch.empty(0, dtype=torch.int64)
    if hasattr(data, 'node_types'):
        return none, "expected the nodes of one type, such as data['author'] (got a HeteroData)"
    if 'n_id' in data:
        return data.n_id.cpu().clone(), None
    if world_size() > 1:
        return none, 'expected what pyg_sar.load_shard gave (got a graph without n_id)'
    return torch.arange(data.num_nodes), None

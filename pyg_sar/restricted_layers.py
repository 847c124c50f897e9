"""``restrict``: every layer computes only the nodes that the wanted outputs depend on.

With labels on few nodes most of a full-batch epoch computes rows that no loss reads. What a layer
must compute follows from the layer after it: the nodes wanted and their in-neighbours, on whatever
rank they are. Nothing is sampled: outputs and gradients stay those of the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.comm import Exchange, agree, check_equal, exchange_of, in_call, raise_together
from pyg_sar.comm.reshard.derive_shard import all_part_ptr, derive_shard
from pyg_sar.shard.edge_index import ShardEdgeIndex


@dataclass(frozen=True, eq=False)
class RestrictedLayer:
    """The edges that one layer needs.

    Attributes:
        edge_index: a ``ShardEdgeIndex``, int64 ``[2, num_edges]``: all edges into the
            nodes that the layer computes. Its destinations are the first of its own sources.
        edges: The places of these edges in ``data.edge_index``, int64 ``[num_edges]``:
            ``data.edge_attr[layer.edges]`` goes with `edge_index`.
    """

    edge_index: ShardEdgeIndex
    edges: Tensor

    @property
    def num_src(self) -> int:
        """Number of own rows that the layer reads."""
        return self.edge_index.shard.num_own

    @property
    def num_dst(self) -> int:
        """Number of own rows that the layer computes: the first ones of those it reads."""
        return self.edge_index.shard.num_dst


@dataclass(frozen=True, eq=False)
class RestrictedLayers:
    """What :func:`restrict` returns: a :class:`RestrictedLayer` for every layer of the model.

    Attributes:
        input_nodes: Own nodes whose ``x`` the first layer reads, local ids, int64
            ``[layers[0].num_src]``.
        output_nodes: Own nodes that the last layer computes, local ids, int64
            ``[layers[-1].num_dst]``: the nodes asked for; the first ones of `input_nodes`.
        layers: From the first layer to the last; iterating gives them, too.
    """

    input_nodes: Tensor
    output_nodes: Tensor
    layers: tuple[RestrictedLayer, ...]

    def __iter__(self) -> Iterator[RestrictedLayer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> RestrictedLayer:
        return self.layers[index]


@in_call('restrict')
@torch.inference_mode(False)  # the layers outlive the caller's mode
def restrict(data: Data, nodes: Tensor, num_layers: int) -> RestrictedLayers:
    """Leaves out of every layer the edges on which no output of `nodes` depends, exactly.

    A layer reads a pair: the rows of its sources, of which its destinations are the first::

        data = pyg_sar.local(data)
        layers = pyg_sar.restrict(data, data.train_mask, num_layers=2)  # once
        x = data.x[layers.input_nodes]
        for conv, layer in zip(model.convs, layers):
            x = conv((x, x[: layer.num_dst]), layer.edge_index)
        losses = F.cross_entropy(x, data.y[layers.output_nodes], reduction='none')
        loss = pyg_sar.mean_of_batches(losses)

    The convs are SARConvs that take a pair ``(x_src, x_dst)``, as with PyG's neighbour loaders. All
    edges into a computed node are there, so an aggregation over in-edges is that of the whole
    graph. Two things are not:

    - values that a conv derives from *other* edges. ``GCNConv``, which needs the in-degrees of
      sources, takes no pair and raises a ValueError. Store its weights as ``edge_weight`` before
      partitioning, and use a linear layer and
      ``SimpleConv('sum')((x, x[: layer.num_dst]), layer.edge_index, edge_weight[layer.edges])``.
    - statistics over nodes: a batch norm between the layers sees the restricted rows only.

    Args:
        data: Plain own rows: :func:`pyg_sar.local` of what :func:`pyg_sar.load_shard` returned.
        nodes: The own nodes whose final output is wanted: a bool mask ``[num_own]``, or local ids
            without repetition, int64 (outputs then come in their order). A rank may want none.
        num_layers: Number of layers, i.e. how far an output looks; equal on all ranks.

    Returns:
        The layers. Collective: a few all-to-alls of node ids for every layer; call it once.

    Raises:
        ValueError: On all ranks, if `data`, `nodes` or `num_layers` is not as described on one.
    """
    error = _error(data, nodes, num_layers)
    raise_together(error)
    check_equal("'num_layers'", agree(num_layers))
    edge_index: ShardEdgeIndex = data.edge_index
    shard = edge_index.shard
    exchange = exchange_of(shard)
    src, dst = edge_index.as_subclass(Tensor).unbind()

    ids = nodes.nonzero().view(-1) if nodes.dtype == torch.bool else nodes
    reached = output_nodes = ids.to(src.device, copy=True)
    # The row of every own node; -1: not reached so far. Nodes reached earlier come first, so the
    # rows of a layer are the first ones of the layer before it.
    row = torch.full((shard.num_own,), -1, device=src.device)
    row[reached] = torch.arange(reached.numel(), device=src.device)
    layers: list[RestrictedLayer] = []
    for number in range(num_layers, 0, -1):
        num_dst = reached.numel()
        edges = (row[dst] >= 0).nonzero().view(-1)
        layer_src, layer_dst = src[edges], row[dst[edges]]

        new = (_read_by_any(layer_src, exchange) & (row < 0)).nonzero().view(-1)
        row[new] = torch.arange(num_dst, num_dst + new.numel(), device=src.device)
        reached = torch.cat([reached, new])

        # Its parts are not the partition's, as the destinations of all own parts come first. What
        # matters of a part is that its rows are one range and its size bounds a block's.
        num_parts = shard.parts_per_rank
        ends = [reached.numel() * i // num_parts for i in range(num_parts + 1)]
        part_ptr = all_part_ptr(shard, ends)
        place = row + part_ptr[shard.parts.start]
        place = torch.cat([place, *exchange.fetch_all([place])])
        handle, order = derive_shard(
            shard,
            part_ptr,
            place[layer_src],
            layer_dst,
            name=f'restricted for layer {number} of {num_layers}',
            dst_rows=num_dst,
        )
        if shard.e_id is not None:
            handle.shard = replace(handle.shard, e_id=shard.e_id[edges[order]])
        layers.insert(0, RestrictedLayer(handle, edges[order]))
    return RestrictedLayers(reached, output_nodes, tuple(layers))


def _read_by_any(src: Tensor, exchange: Exchange) -> Tensor:
    """Which own nodes are sources of some rank's edges, bool ``[num_own]`` (one all-to-all)."""
    shard = exchange.shard
    is_read = torch.zeros(shard.num_own + shard.num_halo, dtype=torch.int32, device=src.device)
    is_read[src] = 1
    count = is_read[: shard.num_own].clone()
    exchange.return_all([is_read[shard.num_own :]], [count])
    return count > 0


def _error(data: Data, nodes: Tensor, num_layers: int) -> ValueError | None:
    edge_index = getattr(data, 'edge_index', None)
    if not isinstance(edge_index, ShardEdgeIndex) or edge_index.shard.is_bipartite:
        return ValueError(
            "expected plain own rows, pyg_sar.local of the homogeneous 'data' of "
            f"pyg_sar.load_shard (got {type(edge_index).__name__} as its 'edge_index')"
        )
    if type(num_layers) is not int or num_layers < 1:
        return ValueError(f"'num_layers' must be a positive int (got {num_layers!r})")
    num_own = edge_index.shard.num_own
    expected = f"expected 'nodes' to be a bool mask or int64 ids of the {num_own} own nodes"
    if not isinstance(nodes, Tensor):
        return ValueError(f'{expected} (got {type(nodes).__name__})')
    is_mask = nodes.dtype == torch.bool and nodes.shape == (num_own,)
    got = ''
    if not is_mask and (nodes.dtype != torch.int64 or nodes.dim() != 1):
        got = f'{nodes.dtype} of shape {tuple(nodes.shape)}'
    elif not is_mask and nodes.numel():
        low, high = (int(v) for v in torch.aminmax(nodes))
        is_twice = torch.unique(nodes).numel() != nodes.numel()
        got = f'{low} to {high}' if low < 0 or high >= num_own else 'repeated ones' * is_twice
    if got:
        return ValueError(f'{expected}, each once (got {got})')
    return None

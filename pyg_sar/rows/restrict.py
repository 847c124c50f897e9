"""``restrict``: every layer computes only the nodes that the wanted outputs depend on.

With labels on few nodes most of a full-batch epoch computes rows that no loss reads. What a layer
must compute follows from the layer after it: the nodes wanted and their in-neighbours, on whatever
rank they are. Nothing is sampled: outputs and gradients stay those of the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.comm.derive_shard import all_part_ptr, derive_shard
from pyg_sar.comm.errors import collective
from pyg_sar.comm.exchange import Exchange, exchange_of
from pyg_sar.comm.rows_by_id import from_halo, with_halo
from pyg_sar.comm.vote import agree, check_equal, raise_on_all
from pyg_sar.rows.align import listed, masked
from pyg_sar.rows.edges import EdgeIndex, Ends, NodeIds, edge_index, node_ids
from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.rows import plain
from pyg_sar.rows.sharding import Sharding


@dataclass(frozen=True, eq=False)
class RestrictedLayer:
    """The edges that one layer needs.

    Attributes:
        edge_index: int64 ``[2, E]``: all edges into the nodes that the layer computes. Its ids are
            the places of rows in what the layer reads and computes.
        edges: Which of the edges in ``data.edge_index`` these are, int64 ``[E]``:
            ``data.edge_attr[layer.edges]`` goes with `edge_index`.
        dst: Which of the rows that the layer reads are those of the nodes that it computes, int64
            ``[num_dst]``: 0, 1, 2 ...
    """

    edge_index: EdgeIndex
    edges: Tensor
    dst: Tensor

    @property
    def num_src(self) -> int:
        """Number of rows that the layer reads."""
        return self.edge_index.ends.src.total

    @property
    def num_dst(self) -> int:
        """Number of rows that the layer computes: the first ones of those it reads."""
        return self.edge_index.ends.dst.total


@dataclass(frozen=True, eq=False)
class RestrictedLayers:
    """What :func:`restrict` returns: a :class:`RestrictedLayer` for every layer of the model.

    Attributes:
        input_nodes: Nodes whose ``x`` the first layer reads, int64 ``[layers[0].num_src]``.
        output_nodes: Nodes that the last layer computes, int64 ``[layers[-1].num_dst]``: the nodes
            asked for; the first ones of `input_nodes`.
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


@collective('restrict', 'a few all-to-alls of node ids for every layer')
@torch.inference_mode(False)  # the layers outlive the caller's mode
def restrict(data: Data, nodes: Tensor, num_layers: int) -> RestrictedLayers:
    """Leaves out of every layer the edges on which no output of `nodes` depends, exactly.

    A layer reads a pair: the rows of its sources, and those of them that it computes anew::

        layers = pyg_sar.restrict(data, data.train_mask, num_layers=2)  # once
        x = data.x[layers.input_nodes]
        for conv, layer in zip(model.convs, layers):
            x = conv((x, x[layer.dst]), layer.edge_index)
        loss = F.cross_entropy(x, data.y[layers.output_nodes])

    The convs are SARConvs that take a pair ``(x_src, x_dst)``, as with PyG's neighbour loaders. All
    edges into a computed node are there, so an aggregation over in-edges is that of the whole
    graph. Two things are not:

    - values that a conv derives from *other* edges. ``GCNConv``, which needs the in-degrees of
      sources, takes no pair and raises a ValueError. Store its weights as ``edge_weight`` before
      partitioning, and use a linear layer and
      ``SimpleConv('sum')((x, x[layer.dst]), layer.edge_index, edge_weight[layer.edges])``.
    - statistics over nodes: a batch norm between the layers sees the restricted rows only.

    Args:
        data: What :func:`pyg_sar.load_shard` returned, of one type of nodes.
        nodes: The nodes whose final output is wanted: a bool mask ``[N]``, or ids without
            repetition, int64 (outputs then come in their order).
        num_layers: Number of layers, i.e. how far an output looks; equal on all ranks.

    Returns:
        The layers; call it once for the same nodes.

    Raises:
        ValueError: On all ranks, if `data`, `nodes` or `num_layers` is not as described on one.
    """
    raise_on_all(lambda: _check(data, nodes, num_layers))
    check_equal("'nodes' and 'num_layers'", agree((nodes.dtype == torch.bool, num_layers)))
    of_graph: EdgeIndex = data.edge_index
    sharding, shard = of_graph.ends.dst, of_graph.handle.shard
    exchange = exchange_of(shard)
    src, dst = of_graph.handle.ids.unbind()

    sharding_out, output_nodes = _wanted(nodes, sharding)
    sharding_dst, reached = sharding_out, output_nodes.to(src.device)
    # The row of every own node; -1: not reached so far. Nodes reached earlier come first, so the
    # rows of a layer are the first ones of the layer before it.
    row = torch.full((shard.num_own,), -1, device=src.device)
    row[reached] = torch.arange(reached.numel(), device=src.device)
    layers: list[RestrictedLayer] = []
    for number in range(num_layers, 0, -1):
        num_dst = reached.numel()
        is_needed = row[dst] >= 0
        edges = is_needed.nonzero().view(-1)
        layer_src, layer_dst = src[edges], row[dst[edges]]

        is_new = _read_by_any(layer_src, exchange) & (row < 0)
        new = is_new.nonzero().view(-1)
        row[new] = torch.arange(num_dst, num_dst + new.numel(), device=src.device)
        reached = torch.cat([reached, new])
        sharding_src = sharding_dst.joined((sharding.selected(is_new),))

        # Its parts are not the partition's, as the destinations of all own parts come first. A part
        # only has to be a range of rows, and small enough for a block.
        num_parts = shard.parts_per_rank
        ends = [reached.numel() * i // num_parts for i in range(num_parts + 1)]
        part_ptr = all_part_ptr(shard, ends)
        ids = with_halo(row + part_ptr[shard.parts.start], exchange)
        restricted, order = derive_shard(
            shard,
            part_ptr,
            ids[layer_src],
            layer_dst,
            name=f'restricted for layer {number} of {num_layers}',
            dst_rows=num_dst,
        )
        if sharding.is_whole:  # one process holds edges in the order of the graph
            inverse = order.argsort()
            restricted, order = restricted.with_ids(restricted.ids[:, inverse]), order[inverse]
        needed = of_graph._sharding.selected(is_needed)
        sharding_of_edges = Sharding(
            needed.own,
            what='edges',
            ids=needed.ids(src.device)[order],
            total=needed.total,
            nodes=(sharding_dst, sharding_src),
        )
        layer = RestrictedLayer(
            edge_index(
                restricted, sharding_of_edges, Ends(restricted.shard, sharding_src, sharding_dst)
            ),
            _chosen(sharding_of_edges, of_graph._sharding, edges[order]),
            _chosen(sharding_dst, sharding_src, torch.arange(num_dst, device=src.device)),
        )
        layers.insert(0, layer)
        sharding_dst = sharding_src
    return RestrictedLayers(
        _chosen(sharding_dst, sharding, reached),
        _chosen(sharding_out, sharding, output_nodes),
        tuple(layers),
    )


def _chosen(chosen: Sharding, sharding: Sharding, positions: Tensor) -> Any:
    """The ids of chosen rows of a sharding, by their positions among the own ones."""
    return node_ids(sharding.ids(positions.device)[positions], 0, chosen, sharding, positions, None)


def _wanted(nodes: Tensor, sharding: Sharding) -> tuple[Sharding, Tensor]:
    """The nodes of a mask or of ids as a sharding, and their positions among the own ones."""
    if nodes.dtype == torch.bool:
        chosen, mask = masked('restrict', nodes, sharding)
        return chosen, mask.nonzero().view(-1)
    if isinstance(nodes, NodeIds) and nodes.of is sharding and nodes.shard is None:
        return nodes._sharding, nodes.local_index
    return listed('restrict', whole(nodes), sharding)


def _read_by_any(src: Tensor, exchange: Exchange) -> Tensor:
    """Which own nodes are sources of some rank's edges, bool ``[num_own]`` (one all-to-all)."""
    shard = exchange.shard
    is_read = torch.zeros(shard.num_own + shard.num_halo, dtype=torch.int32, device=src.device)
    is_read[src] = 1
    return from_halo(is_read, exchange) > 0


def _check(data: Data, nodes: Tensor, num_layers: int) -> None:
    edges: Any = getattr(data, 'edge_index', None)
    is_known = isinstance(edges, EdgeIndex) and edges.ends.src is edges.ends.dst
    if not is_known or edges.handle.is_flipped or not edges._sharding.has_ids():
        raise ValueError(
            "'data' must be that of pyg_sar.load_shard with one type of nodes (got "
            f"{type(edges).__name__} as its 'edge_index')"
        )
    if type(num_layers) is not int or num_layers < 1:
        raise ValueError(f"'num_layers' must be a positive int (got {num_layers!r})")
    num_nodes = edges.ends.dst.total
    expected = f"expected 'nodes' to be a bool mask or int64 ids of the {num_nodes} nodes"
    if not isinstance(nodes, Tensor):
        raise ValueError(f'{expected} (got {type(nodes).__name__})')
    if nodes.dtype == torch.bool and nodes.shape == (num_nodes,):
        return
    if nodes.dtype != torch.int64 or nodes.dim() != 1:
        raise ValueError(f'{expected} (got {nodes.dtype} of shape {tuple(nodes.shape)})')
    ids = plain(nodes)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
        raise ValueError(f'{expected} (got {int(ids.min())} to {int(ids.max())})')
    if torch.unique(ids).numel() != ids.numel():
        raise ValueError(f'{expected}, each once (got repeated ones)')

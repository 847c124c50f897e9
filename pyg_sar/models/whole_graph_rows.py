"""Models with a learnable row for every node of the whole graph: LINKX and LightGCN.

Every rank holds the whole parameter, as the plain model does, and reads the rows of its own nodes;
the gradient of a rank is its own nodes' share, and the sum over the ranks is that of one process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.models import LightGCN
from torch_geometric.nn.models.linkx import SparseLinear

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.comm import Exchange
from pyg_sar.over_all_nodes import global_mean, global_sum, rows
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.local_ids import plain
from pyg_sar.shard.shard import Shard, n_id_of


class GlobalSparseLinear(SparseLinear):
    """The first layer of LINKX: ``A @ weight``, with one row of the weight per node."""

    def forward(self, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """The rows of own nodes ``[num_own, out_channels]``.

        Raises:
            ValueError: If the weight does not have one row per node of the whole graph.
        """
        if not isinstance(edge_index, ShardEdgeIndex):
            return super().forward(edge_index, edge_weight)
        own = _own_rows(self.weight, edge_index)
        # propagate_type: (weight: Tensor, edge_weight: OptTensor)
        out: Tensor = self.propagate(edge_index, weight=own, edge_weight=edge_weight)
        return out if self.bias is None else out + self.bias


class GlobalLightGCN(LightGCN):
    """``LightGCN`` on a cut graph: embeddings of own nodes, rankings of this rank's pairs.

    Pairs of nodes are edges of the shard, or ids of the whole graph in a plain tensor. Losses are
    those of the pairs of all ranks.
    """

    _is_cut = False

    def get_embedding(self, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """The embeddings of own nodes ``[num_own, embedding_dim]``.

        Raises:
            ValueError: If there is not one embedding per node of the whole graph.
        """
        self._is_cut = isinstance(edge_index, ShardEdgeIndex)
        if not isinstance(edge_index, ShardEdgeIndex):
            return super().get_embedding(edge_index, edge_weight)
        x = _own_rows(self.embedding.weight, edge_index)
        out: Tensor = x * self.alpha[0]
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index, edge_weight)
            out = out + x * self.alpha[i + 1]
        return out

    def forward(
        self, edge_index: Any, edge_label_index: Any = None, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Rankings of pairs of nodes ``[num_pairs]``, by default of the edges of this shard.

        One exchange of embeddings beside the convs'.

        Args:
            edge_index: That of the shard.
            edge_label_index: Edges selected from it, or ids of the whole graph in a plain tensor.
            edge_weight: One number per edge.

        Raises:
            ValueError: On all ranks, if an id is no node's.
        """
        if not isinstance(edge_index, ShardEdgeIndex):
            return super().forward(edge_index, edge_label_index, edge_weight)
        own = self.get_embedding(edge_index, edge_weight)
        pairs = edge_index if edge_label_index is None else edge_label_index
        ends, (src, dst) = ends_of(pairs, own, edge_index.shard)
        return (ends[src] * ends[dst]).sum(dim=-1)

    def recommend(
        self,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        src_index: Tensor | None = None,
        dst_index: Tensor | None = None,
        k: int = 1,
        sorted: bool = True,
    ) -> Tensor:
        """The ids in the whole graph of the `k` best nodes ``[num_src, k]`` for own nodes.

        Every rank reads the embeddings of all nodes to choose from.

        Args:
            edge_index: That of the shard.
            edge_weight: One number per edge.
            src_index: Ids of the whole graph of other nodes to recommend to.
            dst_index: Ids of the whole graph to choose from, int64; None for all.
            k: How many.
            sorted: Whether the best comes first.
        """
        if not isinstance(edge_index, ShardEdgeIndex):
            args = (edge_weight, src_index, dst_index, k, sorted)
            return super().recommend(edge_index, *args)
        own, n_id = self.get_embedding(edge_index, edge_weight), n_id_of(edge_index.shard)
        if dst_index is None:
            dst_index = torch.arange(edge_index.shard.num_nodes, device=own.device)
        src = own if src_index is None else rows(own, src_index, n_id)
        best = (src @ rows(own, dst_index, n_id).t()).topk(k, sorted=sorted).indices
        return dst_index[best]

    def link_pred_loss(self, pred: Tensor, edge_label: Tensor, **kwargs: Any) -> Tensor:
        """The loss of the pairs of all ranks, equal on all."""
        if not self._is_cut or kwargs.get('reduction') == 'none':
            return super().link_pred_loss(pred, edge_label, **kwargs)
        is_sum = kwargs.pop('reduction', 'mean') == 'sum'
        losses: Tensor = super().link_pred_loss(pred, edge_label, reduction='none', **kwargs)
        return global_sum(losses, dim=0) if is_sum else global_mean(losses)

    def recommendation_loss(
        self,
        pos_edge_rank: Tensor,
        neg_edge_rank: Tensor,
        node_id: Tensor | None = None,
        lambda_reg: float = 1e-4,
        **kwargs: Any,
    ) -> Tensor:
        """The loss of the pairs of all ranks, equal on all; regularised by all embeddings.

        Raises:
            ValueError: With `node_id`, as ranks may name a node several times.
        """
        if not self._is_cut:
            return super().recommendation_loss(
                pos_edge_rank, neg_edge_rank, node_id, lambda_reg, **kwargs
            )
        if node_id is not None:
            raise ValueError(
                "'node_id' must be None, as ranks may name a node several times (got a tensor); "
                'regularise some nodes by pyg_sar.global_sum of their own rows'
            )
        loss = -global_mean(F.logsigmoid(pos_edge_rank - neg_edge_rank))
        count = global_sum(pos_edge_rank.new_tensor(pos_edge_rank.numel(), dtype=torch.int64))
        penalty: Tensor = lambda_reg * self.embedding.weight.square().sum() / count
        return loss + penalty


def ends_of(pairs: Tensor, z: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """The rows that pairs of nodes refer to, and the pairs as places in them (collective).

    Pairs are edges of a shard, or ids of the whole graph, int64 ``[2, num_pairs]``; `z` are the
    rows of the own nodes of `shard`. Raises ValueError if these do not fit, or pairs are of two
    types of nodes.
    """
    if shard.is_bipartite or z.size(0) != shard.num_own:
        what = 'nodes of two types' if shard.is_bipartite else f'{shard.num_own} nodes'
        raise ValueError(
            f"expected one row in 'z' for each own node, of one type (got {z.size(0)} rows for "
            f'{what}); decode pyg_sar.rows(z, ids, n_id)'
        )
    if isinstance(pairs, ShardEdgeIndex):
        return with_halo(z, Exchange(pairs.shard)), plain(pairs)
    ends = rows(z, pairs, n_id_of(shard)).flatten(0, 1)
    return ends, torch.arange(pairs.numel(), device=z.device).view(pairs.shape)


def _own_rows(weight: Tensor, edge_index: ShardEdgeIndex) -> Tensor:
    """The rows of own nodes, by their ids in the whole graph."""
    shard = edge_index.shard
    if weight.size(0) != shard.num_nodes:
        raise ValueError(
            f'expected one row per node of the whole graph: {shard.num_nodes} rows '
            f'(got shape {tuple(weight.shape)})'
        )
    return weight.index_select(0, n_id_of(shard))

"""Models with a learnable row for every node of the whole graph: LINKX and LightGCN.

Every rank holds the whole parameter, as the plain model does, and reads the rows of its own nodes;
the gradient of a rank is its own nodes' share, and the sum over the ranks is that of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torch_geometric.nn.models import LightGCN
from torch_geometric.nn.models.linkx import SparseLinear

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.comm import Exchange, is_distributed
from pyg_sar.shard.edge_index import ShardEdgeIndex


class GlobalSparseLinear(SparseLinear):  # type: ignore[misc]
    """The first layer of LINKX: ``A @ weight``, with one row of the weight per node."""

    def forward(self, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """The rows of own nodes ``[num_own, out_channels]``.

        Raises:
            ValueError: If the weight does not have one row per node of the whole graph.
        """
        if not isinstance(edge_index, ShardEdgeIndex):
            return super().forward(edge_index, edge_weight)  # type: ignore[no-any-return]
        own = _own_rows(self.weight, edge_index)
        # propagate_type: (weight: Tensor, edge_weight: OptTensor)
        out: Tensor = self.propagate(edge_index, weight=own, edge_weight=edge_weight)
        return out if self.bias is None else out + self.bias


def _of_one_process(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The method of LightGCN, refused on several processes."""

    @wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Tensor:
        if is_distributed():
            raise ValueError(
                f"LightGCN's '{method.__name__}' sees the nodes and edges of one rank; use the "
                'embeddings or rankings with pyg_sar.global_mean instead'
            )
        return method(*args, **kwargs)

    return checked


class GlobalLightGCN(LightGCN):  # type: ignore[misc]
    """``LightGCN`` on a cut graph: embeddings of own nodes, rankings of own edges.

    Its losses and recommendations take no edge_index that would tell them of the cut, so with
    several processes they raise a ValueError. There ``recommendation_loss`` is
    ``pyg_sar.global_mean(-F.logsigmoid(positive - negative))``; as regularisation add ``lambda_reg
    / number of pairs * pyg_sar.global_sum(model.embedding.weight[data.n_id].square().sum())``.
    """

    def get_embedding(self, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """The embeddings of own nodes ``[num_own, embedding_dim]``.

        Raises:
            ValueError: If there is not one embedding per node of the whole graph.
        """
        if not isinstance(edge_index, ShardEdgeIndex):
            return super().get_embedding(edge_index, edge_weight)  # type: ignore[no-any-return]
        x = _own_rows(self.embedding.weight, edge_index)
        out: Tensor = x * self.alpha[0]
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index, edge_weight)
            out = out + x * self.alpha[i + 1]
        return out

    def forward(
        self, edge_index: Any, edge_label_index: Any = None, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Rankings of edges of this shard ``[num_labels]``, all of them by default.

        One exchange of all halo embeddings beside the convs'.

        Raises:
            ValueError: If `edge_label_index` is not made of edges of the shard: other pairs of
                nodes may lie on ranks that exchange nothing.
        """
        if not isinstance(edge_index, ShardEdgeIndex):
            out: Tensor = super().forward(edge_index, edge_label_index, edge_weight)
            return out
        labels = edge_index if edge_label_index is None else edge_label_index
        if not isinstance(labels, ShardEdgeIndex):
            raise ValueError(
                "expected edges selected from the shard's edge_index in 'edge_label_index' "
                f'(got {type(labels).__name__})'
            )
        own = self.get_embedding(edge_index, edge_weight)
        rows = with_halo(own, Exchange(edge_index.shard))
        src, dst = labels.as_subclass(Tensor)
        return (rows[src] * rows[dst]).sum(dim=-1)

    link_pred_loss = _of_one_process(LightGCN.link_pred_loss)
    recommendation_loss = _of_one_process(LightGCN.recommendation_loss)
    recommend = _of_one_process(LightGCN.recommend)


def _own_rows(weight: Tensor, edge_index: ShardEdgeIndex) -> Tensor:
    """The rows of own nodes, by their ids in the whole graph."""
    shard = edge_index.shard
    if weight.size(0) != shard.num_nodes:
        raise ValueError(
            f'expected one row per node of the whole graph: {shard.num_nodes} rows '
            f'(got shape {tuple(weight.shape)})'
        )
    if shard.n_id is None:
        raise ValueError('expected the edge_index of load_shard (got one derived from it)')
    return weight.index_select(0, shard.n_id)

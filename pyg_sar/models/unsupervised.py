"""Autoencoders and Deep Graph Infomax: an encoder, and losses over all nodes and pairs of nodes.

Their losses get no edge_index that would tell of the cut. So hooks stand at the encoder, where the
shard is seen, and at the decoder, which is given the rows of the two ends of every pair in place of
those of own nodes. PyG's own formulas then run as they are: a mean over all numbers of a tensor is
taken over those of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.nn.models import ARGA, ARGVA, GAE, VGAE, DeepGraphInfomax, InnerProductDecoder

from pyg_sar.comm import agree, all_to_all, is_distributed
from pyg_sar.models.whole_graph_rows import ends_of
from pyg_sar.over_all_nodes import global_mean, negative_sampling
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.nested import leaves_of
from pyg_sar.shard.shard import Shard


class LastGraph:
    """The shards that an encoder was called with last; a copy of the model forgets them."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []

    def __reduce__(self) -> Any:
        return LastGraph, ()

    def see(self, encoder: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pre-hook of the encoder."""
        self.shards = _shards_in((args, kwargs))

    def give_ends(self, decoder: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """A forward pre-hook of the decoder: rows of pairs for rows of own nodes (collective)."""
        given = {**dict(zip(('z', 'edge_index'), args, strict=False)), **kwargs}
        z, pairs = given.get('z'), given.get('edge_index')
        if not self.shards and not isinstance(pairs, ShardEdgeIndex):
            return None
        if not isinstance(z, Tensor) or not isinstance(pairs, Tensor):
            raise ValueError(
                f"expected the rows of own nodes in 'z' and pairs of nodes in 'edge_index' as the "
                f'first arguments of {type(decoder).__name__} (got {type(z).__name__} and '
                f'{type(pairs).__name__})'
            )
        shard = pairs.shard if isinstance(pairs, ShardEdgeIndex) else self._shard()
        ends, index = ends_of(pairs, z, shard)
        new = {'z': ends, 'edge_index': index}
        positional = [*new.values()][: len(args)] + list(args[2:])
        return tuple(positional), {**kwargs, **{k: v for k, v in new.items() if k in kwargs}}

    def _shard(self) -> Shard:
        if len(self.shards) > 1:
            raise ValueError(
                'expected an encoder of one edge_index of load_shard, as pairs of nodes are ids of '
                f'one set (got {len(self.shards)} of them): decode pyg_sar.rows(z, ids, n_id)'
            )
        return self.shards[0]


def _shards_in(value: Any) -> list[Shard]:
    shards = (leaf.shard for leaf in leaves_of(value) if isinstance(leaf, ShardEdgeIndex))
    return list(dict.fromkeys(shards))


class _GlobalMeans(TorchFunctionMode):
    """``values.mean()`` is that of all ranks' values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.mean, Tensor.mean) and len(args) == 1 and not kwargs:
            return global_mean(args[0])
        return func(*args, **(kwargs or {}))


def _over_all_nodes(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of PyG's, over all nodes if the encoder ran on a cut graph."""

    @wraps(method)
    def loss(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        is_cut = _shards_in((args, kwargs)) or self.last_graph.shards
        with _GlobalMeans() if is_cut else nullcontext():
            return method(self, *args, **kwargs)

    return loss


def _of_all_ranks(tensor: Tensor) -> Tensor:
    """The rows of all ranks, by rank (collective: a small all-gather and an all-to-all)."""
    tensor = tensor.detach()
    counts = agree(tensor.size(0))
    return all_to_all(torch.cat([tensor] * len(counts)), [tensor.size(0)] * len(counts), counts)


class Unsupervised(torch.nn.Module):
    """What the forms for a cut graph have in common; beside it they have PyG's class."""

    encoder: torch.nn.Module
    decoder: torch.nn.Module

    def watch(self) -> None:
        """Sets the hooks, once."""
        if 'last_graph' in vars(self):
            return
        self.last_graph = LastGraph()
        self.encoder.register_forward_pre_hook(self.last_graph.see, with_kwargs=True)
        if isinstance(self, GAE):
            self.decoder.register_forward_pre_hook(self.last_graph.give_ends, with_kwargs=True)


class GlobalInnerProductDecoder(InnerProductDecoder):
    """The decoder of an autoencoder."""

    def forward_all(self, z: Tensor, sigmoid: bool = True) -> Tensor:
        """All pairs of nodes, on one process.

        Raises:
            ValueError: On several.
        """
        if is_distributed():
            raise ValueError(
                "'forward_all' sees the nodes of one rank; give 'forward' pairs of ids of the "
                'whole graph'
            )
        return super().forward_all(z, sigmoid)


class GlobalGAE(Unsupervised, GAE):
    """``GAE`` on a cut graph: losses and scores over the pairs of all ranks.

    Pairs of nodes are edges of the shard (`data.edge_index`, or selected from it), or ids of the
    whole graph in a plain tensor; one that several ranks give counts several times. Decoders take
    ``(z, edge_index, ...)`` and read rows of `z` at the pairs only.
    """

    @_over_all_nodes
    def recon_loss(
        self, z: Tensor, pos_edge_index: Tensor, neg_edge_index: Tensor | None = None
    ) -> Tensor:
        """The loss of the pairs of all ranks, equal on all.

        Without `neg_edge_index` those of :func:`pyg_sar.negative_sampling` are taken.

        Raises:
            ValueError: Without `neg_edge_index`, if `pos_edge_index` is no edge_index of the shard.
        """
        if neg_edge_index is None:
            if self.last_graph.shards and not isinstance(pos_edge_index, ShardEdgeIndex):
                raise ValueError(
                    "expected 'neg_edge_index', as of "
                    'pyg_sar.negative_sampling(data.edge_index), as pairs by ids of the whole '
                    'graph do not tell which other pairs are edges (got None)'
                )
            is_cut = isinstance(pos_edge_index, ShardEdgeIndex)
            neg_edge_index = negative_sampling(pos_edge_index, None if is_cut else z.size(0))
        return super().recon_loss(z, pos_edge_index, neg_edge_index)

    def test(
        self, z: Tensor, pos_edge_index: Tensor, neg_edge_index: Tensor
    ) -> tuple[float, float]:
        """Area under the ROC curve and average precision of the pairs of all ranks."""
        pairs = pos_edge_index, neg_edge_index
        scores = [self.decoder(z, each, sigmoid=True) for each in pairs]
        if self.last_graph.shards:
            scores = [_of_all_ranks(each) for each in scores]
        # PyG's own code, with a decoder that is given the scores.
        given = SimpleNamespace(decoder=lambda z, scores, sigmoid: scores[0])
        return GAE.test(given, z, *(each.view(1, -1) for each in scores))


class GlobalVGAE(GlobalGAE, VGAE):
    """``VGAE`` on a cut graph; see :class:`GlobalGAE`. Each rank draws the noise of its nodes."""

    kl_loss = _over_all_nodes(VGAE.kl_loss)


class GlobalARGA(GlobalGAE, ARGA):
    """``ARGA`` on a cut graph; see :class:`GlobalGAE`."""

    reg_loss = _over_all_nodes(ARGA.reg_loss)
    discriminator_loss = _over_all_nodes(ARGA.discriminator_loss)


class GlobalARGVA(GlobalARGA, ARGVA):
    """``ARGVA`` on a cut graph; see :class:`GlobalGAE`."""


class GlobalDeepGraphInfomax(Unsupervised, DeepGraphInfomax):
    """``DeepGraphInfomax`` on a cut graph.

    Its `summary` and `corruption` are the user's, and look at all nodes: ``lambda z, *args:
    pyg_sar.global_mean(z, dim=0).sigmoid()``, and :func:`pyg_sar.permute_rows`.
    """

    loss = _over_all_nodes(DeepGraphInfomax.loss)

    def test(
        self,
        train_z: Tensor,
        train_y: Tensor,
        test_z: Tensor,
        test_y: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> float:
        """The accuracy of a logistic regression on the rows of all ranks, which each computes."""
        sets = [train_z, train_y, test_z, test_y]
        if self.last_graph.shards:
            sets = [_of_all_ranks(each) for each in sets]
        return super().test(*sets, *args, **kwargs)

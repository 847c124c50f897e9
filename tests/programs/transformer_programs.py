"""Graph transformers as users write them: masks, weights, layers of torch, kernels of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from attention_programs import Layered, fit
from shared import Program
from torch import Tensor
from torch.nn import (
    LayerNorm,
    Linear,
    Module,
    MultiheadAttention,
    Parameter,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool
from torch_geometric.utils import scatter, softmax


class Projected(Module):
    """Queries, keys and values of 2 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = Linear(8, 8), Linear(8, 8), Linear(8, 8)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(lin(x).view(x.size(0), 2, 4) for lin in (self.q, self.k, self.v))

    def sequences(self, x: Tensor) -> tuple[Tensor, ...]:
        """[1, heads, N, d]."""
        return tuple(each.transpose(0, 1).unsqueeze(0) for each in self.heads(x))

    @staticmethod
    def joined(out: Tensor) -> Tensor:
        return out.squeeze(0).transpose(0, 1).reshape(out.size(2), 8)


class Nodeformer(Projected):
    """Positive random features, with a normaliser by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('projection', torch.randn(4, 12))

    def features(self, x: Tensor, is_query: bool) -> Tensor:
        x = x / math.sqrt(math.sqrt(4))
        dash = torch.einsum('nhd,dm->nhm', x, self.projection.to(x.dtype))
        diagonal = (x**2).sum(-1, keepdim=True) / 2
        if is_query:
            top = dash.amax(dim=-1, keepdim=True).detach()
        else:
            top = dash.amax(dim=(0, -1), keepdim=True).detach()
        return (torch.exp(dash - diagonal - top) + 1e-6) / math.sqrt(12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        q, k = self.features(q, True), self.features(k, False)
        kvs = torch.einsum('nhm,nhd->hmd', k, v)
        num = torch.einsum('nhm,hmd->nhd', q, kvs)
        den = torch.einsum('nhm,hm->nh', q, k.sum(0)).unsqueeze(-1)
        return (num / den).reshape(x.size(0), 8)


class SoftmaxOverNodes(Projected):
    """Efficient attention: softmax of keys over the nodes, of queries over the channels."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        context = torch.einsum('nhd,nhe->hde', k.softmax(dim=0), v)
        return torch.einsum('nhd,hde->nhe', q.softmax(dim=-1), context).flatten(1)


class Masked(Projected):
    """Linear attention to the nodes of a mask, with a batch dimension in front."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unsqueeze(0) for each in self.heads(x))
        q, k = F.relu(q) + 1e-3, F.relu(k) + 1e-3
        mask = (x[:, 0] > x[:, 0].mean()).view(1, -1, 1, 1)
        k = k.masked_fill(~mask, 0)
        kv = torch.einsum('bnhd,bnhe->bhde', k, v)
        z = 1 / (torch.einsum('bnhd,bhd->bnh', q, k.sum(1)) + 1e-6)
        out = torch.einsum('bnhd,bhde,bnh->bnhe', q, kv, z)
        return out.reshape(x.size(0), 8)


class Matmuls(Projected):
    """By `@`, `bmm` and `norm`, as SGFormer in its first code."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.permute(1, 0, 2) for each in self.heads(x))
        q = q / q.norm(p=2, dim=-1, keepdim=True)
        k = k / k.norm(p=2, dim=-1, keepdim=True)
        n = x.size(0)
        kv = torch.bmm(k.transpose(1, 2), v)
        num = torch.baddbmm(n * v, q, kv)
        ones = torch.ones(2, n, 1, dtype=x.dtype)
        den = torch.bmm(q, torch.bmm(k.transpose(1, 2), ones)) + n
        return (num / den).permute(1, 0, 2).flatten(1)


class LinearOfGraphs(Module):
    """Linear attention inside of each of several graphs, by scatter and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.qkv, self.out = Linear(6, 8), Linear(8, 24), Linear(16, 3)

    def forward(self, data: Data) -> Tensor:
        x, batch = self.lin(data.x), data.y
        q, k, v = self.qkv(x).chunk(3, -1)
        k = softmax(k, batch, num_nodes=3)
        kv = scatter(k.unsqueeze(2) * v.unsqueeze(1), batch, 0, 3, 'sum')
        x = (q.unsqueeze(1) @ kv[batch]).squeeze(1)
        pooled = global_mean_pool(x, batch, 3) + global_add_pool(k, batch, 3)
        out: Tensor = self.out(torch.cat([x, pooled[batch]], -1))
        return out


class Sdpa(Projected):
    """scaled_dot_product_attention with options."""

    def given(self, x: Tensor) -> dict[str, object]:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.sequences(x)
        return self.joined(F.scaled_dot_product_attention(q, k, v, **self.given(x)))


class Causal(Sdpa):
    def given(self, x: Tensor) -> dict[str, object]:
        return {'is_causal': True}


class KeyMask(Sdpa):
    """Keys of a mask, [N] as bool, broadcast over queries."""

    def given(self, x: Tensor) -> dict[str, object]:
        return {'attn_mask': (x[:, 1] > -10).logical_and(x[:, 0] > x[:, 0].mean())[None, :]}


class FloatKeyMask(Sdpa):
    """A number added for each key."""

    def given(self, x: Tensor) -> dict[str, object]:
        return {'attn_mask': x[:, 0].detach().view(1, 1, 1, -1)}


class PairMask(Sdpa):
    """N x N of plain numbers."""

    def given(self, x: Tensor) -> dict[str, object]:
        n = x.size(0)
        return {'attn_mask': torch.ones(n, n, dtype=torch.bool).tril()}


class AdjacencyMask(Module):
    """Attends to neighbours by a dense adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.out = Linear(6, 8), Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        n = data.num_nodes
        mask = torch.eye(n, dtype=torch.bool)
        mask[data.edge_index[1], data.edge_index[0]] = True
        x = self.lin(data.x)
        out: Tensor = self.out(F.scaled_dot_product_attention(x, x, x, attn_mask=mask))
        return out


class Dropping(Sdpa):
    def given(self, x: Tensor) -> dict[str, object]:
        return {'dropout_p': 0.5} if self.training else {}


class Grouped(Sdpa):
    """More query heads than key heads."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.sequences(x)
        out = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
        return self.joined(out)


class WithWeights(Module):
    """Multi-head attention that gives its weights; they are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attention(x[None], x[None], x[None])
        return out[0]


class Padded(Module):
    """Some nodes are no keys."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiheadAttention(8, 2, batch_first=True, kdim=4, vdim=4)

    def forward(self, x: Tensor) -> Tensor:
        mask = (x[:, 0] < x[:, 0].mean())[None]
        key = x[None, :, :4]
        out, _ = self.attention(x[None], key, key, key_padding_mask=mask, need_weights=False)
        return out[0]


class DroppingHeads(Module):
    """Dropout of the weights while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiheadAttention(8, 2, dropout=0.3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attention(x, x, x, need_weights=False)
        return out


class Encoder(Module):
    """torch.nn.TransformerEncoderLayer over all nodes."""

    norm_first = False
    batch_first = True
    layers = 1

    def __init__(self) -> None:
        super().__init__()
        layer = TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=self.batch_first, norm_first=self.norm_first
        )
        self.encoder: Module = layer
        if self.layers > 1:
            nested = self.batch_first and not self.norm_first
            self.encoder = TransformerEncoder(layer, self.layers, enable_nested_tensor=nested)

    def forward(self, x: Tensor) -> Tensor:
        dim = 0 if self.batch_first else 1
        out: Tensor = self.encoder(x.unsqueeze(dim)).squeeze(dim)
        return out


class Stack(Encoder):
    layers = 2


class PaddedEncoder(Encoder):
    """With src_key_padding_mask."""

    layers = 2

    def forward(self, x: Tensor) -> Tensor:
        mask = (x[:, 0] < x[:, 0].mean())[None]
        out: Tensor = self.encoder(x[None], src_key_padding_mask=mask)[0]
        return out


class CausalEncoder(Encoder):
    """With a mask of pairs."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.size(0), dtype=x.dtype)
        out: Tensor = self.encoder(x[None], src_mask=mask, is_causal=True)[0]
        return out


class ByHand(Projected):
    """softmax(q k^T) v."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        scores = torch.einsum('nhd,mhd->hnm', q, k) / 2
        return torch.einsum('hnm,mhd->nhd', scores.softmax(-1), v).flatten(1)


class ByBmm(Projected):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.transpose(0, 1) for each in self.heads(x))
        scores = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
        return torch.bmm(scores, v).transpose(0, 1).flatten(1)


class PooledByAttention(Module):
    """A seed asks all nodes by multi-head attention with weights, which are over nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = Parameter(torch.randn(1, 2, 8))
        self.attention = MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, weights = self.attention(self.seed.to(x.dtype), x[None], x[None])
        return x * weights[0].sum(0).unsqueeze(-1) + out[0].mean(0)


class Galerkin(Projected):
    """Norms of keys and values, divided by the number of nodes; the class token comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_k, self.norm_v = LayerNorm(4), LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        k, v = self.norm_k(k), self.norm_v(v)
        context = torch.matmul(k.permute(1, 2, 0), v.permute(1, 0, 2)) / x.shape[0]
        return torch.matmul(q.permute(1, 0, 2), context).permute(1, 0, 2).reshape(-1, 8)


class Virtual(Module):
    """A class token that is put before all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.token = Parameter(torch.randn(1, 8))
        self.attention = MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.to(x.dtype), x])
        out, _ = self.attention(h, h, h, need_weights=False)
        return out[1:] + out[0]


class Cumulative(Projected):
    """Causal linear attention by cumsum, in the order of ids."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum('nhd,nhe->nhde', k, v).cumsum(0)
        z = torch.einsum('nhd,nhd->nh', q, k.cumsum(0)).unsqueeze(-1)
        return (torch.einsum('nhd,nhde->nhe', q, kv) / z).flatten(1)


class Ends(Encoder):
    """Padding comes last, which torch may cut off in evaluation."""

    layers = 2

    def forward(self, x: Tensor) -> Tensor:
        mask = (torch.arange(x.size(0)) >= 60).unsqueeze(0)
        out: Tensor = self.encoder(x[None], src_key_padding_mask=mask)[0]
        missing = x.size(0) - out.size(0)
        return F.pad(out, (0, 0, 0, missing)) if missing else out


class ReadsTokens(Module):
    """Nodes ask tokens with weights, tokens ask nodes without."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = Parameter(torch.randn(5, 8))
        self.read, self.write = MultiheadAttention(8, 2), MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens, weights = self.read(self.tokens, x, x, average_attn_weights=False)
        out, back = self.write(x, tokens, tokens)
        return out + back.sum(-1, keepdim=True) * weights.sum((0, 1)).unsqueeze(-1)


class Decoder(Module):
    """Tokens as targets of a decoder, nodes as its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = Parameter(torch.randn(1, 3, 8))
        self.decoder = TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.tokens, x[None])[0]
        return x * out.mean(0)


class NodesDecode(Decoder):
    """Nodes as targets, tokens as memory."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(x[None], self.tokens)[0]
        return out


class Linformer(Projected):
    """Keys and values are projected to few rows by a weight with a row for each node."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Parameter(torch.randn(91, 6))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        k = torch.einsum('nhd,nk->hkd', k, self.rows)
        v = torch.einsum('nhd,nk->hkd', v, self.rows)
        return torch.einsum(
            'nhk,hkd->nhd', torch.einsum('nhd,hkd->nhk', q, k).softmax(-1), v
        ).flatten(1)


class Landmarks(Projected):
    """Nystroem: landmarks are means of runs of nodes."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.transpose(0, 1) for each in self.heads(x))
        low_q, low_k = (each.reshape(2, 7, 13, 4).mean(2) for each in (q, k))
        first = (q @ low_k.transpose(1, 2)).softmax(-1)
        middle = (low_q @ low_k.transpose(1, 2)).softmax(-1)
        last = (low_q @ k.transpose(1, 2)).softmax(-1)
        near_one = middle + torch.eye(7, dtype=x.dtype)  # means of runs are much alike
        return (first @ torch.linalg.pinv(near_one) @ (last @ v)).transpose(0, 1).flatten(1)


class Hydra(Module):
    """As many heads as channels: sums of products; and AFT's softmax of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split(8, dim=-1)
        hydra = F.normalize(q, dim=-1) * (F.normalize(k, dim=-1) * v).sum(dim=-2, keepdim=True)
        top = k.max(dim=0, keepdim=True)[0]
        exp = torch.exp(k - top)
        return hydra + torch.sigmoid(q) * ((exp * v).sum(0) / exp.sum(0))


class RandomFeatures(Projected):
    """Features drawn anew in every forward."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        torch.manual_seed(3)
        w = torch.randn(4, 16, dtype=x.dtype)
        q, k = ((each @ w).cos() + 1.5 for each in (q, k))
        out = torch.einsum('nhm,hmd->nhd', q, torch.einsum('nhm,nhd->hmd', k, v))
        return (out / torch.einsum('nhm,hm->nh', q, k.sum(0))[..., None]).flatten(1)


class CausalByGather(Projected):
    """With a mask of pairs that has rows, and keys that are plain."""

    def forward(self, x: Tensor) -> Tensor:
        import pyg_sar

        q, k, v = self.sequences(x)
        k, v = pyg_sar.gather(k), pyg_sar.gather(v)
        rank = x[:, 0].detach()
        mask = rank[:, None] >= pyg_sar.gather(rank)[None]
        return self.joined(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Hops(Module):
    """NAGphormer: a sequence of hops for each node, which is an item of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.conv = Linear(6, 8), GCNConv(8, 8)
        self.encoder = TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.score, self.out = Linear(16, 1), Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        hops = [self.lin(data.x)]
        for _ in range(3):
            hops.append(self.conv(hops[-1], data.edge_index))
        h = self.encoder(torch.stack(hops, 1))
        target = h[:, 0].unsqueeze(1).repeat(1, 3, 1)
        weight = self.score(torch.cat([target, h[:, 1:]], -1)).softmax(1)
        out: Tensor = self.out(h[:, 0] + (weight * h[:, 1:]).sum(1))
        return out


class Codebook(Projected):
    """Attends to means of clusters with the log of their sizes, and moves them (as in GOAT)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('centres', torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x.detach(), self.centres.to(x.dtype)).argmin(1)
        one_hot = F.one_hot(near, 5).to(x.dtype)
        count = one_hot.sum(0)
        means = one_hot.t() @ x / count.clamp(min=1).unsqueeze(1)
        scores = self.q(x) @ self.k(means).t() + torch.log(count.clamp(min=1e-9))
        if self.training:
            self.centres = 0.9 * self.centres + 0.1 * means.detach()
        return scores.softmax(-1) @ self.v(means)


MODELS: dict[str, Callable[[], Module]] = {
    'nodeformer_kernel': lambda: Layered(Nodeformer),
    'softmax_over_nodes': lambda: Layered(SoftmaxOverNodes),
    'masked_linear': lambda: Layered(Masked),
    'linear_by_bmm': lambda: Layered(Matmuls),
    'sdpa_mask_of_keys': lambda: Layered(KeyMask),
    'sdpa_numbers_of_keys': lambda: Layered(FloatKeyMask),
    'sdpa_grouped': lambda: Layered(Grouped),
    'multihead_padded': lambda: Layered(Padded),
    'encoder_stack': lambda: Layered(Stack),
    'encoder_padded': lambda: Layered(PaddedEncoder),
    'pooled_with_weights': lambda: Layered(PooledByAttention),
    'galerkin': lambda: Layered(Galerkin),
    'class_token': lambda: Layered(Virtual),
    'tokens_with_weights': lambda: Layered(ReadsTokens),
    'decoder_of_tokens': lambda: Layered(Decoder),
    'decoder_of_nodes': lambda: Layered(NodesDecode),
    'linformer': lambda: Layered(Linformer),
    'hydra_and_aft': lambda: Layered(Hydra),
    'random_features': lambda: Layered(RandomFeatures),
    'mask_of_pairs_by_gather': lambda: Layered(CausalByGather),
    'codebook': lambda: Layered(Codebook),
    'linear_of_several_graphs': lambda: LinearOfGraphs(),
    'sequences_of_hops': lambda: Hops(),
}

REFUSED: dict[str, Callable[[], Module]] = {
    'sdpa_causal': lambda: Layered(Causal),
    'sdpa_mask_of_pairs': lambda: Layered(PairMask),
    'sdpa_dropout': lambda: Layered(Dropping),
    'multihead_with_weights': lambda: Layered(WithWeights),
    'multihead_dropout': lambda: Layered(DroppingHeads),
    'encoder_causal': lambda: Layered(CausalEncoder),
    'softmax_by_einsum': lambda: Layered(ByHand),
    'softmax_by_bmm': lambda: Layered(ByBmm),
    'cumulative': lambda: Layered(Cumulative),
    'encoder_padded_at_its_end': lambda: Layered(Ends),
    'landmarks_of_runs': lambda: Layered(Landmarks),
    'sdpa_mask_of_edges': lambda: AdjacencyMask(),
}

PROGRAMS: dict[str, Program] = {
    name: lambda data, ddp, make=make: fit(data, ddp, make) for name, make in MODELS.items()
}

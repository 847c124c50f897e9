"""Graph transformers as users write them: masks, weights, layers of torch, kernels of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attention_programs import QKV, fit, fit_layers, heads
from shared import named, parts, programs
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool
from torch_geometric.utils import scatter, softmax


def sequences(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    """[1, heads, N, d]."""
    return tuple(each.transpose(0, 1).unsqueeze(0) for each in heads(m, x))


def joined(out: Tensor) -> Tensor:
    return out.squeeze(0).transpose(0, 1).reshape(out.size(2), 8)


def features(m: Any, x: Tensor, is_query: bool) -> Tensor:
    x = x / math.sqrt(math.sqrt(4))
    dash = torch.einsum('nhd,dm->nhm', x, m.projection.to(x.dtype))
    diagonal = (x**2).sum(-1, keepdim=True) / 2
    top = dash.amax(dim=-1 if is_query else (0, -1), keepdim=True).detach()
    return (torch.exp(dash - diagonal - top) + 1e-6) / math.sqrt(12)


@parts(**QKV, projection=lambda: nn.Buffer(torch.randn(4, 12)))
def nodeformer_kernel(m: Any, x: Tensor) -> Tensor:
    """Positive random features, with a normaliser by einsum."""
    q, k, v = heads(m, x)
    q, k = features(m, q, True), features(m, k, False)
    kvs = torch.einsum('nhm,nhd->hmd', k, v)
    num = torch.einsum('nhm,hmd->nhd', q, kvs)
    den = torch.einsum('nhm,hm->nh', q, k.sum(0)).unsqueeze(-1)
    return (num / den).reshape(x.size(0), 8)


@parts(**QKV)
def softmax_over_nodes(m: Any, x: Tensor) -> Tensor:
    """Efficient attention: softmax of keys over the nodes, of queries over the channels."""
    q, k, v = heads(m, x)
    context = torch.einsum('nhd,nhe->hde', k.softmax(dim=0), v)
    return torch.einsum('nhd,hde->nhe', q.softmax(dim=-1), context).flatten(1)


@parts(**QKV)
def masked_linear(m: Any, x: Tensor) -> Tensor:
    """Linear attention to the nodes of a mask, with a batch dimension in front."""
    q, k, v = (each.unsqueeze(0) for each in heads(m, x))
    q, k = F.relu(q) + 1e-3, F.relu(k) + 1e-3
    mask = (x[:, 0] > x[:, 0].mean()).view(1, -1, 1, 1)
    k = k.masked_fill(~mask, 0)
    kv = torch.einsum('bnhd,bnhe->bhde', k, v)
    z = 1 / (torch.einsum('bnhd,bhd->bnh', q, k.sum(1)) + 1e-6)
    out = torch.einsum('bnhd,bhde,bnh->bnhe', q, kv, z)
    return out.reshape(x.size(0), 8)


@parts(**QKV)
def linear_by_bmm(m: Any, x: Tensor) -> Tensor:
    """By `@`, `bmm` and `norm`, as SGFormer in its first code."""
    q, k, v = (each.permute(1, 0, 2) for each in heads(m, x))
    q = q / q.norm(p=2, dim=-1, keepdim=True)
    k = k / k.norm(p=2, dim=-1, keepdim=True)
    n = x.size(0)
    kv = torch.bmm(k.transpose(1, 2), v)
    num = torch.baddbmm(n * v, q, kv)
    ones = torch.ones(2, n, 1, dtype=x.dtype)
    den = torch.bmm(q, torch.bmm(k.transpose(1, 2), ones)) + n
    return (num / den).permute(1, 0, 2).flatten(1)


@parts(lin=(nn.Linear, 6, 8), qkv=(nn.Linear, 8, 24), out=(nn.Linear, 16, 3))
def linear_of_several_graphs(m: Any, data: Data) -> Tensor:
    """Linear attention inside of each of several graphs, by scatter and pools."""
    x, batch = m.lin(data.x), data.y
    q, k, v = m.qkv(x).chunk(3, -1)
    k = softmax(k, batch, num_nodes=3)
    kv = scatter(k.unsqueeze(2) * v.unsqueeze(1), batch, 0, 3, 'sum')
    x = (q.unsqueeze(1) @ kv[batch]).squeeze(1)
    pooled = global_mean_pool(x, batch, 3) + global_add_pool(k, batch, 3)
    return m.out(torch.cat([x, pooled[batch]], -1))


def sdpa(options: Callable[[Any, Tensor], dict[str, object]]) -> Callable[[], nn.Module]:
    """scaled_dot_product_attention with options, which may depend on the module and on x."""

    @parts(**QKV)
    def attend(m: Any, x: Tensor) -> Tensor:
        q, k, v = sequences(m, x)
        return joined(F.scaled_dot_product_attention(q, k, v, **options(m, x)))

    return attend


def of_mask(mask: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return sdpa(lambda m, x: {'attn_mask': mask(x)})


def of_pairs(x: Tensor) -> Tensor:
    return torch.ones(x.size(0), x.size(0), dtype=torch.bool).tril()


def of_keys(x: Tensor) -> Tensor:
    """[N] as bool, broadcast over queries."""
    return (x[:, 1] > -10).logical_and(x[:, 0] > x[:, 0].mean())[None, :]


@parts(lin=(nn.Linear, 6, 8), out=(nn.Linear, 8, 3))
def sdpa_mask_of_edges(m: Any, data: Data) -> Tensor:
    """Attends to neighbours by a dense adjacency."""
    mask = torch.eye(data.num_nodes, dtype=torch.bool)
    mask[data.edge_index[1], data.edge_index[0]] = True
    x = m.lin(data.x)
    return m.out(F.scaled_dot_product_attention(x, x, x, attn_mask=mask))


@parts(**QKV)
def sdpa_grouped(m: Any, x: Tensor) -> Tensor:
    """More query heads than key heads."""
    q, k, v = sequences(m, x)
    return joined(F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True))


@parts(attention=partial(nn.MultiheadAttention, 8, 2, batch_first=True))
def multihead_with_weights(m: Any, x: Tensor) -> Tensor:
    """The weights are not used."""
    return m.attention(x[None], x[None], x[None])[0][0]


@parts(attention=partial(nn.MultiheadAttention, 8, 2, batch_first=True, kdim=4, vdim=4))
def multihead_padded(m: Any, x: Tensor) -> Tensor:
    """Some nodes are no keys."""
    mask = (x[:, 0] < x[:, 0].mean())[None]
    key = x[None, :, :4]
    return m.attention(x[None], key, key, key_padding_mask=mask, need_weights=False)[0][0]


LAYER = partial(nn.TransformerEncoderLayer, 8, 2, 16, dropout=0.0, batch_first=True)


def stack() -> nn.Module:
    return nn.TransformerEncoder(LAYER(), 2)


@parts(encoder=stack)
def encoder_stack(m: Any, x: Tensor) -> Tensor:
    return m.encoder(x.unsqueeze(0)).squeeze(0)


@parts(encoder=stack)
def encoder_padded(m: Any, x: Tensor) -> Tensor:
    mask = (x[:, 0] < x[:, 0].mean())[None]
    return m.encoder(x[None], src_key_padding_mask=mask)[0]


@parts(encoder=LAYER)
def encoder_causal(m: Any, x: Tensor) -> Tensor:
    """With a mask of pairs."""
    mask = torch.nn.Transformer.generate_square_subsequent_mask(x.size(0), dtype=x.dtype)
    return m.encoder(x[None], src_mask=mask, is_causal=True)[0]


@parts(encoder=stack)
def encoder_padded_at_its_end(m: Any, x: Tensor) -> Tensor:
    """Padding comes last, which torch may cut off in evaluation."""
    mask = (torch.arange(x.size(0)) >= 60).unsqueeze(0)
    out = m.encoder(x[None], src_key_padding_mask=mask)[0]
    missing = x.size(0) - out.size(0)
    return F.pad(out, (0, 0, 0, missing)) if missing else out


@parts(**QKV)
def softmax_by_einsum(m: Any, x: Tensor) -> Tensor:
    """softmax(q k^T) v."""
    q, k, v = heads(m, x)
    scores = torch.einsum('nhd,mhd->hnm', q, k) / 2
    return torch.einsum('hnm,mhd->nhd', scores.softmax(-1), v).flatten(1)


@parts(**QKV)
def softmax_by_bmm(m: Any, x: Tensor) -> Tensor:
    q, k, v = (each.transpose(0, 1) for each in heads(m, x))
    scores = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
    return torch.bmm(scores, v).transpose(0, 1).flatten(1)


@parts(
    seed=lambda: nn.Parameter(torch.randn(1, 2, 8)),
    attention=partial(nn.MultiheadAttention, 8, 2, batch_first=True),
)
def pooled_with_weights(m: Any, x: Tensor) -> Tensor:
    """A seed asks all nodes by multi-head attention with weights, which are over nodes."""
    out, weights = m.attention(m.seed.to(x.dtype), x[None], x[None])
    return x * weights[0].sum(0).unsqueeze(-1) + out[0].mean(0)


@parts(**QKV, norm_k=(nn.LayerNorm, 4), norm_v=(nn.LayerNorm, 4))
def galerkin(m: Any, x: Tensor) -> Tensor:
    """Norms of keys and values, divided by the number of nodes."""
    q, k, v = heads(m, x)
    k, v = m.norm_k(k), m.norm_v(v)
    context = torch.matmul(k.permute(1, 2, 0), v.permute(1, 0, 2)) / x.shape[0]
    return torch.matmul(q.permute(1, 0, 2), context).permute(1, 0, 2).reshape(-1, 8)


@parts(token=lambda: nn.Parameter(torch.randn(1, 8)), attention=(nn.MultiheadAttention, 8, 2))
def class_token(m: Any, x: Tensor) -> Tensor:
    """A class token that is put before all nodes."""
    h = torch.cat([m.token.to(x.dtype), x])
    out, _ = m.attention(h, h, h, need_weights=False)
    return out[1:] + out[0]


@parts(**QKV)
def cumulative(m: Any, x: Tensor) -> Tensor:
    """Causal linear attention by cumsum, in the order of ids."""
    q, k, v = heads(m, x)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    kv = torch.einsum('nhd,nhe->nhde', k, v).cumsum(0)
    z = torch.einsum('nhd,nhd->nh', q, k.cumsum(0)).unsqueeze(-1)
    return (torch.einsum('nhd,nhde->nhe', q, kv) / z).flatten(1)


@parts(
    tokens=lambda: nn.Parameter(torch.randn(5, 8)),
    read=(nn.MultiheadAttention, 8, 2),
    write=(nn.MultiheadAttention, 8, 2),
)
def tokens_with_weights(m: Any, x: Tensor) -> Tensor:
    """Nodes ask tokens with weights, tokens ask nodes without."""
    tokens, weights = m.read(m.tokens, x, x, average_attn_weights=False)
    out, back = m.write(x, tokens, tokens)
    return out + back.sum(-1, keepdim=True) * weights.sum((0, 1)).unsqueeze(-1)


DECODER = {
    'tokens': lambda: nn.Parameter(torch.randn(1, 3, 8)),
    'decoder': partial(nn.TransformerDecoderLayer, 8, 2, 16, dropout=0.0, batch_first=True),
}


@parts(**DECODER)
def decoder_of_tokens(m: Any, x: Tensor) -> Tensor:
    """Tokens as targets of a decoder, nodes as its memory."""
    return x * m.decoder(m.tokens, x[None])[0].mean(0)


@parts(**DECODER)
def decoder_of_nodes(m: Any, x: Tensor) -> Tensor:
    """Nodes as targets, tokens as memory."""
    return m.decoder(x[None], m.tokens)[0]


@parts(**QKV, rows=lambda: nn.Parameter(torch.randn(91, 6)))
def linformer(m: Any, x: Tensor) -> Tensor:
    """Keys and values are projected to few rows by a weight with a row for each node."""
    q, k, v = heads(m, x)
    k, v = (torch.einsum('nhd,nk->hkd', each, m.rows) for each in (k, v))
    scores = torch.einsum('nhd,hkd->nhk', q, k).softmax(-1)
    return torch.einsum('nhk,hkd->nhd', scores, v).flatten(1)


@parts(**QKV)
def landmarks_of_runs(m: Any, x: Tensor) -> Tensor:
    """Nystroem: landmarks are means of runs of nodes."""
    q, k, v = (each.transpose(0, 1) for each in heads(m, x))
    low_q, low_k = (each.reshape(2, 7, 13, 4).mean(2) for each in (q, k))
    first = (q @ low_k.transpose(1, 2)).softmax(-1)
    middle = (low_q @ low_k.transpose(1, 2)).softmax(-1)
    last = (low_q @ k.transpose(1, 2)).softmax(-1)
    near_one = middle + torch.eye(7, dtype=x.dtype)  # means of runs are much alike
    return (first @ torch.linalg.pinv(near_one) @ (last @ v)).transpose(0, 1).flatten(1)


@parts(qkv=(nn.Linear, 8, 24))
def hydra_and_aft(m: Any, x: Tensor) -> Tensor:
    """As many heads as channels: sums of products; and AFT's softmax of keys."""
    q, k, v = m.qkv(x).split(8, dim=-1)
    hydra = F.normalize(q, dim=-1) * (F.normalize(k, dim=-1) * v).sum(dim=-2, keepdim=True)
    top = k.max(dim=0, keepdim=True)[0]
    exp = torch.exp(k - top)
    return hydra + torch.sigmoid(q) * ((exp * v).sum(0) / exp.sum(0))


@parts(**QKV)
def random_features(m: Any, x: Tensor) -> Tensor:
    """Features drawn anew in every forward."""
    q, k, v = heads(m, x)
    torch.manual_seed(3)
    w = torch.randn(4, 16, dtype=x.dtype)
    q, k = ((each @ w).cos() + 1.5 for each in (q, k))
    out = torch.einsum('nhm,hmd->nhd', q, torch.einsum('nhm,nhd->hmd', k, v))
    return (out / torch.einsum('nhm,hm->nh', q, k.sum(0))[..., None]).flatten(1)


@parts(**QKV)
def mask_of_pairs_by_gather(m: Any, x: Tensor) -> Tensor:
    """With a mask of pairs that has rows, and keys that are plain."""
    import pyg_sar

    q, k, v = sequences(m, x)
    k, v = pyg_sar.gather(k), pyg_sar.gather(v)
    rank = x[:, 0].detach()
    mask = rank[:, None] >= pyg_sar.gather(rank)[None]
    return joined(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


@parts(
    lin=(nn.Linear, 6, 8),
    conv=(GCNConv, 8, 8),
    encoder=LAYER,
    score=(nn.Linear, 16, 1),
    out=(nn.Linear, 8, 3),
)
def sequences_of_hops(m: Any, data: Data) -> Tensor:
    """NAGphormer: a sequence of hops for each node, which is an item of the batch."""
    hops = [m.lin(data.x)]
    for _ in range(3):
        hops.append(m.conv(hops[-1], data.edge_index))
    h = m.encoder(torch.stack(hops, 1))
    target = h[:, 0].unsqueeze(1).repeat(1, 3, 1)
    weight = m.score(torch.cat([target, h[:, 1:]], -1)).softmax(1)
    return m.out(h[:, 0] + (weight * h[:, 1:]).sum(1))


@parts(**QKV, centres=lambda: nn.Buffer(torch.randn(5, 8)))
def codebook(m: Any, x: Tensor) -> Tensor:
    """Attends to means of clusters with the log of their sizes, and moves them (as in GOAT)."""
    near = torch.cdist(x.detach(), m.centres.to(x.dtype)).argmin(1)
    one_hot = F.one_hot(near, 5).to(x.dtype)
    count = one_hot.sum(0)
    means = one_hot.t() @ x / count.clamp(min=1).unsqueeze(1)
    scores = m.q(x) @ m.k(means).t() + torch.log(count.clamp(min=1e-9))
    if m.training:
        m.centres = 0.9 * m.centres + 0.1 * means.detach()
    return scores.softmax(-1) @ m.v(means)


LAYERS = {
    'sdpa_mask_of_keys': of_mask(of_keys),
    'sdpa_numbers_of_keys': of_mask(lambda x: x[:, 0].detach().view(1, 1, 1, -1)),
    'sdpa_causal': sdpa(lambda m, x: {'is_causal': True}),
    'sdpa_mask_of_pairs': of_mask(of_pairs),
} | named(
    *(nodeformer_kernel, softmax_over_nodes, masked_linear, linear_by_bmm, sdpa_grouped),
    *(multihead_padded, encoder_stack, encoder_padded, pooled_with_weights, galerkin),
    *(class_token, tokens_with_weights, decoder_of_tokens, decoder_of_nodes, linformer),
    *(hydra_and_aft, random_features, mask_of_pairs_by_gather, codebook),
    *(multihead_with_weights, encoder_causal, softmax_by_einsum, softmax_by_bmm, cumulative),
    landmarks_of_runs,
)
PROGRAMS = programs(fit_layers, LAYERS)
PROGRAMS |= programs(fit, named(linear_of_several_graphs, sequences_of_hops, sdpa_mask_of_edges))

REFUSED = programs(fit_layers, named(encoder_padded_at_its_end))

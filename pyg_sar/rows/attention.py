"""Attention: rows as items of a batch, as what asks, or as what is asked: then all rows are.

======================================= ===========================================================
queries, keys and values                how it is computed
======================================= ===========================================================
rows in the batch                       each by itself
queries are rows, keys are plain        each query by itself
queries are plain, keys are rows        a softmax over the rows of all ranks
both are rows                           keys and values go round (:mod:`pyg_sar.ops.ring_attention`)
both, and a number for every pair       each query by itself, of all keys in one place
======================================= ===========================================================
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pyg_sar.comm.vote import agree
from pyg_sar.ops.ring_attention import attend_to_all
from pyg_sar.rows.align import (
    align,
    as_rows,
    bound,
    brought,
    dim_of,
    named_rule,
    rows_in,
    whole_shape,
)
from pyg_sar.rows.layers import Items, by_items
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.over_ranks import all_rows, in_one_place, on_all_rows
from pyg_sar.rows.registry import rule
from pyg_sar.rows.replicated import own_draws
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import not_empty, rowwise


@named_rule('scaled_dot_product_attention')
def _attention(
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    asks, *asked = (isinstance(x, Rows) and x._dim == dim_of(x) - 2 for x in (query, key, value))
    if all(asked) and (dropout_p > 0 or is_causal or not _is_of_keys(attn_mask, key)):
        key, value, attn_mask = (in_one_place(func, x) for x in (key, value, attn_mask))
        if not asks:
            query = in_one_place(func, query)
            options = {'scale': scale, 'enable_gqa': enable_gqa}
            return func(query, key, value, attn_mask, dropout_p, is_causal, **options)
    elif all(asked):
        scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        if enable_gqa:
            key, value = _for_heads(query, key, value)
        if asks:
            return _of_all_to_all(func, query, key, value, attn_mask, scale)
        if isinstance(query, Rows):
            query = in_one_place(func, query)
        return _weights(query, key, attn_mask, scale) @ value

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        if mask is not None and mask.requires_grad:
            # torch's kernels differ in the order of gradients, and a rank may have no queries.
            if enable_gqa:
                key, value = _for_heads(query, key, value)
            by = 1 / math.sqrt(query.size(-1)) if scale is None else scale
            return F.dropout(_weights(query, key, mask, by), dropout_p) @ value
        if mask is not None and mask.is_floating_point():
            mask = mask.to(query.dtype)  # torch's kernels take it for one
        options = {'scale': scale, 'enable_gqa': enable_gqa}
        return func(query, key, value, mask, dropout_p, is_causal, **options)

    attend.__name__ = 'scaled_dot_product_attention'
    if asks and not isinstance(key, Rows) and not isinstance(value, Rows):
        if is_causal:
            attn_mask, is_causal = _causal(query, key), False
        elif attn_mask is not None and dim_of(attn_mask) < 2:
            attn_mask = attn_mask.unsqueeze(0)
        (query, mask), _, right, sharding = align(func, (query, attn_mask), {})
        key, value = for_rows(key), for_rows(value)
        with plainly(), own_draws(query.device) if dropout_p > 0 else nullcontext():
            if sharding.own or (mask is not None and mask.requires_grad):
                return as_rows(attend(query, key, value, mask), right, sharding)
            out = attend(not_empty(plain(query), query.dim() - 2), key, value, None)
            return as_rows(out.narrow(-2, 0, 0), right, sharding)
    rows = rows_in((query, key, value))
    if enable_gqa and any(tensor._dim == dim_of(tensor) - 3 for tensor in rows):
        refuse(func, "with 'enable_gqa' and rows as heads is not known to be right")
    return rowwise(
        attend, (query, key, value, attn_mask), {}, slice(-2, None), pads=False, draws=dropout_p > 0
    )


def _for_heads(query: Tensor, *shared: Tensor) -> list[Tensor]:
    """Keys and values that several heads of queries share, for each of them."""
    return [x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in shared]


def _is_of_keys(mask: Tensor | None, key: Rows) -> bool:
    """Whether a mask has a number for every key, ``[..., 1, N]``, and does not learn."""
    is_known = mask is None or not mask.requires_grad
    return is_known and (mask is None or whole_shape(mask)[-2:] == [1, key._sharding.total])


def _causal(query: Rows, key: Tensor) -> Any:
    """True where a key stands before a query in the whole, or with it."""
    sharding = query._sharding
    with plainly():
        before = torch.arange(key.size(-2), device=key.device)
        return tag(sharding.ids(key.device).unsqueeze(1) >= before, 0, sharding)


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Of every key for every query; not for queries and keys that both are rows."""
    scores = (query * scale) @ key.transpose(-2, -1)
    return torch.softmax(scores if mask is None else scores + _added(mask, scores.dtype), -1)


def _added(mask: Tensor, dtype: torch.dtype) -> Any:
    """A mask as numbers that are added to scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def _of_all_to_all(
    func: Any, query: Rows, key: Rows, value: Rows, mask: Tensor | None, scale: float
) -> Any:
    value = brought(func, value, key._sharding)
    bias = None
    if mask is not None:
        sharding = key._sharding
        if not isinstance(mask, Rows):
            own_mask = mask.index_select(-1, sharding.ids(mask.device))
            mask = tag(own_mask, mask.dim() - 1, sharding)
        bias = _added(mask, query.dtype)
    sharding = query._sharding
    with plainly():
        own = [plain(x) for x in (query, key, value)]
        batch = torch.broadcast_shapes(*(x.shape[:-2] for x in own))  # type: ignore[no-untyped-call]
        heads = math.prod(batch)
        q, k, v = (x.expand(*batch, *x.shape[-2:]).reshape(heads, *x.shape[-2:]) for x in own)
        if bias is not None:
            bias = plain(bias).expand(*batch, 1, k.size(1)).reshape(heads, 1, k.size(1))
        device = q.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            q, k, v = (x.to(dtype) for x in (q, k, v))
            bias = None if bias is None else bias.to(dtype)
        with torch.autocast(device, enabled=False):
            counts = key._sharding.kept('counts', None, lambda: agree(key._sharding.own))
            out = attend_to_all(q, k, v, bias, scale, counts)
        return tag(out.view(*batch, *out.shape[-2:]), len(batch), sharding)


@rule('multi_head_attention_forward')
def _multi_head(func: Any, args: Any, kwargs: Any) -> Any:
    """Rows are the items of the batch (dimension 1), or they attend to each other (dimension 0)."""
    named = bound(func, args, kwargs)
    if any(named[name] is not None for name in ('static_k', 'static_v')):
        refuse(func, "with 'static_k' or 'static_v' is not known to be right")
    inputs = [named[name] for name in ('query', 'key', 'value')]
    if any(isinstance(tensor, Rows) and tensor._dim == 0 for tensor in inputs):
        return _between_rows(func, named)
    mask = named['attn_mask']
    if isinstance(mask, Tensor) and dim_of(mask) > 2:
        refuse(func, "with an 'attn_mask' for each of them is not known to be right")
    where = {name: Items(1, 3) for name in ('query', 'key', 'value')}
    where['key_padding_mask'] = Items(0, 2)
    draws = named['dropout_p'] > 0 and named['training']
    return by_items(func, (), named, where, (1, 0), draws=draws)


def _between_rows(func: Any, named: dict[str, Any]) -> tuple[Any, Any]:
    """Queries, keys and values ``[N, B, C]`` or ``[N, C]``: torch's function, by rules of rows."""
    inputs = [named[name] for name in ('query', 'key', 'value')]
    drops = named['dropout_p'] if named['training'] else 0.0
    more = (named[name] is not None for name in ('attn_mask', 'bias_k', 'bias_v'))
    if any(more) or named['add_zero_attn'] or (named['need_weights'] and drops > 0):
        return on_all_rows(func, **named)
    if named['use_separate_proj_weight']:
        weights = [named[f'{name}_proj_weight'] for name in 'qkv']
    else:
        weights = list(named['in_proj_weight'].chunk(3))
    bias = named['in_proj_bias']
    biases = [None] * 3 if bias is None else bias.chunk(3)
    query, key, value = (
        F.linear(x, w, b).unflatten(-1, (named['num_heads'], -1)).movedim(0, -2)  # type: ignore[no-untyped-call]
        for x, w, b in zip(inputs, weights, biases, strict=True)
    )
    mask = named['key_padding_mask']
    if mask is not None:  # True where a key is not to be asked, [B, N] or [N]
        mask = (~mask if mask.dtype == torch.bool else mask)[..., None, None, :]
    shares: Any = None
    if named['need_weights']:
        if isinstance(query, Rows):
            key, value, mask = (in_one_place(func, x) for x in (key, value, mask))
        shares = _weights(query, key, mask, 1 / math.sqrt(query.size(-1)))
        out = shares @ value
        shares = shares.mean(-3) if named['average_attn_weights'] else shares
    else:
        out = F.scaled_dot_product_attention(query, key, value, mask, drops)
    out = out.movedim(-2, 0).flatten(-2)
    return F.linear(out, named['out_proj_weight'], named['out_proj_bias']), shares


@rule('nested_tensor_from_mask_left_aligned')
def _left_aligned(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether all padding comes last: torch's TransformerEncoder then cuts it off."""
    mask = args[1]
    with plainly():
        whole = all_rows(mask) if isinstance(mask, Rows) else mask
        is_aligned = bool(func(whole.unsqueeze(-1).float(), whole))
    if is_aligned:
        refuse(
            func, 'would cut off padding', 'write enable_nested_tensor=False of TransformerEncoder'
        )
    return False

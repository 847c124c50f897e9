"""Attention of rows under autocast and of half precision: the forms, the masks, the types."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import run_as_threads
from rows_by_hand import as_rows, sharding_of
from torch import Tensor
from torch_geometric.nn import GPSConv

import pyg_sar
from pyg_sar.comm.ranks import world_size

N, WIDTH = 15, 8
COUNTS = {1: [N], 3: [9, 0, 6]}
MODES = {
    'autocast': (torch.float32, torch.bfloat16),
    'bfloat16': (torch.bfloat16, None),
    'float16': (torch.float16, None),
    'float32': (torch.float32, None),
}

Form = Callable[[Any, Tensor, Any], Any]


def _bools(x: Any) -> Any:
    return (x[:, 0] > 0).view(1, 1, -1)


def _floats(x: Any) -> Any:
    return x[:, 1].detach().float().view(1, 1, -1)


def _among_all(mask: Callable[[Any], Any], heads: int = 2) -> Form:
    def attend(x: Any, few: Tensor, of_mask: Any) -> Any:
        q, k, v = (each.unflatten(1, (heads, -1)).movedim(1, 0) for each in (x, x * 2, x + 1))
        return F.scaled_dot_product_attention(q, k, v, mask(of_mask)).movedim(0, 1)

    return attend


def _grouped(x: Any, few: Tensor, of_mask: Any) -> Any:
    q = x.unflatten(1, (4, -1)).movedim(1, 0)
    k = x[:, :4].unflatten(1, (2, -1)).movedim(1, 0)
    return F.scaled_dot_product_attention(q, k, k, _bools(of_mask), enable_gqa=True).movedim(0, 1)


def _plain_queries(x: Any, few: Tensor, of_mask: Any) -> Any:
    return F.scaled_dot_product_attention(few, x, x)


def _masked_plain_queries(x: Any, few: Tensor, of_mask: Any) -> Any:
    return F.scaled_dot_product_attention(few, x, x, _bools(of_mask)[0])


def _plain_keys(x: Any, few: Tensor, of_mask: Any) -> Any:
    return F.scaled_dot_product_attention(x, few, few)


def _in_the_batch(x: Any, few: Tensor, of_mask: Any) -> Any:
    items = x.unflatten(1, (4, -1))
    return F.scaled_dot_product_attention(items, items, items, is_causal=True).flatten(1)


def _dropped_nothing(x: Any, few: Tensor, of_mask: Any) -> Any:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.0)


FORMS: dict[str, Form] = {
    'no mask': _among_all(lambda x: None),
    'a bool mask': _among_all(_bools),
    'a float32 mask': _among_all(_floats),
    'a plain bool mask': _among_all(lambda x: (torch.arange(N) % 3 > 0).view(1, 1, -1)),
    'a plain float32 mask': _among_all(lambda x: torch.arange(float(N)).view(1, 1, -1) / 7),
    'grouped': _grouped,
    'plain queries': _plain_queries,
    'masked plain queries': _masked_plain_queries,
    'plain keys': _plain_keys,
    'in the batch': _in_the_batch,
    'dropped nothing': _dropped_nothing,
}


def _results(whole: Tensor | None, form: str, mode: str, *, exact: bool = False) -> list[Tensor]:
    """The output and gradients; `exact` of the same numbers as float64."""
    dtype, cast = MODES[mode]
    draw = torch.Generator().manual_seed(0)
    x, few = (torch.randn(n, WIDTH, generator=draw).to(cast or dtype) for n in (N, 5))
    x, few = ((each.double() if exact else each.to(dtype)) for each in (x, few))
    if whole is None:
        x = as_rows(x, sharding_of(COUNTS[world_size()]))
    x, few = x.requires_grad_(), few.requires_grad_()
    autocast = torch.autocast('cpu', cast) if cast and not exact else nullcontext()
    masks = x.detach().float() if exact else x.detach()
    with autocast:
        out = FORMS[form](x, few, masks)
        (out.float() if not exact else out).square().mean().backward()
    grads = [each.grad for each in (x, few) if each.grad is not None]
    return [pyg_sar.gather(each).detach() for each in (out, *grads)]


def _on_rank(form: str, mode: str) -> list[Tensor]:
    return _results(None, form, mode)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('form', FORMS)
def test_forms(form: str, mode: str) -> None:
    whole = torch.ones(())
    plain, exact = _results(whole, form, mode), _results(whole, form, mode, exact=True)
    dtype, cast = MODES[mode]
    for num_ranks in COUNTS:
        for found in run_as_threads(_on_rank, num_ranks, form, mode):
            for value, torchs, right in zip(found, plain, exact, strict=True):
                assert value.dtype == torchs.dtype
                step = torch.finfo(cast or dtype).eps
                allowed = 8 * step * float(right.abs().max()) + 2 * float(
                    (torchs - right).abs().max()
                )
                torch.testing.assert_close(value.to(right.dtype), right, rtol=0, atol=allowed)


def _gps(whole: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    x, batch = torch.randn(N, WIDTH), torch.zeros(N, dtype=torch.int64)
    if whole is None:
        sharding = sharding_of(COUNTS[world_size()])
        x, batch = as_rows(x, sharding), as_rows(batch, sharding)
    layer: Any = GPSConv(WIDTH, None, heads=2, dropout=0.0, norm=None)
    layer = layer if whole is not None else pyg_sar.DistributedDataParallel(layer)
    with torch.autocast('cpu', torch.bfloat16):
        out = layer(x, torch.zeros(2, 0, dtype=torch.int64), batch=batch)
        (out.float() - 1).relu().square().mean().backward()
    return {n.removeprefix('module.'): p.grad for n, p in layer.named_parameters()} | {
        'out': pyg_sar.gather(out).detach()
    }


@pytest.mark.parametrize('num_ranks', COUNTS)
def test_the_attention_of_gps(num_ranks: int) -> None:
    expected = _gps(torch.ones(()))
    for found in run_as_threads(_gps, num_ranks, None):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if value is not None:
                allowed = float(value.abs().max()) / 20
                torch.testing.assert_close(found[name], value, rtol=0, atol=allowed, msg=name)


def _refused() -> None:
    x = as_rows(torch.randn(N, WIDTH), sharding_of(COUNTS[world_size()]))
    with torch.autocast('cpu', torch.bfloat16):
        for options in ({'is_causal': True}, {'dropout_p': 0.5}):
            with pytest.raises(ValueError, match='scaled_dot_product_attention'):
                F.scaled_dot_product_attention(x, x, x, **options)


def test_what_would_be_of_every_pair() -> None:
    run_as_threads(_refused, 3)

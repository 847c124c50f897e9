"""Attention of rows under autocast and of half precision: the forms, the masks, the types."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from expressions import expressions
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
    'float64': (torch.float64, None),
}

attend = F.scaled_dot_product_attention


def bools(x: Any) -> Any:
    return (x[:, 0] > 0).view(1, 1, -1)


def floats(x: Any) -> Any:
    """A float32 mask of a float64 query is read as garbage by torch's kernels."""
    return x[:, 1].detach().to(torch.promote_types(x.dtype, torch.float32)).view(1, 1, -1)


def among_all(x: Any, mask: Any) -> Any:
    q, k, v = (each.unflatten(1, (2, -1)).movedim(1, 0) for each in (x, x * 2, x + 1))
    return attend(q, k, v, mask).movedim(0, 1)


def grouped(x: Any, mask: Any) -> Any:
    q = x.unflatten(1, (4, -1)).movedim(1, 0)
    k = x[:, :4].unflatten(1, (2, -1)).movedim(1, 0)
    return attend(q, k, k, mask, enable_gqa=True).movedim(0, 1)


def in_the_batch(x: Any) -> Any:
    items = x.unflatten(1, (4, -1))
    return attend(items, items, items, is_causal=True).flatten(1)


# Of rows x, of plain rows `few`, and of rows m of which masks are made. Rank 0 has rows 0 to 8.
FORMS = """
among_all(x, None); among_all(x, bools(m)); among_all(x, floats(m)); grouped(x, bools(m))
among_all(x, (ids % 3 > 0).view(1, 1, -1)); among_all(x, floats(m * 0 + ids.view(-1, 1) / 7))
among_all(x, (m[:, 0] * 0 + n_id > 8).view(1, 1, -1)); among_all(x, (ids == 5).view(1, 1, -1))
among_all(x, (ids < 0).view(1, 1, -1)); attend(few, x, x); attend(few, x, x, bools(m)[0])
attend(x, few, few); in_the_batch(x); attend(x, x, x, dropout_p=0.0)
attend(x, x, x, is_causal=True)
"""


def _results(whole: bool, mode: str, exact: bool = False) -> dict[str, list[Tensor]]:
    """Outputs and gradients; `exact` of the same numbers as float64."""
    dtype, cast = MODES[mode]
    found, ids = {}, torch.arange(N)
    for form in expressions(FORMS):
        draw = torch.Generator().manual_seed(0)
        x, few = (torch.randn(n, WIDTH, generator=draw).to(cast or dtype) for n in (N, 5))
        x, few = ((each.double() if exact else each.to(dtype)) for each in (x, few))
        n_id = ids
        if not whole:
            sharding = sharding_of(COUNTS[world_size()])
            x, n_id = as_rows(x, sharding), as_rows(ids, sharding)
        x, few = x.requires_grad_(), few.requires_grad_()
        masks = x.detach().float().double() if exact else x.detach()
        with torch.autocast('cpu', cast) if cast and not exact else nullcontext():
            out = eval(form, globals() | {'x': x, 'few': few, 'm': masks, 'ids': ids, 'n_id': n_id})
            (out if exact or dtype == torch.float64 else out.float()).square().mean().backward()
        grads = [each.grad for each in (x, few) if each.grad is not None]
        found[form] = [pyg_sar.gather(each).detach() for each in (out, *grads)]
    return found


@pytest.mark.parametrize('mode', MODES)
def test_forms(mode: str) -> None:
    plain, exact = _results(True, mode), _results(True, mode, exact=True)
    dtype, cast = MODES[mode]
    for found in (each for n in COUNTS for each in run_as_threads(_results, n, False, mode)):
        for form, values in found.items():
            for value, torchs, right in zip(values, plain[form], exact[form], strict=True):
                assert value.dtype == torchs.dtype, form
                step, off = torch.finfo(cast or dtype).eps, float((torchs - right).abs().max())
                allowed = max(8 * step * float(right.abs().max()) + 2 * off, 1e-13)
                close = {'rtol': 0, 'atol': allowed, 'msg': lambda m, form=form: f'{form}: {m}'}
                torch.testing.assert_close(value.to(right.dtype), right, **close)


def _gps(whole: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    x, batch = torch.randn(N, WIDTH), torch.zeros(N, dtype=torch.int64)
    layer: Any = GPSConv(WIDTH, None, heads=2, dropout=0.0, norm=None)
    model = layer
    if not whole:
        sharding = sharding_of(COUNTS[world_size()])
        x, batch = as_rows(x, sharding), as_rows(batch, sharding)
        model = pyg_sar.DistributedDataParallel(layer)
    with torch.autocast('cpu', torch.bfloat16):
        out = model(x, torch.zeros(2, 0, dtype=torch.int64), batch=batch)
        (out.float() - 1).relu().square().mean().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return gradients | {'out': pyg_sar.gather(out).detach()}


@pytest.mark.parametrize('num_ranks', COUNTS)
def test_the_attention_of_gps(num_ranks: int) -> None:
    expected = _gps(True)
    for found in run_as_threads(_gps, num_ranks, False):
        for name, value in expected.items():
            allowed = float(value.abs().max()) / 20
            torch.testing.assert_close(found[name], value, rtol=0, atol=allowed, msg=name)

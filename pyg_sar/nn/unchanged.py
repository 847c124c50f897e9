"""Checks in backward that a message, which runs again there, is what it was in forward."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace

import torch
from torch import Tensor

from pyg_sar.nn.at_once import run_on
from pyg_sar.nn.call import NUM_EDGES, Call
from pyg_sar.nn.side_effects import UndoneSideEffects
from pyg_sar.ops.program import no_autocast_cache
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.tensor_state import version_of


def unchanged(call: Call) -> Callable[[], None] | None:
    """Checks in backward, which runs a message again, that it reads what it has read in forward.

    Code of a program's own may read what is an attribute of nobody, or changed in place. So it runs
    on a few edges now, and in the check, which raises a RuntimeError if it gives other numbers.
    """
    if not call.reads_more or call.draws is not None or not torch.is_grad_enabled():
        return None
    versions, then = _versions(call), _on_samples(call, with_gradients=False)

    def check() -> None:
        is_same = _versions(call) == versions
        now = _on_samples(call, with_gradients=True) if is_same else ()
        if not (is_same and all(map(_are_equal, then, now))):
            raise RuntimeError(
                f"'{call.function}' of {name_of(call.conv)} gives other numbers in backward than "
                'in forward: something that it reads has changed in between, in place or outside '
                'of the conv (give that to propagate as an argument, or call backward before it '
                'changes), or it asks whether gradients are needed'
            )

    return check


def _versions(call: Call) -> list[object]:
    values = (getattr(module, name, None) for module, name in call.tensors)
    return [version_of(value) for value in values if isinstance(value, Tensor)]


def _on_samples(call: Call, *, with_gradients: bool) -> list[Tensor]:
    """What a call's function gives on a few edges, with the same draws every time."""
    with (
        torch.set_grad_enabled(with_gradients),
        no_autocast_cache(),
        UndoneSideEffects(call.conv, call.arguments) as undone,
        redirect_stdout(io.StringIO()),
    ):
        torch.manual_seed(0)
        samples = replace(call.samples(), at_edges=False)  # a message may write to what it reads
        ids = torch.arange(NUM_EDGES, device=samples.device)
        out = run_on(call, samples, torch.stack([ids, ids]), NUM_EDGES)
    kept = (value for value in undone.changed.values() if isinstance(value, Tensor))
    return [t.detach() for t in (out, *kept)]


def _are_equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point():
        return torch.equal(a, b)
    # Modules of torch have faster forms without gradients, which round otherwise.
    size = float(a.abs().nan_to_num(0, 0).max()) if a.numel() else 0.0
    near = torch.finfo(a.dtype).eps ** 0.5 * size
    return torch.allclose(a, b, rtol=0.0, atol=near, equal_nan=True)

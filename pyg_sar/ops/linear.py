"""Linear layers by oneDNN, where it multiplies faster than torch's choice.

torch multiplies float32 matrices with MKL. On processors of AMD with AVX-512 (Zen 4 and later) MKL
computes in registers of half their width. oneDNN, which torch has as well, takes half the time
there (docs/speed.md). The results differ in the last bits.

The gradient of a weight is a sum over all nodes. oneDNN is fastest at it as the gradient of a
convolution with a window of one pixel: 16 images of one row, with a 16th of the nodes each.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.backends import mkldnn
from torch_geometric.nn import Linear

from pyg_sar.utils.installed import find_or_none

_LEAST_WEIGHTS, _LEAST_PRODUCTS = 2**10, 2**23
"""Numbers of a weight, and multiplications of a layer, from which on it pays."""

_NUM_IMAGES = 16  # with one thread torch leaves fewer images to a slower loop
_product: Any = find_or_none('torch.ops.mkldnn._linear_pointwise.default')


@functools.cache
def is_faster() -> bool:
    """Whether oneDNN is faster than torch's choice on this machine."""
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if _product is None or not has_mkl:
        return False
    processor = Path('/proc/cpuinfo')
    is_amd = processor.exists() and 'AuthenticAMD' in processor.read_text(errors='replace')
    return is_amd and torch.backends.cpu.get_cpu_capability() == 'AVX512'


def compute_by_onednn(model: torch.nn.Module) -> None:
    """Has the linear layers of a model computed by oneDNN from now on, where it is faster.

    A layer keeps its class, which programs compare (``type(layer) is torch.nn.Linear``), and gets a
    forward of its own. Copies keep that; what is unpickled gets it anew with its model.
    """
    for layer in model.modules() if is_faster() else ():
        if is_plain_layer(layer):
            vars(layer)['forward'] = MethodType(_FORWARDS[type(layer)], layer)


def is_plain_layer(layer: Any) -> bool:
    """Whether a module is a linear layer of torch or PyG, whose forward nobody has replaced."""
    plain = _FORWARDS.get(type(layer))
    own = getattr(vars(layer).get('forward'), '__func__', plain) if plain else None
    return plain is not None and own in (plain, type(layer).forward)


def _forward_of(cls: Any) -> Any:
    forward = cls.forward

    @functools.wraps(forward)  # TorchScript compiles the code of that
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        now = type(self).forward  # of a program that has replaced it since
        if now is forward and len(args) == 1 and type(args[0]) is Tensor and not kwargs:
            return linear(args[0], self.weight, self.bias)
        return now(self, *args, **kwargs)

    return call


_FORWARDS = {cls: _forward_of(cls) for cls in (torch.nn.Linear, Linear)}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` of plain tensors, by oneDNN where it is faster.

    ``x`` is ``[..., K]``, `weight` ``[M, K]`` and `bias` ``[M]``; the result is ``[..., M]``.
    """
    if torch.compiler.is_compiling() or not is_faster():
        return F.linear(x, weight, bias)
    with torch._C.DisableTorchFunction():  # who watches what a program asks, watches not this
        is_fit = x.numel() * weight.size(0) >= _LEAST_PRODUCTS and _suits(x, weight)
    if not is_fit:
        return F.linear(x, weight, bias)
    rows = x if x.dim() == 2 else x.view(-1, x.size(-1))
    out: Tensor = _Linear.apply(rows, weight, bias)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], -1)


def _suits(x: Tensor, weight: Tensor) -> bool:
    return (
        type(x) is Tensor
        and type(weight) in (Tensor, torch.nn.Parameter)
        and x.dtype == weight.dtype == torch.float32
        and weight.numel() >= _LEAST_WEIGHTS
        and weight.dim() == 2
        and x.dim() > 1
        and x.device.type == weight.device.type == 'cpu'
        and x.is_contiguous()
        and (weight.is_contiguous() or weight.t().is_contiguous())
        and x.size(-1) == weight.size(1)
        and bool(mkldnn.enabled)
        and not torch.is_autocast_enabled('cpu')
        and not torch.jit.is_tracing()  # type: ignore[no-untyped-call]
        and not torch._C._are_functorch_transforms_active()
        and not any(map(_has_tangent, (x, weight)))
    )


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        out: Tensor = _product(x, weight, bias, 'none', [], '')
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grads[0].contiguous()
        needs_bias, of_x, of_weight = ctx.needs_input_grad[2], None, None
        if torch.is_grad_enabled():  # with operations that have gradients themselves
            of_x = None if weight is None else grad @ weight
            of_weight = None if x is None else grad.t() @ x
        else:
            of_x = None if weight is None else _product(grad, weight.t(), None, 'none', [], '')
            of_weight = None if x is None else gradient_of_weight(grad, x)
        return of_x, of_weight, grad.sum(0) if needs_bias else None


def gradient_of_weight(grad: Tensor, x: Tensor) -> Tensor:
    """``grad.t() @ x`` of ``[N, M]`` and ``[N, K]``, contiguous, as that of a convolution."""
    num_columns = x.size(0) // _NUM_IMAGES
    if not num_columns:
        return grad.t() @ x
    kernel = x.new_empty(grad.size(1), x.size(1), 1, 1)  # its numbers are not read
    images = (_images(rows, num_columns) for rows in (grad, x))
    options: Any = None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (False, True, False)
    out: Tensor = torch.ops.aten.convolution_backward(*images, kernel, *options)[1]
    out = out.view(kernel.shape[:2])
    rest = slice(_NUM_IMAGES * num_columns, None)
    return out.addmm_(grad[rest].t(), x[rest]) if x[rest].size(0) else out


def _images(rows: Tensor, num_columns: int) -> Tensor:
    """Rows as images ``[16, channels, 1, num_columns]``, without those that are left over."""
    images = rows[: _NUM_IMAGES * num_columns].view(_NUM_IMAGES, 1, num_columns, -1)
    return images.permute(0, 3, 1, 2)

"""Stand-ins for a sum over in-edges: one sees how a conv uses it, one has only what is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pyg_sar.comm import once_differentiable

SumFn = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Modes:
    """Modes of torch that a sum is made in; where a layer follows in others it needs the sum."""

    inference: bool
    gradients: bool
    autocast: bool

    @staticmethod
    def now(device: torch.device) -> Modes:
        """Those in force."""
        return Modes(
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(device.type),
        )


@dataclass(eq=False)
class Seen:
    """What a sum was used for so far.

    Attributes:
        weight: The weight of the linear layer that was applied to it; None if there was none.
        other_uses: How often it was used in another way.
    """

    weight: Tensor | None = None
    other_uses: int = 0


class StandIn(Tensor):
    """Stands in for a sum ``[num_dst, F]``: a linear layer asks :meth:`layer`, all else the sum."""

    seen: Seen

    _PROPERTIES: tuple[Any, ...] = (Tensor.shape, Tensor.ndim, Tensor.dtype, Tensor.device)
    _KNOWN = frozenset(
        {
            *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
            *(getter.__get__ for getter in _PROPERTIES),
        }
    )

    def layer(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``F.linear`` of the sum."""
        raise NotImplementedError

    def total(self) -> Tensor:
        """The sum itself."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get('input')
        if isinstance(first, StandIn):
            if func in cls._KNOWN:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            if func is F.linear:
                named = dict(zip(('input', 'weight', 'bias'), args, strict=False)) | kwargs
                return first.layer(plain(named['weight']), plain(named.get('bias')))
        return func(*plain(args), **plain(kwargs))


class WatchedSum(StandIn):
    """The sum itself; notes what it is used for."""

    _total: Tensor
    _modes: Modes

    @staticmethod
    def of(total: Tensor) -> WatchedSum:
        """Stands in for `total`."""
        self = total.as_subclass(WatchedSum)
        self.seen, self._total, self._modes = Seen(), total, Modes.now(total.device)
        return self

    def layer(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Noted, unless it is a second one or runs in other modes."""
        if self.seen.weight is None and self._modes == Modes.now(weight.device):
            self.seen.weight = weight
        else:
            self.seen.other_uses += 1
        return F.linear(self._total, weight, bias)

    def total(self) -> Tensor:
        """Noted."""
        self.seen.other_uses += 1
        return self._total


class NarrowSum(StandIn):
    """A sum of which only the linear layer is there that was applied to it so far.

    Any other use computes the sum after all (collective: the conv's code is the same on all ranks).

    Args:
        x: Own rows ``[num_own, F]``.
        weight: The weight of the layer ``[K, F]``.
        narrow: The sum of ``F.linear(x, weight)``, ``[num_dst, K]``.
        sum_of: Gives the sum of own rows.
        modes: Those in force where the sum was asked for.
    """

    @staticmethod
    def __new__(
        cls, x: Tensor, weight: Tensor, narrow: Tensor, sum_of: SumFn, modes: Modes
    ) -> NarrowSum:
        """A tensor without memory."""
        self: NarrowSum = Tensor._make_wrapper_subclass(
            cls, (narrow.size(0), x.size(1)), dtype=x.dtype, device=x.device
        )
        return self

    def __init__(
        self, x: Tensor, weight: Tensor, narrow: Tensor, sum_of: SumFn, modes: Modes
    ) -> None:
        self.seen = Seen()
        self._x, self._weight, self._sum_of = x, weight, sum_of
        self._versions = _version(x), _version(weight)
        self._narrow: Tensor | None = narrow
        self._modes = modes
        self._total: Tensor | None = None

    def layer(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What is there, if it is of this layer."""
        out = self._narrow
        if (
            out is None
            or weight is not self._weight
            or self._versions[1] != _version(weight)
            or self._modes != Modes.now(weight.device)
        ):
            return F.linear(self.total(), weight, bias)
        self._narrow = None  # whoever gets it may write to it
        return out if bias is None else out + bias

    def total(self) -> Tensor:
        """The sum, computed at the first call (collective).

        Raises:
            RuntimeError: If the rows have been changed in place meanwhile.
        """
        if self._total is None:
            self.seen.other_uses += 1
            if self._versions[0] != _version(self._x):
                raise RuntimeError(_OTHER_USE)
            modes = self._modes
            with torch.inference_mode(modes.inference), torch.set_grad_enabled(modes.gradients):
                self._total = self._sum_of(self._x)
        return self._total

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # What does not ask __torch_function__ has the values, and _Deferred the gradient.
        args, kwargs = tree_map_only(cls, lambda t: t.total().detach(), (args, kwargs or {}))
        return func(*args, **kwargs)


class _Deferred(torch.autograd.Function):
    """What `make` gives, with the gradient of the sum of `x`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, make: Callable[[], NarrowSum], sum_of: SumFn) -> NarrowSum:
        ctx.like, ctx.sum_of = x.detach(), sum_of
        return make()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            x = torch.zeros_like(ctx.like).requires_grad_()  # of a linear map it is the same at 0
            out = ctx.sum_of(x)
        (grad,) = torch.autograd.grad(out, x, plain(grads[0]))
        return grad, None, None


def narrow_sum(x: Tensor, weight: Tensor, sum_of: SumFn) -> NarrowSum:
    """A stand-in for the sum of `x` that has the sum of a linear layer of `x` (collective).

    Args:
        x: Own rows ``[num_own, F]``.
        weight: The weight of the layer ``[K, F]``.
        sum_of: Gives the sum of own rows of any width.
    """
    modes, narrow = Modes.now(x.device), sum_of(F.linear(x, weight))
    out: NarrowSum = _Deferred.apply(  # type: ignore[no-untyped-call]
        x, lambda: NarrowSum(x, weight, narrow, sum_of, modes), sum_of
    )
    return out


_OTHER_USE = (
    'expected a conv that uses what propagate gives it in the same way in every forward: a linear '
    'layer at first (got another use after the features were changed in place)'
)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def plain(value: Any) -> Any:
    """A value in which every stand-in is replaced by its sum, in tuples, lists and dicts too."""
    if isinstance(value, StandIn):
        return value.total()
    if isinstance(value, (tuple, list)):
        values = [plain(each) for each in value]
        if all(a is b for a, b in zip(values, value, strict=True)):
            return value
        return type(value)(*values) if hasattr(value, '_fields') else type(value)(values)
    if type(value) is dict:
        return {key: plain(each) for key, each in value.items()}
    return value

"""Functions that are compiled or transformed, or whose backward asks for hooks, with a tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from expressions import expressions
from torch import Tensor

functional = torch.autograd.functional


def _scripted(function: Callable[..., Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return torch.jit.script(function)


@_scripted
def doubled(a: Tensor) -> Tensor:
    return 2 * a


class Scripted(torch.nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return a.cumsum(0)


class Sums(torch.nn.Module):
    def forward(self, a: Any) -> Any:
        return (2 * a).sum(0)


def leaf_of(t: Any) -> Any:
    return t.detach().clone().requires_grad_()


def _hook(register: Callable[[Any, Any, list[Any]], object]) -> Callable[[Any], Any]:
    """What a hook sees of the gradient of a leaf, or of its double."""

    def hooked(t: Any) -> Any:
        found: list[Any] = []
        leaf = leaf_of(t)
        out = leaf * 2
        register(leaf, out, found)
        out.square().sum().backward()
        return found

    return hooked


hook_of_grad_fn = _hook(
    lambda leaf, out, found: out.grad_fn.register_hook(lambda _, of: found.append(of[0]))
)
prehook_of_grad_fn = _hook(
    lambda leaf, out, found: out.grad_fn.register_prehook(lambda of: found.append(of[0]))
)
post_accumulate_hook = _hook(
    lambda leaf, out, found: leaf.register_post_accumulate_grad_hook(
        lambda it: found.append(it.grad)
    )
)
multi_grad_hook = _hook(
    lambda leaf, out, found: torch.autograd.graph.register_multi_grad_hook([leaf], found.extend)
)
hook_of_leaf = _hook(lambda leaf, out, found: leaf.register_hook(found.append))


def saved_tensors_hooks(t: Any) -> Any:
    leaf = leaf_of(t)
    with torch.autograd.graph.saved_tensors_hooks(lambda a: a.sum(), lambda a: a * torch.ones(1)):
        return (leaf * leaf).sum()


def saved_of_grad_fn(t: Any) -> Any:
    leaf = leaf_of(t)
    return (leaf * leaf).grad_fn._saved_self


def checkpoint(t: Any, *, use_reentrant: bool) -> Any:
    return torch.utils.checkpoint.checkpoint(
        lambda a: a.square().sum(0), leaf_of(t), use_reentrant=use_reentrant
    )


def loss_of(t: Any) -> Any:
    return t.float().square().sum()


def linear_of(t: Any) -> Any:
    state = {'weight': t[:2].clone(), 'bias': torch.zeros(2).to(t.dtype)}
    return torch.func.functional_call(torch.nn.Linear(t.size(-1), 2).to(t.dtype), state, (t,))


def swapped(t: Any) -> Any:
    plain = torch.zeros(2)
    torch.utils.swap_tensors(plain, t)
    return plain


def tangent_of(t: Any) -> Any:
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        made = forward.make_dual(t, t * 2)
        return forward.unpack_dual(made.sum(0)).tangent.clone()


MADE_BY_FUNCTIONS = expressions("""
doubled(t); torch.jit.script(Scripted())(t); torch.jit.annotate(Tensor, t); linear_of(t)
torch.jit.trace(lambda a: a.sum(0), (torch.ones(3, 2),))(t)
torch.jit.wait(torch.jit.fork(lambda a: a.sum(0), t)); torch.vmap(lambda a: 2 * a)(t)
torch.func.grad(loss_of)(t); torch.func.vjp(loss_of, t)[0]; torch.func.jvp(loss_of, (t,), (t,))
torch.func.jacrev(lambda a: a.sum(0))(t); torch.func.jacfwd(lambda a: a.sum(0))(t)
torch.func.hessian(loss_of)(t[:2]); torch.func.linearize(loss_of, t)[0]
torch.func.functionalize(lambda a: a.sum(0))(t); functional.jacobian(lambda a: a.sum(0), t)
functional.vjp(loss_of, t); tangent_of(t); torch.fx.symbolic_trace(Sums())(t)
torch.utils.checkpoint.checkpoint(lambda a: a.sum(0), t, use_reentrant=False)
checkpoint(t, use_reentrant=True); hook_of_grad_fn(t); prehook_of_grad_fn(t)
post_accumulate_hook(t); multi_grad_hook(t); hook_of_leaf(t); saved_tensors_hooks(t)
saved_of_grad_fn(t); torch.ops.aten.sum(t); torch.ops.aten.mul.Tensor(t, t); swapped(t)
torch._C._VariableFunctions.sum(t); __import__('torch._refs')._refs.sum(t)
torch._foreach_norm([t]); torch.utils.data.TensorDataset(t)[1]
torch.distributions.Categorical(logits=t).entropy(); torch.distributions.Normal(t, 1.0).log_prob(t)
torch.nn.ParameterList([t])[0].detach(); torch._weight_norm(t, t[:, :1], 0)
torch.where(t.sum() > 0, t.sum(), 0)
""")

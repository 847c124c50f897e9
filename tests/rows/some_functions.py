"""Functions that are compiled or transformed, or whose backward asks for hooks, with a tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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


def _hooked(t: Any) -> Any:
    """The gradient that the hook of a node gets."""
    found = []
    leaf = t.detach().clone().requires_grad_()
    out = leaf * 2
    out.grad_fn.register_hook(lambda given, of: found.append(of[0]))
    out.square().sum().backward()
    return found


def _prehooked(t: Any) -> Any:
    found = []
    leaf = t.detach().clone().requires_grad_()
    out = leaf * 2
    out.grad_fn.register_prehook(lambda of: found.append(of[0]))
    out.square().sum().backward()
    return found


def _post_hooked(t: Any) -> Any:
    found = []
    leaf = t.detach().clone().requires_grad_()
    leaf.register_post_accumulate_grad_hook(lambda it: found.append(it.grad))
    leaf.square().sum().backward()
    return found


def _multi_hooked(t: Any) -> Any:
    found = []
    leaf = t.detach().clone().requires_grad_()
    torch.autograd.graph.register_multi_grad_hook([leaf], lambda grads: found.extend(grads))
    leaf.square().sum().backward()
    return found


def _of_hook(t: Any) -> Any:
    found = []
    leaf = t.detach().clone().requires_grad_()
    leaf.register_hook(found.append)
    leaf.square().sum().backward()
    return found


def _saved_hooks(t: Any) -> Any:
    leaf = t.detach().clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda a: a.sum(), lambda a: a * torch.ones(1)):
        out = (leaf * leaf).sum()
    return out


def _of_node(t: Any) -> Any:
    leaf = t.detach().clone().requires_grad_()
    return (leaf * leaf).grad_fn._saved_self


def _checkpointed(t: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda a: a.sum(0), t, use_reentrant=False)


def _checkpointed_again(t: Any) -> Any:
    leaf = t.detach().clone().requires_grad_()
    return torch.utils.checkpoint.checkpoint(lambda a: a.square().sum(0), leaf, use_reentrant=True)


def _traced(t: Any) -> Any:
    return torch.jit.trace(lambda a: a.sum(0), (torch.ones(3, 2),))(t)


def _fx(t: Any) -> Any:
    class Sums(torch.nn.Module):
        def forward(self, a: Any) -> Any:
            return (2 * a).sum(0)

    return torch.fx.symbolic_trace(Sums())(t)


def _loss(t: Any) -> Any:
    return t.float().square().sum()


def made_functions() -> dict[str, Callable[[Any], Any]]:
    """By what they are called."""
    functional = torch.autograd.functional
    return {
        'torch.jit.script': doubled,
        'torch.jit.script module': lambda t: torch.jit.script(Scripted())(t),
        'torch.jit.trace': _traced,
        'torch.jit.annotate': lambda t: torch.jit.annotate(Tensor, t),
        'torch.jit.fork': lambda t: torch.jit.wait(torch.jit.fork(lambda a: a.sum(0), t)),
        'torch.vmap': lambda t: torch.vmap(lambda a: 2 * a)(t),
        'torch.func.grad': lambda t: torch.func.grad(_loss)(t),
        'torch.func.vjp': lambda t: torch.func.vjp(_loss, t)[0],
        'torch.func.jvp': lambda t: torch.func.jvp(_loss, (t,), (t,)),
        'torch.func.jacrev': lambda t: torch.func.jacrev(lambda a: a.sum(0))(t),
        'torch.func.jacfwd': lambda t: torch.func.jacfwd(lambda a: a.sum(0))(t),
        'torch.func.hessian': lambda t: torch.func.hessian(_loss)(t[:2]),
        'torch.func.linearize': lambda t: torch.func.linearize(_loss, t)[0],
        'torch.func.functionalize': lambda t: torch.func.functionalize(lambda a: a.sum(0))(t),
        'functional_call': lambda t: torch.func.functional_call(
            torch.nn.Linear(t.size(-1), 2).to(t.dtype),
            {'weight': t[:2].clone(), 'bias': torch.zeros(2).to(t.dtype)},
            (t,),
        ),
        'functional.jacobian': lambda t: functional.jacobian(lambda a: a.sum(0), t),
        'functional.vjp': lambda t: functional.vjp(_loss, t),
        'forward_ad': _dual,
        'torch.fx': _fx,
        'checkpoint': _checkpointed,
        'checkpoint reentrant': _checkpointed_again,
        'grad_fn.register_hook': _hooked,
        'grad_fn.register_prehook': _prehooked,
        'register_post_accumulate_grad_hook': _post_hooked,
        'register_multi_grad_hook': _multi_hooked,
        'register_hook': _of_hook,
        'saved_tensors_hooks': _saved_hooks,
        'grad_fn._saved_self': _of_node,
        'torch.ops.aten.sum': lambda t: torch.ops.aten.sum(t),
        'torch.ops.aten.mul.Tensor': lambda t: torch.ops.aten.mul.Tensor(t, t),
        'torch._C._VariableFunctions.sum': lambda t: torch._C._VariableFunctions.sum(t),
        'torch._refs.sum': lambda t: __import__('torch._refs')._refs.sum(t),
        'torch._foreach_norm': lambda t: torch._foreach_norm([t]),
        'torch.utils.swap_tensors': _swapped,
        'torch.utils.data.TensorDataset': lambda t: torch.utils.data.TensorDataset(t)[1],
        'torch.distributions.Categorical': lambda t: torch.distributions.Categorical(
            logits=t
        ).entropy(),
        'torch.distributions.Normal': lambda t: torch.distributions.Normal(t, 1.0).log_prob(t),
        'ParameterList': lambda t: torch.nn.ParameterList([t])[0].detach(),
        'weight_norm': lambda t: torch._weight_norm(t, t[:, :1], 0),
        'cond': lambda t: torch.where(t.sum() > 0, t.sum(), 0),
    }


def _swapped(t: Any) -> Any:
    plain = torch.zeros(2)
    torch.utils.swap_tensors(plain, t)
    return plain


def _dual(t: Any) -> Any:
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        made = forward.make_dual(t, t * 2)
        return forward.unpack_dual(made.sum(0)).tangent.clone()

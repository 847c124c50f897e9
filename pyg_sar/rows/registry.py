"""Which rule a function of torch has on rows, and what to write in place of one that is refused.

A function without a rule is refused by its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""``rule(func, args, kwargs)`` computes what `func` is of the whole graph."""

_by_name: dict[str, Rule] = {}
rules_by_function: dict[Any, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Enters a rule for functions of torch by their names, without underscores around them.

    ``add`` stands for ``torch.add``, ``Tensor.add_``, ``+``, ``+=`` and their reversed forms;
    ``.shape`` for an attribute that is read.
    """

    def enter(function: Rule) -> Rule:
        for name in names.split():
            assert name not in _by_name, f'two rules for {name}'
            _by_name[name] = function
        return function

    return enter


def rule_of(func: Any) -> Rule:
    """The rule of a function of torch; the one that refuses if there is none."""
    if torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():  # type: ignore[no-untyped-call]
        return _by_name['transformed']
    if func not in rules_by_function:
        rules_by_function[func] = _find(func)
    return rules_by_function[func]


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


@cache
def name_of(func: Any) -> str:
    """The name of a function, or of an attribute, in messages and rules."""
    name = getattr(func, '__name__', str(func))
    if name in ('__get__', '__set__', '__delete__'):
        attribute = func.__self__
        name = getattr(attribute, 'fget', attribute).__name__
    return str(name)


signature_of = cache(inspect.signature)


_NO_OPERATORS = ('__invert__', '__index__', '__int__', '__iter__')


@cache
def is_in_place(name: str) -> bool:
    """Whether a function of this name writes into its first argument."""
    if name.startswith('__'):
        return name == '__setitem__' or (name.startswith('__i') and name not in _NO_OPERATORS)
    return name.endswith('_') and name != 'requires_grad_'


@cache
def bare_name(func: Any) -> str:
    """Its name without the underscores of methods in place and of operators."""
    return name_of(func).strip('_')


def _find(func: Any) -> Rule:
    name, kind = name_of(func), getattr(func, '__name__', '')
    if kind == '__get__':
        return _by_name.get(f'.{name}', _by_name['attribute_read'])
    if kind in ('__set__', '__delete__'):
        return _by_name['attribute_set']
    if getattr(func, '__module__', '') == 'torch.nn.init' and name != 'constant_':
        return _by_name['unknown']
    for form in _forms(name):
        if form in _by_name:
            return _by_name[form]
    return _by_name['pointwise' if is_pointwise(name) else 'unknown']


def _forms(name: str) -> list[str]:
    """A name as it is, without underscores, and of an operator without ``r`` or ``i`` in front."""
    forms = [name, name.strip('_')]
    if name.startswith('__') and name.endswith('__') and forms[1][:1] in ('r', 'i'):
        forms.append(forms[1][1:])
    return forms


@cache
def is_pointwise(name: str) -> bool:
    """Whether torch itself says that a function of this name works number by number."""
    for form in _forms(name)[1:]:
        packet = getattr(torch.ops.aten, form, None)
        if packet is not None and form != 'equal':
            tags = (getattr(packet, overload).tags for overload in packet.overloads())
            return any(torch.Tag.pointwise in of_overload for of_overload in tags)
    return False


ALL_ROWS = (
    'pyg_sar.gather(x) has all rows in the order of the whole graph, pyg_sar.local(x) is the plain '
    'tensor of the own rows'
)

BROADCAST = (
    'in two dimensions would pair every row with every row',
    'write x.view(-1) for the column of an [N, 1], or give pyg_sar.gather(y) as one side for all '
    'pairs',
)
"""Why rows do not broadcast against rows, and what to write."""

_INSTEAD = {
    'write pyg_sar.gather(x).numpy(force=True), all rows on every rank, or give pyg_sar.gather(x) '
    'to what makes arrays (NumPy, SciPy, scikit-learn, some functions of PyG); in place of '
    'structured_negative_sampling pyg_sar.negative_sampling(edge_index, paired=True)': (
        'numpy array array_wrap'
    ),
    'write pyg_sar.gather(x).tolist()': 'tolist',
    'write x[3, 0].item() for one number, or x.sum().item() for one of all rows': (
        'item float int index complex'
    ),
    'write (x > 0).all() or (x > 0).any(), which are one bool of all rows': 'bool',
    'write (x == value).any()': 'contains',
    'write x[3] for one row, or for row in pyg_sar.gather(x)': 'unbind iter',
    "write torch_geometric.utils.scatter(x, index, dim=0, reduce='sum'), or 'mean', 'min', 'max', "
    'with the group of every row as index': (
        'scatter_sum scatter_mean segment_sum_csr segment_mean_csr segment_min_csr segment_max_csr '
        'segment_sum_coo segment_mean_coo segment_min_coo segment_max_coo segment_reduce'
    ),
    "write top = torch_geometric.utils.scatter(x, index, dim=0, reduce='max'); a logsumexp is "
    'top + scatter((x - top[index]).exp(), index, dim=0).log()': 'scatter_max scatter_min',
    'write pyg_sar.gather(x).sort(dim=0); a median in a conv is aggr=MedianAggregation() of its '
    'constructor': 'sort argsort msort',
    "write torch_geometric.utils.scatter(*map(pyg_sar.gather, (x, index)), reduce='mul')": (
        'scatter_mul'
    ),
    'write table[index] with the group of every row as index': 'gather_csr gather_coo',
    'write torch.diag(pyg_sar.gather(x)); (x * y).sum(1) is the diagonal of x @ y.t()': (
        'diag diagonal'
    ),
    'write torch.multinomial(pyg_sar.gather(weights), n)': 'multinomial',
    'write x.unsqueeze(1) and batch_first=True, a sequence for every row': (
        'lstm gru rnn_tanh rnn_relu'
    ),
    'write q @ pyg_sar.gather(k).t(), all pairs of the own rows, linear attention q @ (k.t() @ v), '
    'or torch.nn.functional.scaled_dot_product_attention(q, k, v)': (
        'matmul rmatmul mm bmm linalg_matmul addmm addbmm baddbmm einsum inner bilinear'
    ),
    'write x[:, None] * pyg_sar.gather(y), all pairs of the own rows': 'outer ger',
    'write torch.cdist(x, pyg_sar.gather(y)), all pairs of the own rows': 'cdist pdist',
    'add the node to the graph before the cut, as by torch_geometric.transforms.VirtualNode; pad '
    'other dimensions by F.pad': 'pad constant_pad_nd',
    'write torch.nn.Linear for a kernel of 1, or give it pyg_sar.gather(x)': (
        'conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d'
    ),
    'write loss.backward() or torch.autograd.grad(loss, x), of a loss that is one number': (
        'grad vjp jvp linearize torch.func.vmap torch.func.grad torch.func.grad_and_value '
        'torch.func.jacrev torch.func.jacfwd torch.func.hessian torch.func.functionalize'
    ),
    'write x.detach().clone()': 'tensor Tensor new new_tensor asarray Variable',
    'call the model itself, without torch.jit.script or torch.jit.trace': 'TorchScript',
}

BY_NAME = {name: text for text, names in _INSTEAD.items() for name in names.split()}
"""By the name of a function, without underscores around it."""

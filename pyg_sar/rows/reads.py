"""Functions and attributes that read rows without computing: shapes are those of the whole."""

from __future__ import annotations

import math
import sys
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import argument, own_rows, whole_shape
from pyg_sar.rows.over_ranks import in_one_place, on_all_rows, whole
from pyg_sar.rows.pointwise import pointwise
from pyg_sar.rows.registry import bare_name, hint, rule
from pyg_sar.rows.replicated import PLAIN
from pyg_sar.rows.rows import Rows, plainly, read, refuse, tag
from pyg_sar.rows.slices import remember
from pyg_sar.utils.installed import find

rule(
    'is_floating_point is_complex element_size get_device is_contiguous dim ndimension retain_grad '
    'hash is_pinned is_inference is_signed is_conj is_neg sparse_dim dense_dim is_coalesced '
    'has_compatible_shallow_copy_type register_post_accumulate_grad_hook constant '
    'is_distributed result_type can_cast dir is_shared '
    '.device .dtype .layout .requires_grad .is_leaf .is_cuda .is_sparse .ndim .is_meta '
    '.is_nested .is_quantized .is_mkldnn .output_nr .itemsize .name .names'
)(read)


def _caller() -> Any:
    """The frame that reads rows."""
    frame: Any = sys._getframe(2)
    # A mode (torch.set_default_device), or a torch.compile before, adds frames between.
    while (
        frame.f_code.co_name == '__torch_function__'
        or frame.f_globals.get('__name__') == 'torch._dynamo.eval_frame'
    ):
        frame = frame.f_back
    return frame


@rule('.grad_fn')
def _grad_fn(func: Any, args: Any, kwargs: Any) -> Any:
    code = _caller().f_code
    is_of_module = code.co_filename == torch.nn.modules.module.__file__
    hangs_hooks = code.co_name not in ('register_parameter', 'zero_grad')
    if is_of_module and hangs_hooks:
        refuse(
            torch.nn.Module.register_backward_hook,
            'would get the gradient of the own rows',
            'write register_full_backward_hook, which gets that of the whole graph',
        )
    return read(func, args, kwargs)


@rule('type')
def _type(func: Any, args: Any, kwargs: Any) -> Any:
    return (pointwise if len(args) > 1 or kwargs else read)(func, args, kwargs)


@rule('requires_grad_')
def _requires_grad(func: Any, args: Any, kwargs: Any) -> Any:
    with plainly():
        return func(*args, **kwargs)


@rule('format')
def _format(func: Any, args: Any, kwargs: Any) -> Any:
    if args[1:] not in ((), ('',)):
        refuse(func)
    return repr(args[0])


@rule('attribute_read')
def _attribute(func: Any, args: Any, kwargs: Any) -> Any:
    """An attribute that is a tensor (``data``, ``real``) has its rows where they were."""
    rows = args[0]
    with plainly():
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            if out.dim() != rows.dim():
                refuse(func)
            return tag(out, rows._dim, rows._sharding)
    return out


@rule('attribute_set')
def _set(func: Any, args: Any, kwargs: Any) -> Any:
    """Sets data or gradient of rows, to rows sharded alike, or a plain tensor of the whole."""
    to, *rest = args
    with plainly():
        if rest and isinstance(rest[0], Tensor):
            value: Any = rest[0]
            if isinstance(to, Rows) and type(value) in PLAIN and [*value.shape] == whole_shape(to):
                value = tag(own_rows(func, value, to._dim, to._sharding), to._dim, to._sharding)
            if isinstance(to, Rows) != isinstance(value, Rows):
                refuse(func, 'is another thing than a plain tensor')
            both = isinstance(to, Rows) and isinstance(value, Rows)
            if both and (to._dim != value._dim or not to._sharding.is_same(value._sharding)):
                refuse(func, 'takes rows of the same sharding')
            vars(to).pop('_own', None)  # the plain tensor of what it held
            return func(to, value)
        func(*args, **kwargs)


@rule('.grad')
def _grad(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0]
    with plainly():
        grad = func(rows)
        return None if grad is None else tag(grad, rows._dim, rows._sharding)


@rule('.shape')
def _shape(func: Any, args: Any, kwargs: Any) -> Any:
    return torch.Size(whole_shape(args[0]))


@rule('.nbytes size len numel nelement')
def _size(func: Any, args: Any, kwargs: Any) -> Any:
    shape, name = whole_shape(args[0]), bare_name(func)
    if name == 'len':
        return shape[0]
    if name in ('numel', 'nelement', 'nbytes'):
        return math.prod(shape) * (args[0].element_size() if name == 'nbytes' else 1)
    dim = argument(args, kwargs, 1, 'dim')
    return torch.Size(shape) if dim is None else shape[dim]


@rule('stride storage_offset as_strided as_strided_ resize resize_as set')
def _of_memory(func: Any, args: Any, kwargs: Any) -> Any:
    refuse(func, 'is that of the memory of this rank')


_NO_PLAN = 'would not see the other ranks'
_PLAIN_MODEL = (
    'give it plain tensors and the plain model, which takes model.state_dict(), on one process'
)


@rule('is_view')
def _is_view(func: Any, args: Any, kwargs: Any) -> Any:
    """torch.compile asks this first of a tensor: with rows a function then runs uncompiled."""
    if find('torch._guards.TracingContext.try_get')() is None:
        refuse('torch.export', _NO_PLAN, _PLAIN_MODEL)
    _leave_to_python()
    raise find('torch._dynamo.exc.SkipFrame')('rows that are spread over the ranks')


@cache
def _leave_to_python() -> None:
    kinds: list[Any] = [Rows, *Rows.__subclasses__()]
    for kind in kinds:
        disabled = torch.compiler.disable(kind.__torch_function__.__func__)  # type: ignore[no-untyped-call]
        kind.__torch_function__ = classmethod(disabled)
    warnings.warn(
        'torch.compile leaves functions as they are that get rows of load_shard', stacklevel=1
    )


@rule('transformed')
def _transformed(func: Any, args: Any, kwargs: Any) -> Any:
    refuse(func, f'inside of torch.func {_NO_PLAN}', _PLAIN_MODEL)


@rule('unknown')
def _unknown(func: Any, args: Any, kwargs: Any) -> Any:
    if type(func).__name__ == 'ScriptMethod':
        refuse('TorchScript', _NO_PLAN)
    of_library = type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor)
    how = f'where it computes every row by itself, declare it: pyg_sar.nn.rowwise(torch.ops.{func})'
    refuse(func, 'is not known to be right', how if isinstance(func, of_library) else '')


@rule('numpy array')
def _array(func: Any, args: Any, kwargs: Any) -> Any:
    """All rows, to be read: torch's array is a view of its tensor."""
    with plainly():
        array = func(in_one_place(func, args[0]), *args[1:], **kwargs)
    if isinstance(array.base, Tensor):
        array.flags.writeable = False
        remember(array.base, args[0], slice(None))
    return array


@rule('array_wrap')
def _wrapped(func: Any, args: Any, kwargs: Any) -> Any:
    with plainly():
        return func(whole(args[0]), *args[1:], **kwargs)


@rule(
    'item __float__ __int__ __index__ __complex__',
    'write x[3, 0].item() for one number, or x.sum().item() for one of all rows',
)
@rule('__bool__', 'write (x > 0).all() or (x > 0).any(), which are one bool of all rows')
def _one_number(func: Any, args: Any, kwargs: Any) -> Any:
    if math.prod(whole_shape(args[0])) != 1:
        refuse(func)
    return on_all_rows(func, *args, **kwargs)


@rule('__contains__')
def _contains(func: Any, args: Any, kwargs: Any) -> bool:
    return bool((args[0] == args[1]).any())


@rule('dlpack to_dlpack')
def _of_other_libraries(func: Any, args: Any, kwargs: Any) -> Any:
    refuse(func)


hint(
    'grad vjp jvp linearize torch.func.vmap torch.func.grad torch.func.grad_and_value '
    'torch.func.jacrev torch.func.jacfwd torch.func.hessian torch.func.functionalize',
    'write loss.backward() or torch.autograd.grad(loss, x), of a loss that is one number',
)
hint('tensor Tensor new new_tensor asarray Variable', 'write x.detach().clone()')
hint('TorchScript', 'call the model itself, without torch.jit.script or torch.jit.trace')
hint(
    'torch.jit.trace',
    'trace the plain model on plain tensors, on one machine; model.state_dict() has its keys',
)


@rule('convert_indices_from_coo_to_csr')
def _pointers(func: Any, args: Any, kwargs: Any) -> Any:
    """Where each row of a matrix begins, of all rows."""
    return func(whole(args[0]), *args[1:], **kwargs)


rule('tolist')(lambda func, args, kwargs: on_all_rows(func, *args, **kwargs))

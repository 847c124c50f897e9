"""All names of torch, PyG and pymetis that pyg_sar uses and that are not public.

They may go in any version. One that is gone is an error where it is used, and what only a corner
needs is looked for there by :func:`find`. CONTRIBUTING.md has a table of this file
(``make private-names``).

A name that ends with ``()`` is a class: an object of it, made without arguments, has the next name.
"""

from __future__ import annotations

import importlib
import warnings
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def installed(package: str) -> str | None:
    """The version of a package that is installed, of PyG also a nightly one; None if it is not."""
    for name in (package, 'pyg-nightly') if package == 'torch_geometric' else (package,):
        with suppress(PackageNotFoundError):
            return version(name) if name == package else f'{version(name)} of {name}'
    return None


with warnings.catch_warnings():
    # PyG prepares functions for TorchScript, which torch has given up; no user can change it.
    warnings.filterwarnings('ignore', '.torch.jit.[a-z_]+. is (deprecated|not supported)')
    warnings.filterwarnings('ignore', "Failing to pass a value to the 'type_params'")
    importlib.import_module('torch_geometric.nn')


@dataclass(frozen=True)
class Private:
    """Private names that go together.

    Attributes:
        names: The names, with a space between them.
        purpose: What they are for.
        without: What is refused without them, or what happens in their place; without a word
            Python's own error names one that is gone.
    """

    names: str
    purpose: str
    without: str = ''


NAMES = (
    Private(
        'torch._C.DisableTorchFunctionSubclass torch._C._EnableTorchFunction',
        "what rows and indices are is plain inside; a user's backward gets rows",
    ),
    Private(
        'torch._C.DisableTorchFunction torch.utils._python_dispatch._disable_current_modes',
        'small operations of ours that nobody counts',
    ),
    Private(
        'torch._C._is_torch_function_enabled torch._C._are_functorch_transforms_active',
        'whether rows are asked, or torch.func',
    ),
    Private(
        'torch._C._is_torch_function_all_disabled',
        'whether a call is ours, while ranks take turns',
        'as if: inside of rules of rows, too',
    ),
    Private('torch._C._current_graph_task_id', 'which backward runs'),
    Private('torch._C._will_engine_execute_node', "'backward()' or 'autograd.grad'"),
    Private('torch.autograd.Variable._execution_engine.queue_callback', 'the end of a backward'),
    Private('torch._C._autograd._profiler_enabled', 'ranges only while a profiler runs'),
    Private('torch._C.PyTorchFileReader', 'reads the pickle of a file'),
    Private(
        'torch.ops.aten._scaled_dot_product_flash_attention_for_cpu '
        'torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward',
        'softmax attention to one block, 3 times faster',
        'as if: products and exponentials of torch',
    ),
    Private(
        'torch.ops.mkldnn._linear_pointwise.default',
        'linear layers on AMD processors, in half the time',
        'as if: products of torch',
    ),
    Private(
        'torch.ops.aten._to_copy.default torch.ops.aten._unsafe_view.default',
        'operations that leave a message linear',
        'as if: such a message is computed again in backward',
    ),
    Private('torch.ops.aten.add.Tensor._schema', 'what an operation writes to'),
    Private('torch.utils._python_dispatch.TorchDispatchMode', 'sees operations below autograd'),
    Private(
        'torch._guards.TracingContext.try_get torch._dynamo.exc.SkipFrame',
        'what meets rows is not compiled',
        'refused: torch.compile of functions that get rows',
    ),
    Private(
        'torch._jit_internal._qualified_name torch.jit._builtins._find_builtin '
        'torch.jit._builtins._register_builtin',
        'TorchScript finds functions that others stand for',
        'told by a warning: TorchScript of functions that make sparse matrices, or of convs',
    ),
    Private('torch.utils.checkpoint._StopRecomputationError', 'the end of a recomputation'),
    Private(
        'torch.utils.checkpoint._CheckpointFrame',
        'dropout by id draws the same again in a checkpoint',
        'refused: dropout_seed in torch.utils.checkpoint',
    ),
    Private(
        'torch.nn.parallel.DistributedDataParallel._get_active_ddp_module',
        "a NodeEmbedding in torch's wrapper is refused",
        'refused: NodeEmbedding',
    ),
    Private(
        'torch.utils.hooks.BackwardHook._apply_on_tensors',
        'backward hooks of modules get rows',
        'refused: backward hooks of modules on rows',
    ),
    Private(
        'torch._amp_foreach_non_finite_check_and_unscale_ torch._foreach_add_ '
        'torch.Tensor._is_view',
        'functions of torch that rows and an edge_index take',
        'refused: functions of other names, each by its own',
    ),
    Private(
        'torch.Tensor._indices torch.Tensor._values torch.optim._functional.sparse_adam',
        'what a sparse tensor consists of, also for SparseAdam on rows',
    ),
    Private('torch.Tensor._version', 'whether a tensor was changed in place'),
    Private('torch.Tensor._base', 'equal views are exchanged once'),
    Private('torch.Tensor._backward_hooks', "our hooks of leaves, among users'"),
    Private('torch.Tensor._post_accumulate_grad_hooks', "users' hooks see whole gradients"),
    Private(
        'torch.autograd.function.BackwardCFunction.apply '
        'torch.autograd.function.BackwardCFunction._sequence_nr',
        "what runs inside of a Function's backward, or before a message",
    ),
    Private('torch.UntypedStorage._cdata', 'tensors that share memory'),
    Private(
        'torch.nn.Module()._parameters torch.nn.Module()._buffers torch.nn.Module()._modules',
        'what a conv was in forward, and whether it has changed',
    ),
    Private(
        'torch.nn.Module()._forward_hooks torch.nn.Module()._forward_pre_hooks '
        'torch.nn.Module()._backward_hooks torch.nn.Module()._backward_pre_hooks '
        'torch.nn.modules.module._global_forward_hooks '
        'torch.nn.modules.module._global_forward_pre_hooks '
        'torch.nn.modules.module._global_backward_hooks '
        'torch.nn.modules.module._global_backward_pre_hooks',
        'who looks on; which hooks are ours',
    ),
    Private(
        'torch.nn.RNNBase._flat_weights',
        'parameters of a recurrent module in forward',
        'refused: recurrent modules in a conv',
    ),
    Private('torch.distributed.distributed_c10d._get_default_store', 'reports of lost ranks'),
    Private(
        'torch.distributed.ProcessGroup._device_types torch.distributed.ProcessGroup._get_backend',
        'which backend carries what',
    ),
    Private(
        'torch._C._distributed_c10d.Backend.Options._timeout',
        'how long ranks wait',
        "as if: the timeout of 'init_process_group' is unknown",
    ),
    Private(
        'torch_geometric.data.Data._cached_attr',
        'which attributes are of edges',
        'refused: graphs whose sizes do not tell',
    ),
    Private('torch_geometric.data.storage.NodeStorage._key', 'the type of a store'),
    Private(
        'torch_geometric.inspector.Inspector.collect_param_data '
        'torch_geometric.inspector.Inspector.get_param_names '
        'torch_geometric.nn.MessagePassing.special_args',
        'what a message takes',
    ),
    Private(
        'torch_geometric.nn.SimpleConv()._propagate_forward_hooks '
        'torch_geometric.nn.SimpleConv()._propagate_forward_pre_hooks '
        'torch_geometric.nn.SimpleConv()._message_forward_hooks '
        'torch_geometric.nn.SimpleConv()._message_forward_pre_hooks '
        'torch_geometric.nn.SimpleConv()._aggregate_forward_hooks '
        'torch_geometric.nn.SimpleConv()._aggregate_forward_pre_hooks '
        'torch_geometric.nn.SimpleConv()._edge_update_forward_hooks '
        'torch_geometric.nn.SimpleConv()._edge_update_forward_pre_hooks',
        'hooks of a step, and who looks on',
    ),
    Private(
        'torch_geometric.utils._negative_sampling.edge_index_to_vector',
        'negative edges are those of rank 0',
    ),
)


def find(name: str) -> Any:
    """The object that a name of :data:`NAMES` stands for; an ImportError where it is gone."""
    value: Any = importlib.import_module(name.partition('.')[0])
    for word in name.split('.')[1:]:
        try:
            value = _attribute(value, word.removesuffix('()'))
            value = value() if word.endswith('()') else value
        except (AttributeError, ImportError):
            raise missing(name) from None
    return value


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        return importlib.import_module(f'{owner.__name__}.{name}')


def find_or_none(name: str) -> Any:
    """As :func:`find`, or None."""
    try:
        return find(name)
    except ImportError:
        return None


def missing(name: str) -> ImportError:
    """The error where a name is gone."""
    (purpose,) = (group.purpose for group in NAMES if name in group.names.split())
    package = name.partition('.')[0]
    return ImportError(
        f"pyg_sar needs '{name}' ({purpose}), which {package} {installed(package)} does not have: "
        "install a version that it is tested with ('pip check' tells which)"
    )

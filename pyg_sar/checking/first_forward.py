"""The check of a model at its first forward in training."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from traceback import walk_stack
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle
from torch_geometric.nn import MessagePassing

from pyg_sar.checking.compare import difference
from pyg_sar.checking.run import CannotRun
from pyg_sar.checking.small_graph import Argument, SmallGraph
from pyg_sar.comm import agree, raise_together, transport
from pyg_sar.conv.exchanges import find_shards
from pyg_sar.conv.names import plain_class
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.monitor import say
from pyg_sar.norm import edges_here, edges_in
from pyg_sar.own_rows import OwnRows
from pyg_sar.rows.rows import Rows
from pyg_sar.shard.nested import leaves_of

_logger = logging.getLogger(__name__)
_MOST_BYTES = 2**28
_WRAPPERS = {'DistributedDataParallel', 'OptimizedModule'}


class FirstForward:
    """Checks a model once, at the first forward in training of it or of a module inside it.

    A forward pre-hook of all of them, as users call ``model.encode(...)`` as well. With one process
    nothing is checked, and nothing on batches, which are not cut: the first forward on the graph
    that is comes later. A copy of the model has the hook without its work.
    """

    def __init__(self, *, is_done: bool = False) -> None:
        self._handles: list[RemovableHandle] = []
        self._is_done = is_done

    def __reduce__(self) -> Any:
        return partial(FirstForward, is_done=True), ()

    def watch(self, model: torch.nn.Module) -> None:
        """Waits for the first forward."""
        for module in model.modules():
            is_whole = module is model or not isinstance(module, MessagePassing)
            if is_whole and any(isinstance(inner, SARConv) for inner in module.modules()):
                handle = module.register_forward_pre_hook(self, with_kwargs=True, prepend=True)
                self._handles.append(handle)

    def let_go(self) -> None:
        """Waits no more."""
        self._is_done = True
        for handle in self._handles:
            handle.remove()

    @torch.compiler.disable
    def __call__(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Runs the check if this is the first forward in training.

        Raises:
            ValueError: On all ranks, if the model is not exact on a cut graph.
        """
        is_first = not self._is_done and model.training and torch.is_grad_enabled()
        if not is_first or transport.world() is not None or transport.world_size() == 1:
            return
        if (edges_in((args, kwargs)) or edges_here()) == 'batch':
            return
        if any(isinstance(each, Rows) for each in leaves_of((args, kwargs))):
            self.let_go()  # rows are right or refused by themselves
            return
        model, args, kwargs = _outermost(model, args, kwargs)
        if any(is_lazy(p) for p in model.parameters()):  # without DistributedDataParallel: the next
            return
        self.let_go()
        error, own = None, 0
        with suppress(ValueError):  # the forward says it better
            own = sum(shard.num_own for shard in find_shards((args, kwargs)))
        num_rows = agree(own)
        try:  # one rank does it for all, the one with the most rows to draw from
            if transport.rank() == num_rows.index(max(num_rows)):
                found = check_model(model, args, kwargs)
                error = None if found is None else ValueError(found)
        except CannotRun as reason:
            say(_logger, logging.WARNING, f'{type(model).__name__} was not checked: {reason}')
        raise_together(error)


def _outermost(model: torch.nn.Module, args: Any, kwargs: Any) -> tuple[torch.nn.Module, Any, Any]:
    """The module whose forward all of this is in, such as one around an encoder, and its arguments.

    Of those that are called with a shard; of wrappers such as DistributedDataParallel what is in
    them.
    """
    found = model, args, kwargs
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code is torch.nn.Module._call_impl.__code__:
            outer, args, kwargs = (frame.f_locals[name] for name in ('self', 'args', 'kwargs'))
            with suppress(ValueError):
                has_shard = bool(find_shards((args, kwargs)))
                if has_shard and type(outer).__name__ not in _WRAPPERS:
                    found = outer, args, kwargs
    return found


def check_first_forward(model: torch.nn.Module, *, is_wanted: bool) -> None:
    """Has a model checked at its first forward in training, or no longer."""
    for module in model.modules():
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, FirstForward):
                hook.let_go()
    if is_wanted:
        FirstForward().watch(model)


def check_model(model: torch.nn.Module, args: Any, kwargs: Any) -> str | None:
    """What a model does not compute exactly on a cut graph, in a sentence; None if nothing.

    Raises:
        CannotRun: If it cannot be run on a small graph.
    """
    tensors = [*model.parameters(), *model.buffers()]
    tensors = [t for t in tensors if not isinstance(t, OwnRows)]
    if sum(t.nbytes for t in tensors) > _MOST_BYTES:
        raise CannotRun('its parameters are large, and the check makes copies of them')

    # By their names, where the model has names for them: an edge_weight is of edges.
    names = inspect.signature(model.forward).parameters
    named = {Argument(name): value for name, value in zip(names, args, strict=False)}
    rest = args[len(named) :]
    kwargs = {Argument(name): value for name, value in kwargs.items()}

    def program(model: torch.nn.Module, arguments: Any) -> Any:
        named, rest, kwargs = arguments
        return model(*named.values(), *rest, **kwargs)

    try:
        taken = {size for t in tensors for size in t.shape}
        small = SmallGraph((named, rest, kwargs), taken)
    except Exception as error:
        raise CannotRun(f'{type(error).__name__}: {error}') from error
    try:
        return difference(model, program, small)
    except CannotRun:
        for name, p in _own_parameters(model):
            is_whole = not isinstance(p, OwnRows)
            if is_whole and p.dim() > 1 and p.size(0) in small.own_sizes:
                return (
                    f"'{name}' of {type(model).__name__} has {p.size(0)} rows, as many as this "
                    'rank has nodes: gradients of parameters are averaged over the ranks, so its '
                    'rows cannot belong to nodes of one rank; pyg_sar.NodeEmbedding has such rows'
                )
        raise


def _own_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Those of embeddings, and of modules that are neither torch's nor PyG's."""
    for path, module in model.named_modules():
        is_known = plain_class(module).__module__.startswith(('torch.', 'torch_geometric.'))
        if not is_known or isinstance(module, torch.nn.Embedding):
            yield from module.named_parameters(path, recurse=False)

"""One run of a program on the small graph: its outputs, its gradients, and what came on the way.

Dropout is off in all runs. Other random numbers are the same for the same row of the small graph,
whichever run draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyg_sar.checking.same_draws import DRAWS, same_draw
from pyg_sar.checking.small_graph import leaves
from pyg_sar.checking.view import View, rows_of
from pyg_sar.comm import all_reduce_sum, world_size
from pyg_sar.comm.faults.errors import place
from pyg_sar.conv.names import name_of
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.dropout import switched_off
from pyg_sar.norm import GlobalNorm
from pyg_sar.own_rows import OwnRows, plain

_DROPOUTS = {
    getattr(torch.nn.functional, name)
    for name in (
        *('dropout', 'dropout1d', 'dropout2d', 'dropout3d'),
        *('alpha_dropout', 'feature_alpha_dropout'),
    )
} | {torch.dropout, torch.dropout_, torch.alpha_dropout, torch.feature_dropout}


class CannotRun(Exception):
    """Why a program cannot be run on the small graph."""


@dataclass(frozen=True, eq=False)
class Step:
    """A tensor that the model computed on its way."""

    function: str  # what computed it; empty for a module's output
    path: str  # the module in whose forward that was; of a module's output that module
    kind: str  # its class
    value: Tensor


@dataclass(eq=False)
class Run:
    """What came out."""

    view: View  # what the run had of the small graph
    outputs: list[Tensor] = field(default_factory=list)  # of floating point, that were returned
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # of parameters, the means
    input_gradients: list[Tensor | None] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)  # afterwards
    steps: list[Step] = field(default_factory=list)  # if they were asked for
    has_odd_draws: bool = False  # random numbers were drawn of which rows cannot be told apart


def run(
    model: torch.nn.Module,
    program: Callable[[torch.nn.Module, Any], Any],
    arguments: Any,
    view: View,
    *,
    records: bool = False,
) -> Run:
    """Runs a program once, forward and backward, on this rank of the world that this thread is in.

    The model is for this run alone, and the arguments are as it has them. With `records` what comes
    on the way is kept.
    """
    found = Run(view)
    for p in model.parameters():
        p.grad = None
    mode = _SameDraws(found, records)
    with torch.enable_grad(), ExitStack() as stack:
        _no_dropout(model)
        stack.enter_context(switched_off())
        if records:
            stack.enter_context(mode.following(model))
        with mode:
            out = program(model, arguments)
        outputs = floats_in(out)
        found.outputs = [t.detach().clone() for t in outputs]  # some models free them in backward
        loss = _functional(outputs, view)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
    ranks = world_size()
    with torch.no_grad():
        found.gradients = _mean_gradients(model)
        for p in model.parameters():
            if isinstance(p, OwnRows):  # of this rank's rows alone, and that of the mean already
                found.input_gradients.append(None if p.grad is None else plain(p.grad).to_dense())
        found.buffers = {
            name: b.clone() for name, b in model.named_buffers() if b.is_floating_point()
        }
        for value, _ in leaves(arguments):
            if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
                found.input_gradients.append(None if value.grad is None else value.grad / ranks)
    return found


def _mean_gradients(model: torch.nn.Module) -> dict[str, Tensor | None]:
    """The mean over the ranks of the gradients of parameters; None where no rank has one."""
    learned = {
        name: p
        for name, p in model.named_parameters()
        if not isinstance(p, OwnRows)
        and p.requires_grad
        and (p.is_floating_point() or p.is_complex())
    }
    if not learned:
        return {}
    has_any = torch.tensor([float(p.grad is not None) for p in learned.values()])
    all_reduce_sum(has_any)
    dense = [torch.zeros_like(p) if p.grad is None else p.grad for p in learned.values()]
    dense = [grad if grad.layout == torch.strided else grad.to_dense() for grad in dense]
    dtype = torch.complex128 if any(grad.is_complex() for grad in dense) else torch.float64
    total = all_reduce_sum(torch.cat([grad.reshape(-1).to(dtype) for grad in dense]))
    means = torch.split(total / world_size(), [grad.numel() for grad in dense])
    return {
        name: _as(mean, p) if has > 0 else None
        for (name, p), mean, has in zip(learned.items(), means, has_any.tolist(), strict=True)
    }


def _as(values: Tensor, p: Tensor) -> Tensor:
    values = values.view(p.shape)
    return (values if p.is_complex() or not values.is_complex() else values.real).to(p.dtype)


def floats_in(value: Any) -> list[Tensor]:
    """The floating-point tensors of nested containers."""
    tensors = (t for t, _ in leaves(value) if isinstance(t, Tensor))
    return [t for t in tensors if t.is_floating_point() or t.is_complex()]


def _functional(outputs: list[Tensor], view: View) -> Tensor | None:
    """A scalar of the outputs, the mean of which over the ranks is that of the whole graph.

    A fixed random number times every entry. Rows that only this rank has count P times, as their
    sum over the ranks is wanted.
    """
    total = None
    for i, out in enumerate(outputs):
        if not out.requires_grad:
            continue
        found = rows_of(out, view)
        if found is None:
            weights = _drawn(out.shape, i)
            part = (out * weights.to(out.dtype)).sum()
        else:
            dim, rows = found[0], view.rows_of(found[1])
            shape = list(out.shape)
            shape[dim] = rows.num_rows
            weights = _drawn(shape, i).index_select(dim, rows.ids)
            part = (out * weights.to(out.dtype)).sum() * world_size()
        part = part.real if part.is_complex() else part
        total = part if total is None else total + part
    return total


def _drawn(shape: Any, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


def _no_dropout(model: torch.nn.Module) -> None:
    """Sets what modules call their share of dropped values to 0, for good: it is a copy."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            is_share = 'dropout' in name or (
                name == 'p' and isinstance(module, torch.nn.modules.dropout._DropoutNd)
            )
            if is_share and type(value) is float:
                setattr(module, name, 0.0)


class _SameDraws(TorchFunctionMode):
    """Makes random numbers the same in all runs, leaves dropout out, and keeps steps."""

    def __init__(self, found: Run, records: bool) -> None:
        super().__init__()
        self._run, self._records = found, records
        self._num_draws = 0
        self._modules: list[tuple[str, torch.nn.Module]] = []  # whose forwards run, outermost first

    @contextmanager
    def following(self, model: torch.nn.Module) -> Iterator[None]:
        """Notes in which module things happen; what is in a SARConv is its own affair."""
        handles = []
        for path, module in model.named_modules():
            enter, leave = partial(self._enter, path), partial(self._leave, path)
            handles.append(module.register_forward_pre_hook(enter, prepend=True))
            handles.append(module.register_forward_hook(leave))
        yield
        for handle in handles:
            handle.remove()

    def _enter(self, path: str, module: torch.nn.Module, args: Any) -> None:
        self._modules.append((path, module))

    def _leave(self, path: str, module: torch.nn.Module, args: Any, out: Any) -> None:
        while self._modules.pop() != (path, module):  # forwards inside that have raised
            pass
        self._note('', path, module, out)

    def _note(self, function: str, path: str, module: torch.nn.Module, out: Any) -> None:
        # What is in a SARConv, a global norm or a function over all nodes is their affair.
        if place() or any(isinstance(outer, (SARConv, GlobalNorm)) for _, outer in self._modules):
            return
        with torch._C.DisableTorchFunction():
            for value in floats_in(out):
                step = Step(function, path, name_of(module), value.detach().clone())
                self._run.steps.append(step)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs['input']
        out = func(*args, **kwargs)
        is_seeded = bool(place()) and kwargs.get('generator') is not None  # by one of our functions
        if func in DRAWS and not is_seeded:
            view = self._run.view
            self._run.has_odd_draws |= out.dim() > 0 and rows_of(out, view) is None
            self._num_draws += 1
            out = same_draw(func, args, kwargs, out, view, self._num_draws)
        elif self._records and self._modules:
            self._note(getattr(func, '__name__', str(func)), *self._modules[-1], out)
        return out


@contextmanager
def no_collectives() -> Iterator[None]:
    """Raises where the program itself communicates: the ranks of the check are not its own."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotRun('it communicates by torch.distributed itself')

    if not dist.is_available():
        yield
        return
    with patch.object(dist.distributed_c10d, '_rank_not_in_group', refuse, create=True):
        yield

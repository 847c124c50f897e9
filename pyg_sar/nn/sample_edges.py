"""Runs a message function on a few edges, and leaves the conv as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from pyg_sar.nn.call import Call
from pyg_sar.nn.intercept import MessageError
from pyg_sar.ops.program import Arguments
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.dry_run import Snapshot
from pyg_sar.utils.installed import missing
from pyg_sar.utils.nested import PLAIN
from pyg_sar.utils.rng import states_of_process

NUM_SAMPLES = 13
"""Hardly a width of rows: sizes that are multiples of it count edges."""


class UndoneSideEffects:
    """While it lasts a function may set attributes of its conv and draw random numbers.

    At the end the conv, its modules, the generators and the program's tensors among the arguments
    are as they were. Then `changed` are the attributes that were set, with their values,
    `refilled` the names of those changed in place, and `uses_rng` whether torch drew numbers.
    """

    def __init__(self, conv: torch.nn.Module, arguments: Arguments) -> None:
        self.conv = conv
        self.changed: dict[str, Any] = {}
        self.refilled: list[str] = []
        self.uses_rng = False
        self._whole = arguments.whole
        self._drew: set[str] = set()

    def __enter__(self) -> UndoneSideEffects:
        self._before = dict(vars(self.conv))
        self._snapshot = Snapshot((self.conv, self._whole))
        self._states = states_of_process()
        self._copying = self._snapshot.copying()
        self._copying.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._copying.__exit__(None, None, None)
        self.changed = undo(self.conv, self._before)
        self.refilled = self._snapshot.restore()
        self._drew = self._states()
        self.uses_rng = 'torch' in self._drew

    def check_edges_alone(self) -> None:
        """Raises a MessageError if the conv keeps something of all edges, such as a mean."""
        allowed = {*self.edge_attributes, *self.numbers}
        kept = [*(name for name in self.changed if name not in allowed), *self.refilled]
        if kept:
            raise MessageError(f"keeps '{kept[0]}', which has no row for every edge")
        if self._drew - {'torch'}:
            raise MessageError('it draws random numbers by others than torch')

    @property
    def edge_attributes(self) -> tuple[str, ...]:
        """Which of the changed attributes have one row per sampled edge."""
        return tuple(
            name
            for name, value in self.changed.items()
            if isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == NUM_SAMPLES
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """Which of the changed attributes are plain numbers or words, with their values."""
        return {k: v for k, v in self.changed.items() if isinstance(v, PLAIN)}


def states_of(values: Mapping[str, Any]) -> dict[str, tuple[Tensor, object]]:
    """Tensors among the inputs of a function, each with a copy or its version, to see writes."""
    tensors = {name: value for name, value in values.items() if type(value) is Tensor}
    return {n: (t, t.clone() if t.is_inference() else t._version) for n, t in tensors.items()}


def written_among(call: Call, states: Mapping[str, tuple[Tensor, object]]) -> tuple[str, ...]:
    """The inputs that were written to: rows of nodes, which the next block reads anew.

    Raises a MessageError for tensors of edges, a ValueError for those that are read as they are: a
    function that runs in several blocks, and again in backward, would write to them every time.
    """
    roles = {slot.name: slot.role for slot in call.slots}
    written = []
    for name, (tensor, before) in states.items():
        if isinstance(before, Tensor):
            is_same = torch.allclose(tensor, before, 0, 0, equal_nan=True)
        else:
            is_same = tensor._version == before
        if is_same or name not in roles:
            continue
        if roles[name] == 'whole':
            raise ValueError(
                f"'{call.function}' of {name_of(call.conv)} changes '{name}' in place, and "
                f'would at every block of edges: change {name}.clone()'
            )
        if roles[name] == 'edge':
            raise MessageError(f"it changes '{name}' in place, a tensor of edges")
        written.append(name)
    return tuple(written)


def undo(conv: torch.nn.Module, before: dict[str, Any]) -> dict[str, Any]:
    """Gives a conv the attributes that it had before; returns those that were set since."""
    now, missing = vars(conv), object()
    changed = {k: v for k, v in now.items() if before.get(k, missing) is not v}
    for name in changed:
        if name in before:
            now[name] = before[name]
        else:
            del now[name]
    return changed


def edge_rows(
    conv: torch.nn.Module, changed: dict[str, Any], names: tuple[str, ...], num_edges: int
) -> tuple[Tensor, ...]:
    """The attributes of these names that a conv has set to one row per edge."""
    for name in names:
        value = changed.get(name)
        if not isinstance(value, Tensor) or value.size(0) != num_edges:
            raise ValueError(
                f"expected {name_of(conv)} to set '{name}' to one row per edge in every block"
            )
    return tuple(changed[name] for name in names)


def state_of(conv: torch.nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Notes parameters, buffers and plain attributes of a conv and all modules in it.

    Returns a function that makes a context, in which the conv is as it was noted. Plain attributes
    are numbers and words: ``training``, ``dropout``. Tensors are compared by identity; autograd
    finds one that was changed in place.
    """
    noted: list[tuple[Any, dict[str, Any]]] = []
    lists = []  # from which recurrent modules read their parameters
    for module in conv.modules():
        own = vars(module)
        noted += [(t, dict(t)) for t in (module._parameters, module._buffers) if t]
        noted.append((own, {k: v for k, v in own.items() if isinstance(v, PLAIN)}))
        if isinstance(module, torch.nn.RNNBase):
            if '_flat_weights' not in own:
                raise missing('torch.nn.RNNBase._flat_weights')
            lists.append((own['_flat_weights'], list(own['_flat_weights'])))

    @contextmanager
    def as_in_forward() -> Iterator[None]:
        changed = []
        others = [list(now) for now, _ in lists]
        for weights, noted_weights in lists:
            weights[:] = noted_weights
        for now, then in noted:
            other = {k: now[k] for k, v in then.items() if k in now and now[k] is not v}
            if other:
                changed.append((now, other))
                now.update({key: then[key] for key in other})
        try:
            yield
        finally:
            for now, other in changed:
                now.update(other)
            for (weights, _), other_weights in zip(lists, others, strict=True):
                weights[:] = other_weights

    return as_in_forward


def samples_of(call: Call) -> tuple[Arguments, Tensor]:
    """Arguments of a few edges, each from a source and into a destination of its own."""
    arguments = call.arguments
    samples = Arguments(
        src=tuple(map(_sample, arguments.src)),
        dst=tuple(map(_sample, arguments.dst)),
        edge=tuple(map(_sample, arguments.edge)),
        whole=tuple(t.detach().requires_grad_(t.requires_grad) for t in arguments.whole),
    )
    ids = torch.arange(NUM_SAMPLES, device=samples.device)
    return samples, torch.stack([ids, ids])


def _sample(values: Tensor) -> Tensor:
    """The first rows, finite, and made-up ones where a rank has fewer."""
    rows = values.detach()[:NUM_SAMPLES].nan_to_num(1, 1, -1)
    missing = NUM_SAMPLES - rows.size(0)
    rows = torch.cat([rows, padding_row(rows).expand(missing, *rows.shape[1:])])
    return rows.requires_grad_(values.requires_grad)


def padding_row(values: Tensor) -> Tensor:
    """A row like those of `values`: ones, or index zero."""
    return values.new_full((1, *values.shape[1:]), 1 if values.is_floating_point() else 0)


NUM_PADDING = 9
"""More in-edges than a sampled destination has, to see effects of the largest in-degree."""


def with_padding_edges(arguments: Arguments, edge_index: Tensor) -> tuple[Arguments, Tensor]:
    """The edges, after some between made-up nodes that end in a new first destination."""
    num_src = next((t.size(0) for t in arguments.src), 0)
    first = edge_index.new_tensor([[num_src], [0]]).expand(2, NUM_PADDING)
    shifted = torch.stack([edge_index[0], edge_index[1] + 1])
    more = replace(
        arguments,
        src=tuple(torch.cat([t, padding_row(t)]) for t in arguments.src),
        dst=tuple(torch.cat([padding_row(t), t]) for t in arguments.dst),
        edge=tuple(torch.cat([*[padding_row(t)] * NUM_PADDING, t]) for t in arguments.edge),
    )
    return more, torch.cat([first, shifted], dim=1)


@contextmanager
def not_saved() -> Iterator[None]:
    """While it lasts, hooks on what autograd saves see nothing.

    A checkpoint compares what a forward saves with what the same forward saves in backward, when
    the ranks have agreed on the call already.
    """
    # A node that keeps its own result, with its history, would never be freed; see recompute.
    with saved_tensors_hooks(_detached, lambda tensor: tensor):
        yield


def _detached(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # they count operations
        return tensor.detach()


def node_of_now() -> Any:
    """A node of the autograd history that is younger than all others; None without gradients."""
    return torch.ones(1, requires_grad=torch.is_grad_enabled()).exp().grad_fn


def learnable_leaves(
    outputs: Sequence[Tensor], samples: Arguments, first_node: Any
) -> tuple[Tensor, ...]:
    """Leaves of the outputs' history that are not arguments.

    A function computed `outputs` from `samples`, right after `first_node` of the history was made.
    """
    sample_ids = {id(t) for t in samples}
    leaves: dict[int, Tensor] = {}
    seen: set[Any] = set()
    last_node = node_of_now()
    todo = [t.grad_fn for t in outputs if t.grad_fn is not None]
    for output in outputs:
        if output.requires_grad and output.grad_fn is None and id(output) not in sample_ids:
            leaves[id(output)] = output
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, 'variable', None)
        if variable is not None:
            if id(variable) not in sample_ids:
                leaves[id(variable)] = variable
            continue
        if not first_node._sequence_nr() <= node._sequence_nr() <= last_node._sequence_nr():
            raise MessageError(
                'it reads a tensor that forward computed and kept on the conv; '
                'pass that tensor to propagate instead'
            )
        todo += [parent for parent, _ in node.next_functions if parent is not None]
    return tuple(leaves.values())

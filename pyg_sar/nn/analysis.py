"""What a message function does, found by one run on rows of "the edges of a block".

The rules of rows decide (:mod:`pyg_sar.nn.edge_space`): what works row by row passes, and the call
may be computed block by block. What needs other rows asks for them, which raises a
:class:`~pyg_sar.nn.intercept.MessageError`: such a message needs the edges of all ranks.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from pyg_sar.comm.ranks import chosen
from pyg_sar.nn.at_once import observed
from pyg_sar.nn.call import NUM_EDGES, Call
from pyg_sar.nn.counts import ALL_EDGES, ALL_NODES, refused
from pyg_sar.nn.edge_space import BlockRows, SilentComm, refuse_own_backward
from pyg_sar.nn.intercept import MessageError
from pyg_sar.nn.message_run import MessageRun
from pyg_sar.nn.plan import Plan
from pyg_sar.nn.side_effects import UndoneSideEffects, node_of_now, not_saved
from pyg_sar.ops.program import no_autocast_cache
from pyg_sar.rows.rows import Rows, plainly
from pyg_sar.rows.users_functions import applied
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.dry_run import is_hidden


@no_autocast_cache()
@not_saved()
def analyze(call: Call) -> Plan:
    """The plan of a call, by one run of its message function and the aggregation.

    Raises a MessageError if it needs the edges of all ranks.

    A checkpoint around the conv does not see what autograd saves here: nothing needs it later, and
    a second run of the conv in backward may save something else.
    """
    conv, samples = call.conv, call.samples()
    here = torch.autograd.set_multithreading_enabled(False)  # gradients inside are of this thread
    own = applied.set(refuse_own_backward)
    notes: list[str] = []
    with chosen.set(SilentComm()), is_hidden.set(True), refused.set(notes), here, own:
        edges = BlockRows(NUM_EDGES, what='edges of a block', total=ALL_EDGES)
        nodes = BlockRows(NUM_EDGES, what='nodes of a block', total=ALL_NODES)
        run = MessageRun(call, edges, nodes, samples, notes)
        first_node = node_of_now()
        values = run.inputs(samples)
        versions = {name: _version(t) for name, t in values.items() if isinstance(t, Tensor)}
        with (
            UndoneSideEffects(conv, call.arguments) as undone,
            redirect_stdout(io.StringIO()) as said,
        ):
            out = run(values)
        if notes:  # and the message has caught it
            raise MessageError(notes[0])
        if said.getvalue():
            raise MessageError('it prints, once for all edges')

        def is_of_edges(value: Any) -> bool:
            return isinstance(value, Rows) and value._dim == 0 and value._sharding is edges

        names = undone.edge_attributes(is_of_edges)
    written = _written(call, values, versions)
    if call.draws is not None and undone.uses_rng:
        raise WrongMessageError(
            f"'dropout_seed' needs a '{call.function}' of {name_of(conv)} that draws random "
            'numbers by F.dropout or torch.nn.Dropout only (got others)'
        )
    plan = run.plan(out, names, written, undone, samples, first_node)
    if plan.path == 'by destination':
        plan = observed(plan, call)
    return replace(plan, parameters=_homes(conv, plan.learnable))


class WrongMessageError(ValueError):
    """A message does what no path can do."""


def _written(call: Call, values: dict[str, Any], versions: dict[str, int]) -> tuple[str, ...]:
    """The inputs that the function writes to: rows of nodes, which the next block reads anew.

    A function that runs in several blocks, and again in backward, would write to others every time.
    """
    roles = {slot.name: slot.role for slot in call.slots}
    names = tuple(n for n, then in versions.items() if n in roles and _version(values[n]) != then)
    for name in names:
        if roles[name] == 'whole':
            raise WrongMessageError(
                f"'{call.function}' of {name_of(call.conv)} changes '{name}' in place, and "
                f'would at every block of edges: change {name}.clone()'
            )
        if roles[name] == 'edge':
            raise MessageError(f"it changes '{name}' in place, a tensor of edges")
    return names


def _version(tensor: Tensor) -> int:
    with plainly():
        return 0 if tensor.is_inference() else tensor._version


def _homes(
    conv: torch.nn.Module, tensors: tuple[Tensor, ...]
) -> tuple[tuple[ref[torch.nn.Module], str], ...] | None:
    """Module and name of every tensor as a parameter of `conv`; None if one is no parameter."""
    homes = {
        id(tensor): (ref(module), name)
        for module in conv.modules()
        for name, tensor in module.named_parameters(recurse=False, remove_duplicate=False)
    }
    if not all(id(tensor) in homes for tensor in tensors):
        return None
    return tuple(homes[id(tensor)] for tensor in tensors)

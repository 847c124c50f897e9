"""Whether all ranks are about to run the same forward of a conv.

Ranks decide together how a call of message passing is computed, and keep to it. A decision holds
for one state of the conv: its hooks, its training mode, its numbers and the kinds of its inputs. If
one rank registers a hook and the others do not, it would decide anew while they wait for its rows.
So every forward begins with an all-reduce of one number, which tells whether what must be alike is
the same on all ranks, and whether one of them has to decide anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import agree, are_alike, check_equal, raise_together
from pyg_sar.conv.names import PLAIN, name_of
from pyg_sar.conv.options import Options
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard

_MESSAGE_HOOKS = ('_propagate', '_message', '_aggregate', '_edge_update')
_FUNCTIONS = ('message', 'aggregate', 'update', 'edge_update')


@dataclass(frozen=True)
class SameForward:
    """What a forward is decided by.

    Attributes:
        on_all_ranks: What must be alike on all ranks, in words.
        on_this_rank: What may be this rank's own, but asks for new decisions where it changes:
            numbers and words that the conv and its modules hold, functions and hooks by identity.
    """

    on_all_ranks: str
    on_this_rank: tuple[Any, ...]

    @staticmethod
    def of(
        conv: MessagePassing, options: Options, shards: list[Shard], values: Iterable[Any]
    ) -> SameForward:
        """The forward of a conv with these arguments."""
        words = [name_of(conv), str(options), *(shard.fingerprint for shard in shards)]
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        words.append(f'gradients {modes[0]}, inference {modes[1]}')
        own: list[Any] = []
        for path, module in conv.named_modules():
            table = vars(module)
            own.append(table['training'])
            if not table['training']:
                words.append(f"'{path}' in evaluation")
            for name, value in table.items():
                if isinstance(value, PLAIN):
                    own.append((name, value))
                elif name.endswith('_hooks') and value and 'state_dict' not in name:
                    hooks = list(value.values())
                    own.append((name, *map(id, hooks)))
                    if name.startswith(_MESSAGE_HOOKS):
                        words.append(f"{name[1:]} of '{path}': {', '.join(map(_called, hooks))}")
            if isinstance(module, MessagePassing):
                own += [id(table[name]) for name in _FUNCTIONS if name in table]
                own.append(id(module.aggr_module))
        words += _kinds(values)
        return SameForward('; '.join(words), tuple(own))

    def check(self, world_size: int, error: ValueError | None, *, is_known: bool) -> bool:
        """Compares the forward with those of the other ranks (collective).

        Args:
            world_size: Number of ranks.
            error: What is wrong with this rank's inputs.
            is_known: Whether this rank knows the decisions for it.

        Returns:
            Whether all ranks know them.

        Raises:
            ValueError: On all ranks, if the forwards differ, or the inputs of one are wrong.
        """
        if world_size == 1:
            if error is not None:
                raise error
            return is_known
        alike, known = are_alike(self.on_all_ranks, is_known and error is None)
        if alike and known:
            return True
        check_equal('layer', self.on_all_ranks, agree(self.on_all_ranks))
        raise_together(error)
        return False


def _called(hook: Any) -> str:
    return getattr(hook, '__qualname__', type(hook).__qualname__)


def _kinds(values: Iterable[Any]) -> Iterator[str]:
    """Kind, dtype and need of a gradient of every tensor among a forward's arguments."""
    for value in values:
        if isinstance(value, ShardEdgeIndex):
            yield 'edges'
        elif isinstance(value, Tensor):
            needs = value.requires_grad and torch.is_grad_enabled()
            yield f'{value.dtype} in {value.dim()} dimensions' + ', with gradient' * needs
        elif isinstance(value, Mapping):
            yield from map(str, value)
            yield from _kinds(value.values())
        elif isinstance(value, (tuple, list)):
            yield from _kinds(value)

"""A model's forward in which masks of dropout are drawn by id.

The mask of a node or an edge is a function of the seed, the step (how many forwards in training
there were), the number of the call in the forward, and the id in the whole graph. So it does not
matter which rank draws it, how many there are, in how many pieces a message is computed, or whether
it is computed again.

Rows are told by their number, by all ranks together, as edge tensors are: whether they are of own
nodes, and of which type. What draws random numbers in another way would differ from rank to rank.
It is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from traceback import walk_stack
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from pyg_sar.comm import agree, check_equal
from pyg_sar.draws import hashed, hashed_on
from pyg_sar.dropout.draw import DROPOUTS, EdgeDraws, KeyedDraw, is_drawn
from pyg_sar.dropout.edge_ids import edge_ids, has_ids
from pyg_sar.ground.nested import leaves_of
from pyg_sar.ground.random_states import random_states
from pyg_sar.ground.scoped import Scoped
from pyg_sar.monitor.recipes import remember
from pyg_sar.recompute import Dropout, dropout_arguments
from pyg_sar.rows.attach import as_local
from pyg_sar.rows.rows import Rows, plain, tag
from pyg_sar.shard.edge_index import ShardEdgeIndex

_OTHER = 'dropout_edge, alpha_dropout, torch.rand, the dropout of an LSTM or of MultiheadAttention'


_forward: Scoped[_Forward | None] = Scoped(None)  # the one that draws by id
_is_off = Scoped(False)


def switched_off() -> AbstractContextManager[None]:
    """While it lasts, dropout in this thread is torch's."""
    return _is_off.set(True)


def is_running() -> bool:
    """Whether a forward that draws by id runs in this thread, or may do without."""
    return _forward.value is not None or _is_off.value


def edge_draws() -> EdgeDraws | None:
    """The dropouts of the next call of message passing; None if they are torch's."""
    forward = _forward.value
    return None if forward is None or _is_off.value else EdgeDraws(forward.next_state())


def of_model(model: torch.nn.Module) -> dict[str, SameDropout]:
    """What draws the masks of a model and of models inside it, by their paths."""
    found = {}
    for path, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            owner = getattr(hook, '__self__', None)
            if isinstance(owner, SameDropout):
                found[path] = owner
    return found


class SameDropout:
    """Draws the masks of a model's dropouts by a seed and by id.

    How many forwards in training there were, its `step`, belongs into a checkpoint.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.step = seed, 0
        self._sets: dict[Any, int] = {}
        self._is_compared = False

    def watch(self, model: torch.nn.Module) -> None:
        """Draws the masks of every forward of `model` from now on."""
        self._hooks = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            # As it entered last, it leaves first.
            model.register_forward_hook(self._leave, prepend=True, always_call=True),
        ]

    def let_go(self) -> None:
        """Leaves the dropouts of the model to torch."""
        for hook in self._hooks:
            hook.remove()

    @torch.compiler.disable
    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        running = _forward.value
        if running is not None and running.module is module:  # interrupted from the keyboard
            running.end()
        if _is_off.value or _forward.value is not None:
            return
        leaves = list(leaves_of((args, kwargs)))
        has_rows = any(isinstance(each, Rows) for each in leaves)
        leaves = as_local(leaves)
        handles = [each for each in leaves if isinstance(each, ShardEdgeIndex)]
        if handles and not self._is_compared:
            own = self.seed, self.step
            check_equal("'dropout_seed' and its step", agree(own))
            self._is_compared = True
        _forward.value = _Forward(self, module, handles, has_rows, self._sets)
        _forward.value.__enter__()  # type: ignore[no-untyped-call]

    @torch.compiler.disable
    def _leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        forward = _forward.value
        if forward is None or forward.module is not module:
            return
        forward.end()
        if out is None:
            return
        if forward.counts:
            self.step += 1
        forward.check_nothing_else_was_drawn()


class _Forward(TorchFunctionMode):
    """One forward: numbers its calls, and draws the masks of nodes."""

    def __init__(
        self,
        owner: SameDropout,
        module: torch.nn.Module,
        handles: list[ShardEdgeIndex],
        has_rows: bool,
        sets: dict[Any, int],
    ) -> None:
        super().__init__()
        self.module, self.counts = module, module.training
        self._handles, self._has_rows, self._sets = handles, has_rows, sets
        self._state = hashed(owner.seed, owner.step)
        self._number = 0
        is_checked = (
            module.training and bool(handles) and not any(map(is_lazy, module.parameters()))
        )
        self._before = _random_states() if is_checked else None

    def end(self) -> None:
        """Leaves dropout to torch again."""
        _forward.value = None
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def next_state(self) -> Tensor:
        """What the masks of the next call are drawn from."""
        _refuse_checkpoints()
        self._number += 1
        return hashed_on(self._state, self._number)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in DROPOUTS or _is_off.value:
            return func(*args, **kwargs)
        x, p, training, inplace = dropout_arguments(*args, **kwargs)
        if not is_drawn(p, training):
            return x
        self.counts = True
        state = hashed_on(self.next_state(), 0)
        if isinstance(x, Rows):
            return self._of_rows(x, p, state, inplace or func is torch.dropout_)
        draw = KeyedDraw(p, state, self._ids_of(x))
        if inplace or func is torch.dropout_:
            return x.mul_(draw.draw(x))
        out: Tensor = Dropout.apply(x, draw)
        remember(out, draw, x)
        return out

    def _of_rows(self, x: Rows, p: float, state: Tensor, inplace: bool) -> Any:
        if x._dim or not x._space.has_ids():
            raise ValueError(
                f"'dropout_seed' takes rows with ids in the first dimension (got {x._space!r})"
            )
        draw, own = KeyedDraw(p, state, x._space.ids(x.device)), plain(x)
        if inplace:
            return x.mul_(tag(draw.draw(own), 0, x._space))
        out: Tensor = Dropout.apply(own, draw)
        remember(out, draw, own)
        return tag(out, 0, x._space)

    def _ids_of(self, x: Tensor) -> Tensor:
        """The ids of the rows of a tensor (collective at the first time)."""
        if self._has_rows and x.dim():  # beside rows a plain tensor is one of the whole graph
            return torch.arange(x.size(0), device=x.device)
        if not self._handles:
            raise ValueError(
                f"'dropout_seed' needs the edge_index of load_shard among the arguments of "
                f'{type(self.module).__name__} (got none, and a dropout of shape '
                f"{tuple(x.shape)}): batches, and models that keep their graph, have torch's own "
                'dropout only'
            )
        sizes = list(self._row_counts())
        own = frozenset(i for i, size in enumerate(sizes) if x.dim() and x.size(0) == size)
        names = tuple(handle.shard.fingerprint for handle in self._handles)
        key = self._number, x.shape[1:], names
        if key not in self._sets:
            self._sets[key] = self._agreed(x, own)
        if self._sets[key] not in own:
            raise ValueError(
                f"'dropout_seed' needs forwards with the same dropouts in the same order: "
                f'{sizes[self._sets[key]]} rows in dropout {self._number} (got shape '
                f'{tuple(x.shape)})'
            )
        return self._ids(self._sets[key]).to(x.device)

    def _agreed(self, x: Tensor, own: frozenset[int]) -> int:
        """Which rows all ranks can have here."""
        possible = sorted(frozenset.intersection(*map(frozenset, agree(sorted(own)))))
        where = f'a dropout of shape {tuple(x.shape)} in {type(self.module).__name__}'
        if not possible:
            raise ValueError(
                f"'dropout_seed' takes dropouts of rows of own nodes, of the edges of the graph, "
                f'and of messages (got {where}): leave it out there (p=0), or say no dropout_seed'
            )
        first: int = possible[0]
        is_same = all(self._has_same_ids(first, other) for other in possible[1:])
        if not all(agree(is_same)):
            raise ValueError(
                f"'dropout_seed' cannot tell of what the rows are in {where}, as the graph has "
                'sets of nodes or edges that are equally many on every rank: cut it otherwise, '
                'or leave it out there (p=0)'
            )
        return first

    def _row_counts(self) -> Iterator[int]:
        """Own sources, own destinations and edges of every handle; -1 where ids are not known."""
        for handle in self._handles:
            shard = handle.shard
            known = has_ids(shard)
            yield shard.num_own if known else -1
            yield shard.num_dst if known and shard.is_bipartite else -1
            yield handle.size(1) if known and not handle.is_flipped else -1

    def _ids(self, place: int) -> Tensor:
        handle = self._handles[place // 3]
        shard = handle.shard
        if place % 3 == 2:
            return edge_ids(handle, shard)
        ids = shard.n_id if place % 3 == 0 else shard.dst_id
        assert ids is not None
        return ids

    def _has_same_ids(self, a: int, b: int) -> bool:
        return a % 3 != 2 and b % 3 != 2 and torch.equal(self._ids(a), self._ids(b))

    def check_nothing_else_was_drawn(self) -> None:
        """Raises a ValueError where torch's generator was used."""
        if self._before is None:
            return
        pairs = zip(self._before, _random_states(), strict=False)
        if any(not torch.equal(before, after) for before, after in pairs):
            raise ValueError(
                f"'dropout_seed' needs a forward of {type(self.module).__name__} that draws random "
                f'numbers by F.dropout or torch.nn.Dropout only (got others, as of {_OTHER}): draw '
                'them by pyg_sar.draws and ids, or with a torch.Generator of your own, or give '
                "negative_sampling a 'seed'"
            )


def _random_states() -> list[Tensor]:
    uses_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return random_states(torch.device('cuda' if uses_gpu else 'cpu'))


def _refuse_checkpoints() -> None:
    """Raises inside torch.utils.checkpoint: backward would run the call outside of a forward."""
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            raise ValueError(
                "'dropout_seed' draws nothing again in torch.utils.checkpoint (got a dropout or a "
                'conv inside of it): use checkpoint_activations=True instead'
            )

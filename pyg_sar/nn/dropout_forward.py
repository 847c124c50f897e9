"""A model's forward in which masks of dropout are drawn by id.

The mask of a node or an edge is a function of the seed, the step (how many forwards in training
there were), the number of the call in the forward, and the id in the whole graph. So it does not
depend on the ranks, on pieces of a message, or on whether ``torch.utils.checkpoint`` runs it again.

A plain tensor among rows is one of the whole graph: its row numbers are ids. Functions that draw
random numbers in another way would differ from rank to rank, so they are refused.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from inspect import unwrap
from traceback import walk_stack
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from pyg_sar.comm.vote import agree, check_equal
from pyg_sar.nn.dropout import Dropout, Drops, EdgeDraws, factors
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import Rows, plain, tag
from pyg_sar.utils.installed import missing
from pyg_sar.utils.nested import leaves_of
from pyg_sar.utils.rng import hashed, hashed_on, random_states
from pyg_sar.utils.scoped import Scoped

_CHECKPOINT, _REENTRANT = unwrap(checkpoint).__code__, CheckpointFunction.forward.__code__
_REGION = 'torch.utils.checkpoint._CheckpointFrame'

_OTHER = 'dropout_edge, alpha_dropout, torch.rand, the dropout of an LSTM or of MultiheadAttention'


_forward: Scoped[_Forward | None] = Scoped(None)  # that draws by id


def is_running() -> bool:
    """Whether a forward that draws by id runs in this thread."""
    return _forward.value is not None


def edge_draws() -> EdgeDraws | None:
    """The dropouts of the next call of message passing; None if they are torch's."""
    forward = _forward.value
    return None if forward is None else EdgeDraws(forward.next_state())


def of_model(model: torch.nn.Module) -> dict[str, SameDropout]:
    """The dropouts by id of a model and of models inside it, by path."""
    by_path = {}
    for path, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            owner = getattr(hook, '__self__', None)
            if isinstance(owner, SameDropout):
                by_path[path] = owner
    return by_path


class SameDropout:
    """Draws the masks of a model's dropouts by a seed and by id.

    Its `step`, the number of forwards in training so far, belongs into a checkpoint.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.step = seed, 0
        self._is_compared = False

    def watch(self, model: torch.nn.Module) -> None:
        """Draws the masks of every forward of `model` from now on."""
        self._hooks = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            # Entered last, it leaves first.
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
        if _forward.value is not None:
            return
        rows = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Rows)]
        has_edges = any(isinstance(leaf, EdgeIndex) for leaf in rows)
        if has_edges and not self._is_compared:
            check_equal("'dropout_seed' and its step", agree((self.seed, self.step)))
            self._is_compared = True
        _forward.value = _Forward(self, module, has_rows=bool(rows), has_edges=has_edges)
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


class _Forward(Drops):
    """One forward: numbers its calls, and draws the masks of nodes."""

    def __init__(
        self, owner: SameDropout, module: torch.nn.Module, *, has_rows: bool, has_edges: bool
    ) -> None:
        super().__init__()
        self.module, self.counts, self._has_rows = module, module.training, has_rows
        self._state = hashed(owner.seed, owner.step)
        self._number = 0
        is_checked = module.training and has_edges and not any(map(is_lazy, module.parameters()))
        self._before = _random_states() if is_checked else None
        self._is_inside_checkpoint = any(True for _ in _checkpoints())

    def end(self) -> None:
        """Leaves dropout to torch again."""
        _forward.value = None
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def next_state(self) -> Tensor:
        """The state from which the masks of the next call are drawn."""
        if self._is_inside_checkpoint:
            raise ValueError(
                "'dropout_seed' needs torch.utils.checkpoint inside of the forward of "
                f'{type(self.module).__name__} (got one around it): give it layers of the model'
            )
        regions = list(_checkpoints())
        if len(regions) > 1:  # torch may give the inner one plain tensors for rows
            raise ValueError(
                "'dropout_seed' takes no torch.utils.checkpoint inside of another (got two around "
                'a dropout or a conv): leave out one of them'
            )
        for holder, name in regions:
            function = getattr(holder, name)
            if not hasattr(function, 'first_number'):
                setattr(holder, name, self._again(function, self._number))
        self._number += 1
        return hashed_on(self._state, self._number)

    def _again(self, function: Callable[..., Any], first_number: int) -> Callable[..., Any]:
        """The `function` of a checkpoint, which backward runs: draws what it has drawn here."""

        def again(*args: Any) -> Any:
            forward = copy.copy(self)
            forward._number = first_number
            with _forward.set(forward), forward:
                return function(*args)

        again.first_number = first_number  # type: ignore[attr-defined]
        return again

    def drop(self, x: Tensor, p: float, inplace: bool) -> Any:
        self.counts = True
        state = hashed_on(self.next_state(), 0)
        draw = partial(factors, p, state, self._ids_of(x))
        own = plain(x) if isinstance(x, Rows) else x
        out = draw(own) if inplace else Dropout.apply(own, draw)
        out = tag(out, 0, x._sharding) if isinstance(x, Rows) else out
        return x.mul_(out) if inplace else out

    def _ids_of(self, x: Tensor) -> Tensor:
        """The ids of rows; a plain tensor beside rows is one of the whole graph."""
        if isinstance(x, Rows):
            if x._dim or not x._sharding.has_ids():
                raise ValueError(
                    "'dropout_seed' takes rows with ids in the first dimension "
                    f'(got {x._sharding!r})'
                )
            return x._sharding.ids(x.device)
        if self._has_rows and x.dim():
            return torch.arange(x.size(0), device=x.device)
        raise ValueError(
            f"'dropout_seed' needs the edge_index of load_shard among the arguments of "
            f'{type(self.module).__name__} (got none, and a dropout of shape {tuple(x.shape)}): '
            "batches, and models that keep their graph, have torch's own dropout only"
        )

    def check_nothing_else_was_drawn(self) -> None:
        """Raises a ValueError where torch's generator was used."""
        if self._before is None:
            return
        pairs = zip(self._before, _random_states(), strict=False)
        if any(not torch.equal(before, after) for before, after in pairs):
            raise ValueError(
                f"'dropout_seed' needs a forward of {type(self.module).__name__} that draws random "
                f'numbers by F.dropout or torch.nn.Dropout only (got others, as of {_OTHER}): draw '
                'them by pyg_sar.utils.rng and ids, or with a torch.Generator of your own, or '
                "give negative_sampling a 'seed'"
            )


def _random_states() -> list[Tensor]:
    uses_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return random_states(torch.device('cuda' if uses_gpu else 'cpu'))


def _checkpoints() -> Iterator[tuple[Any, str]]:
    """Where each ``torch.utils.checkpoint`` around the caller keeps what backward runs again."""
    is_found = False  # that of the innermost checkpoint
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code.co_filename != _CHECKPOINT.co_filename:
            continue
        values = frame.f_locals
        if frame.f_code is _REENTRANT:
            is_found = True
            yield values['ctx'], 'run_function'
        elif isinstance(values.get('gen'), GeneratorType):  # of checkpoint, or a part of it
            is_found = True
            yield values['gen'].gi_frame.f_locals['new_frame'], 'recompute_fn'
        elif frame.f_code is _CHECKPOINT:
            if not is_found:
                raise missing(_REGION)
            is_found = False

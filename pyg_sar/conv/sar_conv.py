"""SARConv: the class of a conv that is computed over a graph that is cut into parts.

``SARConv(conv)`` gives the conv another class, made on the fly: ``SARGATConv(SARConv, GATConv)``,
as ``torch.distributed.fsdp.fully_shard`` does. The object stays the one it was, so whatever a
program does to the conv later is done to what computes. A module around the conv would silently
ignore what it forgot to pass on.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import in_layer, left_by, world_size
from pyg_sar.conv.around.patching import bind, overridden, replaced
from pyg_sar.conv.call.decision import Decision, Decisions
from pyg_sar.conv.call.propagation import Propagation
from pyg_sar.conv.call.start import decisions_for
from pyg_sar.conv.exchanges import Exchanges, find_shards
from pyg_sar.conv.names import name_of, plain_class
from pyg_sar.conv.options import Mode, Options, Path
from pyg_sar.conv.substitutes import ROW_BY_ROW, special_forms
from pyg_sar.conv.support import why_refused
from pyg_sar.dropout import is_running
from pyg_sar.rows.attach import edges_among, given_to_conv, rows_by_type
from pyg_sar.rows.made_edges import with_made_edges
from pyg_sar.rows.own_rows import own_rows_of, rows_of_call
from pyg_sar.rows.replicated import average_gradients, shares_kept
from pyg_sar.rows.unasked.constructors import alike_draws
from pyg_sar.shard.shard import Shard


class ChosenMode(NamedTuple):
    """How one kind of call of message passing is computed.

    Attributes:
        function: ``'GATConv.message'``, ``'GATConv.edge_update'`` ...
        mode: The mode it is computed in.
        one_shot_bytes: What mode one_shot would hold, on the rank where that is most; 0 where the
            memory budget did not decide.
    """

    function: str
    mode: Mode
    one_shot_bytes: int


class _Convert(type):
    """``SARConv(conv, ...)`` converts a conv; a class made by it constructs the plain conv."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is SARConv:
            return _convert(*args, **kwargs)
        return cls._plain_class(*args, **kwargs)  # type: ignore[attr-defined]


class SARConv(MessagePassing, metaclass=_Convert):
    r"""Computes a PyG conv exactly on a partitioned graph, one remote part at a time.

    ``SARConv(conv, mode='sequential', ...)`` changes the class of `conv` and returns `conv`: it is
    a ``GATConv`` as before, and a ``SARConv``. On the ``edge_index`` of
    :func:`pyg_sar.load_shard` its output holds, for the own nodes, the rows that the conv gives on
    the whole graph, and so do all gradients. Linear layers and skip terms run once per node, at its
    owner; only the rows that messages read travel. On any other ``edge_index``, such as that of a
    batch of this rank, it is the plain conv, and nothing is communicated.

    By hand, where :func:`pyg_sar.wrap` does it for all convs of a model::

        conv = pyg_sar.SARConv(GATConv(8, 4, heads=2), mode='one_shot')
        out = conv(data.x, data.edge_index)

    The method is Sequential Aggregation and Rematerialization (Mostafa, MLSys 2022,
    `arXiv 2111.06483 <https://arxiv.org/abs/2111.06483>`_).

    Args:
        conv: A conv of torch_geometric.nn or a MessagePassing of your own, with any message and
            any aggregation. What is made of reductions (sum, mean, max, min, mul) and softmaxes
            over in-edges is computed block by block; anything else (median, LSTM) by chunks of
            destinations, all in-edges of a destination at once.
        **options: See :class:`pyg_sar.conv.options.Options`: `mode`, `prefetch`, `max_rows`,
            `memory_budget`, `exchange_dtype`.

    Shapes:
        - **x**: own rows ``[num_own, F]``, or whatever node tensors the conv takes; on the edges
          between two sets of nodes a pair ``([num_own, F_src], [num_dst, F_dst])``
        - **edge_index**: the shard's ``[2, num_edges]``, or edges selected from it
        - **output**: ``[num_dst, F_out]``

    Forward and backward are collective: every rank calls them the same number of times, whatever
    its own nodes are. Every forward begins with an all-reduce of one number, which tells whether
    all ranks run the same layer in the same state; a first forward compares the ranks' inputs (one
    small all-gather). A copy (``deepcopy``, ``pickle``, ``torch.save``) is a SARConv with the same
    options.

    Raises:
        ValueError: If the conv cannot be computed on a cut graph, with the reason; at the first
            forward, on all ranks, if a rank's tensors do not fit its shard or the ranks' layers or
            partitions differ; at any forward, if their hooks or training modes differ.
        ExchangeError: In forward or backward, if another rank has ended, is silent or has failed by
            itself, with that rank, this layer and the block.
    """

    _plain_class: type[MessagePassing]
    _sar: _Converted

    # torch.compile leaves message passing on ranks to itself, and breaks its graph here.
    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the conv; the arguments are the conv's own."""
        if self._sar.is_running:
            return super().forward(*args, **kwargs)
        names = _names(self._plain_class.forward)
        args, kwargs = with_made_edges(name_of(self), names, args, kwargs)
        shards = find_shards((args, kwargs))
        if not shards:
            if getattr(self, 'cached', False) and world_size() > 1:
                raise ValueError(
                    f"'cached' of {name_of(self)} must be False on batches (got True): it keeps "
                    "the edges of its first forward, and those of a batch are not another's"
                )
            return super().forward(*args, **kwargs)
        edges = edges_among((args, kwargs))
        if edges and isinstance(self, ROW_BY_ROW):
            if torch.is_grad_enabled() and world_size() > 1:
                average_gradients(self.parameters())
            own = given_to_conv((args, kwargs), edges, name_of(self))
            return rows_by_type(self.forward(*own[0], **own[1]), (args, kwargs))
        with self._on_cut_graph(shards, args, kwargs) as decisions:
            if edges or isinstance(self, ROW_BY_ROW):
                if edges and not decisions.calls and torch.is_grad_enabled() and world_size() > 1:
                    average_gradients(self.parameters())
                return super().forward(*args, **kwargs)
            # Own rows, as pyg_sar.local gives them: computed as rows of the whole graph.
            call = inspect.signature(super().forward).bind(*args, **kwargs)
            rows = rows_of_call(call.arguments, int(self.node_dim), decisions.spaces)
            call.arguments.update(rows)
            with shares_kept.set(True):
                out = super().forward(*call.args, **call.kwargs)
            return own_rows_of(out, edges_among((call.args, call.kwargs)))

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.propagate``; called from outside of forward it is a layer by itself."""
        return self._called('propagate', edge_index, size, kwargs)

    def edge_updater(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.edge_updater``; see :meth:`propagate`."""
        return self._called('edge_updater', edge_index, size, kwargs)

    def _called(self, method: str, edge_index: Any, size: Any, kwargs: dict[str, Any]) -> Tensor:
        shards = [] if self._sar.is_running else find_shards([edge_index])
        if not shards:
            # PyG generates them without an argument `size` where the conv never gives one.
            named = kwargs if size is None else {'size': size, **kwargs}
            plain: Any = getattr(super(), method)
            return plain(edge_index, **named)
        with self._on_cut_graph(shards, (), {}, in_forward=False):
            return getattr(self, method)(edge_index, size=size, **kwargs)

    @contextmanager
    def _on_cut_graph(
        self,
        shards: list[Shard],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        in_forward: bool = True,
    ) -> Iterator[Decisions]:
        """While it lasts, the conv and all convs inside it pass messages on the cut graph.

        Collective: see :func:`pyg_sar.conv.call.start.decisions_for`.
        """
        sar = self._sar
        with in_layer(sar.place(self)), ExitStack() as stack:
            try:
                if sar.drops_by_id and self.training and not is_running():
                    raise ValueError(
                        f"'dropout_seed' of a model around {name_of(self)} draws in forwards of "
                        'the model (got a call from outside of one): call the model itself, or '
                        'wrap the module whose forward has the convs with dropout_seed'
                    )
                exchanges = Exchanges(shards, sar.options.prefetch, sar.options.exchange_dtype)
                decisions = decisions_for(self, sar.options, shards, args, kwargs, sar.decisions)
                forms = special_forms(exchanges, decisions.checked, args, kwargs)
                stack.enter_context(replaced(forms))
                stack.enter_context(alike_draws.set(True))
                for path, module in self.named_modules():
                    bind(type(module))
                    if isinstance(module, MessagePassing):
                        form = Propagation(
                            conv=module,
                            path=path,
                            exchanges=exchanges,
                            options=sar.options,
                            decisions=decisions,
                            in_forward=in_forward,
                        )
                        for method in ('propagate', 'edge_updater'):
                            stack.enter_context(overridden(module, method, getattr(form, method)))
                stack.enter_context(overridden(sar, 'is_running', True))
                yield decisions
            except BaseException as error:
                left_by(error)
                raise

    @property
    def sar_options(self) -> Options:
        """How the conv is computed on a cut graph."""
        return self._sar.options

    def chosen_modes(self) -> list[ChosenMode]:
        """The mode of every kind of call of message passing so far, the same on all ranks.

        Calls with and without gradients are two kinds, as they hold more and less.
        """
        found = [
            ChosenMode(each.function, each.mode, each.one_shot_bytes)
            for each in self._sar.all_decisions()
        ]
        return list(dict.fromkeys(found))

    def chosen_paths(self) -> list[Path]:
        """How message passing has been computed so far, the same on all ranks: each path once."""
        return list(dict.fromkeys(each.path for each in self._sar.all_decisions()))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A class that is made on the fly cannot be found by name, but the plain one can.
        cls = type(self)
        if cls is not _sar_class(cls._plain_class):
            return super().__reduce_ex__(protocol)
        return _empty, (cls._plain_class,), vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # PyG generates methods for the class of the object here: for the plain one.
        cls, self.__class__ = type(self), self._plain_class
        try:
            self.__setstate__(state)
        finally:
            self.__class__ = cls


class _Converted:
    """What a SARConv has beside its conv."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.path = ''  # of the conv in the model that pyg_sar.wrap was given
        self.drops_by_id = False  # whether it is part of a model with `dropout_seed`
        self.is_running = False  # on a cut graph now: calls of forward are those of the conv itself
        self.decisions: dict[
            str, Decisions
        ] = {}  # for each kind of forward, in words; oldest first

    def __getstate__(self) -> dict[str, Any]:
        # A copy may run with other ranks: they decide anew.
        return vars(self) | {'is_running': False, 'decisions': {}}

    def place(self, conv: torch.nn.Module) -> str:
        """What errors call this layer: its path in the model, as far as that is known."""
        name = name_of(conv)
        return f"layer '{self.path}' ({name})" if self.path else f'layer SARConv({name})'

    def all_decisions(self) -> list[Decision]:
        """Of all forwards, in the order in which they were made."""
        return [each for kind in self.decisions.values() for each in kind.calls.values()]


def _convert(conv: MessagePassing, **options: Any) -> MessagePassing:
    """Makes a SARConv of a conv; raises before anything is changed."""
    checked = Options(**options)
    if not isinstance(conv, MessagePassing) or isinstance(conv, SARConv):
        already = ', a SARConv already' * isinstance(conv, SARConv)
        raise ValueError(
            f'expected a MessagePassing conv to wrap (got {plain_class(conv).__name__}{already})'
        )
    for module in conv.modules():
        reason = why_refused(module)
        if reason is not None:
            raise ValueError(f'{name_of(module)} cannot be wrapped: {reason}')
    conv.__class__ = _sar_class(type(conv))
    vars(conv)['_sar'] = _Converted(checked)
    for module in conv.modules():
        bind(type(module))
    return conv


_classes: dict[type[MessagePassing], Any] = {}


def _sar_class(plain: type[MessagePassing]) -> Any:
    """``SARGATConv(SARConv, GATConv)`` for ``GATConv``, the same at every call."""
    if plain not in _classes:
        names = {'_plain_class': plain, '__module__': plain.__module__, '__doc__': plain.__doc__}
        made = _Convert(f'SAR{plain.__name__}', (SARConv, plain), names)
        _classes.setdefault(plain, made)  # another thread may have been faster
    return _classes[plain]


@cache
def _names(forward: Any) -> list[str]:
    """Of the arguments of a method."""
    return list(inspect.signature(forward).parameters)[1:]


def _empty(plain: type[MessagePassing]) -> Any:
    """A SARConv without state, for copies."""
    cls = _sar_class(plain)
    return cls.__new__(cls)

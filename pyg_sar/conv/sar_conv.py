"""SARConv: any message-passing conv, computed over a graph that is cut into parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import agree, check_equal, in_layer, left_by, raise_together
from pyg_sar.conv.around.patching import overridden, replaced
from pyg_sar.conv.around.source_rows import Ends
from pyg_sar.conv.call.agreement import Agreement
from pyg_sar.conv.call.paths import Mode, Path
from pyg_sar.conv.exchanges import Exchanges, find_shards
from pyg_sar.conv.inputs import check_inputs
from pyg_sar.conv.options import Options
from pyg_sar.conv.substitutes import propagation_of, special_forms
from pyg_sar.conv.support import why_refused
from pyg_sar.models import make_global
from pyg_sar.shard.shard import Shard

_PREFIX = 'conv.'
_HOOKED = ('_propagate', '_message', '_aggregate', '_edge_update')


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


class SARConv(MessagePassing):  # type: ignore[misc]
    r"""Computes a PyG conv exactly on a partitioned graph, one remote part at a time.

    On the ``edge_index`` of :func:`pyg_sar.load_shard` the output holds, for the own nodes, the
    rows that the wrapped conv gives on the whole graph, and so do all gradients. Linear layers and
    skip terms run once per node, at its owner; only the rows that messages read travel. On any
    other ``edge_index`` it is the conv it wraps. Attributes of the conv are those of the SARConv,
    and ``state_dict()`` has the conv's own keys.

    The method is Sequential Aggregation and Rematerialization (Mostafa, MLSys 2022,
    `arXiv 2111.06483 <https://arxiv.org/abs/2111.06483>`_).

    Args:
        conv: A conv of torch_geometric.nn or a MessagePassing of your own, with any message and
            any aggregation. What is made of reductions (sum, mean, max, min, mul) and softmaxes
            over in-edges is computed block by block; anything else (median, LSTM) by chunks of
            destinations, all in-edges of a destination at once.
        mode: ``'sequential'``: one remote part after another, fetched again in backward: least
            memory. ``'sequential_no_remat'``: keeps the rows it received: faster backward, memory
            grows with the halo. ``'one_shot'``: one exchange for all halo rows, then plain PyG:
            memory grows with the halo and its messages. A message with batch norm inside is
            computed so in every mode, as its statistics are of all edges. ``'auto'``: one_shot for
            every call of message passing that fits into `memory_budget`, else sequential; see
            :meth:`chosen_modes`.
        prefetch: How many remote parts travel ahead of the one that is computed (not in
            mode one_shot).
        max_rows: In-edges of a chunk of destinations at most (one destination may have more), where
            an aggregation is computed by chunks; None for what fits into a share of free memory.
        memory_budget: With mode auto, what one call of message passing may hold on a rank in
            one_shot, in bytes: halo rows and messages, with what is kept for backward. It is
            estimated from the shapes at the first call, and the largest estimate of all ranks
            counts. A layer may make several calls (GAT: two).
        exchange_dtype: ``torch.bfloat16`` or ``torch.float16``: wider floating-point rows, and
            their gradients on the way back, are rounded to it while they travel, which halves the
            bytes of float32. **The only approximation here**; None, the default, is exact. Own rows
            are never rounded, sums are made in the tensors' own dtype, and degrees and statistics
            travel as they are. In float16 small gradients vanish and large numbers overflow.

    Shapes:
        - **x**: own rows ``[num_own, F]``, or whatever node tensors the conv takes; on the edges
          between two sets of nodes a pair ``([num_own, F_src], [num_dst, F_dst])``
        - **edge_index**: the shard's ``[2, num_edges]``, or edges selected from it
        - **output**: ``[num_dst, F_out]``

    Forward and backward are collective: every rank calls them the same number of times, whatever
    its own nodes are. The first forward also compares the ranks' inputs (one small all-gather).

    Raises:
        ValueError: If the conv cannot be computed on a cut graph, with the reason; at the first
            forward, on all ranks, if a rank's tensors do not fit its shard or the ranks' layers or
            partitions differ.
        ExchangeError: In forward or backward, if another rank has ended, is silent or has failed by
            itself, with that rank, this layer and the block.
    """

    _path = ''
    """The path of the module in the model that :func:`pyg_sar.wrap` was given."""

    def __init__(
        self,
        conv: MessagePassing,
        *,
        mode: Mode = 'sequential',
        prefetch: int = 1,
        max_rows: int | None = None,
        memory_budget: int | None = None,
        exchange_dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(conv, SARConv) or not isinstance(conv, MessagePassing):
            raise ValueError(f'expected a MessagePassing conv to wrap (got {type(conv).__name__})')
        Options(mode, prefetch, max_rows, memory_budget, exchange_dtype)  # checks them
        for module in conv.modules():
            reason = why_refused(module)
            if reason is not None:
                raise ValueError(f'{type(module).__name__} cannot be wrapped: {reason}')
        make_global(conv)
        super().__init__(aggr=None, flow=conv.flow, node_dim=conv.node_dim)
        del self.aggr, self.aggr_module  # the conv's own show through
        # Hooks that are registered here are the conv's.
        for name in [n for n in vars(conv) if n.startswith(_HOOKED) and n.endswith('_hooks')]:
            setattr(self, name, getattr(conv, name))
        self.conv = conv
        self.mode: Mode = mode
        self.prefetch = prefetch
        self.max_rows = max_rows
        self.memory_budget = memory_budget
        self.exchange_dtype = exchange_dtype
        self._agreed: dict[Any, dict[Any, Any]] = {}
        self.register_state_dict_post_hook(_strip_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)
        self.register_load_state_dict_post_hook(_name_as_plain)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the conv; the arguments are the conv's own."""
        shards = find_shards([*args, *kwargs.values()])
        if not shards:
            return self.conv(*args, **kwargs)
        with in_layer(self.place):
            try:
                return self._forward(shards, args, kwargs)
            except BaseException as error:
                left_by(error)
                raise

    @property
    def place(self) -> str:
        """What errors call this layer: its path in the model, as far as that is known."""
        name = type(self.conv).__name__
        return f"layer '{self._path}' ({name})" if self._path else f'layer SARConv({name})'

    def _forward(self, shards: list[Shard], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        exchanges = Exchanges(shards, self.prefetch, self.exchange_dtype)
        self._check_call(shards, args, kwargs)
        with self._on_cut_graph(exchanges, args, kwargs):
            return self.conv(*args, **kwargs)

    def _check_call(
        self, shards: list[Shard], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Checks the inputs; at the first forward with all ranks, and that they run one layer."""
        error = None
        try:
            if len(shards) == 1:
                check_inputs(self.conv, shards[0], args, kwargs)
        except ValueError as found:
            error = found
        names = ', '.join(shard.fingerprint for shard in shards)
        layer = f'{type(self.conv).__name__}, mode {self.mode!r}, partition {names}'
        for option in ('memory_budget', 'exchange_dtype'):
            if getattr(self, option) is not None:
                layer += f', {option} {getattr(self, option)}'
        if shards[0].world_size > 1 and layer not in self._agreed:
            check_equal('layer', layer, agree(layer))
            raise_together(error)
            self._agreed[layer] = {}
        elif error is not None:
            raise error

    @contextmanager
    def _on_cut_graph(
        self, exchanges: Exchanges, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[None]:
        """Overrides message passing of the conv and all convs inside it while it lasts.

        A scoped override survives deepcopy and pickle of the module; a permanent one would not.
        """
        agreed = self._agreed.setdefault('normalization', {})
        with ExitStack() as stack:
            ends = Ends(exchanges)
            stack.enter_context(ends.in_force())
            forms = special_forms(exchanges, ends, agreed, args, kwargs)
            stack.enter_context(replaced(self.conv, forms))
            for name, module in self.conv.named_modules():
                if isinstance(module, MessagePassing):
                    agreed = self._agreed.setdefault(('propagation', name), {})
                    standing_in = propagation_of(module)
                    options = self.mode, self.max_rows, agreed, self.memory_budget
                    propagation = standing_in(module, exchanges, *options)
                    for method in ('propagate', 'edge_updater'):
                        stack.enter_context(
                            overridden(module, method, getattr(propagation, method))
                        )
            yield

    def chosen_modes(self) -> list[ChosenMode]:
        """The mode of every kind of call of message passing so far, the same on all ranks.

        Calls with and without gradients are two kinds, as they hold more and less.
        """
        return [
            ChosenMode(value.function, value.mode, value.one_shot_bytes)
            for agreed in self._agreed.values()
            for value in agreed.values()
            if isinstance(value, Agreement)
        ]

    def chosen_paths(self) -> list[Path]:
        """How message passing has been computed so far, the same on all ranks: each path once."""
        found = [
            v.path for a in self._agreed.values() for v in a.values() if isinstance(v, Agreement)
        ]
        return list(dict.fromkeys(found))

    def reset_parameters(self) -> None:
        """Resets the conv's parameters."""
        self.conv.reset_parameters()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            conv = self.__dict__.get('_modules', {}).get('conv')
            if conv is None:
                raise
            return getattr(conv, name)

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.conv}, mode={self.mode!r})'


def _strip_prefix(
    module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, _metadata: Any
) -> None:
    for key in [key for key in state_dict if key.startswith(prefix + _PREFIX)]:
        state_dict[prefix + key[len(prefix + _PREFIX) :]] = state_dict.pop(key)


def _add_prefix(module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in [key for key in state_dict if key.startswith(prefix)]:
        state_dict[prefix + _PREFIX + key[len(prefix) :]] = state_dict.pop(key)
    vars(module)['_loaded_as'] = prefix


def _name_as_plain(module: torch.nn.Module, incompatible_keys: Any) -> None:
    prefix = vars(module).pop('_loaded_as')
    for keys in (incompatible_keys.missing_keys, incompatible_keys.unexpected_keys):
        for i, key in enumerate(keys):
            if key.startswith(prefix + _PREFIX):
                keys[i] = prefix + key[len(prefix + _PREFIX) :]

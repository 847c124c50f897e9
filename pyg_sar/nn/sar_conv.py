"""SARConv: the class of a conv that is computed over a graph that is cut into parts.

``SARConv(conv)`` gives the conv another class, made on the fly (:mod:`pyg_sar.utils.class_swap`):
``GATConv(SARConv, GATConv)``. What cannot be computed on a cut graph is refused there, with its
reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any, NoReturn

import torch
from torch.nn.parameter import is_lazy
from torch_geometric.nn import HGTConv, MessagePassing

from pyg_sar.comm.errors import in_layer
from pyg_sar.comm.ranks import left_by, world_size
from pyg_sar.nn.answers import asking
from pyg_sar.nn.averager import average_gradients
from pyg_sar.nn.call_edges import edges_in, relations_joined
from pyg_sar.nn.dropout_forward import is_running
from pyg_sar.nn.graph_norms import FORMS
from pyg_sar.nn.intercept import bind_functions, forms
from pyg_sar.nn.layer import Layer, agree_on_forward, running, state_of_modules
from pyg_sar.nn.narrow_exchange import gives_arguments
from pyg_sar.nn.options import Options, Path, options_of
from pyg_sar.nn.own_code import has_own_code, what_it_reads
from pyg_sar.nn.own_writes import writes_elsewhere
from pyg_sar.nn.propagation import pass_messages
from pyg_sar.nn.side_effects import parameters_for_rows
from pyg_sar.ops.linear import compute_by_onednn
from pyg_sar.rows.adjacency import NO_MATRICES, adjacencies
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.from_data import conv_arguments, rows_by_type
from pyg_sar.rows.made_edges import with_edges_of_ids
from pyg_sar.rows.patches import alike_draws
from pyg_sar.rows.registry import signature_of
from pyg_sar.utils.class_swap import ClassSwap, become, name_of, plain_class

_REASONS = {
    'its message runs inside a closed CUDA kernel': (
        'CuGraphGATConv CuGraphRGCNConv CuGraphSAGEConv FusedGATConv'
    ),
    'its message pairs edges by their place, four at a time': 'MeshCNNConv',
    'it samples random walks over the whole graph': 'MetaPath2Vec Node2Vec',
    'it multiplies adjacency matrices': 'PANConv',
    'it follows events in time, not one graph': 'RENet TGNMemory',
    'it reads scores of all pairs of nodes: give every rank the graph and its share of the pairs, '
    "in torch's DistributedDataParallel": 'LPFormer',
}

REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Classes of torch_geometric.nn that use rows where no rule sees it, with the reason."""


_BLOCK_LOCAL_ARGS = ('adj_t', 'ptr_j')
_EDGES = ('edge_index', 'size')


def refuse_tracing(module: torch.nn.Module) -> NoReturn:
    """Raises for torch.jit.trace, on all ranks alike, before they communicate."""
    raise ValueError(
        f'torch.jit.trace cannot follow {name_of(module)} on a graph that is cut (got rows of all '
        'ranks): trace the plain model on plain tensors, on one machine; model.state_dict() has '
        'its keys'
    )


def why_refused(module: torch.nn.Module) -> str | None:
    """Why a conv or a module inside it cannot be wrapped, as the end of a sentence, or None."""
    cls = plain_class(module)
    for base in cls.__mro__:
        if base.__module__.startswith('torch_geometric.') and base.__name__ in REFUSED:
            return REFUSED[base.__name__]
    if not isinstance(module, MessagePassing):
        return None
    if module.decomposed_layers != 1:
        return 'it computes its channels in parts: write decomposed_layers=1'
    for base in cls.__mro__:
        if base is MessagePassing:
            break
        for method in ('propagate', 'edge_updater'):
            own = base.__dict__.get(method)
            # PyG replaces it on the class by one it generates in a module of that name.
            if own is not None and not own.__module__.endswith(f'_{method}'):
                return f"it overrides '{method}': write that in forward, before or after it"
    for function in ('message', 'aggregate', 'edge_update', 'update'):
        for arg in module.inspector.get_param_names(function):
            of_edges = arg in (*_EDGES, 'edge_index_j')
            if arg in _BLOCK_LOCAL_ARGS or (function == 'update' and of_edges):
                instead = ': write that in forward, after propagate' * (function == 'update')
                return f"its '{function}' reads '{arg}', which is a block's own here{instead}"
            of_edges = arg == 'index' or (arg[-2:] in ('_i', '_j') and arg[:-2] != 'size')
            if function == 'update' and of_edges:
                return f"its 'update' reads '{arg}', one row per edge: reduce it in message"
    return None


class SARConv(MessagePassing, metaclass=ClassSwap):
    r"""Computes a PyG conv exactly on a partitioned graph, one remote part at a time.

    ``SARConv(conv, mode='sequential', ...)`` changes the class of `conv` and returns `conv`: a
    ``GATConv`` stays a ``GATConv``, and is a ``SARConv``, too. On the ``edge_index`` of
    :func:`pyg_sar.load_shard` its output and all gradients are those of the conv on the whole
    graph; a rank has the rows of its own nodes. Linear layers and skip terms run once per node, at
    its owner. Only the rows that messages read travel. On any other ``edge_index``, such as that of
    a batch, it is the plain conv, and nothing is communicated.
    :class:`pyg_sar.DistributedDataParallel` changes all convs of a model. The method is Sequential
    Aggregation and Rematerialization (Mostafa, MLSys 2022, `arXiv 2111.06483
    <https://arxiv.org/abs/2111.06483>`_). By hand::

        conv = pyg_sar.SARConv(GATConv(8, 4, heads=2), mode='one_shot')
        out = conv(data.x, data.edge_index)

    Args:
        conv: A conv of torch_geometric.nn or a MessagePassing of your own, with any message and
            any aggregation. Reductions (sum, mean, max, min, mul) and softmaxes over in-edges are
            computed block by block. All others (median, LSTM) are computed by chunks of
            destinations, with all in-edges of a destination at once.
        **options: See :class:`pyg_sar.nn.options.Options`: `mode`, `exchange_dtype`,
            `partial_sums`.

    Shapes:
        - **x**: rows ``[N, F]``, or whatever node tensors the conv takes; on the edges between two
          sets of nodes a pair ``([N_src, F_src], [N_dst, F_dst])``
        - **edge_index**: that of load_shard, ``[2, E]``, or edges selected from it
        - **output**: rows ``[N_dst, F_out]``

    Forward and backward are collective: every rank calls them the same number of times, even if it
    has no nodes. Every forward begins with one small all-gather: it tells whether all ranks
    run the same layer in the same state. The first forward compares the ranks' inputs (one small
    all-gather). A copy (``deepcopy``, ``pickle``, ``torch.save``) is a SARConv with the same
    options.

    Raises:
        ValueError: If the conv cannot be computed on a cut graph, with the reason; at the first
            forward, on all ranks, if a rank's tensors do not fit its shard or the ranks' layers or
            partitions differ; at any forward, if their hooks or training modes differ.
        ExchangeError: In forward or backward, if another rank has ended, is silent or has failed.
            It names that rank, this layer and the block.
    """

    _plain_class: type[MessagePassing]
    _sar: Layer

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Skips the hook of a user's class for its subclasses: this class is not the user's."""

    @staticmethod
    def _convert(conv: MessagePassing, **options: Any) -> MessagePassing:
        """Makes a SARConv of a conv; raises before anything is changed."""
        checked = options_of(options)
        is_one = isinstance(conv, SARConv) and not conv._sar.is_inside
        if not isinstance(conv, MessagePassing) or is_one:
            what = plain_class(conv).__name__ + ', a SARConv already' * is_one
            raise ValueError(f'expected a MessagePassing conv to wrap (got {what})')
        for module in conv.modules():
            reason = why_refused(module)
            if reason is not None:
                raise ValueError(f'{name_of(module)} cannot be wrapped: {reason}')
        _become(conv, checked)
        _take_in(conv)
        compute_by_onednn(conv)
        return conv

    # torch.compile leaves message passing on ranks to itself, and breaks its graph here.
    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the conv; the arguments are the conv's own."""
        now = running.value
        if now is not None and (now is self or (self._sar.is_inside and self in now._sar.paths)):
            return super().forward(*args, **kwargs)
        names = [*signature_of(self._plain_class.forward).parameters][1:]
        if not {*map(type, args), *map(type, kwargs.values())} <= NO_MATRICES:
            args, kwargs = adjacencies(args, kwargs)
        args, kwargs = with_edges_of_ids(self._plain_class.__name__, names, args, kwargs)
        edges = edges_in((*args, *kwargs.values()))
        if not edges:
            if getattr(self, 'cached', False) and world_size() > 1:
                raise ValueError(
                    f"'cached' of {name_of(self)} must be False on batches and on gathered edges "
                    '(got True): it keeps the edges of its first forward, and those of a batch are '
                    "not another's"
                )
            return super().forward(*args, **kwargs)
        if torch.jit.is_tracing():  # type: ignore[no-untyped-call]
            refuse_tracing(self)
        with self._on_cut_graph(edges, args, kwargs):
            if not isinstance(self, HGTConv):
                return super().forward(*args, **kwargs)
            # It sorts all rows by type before a linear layer: it runs on own rows.
            own_args, own = conv_arguments((args, kwargs), edges, name_of(self))
            x_dict = own_args[0] if own_args else own['x_dict']
            if any(map(is_lazy, self.parameters())):  # they get their shapes
                with relations_joined(x_dict), torch.no_grad():
                    super().forward(*own_args, **own)
            with relations_joined(x_dict), parameters_for_rows(self):
                out = super().forward(*own_args, **own)
            return rows_by_type(out, (args, kwargs))

    propagate = partialmethod(pass_messages, 'message')
    edge_updater = partialmethod(pass_messages, 'edge_update')

    @contextmanager
    def _on_cut_graph(
        self,
        edges: list[EdgeIndex],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        in_forward: bool = True,
    ) -> Iterator[None]:
        """While it lasts, the conv and all convs inside it pass messages on the cut graph.

        Collective: see :func:`pyg_sar.nn.layer.agree_on_forward`.
        """
        layer = self._sar
        before = layer.words, layer.in_forward
        others = running.value, forms.value, alike_draws.value, asking.value
        with in_layer(layer.label):
            try:
                if layer.drops_by_id and self.training and not is_running():
                    raise ValueError(
                        f"'dropout_seed' of a model around {name_of(self)} draws in forwards of "
                        'the model (got a call from outside of one): call the model itself, or '
                        'wrap the module whose forward has the convs with dropout_seed'
                    )
                self._look()
                world = edges[0].handle.shard.world_size
                if in_forward and torch.is_grad_enabled() and world > 1:
                    tables = [module._parameters.values() for module in layer.modules]
                    average_gradients(p for table in tables for p in table if p is not None)
                words, now = agree_on_forward(self, edges, args, kwargs, in_forward=in_forward)
                layer.words, layer.in_forward = words, in_forward
                running.value, forms.value, alike_draws.value, asking.value = self, FORMS, True, now
                yield
                if now is not None:
                    layer.answers[words] = now.end()
            except BaseException as error:
                left_by(error)
                raise
            finally:
                layer.words, layer.in_forward = before
                running.value, forms.value, alike_draws.value, asking.value = others

    def _look(self) -> None:
        """Notes the state of the conv; convs put into it since then become SARConvs."""
        layer = self._sar
        if layer.state and state_of_modules(layer.modules) == layer.state:
            return
        _take_in(self)
        layer.modules = [*self.modules()]
        paths = {m: path for path, m in self.named_modules() if isinstance(m, MessagePassing)}
        layer.paths, layer.names, layer.state = paths, {}, state_of_modules(layer.modules)
        layer.gives_arguments = gives_arguments(self) and len(paths) == 1
        layer.has_own_code = has_own_code(layer.modules)
        layer.reads_more, layer.tensors = what_it_reads(layer.modules)
        layer.writes_elsewhere = layer.has_own_code and writes_elsewhere(layer.modules)

    @property
    def sar_options(self) -> Options:
        """How the conv is computed on a cut graph."""
        return self._sar.options

    def chosen_paths(self) -> list[Path]:
        """How message passing has been computed so far, the same on all ranks: each path once."""
        return list(dict.fromkeys(plan.path for plan in self._sar.plans.values()))

    def __setstate__(self, state: dict[str, Any]) -> None:
        # PyG generates methods for the class of the object here: for the plain one.
        cls = type(self)
        object.__setattr__(self, '__class__', self._plain_class)
        try:
            self.__setstate__(state)
        finally:
            object.__setattr__(self, '__class__', cls)


def name_layers(model: torch.nn.Module) -> None:
    """Labels the SARConvs of a model by their paths in it, for messages."""
    for path, module in model.named_modules():
        if isinstance(module, SARConv) and path:
            module._sar.label = f"layer '{path}' ({name_of(module)})"


def _become(conv: MessagePassing, options: Options, *, is_inside: bool = False) -> None:
    if not isinstance(conv, SARConv):
        become(conv, SARConv)
    vars(conv)['_sar'] = Layer(options, f'layer SARConv({name_of(conv)})', is_inside=is_inside)


def _take_in(conv: MessagePassing) -> None:
    """Prepares all modules in a conv for a cut graph, for good."""
    for module in conv.modules():
        bind_functions(type(module))
        if isinstance(module, MessagePassing):
            if not isinstance(module, SARConv):
                _become(module, conv._sar.options, is_inside=True)
            if not module.explain:  # PyG's, where it was explained before
                vars(module).pop('propagate', None)

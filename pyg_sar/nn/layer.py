"""The start of a forward on a cut graph, before the conv computes anything.

Ranks agree once on how a call of message passing is computed. That holds for one state of the conv:
its hooks, its training mode, its numbers and the kinds of its inputs. If one rank alone registered
a hook, it would decide anew while the others wait for its rows. So every forward begins with one
small all-gather. It tells whether the ranks' states are alike, and whether one of them has to
decide anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, RGCNConv

from pyg_sar.comm.exchange import exchange_of
from pyg_sar.comm.vote import agree, differ, odd_and_usual, raise_error_on_all, vote
from pyg_sar.nn.answers import Forward
from pyg_sar.nn.averager import PARTED
from pyg_sar.nn.buckets import common
from pyg_sar.nn.call_edges import shards_of
from pyg_sar.nn.narrow_exchange import GLOBAL_HOOKS
from pyg_sar.nn.options import Options
from pyg_sar.nn.own_code import METHODS, TensorOf
from pyg_sar.nn.plan import Plan
from pyg_sar.nn.side_effects import plain_attributes
from pyg_sar.rows.adjacency import Adjacency
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.registry import signature_of
from pyg_sar.rows.replicated import note
from pyg_sar.rows.rows import Rows, plainly
from pyg_sar.utils.class_swap import name_of, plain_class
from pyg_sar.utils.dry_run import is_hidden
from pyg_sar.utils.scoped import Scoped
from pyg_sar.utils.tensor_state import digest


class Layer:
    """What a SARConv holds besides the attributes of its conv.

    Attributes:
        options: How the conv is computed.
        label: What errors call this layer.
        is_inside: Whether it is inside another SARConv, whose forward it is a part of.
        drops_by_id: Whether it is part of a model with `dropout_seed`.
        paths: The conv and the convs inside it, with their paths in it: '' is the conv itself.
        modules: All modules in the conv, the conv first.
        names: Of the arguments of functions of these convs.
        state: That of the modules when these three were noted; see :func:`state_of_modules`.
        agreed: What all ranks have agreed on: kinds of forwards, by their words, with the kind and
            the state of the conv on this rank. The latest comes last.
        words: Those of the forward that runs.
        answers: The last forward of each kind, by its words, with the answers of all ranks.
        has_own_code: Whether it has code of the program's own, which may change this state while a
            forward runs.
        reads_more: Whether its messages may read more than this state: then how a call is computed
            is found at every call.
        writes_elsewhere: Whether they may change what is not on the conv.
        tensors: Buffers and attributes that its messages read, by module and name.
        gives_arguments: Whether its forward is PyG's own, and no hook changes what it gives on.
        in_forward: Whether the conv's own forward runs, or a call of propagate from outside.
        plans: How calls are computed, by their fingerprint. The oldest comes first.
    """

    def __init__(self, options: Options, label: str, *, is_inside: bool = False) -> None:
        self.options = options
        self.label = label
        self.is_inside = is_inside
        self.drops_by_id = False
        self._begin()

    def _begin(self) -> None:
        self.paths: dict[MessagePassing, str] = {}
        self.modules: list[torch.nn.Module] = []
        self.names: dict[tuple[MessagePassing, str], tuple[str, ...]] = {}
        self.state: list[Any] = []
        self.agreed: dict[str, tuple[Any, list[Any]]] = {}
        self.words, self.in_forward = '', True
        self.answers: dict[str, Forward] = {}
        self.has_own_code = self.reads_more = self.writes_elsewhere = False
        self.gives_arguments = False
        self.tensors: tuple[TensorOf, ...] = ()
        self.plans: dict[Any, Plan] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy may run with other ranks: they agree anew.
        kept = 'options', 'label', 'is_inside', 'drops_by_id'
        return {name: value for name, value in vars(self).items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()


running: Scoped[Any] = Scoped(None)
"""The SARConv whose forward runs in this thread, the innermost; or None."""


evaluated: Scoped[torch.nn.Module | None] = Scoped(None)
"""The model that is called, until its first layer, which compares all its parameters."""

_VALUES = 'parameters with the checksum'
_methods_of = attrgetter(*METHODS)
_OWN = (*METHODS, 'propagate', 'edge_updater')
_MESSAGE_HOOKS = ('_propagate', '_message', '_aggregate', '_edge_update')


def agree_on_forward(
    conv: Any,
    edges: list[EdgeIndex],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    in_forward: bool,
) -> tuple[str, Forward | None]:
    """The words of a forward of a SARConv in its state, on which all ranks have agreed.

    Also the forward, if answers of its last one may hold.

    Collective: one small all-gather; where a rank has not seen such a forward, or the conv
    has changed since, an all-gather. Raises ValueError if a shard is not this rank's, and on all
    ranks if the forwards differ or the inputs of one are wrong.
    """
    layer = conv._sar
    shards = [edges[0]._handle.shard] if len(edges) == 1 else shards_of(edges)
    kind: Any = (
        in_forward,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *[shard.fingerprint for shard in shards],
    )
    with plainly():
        shapes: list[tuple[int, ...]] = []
        kinds = _input_kinds([*args, *kwargs.values()], shapes)
    kind += tuple(kinds)
    state = kind, layer.state
    known = next((words for words, then in layer.agreed.items() if then == state), None)
    words, error, is_known = known or '', None, known is not None
    if known is None:
        for shard in shards:
            exchange_of(shard, dtype=layer.options.exchange_dtype)
        try:
            _check_not_explained(conv)
            _check_features(conv, edges[0], args, kwargs)
        except ValueError as wrong:
            error = wrong
        words = _words(conv, layer.options, kind)
    forward = None
    if shards[0].world_size > 1:
        if layer.gives_arguments and in_forward:
            last = layer.answers.pop(words, None)
            forward = Forward(edges[0], (*args, *kwargs.values()), last)
        note(type(conv).__name__, args, kwargs)
        compared = f'{words}; plain tensors of shape {shapes}' if shapes else words
        model = conv if evaluated.value is None else evaluated.value
        learns = torch.is_grad_enabled() and evaluated.value is None  # then the backward tells
        if not (learns or is_hidden.value or torch._C._are_functorch_transforms_active()):
            values = common(model.named_parameters()).values()
            compared, evaluated.value = f'{compared}; {_VALUES} {digest(values)}', None
        holds = is_known and forward is not None and forward.all_hold()
        counts = vote('a comparison of forwards', is_known, holds, fingerprint=compared)
        is_known = counts is not None and counts[0] == shards[0].world_size
        if forward is not None:
            forward.recalls = counts == [shards[0].world_size] * 2
        if not is_known:
            _check_alike(agree(compared))
            raise_error_on_all(error)
    elif error is not None:
        raise error
    if not is_known:
        layer.agreed.pop(words, None)  # the new one is the latest
        layer.agreed[words] = state
        for fingerprint in [each for each in layer.plans if each[0] == words]:
            del layer.plans[fingerprint]
    return words, forward


def _check_not_explained(conv: MessagePassing) -> None:
    """Raises a ValueError if a conv in it is explained."""
    for module in conv.modules():
        if isinstance(module, MessagePassing) and module.explain:
            raise ValueError(
                f'{name_of(module)} of a wrapped model cannot be explained on a cut graph, as an '
                'explainer masks all edges at once: write plain.load_state_dict(model.state_dict())'
                ' and explain that model, which pyg_sar.DistributedDataParallel does not know'
            )


def _check_features(
    conv: MessagePassing, edges: EdgeIndex, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raises ValueError where PyG's own convs get None for ``x``, or one ``x`` for two node sets.

    Without ``x`` RGCNConv learns a row per node, which it numbers from 0 on, and a rank would
    number its own. Convs on points do without ``x``.
    """
    cls = plain_class(conv)
    try:
        arguments = signature_of(cls.forward).bind(conv, *args, **kwargs).arguments
    except TypeError:
        return  # the conv itself says it best
    is_pygs = cls.__module__.startswith('torch_geometric.')
    x = arguments.get('x', ())
    is_missing = x is None or (isinstance(x, (tuple, list)) and len(x) > 0 and x[0] is None)
    if is_missing and is_pygs and 'pos' not in arguments:
        of_ids = '; RGCNConv also takes the ids of the own nodes, data.n_id'
        hint = of_ids if isinstance(conv, RGCNConv) else ''
        raise ValueError(
            f"expected features in 'x' of {name_of(conv)} (got None): nodes without features get "
            f'rows of their own by pyg_sar.NodeEmbedding(data, width)(){hint}'
        )
    # A relation under another name may be an incidence, along which messages go there and back.
    if edges.ends.shard.is_bipartite and isinstance(x, Tensor) and 'edge_index' in arguments:
        raise ValueError(
            f"expected a pair (x_src, x_dst) for 'x' of {name_of(conv)}, as its edges run "
            f'between two sets of nodes (got a tensor of shape {tuple(x.shape)}): nodes without '
            'features, such as hyperedges, get (x, None)'
        )


def _input_kinds(values: Iterable[Any], shapes: list[tuple[int, ...]]) -> list[Any]:
    """Kind, dtype, dimensions and need of a gradient of every tensor among a forward's arguments.

    `shapes` gets those of plain tensors, which are of the whole graph: equal on all ranks.
    """
    kinds: list[Any] = []
    for value in values:
        if isinstance(value, Adjacency):
            needs_grad = value.value is not None and value.value.requires_grad
            kinds.append('an adjacency matrix' + ', with gradient' * needs_grad)
        elif isinstance(value, EdgeIndex):
            kinds.append('edges')
        elif isinstance(value, Tensor):
            needs_grad = value.requires_grad and torch.is_grad_enabled()
            if not isinstance(value, Rows):
                shapes.append(tuple(value.shape))
            kinds.append((value.dtype, value.dim(), needs_grad))
        elif isinstance(value, Mapping):
            kinds += [*map(str, value), *_input_kinds(value.values(), shapes)]
        elif isinstance(value, (tuple, list)):
            kinds += _input_kinds(value, shapes)
        elif value is None:
            kinds.append(None)
    return kinds


def _check_alike(words: list[str]) -> None:
    """Raises a ValueError if the ranks' words differ, with those that only one rank has."""
    if len(set(words)) == 1:
        return
    without_values = [text.split(f'; {_VALUES}')[0] for text in words]
    words = without_values if len(set(without_values)) > 1 else words
    odd, usual = odd_and_usual(words)
    own, others = (words[rank].split('; ') for rank in (odd, usual))
    name = '' if own[0] != others[0] else own[0] + '; '
    here, there = ('; '.join(w for w in a if w not in b) for a, b in ((own, others), (others, own)))
    raise differ(
        f'expected the same layer on all ranks: {name}{here or "as it is"} on rank {odd} (got '
        f'{name}{there or "as it is"} on rank {usual}): '
        f'{PARTED if here.startswith(_VALUES) else "run the same lines on every rank"}',
        odd,
    )


def _words(conv: MessagePassing, options: Options, kind: tuple[Any, ...]) -> str:
    in_forward, with_gradients, in_inference, *kinds = kind
    words = [name_of(conv), 'in training' if conv.training else 'in evaluation']
    words.append('with gradients' if with_gradients else 'without gradients')
    words += [f'{name}={value!r}' for name, value in vars(options).items()]
    if in_inference:
        words.append('in inference mode')
    if not in_forward:
        words.append('called from outside of forward')
    words += _words_of_modules(conv)
    for kind_of_input in kinds:
        if isinstance(kind_of_input, tuple):
            dtype, dim, needs_grad = kind_of_input
            words.append(f'{dtype} in {dim} dimensions' + ', with gradient' * needs_grad)
        elif kind_of_input is not None:
            words.append(kind_of_input)
    return '; '.join(words)


def state_of_modules(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """Plain attributes, hooks, own methods and children of modules, and which parameters learn.

    Equal while none has changed.
    """
    state: list[Any] = [any(GLOBAL_HOOKS)]
    for module in modules:
        table = vars(module)
        plain, hooks = plain_attributes(tuple(table), tuple(map(type, table.values())))
        state += type(module), plain, *table['_modules'].values()
        for p in table['_parameters'].values():  # no comprehension: this runs at every forward
            if p is not None:
                state.append(p.requires_grad)
        state += [table[name] for name in (*plain, *_OWN) if name in table]
        if isinstance(module, MessagePassing):
            state += _methods_of(type(module))
        for name in hooks:
            if table[name]:
                state += name, *table[name].values()
    return state


def _words_of_modules(conv: torch.nn.Module) -> list[str]:
    """The part of a conv's state that must be alike on all ranks, in words."""
    words = []
    for path, module in conv.named_modules():
        if module.training != conv.training:
            words.append(f"'{path}' in {'training' if module.training else 'evaluation'}")
        for name, hooks in vars(module).items():
            if name.startswith(_MESSAGE_HOOKS) and name.endswith('_hooks') and hooks:
                called = (getattr(h, '__qualname__', type(h).__qualname__) for h in hooks.values())
                words.append(f"{name[1:]} of '{path}': {', '.join(called)}")
    return words

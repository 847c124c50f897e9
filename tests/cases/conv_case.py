"""What a configuration of a conv is: how it is made, and how it is called on a graph."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, conv

Key = tuple[Any, str]
"""Where an input lies: its node or edge type (None in a graph of one type), and its name."""


class Edges(NamedTuple):
    """Values of edges that a conv gives back; their order is the conv's own affair."""

    edge_index: Tensor
    values: Tensor


class Inputs:
    """Attributes of a graph by name; floating ones are leaves that take a gradient.

    ``inputs.x`` and ``inputs.of('user').x`` are leaves, ``inputs.constant.x`` takes no gradient.
    """

    def __init__(self, data: Any, store: Any = None, leaves: dict[Key, Tensor] | None = None):
        self.data = data
        self.store = store
        self.leaves: dict[Key, Tensor] = {} if leaves is None else leaves

    def of(self, *store: str) -> Inputs:
        """The attributes of a node type, or of an edge type."""
        return type(self)(self.data, store[0] if len(store) == 1 else store, self.leaves)

    @property
    def constant(self) -> Any:
        """The same without gradients."""
        return self.data if self.store is None else self.data[self.store]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.constant, name)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        key = (self.store, name)
        if key not in self.leaves:
            self.leaves[key] = value.detach().clone().requires_grad_()
        return self.leaves[key]


Call = Callable[[torch.nn.Module, Inputs], Any]
"""Gives the output: a tensor or Edges, or a dict or a tuple of them."""


def takes(*names: str, **renamed: str) -> Call:
    """A call with x, edge_index and attributes of the graph by their names."""

    def call(module: torch.nn.Module, inputs: Inputs) -> Any:
        others = {name: name for name in names} | renamed
        kwargs = {key: getattr(inputs, name) for key, name in others.items()}
        return module(inputs.x, inputs.edge_index, **kwargs)

    return call


X_AND_EDGES = takes()


@dataclass(frozen=True)
class Case:
    """One configuration of a conv.

    Attributes:
        conv: The class's name in ``torch_geometric.nn.conv``.
        config: The configuration, for readers.
        make: Makes the conv, or a module around it.
        call: Calls it.
        graph: The graph it is called on, by name.
        during: Surrounds everything that is done with the conv.
        is_single: Whether PyG computes in float32 inside, so that a gradient's factor rounds.
    """

    conv: str
    config: str
    make: Callable[..., torch.nn.Module]
    call: Call = X_AND_EDGES
    graph: str = 'plain'
    during: Callable[[], AbstractContextManager[Any]] = nullcontext
    is_single: bool = False

    @property
    def name(self) -> str:
        """Unique among all cases."""
        return f'{self.conv}: {self.config}'


def case(
    name: str,
    config: str,
    /,
    *args: Any,
    call: Call = X_AND_EDGES,
    graph: str = 'plain',
    during: Callable[[], AbstractContextManager[Any]] = nullcontext,
    **kwargs: Any,
) -> Case:
    """A case of a conv of PyG that is made of copies of these arguments.

    Its `make` takes others by name: `sizes` only in the place of those given here, and `more`.
    """

    def make(sizes: Mapping[str, Any] = {}, /, **more: Any) -> torch.nn.Module:
        given = inspect.signature(getattr(conv, name)).bind(*args, **kwargs)
        given.arguments |= {key: sizes[key] for key in given.arguments if key in sizes} | more
        own_args, own_kwargs = copy.deepcopy((given.args, given.kwargs))
        return getattr(conv, name)(*own_args, **own_kwargs)

    return Case(name, config, make, call, graph, during)


def of(name: str, /, *args: Any, **options: Any) -> Callable[..., Case]:
    """Makes cases of a conv that have these arguments, by a configuration and what is beside."""
    return lambda config, *more, **others: case(name, config, *args, *more, **{**options, **others})


def in_eval(case: Case) -> Case:
    return replace(case, make=lambda *args, **kwargs: case.make(*args, **kwargs).eval())


def bare(name: str, *args: Any, **kwargs: Any) -> Case:
    """Without what its own ``__init__`` does where that needs a missing package.

    Good for classes that are refused whatever they hold.
    """

    def make() -> torch.nn.Module:
        cls = getattr(conv, name)
        try:
            return cls(*args, **kwargs)
        except ImportError:
            module = cls.__new__(cls)
            base = MessagePassing if issubclass(cls, MessagePassing) else torch.nn.Module
            base.__init__(module)
            return module

    return Case(name, '', make)


_KEPT = ('aggr_module.t', 'aggr_module.p', 'avg_deg_lin', 'avg_deg_log')
"""Parameters that have a meaning of their own: a power of -0.1 is no use to anyone."""


def make(case: Case) -> torch.nn.Module:
    """The case's module in float64, every parameter drawn from a seed of the case's name."""
    module = case.make().double()
    generator = torch.Generator().manual_seed(sum(case.name.encode()))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.endswith(_KEPT):
                values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(values * 0.4)
    return module

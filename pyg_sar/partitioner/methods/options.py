"""The options of a partitioning: which there are, and which go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from pyg_sar.partitioner.methods.balance import parse_balance
from pyg_sar.partitioner.methods.metis import check_backend
from pyg_sar.partitioner.methods.streaming import STREAMING

METHODS = ('metis', *STREAMING, 'kahip', 'mtkahypar', 'random', 'range', 'file:PATH')
OBJECTIVES = ('cut', 'volume')

Method = str | Tensor | dict[str, Tensor]

_PASSES = 10
"""Of the streaming methods; more gain little (2 to 4 % of the cut from 10 to 20)."""


@dataclass(frozen=True)
class MethodOptions:
    """How the nodes of a graph shall be assigned to parts; made by :func:`method_options`.

    Attributes:
        method: One of :data:`METHODS`, or the parts themselves.
        backend: METIS's binding.
        seed: Seed of every method that draws.
        objective: What is made small: ``'cut'`` or ``'volume'``.
        balance: What the parts share evenly, some of ``BALANCES``; none if the method has no say.
        passes: Passes of a streaming method.
        recursive: Whether METIS bisects recursively or cuts k-way; None for what serves best.
    """

    method: Method = 'metis'
    backend: str = 'auto'
    seed: int = 0
    objective: str = 'cut'
    balance: tuple[str, ...] = ('nodes',)
    passes: int = _PASSES
    recursive: bool | None = None

    @property
    def name(self) -> str:
        """The method in a word."""
        return self.method if isinstance(self.method, str) else 'tensor'

    def provenance(self) -> dict[str, Any]:
        """What META.json says; None for what the method has no use for."""
        binding = 'pymetis' if self.backend == 'auto' else self.backend
        return {
            'method': self.name,
            'backend': binding if self.name == 'metis' else None,
            'seed': self.seed,
            'objective': self.objective if self.balance else None,
            'balance': ','.join(self.balance) or None,
            'passes': self.passes if self.name in STREAMING else None,
        }


def method_options(
    method: Method,
    *,
    backend: str = 'auto',
    seed: int = 0,
    objective: str = 'cut',
    balance: str | Sequence[str] | None = None,
    passes: int | None = None,
    is_hetero: bool = False,
    has_train_mask: bool = False,
) -> MethodOptions:
    """Checks that the options of an assignment fit together, and fills in defaults.

    Args:
        method: See :func:`pyg_sar.partition_graph`, as for the next five.
        backend: METIS's binding.
        seed: The seed.
        objective: What is made small.
        balance: What is balanced; by default every type of a heterogeneous graph, else nodes.
        passes: Passes of a streaming method.
        is_hetero: Whether the graph has types.
        has_train_mask: Whether the graph has training nodes.

    Raises:
        ValueError: If an option is unknown, lacks what it needs, or would be ignored.
    """
    name = method if isinstance(method, str) else 'tensor'
    if isinstance(method, str):
        if name not in METHODS[:-1] and not name.startswith('file:'):
            raise ValueError(f"'method' must be one of {list(METHODS)} (got {method!r})")
    elif not isinstance(method, (Tensor, dict)):
        raise ValueError(f"'method' must be one of {list(METHODS)} (got {method!r})")
    if name == 'metis':
        check_backend(backend)
    elif backend != 'auto':
        raise ValueError(f"'backend' applies to method='metis' alone (got {backend!r})")
    elif name in ('kahip', 'mtkahypar'):
        _check_package(name)
    several = name in STREAMING or (name == 'metis' and backend in ('auto', 'pymetis'))
    cuts = several or name in ('metis', 'kahip', 'mtkahypar')

    if objective not in OBJECTIVES:
        raise ValueError(f"'objective' must be one of {list(OBJECTIVES)} (got {objective!r})")
    if objective == 'volume' and (name in STREAMING or not (several or name == 'mtkahypar')):
        raise ValueError(
            "objective='volume' applies to method='metis' with pymetis and to 'mtkahypar' alone "
            f'(got method={name!r}, backend={backend!r})'
        )
    if passes is not None:
        if name not in STREAMING:
            raise ValueError(f"'passes' applies to {list(STREAMING)} alone (got method={name!r})")
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
            raise ValueError(f"'passes' must be an int >= 1 (got {passes!r})")

    if balance is not None and not cuts:
        raise ValueError(f"'balance' does not apply to method={name!r} (got {balance!r})")
    names: tuple[str, ...] = ('types',) if is_hetero and several else ('nodes',)
    if balance is not None:
        names = parse_balance(balance, is_hetero=is_hetero, has_train_mask=has_train_mask)
        if not several and names not in (('nodes',), ('edges',)):
            raise ValueError(
                f"'balance' must be 'nodes' or 'edges' with method={name!r} and "
                f'backend={backend!r}, which know one weight; several need method '
                f"'metis' with pymetis, 'ldg' or 'fennel' (got {','.join(names)!r})"
            )
    return MethodOptions(
        method=method,
        backend=backend,
        seed=seed,
        objective=objective,
        balance=names if cuts else (),
        passes=_PASSES if passes is None else passes,
    )


def _check_package(name: str) -> None:
    try:
        import_module(name)
    except ImportError as error:
        raise ValueError(
            f"method '{name}' needs the package '{name}' (got: {error}); install it with "
            f"'pip install {name}'"
        ) from error

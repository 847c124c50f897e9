"""``pyg_sar.profile``: where the time and the rows of an epoch go, in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple
from statistics import fmean

import torch

from pyg_sar.comm.ranks import rank, world_size
from pyg_sar.comm.vote import agree
from pyg_sar.utils import hook
from pyg_sar.utils.command_line import text_table
from pyg_sar.utils.hook import OUTSIDE
from pyg_sar.utils.log import Counts, Meter, bytes_text


@contextmanager
def profile() -> Iterator[Profile]:
    """Counts what layers exchange, wait and compute while a ``with`` block lasts.

    >>> with pyg_sar.profile() as prof:
    ...     for epoch in range(3):
    ...         train(model)
    >>> print(prof)

    A profile does not change the bits of results. Each rank profiles itself: not collective, and
    some ranks may do without. Several profiles may be active at once. Layers of the same name, as
    of two models, share a line.

    - **waiting** are the seconds inside operations with other ranks, of any kind.
    - **computing** are all other seconds of a pass. Of a backward these are the steps that
      communicate; the others, such as those of linear layers, are outside of layers.
    - **rows and bytes** are counted when a message is complete. In exchanges of all ranks at once
      (mode one_shot, the path by destination, plans made in the first epoch) all data to other
      ranks counts as rows.
    - On a GPU the host waits for the GPU at both ends of every pass and operation. So times are
      right, and the epoch takes longer.
    """
    prof = Profile()
    hook.add(prof)
    try:
        yield prof
    finally:
        hook.remove(prof)
        prof._end = prof.clock()


class Profile(Meter):
    """What :func:`pyg_sar.profile` counts."""

    def __init__(self) -> None:
        super().__init__(Counts())
        self._passes: dict[str, Counts] = {}
        self._start = self.clock()
        self._end: float | None = None

    @property
    def counts(self) -> dict[str, Counts]:
        """This rank's counts by pass, ``"layer 'convs.0' (SAGEConv), forward"``, until now.

        The last are those ``'outside of layers'``: activations, the loss, the optimizer.
        """
        counts = self._passes | {OUTSIDE: self._outside}
        spent = sum(c.waiting + c.computing for c in self._passes.values()) + self._outside.waiting
        self._outside.computing = max(self.seconds - spent, 0.0)  # of all threads
        return counts

    @property
    def seconds(self) -> float:
        """How long the ``with`` block has lasted."""
        return (self.clock() if self._end is None else self._end) - self._start

    def table(self, *, all_ranks: bool = False) -> str:
        """The counts as a table.

        Args:
            all_ranks: Whether to show the least, the mean and the most over all ranks instead of
                this rank's own; collective, and every rank has to profile.
        """
        if not all_ranks:
            return f'rank {rank()} of {world_size()}: {self.seconds:.3f} s\n' + _table(
                [self.counts]
            )
        own = {name: asdict(counts) for name, counts in self.counts.items()}
        seconds, ranks = zip(*agree((self.seconds, own)), strict=True)
        counts = [{n: Counts(**c) for n, c in of_rank.items()} for of_rank in ranks]
        return f'{len(ranks)} ranks: {fmean(seconds):.3f} s\n' + _table(counts, _OF_RANKS)

    def __str__(self) -> str:
        return self.table()

    def counts_of(self, name: str) -> Counts:
        """The counts that all passes of a name add to."""
        return self._outside if name == OUTSIDE else self._passes.setdefault(name, Counts())

    def clock(self) -> float:
        """Seconds; on a GPU after its work is done."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return super().clock()


_ROWS, _SECONDS = '{:,.0f}'.format, '{:.4f}'.format
_COLUMNS: dict[str, Callable[[float], str]] = {
    **{'rows in': _ROWS, 'rows out': _ROWS, 'bytes in': bytes_text, 'bytes out': bytes_text},
    **{'waiting s': _SECONDS, 'computing s': _SECONDS},
}
_OF_RANKS: dict[str, Callable[[Sequence[float]], float]] = {
    **{'least': min, 'mean': fmean, 'most': max},
}


def _table(
    ranks: Sequence[dict[str, Counts]],
    reductions: dict[str, Callable[[Sequence[float]], float]] | None = None,
) -> str:
    """The counts of a rank, or the least, the mean and the most of each over the ranks."""
    rows = [['pass', *(['ranks'] if reductions else []), *_COLUMNS]]
    names = [n for n in dict.fromkeys(n for of_rank in ranks for n in of_rank) if n != OUTSIDE]
    for name in (*names, OUTSIDE):
        columns = list(zip(*(astuple(r.get(name, Counts())) for r in ranks), strict=True))
        for i, (word, reduce) in enumerate((reductions or {'': max}).items()):
            cells = [f(reduce(c)) for f, c in zip(_COLUMNS.values(), columns, strict=True)]
            rows.append(['' if i else name, *([word] if reductions else []), *cells])
    return text_table(rows, 2 if reductions else 1)

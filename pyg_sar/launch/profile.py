"""``pyg_sar.profile``: where the time, the rows and the memory of an epoch go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple
from statistics import fmean
from typing import Any

import torch

from pyg_sar.comm.collectives import agree, check_equal
from pyg_sar.launch.recording import Recording
from pyg_sar.launch.records import Summary, from_dict
from pyg_sar.utils.command_line import text_table
from pyg_sar.utils.meter import bytes_text


def profile(model: torch.nn.Module) -> Profile:
    """Profiles the SARConvs of a model while a ``with`` block lasts.

    >>> with pyg_sar.profile(model) as prof:
    ...     for epoch in range(3):
    ...         train(model)
    >>> print(prof)

    A profile does not change the bits of results. Each rank profiles itself: not collective, and
    some ranks may do without. Several profiles may be active at once. Two models in one table:
    ``profile(torch.nn.ModuleList([first, second]))``. :meth:`Profile.trace` writes a timeline.

    - **waiting** are the seconds inside operations with other ranks, of any kind.
    - **computing** are all other seconds of a pass. A layer's backward is the sum of its steps of
      autograd, its linear layers included. Backward of a forward before the profile is outside of
      layers.
    - **rows and bytes** are counted when a message is complete. In exchanges of all ranks at once
      (mode one_shot, the gather path, plans made in the first epoch) all data to other ranks counts
      as rows.
    - **memory** on a CPU is the highest resident memory of the process during a layer's passes
      (Linux only). It is reset for each pass; other readers of VmHWM see that. For ranks in turn it
      is that of the rank's own turns. On a GPU it is ``torch.cuda.max_memory_allocated``.
    - On a GPU the host waits for the GPU at both ends of every pass and operation. So times are
      right, and the epoch takes longer.

    Args:
        model: A wrapped model, or a SARConv.

    Raises:
        ValueError: If there is no SARConv in the model; when entered, if it was entered before.
    """
    return Profile(model)


class Profile(Recording):
    """What :func:`pyg_sar.profile` records."""

    @property
    def summary(self) -> Summary:
        """This rank's counts as dataclasses, also of a ``with`` block that an exception has ended.

        Raises:
            ValueError: If the ``with`` block has not ended.
        """
        if self.recorded is None:
            raise ValueError("expected the end of the profile's 'with' block first")
        return self.recorded

    def all_ranks(self) -> list[Summary]:
        """The counts of all ranks, by rank.

        Collective: one small all-gather; every rank has to profile its model.

        Raises:
            ValueError: On all ranks, if their models do not have the same number of layers.
        """
        summaries = [from_dict(of_rank) for of_rank in agree(asdict(self.summary))]
        num_layers = [len(of_rank.layers) for of_rank in summaries]
        check_equal('number of profiled layers', num_layers)
        return summaries

    def table(self, *, all_ranks: bool = False) -> str:
        """The counts as a table: two lines for each layer, then what is outside of layers.

        Args:
            all_ranks: Whether to show the least, the mean and the most over all ranks instead of
                this rank's own; collective, see :meth:`all_ranks`.
        """
        return _table(self.all_ranks() if all_ranks else [self.summary], of_all=all_ranks)

    @contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Writes what this rank does in a ``with`` block as a timeline, by torch.profiler.

        >>> with pyg_sar.profile(model) as prof, prof.trace('x.json'):
        ...     train(model)

        https://ui.perfetto.dev and chrome://tracing open the file. Layers and operations between
        ranks are ranges with names that begin with ``pyg_sar::``. A file takes some MB for each
        epoch. Not collective: each rank that calls it writes a file of its own, so give each
        another path. Of ranks that are threads of one process, one at a time may call it.

        Args:
            path: The file to write, such as ``x.json``, or ``x.json.gz`` for a compressed one.

        Raises:
            ValueError: Outside of the profile's ``with`` block, where layers have no ranges.
            OSError: If the file cannot be written.
        """
        if not self._is_on:
            raise ValueError("expected to be inside of the profile's 'with' block")
        with open(path, 'wb'):  # torch.profiler has no error for a path that it cannot write
            pass
        with torch.profiler.profile() as timeline:
            yield
        timeline.export_chrome_trace(os.fspath(path))

    def __str__(self) -> str:
        return repr(self) if self.recorded is None else self.table()


_NAMES = ('layer', 'conv', 'path', 'mode', 'pass')
_ROWS, _SECONDS = '{:,.0f}'.format, '{:.4f}'.format
_COUNTS: dict[str, Callable[[float], str]] = {
    **{'calls': _ROWS, 'rows in': _ROWS, 'rows out': _ROWS},
    **{'bytes in': bytes_text, 'bytes out': bytes_text},
    **{'waiting s': _SECONDS, 'computing s': _SECONDS, 'peak': bytes_text},
}


def _table(summaries: Sequence[Summary], *, of_all: bool) -> str:
    """One rank's counts, or the least, the mean and the most of each count over the ranks."""
    first = summaries[0]
    reductions: dict[str, Any] = {'': fmean}
    whose, remark = f'rank {first.rank} of {first.world_size}', ''
    if of_all:
        reductions = {'least': min, 'mean': fmean, 'most': max}
        whose, remark = f'{len(summaries)} ranks', ' (means of the ranks)'
    elif first.start_bytes is not None:
        remark = f', {bytes_text(first.start_bytes)} at the beginning'
    rows = [[*_NAMES, *(['ranks'] if of_all else []), *_COUNTS]]
    for of_ranks in zip(*map(_lines, summaries), strict=True):
        names = of_ranks[0][0]
        columns = list(zip(*(counts for _, counts in of_ranks), strict=True))
        for name, reduce in reductions.items():
            cells = [
                form(reduce(present)) if (present := [n for n in column if n is not None]) else ''
                for form, column in zip(_COUNTS.values(), columns, strict=True)
            ]
            rows.append([*names, *([name] if of_all else []), *cells])
            names = [''] * len(names)
    seconds = fmean(s.seconds for s in summaries)
    share = fmean(s.outside_share for s in summaries)
    lines = [
        f'{whose}: {seconds:.3f} s, of which {share:.0%} outside of layers; peak: {first.memory} '
        f'memory{remark}',
        text_table(rows, len(rows[0]) - len(_COUNTS)),
    ]
    return '\n'.join(lines)


def _lines(summary: Summary) -> Iterator[tuple[list[str], tuple[float | None, ...]]]:
    """The names and the counts of each line; None is a count that the line does not have."""
    for layer in summary.layers:
        names = [layer.path or '(model)', layer.conv, '+'.join(layer.paths) or '-', layer.mode]
        yield [*names, 'forward'], astuple(layer.forward)
        yield [*[''] * 4, 'backward'], astuple(layer.backward)
    for title, name in (('all layers', 'forward'), ('', 'backward')):
        *of_layers, _ = zip(*(astuple(getattr(s, name)) for s in summary.layers), strict=True)
        yield [title, *[''] * 3, name], (*map(sum, of_layers), None)
    _, *outside, _ = astuple(summary.outside)
    yield ['outside of layers', *[''] * 4], (None, *outside, None)

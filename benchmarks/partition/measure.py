"""Partitions one graph in a process of its own and prints what every phase took, as JSON."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import pyg_sar
from pyg_sar.partition import external_sort, layout, metis, writer
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources import load_source
from pyg_sar.partition.writer import existing_parent

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from synthetic import SHAPES, save, synthetic_graph

# The module, not the function of this name that the package offers.
cutting = import_module('pyg_sar.partition.partition_graph')

METIS = 'METIS'
ASSIGN = 'assign'


class Phases:
    """Seconds and peak memory of functions, what they call of each other not counted twice.

    Peaks are above what the process held when this was made. *Beside* METIS's own arrays is a peak
    minus those that there are at the time; while METIS runs, what is held when it begins minus its
    input, as all that comes after is METIS's.
    """

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}
        self.held = _own_memory()
        self._peak = multiprocessing.Value('q', self.held)
        # A thread would wait while METIS holds the interpreter.
        multiprocessing.Process(target=_sample, args=(os.getpid(), self._peak), daemon=True).start()
        self._open = ['other']
        self._since = time.perf_counter()

    def watch(
        self, module: Any, function: str, phase: str, own: Callable[[Any], int] | None = None
    ) -> None:
        """From now on every call of this function is one of this phase.

        Args:
            module: Where it is looked up.
            function: Its name.
            phase: The phase.
            own: From its first argument the bytes of METIS's arrays in it.
        """
        wrapped: Callable[..., Any] = getattr(module, function)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._open.append(phase)
            own_bytes = own(args[0]) if own else 0
            known = self.found.setdefault(phase, _nothing())
            if phase == METIS:
                beside = _own_memory() - self.held - own_bytes
                known['beside_bytes'] = max(known['beside_bytes'], beside)
            try:
                return wrapped(*args, **kwargs)
            finally:
                self._turn(own_bytes)
                self._open.pop()

        setattr(module, function, watched)

    def end(self) -> dict[str, dict[str, float]]:
        self._turn()
        return self.found

    def _turn(self, own_bytes: int = 0) -> None:
        now, held = time.perf_counter(), _own_memory()
        with self._peak.get_lock():
            peak, self._peak.value = max(self._peak.value, held) - self.held, held
        phase = self._open[-1]
        known = self.found.setdefault(phase, _nothing())
        known['seconds'] += now - self._since
        known['peak_bytes'] = max(known['peak_bytes'], peak)
        if phase != METIS:
            known['beside_bytes'] = max(known['beside_bytes'], peak - own_bytes)
        self._since = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source')
    parser.add_argument('out', type=Path)
    parser.add_argument('--num-parts', type=int, required=True)
    parser.add_argument('--method', required=True)
    args = parser.parse_args()
    _first(args.out.with_name('first'), args.num_parts, args.method)
    phases = Phases()
    csr: dict[str, int] = {}

    def sized(*arguments: Any, keep_duplicates: bool = False) -> Any:
        near = external_sort.neighbours(*arguments, keep_duplicates=keep_duplicates)
        if not keep_duplicates:
            csr.update(num_nodes=near.indptr.numel() - 1, num_neighbours=near.columns.numel())
        return near

    cutting.neighbours = sized
    phases.watch(cutting, 'load_source', 'read')
    phases.watch(cutting, 'typed_graph', 'check')
    for module in (cutting, metis):
        phases.watch(module, 'neighbours', 'undirected graph')
    phases.watch(external_sort.Neighbours, 'csr', "METIS's input", lambda near: near.columns.nbytes)
    phases.watch(
        metis, 'pymetis_parts', METIS, lambda given: given.indptr.nbytes + given.index.nbytes
    )
    phases.watch(cutting, 'assign_nodes', ASSIGN)
    for module, function in (
        (writer, 'group_nodes'),
        (writer, 'group_edges'),
        (layout, 'find_halos'),
    ):
        phases.watch(module, function, 'edges by part')
    phases.watch(cutting, 'write_partition', 'write')
    start = time.perf_counter()
    summary = pyg_sar.partition_graph(args.source, args.num_parts, args.out, method=args.method)
    seconds = time.perf_counter() - start
    if not csr:  # METIS was not run: the size of its input, made for the measurement alone
        torch.set_num_threads(1)  # as in partition_graph
        scratch = Scratch(existing_parent(args.out))
        data = load_source(args.source, scratch=scratch)
        cutting.neighbours(data.edge_index, summary.num_nodes, scratch)
    found = phases.end()
    # Between these phases next to nothing happens, but METIS's arrays are there.
    beside = [of['beside_bytes'] for phase, of in found.items() if phase not in ('other', ASSIGN)]
    json.dump(
        {
            'num_nodes': summary.num_nodes,
            'num_edges': summary.num_edges,
            'num_parts': summary.num_parts,
            'method': args.method,
            'cut': summary.edge_cut / max(summary.num_edges, 1),
            'csr_bytes': 4 * (csr['num_neighbours'] + csr['num_nodes'] + 1),
            'num_neighbours': csr['num_neighbours'],
            'seconds': seconds,
            'held_bytes': phases.held,
            'phases': found,
            'metis_bytes': found.get(METIS, _nothing())['peak_bytes'],
            'passes_bytes': max(beside),
        },
        sys.stdout,
    )


def _first(folder: Path, num_parts: int, method: str) -> None:
    """A partition of 2,000 nodes: what it loads of the libraries is not the graph's."""
    source = folder.with_name('tiny')
    save(synthetic_graph(SHAPES['tiny']), source)
    pyg_sar.partition_graph(source, num_parts, folder, method=method)
    shutil.rmtree(source)
    shutil.rmtree(folder)
    gc.collect()


def _nothing() -> dict[str, float]:
    return {'seconds': 0.0, 'peak_bytes': 0, 'beside_bytes': 0}


def _own_memory(process: int | str = 'self') -> int:
    """Bytes of memory that are no pages of files, which the page cache takes back."""
    for line in Path(f'/proc/{process}/status').read_text().splitlines():
        if line.startswith('RssAnon:'):
            return int(line.split()[1]) * 1024
    raise ValueError(f"expected 'RssAnon' in /proc/{process}/status (got none)")


def _sample(process: int, peak: Any) -> None:
    """HasCache the largest memory of a process in `peak`."""
    while True:
        with peak.get_lock():
            peak.value = max(peak.value, _own_memory(process))
        time.sleep(0.002)


if __name__ == '__main__':
    main()

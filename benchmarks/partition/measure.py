"""Partitions one graph in a process of its own and prints what every phase took, as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pyg_sar
from pyg_sar.partitioner import assignment, graph, writer
from pyg_sar.partitioner.folder import existing_parent
from pyg_sar.partitioner.mapped import Scratch
from pyg_sar.partitioner.sources import read_source


class Phases:
    """Seconds and peak memory of functions, what they call of each other not counted twice."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}
        self.held = _status('VmRSS')
        self._open = ['other']
        self._since = time.perf_counter()
        Path('/proc/self/clear_refs').write_text('5')

    def watch(self, module: Any, function: str, phase: str) -> None:
        """From now on every call of this function is one of this phase."""
        wrapped: Callable[..., Any] = getattr(module, function)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._open.append(phase)
            try:
                return wrapped(*args, **kwargs)
            finally:
                self._turn()
                self._open.pop()

        setattr(module, function, watched)

    def end(self) -> dict[str, dict[str, float]]:
        self._turn()
        return self.found

    def _turn(self) -> None:
        now, peak = time.perf_counter(), _status('VmHWM')
        known = self.found.setdefault(self._open[-1], {'seconds': 0.0, 'peak_bytes': 0})
        known['seconds'] += now - self._since
        known['peak_bytes'] = max(known['peak_bytes'], peak - self.held)
        Path('/proc/self/clear_refs').write_text('5')
        self._since = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source')
    parser.add_argument('out', type=Path)
    parser.add_argument('--num-parts', type=int, required=True)
    parser.add_argument('--method', required=True)
    args = parser.parse_args()
    phases = Phases()
    csr: dict[str, int] = {}
    undirected_csr = assignment.undirected_csr

    def sized(*arguments: Any, **options: Any) -> Any:
        indptr, index = undirected_csr(*arguments, **options)
        csr.update(num_nodes=indptr.size - 1, num_neighbours=index.size)
        return indptr, index

    assignment.undirected_csr = sized
    phases.watch(graph, 'read_source', 'read')
    phases.watch(graph, 'typed_graph', 'check')
    phases.watch(assignment, 'undirected_csr', 'undirected graph')
    phases.watch(graph, 'assign_nodes', 'METIS' if args.method == 'metis' else args.method)
    for function in ('group_nodes', 'group_edges', 'find_exchange'):
        phases.watch(writer, function, 'edges by part')
    phases.watch(graph, 'write_partition', 'write')
    start = time.perf_counter()
    summary = pyg_sar.partition_graph(args.source, args.num_parts, args.out, method=args.method)
    seconds = time.perf_counter() - start
    found = phases.end()
    if not csr:  # METIS was not run: the size of its input, made for the measurement alone
        torch.set_num_threads(1)  # as in partition_graph
        scratch = Scratch(existing_parent(args.out))
        data, _ = read_source(args.source, scratch=scratch)
        assignment.undirected_csr(data.edge_index, summary.num_nodes, scratch=scratch)
        found = phases.end()
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
        },
        sys.stdout,
    )


def _status(name: str) -> int:
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(f'{name}:'):
            return int(line.split()[1]) * 1024
    raise ValueError(f"expected '{name}' in /proc/self/status (got none)")


if __name__ == '__main__':
    main()

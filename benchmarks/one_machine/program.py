"""Trains in one process, and tells its time, its memory and what it moved: plain PyG on the whole
graph, pyg_sar with all parts at once, or pyg_sar with parts in turn.

Reads its options as JSON from the command line, and writes JSON. A process of its own for every
variant, so that nothing of another one counts. Linux only.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from measured_training import as_csr
from process_memory import PeakMemory, read_libraries
from torch import nn
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

import pyg_sar

MODELS = {'sage': GraphSAGE, 'gcn': GCN, 'gat': GAT}
PLAIN, PLAIN_CSR, AT_ONCE, IN_TURN = 'plain PyG', 'plain PyG, CSR', 'all parts at once', 'in turn'


def train(options: dict[str, Any]) -> list[dict[str, float]]:
    """The program of plain PyG, and of every rank; gives what has come together by each epoch."""
    is_plain = options['variant'] in (PLAIN, PLAIN_CSR)
    if is_plain:
        data = torch.load(options['source'], weights_only=False)
        if options['variant'] == PLAIN_CSR:
            data.edge_index = as_csr(data)
        data.num_classes = int(data.y.max()) + 1
    else:
        data = pyg_sar.load_shard(options['source'])
    torch.manual_seed(0)
    kind, sizes = MODELS[options['model']], (options['hidden'], options['layers'])
    norm = nn.LayerNorm(options['hidden']) if options['norm'] == 'layer_norm' else options['norm']
    heads = {'heads': 4} if options['model'] == 'gat' else {}
    model = kind(data.num_features, *sizes, data.num_classes, norm=norm, **heads)
    if not is_plain:
        model = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    counts = [{**_counted(), 'loss': 0.0}]
    for _ in range(options['epochs']):
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counts.append({**_counted(), 'loss': loss.item()})
    return counts


def _counted() -> dict[str, float]:
    """Of this process so far: seconds, bytes asked of the system, bytes from and to a disk."""
    lines = Path('/proc/self/io').read_text().splitlines()
    moved = {name: int(count) for name, count in (line.split(': ') for line in lines)}
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        'seconds': time.perf_counter(),
        'cpu_seconds': used.ru_utime + used.ru_stime,
        'written': moved['wchar'],
        'read': moved['rchar'],
        'disk_written': moved['write_bytes'],
        'disk_read': moved['read_bytes'],
    }


@contextmanager
def _cold(folder: Path) -> Iterator[None]:
    """Has what was written leave the system's memory: all that is read comes from the disk."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.25):
            for link in Path('/proc/self/fd').iterdir():
                try:
                    path = os.readlink(link)
                    if path.startswith(f'{folder}/') and path.endswith(' (deleted)'):
                        os.fdatasync(int(link.name))
                        os.posix_fadvise(int(link.name), 0, 0, os.POSIX_FADV_DONTNEED)
                except OSError:  # closed meanwhile
                    continue

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main() -> None:
    options = json.loads(sys.argv[1])
    limit = int(0.9 * os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # an error, not a machine that swaps
    read_libraries()
    memory, found = PeakMemory(), {}
    if options['variant'] != IN_TURN:
        try:
            counts = train(options)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and 'allocate' not in str(error):
                raise
            print(json.dumps({'limit': limit}))
            return
    else:
        spill = Path(options['spill']).resolve()

        def run() -> Any:
            return pyg_sar.run_in_turns(
                train, options['source'], options, memory=options['memory'], spill=spill
            )

        if options['is_cold']:
            with _cold(spill):
                done = run()
        else:
            done = run()
        counts = done.results[0]
        found = {'tensors_peak': done.figures.peak, 'disk': done.figures.disk}
    epochs = [
        {**{name: after[name] - before[name] for name in before}, 'loss': after['loss']}
        for before, after in pairwise(counts)
    ]
    print(json.dumps({**found, 'peak': memory.bytes(), 'epochs': epochs}))


if __name__ == '__main__':
    main()

"""``check``: a training step on a small part of a graph, by plain PyG and on three ranks.

Every run is a forked process. So the step changes only copies of the caller's model, generators and
lists. The ranks are real ones and talk through gloo.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_geometric.data import Data, HeteroData

from pyg_sar.checking.differences import differences
from pyg_sar.checking.forked import Failure, run_forked
from pyg_sar.checking.one_run import Outcome, run_once
from pyg_sar.checking.plain_model import plain_model
from pyg_sar.checking.small_part import small_part
from pyg_sar.comm import is_distributed
from pyg_sar.ddp import DistributedDataParallel
from pyg_sar.load import load_shard
from pyg_sar.partitioner import partition_graph
from pyg_sar.rows.rows import Rows

Step = Callable[[Any, Any], Any]

_NUM_RANKS = 3
_SHARES = torch.tensor([0, 0, 0, 0, 1, 1, 2])  # the ranks of every seven nodes


def check(
    step: Step, model: torch.nn.Module, data: Data | HeteroData, *, timeout: float = 120
) -> None:
    """Checks that a training step gives the same results on ranks as in plain PyG.

    The step runs on a small part of the graph, once without pyg_sar and once on three ranks, with
    dropout off and one seed. The check compares the returned values, the gradients, parameters and
    buffers. If the step makes no gradients, it compares those of the returned values. Call it while
    porting a script::

        def step(model, data):
            out = model(data.x, data.edge_index)
            loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
            return {'loss': loss, 'acc': (out.argmax(1) == data.y).float().mean()}

        pyg_sar.check(step, model, graph)

    The runs are forked processes on the CPU. So the step changes neither the model, nor random
    states, nor other variables of this process. Files that it writes are written. Not collective.

    Args:
        step: A function of the model and the data. It returns a loss, tensors, numbers, strings or
            None, alone or in containers, dataclasses and objects.
        model: The plain model, or one that is wrapped already.
        data: The plain graph. Of each type of nodes about 60 are taken, with all edges between
            them; ``n_id`` and ``e_id`` are added. ``num_nodes`` is their number in both runs.
        timeout: After how many seconds the check is given up.

    Raises:
        ValueError: If something differs, with its path in the result or the parameter's name; if
            the ranks refuse the step, with the line of it; if the step cannot be run on a small
            part of the graph, does not end, or its process dies; if `data` is no plain graph, this
            process is a rank, or CUDA is in use, as such a process cannot be forked.
    """
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if is_distributed() or has_cuda:
        what = 'one that has used CUDA' if has_cuda else 'a rank'
        raise ValueError(f"'check' must be forked from another process (got {what}): run it on CPU")
    if any(isinstance(value, Rows) for store in data.stores for value in store.values()):
        raise ValueError("'data' must be the plain graph (got rows of pyg_sar.load_shard)")
    for dtype in (torch.float64, torch.get_default_dtype()):  # the first if the step runs in it
        run = functools.partial(_on_whole, step, model, data, dtype)
        (whole,) = run_forked([run], step, timeout)
        if isinstance(whole, Outcome) or not whole.is_raised:
            break
    if isinstance(whole, Failure):
        raise ValueError(
            f'on a small part of the graph the step fails without pyg_sar: {whole.text}'
        )
    with tempfile.TemporaryDirectory(prefix='pyg_sar-') as folder:
        run = functools.partial(_on_rank, step, model, data, dtype, folder)
        ranks = [functools.partial(run, rank) for rank in range(_NUM_RANKS)]
        outcomes = run_forked(ranks, step, timeout)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.is_of_another)
        raise ValueError(f'the step runs on plain PyG, and not on ranks: {first.text}')
    for outcome in outcomes:
        texts = differences(whole, outcome, 1e-6 if dtype == torch.float64 else 1e-3)
        if len(texts) > 5:
            texts[5:] = [f'{len(texts) - 5} more']
        if texts:
            texts += [
                f'pyg_sar.local at {Path(file).name}:{line} gives the rows of one rank alone: '
                'compute with rows of the whole graph'
                for file, line in outcome.lines_of_local[:1]
            ]
            raise ValueError(f'the step differs on ranks: {"; ".join(texts)}')


def _on_whole(step: Step, model: Any, data: Any, dtype: torch.dtype) -> Outcome:
    small, chosen = small_part(data, dtype)
    for store in small.node_stores:  # the ids and counts that load_shard adds
        store.num_nodes_total = store.num_nodes
        store.n_id, store.num_nodes = torch.arange(store.num_nodes), store.num_nodes
    for store in small.edge_stores:
        store.e_id = torch.arange(store.num_edges)
    return run_once(step, plain_model(model, data, dtype, chosen, small), small)


def _on_rank(
    step: Step, model: Any, data: Any, dtype: torch.dtype, folder: str, rank: int
) -> Outcome:
    small, chosen = small_part(data, dtype)
    parts = {s._key: _SHARES[torch.arange(s.num_nodes) % len(_SHARES)] for s in small.node_stores}
    method: Any = parts.get(None, parts)
    partition_graph(small, _NUM_RANKS, f'{folder}/{rank}', method=method)
    dist.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=_NUM_RANKS
    )
    small = load_shard(f'{folder}/{rank}')
    model = plain_model(model, data, dtype, chosen, small)
    return run_once(step, DistributedDataParallel(model, debug=True, return_memory=False), small)

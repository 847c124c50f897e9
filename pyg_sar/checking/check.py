"""``check``: a training step on a small part of a graph, by plain PyG and on three ranks.

Every run is a forked process, so whatever the step does to the model, to a generator or to a list
of the caller is done to a copy. The ranks are real ones, which talk through gloo.
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
from pyg_sar.checking.plain_model import Around, plain_model
from pyg_sar.checking.small_part import own_tables, part_of_tables, small_part
from pyg_sar.comm import is_distributed
from pyg_sar.ddp import DistributedDataParallel
from pyg_sar.load import load_shard
from pyg_sar.partitioner import partition_graph
from pyg_sar.rows.rows import Rows

Step = Callable[[Any, Any], Any]

_NUM_RANKS = 3
_SHARES = torch.tensor([0, 0, 0, 0, 1, 1, 2])  # the ranks of seven nodes


def check(
    step: Step, model: torch.nn.Module, data: Data | HeteroData, *, timeout: float = 120
) -> None:
    """Checks that a training step gives on ranks what it gives on one process of plain PyG.

    The step runs on a small part of the graph, once without pyg_sar and once on three ranks, with
    dropout off and one seed. What it returns, the gradients that it made, or else those of what it
    returns, and parameters and buffers are compared. Call it in a test or a notebook while porting
    a script::

        def step(model, data):
            out = model(data.x, data.edge_index)
            loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
            return {'loss': loss, 'acc': (out.argmax(1) == data.y).float().mean()}

        pyg_sar.check(step, model, graph)

    The runs are forked processes on the CPU: the model, random states and whatever else the step
    changes stay as they are; files that it writes are written. Not collective.

    Args:
        step: Is called with the model and the data, and returns a loss, tensors, numbers, strings
            or None, by themselves or in containers, dataclasses and objects.
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
    if is_distributed():
        raise ValueError("'check' needs no ranks: call it in a process that is none")
    if any(isinstance(value, Rows) for store in data.stores for value in store.values()):
        raise ValueError("'data' must be the plain graph (got rows of pyg_sar.load_shard)")
    if torch.cuda.is_initialized():
        raise ValueError(
            "'check' forks, which a process that has used CUDA cannot: run it on CPU, with "
            'CUDA_VISIBLE_DEVICES= in the environment'
        )
    dtypes = (torch.float64, torch.get_default_dtype())  # the first if the step runs in it
    for dtype in dtypes:
        (whole,) = run_forked(
            [functools.partial(_on_whole, step, model, data, dtype)], step, timeout
        )
        if isinstance(whole, Outcome):
            break
    else:
        raise ValueError(
            f'the step does not run on a small part of the graph, without pyg_sar: {whole}'
        )
    with tempfile.TemporaryDirectory(prefix='pyg_sar-') as folder:
        on_rank = functools.partial(_on_rank, step, model, data, dtype, whole.has_backward, folder)
        ranks = [functools.partial(on_rank, rank) for rank in range(_NUM_RANKS)]
        found = run_forked(ranks, step, timeout)
    failures = [each for each in found if isinstance(each, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.is_of_another)
        raise ValueError(f'the step runs on plain PyG, and not on ranks: {first}')
    for each in found:
        texts = differences(whole, each, 1e-6 if dtype == torch.float64 else 1e-3)
        if texts:
            more = f'; and {len(texts) - 5} more' if len(texts) > 5 else ''
            raise ValueError(
                'the step does not give on ranks what it gives on plain PyG (docs/porting.md): '
                + '; '.join(texts[:5])
                + more
            )


def _on_whole(step: Step, model: Any, data: Any, dtype: torch.dtype) -> Outcome:
    torch.set_default_dtype(dtype)
    small, chosen = small_part(data, dtype)
    model = plain_model(model, dtype)
    part_of_tables(model, data, chosen)
    for store in small.node_stores:
        store.n_id = torch.arange(store.num_nodes)
    for store in small.edge_stores:
        store.e_id = torch.arange(store.num_edges)
    return run_once(step, model, small)


def _on_rank(
    step: Step,
    model: Any,
    data: Any,
    dtype: torch.dtype,
    has_backward: bool,
    folder: str,
    rank: int,
) -> Outcome:
    torch.set_default_dtype(dtype)
    small, chosen = small_part(data, dtype)
    parts: dict[Any, Any] = {
        store._key: _SHARES[torch.arange(store.num_nodes) % len(_SHARES)]
        for store in small.node_stores
    }
    root = Path(folder) / f'parts-{rank}'
    partition_graph(small, _NUM_RANKS, root, method=parts.get(None, parts))
    store_file = f'file://{folder}/store'
    dist.init_process_group('gloo', init_method=store_file, rank=rank, world_size=_NUM_RANKS)
    typed = load_shard(root)
    model = plain_model(model, dtype)
    part_of_tables(model, data, chosen)
    own_tables(model, typed)
    inner = model.module if isinstance(model, Around) else model
    around = DistributedDataParallel(inner, debug=True, return_memory=False)
    given = around if isinstance(model, Around) else inner
    return run_once(step, given, typed, has_backward=has_backward)

"""``load_shard``: every rank reads its own parts, and all ranks succeed or fail together."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import replace
from pathlib import Path

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.comm.environment import launched
from pyg_sar.comm.errors import collective
from pyg_sar.comm.ranks import current, is_distributed
from pyg_sar.comm.vote import agree, differ, odd_and_usual, raise_on_all
from pyg_sar.rows.from_data import as_rows_of_graph
from pyg_sar.rows.patches import ask_for_rows
from pyg_sar.shard.meta import Meta, read_meta
from pyg_sar.shard.read_shard import read_shard
from pyg_sar.utils.log import bytes_text, say
from pyg_sar.utils.scoped import on_cpu

_logger = logging.getLogger(__name__)


@collective('load_shard', 'two small all-gathers, and all raise if one of them does')
def load_shard(
    root: str | Path, rank: int | None = None, *, verify: bool = True
) -> Data | HeteroData:
    """Loads a partitioned graph in place of a dataset; this rank holds its part of it.

    The tensors know whose rows they hold, and have the shape of the whole graph. So a program for
    one machine runs on them as it is: ``x.mean(dim=0)`` and
    ``F.cross_entropy(out[mask], y[mask])`` are over the rows of all ranks. A function that cannot
    be computed so raises an error with its name.

    Ranks own parts that follow one another: with 8 parts on 2 ranks, rank 0 owns parts 0 to 3.
    One process owns all of them: its tensors are plain, in the order of the graph, and only
    ``edge_index`` has a class of its own. A rank reads META.json and the files of its own parts,
    memory-mapped (``weights_only``). The folders of other parts may be missing.

    ===========================  =================================================================
    ``x``, ``y``, masks, ...     every node attribute, ``[num_nodes, ...]``
    ``edge_index``               int64 ``[2, num_edges]``, in ids of the whole graph
    ``edge_attr``, ...           every edge attribute ``[num_edges, ...]``
    ``n_id``                     original ids of the nodes, int64 ``[num_nodes]``
    ``e_id``                     original ids of the edges, int64 ``[num_edges]``
    ``num_nodes``                the number of nodes of the whole graph
    ===========================  =================================================================

    A ``HeteroData`` has the same for every type of nodes and every relation, the types of the whole
    graph on every rank, also where a rank has no node or edge of one. ``x_dict``,
    ``edge_index_dict`` and ``metadata()`` are PyG's own. Reverse relations are added before the
    graph is partitioned, with ``T.ToUndirected``.

    :func:`pyg_sar.local` of the data has plain tensors of the own rows.

    As in::

        data = pyg_sar.load_shard('parts/')
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    Args:
        root: The folder that ``python -m pyg_sar.partition`` wrote.
        rank: For inspection: the rank whose parts to load. Then all tensors are plain, with the
            rows of that rank alone. Without ``torch.distributed``, part `rank` alone is loaded.
        verify: Whether to compare every file that is read with its checksum in META.json, which
            takes about a second for each GB. If False, files are mapped and read when they are
            needed. Whether they fit together is checked in any case.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing.
        ValueError: If this is one of several processes and :func:`pyg_sar.init` was not called, the
            number of parts is not a multiple of the number of ranks, a file does not hold what
            META.json says or was changed, or the ranks' folders hold different partitions.
    """
    ask_for_rows()
    with on_cpu():
        data = _logged(_read(root, rank, verify))
        return data if rank is not None else as_rows_of_graph(data)


def _read(root: str | Path, rank: int | None, verify: bool) -> Data | HeteroData:
    """The parts of a rank, as plain tensors of its own rows."""
    start = None if is_distributed() or rank is not None else launched(os.environ)
    if start is not None and start.world_size > 1:
        raise ValueError(
            f'expected pyg_sar.init() before load_shard, as this is one of {start.world_size} '
            f'processes started by {start.launcher} (call pyg_sar.init() first)'
        )

    def read() -> tuple[Data | HeteroData, str]:
        comm = current()
        own = comm.rank if rank is None else rank
        size = comm.size if rank is None or is_distributed() else None
        is_whole = comm.size == 1 and rank is None
        try:
            meta = read_meta(root)
            data = read_shard(root, own, size, verify=verify, whole_graph=is_whole, meta=meta)
            if _digest(read_meta(root)) != _digest(meta):
                raise ValueError(
                    f"expected the same partition in '{root}' until it is read (got another one "
                    'meanwhile): load it again'
                )
            return data, _digest(meta)
        except (FileNotFoundError, ImportError, ValueError):
            raise
        except Exception as error:
            text = f"expected a partition folder at '{root}' (got {error!r})"
            raise ValueError(text) from error

    data, digest = raise_on_all(read)
    if is_distributed():
        _check_same_partition(digest, str(root))
    return data


def _logged(data: Data | HeteroData) -> Data | HeteroData:
    """Logs what was loaded, and gives it back."""
    shards = [s.edge_index.handle.shard for s in data.edge_stores if 'edge_index' in s]
    if shards and _logger.isEnabledFor(logging.INFO):
        first = shards[0]
        num_parts = first.num_parts if first.cut is None else first.cut[0].num_parts
        parts = first.parts if first.cut is None else range(num_parts)
        tensors = [v for s in data.stores for v in s.values() if isinstance(v, Tensor)]
        say(
            _logger,
            logging.INFO,
            f'loaded parts {parts.start} to {parts.stop - 1} of {num_parts} from '
            f"'{first.root}': {data.num_nodes} own nodes, {sum(s.num_edges for s in shards)} "
            f'edges, {sum(s.num_halo for s in shards)} halo rows, '
            f'{bytes_text(sum(t.nbytes for t in tensors))}',
        )
    return data


def _digest(meta: Meta) -> str:
    """Names what the files are, and what each rank reads of others."""
    return hashlib.sha256(repr(replace(meta, notes={})).encode()).hexdigest()


def _check_same_partition(digest: str, root: str) -> None:
    """Compares what the ranks have read: by now a folder may have another partition."""
    digests, roots = zip(*agree((digest, root)), strict=True)
    if len(set(digests)) > 1:
        odd, usual = odd_and_usual(digests)
        raise differ(
            f"expected the same partition on all ranks: '{roots[odd]}' on rank {odd} (got "
            f"another one, '{roots[usual]}', on rank {usual}): copy one folder to all machines, or "
            'load it again if it was replaced meanwhile',
            odd,
        )

"""An epoch of ogbn-papers100M on 128 machines, foretold; run as a program, it measures what it can.

    epoch = products / flops                                     (times what an epoch is of that)
          + the larger of gathers / bandwidth of memory (times the same) and bytes / link
          + steps * (cost of a step + latency)

At best: rows travel while blocks of edges are summed, and not while the products of matrices are
computed. At worst nothing is hidden.
benchmarks/network holds this against links that are slow on purpose.
Rows and bytes of an epoch are those of a rehearsal of the real code (:mod:`pyg_sar.planner`). The
cost of a step is measured: rank 0 of 128 runs the real code with hardly a row in each block,
against rank 0 of 2 with as many rows in one. Rates of one core come from benchmarks/limit. All else
is assumed, and named here.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, cut, sizes  # noqa: E402
from layer_bound import Needs, needs  # noqa: E402
from measured_training import make_model  # noqa: E402
from report import table  # noqa: E402

from pyg_sar.planner.counts import RankSizes, RelationSizes, sizes_of  # noqa: E402
from pyg_sar.planner.prediction import predict_cut  # noqa: E402
from pyg_sar.planner.rehearsal import Job, rehearse  # noqa: E402
from pyg_sar.shard.meta import EdgeInfo, Meta, NodeInfo, read_meta  # noqa: E402

FILE = HERE / 'many_ranks.json'
RANKS = 128
NUM_NODES, NUM_EDGES = 111_059_956, 3_228_124_712  # made undirected
WIDTHS = {'num_features': 128, 'hidden': 256, 'num_layers': 3, 'num_classes': 172}
PUBLISHED_SECONDS = 3.8  # README of SAR, 128 workers
KEPT_BYTES = 50.5e9 - 25e9  # the same: memory of a worker without SAR and with it
SMALL_RANK = 4000, 20_000  # own nodes and edges where steps are measured
LARGEST = 4  # rows of a rank's largest remote block over those of its mean one, assumed


CORES, MEMORY_BANDWIDTH = 72, 307e9
"""Of a machine, assumed: 2 x 36 cores, 2 x 8 channels of DDR4-3200 at 75 % of their 410 GB/s."""

LATENCY = 50e-6  # seconds of a message, assumed: TCP
LINKS = {'200 Gb/s': 25e9, '25 Gb/s': 3.1e9, '10 Gb/s': 1.25e9}  # bytes a rank receives in a second
PAYLOAD = 1448 / 1514  # of a full packet on Ethernet
GROUP = 8  # parts in one receive, if steps were grouped


def measure() -> dict[str, Any]:
    """What is measured here, and what follows for every cut."""
    limit = json.loads((HERE.parent / 'limit' / 'results.json').read_text())
    epoch = next(r for r in limit['rows'] if (r['model'], r['part']) == ('sage', 'epoch'))
    bounds = _needs(epoch['num_nodes'], 0, {**WIDTHS, 'num_classes': epoch['num_classes']})
    operations = sum(of.operations(epoch['num_nodes']) for of in bounds)
    ranks, size = sizes_of(read_meta(cut(ARXIV, RANKS)), RANKS), sizes(ARXIV)
    share = sum(sum(of.relations[None].halo_edges) for of in ranks) / size['num_edges']
    halo = sum(of.num_halo for of in ranks)
    measured = {
        'flops_per_core': operations / epoch['bounds']['products'] / limit['environment']['cores'],
        'of_bound': epoch['of_bound']['median'],
        'step_seconds': _step_seconds(),
        'share_cut': share,
        'pool_share': _pool_share(share, halo, size),
        'load': os.getloadavg()[0],
    }
    cuts = [_foretold(name, *cut, measured) for name, cut in _cuts(measured).items()]
    return {'measured': measured, 'cuts': cuts}


def exchange_seconds(num_bytes: float, bandwidth: float) -> float:
    """On a link of so many bytes per second, which carries headers (TCP, IP, Ethernet) too."""
    return num_bytes / (PAYLOAD * bandwidth)


def sum_bytes(num_bytes: float, num_ranks: int) -> float:
    """What a rank receives where tensors of so many bytes are summed over all, in a ring."""
    return 2 * num_bytes * (num_ranks - 1) / num_ranks


def epoch_seconds(compute: float, blocks: float, exchange: float, steps: float) -> float:
    """Of an epoch: rows travel while a block is computed, and at no other time.

    Args:
        compute: All that a rank computes.
        blocks: The part of it that is the blocks of edges.
        exchange: Of :func:`exchange_seconds`.
        steps: What the steps cost beyond their rows.
    """
    return compute - blocks + max(blocks, exchange) + steps


def _needs(num_nodes: int, num_edges: int, widths: dict[str, int]) -> list[Needs]:
    convs = make_model('sage', **widths).convs
    return [needs(conv, i == 0, num_nodes, num_edges) for i, conv in enumerate(convs)]


def _job() -> Job:
    """On a graph of which only the width of its features counts."""
    attrs = {
        'x': {'dtype': 'float32', 'shape': [WIDTHS['num_features']]},
        'y': {'dtype': 'int64', 'shape': []},
        **{f'{name}_mask': {'dtype': 'bool', 'shape': []} for name in ('train', 'val', 'test')},
    }
    nodes, edges = NodeInfo(0, [], attrs, {}), EdgeInfo(None, None, 0, [], [], [], {}, {})
    return Job(make_model('sage', **WIDTHS), Meta(RANKS, '', {None: nodes}, {None: edges}, {}))


def _step_seconds(rows: int = 16, edges: int = 64, repeats: int = 5) -> float:
    """What a step costs beyond its rows, with one thread: the least of all repeats."""
    torch.set_num_threads(1)
    of = {}
    for num_ranks in (2, RANKS):
        remote, share = num_ranks - 1, (RANKS - 1) // (num_ranks - 1)
        blocks = (rows * share,) * remote, (edges * share,) * remote
        of[num_ranks] = _sizes(SMALL_RANK[0], SMALL_RANK[1], *blocks)
    seconds, exchanges = dict.fromkeys(of, float('inf')), 0.0
    for _ in range(repeats):
        for num_ranks, small in of.items():
            found = rehearse(_job(), small, count=False, epochs=6)
            seconds[num_ranks] = min(seconds[num_ranks], found.cpu_seconds)
            exchanges = found.rows_received / small.num_halo
    return (seconds[RANKS] - seconds[2]) / (RANKS - 2) / exchanges


def _sizes(
    own: int, own_edges: int, halo: tuple[int, ...], halo_edges: tuple[int, ...]
) -> RankSizes:
    edges = RelationSizes((own_edges,), halo, halo_edges, sum(halo))
    return RankSizes({None: (own,)}, {None: edges})


def _distinct(draws: float, pool: float) -> float:
    """How many of `pool` rows so many draws with replacement meet, as expected."""
    return pool * -math.expm1(-draws / pool)


def _pool_share(share: float, halo: int, size: dict[str, int]) -> float:
    """The pool that cut edges draw rows from, as a share of the remote rows, by bisection."""
    remote, draws = size['num_nodes'] * (1 - 1 / RANKS), share * size['num_edges'] / RANKS
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        is_few = _distinct(draws, middle * remote) < halo / RANKS
        low, high = (middle, high) if is_few else (low, middle)
    return high


def _cuts(measured: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """The share of the edges that are cut, and the rows that a rank reads in one exchange."""
    edges, remote = NUM_EDGES / RANKS, NUM_NODES * (1 - 1 / RANKS)
    share, at_random = measured['share_cut'], 1 - 1 / RANKS
    widths = WIDTHS['num_features'] + 2 * WIDTHS['hidden']  # of the layers' inputs
    return {
        f'METIS, as `{ARXIV}` here': (
            share,
            _distinct(share * edges, measured['pool_share'] * remote),
        ),
        "at most, by SAR's memory": (share, KEPT_BYTES / (4 * widths)),
        'nodes at random': (at_random, _distinct(at_random * edges, remote)),
    }


def _foretold(name: str, share: float, halo: float, measured: dict[str, Any]) -> dict[str, Any]:
    """The mean rank of a cut, by the rehearsal."""
    own, edges, blocks = -(-NUM_NODES // RANKS), NUM_EDGES / RANKS, RANKS - 1
    shares = [LARGEST / blocks] + [(1 - LARGEST / blocks) / (blocks - 1)] * (blocks - 1)
    remote_rows = tuple(min(round(halo * of), own) for of in shares)
    remote_edges = tuple(round(share * edges * of) for of in shares)
    sizes_of_mean = _sizes(own, round(edges * (1 - share)), remote_rows, remote_edges)
    rank = predict_cut(_job(), [sizes_of_mean], timed=False)
    layers = _needs(own, sizes_of_mean.totals[1], WIDTHS)
    operations = sum(of.operations(own) for of in layers)
    gathered = sum(of.gathered_bytes for of in layers) / MEMORY_BANDWIDTH
    bound = operations / (CORES * measured['flops_per_core']) + gathered
    parameters = sum(p.numel() for p in make_model('sage', **WIDTHS).parameters())
    return {
        'name': name,
        'halo': halo,
        'halo_of_own': halo / own,
        'bytes_received': rank.bytes_per_epoch,
        'memory_bytes': rank.memory_bytes,
        'sum_bytes': sum_bytes(4 * parameters, RANKS),
        'compute_seconds': measured['of_bound'] * bound,
        'blocks_seconds': measured['of_bound'] * gathered,
        'steps': (RANKS - 1) * round(rank.rows_per_epoch / rank.halo_rows),
    }


def tables() -> dict[str, str]:
    """For README.md, out of what was measured."""
    found = json.loads(FILE.read_text())
    measured, cuts, epochs = found['measured'], [], []
    for of in found['cuts']:
        cuts.append(
            [
                of['name'],
                f'{of["halo"] / 1e6:.1f}',
                f'{of["halo_of_own"]:.1f}',
                f'{of["bytes_received"] / 1e9:.1f}',
                f'{of["memory_bytes"] / 1e9:.1f}',
            ]
        )
        for link, bandwidth in LINKS.items():
            compute, blocks = of['compute_seconds'], of['blocks_seconds']
            exchange = exchange_seconds(of['bytes_received'], bandwidth)
            summed = exchange_seconds(of['sum_bytes'], bandwidth)
            steps = of['steps'] * (measured['step_seconds'] + LATENCY)
            epochs.append(
                [
                    of['name'] if link == next(iter(LINKS)) else '',
                    link,
                    *(f'{seconds:.2f}' for seconds in (compute, exchange, steps)),
                    *(
                        f'{epoch_seconds(compute, blocks, exchange, each) + summed:.1f} to '
                        f'{epoch_seconds(compute, 0.0, exchange, each) + summed:.1f}'
                        for each in (steps, steps / GROUP)
                    ),
                ]
            )
    cut_header = ['cut', 'halo, M rows', 'of own nodes', 'GB received', 'memory, GB']
    header = [
        'cut',
        'link',
        'compute, s',
        'exchange, s',
        'steps, s',
        '**epoch, s**',
        'in groups, s',
    ]
    rates = [
        ['products, one core', f'{measured["flops_per_core"] / 1e9:.0f} GFLOP/s'],
        ['epoch of GraphSAGE, of its bound', f'{measured["of_bound"]:.2f}'],
        ['a step, beyond its rows', f'{measured["step_seconds"] * 1e3:.2f} ms'],
        [f'edges of `{ARXIV}` cut into {RANKS} parts', f'{measured["share_cut"]:.0%}'],
        ['rows they meet, of all remote ones', f'{measured["pool_share"]:.0%}'],
        ['load meanwhile', f'{measured["load"]:.1f}'],
    ]
    return {
        'cuts': table(cut_header, cuts),
        'epochs': table(header, epochs),
        'rates': table(['measured here', ''], rates),
    }


if __name__ == '__main__':
    FILE.write_text(json.dumps(measure(), indent=1) + '\n')
    print('\n\n'.join(tables().values()))

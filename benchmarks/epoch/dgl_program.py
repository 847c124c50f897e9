"""Full training epochs with DGL, or with SAR on DGL: a program for their own Python environment.

It imports nothing of pyg_sar or PyG: DGL's last release needs torch 2.2 or older. One process is
one rank. After the setup, and after every epoch that a line on stdin asks for, it writes a line of
JSON to stdout; what libraries print goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from process_memory import PeakMemory, read_libraries

HEADS = 4


def main() -> None:
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)

    def answer(result: dict[str, Any]) -> None:
        print(json.dumps(result), file=answers, flush=True)

    args = _parse()
    torch.set_num_threads(args.threads)
    if args.make_parts:
        _make_parts(args)
        return
    read_libraries()
    graph, data = _whole(args) if args.mode is None else _part(args)
    network = Network(args, data['x'].size(1))
    network.load(Path(args.weights))
    optimizer = torch.optim.Adam(network.parameters(), lr=args.lr)
    num_train = _sum_of_ranks(args, data['train_mask'].sum())
    memory = PeakMemory()
    answer({'before_bytes': memory.before})
    for _ in sys.stdin:
        start = time.perf_counter()
        out = network(graph, data['x'])
        values = F.cross_entropy(out, data['y'], reduction='none', ignore_index=-1)
        loss = values[data['train_mask']].sum() / num_train
        optimizer.zero_grad()
        loss.backward()
        if args.mode is not None:
            import sar

            sar.gather_grads(network)
        optimizer.step()
        value = _sum_of_ranks(args, loss.detach()).item()
        seconds = time.perf_counter() - start
        answer({'loss': value, 'seconds': seconds, 'peak_bytes': memory.bytes()})
        del out, values, loss


class Network(torch.nn.Module):
    """The model of ``measured_training.make_model``: convs, batch norm, ReLU between them."""

    def __init__(self, args: argparse.Namespace, num_features: int) -> None:
        super().__init__()
        self.name = args.model
        widths = [num_features, *[args.hidden] * (args.layers - 1), args.classes]
        self.convs, self.norms = torch.nn.ModuleList(), torch.nn.ModuleList()
        for number, (src, dst) in enumerate(pairwise(widths)):
            is_last = number == args.layers - 1
            if self.name == 'sage':
                self.convs.append(dgl.nn.SAGEConv(src, dst, 'mean'))
            else:
                self.convs.append(dgl.nn.GATConv(src, dst if is_last else dst // HEADS, HEADS))
            if not is_last:
                self.norms.append(_batch_norm(dst, args.mode))

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        for number, conv in enumerate(self.convs):
            x = conv(graph, x)
            is_last = number == len(self.convs) - 1
            if x.dim() == 3:
                x = x.mean(dim=1) if is_last else x.flatten(1)
            if not is_last:
                x = self.norms[number](x).relu()
        return x

    @torch.no_grad()
    def load(self, file: Path) -> None:
        """Takes the weights of PyG's model; its names are the keys of the .npz file."""
        found = {name: torch.from_numpy(array) for name, array in np.load(file).items()}
        for number, conv in enumerate(self.convs):
            if self.name == 'sage':
                pairs = {
                    'lin_l.weight': conv.fc_neigh.weight,
                    'lin_l.bias': conv.fc_self.bias,
                    'lin_r.weight': conv.fc_self.weight,
                }
            else:
                pairs = {
                    'lin.weight': conv.fc.weight,
                    'att_src': conv.attn_l,
                    'att_dst': conv.attn_r,
                    'bias': conv.bias,
                }
            for name, target in pairs.items():
                value = found[f'convs.{number}.{name}']
                # DGL adds the bias before it takes the mean over heads, PyG after.
                target.copy_(
                    value.repeat(target.numel() // value.numel()).view_as(target)
                    if value.dim() == 1
                    else value
                )


def _batch_norm(width: int, mode: str | None) -> torch.nn.Module:
    if mode is None:
        return torch.nn.BatchNorm1d(width)
    import sar

    norm: torch.nn.Module = sar.DistributedBN1D(width)
    return norm


def _whole(args: argparse.Namespace) -> tuple[Any, dict[str, Tensor]]:
    graph, data = _graph(args), _arrays(args)
    data.pop('edge_index')
    return graph, data


def _part(args: argparse.Namespace) -> tuple[Any, dict[str, Tensor]]:
    """This rank's part of SAR's graph, and its rows."""
    import sar

    os.environ.update(GLOO_SOCKET_IFNAME='lo', SAR_SOCKET_NAME='lo')
    store = f'file://{args.store}'
    dist.init_process_group('gloo', init_method=store, rank=args.rank, world_size=args.processes)
    sar.initialize_comms(args.rank, args.processes, '127.0.0.1', 'gloo')
    sar.patch_dgl()
    sar.Config.disable_sr = args.mode == 'sequential_no_remat'
    part = sar.load_dgl_partition_data(f'{args.parts}/graph.json', args.rank, torch.device('cpu'))
    rows = {name: sar.suffix_key_lookup(part.node_features, name) for name in ('x', 'y', 'train')}
    graph = sar.construct_full_graph(part)
    if args.mode == 'one_shot':
        graph = graph.get_full_partition_graph()
    return graph, {
        'x': rows['x'],
        'y': rows['y'],
        'train_mask': rows['train'].bool(),
    }


def _graph(args: argparse.Namespace) -> Any:
    src, dst = _arrays(args)['edge_index']
    graph = dgl.graph((src, dst), num_nodes=len(_arrays(args)['y']))
    # As PyG's GATConv does.
    return dgl.add_self_loop(dgl.remove_self_loop(graph)) if args.model == 'gat' else graph


def _arrays(args: argparse.Namespace) -> dict[str, Tensor]:
    folder = Path(args.arrays)
    return {path.stem: torch.from_numpy(np.load(path)) for path in folder.glob('*.npy')}


def _make_parts(args: argparse.Namespace) -> None:
    graph, data = _graph(args), _arrays(args)
    graph.ndata.update(x=data['x'], y=data['y'], train=data['train_mask'].byte())
    dgl.distributed.partition_graph(graph, 'graph', args.processes, args.parts)


def _sum_of_ranks(args: argparse.Namespace, value: Tensor) -> Tensor:
    value = value.clone()
    if args.mode is not None:
        dist.all_reduce(value)
    return value


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--make-parts', action='store_true', help='cut the graph, and end')
    parser.add_argument('--arrays', required=True, help='folder of x, y, edge_index, train_mask')
    parser.add_argument('--parts', help='DGL partition folder; for SAR')
    parser.add_argument('--mode', help='of SAR: sequential, sequential_no_remat or one_shot')
    parser.add_argument('--store', help='file by which the ranks meet; for SAR')
    parser.add_argument('--rank', type=int, default=0)
    parser.add_argument('--processes', type=int, default=1)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--model', choices=['sage', 'gat'], required=True)
    parser.add_argument('--hidden', type=int, default=256)
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--classes', type=int, default=0)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--weights', help='.npz of the state dict of the PyG model')
    return parser.parse_args()


if __name__ == '__main__':
    main()

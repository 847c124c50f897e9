"""Runs a program in processes of its own, and records every step of its optimizers.

Plain programs run in forks of this process, which never imports pyg_sar. Ported ones run in those
of a server that has imported it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import multiprocessing
import os
import re
import socket
import sys
import time
import traceback
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_datasets
import torch
import torch_geometric
import torch_geometric.loader
import torch_geometric.logging
import torch_geometric.nn
from full_neighbours import NeighborLoader
from record import Record
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook

NUM_PARTS = 3
SHARES = (0.55, 0.3, 0.15)  # of the nodes, in the parts
GRACE = 15.0  # seconds for the other ranks, after one has ended with an error

_forks = multiprocessing.get_context('fork')
_ports = multiprocessing.get_context('forkserver')
_ports.set_forkserver_preload(['torch_geometric.nn', 'torch_geometric.loader', 'pyg_sar'])


@dataclass(frozen=True)
class Program:
    """What runs."""

    folder: Path  # with the graphs and their parts
    file: Path
    words: list[str]  # of the command line
    checkout: Path  # where Python finds the modules of the script


def run_plain(program: Program, limit: float) -> list[Record]:
    """Runs plain PyG, and saves the graphs that it trains on."""
    return _run(_forks, 1, program, limit)


def run_port(program: Program, limit: float, *, num_ranks: int) -> list[Record]:
    """Runs a port on ranks, or on one process that holds all parts."""
    return _run(_ports, num_ranks, program, limit)


def _run(context: Any, num_ranks: int, program: Program, limit: float) -> list[Record]:
    name = program.file.parents[1].name
    results = [program.folder / f'{name}.{num_ranks}.{rank}.pt' for rank in range(num_ranks)]
    for result in results:
        result.unlink(missing_ok=True)
    is_port = context is _ports
    port = _free_port()
    processes = [
        context.Process(
            target=_process, args=(program, rank, num_ranks, port, is_port, results[rank])
        )
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + limit
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        time.sleep(0.05)
        if any(process.exitcode for process in processes):
            end = min(end, time.monotonic() + GRACE)
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()
    return [_read(result, limit) for result in results]


def _read(result: Path, limit: float) -> Record:
    if result.exists():
        return torch.load(result, weights_only=False)
    return Record(error=f'no end within {limit:.0f} seconds, or killed', kind='TimeoutError')


def _process(
    program: Program, rank: int, num_ranks: int, port: int, is_port: bool, result: Path
) -> None:
    os.chdir(program.folder)
    log = os.open(result.with_suffix('.log'), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    os.dup2(log, 1)
    if num_ranks > 1:
        names = {
            'RANK': rank,
            'LOCAL_RANK': rank,
            'WORLD_SIZE': num_ranks,
            'LOCAL_WORLD_SIZE': num_ranks,
        }
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    record = Record()
    sys.argv = [str(program.file), *program.words]
    _prepare(record)
    text = result.with_suffix('.txt')
    try:
        with text.open('w', encoding='utf-8') as out, contextlib.redirect_stdout(out):
            _execute(program, is_port=is_port)
    except SystemExit as exit_:
        if exit_.code:
            record.error, record.kind = str(exit_.code), 'SystemExit'
    except BaseException as error:  # whatever a program ends with
        record.error = str(error) or repr(error)
        record.kind = type(error).__name__
        last = traceback.extract_tb(error.__traceback__)[-1]
        is_raised = (last.line or '').startswith('raise')
        record.is_refusal = '/pyg_sar/' in last.filename and is_raised
        record.trace = traceback.format_exc()
        print(record.trace, file=sys.stderr)
    record.lines = text.read_text(encoding='utf-8').splitlines()
    new = result.with_suffix('.new')
    torch.save(record, new)
    new.rename(result)
    sys.stderr.flush()
    os._exit(1 if record.error else 0)  # waits for no thread of a program


def _prepare(record: Record) -> None:
    """Double precision, no dropout, small graphs, one seed; the steps of all optimizers."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    _without_dropout()
    fake_datasets.install()
    torch_geometric.logging.log = _log
    register_optimizer_step_post_hook(
        lambda optimizer, args, kwargs: record.steps.append(_state(optimizer))
    )
    _seed()


def _without_dropout() -> None:
    """No function and no layer drops anything, nor draws a number for it."""
    functional = torch.nn.functional
    functional.dropout = _identity
    functional.dropout1d = functional.dropout2d = functional.alpha_dropout = functional.dropout
    module = torch.nn.Module
    set_attribute: Any = module.__setattr__

    def set_(layer: Any, name: str, value: Any) -> None:
        is_rate = 'dropout' in name or (name == 'p' and isinstance(layer, _DropoutNd))
        set_attribute(layer, name, 0.0 if is_rate and isinstance(value, float) else value)

    module.__setattr__ = set_  # type: ignore


def _identity(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return input


def _log(*args: Any, **kwargs: Any) -> None:
    print(', '.join(f'{key}: {value}' for key, value in kwargs.items()))


def _state(optimizer: torch.optim.Optimizer) -> list[Tensor | None]:
    parameters = [p for group in optimizer.param_groups for p in group['params']]
    return [
        None if each is None or is_lazy(each) else _plain(each)
        for parameter in parameters
        for each in (parameter, parameter.grad)
    ]


def _plain(tensor: Tensor) -> Tensor:
    """A copy of the whole tensor, also of one whose rows are spread."""
    if 'pyg_sar' in sys.modules and type(tensor) not in (Tensor, torch.nn.Parameter):
        tensor = sys.modules['pyg_sar'].gather(tensor.detach())
    tensor = tensor.detach()
    return (tensor.to_dense() if tensor.is_sparse else tensor).clone()


def _execute(program: Program, *, is_port: bool) -> None:
    """Runs the program as Python would."""
    tree = _Precise().visit(ast.parse(program.file.read_text(encoding='utf-8')))
    main = types.ModuleType('__main__')
    main.__file__ = str(program.file)
    if is_port:
        _seed_after_loading()
    else:
        torch_geometric.loader.NeighborLoader = NeighborLoader
        builtins.saved = _saved  # type: ignore[attr-defined]
    sys.modules['__main__'] = main
    sys.path[:0] = [*map(str, program.file.parents[:2]), str(program.checkout)]
    exec(compile(ast.fix_missing_locations(tree), program.file, 'exec'), main.__dict__)


class _Precise(ast.NodeTransformer):
    """Twelve digits where a script prints 4, and double precision where it names single."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        """``torch.float`` and ``x.float``."""
        self.generic_visit(node)
        if node.attr in ('float', 'float32'):
            node.attr = 'double'
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.FormattedValue:
        """What stands in the braces of an f-string."""
        self.generic_visit(node)
        for part in getattr(node.format_spec, 'values', []):
            if isinstance(part, ast.Constant) and re.fullmatch(r'\.\df', str(part.value)):
                part.value = '.12g'
        return node


def _saved(graph: Any, number: int) -> Any:
    is_loader = isinstance(graph, torch.utils.data.DataLoader)
    graphs = list(graph) if is_loader or isinstance(graph, (tuple, list)) else [graph]
    for place, each in enumerate(graphs):
        end = f'{number}.{place}' if len(graphs) > 1 else f'{number}'
        path = Path(f'graph{end}.pt')
        if not path.exists():
            torch.save(each, path)
    _seed()
    return graph


def _seed() -> None:
    """Where a graph has been loaded: the draws that made it are no part of the training."""
    torch_geometric.seed_everything(1)


def _seed_after_loading() -> None:
    import pyg_sar

    load = pyg_sar.load_shard

    def load_shard(*args: Any, **kwargs: Any) -> Any:
        graph = load(*args, **kwargs)
        _seed()
        return graph

    pyg_sar.load_shard = load_shard


def cut(folder: Path, limit: float) -> str:
    """Cuts the graphs that the plain program has saved; what went wrong, if something did."""
    process = _ports.Process(target=_cut, args=(folder,))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
    error = folder / 'cut.txt'
    return error.read_text(encoding='utf-8') if error.exists() else ''


def _cut(folder: Path) -> None:
    import pyg_sar

    os.chdir(folder)
    log = os.open('cut.log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    torch.set_default_dtype(torch.float64)
    for number, path in enumerate(sorted(Path().glob('graph*.pt'))):
        graph = torch.load(path, weights_only=False)
        draw = torch.Generator().manual_seed(number)
        order = torch.rand(graph.num_nodes, generator=draw).argsort()
        ends = torch.tensor(SHARES).cumsum(0)[:-1].mul(graph.num_nodes).long()
        parts = torch.bucketize(order, ends, right=True)
        try:
            pyg_sar.partition_graph(
                graph, NUM_PARTS, path.stem.replace('graph', 'parts'), method=parts
            )
        except Exception as error:
            Path('cut.txt').write_text(f'{error}', encoding='utf-8')


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))
        return int(server.getsockname()[1])

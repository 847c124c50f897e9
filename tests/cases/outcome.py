"""Runs many cases, once for every way to cut the graphs, and says what became of each."""

from __future__ import annotations

import faulthandler
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
from conv_cases import ANY, CASES
from conv_graphs import GRAPHS
from exact import TOLERANCE, TOLERANCE_SINGLE, Result, run_case
from torch import Tensor

import pyg_sar

WORLD_SIZE = 3

CUTS = {'metis': 3, 'random': 6}
"""Number of parts by method; the table counts rows where there are several parts per rank."""

NO_NODES = {'no nodes': 3}
"""A cut that leaves the middle rank without nodes and edges."""

_RULE = 'of rows that are spread over the ranks'
"""What an error says by which a rule of rows refuses a function, at the first forward."""

TIMEOUT = 500
"""Seconds for all cases of one cut."""

PATIENCE = 60
"""Seconds for one case."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        status: ``'exact'``, ``'refused'`` at construction or at the first forward, ``'not yet'``
            where the graph cannot be partitioned, ``'wrong'`` or ``'failed'``.
        reason: Why it is not exact.
        results: Of every rank of the random cut; none where nothing ran.
    """

    status: str
    reason: str = ''
    results: tuple[Result, ...] = ()


def outcomes(
    folder: Path,
    names: Iterable[str] = CASES,
    *,
    cuts: dict[str, int] = CUTS,
    patience: float = PATIENCE,
) -> dict[str, Outcome]:
    """Runs cases on three ranks.

    Args:
        folder: An empty folder to work in.
        names: The cases.
        cuts: The number of parts by method.
        patience: Seconds for one case.
    """
    names = list(names)
    found: dict[str, dict[str, Outcome]] = defaultdict(dict)
    for method, num_parts in cuts.items():
        graphs = {name: ANY[name].graph for name in names}
        roots, reasons = cut_graphs(folder, method, num_parts, set(graphs.values()))
        results = _run(folder / f'log-{method}', names, roots, patience)
        for name, by_rank in results.items():
            is_single = ANY[name].is_single
            tolerance = TOLERANCE_SINGLE if is_single else TOLERANCE
            found[name][method] = outcome_of(by_rank, reasons.get(graphs[name], ''), tolerance)
    return {name: _worst(by_method) for name, by_method in found.items()}


def cut_graphs(
    folder: Path, method: str, num_parts: int, graphs: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Folders of the graphs, and why a graph has none."""
    roots, reasons = {}, {}
    for name in sorted(graphs):
        root = folder / f'{method}-{name}'.replace(' ', '-')
        graph = GRAPHS[name]()
        try:
            how = _two_of_three(graph.num_nodes) if method in NO_NODES else method
            pyg_sar.partition_graph(graph, num_parts, root, method=how)
            roots[name] = str(root)
        except (ValueError, TypeError, NotImplementedError) as error:
            reasons[name] = str(error)
    return roots, reasons


def _two_of_three(num_nodes: int | None) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(2, (num_nodes or 0,), generator=generator) * 2


def _run(
    log: Path, names: list[str], roots: dict[str, str], patience: float
) -> dict[str, list[Result | str]]:
    """Results by case and rank; after a case that spoils the ranks the others go on in new ones."""
    log.mkdir(parents=True)
    found: dict[str, list[Result | str]] = {}
    while len(found) < len(names):
        todo = [name for name in names if name not in found]
        failure = ''
        try:
            ranks.run_ranks(
                _run_cases, WORLD_SIZE, todo, roots, str(log), patience, timeout=TIMEOUT
            )
        except (ranks.RankError, TimeoutError) as error:
            failure = str(error).strip().splitlines()[-1]
        by_rank = [_read(log / f'rank-{rank}') for rank in range(WORLD_SIZE)]
        for name in todo:
            results = [read.get(name) for read in by_rank]
            if None not in results and len({(r.stage, r.error) for r in results if r}) == 1:
                found[name] = list(results)  # type: ignore[arg-type]
            else:
                missing = failure or 'the rank did not finish'
                found[name] = [missing if r is None else r for r in results]
                break
    return found


class DesynchronisedError(RuntimeError):
    """Ranks do not agree on where a case ended: nothing can be exchanged any more."""


def _run_cases(names: list[str], roots: dict[str, str], log: str, patience: float) -> None:
    """Runs cases one after another and appends every result to a file of this rank.

    A rank that waits for `patience` seconds within one case ends itself.
    """
    file = Path(log) / f'rank-{dist.get_rank()}'
    with file.open('a') as results, file.with_suffix('.stacks').open('w') as stacks:
        for name in names:
            faulthandler.dump_traceback_later(patience, exit=True, file=stacks)
            root = roots.get(ANY[name].graph)
            result = run_case(ANY[name], root, mode='sequential')
            results.write(json.dumps([name, asdict(result)]) + '\n')
            results.flush()
            ends: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(ends, (result.stage, result.error))
            faulthandler.cancel_dump_traceback_later()
            if len(set(ends)) > 1:
                raise DesynchronisedError(f"'{name}' ended differently on the ranks: {ends}")


def _read(file: Path) -> dict[str, Result]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {name: Result(**values) for name, values in map(json.loads, lines)}


def outcome_of(
    results: list[Result | str], why_no_graph: str = '', tolerance: float = TOLERANCE
) -> Outcome:
    known = tuple(r for r in results if isinstance(r, Result))
    ends = {(r.stage, r.error) for r in known}
    if len(known) < len(results) or len(ends) > 1:
        told = [r if isinstance(r, str) else f'{r.stage} {r.error} {r.reason}' for r in results]
        return Outcome('failed', f'the ranks do not agree: {told}', known)
    first = known[0]
    if first.stage == 'partition':
        return Outcome('not yet', why_no_graph)
    if first.stage == 'construction' and first.error == 'ValueError':
        return Outcome('refused', first.reason)
    if first.error == 'ValueError' and all(_RULE in r.reason for r in known):
        return Outcome('refused', first.reason)
    if first.error:
        # The rank that has the reason, not one that was told by it.
        reasons = sorted((r.reason for r in known), key=lambda reason: reason.startswith('rank '))
        return Outcome('failed', f'{first.stage}: {first.error}: {reasons[0]}', known)
    wrong = {
        f'{name} (rank {rank})': value
        for rank, result in enumerate(known)
        for name, value in result.differences.items()
        if not value <= tolerance
    }
    return Outcome('wrong', str(wrong), known) if wrong else Outcome('exact', '', known)


def _worst(by_method: dict[str, Outcome]) -> Outcome:
    order = ['failed', 'wrong', 'refused', 'not yet', 'exact']
    method = min(by_method, key=lambda m: order.index(by_method[m].status))
    worst = by_method[method]
    if worst.status == 'exact':
        return by_method.get('random', worst)
    if worst.status in ('failed', 'wrong'):
        return Outcome(worst.status, f'{method} parts: {worst.reason}', worst.results)
    return worst


def assert_exact(name: str, results: list[Result], tolerance: float = TOLERANCE) -> None:
    """Of a case on every rank."""
    outcome = outcome_of(results, tolerance=tolerance)
    assert outcome.status == 'exact', f'{name}: {outcome.status}: {outcome.reason}'

"""The benchmarks run, compare what they claim to compare, and write their READMEs from results."""

from __future__ import annotations

import json
import os
import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from started import ROOT, output
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BENCHMARKS = ROOT / 'benchmarks'
NAMES = (
    *('kernels', 'convs', 'attention', 'limit', 'epoch', 'start', 'scaling'),
    *('accuracy', 'sampling', 'ogbn', 'partition', 'network', 'one_machine'),
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of the benchmarks, which are programs and no package."""

    def load(folder: str, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(BENCHMARKS)
        monkeypatch.syspath_prepend(BENCHMARKS / folder)
        return import_module(name)

    return load


def _run(*command: object) -> str:
    """What is printed, on one core: with two threads on a busy machine, tiny work takes minutes."""
    return output(['taskset', '-c', max(os.sched_getaffinity(0)), 'python', *command])


@pytest.mark.bench
@pytest.mark.parametrize('name', NAMES)
def test_runs_and_fills_its_readme(name: str, tmp_path: Path) -> None:
    printed = _run(BENCHMARKS / name / 'main.py', '--tiny', '--out', tmp_path)
    if printed.startswith('skipped: '):
        pytest.skip(printed)
    (report,) = json.loads((tmp_path / 'results.json').read_text())
    assert report['size'] == 'tiny'
    assert (tmp_path / f'{name}.png').stat().st_size > 0
    readme = (tmp_path / 'README.md').read_text()
    assert '![' in readme
    assert 'Not measured yet' not in readme
    assert f'Processor: {report["environment"]["processor"]};' in readme
    rows = report['rows']
    if name == 'epoch':
        assert {row['variant'] for row in rows} >= {'plain PyG', 'plain PyG, CSR', 'one_shot'}
        assert all(0 <= row['loss_difference'] <= 1e-4 for row in rows)
        assert all(len(row['peak_bytes']) == row['processes'] for row in rows)
    if name == 'network':
        assert {row['link'] for row in rows} == {0.1, 0.0}
        assert all(row['bytes_sent']['median'] > 0 for row in rows)
    if name == 'ogbn':
        assert len(rows) == 5
        assert all(row['processes'] == row['epochs'] == len(row['loss']) == 2 for row in rows)


def test_every_conv_that_is_measured_can_be_made(load) -> None:
    for case in load('convs', 'convs').CONVS.values():
        case.make()


@pytest.mark.bench
@pytest.mark.parametrize('name', NAMES)
def test_readme_is_what_its_results_say(name: str, tmp_path: Path) -> None:
    folder = BENCHMARKS / name
    if (folder / 'results.json').exists():
        shutil.copy(folder / 'results.json', tmp_path)
    _run(folder / 'main.py', '--render', '--out', tmp_path)
    assert (tmp_path / 'README.md').read_text() == (folder / 'README.md').read_text()


@pytest.mark.parametrize(
    ('found', 'name'),
    [
        (('AuthenticAMD', 25, 1, 'AMD EPYC 7763 64-Core Processor'), 'AMD EPYC 7763'),
        (('AuthenticAMD', 25, 0xA0, 'AMD EPYC'), 'AMD EPYC, Zen 4'),
        (('GenuineIntel', 6, 0xCF, 'Intel(R) Xeon(R) Processor'), 'Intel Xeon, Emerald Rapids'),
        (('GenuineIntel', 6, 0x8F, 'Intel(R) Xeon(R) Platinum 8488C'), 'Intel Xeon Platinum 8488C'),
    ],
)
def test_a_processor_has_a_name(load, found, name, tmp_path):
    lines = zip(('vendor_id', 'cpu family', 'model', 'model name'), found, strict=True)
    core = ''.join(f'{name}\t: {value}\n' for name, value in lines)
    (tmp_path / 'cpuinfo').write_text(f'processor\t: 0\n{core}\nprocessor\t: 1\n{core}\n')
    assert load('.', 'processors').processor(tmp_path / 'cpuinfo') == name


def test_a_run_keeps_the_reports_of_other_processors(load, tmp_path, monkeypatch):
    report = load('.', 'report')
    blocks = ''.join(f'<!-- {n} -->\n<!-- /{n} -->\n' for n in ('picture', 'table', 'environment'))
    (tmp_path / 'README.md').write_text(blocks)
    drawn = []

    def render(found: dict[str, Any]) -> dict[str, str]:
        rows = [[row['figure']] for row in found['rows']]
        return {'table': f'All:\n\n{report.table(["s"], rows)}'}

    def run(name: str, figure: int) -> str:
        benchmark = report.Benchmark(
            tmp_path,
            {'full': {'figure': 0}},
            lambda args: iter([{'figure': args.figure}]),
            render,
            lambda found, path: drawn.append(found['rows'][0]['figure']),
            'A figure.',
        )
        monkeypatch.setattr(report, 'processor', lambda: name)
        monkeypatch.setattr('sys.argv', ['main.py', f'--figure={figure}'])
        benchmark.main()
        return (tmp_path / 'README.md').read_text()

    head = 'All:\n\n| processor | s |\n|---|---|\n'
    assert 'All:\n\n| s |\n|---|\n| 1 |\n<' in run('a', 1)
    assert f'{head}| b | 2 |\n| a | 1 |\n<' in run('b', 2)
    text = run('a', 3)
    assert f'{head}| a | 3 |\n| b | 2 |\n<' in text
    assert 'The picture is of a.' in text
    assert 'Processor: a;' in text
    assert 'Processor: b;' in text
    assert drawn == [1, 2, 3]

    reports = json.loads((tmp_path / 'results.json').read_text())
    del reports[1]['environment']['processor']
    (tmp_path / 'results.json').write_text(json.dumps(reports))
    assert f'{head}| a | 4 |\n| not recorded | 2 |\n<' in run('a', 4)


def test_tables_that_differ_stand_one_after_another(load) -> None:
    together = load('.', 'processors').together
    first, second = (f'{n} cores:\n\n| s |\n|---|\n| 1 |' for n in (2, 4))
    assert together([first, second]) == f'{first}\n\n{second}'
    assert together(['', first]) == first


def _graph(num_nodes: int, num_edges: int) -> Tensor:
    key = torch.randperm(num_nodes**2)[:num_edges]
    return torch.stack([key // num_nodes, key % num_nodes])


class _Products(TorchDispatchMode):
    """Notes the products of matrices: the width that is summed over, and the two others."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, list[int]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = args[-2:]
            self.found.append((left.size(1), sorted([left.size(0), right.size(1)])))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('name', ['sage', 'gat'])
def test_the_bound_counts_the_products_of_an_epoch(load, name: str) -> None:
    num_nodes, num_edges = 50, 200
    needs = load('.', 'layer_bound').needs
    model = load('.', 'measured_training').make_model(name, 12, 32, 3, 5)
    expected = []
    for i, conv in enumerate(model.convs):
        for (width, columns), kind in needs(conv, i == 0, num_nodes, num_edges).products:
            summed = {'forward': width, 'weight': num_nodes, 'input': columns}[kind]
            others = [width, columns, num_nodes]
            others.remove(summed)
            expected.append((summed, sorted(others)))
    with _Products() as products:
        model(torch.randn(num_nodes, 12), _graph(num_nodes, num_edges)).sum().backward()
    assert sorted(products.found) == sorted(expected)


def test_the_bound_counts_what_gathers_move(load) -> None:
    num_nodes, num_edges = 50, 200
    needs, make_model = load('.', 'layer_bound').needs, load('.', 'measured_training').make_model
    first, last = make_model('sage', 12, 32, 2, 5).convs
    assert needs(first, True, num_nodes, num_edges).gathered_bytes == 0
    sums = 2 * (num_edges * (5 + 1) + num_nodes * 5)  # 5 classes, both ways
    assert needs(last, False, num_nodes, num_edges).gathered_bytes == 4 * sums
    (conv,) = make_model('gat', 12, 32, 1, 5).convs
    found = needs(conv, True, num_nodes, num_edges)
    loops = num_edges + num_nodes
    width = 4 * 5  # of all heads: the last layer takes their mean
    assert found.gathered_bytes == 4 * 3 * (loops * (width + 1 + 4) + num_nodes * width)
    assert found.exponentials == 4 * loops


@pytest.mark.bench
def test_partitioning_stays_within_its_memory(tmp_path: Path) -> None:
    """2 million edges: 1.3 times the int32 CSR and 10 MB for chunks, beside METIS's own arrays."""
    program = (
        f'import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); from pathlib import Path; '
        'from synthetic import GraphShape, save, synthetic_graph; '
        'save(synthetic_graph(GraphShape(100_000, 1_000_000, 500, 8)), Path(sys.argv[1]))'
    )
    _run('-c', program, tmp_path / 'graph')
    command = (BENCHMARKS / 'partition' / 'measure.py', tmp_path / 'graph', tmp_path / 'parts')
    row = json.loads(_run('-W', 'ignore', *command, '--num-parts=2', '--method=metis'))
    # The features alone are 200 MB.
    phases = {phase: found['beside_bytes'] for phase, found in row['phases'].items()}
    assert 0 < row['passes_bytes'] < 1.3 * row['csr_bytes'] + 10e6, phases
    assert 0 < phases['METIS'] < row['csr_bytes'], phases

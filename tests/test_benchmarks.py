"""The benchmarks run, compare what they claim to compare, and write their READMEs from results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conv_cases import CASES, EXACT
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn.models import GraphSAGE

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / 'benchmarks'
NAMES = (
    'kernels',
    'convs',
    'attention',
    'limit',
    'epoch',
    'start',
    'scaling',
    'accuracy',
    'sampling',
    'ogbn',
    'partition',
    'network',
    'one_machine',
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of the benchmarks, which are programs and no package."""

    def load(folder: str, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(BENCHMARKS)
        monkeypatch.syspath_prepend(BENCHMARKS / folder)
        return import_module(name)

    return load


def _run(*command: object, limit: float = 300) -> subprocess.CompletedProcess[str]:
    """On one core: with two threads on a busy machine, tiny work takes minutes."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))
    core = max(os.sched_getaffinity(0))
    code = (
        f'import os, sys; os.sched_setaffinity(0, [{core}]); '
        'os.execv(sys.executable, [sys.executable, *sys.argv[1:]])'
    )
    return subprocess.run(
        [sys.executable, '-c', code, *map(str, command)],
        env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path},
        capture_output=True,
        text=True,
        timeout=limit,
    )


@pytest.mark.bench
@pytest.mark.parametrize('name', NAMES)
def test_runs_and_fills_its_readme(name: str, tmp_path: Path) -> None:
    done = _run(BENCHMARKS / name / 'main.py', '--tiny', '--out', tmp_path)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith('skipped: '):
        pytest.skip(done.stdout)
    report = json.loads((tmp_path / 'results.json').read_text())
    assert report['size'] == 'tiny'
    assert (tmp_path / f'{name}.png').stat().st_size > 0
    readme = (tmp_path / 'README.md').read_text()
    assert '![' in readme
    assert 'Not measured yet' not in readme
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


def test_every_conv_is_measured_or_left_out_with_a_reason(load) -> None:
    convs = load('convs', 'convs')
    named = {name.split(',')[0] for name in convs.CONVS} | set(convs.WITHOUT_KERNELS)
    assert named == {CASES[name].conv for name in EXACT} - {'MessagePassing'}


@pytest.mark.bench
def test_picture_of_what_overlap_hides(tmp_path: Path) -> None:
    main = BENCHMARKS / 'network' / 'main.py'
    done = _run(main, '--tiny', '--picture', '--out', tmp_path)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith('skipped: '):
        pytest.skip(done.stdout)
    assert {p.name for p in tmp_path.iterdir()} == {'overlap.json', 'overlap.png'}
    epochs = json.loads((tmp_path / 'overlap.json').read_text())
    assert [epoch['variant'] for epoch in epochs] == ['prefetch 1', 'no prefetch']
    for epoch in epochs:
        times = [time for span in epoch['waiting'] for time in span]
        assert times == sorted(times)
        assert 0 < times[0] < times[-1] <= epoch['seconds']
        assert [phase for phase, *_ in epoch['layers'][:3]] == ['forward'] * 3
        received = [count for _, count in epoch['received']]
        assert received == sorted(received)
        assert received[-1] > 0


def test_bytes_beside_computing_are_those_outside_of_waiting(load) -> None:
    shares = load('network', 'overlap').shares
    epoch = {'waiting': [[1.0, 2.0], [3.0, 3.5]], 'received': [[1.0, 0], [2.0, 60], [3.5, 90]]}
    seconds, beside = shares(epoch)
    assert seconds == 1.5
    assert beside == pytest.approx(20 / 90)


@pytest.mark.bench
@pytest.mark.parametrize('name', NAMES)
def test_readme_is_what_its_results_say(name: str, tmp_path: Path) -> None:
    folder = BENCHMARKS / name
    if (folder / 'results.json').exists():
        shutil.copy(folder / 'results.json', tmp_path)
    done = _run(folder / 'main.py', '--render', '--out', tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'README.md').read_text() == (folder / 'README.md').read_text()


def test_programs_step_as_teams_and_tell_of_failures(load) -> None:
    team_type = load('.', 'program_team').ProgramTeam
    code = (
        'import sys; rank = int(sys.argv[1]); print(\'"ready"\', flush=True)\n'
        'for number, _ in enumerate(sys.stdin):\n'
        '    print([rank, number] if number < 2 or rank == 0 else 1 / 0, flush=True)'
    )
    commands = [[sys.executable, '-c', code, str(rank)] for rank in range(2)]
    with team_type(commands) as team:
        assert team.setup == ['ready', 'ready']
        assert [team.step(), team.step()] == [[[0, 0], [1, 0]], [[0, 1], [1, 1]]]
        with pytest.raises(RuntimeError, match=r'rank 1 of 2 failed:\n[^$]*ZeroDivisionError'):
            team.step()


def test_fill_replaces_what_stands_between_the_marks(load) -> None:
    report = load('.', 'report')
    text = 'a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\n<!-- /y -->\n'
    filled = report.fill(text, {'x': r'new \1', 'y': 'two\nlines'})
    assert filled == 'a\n<!-- x -->\nnew \\1\n<!-- /x -->\nb\n<!-- y -->\ntwo\nlines\n<!-- /y -->\n'
    assert report.fill(filled, {'x': 'old', 'y': ''}) == text
    with pytest.raises(ValueError, match=r'expected <!-- z -->'):
        report.fill(text, {'z': ''})


def _graph(num_nodes: int, num_edges: int) -> Tensor:
    key = torch.randperm(num_nodes**2)[:num_edges]
    return torch.stack([key // num_nodes, key % num_nodes])


def test_samples_are_edges_of_the_graph_without_replacement(load) -> None:
    num_nodes, fan_outs = 60, [4, 3]
    edge_index = _graph(num_nodes, 500)
    sampler = load('accuracy', 'sampler').NeighborSampler(edge_index, num_nodes, fan_outs)
    in_degree = edge_index[1].bincount(minlength=num_nodes)
    edges = set(map(tuple, edge_index.T.tolist()))
    seen = []
    for batch in sampler.epoch(torch.arange(30), batch_size=8):
        assert batch.n_id.unique().numel() == batch.n_id.numel() == sum(batch.nodes_per_hop)
        seen += batch.n_id[: batch.num_seeds].tolist()
        drawn = list(map(tuple, batch.n_id[batch.edge_index].T.tolist()))
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= edges
        first_edge = first_node = 0
        for hop, fan_out in enumerate(fan_outs):
            dst = batch.edge_index[1, first_edge : first_edge + batch.edges_per_hop[hop]]
            nodes = torch.arange(first_node, first_node + batch.nodes_per_hop[hop])
            expected = in_degree[batch.n_id[nodes]].clamp(max=fan_out)
            assert torch.equal(dst.bincount(minlength=batch.n_id.numel())[nodes], expected)
            first_edge += batch.edges_per_hop[hop]
            first_node += batch.nodes_per_hop[hop]
    assert sorted(seen) == list(range(30))


def test_samples_of_all_neighbours_give_the_output_of_the_whole_graph(load) -> None:
    num_nodes = 40
    edge_index = _graph(num_nodes, 160)
    x = torch.randn(num_nodes, 5, dtype=torch.float64)
    model = GraphSAGE(5, 8, 3, 4).double()
    sampler = load('accuracy', 'sampler').NeighborSampler(edge_index, num_nodes, [num_nodes] * 3)
    expected = model(x, edge_index)
    for batch in sampler.epoch(torch.arange(num_nodes), batch_size=16):
        out = model(
            x[batch.n_id],
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.nodes_per_hop,
            num_sampled_edges_per_hop=batch.edges_per_hop,
        )[: batch.num_seeds]
        wanted = expected[batch.n_id[: batch.num_seeds]]
        torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-10)


def test_roc_auc_counts_pairs(load) -> None:
    scores = torch.tensor([[0.1, 1.0], [0.4, 1.0], [0.4, 2.0], [0.8, 0.0]])
    labels = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    # Pairs of the first task: 0.4 over 0.1, 0.4 level with 0.4, 0.8 over both. The second task has
    # no negative label and does not count.
    assert load('ogbn', 'metrics').mean_roc_auc(scores, labels) == 3.5 / 4


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


@pytest.mark.slow
def test_an_unknown_dataset_is_named() -> None:
    done = _run(BENCHMARKS / 'ogbn' / 'main.py', '--datasets', 'karate')
    assert done.returncode == 1
    assert 'expected one of arxiv, products, proteins, mag, papers100M' in done.stderr
    assert "(got 'karate')" in done.stderr


@pytest.mark.bench
def test_partitioning_stays_within_its_memory(tmp_path: Path) -> None:
    """2 million edges: 1.3 times the int32 CSR and 10 MB for chunks, beside METIS's own arrays."""
    program = (
        f'import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); from pathlib import Path; '
        'from synthetic import GraphShape, save, synthetic_graph; '
        'save(synthetic_graph(GraphShape(100_000, 1_000_000, 500, 8)), Path(sys.argv[1]))'
    )
    assert _run('-c', program, tmp_path / 'graph').returncode == 0
    command = (BENCHMARKS / 'partition' / 'measure.py', tmp_path / 'graph', tmp_path / 'parts')
    done = _run('-W', 'ignore', *command, '--num-parts=2', '--method=metis')
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    # The features alone are 200 MB.
    phases = {phase: found['beside_bytes'] for phase, found in row['phases'].items()}
    assert 0 < row['passes_bytes'] < 1.3 * row['csr_bytes'] + 10e6, phases
    assert 0 < phases['METIS'] < row['csr_bytes'], phases


def test_hosts_are_taken_down_after_an_error(load) -> None:
    namespaces = load('network', 'namespaces')
    if reason := namespaces.missing():
        pytest.skip(reason)

    def listed() -> str:
        commands = (['ip', 'netns', 'list'], ['ip', '-o', 'link'])
        return ''.join(subprocess.run(c, capture_output=True, text=True).stdout for c in commands)

    prefix = f'sar{os.getpid()}'

    def fail() -> None:
        with namespaces.Hosts(2) as hosts:
            hosts.shape(1.0)
            assert listed().count(prefix) >= 5  # two names, two ends of links, a bridge
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert prefix not in listed()


def test_edges_and_masks_of_a_drawn_graph(load) -> None:
    synthetic = load('.', 'synthetic')
    shape = synthetic.GraphShape(5000, 30_000, 8, 10, community_size=100)
    data = synthetic.synthetic_graph(shape, seed=0)
    assert (data.x.shape, data.x.dtype) == ((5000, 8), torch.float32)
    assert (data.edge_index.shape, data.edge_index.dtype) == ((2, 60_000), torch.int64)
    assert data.y.unique().tolist() == list(range(data.num_classes))
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(dim=1).tolist() == [2700, 900, 1400]
    assert masks.sum(dim=0).eq(1).all()
    src, dst = data.edge_index
    keys = src * 5000 + dst
    assert (keys.diff() > 0).all()  # Sorted, no duplicates.
    assert (src != dst).all()
    assert torch.equal((dst * 5000 + src).sort()[0], keys)
    degree = src.bincount(minlength=5000).double()
    assert degree.max() > 15 * degree.mean()
    assert 0.8 < degree[-500:].mean() / degree[:500].mean() < 1.25  # ids tell nothing
    same = (data.y[src] == data.y[dst]).double().mean()
    assert same > 0.65  # By construction 0.45 + 0.25, and some by chance.
    centres = torch.stack([data.x[data.train_mask & (data.y == c)].mean(0) for c in range(10)])
    guess = torch.cdist(data.x[data.test_mask], centres).argmin(dim=1)
    assert (guess == data.y[data.test_mask]).double().mean() > 0.2
